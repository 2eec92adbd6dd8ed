"""The settings of a program, stored with the .pte."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from os import PathLike
from os.path import isfile
from pathlib import Path
from types import NoneType
from typing import Any

import tomli_w

from ethorch.support.errors import BoardError, FormatError, SpecError, unknown_name
from ethorch.support.keywords import suggest_keywords
from ethorch.support.text_files import check_format, parse_toml, read_text
from ethorch.support.wording import shorten
from ethorch.targets.boards import Board, NpuSlot
from ethorch.targets.boards import load as load_board
from ethorch.targets.boards.memory_roles import configuration, roles
from ethorch.targets.compile_spec import DEFAULT_INI, FAST, FREE, OPTIMIZED, RESIDENT_BYTES, EthosUCompileSpec
from ethorch.targets.npus import lookup
from ethorch.targets.probe_log import read_probe_log

#: Names of quantization schemes. ``ethorch.quantization.schemes`` contains their configs.
SCHEMES = {
    "int8": "int8 activations, int8 weights with a scale per channel",
    "int8-per-tensor": "int8 activations, int8 weights with one scale per tensor",
    "a16w8": "int16 activations, int8 weights with a scale per channel",
    "a8w4": "int8 activations, int4 weights with a scale per channel",
}
#: Schemes to suggest for names that contain only a bit width.
_SCHEMES_BY_WIDTH = {"int16": "a16w8", "16x8": "a16w8", "int4": "a8w4"}
#: Version of the format of ``settings.toml`` and ``program.json``.
FORMAT = 1
#: Default target if no board is set.
DEFAULT_TARGET = "ethos-u55-128"
#: Input shapes of a method.
Shapes = tuple[tuple[int, ...], ...]
#: Scheme of modules that stay on the CPU.
FLOAT = "float"
#: Scheme recorded for a ``QuantizationConfig``, which files cannot contain.
CUSTOM = "custom"
#: Keys of the table ``samples`` and the types of their values.
SAMPLES: dict[str, tuple[type, ...]] = {
    "calibrate": (str, list, tuple), "max_samples": (int,), "mean": (list, tuple), "std": (list, tuple), "weights": (str,),
}  # fmt: skip
#: Types of a program's float inputs and outputs.
IO_TYPES = ("float32", "int8", "uint8", "int16")
#: Layout of inputs and outputs of rank 4 and 5: as in the model, channels last, or the faster of these.
IO_LAYOUTS = NCHW, NHWC, AUTO_LAYOUT = "nchw", "nhwc", "auto"
#: Operators on the NPU: all supported ones, all except products of two activations, or the faster of these choices.
PARTITIONS = NPU, CPU_MATMUL, COST = "npu", "cpu-matmul", "cost"
#: Memory from which the NPU reads weights.
CONSTANTS = FLASH, SRAM, AUTO = "flash", "sram", "auto"
#: Vela's memory mode with all memories in SRAM (vela.ini).
SRAM_ONLY = "Sram_Only"
_DECIMAL = re.compile(r"\s*\d{1,10}\s*")
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMG]?)(?:I?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_MOST_BYTES = 2**63 - 1
_MOST_SIZE = 2**31 - 1  # maximum size of an axis
#: Types of settings that have no other checks, and their descriptions in messages.
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("target", "io", "io_layout", "partition", "stream"), ((str,), "a string")),
    **dict.fromkeys(("system_config", "memory_mode"), ((str, NoneType), "a string")),
    "config_ini": ((str, PathLike), "the path of a file"),
    "board": ((str, PathLike, NoneType), "the name of a board, or the path of its file"),
    **dict.fromkeys(("verify", "share_weights", "etrecord"), ((bool,), "true or false")),
    "samples": ((Mapping,), "a table, such as calibrate = ['images'] and max_samples = 100"),
}


def bytes_of(size: int | str | None, what: str) -> int | None:
    """Parse a size in bytes: a number, a string such as ``"256K"`` or ``"1.5 MiB"``, or None. K, M and G are powers of 1024.

    Raises:
        SpecError: The size is malformed, negative, or at least 2**63.
    """
    if size is None:
        return None
    match = _SIZE.fullmatch(str(size).strip()) if isinstance(size, (str, int, float)) else None
    number = math.inf if match is None else float(match["number"]) * _UNITS[match["unit"].upper()]
    if number > _MOST_BYTES:
        raise SpecError(f"{what} is {shorten(size)}; expected a number of bytes, optionally followed by K, M or G, such as 256K.")
    return math.floor(number)


def shapes_from(description: Any) -> tuple[Shapes, ...]:
    """Parse the input shapes of one or more methods.

    Args:
        description: A string such as ``"1x64x32,1x64"`` with the shapes of one method, or a sequence with one entry per method. An
            entry is such a string, a sequence of shapes, or the shape of a single input.

    Raises:
        SpecError: The description is malformed, a size is not in 1..2**31-1, or two methods have the same shapes.
    """
    if isinstance(description, str) or not isinstance(description, Sequence):
        description = [description]
    methods = tuple(_shapes(part) for part in description)
    for number, shapes in enumerate(methods):
        if shapes in methods[:number]:
            raise SpecError(f"shapes lists {','.join('x'.join(map(str, shape)) for shape in shapes)} twice. Remove one of them.")
    return methods


def _shapes(description: Any) -> Shapes:
    if isinstance(description, str):
        description = description.split(",")
    if isinstance(description, Sequence) and description and all(_is_size(size) for size in description):
        description = [description]
    wrong = SpecError(
        f"shapes contains {shorten(description)}; expected the input shapes of each method, such as [(1, 3, 96, 96)] or "
        "'1x3x96x96' (--shape). Use '1x64x32,1x64' for several inputs."
    )
    if not isinstance(description, Sequence) or not description:
        raise wrong
    shapes = []
    for shape in description:
        parts = shape.lower().strip().split("x") if isinstance(shape, str) else shape
        if not isinstance(parts, Sequence):
            raise wrong
        sizes: list[Any] = [int(part) if isinstance(part, str) and _DECIMAL.fullmatch(part) else part for part in parts]
        if not all(_is_size(size) and 0 < size <= _MOST_SIZE for size in sizes):
            raise wrong
        shapes.append(tuple(map(int, sizes)))
    return tuple(shapes)


def _unknown_scheme(kind: str, scheme: str, names: Iterable[str]) -> SpecError:
    similar = _SCHEMES_BY_WIDTH.get(scheme.lower())
    if similar is None:
        return unknown_name(kind, scheme, names)
    return SpecError(f"unknown {kind} {shorten(scheme)}. Did you mean {similar!r}? Known: {', '.join(sorted(names))}.")


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer exceeds the range of float
        return False


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@suggest_keywords
@dataclass(frozen=True)
class Settings:
    """The target and the options of a compilation.

    Attributes:
        target: Name of the NPU (see ``ethorch targets``). Default: the board's first NPU, or ``ethos-u55-128``.
        scheme: Quantization scheme of the model, one of SCHEMES or a ``QuantizationConfig``, which is saved as ``custom``.
        modules: Schemes, keyed by submodule name or by FX name of an operator. The scheme ``float`` keeps operators on the CPU.
        io: Type of the program's inputs and outputs that are float in the model, one of IO_TYPES.
        io_layout: Layout of inputs and outputs of rank 4 and 5: ``nchw`` (as in the model), ``nhwc`` (channels last) or ``auto``
            (the faster layout). A program's settings contain the selected layout.
        partition: Operators on the NPU: ``npu`` (all supported operators) or ``cpu-matmul`` (all except matrix products of two int8
            activations, which ExecuTorch's ``cortex_m`` library computes). ``cost`` selects the faster of these, as estimated with
            ``ethorch.figures.RATES``. A program's settings contain the selected partition.
        shapes: Input shapes of each method (see ``shapes_from``). Default: one method with the shapes of the example inputs. A call
            uses the smallest method that accepts the inputs (``ethorch.program.shapes``).
        system_config, memory_mode: Sections of the ini file. Default: those of the board or target.
        config_ini: Vela's ``Arm/vela.ini``, or the path of another ini file.
        vela_flags: Additional Vela command-line flags.
        arena: Size of the NPU's arena: ``free`` (the smallest with at most 0.5 % more cycles), ``fast`` (unlimited), or a
            limit in bytes.
        constants: Memory for the weights. A size in bytes is the maximum growth of the arena for weights read several
            times per call. The NPU copies these weights at the start of the call. ``flash`` uses the memory that the memory mode
            defines, and copies at most 32 KiB of weights. With ``sram``, firmware copies all weights to SRAM at startup. ``auto``
            uses SRAM for all or some weights if this saves cycles and meets the RAM budget.
        ram, flash: Budgets of the whole application in bytes. Default: the board's RAM and flash.
        latency_ms: Maximum estimated inference time in milliseconds.
        min_sqnr_db: Minimum SQNR of each output relative to the float model.
        board: Name of a board (see ``ethorch boards``), or path of a TOML file. The board defines targets, clocks, memories, and
            the default budgets of RAM and flash.
        verify: Whether to simulate each delegate on random inputs and calibration samples, and compare the results with the
            TOSA reference.
        stream: Command stream: ``optimized`` (all passes of ``ethorch.npu.passes``), ``vela`` (unchanged), comma-separated names
            of passes, or the ``.log`` file of ``ethorch firmware --probe``, to use the passes that were correct on the board.
        share_weights: Whether methods share equal constants. Shared constants are stored as named data, which requires
            ExecuTorch 1.5 or firmware written by ethorch.
        etrecord: Whether to create an ETRecord, which ExecuTorch's Inspector requires to map events to operators. ``Program.save``
            writes it to the program's folder. With an ETRecord, compilation uses ExecuTorch's slower lowering.
        samples: Data for commands that compile a model: ``calibrate`` (files or folders), ``max_samples``, ``mean`` and ``std``
            (per channel, of images in 0..1), and ``weights`` (a file with the state dict).

    Raises:
        SpecError: A name, size or number is invalid, or the board does not support the target.
        BoardError: The board file is invalid.
    """

    target: str = ""
    scheme: Any = "int8"
    modules: Mapping[str, str] = field(default_factory=dict)
    io: str = "float32"
    io_layout: str = NCHW
    partition: str = NPU
    shapes: tuple[Shapes, ...] = ()
    system_config: str | None = None
    memory_mode: str | None = None
    config_ini: str = DEFAULT_INI
    vela_flags: tuple[str, ...] = ()
    arena: str | int = FREE
    constants: str | int = FLASH
    ram: int | None = None
    flash: int | None = None
    latency_ms: float | None = None
    min_sqnr_db: float | None = None
    board: str | None = None
    verify: bool = True
    stream: str = OPTIMIZED
    share_weights: bool = True
    etrecord: bool = False
    samples: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_types()
        is_default = not self.target
        if is_default:
            object.__setattr__(self, "target", DEFAULT_TARGET if self.described is None else self.described.targets[0])
        object.__setattr__(self, "modules", dict(self.modules))
        object.__setattr__(self, "samples", dict(self.samples))
        object.__setattr__(self, "vela_flags", tuple(self.vela_flags))
        object.__setattr__(self, "shapes", shapes_from(self.shapes))
        for name in ("ram", "flash"):
            object.__setattr__(self, name, bytes_of(getattr(self, name), name))
        for name in ("latency_ms", "min_sqnr_db"):
            value = getattr(self, name)
            if value is not None and not _is_number(value):
                raise SpecError(f"{name} is {shorten(value)}; expected a number.")
        if self.config is None and self.scheme not in (*SCHEMES, CUSTOM):
            raise _unknown_scheme("scheme", self.scheme, SCHEMES)
        for module, scheme in self.modules.items():
            if scheme not in (*SCHEMES, FLOAT):
                raise _unknown_scheme(f"scheme of module {shorten(module)}", scheme, (*SCHEMES, FLOAT))
        if self.io not in IO_TYPES:
            raise unknown_name("io type", self.io, IO_TYPES)
        if self.io_layout not in IO_LAYOUTS:
            raise unknown_name("layout of inputs and outputs", self.io_layout, IO_LAYOUTS)
        if self.partition not in PARTITIONS:
            raise unknown_name("partition", self.partition, PARTITIONS)
        if self.arena not in (FAST, FREE):
            object.__setattr__(self, "arena", bytes_of(self.arena, "arena"))
        if self.constants not in CONSTANTS:
            if isinstance(self.constants, str) and not _SIZE.fullmatch(self.constants.strip()):
                raise unknown_name("memory for constants", self.constants, (*CONSTANTS, "a size such as 16K"))
            object.__setattr__(self, "constants", bytes_of(self.constants, "constants"))
        if self.constants in (SRAM, AUTO) and self.memory_mode not in (None, SRAM_ONLY):
            raise SpecError(
                f"constants={self.constants!r} requires memory mode {SRAM_ONLY}, but memory_mode is {shorten(self.memory_mode)}. "
                "Remove one of them."
            )
        try:
            object.__setattr__(self, "target", self.spec.target.name)  # raises SpecError for unsupported settings
        except SpecError:
            if not is_default:  # a target set later may support these settings; compilation checks them again
                raise

    def _check_types(self) -> None:
        for name, (types, expected) in _TYPES.items():
            if not isinstance(getattr(self, name), types):
                raise SpecError(f"{name} is {shorten(getattr(self, name))}; expected {expected}.")
        if not isinstance(self.modules, Mapping) or not all(isinstance(x, str) for entry in self.modules.items() for x in entry):
            raise SpecError(
                f"modules is {shorten(self.modules)}; expected a table with a scheme for each submodule, such as head = 'a16w8'."
            )
        flags = self.vela_flags
        if not isinstance(self.scheme, str) and not hasattr(self.scheme, "get_weight_qspec"):
            raise SpecError(f"scheme is {shorten(self.scheme)}; expected one of {', '.join(SCHEMES)}, or a QuantizationConfig.")
        for name, value in self.samples.items():
            if name not in SAMPLES:
                raise unknown_name("entry of samples", str(name), SAMPLES)
            if not isinstance(value, SAMPLES[name]):
                raise SpecError(f"samples.{name} is {shorten(value)}; expected {' or '.join(t.__name__ for t in SAMPLES[name])}.")
        if isinstance(flags, str) or not isinstance(flags, Sequence) or not all(isinstance(flag, str) for flag in flags):
            raise SpecError(f"vela_flags is {shorten(flags)}; expected a list of strings, such as ['--optimise', 'Size'].")

    @property
    def config(self) -> Any:
        """The ``QuantizationConfig``, or None if the scheme is a name."""
        return None if isinstance(self.scheme, str) else self.scheme

    @property
    def channels_last(self) -> bool:
        """True if inputs and outputs of rank 4 and 5 are in NHWC layout."""
        return self.io_layout == NHWC

    @cached_property
    def described(self) -> Board | None:
        """The loaded board, or None if no board is set."""
        return None if self.board is None else load_board(self.board)

    @cached_property
    def slot(self) -> NpuSlot | None:
        """The target's slot on the board, or None if no board is set. Raise SpecError if no slot supports the target."""
        return None if self.described is None else self.described.npu(self.target)[0]

    @property
    def ram_limit(self) -> int | None:
        """The RAM budget of the application in bytes: ``ram`` if set, otherwise the board's RAM. None if neither is set."""
        return self.described.ram_bytes if self.ram is None and self.described is not None else self.ram

    @property
    def flash_limit(self) -> int | None:
        """The flash budget of the application. See ``ram_limit``."""
        return self.described.flash_bytes if self.flash is None and self.described is not None else self.flash

    @cached_property
    def selected_stream(self) -> str:
        """``stream``, or the passes derived from it if it is a probe's log."""
        return read_probe_log(Path(self.stream), lookup(self.target).name) if self.stream.endswith(".log") else self.stream

    @cached_property
    def spec(self) -> EthosUCompileSpec:
        """The compile spec for these settings. If ``constants`` is ``auto``, no weights are copied to the arena.

        Raises:
            SpecError: The target does not support the settings, or ``constants`` is ``auto`` without a RAM budget.
        """
        if self.constants == AUTO and self.ram_limit is None:
            raise SpecError("constants='auto' requires a RAM limit. Use ram (--ram), a board (--board), or constants='sram'.")
        mode = SRAM_ONLY if self.constants == SRAM else self.memory_mode
        resident = self.constants if isinstance(self.constants, int) else 0 if self.constants == AUTO else RESIDENT_BYTES
        board, slot = self.described, self.slot
        if board is not None and slot is not None and self.system_config is None and self.config_ini == DEFAULT_INI:
            return EthosUCompileSpec(
                self.target,
                board.name,
                mode or roles(board, slot).memory_mode,
                list(self.vela_flags) or None,
                arena=self.arena,
                resident_bytes=resident,
                config_text=configuration(board, slot),
                verify=self.verify,
                stream=self.selected_stream,
            )
        return EthosUCompileSpec(
            self.target,
            self.system_config,
            mode,
            list(self.vela_flags) or None,
            config_ini=self.config_ini,
            arena=self.arena,
            resident_bytes=resident,
            verify=self.verify,
            stream=self.selected_stream,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON-compatible values. See ``from_json``."""
        shapes = [[list(shape) for shape in method_shapes] for method_shapes in self.shapes]
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        try:
            stream = self.selected_stream
        except SpecError:  # a log that is invalid for this target, which can still change
            stream = self.stream
        tables = {"modules": dict(self.modules), "samples": dict(self.samples), "stream": stream}
        scheme = self.scheme if self.config is None else CUSTOM
        return {**values, **tables, "scheme": scheme, "vela_flags": list(self.vela_flags), "shapes": shapes}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Settings:
        """Create settings from some or all keys of ``to_json``. Raise SpecError if a key is unknown or a value is invalid."""
        if not isinstance(data, Mapping):
            raise SpecError(f"expected a table of settings, got {shorten(data)}.")
        names = [entry.name for entry in fields(cls)]
        for key in data:
            if key not in names:
                raise unknown_name("setting", key, names)
        return cls(**data)

    def with_(self, **changes: Any) -> Settings:
        """Return a copy with changed fields. None leaves a field unchanged.

        A new board's first NPU becomes the target, unless ``target`` is passed.
        """
        changed = {name: value for name, value in changes.items() if value is not None}
        if "board" in changed and "target" not in changed and changed["board"] != self.board:
            changed["target"] = ""
        return replace(self, **changed)

    def to_toml(self, board: str | None = None) -> str:
        """Return the settings as TOML. Default values are omitted, except target and scheme.

        Args:
            board: Name of the board file in the folder of the settings file. Default: the setting ``board``.
        """
        default = type(self)().to_json()
        values = {name: value for name, value in self.to_json().items() if value != default[name] or name in ("target", "scheme")}
        if board is not None:
            values["board"] = board
        return tomli_w.dumps({"format": FORMAT, **values})

    @classmethod
    def from_toml(cls, text: str, name: str = "the settings", folder: Path | None = None) -> Settings:
        """Parse settings in TOML.

        Args:
            name: File name in error messages.
            folder: Folder to search first for the board file and the probe's log.

        Raises:
            SpecError: The text is not TOML, its format is unknown, or a key or value is invalid.
            BoardError: The board file is invalid.
        """
        try:
            data = parse_toml(text, name)
            check_format(data.pop("format", FORMAT), FORMAT, name, f"Use `format = {FORMAT}`.")
        except FormatError as error:
            raise SpecError(str(error)) from None
        for field_name in ("board", "stream"):
            file = data.get(field_name)
            if folder is not None and isinstance(file, str) and isfile(folder / file):
                data[field_name] = str(folder / file)
        try:
            return cls.from_json(data)
        except (SpecError, BoardError) as error:
            raise type(error)(f"{name}: {error}") from error

    @classmethod
    def read(cls, file: Path) -> Settings:
        """Read settings from a TOML file. Its folder is searched first for the board file.

        Raises:
            SpecError, BoardError: See ``from_toml``.
        """
        try:
            text = read_text(file)
        except FormatError as error:
            raise SpecError(str(error)) from None
        return cls.from_toml(text, str(file), file.parent)
