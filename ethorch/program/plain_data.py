"""A program as plain data: what ``Program.to_json`` gives, and every ``--json``."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ethorch.figures.layer import CPU
from ethorch.support.versions import versions
from ethorch.targets.boards.measured import spread
from ethorch.targets.boards.memory_roles import assumptions
from ethorch.targets.compile_spec import EthosUCompileSpec

if TYPE_CHECKING:
    from ethorch.program.program import Program  # the 2 seconds of torch, for a type


def plain_data(program: Program) -> dict[str, Any]:
    """Everything that is known of a program as plain data; docs/json.md says what each key means."""
    npu, cpu, taken, macs = (
        program.total_cycles,
        program.cpu_cycles,
        program.milliseconds,
        sum(layer.macs for layer in program.layers),
    )
    partition = None if program.build is None else program.build.partition
    per_cycle = 0 if program.spec is None else program.spec.target.macs
    kernels = sum(layer.where == CPU for layer in program.layers)
    measured = program.__dict__.get("accuracy")
    return {
        "method": program.method,
        "methods": list(program.methods),
        "target": program.target,
        "pte_bytes": len(program.pte),
        "operators": {
            "npu": None if partition is None else partition.npu_operators,
            "cpu": kernels if partition is None else len(partition.refusals),
            "delegates": len(program.payloads),
        },
        "total_cycles": npu,
        "cpu_cycles": cpu,
        "overhead_cycles": program.estimate.overhead_cycles,
        "estimate": program.estimate.to_json(),
        "core_clock_hz": program.core_clock_hz,
        "cpu_clock_hz": program.cpu_clock_hz,
        "board": _board_facts(program),
        "memory_system": None if program.spec is None else memory_system(program.spec),
        "milliseconds": taken,
        "inferences_per_second": None if not taken else 1e3 / taken,
        "mac_count": program.mac_count,
        "util_mac_percentage": 100 * macs / (npu * per_cycle) if npu and per_cycle else None,
        "sram_bytes": program.memory.sram_bytes,
        "ram_bytes": program.memory.ram_bytes,
        "flash_bytes": program.memory.flash_bytes,
        "fits": program.fits,
        "budgets": [finite(asdict(budget)) for budget in program.budgets],
        "tried": [finite(attempt.to_json()) for attempt in program.tried],
        "accuracy": finite(asdict(measured)) if measured else None,
        "verification": None if program.verification is None else asdict(program.verification),
        "inputs": [asdict(info) for info in program.inputs],
        "outputs": [asdict(info) for info in program.outputs],
        "cpu": [] if partition is None else [refusal.to_json() for refusal in partition.refusals],
        "without_kernel": [] if partition is None else [refusal.to_json() for refusal in partition.without_kernel],
        "states": [asdict(state) for state in program.states],
        "layers": [layer.to_json() for layer in program.layers],
        "memory": program.memory.to_json(),
        "settings": None if program.settings is None else program.settings.to_json(),
        "versions": versions(),
    }


def _board_facts(program: Program) -> dict[str, Any] | None:
    """The board; None without one."""
    board, slot = program.board, None if program.settings is None else program.settings.slot
    if board is None or slot is None:
        return None
    of_board = program.spec is not None and program.spec.config_text is not None
    return {
        "name": board.name,
        "title": board.title,
        "memories": [asdict(use) for use in program.memory_uses],
        "spread": asdict(spread(board.name)),
        "assumed": list(assumptions(board, slot, program.spec.memory_mode)) if of_board and program.spec is not None else [],
    }


def finite(data: dict[str, Any]) -> dict[str, Any]:
    """The same with None for what is not finite, which JSON cannot say: the SQNR of outputs that are equal."""
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in data.items()}


def memory_system(spec: EthosUCompileSpec) -> dict[str, Any]:
    """What bounds the NPU, as plain data; docs/json.md says what each key means."""
    memory = spec.memory_system
    return {
        "system_config": spec.system_config,
        "memory_mode": spec.memory_mode,
        "macs_per_cycle": spec.target.macs,
        "constants": "Sram" if memory.constants_in_sram else memory.const_area,
        "feature_maps": memory.arena_area,
        "staging": memory.cache_area,
        "bytes_per_cycle": spec.bytes_per_cycle,
    }
