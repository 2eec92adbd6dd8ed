"""Writes the C project of a program: ``ethorch.firmware``."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ethorch import model_files
from ethorch.board.description import Board
from ethorch.board.loading import load as load_board
from ethorch.board.loading import names as board_names
from ethorch.embedded import project_run
from ethorch.embedded.cases import Case, cases
from ethorch.embedded.data import Blob, blob, fnv1a
from ethorch.embedded.kernels import SOURCE_FOLDER
from ethorch.embedded.layout import STACK_BYTES, Layout, Part, layout, parts
from ethorch.embedded.plan import Plan, plan
from ethorch.embedded.source import SECTIONS, Source, kernel_headers, model_source, prefix, templates
from ethorch.embedded.streams import Attributes, attributes, config_word, driver_stream
from ethorch.errors import EthorchError
from ethorch.figures.boundary import boundary_of
from ethorch.figures.layer import NPU
from ethorch.figures.subject import Subject, subject
from ethorch.formats.files import write_whole
from ethorch.formats.payload import DelegatePayload
from ethorch.npu.stream import parse_header
from ethorch.target.vela_ini import MemorySystem
from ethorch.versions import versions
from ethorch.words import counted

_C = Path(__file__).resolve().parent / "c"
_DRIVER = ("ethosu.c", "ethosu.h", "ethosu_text.c", "ethosu_model.h")
_FIRMWARE = (
    "startup.c", "console.c", "console.h", "cortex_m.c", "cortex_m.h", "support.c", "freestanding/string.h", "ziglang.cmake",
)  # fmt: skip
_STATEFUL_RUNS = 3  # of the self-test of a model that keeps state: the first, one after it, and one more
_DEFAULT_BOARDS = {"u55": "corstone-300", "u65": "corstone-300", "u85": "corstone-320"}
DATA_FORMS = ("incbin", "arrays")


@dataclass(frozen=True)
class Firmware:
    """A project that was written.

    Attributes:
        folder: where it is.
        files: its files, relative to the folder, in order.
        target: the NPU that it is for.
        board: the board that the self-test is for.
        sizes: bytes by name: ``arena``, ``fast``, ``tensors``, ``weights``, ``commands``, ``constants``.
        operators: names of the operators on the CPU that have C kernels in it.
    """

    folder: Path
    files: tuple[str, ...]
    target: str
    board: str
    sizes: dict[str, int]
    operators: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "folder": str(self.folder)}

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {size}" for name, size in self.sizes.items() if size)
        return (
            f"{self.folder}: {counted(len(self.files), 'file')} for {self.target} on {self.board}. Bytes: {sizes}.\n"
            f"Build and run it: python {self.folder / 'run.py'}"
        )


@dataclass(frozen=True)
class Opened:
    """What a project is made from."""

    pte: bytes
    subject: Subject
    samples: tuple[tuple[Any, ...], ...]
    given: bool
    cycles: dict[int, int]  # by delegate, where they are known
    explain: Callable[[str], str] = field(repr=False)


def firmware(
    source: Any,
    folder: str | os.PathLike[str],
    *,
    board: str | os.PathLike[str] | Board | None = None,
    name: str = "model",
    method: str | None = None,
    inputs: Sequence[Sequence[Any]] | None = None,
    data: str = "incbin",
) -> Firmware:
    """Write a C project that runs a program on a Cortex-M with an Ethos-U, without ExecuTorch.

    ::

        program = ethorch.compile(model, x, "ethos-u55-128")
        ethorch.firmware(program, "project")           # then: python project/run.py

    Args:
        source: a Program, or the path or the contents of a .pte, of ethorch's or of ExecuTorch's Arm backend.
        folder: the project's; made where it is not there. Files of an earlier project in it are replaced.
        board: a board's name, the path of a board's TOML file, or a Board; None takes Corstone-300 or, for U85, Corstone-320.
        name: stands before every symbol and file of the model, so that several can be linked together.
        method: the entry point; None is ``forward``, or the first of a file without it.
        inputs: of the self-test: one or several samples, each with all inputs. None takes the program's own calibration samples,
            random ones where there are none.
        data: ``incbin`` (a file of bytes, taken in by the assembler) or ``arrays`` (C arrays, for any compiler).

    Raises:
        EthorchError: an operator on the CPU has no kernel in C, or the program does what firmware without ExecuTorch cannot; the
            message names it and the way out. Or a name is wrong, the model does not fit the board, the folder cannot be written.
        SpecError: no such board, or the board cannot have this NPU.
        HostError: the samples are not the program's inputs.
    """
    prefix(name)
    if data not in DATA_FORMS:
        raise EthorchError(f"data is {data!r}; allowed: {' or '.join(DATA_FORMS)}.")
    opened = opened_of(source, method, inputs)
    writer = Project(opened, name, data, board)
    return writer.write(Path(folder))


def opened_of(source: Any, method: str | None, inputs: Sequence[Sequence[Any]] | None) -> Opened:
    program = source if hasattr(source, "pte") else None  # ethorch.Program, or flow.Build, which this package may not import
    if program is not None:
        method = getattr(program, "method", method)
        found = subject(getattr(program, "build", None) or program.pte, method)
    else:
        found = subject(source, method)
    model = getattr(program, "model", None)
    samples: Sequence[Sequence[Any]]
    if inputs is not None:
        samples = inputs
    elif model is not None:
        calibrated = model.calibration or [model.example_inputs]
        assert program is not None
        samples = [program.as_taken(sample) for sample in calibrated[:_STATEFUL_RUNS]]
    else:
        samples = [model_files.random_inputs(found.method, seed) for seed in range(_STATEFUL_RUNS)]
    known: dict[int, int] = {}
    for layer in getattr(program, "layers", ()):
        if layer.where == NPU and layer.cycles is not None:
            known[layer.delegate] = known.get(layer.delegate, 0) + int(layer.cycles)
    refusals = getattr(found.partition, "refusals", ())

    def explain(operator: str) -> str:
        plain = operator.split("::")[-1].split(".")[0]
        places = [r.origin for r in refusals if "." in r.origin.target and r.origin.target.split(".")[1].strip("_") in plain]
        return f" ({places[0]})" if places else ""

    return Opened(found.pte, found, tuple(tuple(sample) for sample in samples), inputs is not None, known, explain)


class Project:
    """A project in the making: everything that is known of it, and its files."""

    def __init__(self, opened: Opened, name: str, data: str, board: str | os.PathLike[str] | Board | None):
        self.opened, self.name, self.data = opened, name, data
        self.plan: Plan = plan(opened.subject.program, opened.subject.method)
        meanings = {
            key: (codes.scale, codes.zero_point)
            for key, codes in boundary_of(opened.subject.program, opened.subject.method.name).items()
        }
        self.source: Source = model_source(self.plan, name, meanings, opened.explain)
        streams = [driver_stream(payload) for payload in self.plan.payloads.values()]
        targets = list(dict.fromkeys(parse_header(stream).npu.name for stream in streams))
        if len(targets) > 1:
            raise EthorchError(f"the delegates are for different NPUs: {', '.join(targets)}. Compile the whole model for one.")
        family = parse_header(streams[0]).npu.family if streams else "u55"
        self.board = load_board(_DEFAULT_BOARDS[family] if board is None else board)
        self.target = targets[0] if targets else self.board.targets[0]
        self.slot, _ = self.board.npu(self.target)
        self.system = next((part.memory_system for part in opened.subject.parts if part.memory_system), None)
        self.attributes: Attributes | None = attributes(config_word(streams[0]), self.system) if streams else None
        self.fast_bytes = max((part.staging_bytes for part in opened.subject.parts if part.payload), default=0)
        runs = _STATEFUL_RUNS if self.plan.keeps_state else 1
        self.cases: list[Case] = cases(opened.pte, opened.subject.method, self._samples(runs))
        self.selftest = blob("selftest_data", "SELFTEST_SECTION", b"".join(case.padded for case in self.cases))
        self.made_by = _made_by()
        self.files: dict[str, bytes] = {}

    @cached_property
    def layout(self) -> Layout:
        """Where the board has room for what; EthorchError where it has none."""
        return layout(self.board, self._parts())

    def _samples(self, runs: int) -> Sequence[Sequence[Any]]:
        return self.opened.samples if self.opened.given else self.opened.samples[:runs]

    def _size(self, part: str) -> int:
        return sum(one.bytes for one in self.source.blobs if part in one.section)

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "arena": _padded(self.plan.arena_bytes),
            "fast": _padded(self.fast_bytes),
            "tensors": _padded(self.plan.tensors_bytes),
            "weights": self._size("WEIGHTS"),
            "commands": self._size("COMMANDS"),
            "constants": self._size("CONSTANTS"),
        }

    def _parts(self) -> tuple[Part, ...]:
        in_dram = self.attributes is not None and (self.attributes.regions >> 2) & 3 >= 2
        return parts(self.sizes, self.selftest.bytes, self.system, in_dram)

    # files -------------------------------------------------------------------------------------------------------------

    def write(self, folder: Path) -> Firmware:
        self._model()
        self._firmware()
        self._around()
        try:
            for path, content in self.files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                write_whole(folder / path, content)
        except OSError as error:
            raise EthorchError(f"cannot write the project to {folder}: {error.strerror}.") from None
        operators = tuple(sorted({call.operator for call in self.plan.method.calls if call.delegate is None}))
        return Firmware(folder, tuple(self.files), self.target, self.board.name, self.sizes, operators)

    def layer(self, processor: str) -> dict[str, bytes]:
        """The model alone, as a layer of a CMSIS solution for that processor: files by path."""
        self._model()
        paths = sorted(path for path in self.files if path.endswith((".c", ".S")))
        folders = ["model", *(["model/kernels"] if self.source.kernels else [])]
        more = {"model_sources": paths, "model_folders": folders, "incbin": self.data == "incbin" and bool(self.source.blobs)}
        self._text("model/model_params.h", "model_params.h.jinja", processor=processor)
        self._text("ai_layer.clayer.yml", "clayer.yml.jinja", **more)
        facts = self._report() | {"rows": [], "memory_mode": _mode(self.system)}
        facts["rows"] = [{"title": p.title, "nbytes": p.nbytes, "name": p.name} for p in self._parts() if "selftest" not in p.name]
        self._text("REPORT.md", "layer_report.md.jinja", **more, **facts)
        return self.files

    def _text(self, path: str, template: str, **more: Any) -> None:
        rendered = templates().get_template(template).render(p=self.name, P=self.name.upper(), **self._context(), **more)
        self.files[path] = rendered.encode()

    def _copy(self, source: Path, path: str) -> None:
        self.files[path] = source.read_bytes()

    def _context(self) -> dict[str, Any]:
        sizes = self.sizes
        return {
            "name": self.name,
            "target": self.target,
            "made_by": self.made_by,
            "sha256": hashlib.sha256(self.opened.pte).hexdigest(),
            "board": self.board,
            "slot": self.slot,
            "arena_bytes": sizes["arena"],
            "fast_bytes": sizes["fast"],
            "tensors_bytes": sizes["tensors"],
            "codes_tensors_bytes": _padded(self.plan.codes_tensors_bytes),
            "weights_bytes": sizes["weights"],
            "commands_bytes": sizes["commands"],
            "constants_bytes": sizes["constants"],
            "sections": SECTIONS,
            "inputs": list(self.source.inputs),
            "outputs": list(self.source.outputs),
            "has_codes": self.plan.has_codes,
            "keeps_state": self.plan.keeps_state,
            "kept_in_arena": self.plan.kept_in_arena,
            "kernel_sources": self.source.kernels,
        }

    def _model(self) -> None:
        initials = [
            {
                "size": len(content),
                "text": ", ".join(map(str, content)),
                "place": f"self->{place.buffer} + {place.offset}u",
            }
            for place, content in self.plan.initial
        ]
        more = {
            "kernel_headers": kernel_headers(self.source),
            "blobs": self.source.blobs,
            "constants": self.source.constants,
            "initials": list(enumerate(initials)),
            "functions": self.source.functions,
            "delegates": self.plan.payloads,
            "estimated_cycles": min(sum(self.opened.cycles.values()), 2**32 - 1),
            "attributes": self.attributes,
            "memory_mode": _mode(self.system),
        }
        self._text(f"model/{self.name}.h", "model.h.jinja")
        self._text(f"model/{self.name}.c", "model.c.jinja", **more)
        self._text(f"model/{self.name}_memory.c", "model_memory.c.jinja")
        self._data(f"model/{self.name}_data", self.source.blobs, f"{self.name}.h", f"{self.name}: weights, commands, constants")
        for file in _DRIVER:
            self._copy(_C / file, f"model/{file}")
        if kernel_headers(self.source):
            for file in (*kernel_headers(self.source), *self.source.kernels):
                self._copy(SOURCE_FOLDER / file, f"model/kernels/{file}")

    def _data(self, stem: str, blobs: Sequence[Blob], include: str, what: str) -> None:
        if not blobs:
            return
        more = {"blobs": blobs, "what": what, "include": include, "file_stem": Path(stem).name}
        if self.data == "arrays":
            self._text(f"{stem}.c", "data.c.jinja", **more)
            return
        self._text(f"{stem}.S", "data.S.jinja", header=include == f"{self.name}.h", selftest=include == "selftest.h", **more)
        for one in blobs:
            self.files[f"{Path(stem).parent.as_posix()}/{one.file}"] = one.content

    def _firmware(self) -> None:
        for file in _FIRMWARE:
            self._copy(_C / file, f"firmware/{file}")
        address = self.layout.address
        places = {
            "secure": self.layout.secure or not any(memory.aliases for memory in self.board.memories),
            "cpu_hz": int(self.board.cpu.clock_hz),
            "uart_base": f"0x{address(self.board.uart.base, self.board.uart.aliases):08X}",
            "npu_base": f"0x{address(self.slot.base, self.slot.aliases):08X}",
        }
        self._text("firmware/board.h", "board.h.jinja", **places)
        self._text("firmware/main.c", "main.c.jinja", run=f"{self.name}_run")
        section = ".rodata.selftest"
        self._text("firmware/selftest.h", "selftest.h.jinja", cases=len(self.cases), bytes=self.selftest.bytes, section=section)
        self._data("firmware/selftest_data", [self.selftest], "selftest.h", "the self-test")
        self._text("firmware/link.ld", "link.ld.jinja", **self._linker())

    def _linker(self) -> dict[str, Any]:
        labels = {memory.name: memory.name.upper().replace("-", "_") for memory in self.layout.memories}
        rows = [
            {
                "label": labels[memory.name],
                "origin": f"0x{self.layout.address(memory.base, memory.aliases):08X}",
                "length": f"0x{memory.size_bytes:X}",
            }
            for memory in self.layout.memories
        ]
        text = next(row for row in rows if row["label"] == labels[self.layout.text.name])
        text["origin"] = f"0x{self.board.cpu.vector_table:08X}"
        placed = [{"name": entry.part.name, "memory": labels[entry.memory.name]} for entry in self.layout.placed]
        loaded = {entry.part.name: entry.part.loaded for entry in self.layout.placed}
        said = [f"{e.part.title}: {e.part.nbytes} bytes, {labels[e.memory.name]}" for e in self.layout.placed]
        return {
            "memories": rows,
            "text": labels[self.layout.text.name],
            "data": labels[self.layout.data.name],
            "loaded": [row for row in placed if loaded[row["name"]]],
            "unloaded": [row for row in placed if not loaded[row["name"]]],
            "stack_bytes": STACK_BYTES,
            "layout": [f"code: {labels[self.layout.text.name]}; variables and stack: {labels[self.layout.data.name]}", *said],
        }

    def _around(self) -> None:
        """What builds and describes the project."""
        model_sources = sorted(path for path in self.files if path.startswith("model/") and path.endswith((".c", ".S")))
        firmware_sources = sorted(path for path in self.files if path.startswith("firmware/") and path.endswith((".c", ".S")))
        include = ["model", *(["model/kernels"] if self.source.kernels else []), "firmware"]
        described = {
            "name": self.name,
            "target": self.target,
            "board": self._board_place(),
            "sources": [*model_sources, *firmware_sources],
            "include": include,
            "outputs": [f"{end.dtype}{list(end.shape)}" for end in self.source.outputs],
            "expected": [[f"0x{fnv1a(output):08x}" for output in case.outputs] for case in self.cases],
            "cycles": {_stream_hash(self.plan.payloads[number]): cycles for number, cycles in self.opened.cycles.items()},
            "made_by": self.made_by,
        }
        self._copy(Path(project_run.__file__), "run.py")
        self.files["project.json"] = (json.dumps(described, indent=2) + "\n").encode()
        more = {
            "sources": described["sources"],
            "model_sources": model_sources,
            "firmware_sources": firmware_sources,
            "model_folders": include[:-1],
            "flags": project_run.flags(),
            "includes": [f"-I{folder}" for folder in include] + [f"-Wa,-I{folder}" for folder in include],
            "cpu_zig": "cortex_m33+fp_armv8d16sp",
            "incbin": self.data == "incbin" and bool(self.source.blobs),
            "memory_mode": _mode(self.system),
        }
        self._text("Makefile", "Makefile.jinja", **more)
        self._text("CMakeLists.txt", "CMakeLists.txt.jinja", **more)
        self._text(f"{self.name}.clayer.yml", "clayer.yml.jinja", **more)
        self._text("zephyr/module.yml", "module.yml.jinja")
        self._text("zephyr/Kconfig", "Kconfig.jinja")
        self._text("zephyr/CMakeLists.txt", "zephyr_cmake.jinja", **more)
        self._text("REPORT.md", "REPORT.md.jinja", **more, **self._report(), rows=self._rows())

    def _report(self) -> dict[str, Any]:
        names = [call.operator for call in self.plan.method.calls if call.delegate is None]
        blobs = [{"file": f"model/{one.file}", "sha256": hashlib.sha256(one.content).hexdigest()} for one in self.source.blobs]
        cycles = sum(self.opened.cycles.values())
        clock = self.system.core_clock_hz if self.system else 0
        time = f", {1e3 * cycles / clock:.3f} ms at {clock / 1e6:.0f} MHz" if clock else ""
        return {
            "cycles": f"{cycles} cycles of the NPU by Vela{time}" if cycles else "unknown: a .pte does not hold Vela's cycles",
            "delegates": len(self.plan.payloads),
            "operators": [{"name": name, "count": names.count(name)} for name in sorted(set(names))],
            "hashes": blobs,
        }

    def _rows(self) -> list[dict[str, Any]]:
        who = {".npu": "the NPU", ".cpu": "the CPU", ".sel": "the self-test"}
        return [
            {
                "title": entry.part.title,
                "nbytes": entry.part.nbytes,
                "memory": str(entry.memory),
                "who": next(text for key, text in who.items() if key in entry.part.name),
            }
            for entry in self.layout.placed
        ]

    def _board_place(self) -> str:
        if self.board.name in board_names() and self.board == load_board(self.board.name):
            return self.board.name
        if self.board.path is None:
            raise EthorchError(
                f"the board {self.board.name!r} was made in memory; the project has to keep its description: "
                "give the path of its TOML file."
            )
        self._copy(self.board.path, "board.toml")
        return "board.toml"


def _padded(size: int) -> int:
    """Whole lines of a data cache."""
    return -(-size // 32) * 32


def _stream_hash(payload: DelegatePayload) -> str:
    """SHA-256 of the bare commands: what the virtual board knows a command stream by."""
    header = parse_header(payload.commands)
    return hashlib.sha256(payload.commands[header.start : header.stop]).hexdigest()


def _mode(system: MemorySystem | None) -> str:
    if system is None:
        return "unknown, so as Arm's driver has them"
    constants = "Sram" if system.constants_in_sram else system.const_area
    return f"constants in {constants}, feature maps in {system.arena_area}, staging in {system.cache_area}"


def _made_by() -> str:
    found = versions()
    return ", ".join(f"{name} {found[name]}" for name in ("ethorch", "ethos-u-vela") if name in found)
