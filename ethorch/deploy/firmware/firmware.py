from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ethorch.deploy.firmware import project_run
from ethorch.deploy.firmware.cases import Case, cases, place_cases
from ethorch.deploy.firmware.data import Blob, blob, fnv1a
from ethorch.deploy.firmware.escapes import linker_labels
from ethorch.deploy.firmware.kernels import SOURCE_FOLDER
from ethorch.deploy.firmware.layout import STACK_BYTES, Layout, Part, layout, parts
from ethorch.deploy.firmware.methods import MethodsPlan, plan_methods
from ethorch.deploy.firmware.project_program import STATEFUL_RUNS, ProjectProgram, open_program
from ethorch.deploy.firmware.source import SECTIONS, MethodSource, Source, kernel_headers, model_source, prefix, templates
from ethorch.deploy.firmware.streams import Attributes, attributes, config_word, driver_stream
from ethorch.formats import pte
from ethorch.formats.boundary import boundary_of
from ethorch.formats.files import write_folder
from ethorch.formats.payload import DelegatePayload
from ethorch.formats.pte_types import Program as File
from ethorch.npu.stream import parse_header
from ethorch.support.errors import EthorchError, SpecError
from ethorch.support.versions import versions
from ethorch.support.wording import count_noun
from ethorch.targets.boards.description import Board
from ethorch.targets.boards.loading import load as load_board
from ethorch.targets.boards.loading import names as board_names
from ethorch.targets.selection import Selection
from ethorch.targets.vela_ini import MemorySystem

_C = Path(__file__).resolve().parent / "c"
_DRIVER = ("ethosu.c", "ethosu.h", "ethosu_text.c", "ethosu_model.h")
_FIRMWARE = (
    "startup.c", "console.c", "console.h", "cortex_m.c", "cortex_m.h", "support.c", "freestanding/string.h", "ziglang.cmake",
)  # fmt: skip
_DEFAULT_BOARDS = {"u55": "corstone-300", "u65": "corstone-300", "u85": "corstone-320"}
DATA_FORMS = ("incbin", "arrays")


@dataclass(frozen=True)
class Firmware:
    """A generated C project.

    Attributes:
        files: Paths of the files, relative to ``folder``.
        target: NPU of the program.
        board: Name of the board that determines the memory layout and runs the self-test.
        sizes: Bytes of ``arena``, ``fast`` (staging memory), ``tensors``, ``weights``, ``commands`` and ``constants``.
        operators: CPU operators with a C kernel in the project.
        methods: For each method, bytes of ``arena``, ``tensors``, ``weights`` and ``commands``, and NPU ``cycles`` (0 if unknown).
            Memory that methods share is counted only once in ``sizes``.
    """

    folder: Path
    files: tuple[str, ...]
    target: str
    board: str
    sizes: dict[str, int]
    operators: tuple[str, ...]
    methods: dict[str, dict[str, int]]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "folder": str(self.folder)}

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {size}" for name, size in self.sizes.items() if size) or "none"
        method_lines = [
            f"Method {method}: " + ", ".join(f"{name} {size}" for name, size in method_sizes.items() if size) + ".\n"
            for method, method_sizes in self.methods.items()
        ]
        return (
            f"{self.folder}: {count_noun(len(self.files), 'file')} for {self.target} on {self.board}. Bytes: {sizes}.\n"
            f"{''.join(method_lines) if len(method_lines) > 1 else ''}"
            f"Build and run the project: python {shlex.quote(str(self.folder / 'run.py'))}"
        )


def firmware(
    source: Any,
    folder: str | os.PathLike[str],
    *,
    board: str | os.PathLike[str] | Board | None = None,
    name: str = "model",
    methods: str | Sequence[str] | None = None,
    samples: Sequence[Any] | None = None,
    embed: str = "incbin",
    repeats: int = 1,
) -> Firmware:
    """Write a C project that runs a program on a Cortex-M with an Ethos-U, without ExecuTorch.

    ::

        program = ethorch.compile(model, x, "ethos-u55-128")
        ethorch.firmware(program, "project")           # then: python project/run.py

    Several methods have separate functions (``model_prefill_run``, ``model_decode_run``), and share buffers, constants and the
    arena.

    Args:
        source: Program, or the path or contents of a .pte compiled by ethorch or by ExecuTorch's Arm backend.
        folder: Project folder. Files of an earlier project are replaced.
        board: Name of a board, path of its TOML file, or Board. Default: Corstone-300, or Corstone-320 for the U85.
        name: Prefix of the model's symbols and files, so that several models can be linked together.
        methods: One or several entry points. Default: all methods of the program.
        samples: Self-test samples, each with all inputs. For several methods, a session of ``(method, inputs)`` calls, which runs
            twice, with a reset in between. Default: calibration samples or example inputs if available, otherwise random samples.
        embed: ``incbin`` (binary files included by the assembler) or ``arrays`` (C arrays, for any compiler).
        repeats: Number of self-test runs. If greater than 1, the self-test prints only the numbers of all runs and of those
            with wrong outputs.

    Raises:
        EthorchError: A CPU operator has no C kernel, the methods cannot share a project, or the program requires ExecuTorch.
            ``name`` or a method name is invalid, the model does not fit the board, or the folder cannot be written.
        SpecError: The board is unknown or does not support the NPU.
        HostError: The samples do not match the program's inputs.
    """
    prefix(name)
    if embed not in DATA_FORMS:
        raise SpecError(f"expected embed to be {' or '.join(DATA_FORMS)}, got {embed!r}.")
    if not isinstance(repeats, int) or not 1 <= repeats < 1 << 32:
        raise EthorchError(f"expected repeats to be a positive number, got {repeats!r}.")
    program = open_program(source, methods, samples, is_repeated=repeats > 1)
    writer = Project(program, name, embed, board, repeats)
    return writer.write(Path(folder))


@dataclass(frozen=True)
class SelectedSizes:
    """Input sizes by which the firmware selects a method.

    Attributes:
        methods: Method name -> sizes of all input axes, smallest method first.
        paddings: For each axis, its padding's 1-based index in ``Selection.paddings``, or 0 without padding.
        steps: Divisor of each axis's size. Axes with the same nonzero ``paddings`` entry must have equal quotients.
    """

    methods: dict[str, tuple[int, ...]]
    paddings: tuple[int, ...]
    steps: tuple[int, ...]


def find_selection(program: File, names: Sequence[str]) -> SelectedSizes | None:
    """Return the input sizes of methods compiled from one model for several shapes, or None for fewer than two such methods."""
    selection = Selection.of(program)
    chosen = {} if selection is None else {name: shapes for name, shapes in selection.shapes.items() if name in names}
    if selection is None or len(chosen) < 2:
        return None
    axes = [(number, axis) for number, shape in enumerate(next(iter(chosen.values()))) for axis in range(len(shape))]
    padding_steps = {(n, axis): (k, step) for k, padding in enumerate(selection.paddings, 1) for n, axis, step in padding.inputs}
    sizes = {name: tuple(size for shape in shapes for size in shape) for name, shapes in chosen.items()}
    pairs = [padding_steps.get(place, (0, 1)) for place in axes]
    return SelectedSizes(sizes, tuple(k for k, _ in pairs), tuple(step for _, step in pairs))


class Project:
    """A project before it is written to a folder."""

    def __init__(
        self, program: ProjectProgram, name: str, data: str, board: str | os.PathLike[str] | Board | None, repeats: int = 1
    ):
        self.program, self.name, self.data, self.repeats = program, name, data, repeats
        self.methods_plan: MethodsPlan = plan_methods(pte.read(program.pte), list(program.methods))
        facts_by_method = {name: (self._meanings(name), program_method.explain) for name, program_method in program.methods.items()}
        self.selection = find_selection(pte.read(program.pte), list(program.methods))
        self.source: Source = model_source(self.methods_plan, name, facts_by_method)
        streams = [
            driver_stream(payload) for method_plan in self.methods_plan.plans.values() for payload in method_plan.payloads.values()
        ]
        targets = list(dict.fromkeys(parse_header(stream).npu.name for stream in streams))
        if len(targets) > 1:
            raise EthorchError(f"expected delegates for one NPU, got {', '.join(targets)}. Compile the whole model for one NPU.")
        if repeats > 1 and self.methods_plan.keeps_state:
            raise EthorchError("repeats requires a program without state, because each run would change the state of the next run.")
        family = parse_header(streams[0]).npu.family if streams else "u55"
        self.board = load_board(_DEFAULT_BOARDS[family] if board is None else board)
        self.target = targets[0] if targets else self.board.targets[0]
        self.slot, _ = self.board.npu(self.target)
        delegates = [part for program_method in program.methods.values() for part in program_method.subject.parts]
        self.system = next((part.memory_system for part in delegates if part.memory_system), None)
        self.attributes: Attributes | None = attributes(config_word(streams[0]), self.system) if streams else None
        self.fast_bytes = max((part.staging_bytes for part in delegates if part.payload), default=0)
        calls = program.calls
        if not program.has_user_calls and not self.methods_plan.several:
            calls = calls[: STATEFUL_RUNS if self.methods_plan.keeps_state else 1]
        methods = {name: program_method.subject.method for name, program_method in program.methods.items()}
        self.cases: list[Case] = cases(program.pte, methods, calls)
        if repeats * len(self.cases) >= 1 << 32:
            raise EthorchError(f"expected repeats below {(1 << 32) // len(self.cases)} for {len(self.cases)} calls, got {repeats}.")
        content, self.case_places = place_cases(self.cases)
        self.selftest = blob("selftest_data", "SELFTEST_SECTION", content)
        self.made_by = _describe_versions()
        self.files: dict[str, bytes] = {}

    @cached_property
    def layout(self) -> Layout:
        """The memory assigned to each section.

        Raises:
            EthorchError: A section does not fit on the board.
        """
        return layout(self.board, self._parts())

    def _meanings(self, name: str) -> dict[str, tuple[float, int]]:
        boundary = boundary_of(self.program.methods[name].subject.program, name)
        return {key: (codes.scale, codes.zero_point) for key, codes in boundary.items()}

    def _calls_on_cpu(self) -> list[str]:
        return [
            call.operator
            for method_plan in self.methods_plan.plans.values()
            for call in method_plan.method.calls
            if call.delegate is None
        ]

    def _cycles(self, name: str) -> int:
        return sum(self.program.methods[name].cycles.values())

    def _size(self, part: str) -> int:
        return sum(blob.bytes for blob in self.source.blobs if part in blob.section)

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "arena": _pad_to_cache_lines(self.methods_plan.arena_bytes),
            "fast": _pad_to_cache_lines(self.fast_bytes),
            "tensors": _pad_to_cache_lines(self.methods_plan.tensors_bytes),
            "weights": self._size("WEIGHTS"),
            "commands": self._size("COMMANDS"),
            "constants": self._size("CONSTANTS"),
        }

    @property
    def by_method(self) -> dict[str, dict[str, int]]:
        sizes = {blob.symbol: (blob.section, blob.bytes) for blob in self.source.blobs}

        def size(method: MethodSource, part: str) -> int:
            return sum(sizes[symbol][1] for symbol in method.blobs if part in sizes[symbol][0])

        return {
            method.method: {
                "arena": _pad_to_cache_lines(self.methods_plan.plans[method.method].arena_bytes),
                "tensors": _pad_to_cache_lines(self.methods_plan.plans[method.method].tensors_bytes),
                "weights": size(method, "WEIGHTS"),
                "commands": size(method, "COMMANDS"),
                "cycles": self._cycles(method.method),
            }
            for method in self.source.methods
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
            write_folder(folder, self.files)
        except OSError as error:
            raise EthorchError(f"cannot write the project to {folder}: {error.strerror}.") from None
        operators = tuple(sorted(set(self._calls_on_cpu())))
        return Firmware(folder, tuple(self.files), self.target, self.board.name, self.sizes, operators, self.by_method)

    def layer(self, processor: str) -> dict[str, bytes]:
        """Return the files of a CMSIS layer, keyed by path."""
        self._model()
        paths = sorted(path for path in self.files if path.endswith((".c", ".S")))
        folders = ["model", *(["model/kernels"] if self.source.kernels else [])]
        more = {"model_sources": paths, "model_folders": folders, "incbin": self.data == "incbin" and bool(self.source.blobs)}
        (method,) = self.source.methods
        ends = {"inputs": method.inputs, "outputs": method.outputs}
        self._text("model/model_params.h", "model_params.h.jinja", processor=processor, **ends)
        self._text("ai_layer.clayer.yml", "clayer.yml.jinja", **more)
        facts = self._report() | {"rows": [], "memory_mode": _mode(self.system)}
        facts["rows"] = [{"title": p.title, "nbytes": p.nbytes, "name": p.name} for p in self._parts() if "selftest" not in p.name]
        self._text("REPORT.md", "layer_report.md.jinja", **more, **facts, **ends)
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
            "sha256": hashlib.sha256(self.program.pte).hexdigest(),
            "board": self.board,
            "slot": self.slot,
            "arena_bytes": sizes["arena"],
            "fast_bytes": sizes["fast"],
            "tensors_bytes": sizes["tensors"],
            "codes_tensors_bytes": _pad_to_cache_lines(self.methods_plan.codes_tensors_bytes),
            "weights_bytes": sizes["weights"],
            "commands_bytes": sizes["commands"],
            "constants_bytes": sizes["constants"],
            "sections": SECTIONS,
            "methods": self.source.methods,
            "several": self.methods_plan.several,
            "selection": self.selection,
            "state_bytes": self.methods_plan.state_bytes,
            "has_codes": self.methods_plan.has_codes,
            "keeps_state": self.methods_plan.keeps_state,
            "has_state_in_arena": self.methods_plan.has_state_in_arena,
            "kernel_sources": self.source.kernels,
        }

    def _model(self) -> None:
        more = {
            "kernel_headers": kernel_headers(self.source),
            "blobs": self.source.blobs,
            "initials": self.source.initials,
            "contents": self.source.contents,
            "estimated_cycles": {name: min(self._cycles(name), 2**32 - 1) for name in self.program.methods},
            "attributes": self.attributes,
            "memory_mode": _mode(self.system),
        }
        self._text(f"model/{self.name}.h", "model.h.jinja")
        self._text(f"model/{self.name}.c", "model.c.jinja", **more)
        self._text(f"model/{self.name}_memory.c", "model_memory.c.jinja")
        self._data(f"model/{self.name}_data", self.source.blobs, f"{self.name}.h", f"{self.name} (weights, commands, constants)")
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
        for data_blob in blobs:
            self.files[f"{Path(stem).parent.as_posix()}/{data_blob.file}"] = data_blob.content

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
        self._text("firmware/main.c", "main.c.jinja", repeats=self.repeats)
        section = ".rodata.selftest"
        numbers = {name: number for number, name in enumerate(self.program.methods)}
        rows = [
            {"method": numbers[case.call.method], "reset": case.call.reset, "data": place}
            for case, place in zip(self.cases, self.case_places, strict=True)
        ]
        self._text(
            "firmware/selftest.h", "selftest.h.jinja", cases=rows, bytes=self.selftest.bytes, section=section, repeats=self.repeats
        )
        self._data("firmware/selftest_data", [self.selftest], "selftest.h", "the self-test")
        self._text("firmware/link.ld", "link.ld.jinja", **self._linker())

    def _linker(self) -> dict[str, Any]:
        labels = linker_labels(memory.name for memory in self.layout.memories)
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
        memory_of_parts = [{"name": entry.part.name, "memory": labels[entry.memory.name]} for entry in self.layout.placements]
        loaded = {entry.part.name: entry.part.loaded for entry in self.layout.placements}
        placements = [f"{e.part.title}: {e.part.nbytes} bytes, {labels[e.memory.name]}" for e in self.layout.placements]
        return {
            "memories": rows,
            "text": labels[self.layout.text.name],
            "data": labels[self.layout.data.name],
            "loaded": [row for row in memory_of_parts if loaded[row["name"]]],
            "unloaded": [row for row in memory_of_parts if not loaded[row["name"]]],
            "stack_bytes": STACK_BYTES,
            "layout": [f"code: {labels[self.layout.text.name]}; variables and stack: {labels[self.layout.data.name]}", *placements],
        }

    def _around(self) -> None:
        model_sources = sorted(path for path in self.files if path.startswith("model/") and path.endswith((".c", ".S")))
        firmware_sources = sorted(path for path in self.files if path.startswith("firmware/") and path.endswith((".c", ".S")))
        include = ["model", *(["model/kernels"] if self.source.kernels else []), "firmware"]
        described = {
            "name": self.name,
            "target": self.target,
            "board": self._board_place(),
            "sources": [*model_sources, *firmware_sources],
            "include": include,
            "calls": [case.call.method for case in self.cases],
            "outputs": {
                method.method: [f"{end.dtype}{list(end.shape)}" for end in method.outputs] for method in self.source.methods
            },
            "expected": [[f"0x{fnv1a(out):08x}" for out in case.outputs] for case in (self.cases if self.repeats == 1 else ())],
            "cycles": {
                _stream_hash(self.methods_plan.plans[name].payloads[number]): cycles
                for name, program_method in self.program.methods.items()
                for number, cycles in program_method.cycles.items()
            },
            "estimated_cycles": {name: self._cycles(name) for name in self.program.methods},
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
        names = self._calls_on_cpu()
        hashes = [{"file": f"model/{blob.file}", "sha256": hashlib.sha256(blob.content).hexdigest()} for blob in self.source.blobs]
        cycles = sum(map(self._cycles, self.program.methods))
        clock = self.system.core_clock_hz if self.system else 0
        time = f", {1e3 * cycles / clock:.3f} ms at {clock / 1e6:.0f} MHz" if clock else ""
        return {
            "cycles": f"{cycles} NPU cycles{time} (Vela)"
            if cycles
            else "unknown, because a .pte does not contain Vela's cycles; `run.py` prints a lower bound",
            "delegates": sum(method.delegates for method in self.source.methods),
            "by_method": [{"method": name, **sizes} for name, sizes in self.by_method.items()],
            "operators": [{"name": name, "count": names.count(name)} for name in sorted(set(names))],
            "hashes": hashes,
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
            for entry in self.layout.placements
        ]

    def _board_place(self) -> str:
        if self.board.name in board_names() and self.board == load_board(self.board.name):
            return self.board.name
        if self.board.path is None:
            raise EthorchError(
                f"the project must include the description of board {self.board.name!r}, but the Board object was not read from a "
                "file. Pass the path of the board's TOML file."
            )
        self._copy(self.board.path, "board.toml")
        return "board.toml"


def _pad_to_cache_lines(size: int) -> int:
    return -(-size // 32) * 32


def _stream_hash(payload: DelegatePayload) -> str:
    """Return the SHA-256 of a command stream without its header, as in ``Inference.stream``."""
    header = parse_header(payload.commands)
    return hashlib.sha256(payload.commands[header.start : header.stop]).hexdigest()


def _mode(system: MemorySystem | None) -> str:
    if system is None:
        return "unknown; the defaults of Arm's driver are used"
    constants = "Sram" if system.constants_in_sram else system.const_area
    return f"constants in {constants}, feature maps in {system.arena_area}, staging in {system.cache_area}"


def _describe_versions() -> str:
    version_by_name = versions()
    return ", ".join(f"{name} {version_by_name[name]}" for name in ("ethorch", "ethos-u-vela") if name in version_by_name)
