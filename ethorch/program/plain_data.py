from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import Any

from ethorch.figures.layer import CPU
from ethorch.program.measure.budgets import budgets, fits
from ethorch.program.record import Record
from ethorch.support.text_files import finite
from ethorch.support.versions import versions
from ethorch.targets.boards import load as load_board
from ethorch.targets.boards import names as list_boards
from ethorch.targets.boards.measured import spread
from ethorch.targets.boards.memory_roles import assumptions
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.settings import FORMAT


def plain_data(record: Record) -> dict[str, Any]:
    """Return all figures of a program as JSON-compatible data. See docs/json.md for the keys."""
    npu, cpu, milliseconds = record.total_cycles, record.cpu_cycles, record.milliseconds
    npu_macs = max(record.mac_count - sum(layer.macs for layer in record.layers if layer.where == CPU), 0)
    partition = record.partition
    per_cycle = 0 if record.spec is None else record.spec.target.macs
    kernels = sum(layer.where == CPU for layer in record.layers)
    measured = record.measured.get("accuracy")
    return {
        "format": FORMAT,
        "model": record.model_name,
        "method": record.method,
        "methods": list(record.methods),
        "target": record.target,
        "pte_bytes": len(record.pte),
        "operators": {
            "npu": None if partition is None else partition.npu_operators,
            "cpu": kernels if partition is None else len(partition.refusals),
            "delegates": len(record.payloads),
        },
        "total_cycles": npu,
        "cpu_cycles": cpu,
        "overhead_cycles": record.estimate.overhead_cycles,
        "estimate": record.estimate.to_json(),
        "core_clock_hz": record.core_clock_hz,
        "cpu_clock_hz": record.cpu_clock_hz,
        "board": _board_facts(record),
        "boards": [] if record.board is not None else _list_boards(record.target),
        "memory_system": None if record.spec is None else memory_system(record.spec),
        "milliseconds": milliseconds,
        "inferences_per_second": None if not milliseconds else 1e3 / milliseconds,
        "mac_count": record.mac_count,
        "util_mac_percentage": 100 * npu_macs / (npu * per_cycle) if npu and per_cycle else None,
        "sram_bytes": record.memory.sram_bytes,
        "ram_bytes": record.memory.ram_bytes,
        "flash_bytes": record.memory.flash_bytes,
        "fits": fits(record),
        "budgets": [finite(asdict(budget)) for budget in budgets(record)],
        "tried": [finite(attempt.to_json()) for attempt in record.tried],
        "accuracy": finite(asdict(measured)) if measured else None,
        "verification": None if record.verification is None else asdict(record.verification),
        "stream_passes": [asdict(entry) for entry in record.stream_passes],
        "inputs": [asdict(info) for info in record.inputs],
        "outputs": [asdict(info) for info in record.outputs],
        "cpu": [] if partition is None else [refusal.to_json() for refusal in partition.refusals],
        "without_kernel": [] if partition is None else [refusal.to_json() for refusal in partition.without_kernel],
        "writer": None if partition is None else partition.writer,
        "delegated": None if partition is None else partition.delegated,
        "states": [asdict(state) for state in record.states],
        "layers": [layer.to_json() for layer in record.layers],
        "memory": record.memory.to_json(),
        "settings": None if record.settings is None else record.settings.to_json(),
        "versions": versions(),
    }


@cache
def _list_boards(target: str) -> list[dict[str, Any]]:
    boards = [load_board(name) for name in list_boards()]
    return [
        {"name": board.name, "ram_bytes": board.ram_bytes, "flash_bytes": board.flash_bytes}
        for board in boards
        if target in board.targets and not board.is_platform
    ]


def _board_facts(record: Record) -> dict[str, Any] | None:
    board, slot = record.board, None if record.settings is None else record.settings.slot
    if board is None or slot is None:
        return None
    measured = spread(board.name)
    of_board = record.spec is not None and record.spec.config_text is not None
    return {
        "name": board.name,
        "title": board.title,
        "memories": [asdict(use) for use in record.memory_uses],
        "spread": None if measured is None else asdict(measured),
        "assumed": list(assumptions(board, slot, record.spec.memory_mode)) if of_board and record.spec is not None else [],
    }


def memory_system(spec: EthosUCompileSpec) -> dict[str, Any]:
    """Return the NPU's MACs per cycle, and the names and bandwidths of its memories. See docs/json.md for the keys."""
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
