"""Vela in this process: TOSA flatbuffer in, command stream, constants, I/O map, estimates and operator table out.

Vela's compiler ("regor", C++) reports every refusal as a Python exception; nothing of what it says is lost to a
terminal. Fuzzing it with 1700 damaged TOSA files gave no crash, but one endless compilation, so graphs that come from
outside can be compiled in a process of their own, with a time limit.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ethorch import native
from ethorch.compile_spec import EthosUCompileSpec
from ethorch.errors import VelaError
from ethorch.flatbuffer import Buffer, Table
from ethorch.payload import RANK, IoTensor

Tables = Mapping[str, tuple[list[str], list[list[str]]]]  # table name -> column names, rows of text

_CONTROL_FLOW = {"If", "While"}  # Vela's names of COND_IF and WHILE_LOOP
_MAX_TOSA_BYTES = 2**31 - 1  # flatbuffers address 2 GiB

# Vela's own words for parts of its scheduler that a flag switches off (vela.py, get_compiler_config).
_FEATURES = {
    "--disable-chaining": "Grouping",
    "--disable-fwd": "FWD",
    "--disable-cascading": "Cascading",
    "--disable-buffering": "WeightBuffering",
    "--disable-ifm-reuse": "ReuseIFM",
}
# Flags that make Vela print: section of its options, key.
_VERBOSE = {
    "--verbose-high-level-command-stream": ("compiler", "verbose_high_level_command_stream"),
    "--verbose-register-command-stream": ("compiler", "verbose_register_command_stream"),
    "--verbose-schedule": ("scheduler", "verbose"),
    "--verbose-allocation": ("scheduler", "verbose_allocation"),
    "--verbose-graph": ("graph", "verbose"),
    "--verbose-quantization": ("graph", "verbose_quantization"),
}


@dataclass(frozen=True)
class Access:
    """Traffic of one kind (FeatureMap, Weights, Scales, Lut) with one memory."""

    read_bytes: int
    written_bytes: int
    cycles: int


@dataclass(frozen=True)
class Memory:
    """One memory, as Vela estimates its use: peak bytes allocated, cycles spent on it, traffic by kind."""

    peak_bytes: int
    access_cycles: int
    accesses: Mapping[str, Access]


@dataclass(frozen=True)
class Performance:
    """Vela's estimate, not a measurement. Cycles are of the NPU core clock.

    Attributes:
        npu_cycles: computing, with exposed weight and table transfers: the sum over operations.
        total_cycles: the larger of computing and each memory's access, summed over operations.
        mac_count: multiply-accumulates.
        npu_ops, cascades, cascaded_ops: scheduled operations; groups computed in stripes; operations in such groups.
        original_weight_bytes, encoded_weight_bytes: before and after Vela's weight compression.
        read_only_bytes: size of region 0 that is kept in flash or DRAM.
        staging_area: name of the memory that staging uses.
        memories: memory name (Sram, Dram, OffChipFlash, OnChipFlash, shram, lutram) to its use.
        core_clock_hz: clock of the system config.
    """

    npu_cycles: int
    total_cycles: int
    mac_count: int
    npu_ops: int
    cascades: int
    cascaded_ops: int
    original_weight_bytes: int
    encoded_weight_bytes: int
    read_only_bytes: int
    staging_area: str
    memories: Mapping[str, Memory]
    core_clock_hz: float

    @property
    def sram_bytes(self) -> int:
        """Peak use of SRAM; with Sram_Only that includes the constants."""
        return self._peak("Sram")

    @property
    def dram_bytes(self) -> int:
        return self._peak("Dram")

    @property
    def flash_bytes(self) -> int:
        return self._peak("OffChipFlash") + self._peak("OnChipFlash")

    @property
    def inference_seconds(self) -> float:
        return self.total_cycles / self.core_clock_hz

    def _peak(self, name: str) -> int:
        return self.memories[name].peak_bytes if name in self.memories else 0


@dataclass(frozen=True)
class ScheduledOp:
    """One operation of Vela's schedule, and the way back to the TOSA operator it was made from.

    Attributes:
        name: the tensor it writes; of a fused operation, the last one.
        operator: Vela's name of the operation.
        op_cycles: estimate; the largest of npu_cycles and each memory's access cycles.
        npu_cycles: computing alone.
        macs: multiply-accumulates.
        access_cycles: cycles per memory.
        tosa_op: index in the TOSA block's operator list, CONST included; None where Vela made the operation up.
        command_offsets: byte offset, from the first command word, of the last NPU_OP of each of its stripes, ascending.
    """

    name: str
    operator: str
    op_cycles: int
    npu_cycles: int
    macs: int
    access_cycles: Mapping[str, int]
    tosa_op: int | None
    command_offsets: tuple[int, ...]


@dataclass(frozen=True)
class CompiledModel:
    """What Vela made of one graph.

    Attributes:
        command_stream: the driver payload, COP1 or COP2 header included.
        constants: region 0.
        scratch_bytes: size of region 1.
        scratch_fast_bytes: size of region 2, the staging memory of Dedicated_Sram modes; 0 where there is none.
        inputs, outputs: in the order of the TOSA graph.
        performance: Vela's estimates.
        load_tables: reads Vela's database; ``tables`` keeps what it returns.
    """

    command_stream: bytes = field(repr=False)
    constants: bytes = field(repr=False)
    scratch_bytes: int
    scratch_fast_bytes: int
    inputs: tuple[IoTensor, ...]
    outputs: tuple[IoTensor, ...]
    performance: Performance
    load_tables: Callable[[], Tables] = field(repr=False, compare=False)

    @cached_property
    def tables(self) -> Tables:
        """Vela's database as it is: table name to column names and rows of text."""
        return self.load_tables()

    def rows(self) -> tuple[ScheduledOp, ...]:
        """The schedule, an entry for each operation, in Vela's order."""
        return self._rows

    @cached_property
    def _rows(self) -> tuple[ScheduledOp, ...]:
        def table(name: str) -> list[dict[str, str]]:
            header, rows = self.tables.get(name, ([], []))
            return [dict(zip(header, row, strict=False)) for row in rows]

        source_key = {row["id"]: row["ext_key"] for row in table("source")}
        source_of = {row["id"]: row["source_id"] for row in table("optimised")}
        offsets: dict[str, list[int]] = {}
        for row in table("queue"):
            offsets.setdefault(row["scheduled_id"], []).append(int(row["offset"]))
        performance = table("perf")
        _add_regions(performance, offsets)
        scheduled = []
        for row in performance:
            key = source_key.get(source_of.get(row["optimised_id"], row["source_id"]), "")
            scheduled.append(
                ScheduledOp(
                    name=row["name"],
                    operator=row["operator"],
                    op_cycles=int(row["op_cycles"]),
                    npu_cycles=int(row["npu_cycles"]),
                    macs=int(row["mac_count"]),
                    access_cycles={
                        name.removesuffix("_ac"): int(row[name]) for name in row if name.endswith("_ac") and row[name]
                    },
                    tosa_op=int(key) if key.lstrip("-").isdigit() and int(key) >= 0 else None,
                    command_offsets=tuple(sorted(offsets.get(row["id"], ()))),
                )
            )
        return tuple(scheduled)

    def op_at(self, offset: int) -> ScheduledOp | None:
        """The operation that the command at this byte offset belongs to; None behind the last.

        A command belongs to the first queue entry at or behind it: the registers, transfers and helper operations of
        an operation precede its last NPU_OP (ethos-u-npu.md 10).
        """
        return next((op for end, op in self._by_offset if end >= offset), None)

    @cached_property
    def _by_offset(self) -> list[tuple[int, ScheduledOp]]:
        ends = [(end, op) for op in self.rows() for end in op.command_offsets]
        return sorted(ends, key=lambda entry: entry[0])


def _add_regions(performance: list[dict[str, str]], offsets: dict[str, list[int]]) -> None:
    """Give control flow the commands of its regions: those before the operation behind it that no entry of the table has.

    Vela's table of performance has one entry for the control flow, whose id its table of commands does not have, and none
    for what the regions hold. Where two control flows stand side by side, the first gets the commands of both.
    """
    known = {row["id"] for row in performance}
    inside = sorted(offset for id, found in offsets.items() if id not in known for offset in found)
    for position, row in enumerate(performance):
        if row["operator"] in _CONTROL_FLOW and row["id"] not in offsets:
            behind = next((min(offsets[later["id"]]) for later in performance[position + 1 :] if later["id"] in offsets), math.inf)
            offsets[row["id"]] = [offset for offset in inside if offset < behind]
            inside = [offset for offset in inside if offset >= behind]


def compile(tosa: bytes, spec: EthosUCompileSpec, *, timeout_seconds: float | None = None) -> CompiledModel:
    """Compile a TOSA 1.0 flatbuffer for the spec's NPU.

    Args:
        tosa: the flatbuffer.
        spec: target, memories and flags.
        timeout_seconds: compile in a child process and give it this long: for graphs from outside, on which Vela may
            not return. None compiles in this process, which is quicker by about half a second.

    Raises:
        VelaError: Vela refused the graph (its own words follow), took too long, or died.
    """
    if len(tosa) < 8 or bytes(tosa[4:8]) != b"TOSA":
        raise VelaError(f"not a TOSA flatbuffer: bytes 4 to 8 are {bytes(tosa[4:8])!r}, not b'TOSA'.")
    if len(tosa) > _MAX_TOSA_BYTES:
        raise VelaError(f"the TOSA flatbuffer is {len(tosa)} bytes long; Vela reads at most {_MAX_TOSA_BYTES}.")
    if timeout_seconds is not None:
        return _compile_in_child(tosa, spec, timeout_seconds)
    try:
        from ethosu import regor
    except ImportError as error:
        raise VelaError(f"Vela cannot be imported ({error}): pip install 'ethos-u-vela>=5.1'.") from None

    def compiled(cascading: bool) -> CompiledModel:
        options = options_text(spec, cascading=cascading)
        try:
            with native.REDIRECTING:  # nor does anything say that two compilations may overlap
                raw = regor.compile(spec.target.vela_arch, tosa, "TOSA", system_text(spec), options=options, verbose=False)
        except Exception as error:  # RuntimeError and ValueError; UnicodeDecodeError when it quotes a damaged name
            raise VelaError(f"Vela refused the graph for {spec.target.name}: {_words(error)}") from error
        if not isinstance(raw, regor.CompiledRawModel):
            raise VelaError(f"Vela returned {type(raw).__name__} instead of a raw model.")
        return _read(raw, spec)

    model = compiled(cascading=True)
    if model.performance.cascades and spec.target.forms.get("placing") == "apart" and _cuts_int32(tosa):
        model = compiled(cascading=False)
    return _with_declared_ends(tosa, model)


def system_text(spec: EthosUCompileSpec) -> str:
    """The hardware half of Vela's configuration: architecture, section names, then the ini files (vela.py, main)."""
    target = spec.target
    return (
        f"[architecture]\nmacs={target.macs // target.cores}\ncores={target.cores}\n"
        f"[vela]\nsystem_config_name={spec.system_config}\nmemory_mode_name={spec.memory_mode}\n"
        f"{spec.vela_config.text}"
    )


def options_text(spec: EthosUCompileSpec, *, cascading: bool = True) -> str:
    """The compiler half: flags as Vela's driver translates them (vela.py, get_compiler_config).

    Args:
        cascading: False is as the flag --disable-cascading.
    """
    flags = spec.flags if cascading else {**spec.flags, "--disable-cascading": True}
    sections: dict[str, dict[str, Any]] = {
        "compiler": {"enable_db": "true", "output_format": "Raw", "cop_format": flags.get("--cop-format", "COP1")},
        "scheduler": {
            "optimize": flags.get("--optimise", "Performance"),
            "arena_size_limit": spec.arena_cache_bytes,
            "disable_feature": "|".join(feature for flag, feature in _FEATURES.items() if flag in flags),
            "cpu_tensor_alignment": flags.get("--cpu-tensor-alignment", 16),
            "tensor_allocator": flags.get("--tensor-allocator", "HillClimb"),
        },
        "graph": {"softmax_int16_neg_exp_range": flags.get("--experimental-softmax-int16-neg-exp-range", 10.0)},
    }
    for flag, (section, key) in _VERBOSE.items():
        if flag in flags or "--verbose-all" in flags:
            sections[section][key] = "true"
    return "".join(
        f"\n[{name}]\n" + "".join(f"{key}={value}\n" for key, value in values.items())
        for name, values in sections.items()
    )


class _Tosa(Buffer):
    def error(self, what: str, problem: str) -> VelaError:
        return VelaError(f"the TOSA flatbuffer is damaged: {what} {problem}.")


#: Numbers of tosa.fbs of TOSA 1.0.
_SLICE, _INT32 = 59, 5


def _cuts_int32(tosa: bytes) -> bool:
    """Is there a SLICE of INT32 in the graph? Vela 5.2 forgets its offset on U55 and U65 where it cuts part of a cascade."""
    reader = _Tosa(memoryview(tosa), 20_000_000)
    for region in Table(reader, reader.number("<I", 0, "graph"), "graph").tables(1, "region"):
        for block in region.tables(1, "block"):
            types = {tensor.text(0, "tensor name"): tensor.number(2, "<I") for tensor in block.tables(2, "tensor")}
            for op in block.tables(1, "operator"):
                if op.number(0, "<I") == _SLICE and any(types.get(name) == _INT32 for name in op.texts(3, "operands")):
                    return True
    return False


def _with_declared_ends(tosa: bytes, model: CompiledModel) -> CompiledModel:
    """The model with its inputs and outputs in the shapes the graph declares; VelaError when Vela lost one.

    Vela 5.1 and 5.2 drop an input that no operator reads, and an output that a TRANSPOSE writes and another undoes: the
    payload's tensors would belong to other arguments then. And they report an input that a RESHAPE reads first in that
    RESHAPE's shape, which is the same bytes.
    """
    reader = _Tosa(memoryview(tosa), 20_000_000)
    graph = Table(reader, reader.number("<I", 0, "graph"), "graph")
    block = next(next(graph.tables(1, "region")).tables(1, "block"))  # field numbers: tosa.fbs of TOSA 1.0
    shapes = {
        tensor.text(0, "tensor name"): tensor.numbers(1, "i", "shape") if tensor.has(1) else ()
        for tensor in block.tables(2, "tensor")
    }
    ends: dict[str, tuple[IoTensor, ...]] = {}
    for kind, number, compiled in (("input", 3, model.inputs), ("output", 4, model.outputs)):
        names = block.texts(number, f"{kind}s")
        wanted = [(*[1] * (RANK - len(shapes[name])), *shapes[name]) for name in names if name in shapes]
        if [math.prod(shape) for shape in wanted] != [math.prod(tensor.shape) for tensor in compiled]:
            raise VelaError(
                f"Vela returned {len(compiled)} of {len(names)} {kind}s, or in another order: "
                f"{', '.join(str(list(tensor.shape)) for tensor in compiled) or 'none'} for {', '.join(names)}. It drops "
                "inputs that nothing reads, and outputs that a TRANSPOSE writes and another TRANSPOSE undoes: keep those "
                "out of the graph."
            )
        ends[kind] = tuple(replace(tensor, shape=shape) for tensor, shape in zip(compiled, wanted, strict=True))
    return replace(model, inputs=ends["input"], outputs=ends["output"])


def _read(raw: Any, spec: EthosUCompileSpec) -> CompiledModel:
    """Copy out of Vela's own objects everything but the database, which is large and seldom asked for."""
    report = raw.perf_report
    performance = Performance(
        npu_cycles=report.npuCycles,
        total_cycles=report.totalCycles,
        mac_count=report.macCount,
        npu_ops=report.npuOps,
        cascades=report.cascades,
        cascaded_ops=report.cascadedOps,
        original_weight_bytes=report.originalWeights,
        encoded_weight_bytes=report.encodedWeights,
        read_only_bytes=report.readOnlyPeakUsage,
        staging_area=report.stagingMemoryArea,
        memories={
            name: Memory(
                memory.peakUsage,
                memory.totalAccessCycles,
                {
                    kind: Access(access.bytesRead, access.bytesWritten, access.accessCycles)
                    for kind, access in memory.accesses.items()
                },
            )
            for name, memory in report.memories.items()
        },
        core_clock_hz=spec.memory_system.core_clock_hz,
    )
    if report.cpuOps:
        raise VelaError(f"Vela left {report.cpuOps} operators to the CPU, which a delegate cannot do.")
    if raw.variables:
        raise VelaError(f"the graph has {len(raw.variables)} persistent variables; the payload has no place for them.")

    def io(tensors: Any) -> tuple[IoTensor, ...]:
        return tuple(IoTensor(tuple(t.shape), t.element_size, t.address, t.region) for t in tensors)

    database = raw.opt_database
    return CompiledModel(
        command_stream=bytes(raw.command_stream),
        constants=bytes(raw.read_only.data),
        scratch_bytes=raw.scratch.size,
        scratch_fast_bytes=raw.scratch_fast.size if raw.scratch_fast.region == 2 else 0,
        inputs=io(raw.inputs),
        outputs=io(raw.outputs),
        performance=performance,
        load_tables=lambda: {
            name: (list(table.header), [list(row) for row in table.data]) for name, table in database.tables.items()
        },
    )


def _words(error: BaseException) -> str:
    """Vela's message on one line."""
    text = str(error).removeprefix("Compilation failed: ")
    words = "; ".join(line.strip(" -") for line in text.splitlines() if line.strip(" -"))
    return words.replace(":; ", ": ") or type(error).__name__


def _compile_in_child(tosa: bytes, spec: EthosUCompileSpec, timeout_seconds: float) -> CompiledModel:
    """``python -m ethorch.vela FOLDER``: the graph and the flags go in as files, the result comes back as files."""
    with tempfile.TemporaryDirectory(prefix="ethorch-vela-") as name:
        folder = Path(name)
        (folder / "graph.tosa").write_bytes(tosa)
        (folder / "spec.json").write_text(json.dumps([spec.target.name, spec.compiler_flags]))
        try:
            child = subprocess.run(
                [sys.executable, "-m", "ethorch.vela", name], capture_output=True, timeout=timeout_seconds, check=False
            )
        except subprocess.TimeoutExpired:
            raise VelaError(
                f"Vela did not finish within {timeout_seconds:g} seconds. The graph may be damaged; a larger "
                "timeout_seconds gives it longer."
            ) from None
        if child.returncode < 0:
            raise VelaError(f"Vela died of signal {-child.returncode} on this graph; it is damaged, or Vela has a bug.")
        try:
            result = json.loads((folder / "result.json").read_text())
        except (OSError, ValueError):
            raise VelaError(f"Vela's process failed: {child.stderr.decode(errors='replace')[-500:]}") from None
        if "error" in result:
            raise VelaError(result["error"])
        return _from_files(folder, result)


def _to_files(folder: Path, model: CompiledModel) -> None:
    (folder / "commands").write_bytes(model.command_stream)
    (folder / "constants").write_bytes(model.constants)
    fields = asdict(replace(model, command_stream=b"", constants=b"", load_tables=dict))
    for name in ("command_stream", "constants", "load_tables"):
        del fields[name]
    (folder / "result.json").write_text(json.dumps({**fields, "tables": dict(model.tables)}))


def _from_files(folder: Path, result: dict[str, Any]) -> CompiledModel:
    memories = {
        name: Memory(m["peak_bytes"], m["access_cycles"], {kind: Access(**a) for kind, a in m["accesses"].items()})
        for name, m in result["performance"].pop("memories").items()
    }
    tables: Tables = {name: (header, rows) for name, (header, rows) in result["tables"].items()}

    def io(tensors: list[dict[str, Any]]) -> tuple[IoTensor, ...]:
        return tuple(IoTensor(tuple(t["shape"]), t["element_size"], t["offset"], t["region"]) for t in tensors)

    return CompiledModel(
        command_stream=(folder / "commands").read_bytes(),
        constants=(folder / "constants").read_bytes(),
        scratch_bytes=result["scratch_bytes"],
        scratch_fast_bytes=result["scratch_fast_bytes"],
        inputs=io(result["inputs"]),
        outputs=io(result["outputs"]),
        performance=Performance(memories=memories, **result["performance"]),
        load_tables=lambda: tables,
    )


def _main(folder: Path) -> None:
    """The child's side."""
    target, flags = json.loads((folder / "spec.json").read_text())
    *configs, ini = [flag.removeprefix("--config=") for flag in flags if flag.startswith("--config=")]
    others = [flag for flag in flags if not flag.startswith("--config=")] + [f"--config={name}" for name in configs]
    try:
        spec = EthosUCompileSpec(target, extra_flags=others, config_ini=ini)
        _to_files(folder, compile((folder / "graph.tosa").read_bytes(), spec))
    except VelaError as error:
        (folder / "result.json").write_text(json.dumps({"error": str(error)}))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
