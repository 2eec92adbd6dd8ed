"""Everything a user chooses about a program, as one value that can be kept beside the .pte and used again."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from os import PathLike
from os.path import isfile
from pathlib import Path
from types import NoneType
from typing import Any

import tomli_w

from ethorch.support.errors import BoardError, FormatError, SpecError, unknown_name
from ethorch.support.text_files import parse_toml, read_text
from ethorch.support.wording import shown
from ethorch.targets.boards import Board, NpuSlot
from ethorch.targets.boards import load as load_board
from ethorch.targets.boards.memory_roles import configuration, roles
from ethorch.targets.compile_spec import DEFAULT_INI, FAST, FREE, EthosUCompileSpec

#: How a model is quantized, by name; ``ethorch.quantization.schemes`` has the configs. ``float``, for a module, leaves it to the
#: CPU.
SCHEMES = {
    "int8": "int8 activations, int8 weights with a scale per channel",
    "int8-per-tensor": "int8 activations, int8 weights with one scale per tensor",
    "a16w8": "int16 activations, int8 weights with a scale per channel",
    "a8w4": "int8 activations, int4 weights with a scale per channel",
}
#: Version of the layout of ``settings.toml`` and ``program.json``.
FORMAT = 1
#: What those get who name neither target nor board.
DEFAULT_TARGET = "ethos-u55-128"
#: The shapes of a method's inputs.
Shapes = tuple[tuple[int, ...], ...]
#: What a module alone may have besides.
FLOAT = "float"
#: The scheme of a program that was quantized by a ``QuantizationConfig``, which no file holds.
CUSTOM = "custom"
#: Keys of the table ``samples``, and the types of their values.
SAMPLES: dict[str, tuple[type, ...]] = {
    "calibrate": (str, list, tuple), "max_samples": (int,), "mean": (list, tuple), "std": (list, tuple), "weights": (str,),
}  # fmt: skip
#: Types that a program's float inputs and outputs can have.
IO_TYPES = ("float32", "int8", "uint8", "int16")
#: Order of the axes of inputs and outputs of rank 4 and 5: as the model has them, channels last, or whichever takes less time.
IO_LAYOUTS = NCHW, NHWC, AUTO_LAYOUT = "nchw", "nhwc", "auto"
#: What goes to the NPU: all that it can run; not products of two activations, which the CPU computes of codes; or what is faster.
PARTITIONS = NPU, CPU_MATMUL, COST = "npu", "cpu-matmul", "cost"
#: Where the NPU reads weights from.
CONSTANTS = FLASH, SRAM, AUTO = "flash", "sram", "auto"
#: Vela's memory mode in which everything lies in SRAM (vela.ini).
SRAM_ONLY = "Sram_Only"
_DECIMAL = re.compile(r"\s*\d{1,10}\s*")
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMG]?)(?:I?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_MOST_BYTES = 2**63 - 1
_MOST_SIZE = 2**31 - 1  # of an axis
#: The types of settings that nothing else checks, and how messages call them.
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("target", "io", "io_layout", "partition"), ((str,), "a text")),
    **dict.fromkeys(("system_config", "memory_mode"), ((str, NoneType), "a text")),
    "config_ini": ((str, PathLike), "the path of a file"),
    "board": ((str, PathLike, NoneType), "the name of a board, or the path of its file"),
    **dict.fromkeys(("verify", "share_weights", "etrecord"), ((bool,), "true or false")),
    "samples": ((Mapping,), "a table, such as calibrate = ['images'] and max_samples = 100"),
}


def bytes_of(size: int | str | None, what: str) -> int | None:
    """A size in bytes: a number, or a text such as ``"256K"``, ``"1.5 MiB"``; K, M and G are powers of 1024.

    Raises:
        SpecError: it is neither, or negative.
    """
    if size is None:
        return None
    found = _SIZE.fullmatch(str(size).strip()) if isinstance(size, (str, int, float)) else None
    number = math.inf if found is None else float(found["number"]) * _UNITS[found["unit"].upper()]
    if number > _MOST_BYTES:
        raise SpecError(f"{what} is {shown(size)}; expected a number of bytes, or one followed by K, M or G, such as 256K.")
    return math.floor(number)


def shapes_from(given: Any) -> tuple[Shapes, ...]:
    """Return a tuple of input shapes for each method, of any of these forms.

    A tuple is a text such as ``"1x64x32,1x64"``, a sequence of shapes, or of one input its shape; a shape is a sequence of sizes or
    a text.

    Raises:
        SpecError: a size is not a positive integer, or a tuple occurs twice.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        given = [given]
    found = tuple(_shapes(one) for one in given)
    for number, one in enumerate(found):
        if one in found[:number]:
            raise SpecError(f"shapes has {','.join('x'.join(map(str, shape)) for shape in one)} twice; give each once.")
    return found


def _shapes(given: Any) -> Shapes:
    if isinstance(given, str):
        given = given.split(",")
    if isinstance(given, Sequence) and given and all(_is_size(size) for size in given):
        given = [given]
    wrong = SpecError(
        f"shapes has {shown(given)}; expected the sizes of each input, such as (1, 3, 96, 96) or '1x3x96x96' (--shape); of several "
        "inputs '1x64x32,1x64'."
    )
    if not isinstance(given, Sequence) or not given:
        raise wrong
    shapes = []
    for shape in given:
        parts = shape.lower().strip().split("x") if isinstance(shape, str) else shape
        if not isinstance(parts, Sequence):
            raise wrong
        sizes: list[Any] = [int(part) if isinstance(part, str) and _DECIMAL.fullmatch(part) else part for part in parts]
        if not all(_is_size(size) and 0 < size <= _MOST_SIZE for size in sizes):
            raise wrong
        shapes.append(tuple(map(int, sizes)))
    return tuple(shapes)


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer that no float holds
        return False


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class Settings:
    """What a program is compiled for and how.

    Attributes:
        target: name of the NPU, as ``ethorch targets`` lists it; empty takes the board's first, or ``ethos-u55-128``.
        scheme: one of SCHEMES, for the model as a whole; or a ``QuantizationConfig``, of which files record ``custom``.
        modules: submodule name -> a scheme of its own, or ``float``: it stays on the CPU.
        io: type of the program's inputs and outputs that are float in the model: one of IO_TYPES.
        io_layout: Layout of inputs and outputs of rank 4 and 5: ``nchw``, as the model has them; ``nhwc``, channels last, as
            cameras deliver them; or ``auto``: ``nhwc`` if that saves time. A program's settings contain the layout that it has.
        partition: what runs on the NPU: ``npu``, all that it can; ``cpu-matmul``, all but products of two int8 activations, for
            which ExecuTorch's ``cortex_m`` library has a kernel; ``cost``: the faster of both by the estimate. A program's settings
            say which one it is. The kernel's rate is assumed (``ethorch.figures.RATES``).
        shapes: a tuple of input shapes for each method of the program, as ``shapes_from`` takes them; empty: one method of the
            example inputs' shapes. The smallest method that fits is called (``ethorch.program.shapes``).
        system_config, memory_mode: sections of the ini file; None takes the board's, or the target's.
        config_ini: Vela's own ``Arm/vela.ini`` or a file of yours.
        vela_flags: further flags of Vela's command line.
        arena: the NPU's arena: ``free`` (the smallest found that costs hardly more cycles), ``fast`` (as large as Vela likes), or a
            limit in bytes.
        constants: where the NPU reads weights from: ``flash``, as the memory mode has it; ``sram``, where the firmware copies them
            once at the start; ``auto``, in SRAM, all or some, where ``ram`` allows it and cycles are saved; or bytes, by which
            the arena may grow for weights that are read several times in a call, and copied by the NPU at its beginning.
        ram, flash: bytes that the whole application may take; None: no limit.
        latency_ms: milliseconds that one inference may take by the estimate; None: no limit.
        min_sqnr_db: least SQNR against the float model; None: no limit.
        board: name of a board of ``ethorch boards``, or a TOML file of yours: it says what the target may be, its clocks and
            memories, and the RAM and flash there are.
        verify: Compare each delegate of the program, run in the simulator on a calibration sample, with the TOSA reference.
        share_weights: Store constants that delegates of several methods have in common once, as named data of the program.
            Firmware needs a delegate that reads these: ethorch's, or that of ExecuTorch from 1.5 on.
        etrecord: Keep ExecuTorch's ETRecord, by which its Inspector maps events to operators; ``Program.save`` writes it into the
            folder. Only ExecuTorch's own lowering makes the graphs in it, which is some times slower.
        samples: Inputs that commands read if they compile a model: ``calibrate`` (files or folders), ``max_samples``, ``mean`` and
            ``std`` (by channel, of images in 0..1), and ``weights``, a file with the state dict.

    Raises:
        SpecError: a name is unknown, a size or number is none, or the board cannot have the target.
        BoardError: the board's file is wrong.
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
                raise SpecError(f"{name} is {shown(value)}; expected a number.")
        if self.config is None and self.scheme not in (*SCHEMES, CUSTOM):
            raise unknown_name("scheme", self.scheme, SCHEMES)
        for module, scheme in self.modules.items():
            if scheme not in (*SCHEMES, FLOAT):
                raise unknown_name(f"scheme of module {shown(module)}", scheme, (*SCHEMES, FLOAT))
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
                raise unknown_name("place of the constants", self.constants, (*CONSTANTS, "a size such as 16K"))
            object.__setattr__(self, "constants", bytes_of(self.constants, "constants"))
        if self.constants in (SRAM, AUTO) and self.memory_mode not in (None, SRAM_ONLY):
            raise SpecError(
                f"constants={self.constants!r} is memory mode {SRAM_ONLY}, and memory_mode is {shown(self.memory_mode)}: leave one "
                "of them out."
            )
        try:
            object.__setattr__(self, "target", self.spec.target.name)  # refuses what it does not know
        except SpecError:
            if not is_default:  # a target that is chosen later may have it: the compilation asks again
                raise

    def _check_types(self) -> None:
        for name, (types, expected) in _TYPES.items():
            if not isinstance(getattr(self, name), types):
                raise SpecError(f"{name} is {shown(getattr(self, name))}; expected {expected}.")
        if not isinstance(self.modules, Mapping) or not all(isinstance(x, str) for entry in self.modules.items() for x in entry):
            raise SpecError(f"modules is {shown(self.modules)}; expected a table of schemes by submodule, such as head = 'a16w8'.")
        flags = self.vela_flags
        if not isinstance(self.scheme, str) and not hasattr(self.scheme, "get_weight_qspec"):
            raise SpecError(f"scheme is {shown(self.scheme)}; expected one of {', '.join(SCHEMES)}, or a QuantizationConfig.")
        for name, value in self.samples.items():
            if name not in SAMPLES:
                raise unknown_name("entry of samples", str(name), SAMPLES)
            if not isinstance(value, SAMPLES[name]):
                raise SpecError(f"samples.{name} is {shown(value)}; expected {' or '.join(t.__name__ for t in SAMPLES[name])}.")
        if isinstance(flags, str) or not isinstance(flags, Sequence) or not all(isinstance(flag, str) for flag in flags):
            raise SpecError(f"vela_flags is {shown(flags)}; expected a list of texts, such as ['--optimise', 'Size'].")

    @property
    def config(self) -> Any:
        """The ``QuantizationConfig`` in place of a scheme's name; None if the scheme is a name."""
        return None if isinstance(self.scheme, str) else self.scheme

    @property
    def channels_last(self) -> bool:
        """True if inputs and outputs of rank 4 and 5 have their channels last."""
        return self.io_layout == NHWC

    @cached_property
    def described(self) -> Board | None:
        """The board's facts; None without a board."""
        return None if self.board is None else load_board(self.board)

    @cached_property
    def slot(self) -> NpuSlot | None:
        """The place of the target on the board; None without a board. SpecError where it cannot have it."""
        return None if self.described is None else self.described.npu(self.target)[0]

    @property
    def ram_limit(self) -> int | None:
        """Bytes of RAM for the whole application: ``ram``, else what the board has; None without either."""
        return self.described.ram_bytes if self.ram is None and self.described is not None else self.ram

    @property
    def flash_limit(self) -> int | None:
        """Likewise of flash."""
        return self.described.flash_bytes if self.flash is None and self.described is not None else self.flash

    @cached_property
    def spec(self) -> EthosUCompileSpec:
        """The same choices for the compiler; of constants that are ``auto``, those in flash.

        Raises:
            SpecError: The target does not have what the settings ask for, or ``auto`` does not know the RAM.
        """
        if self.constants == AUTO and self.ram_limit is None:
            raise SpecError(
                "constants='auto' has to know how much RAM there is: give ram (--ram) or a board (--board), or constants='sram'."
            )
        mode = SRAM_ONLY if self.constants == SRAM else self.memory_mode
        resident = self.constants if isinstance(self.constants, int) else 0
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
        )

    def to_json(self) -> dict[str, Any]:
        """As plain data; ``from_json`` takes it back."""
        shapes = [[list(shape) for shape in one] for one in self.shapes]
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        tables = {"modules": dict(self.modules), "samples": dict(self.samples)}
        scheme = self.scheme if self.config is None else CUSTOM
        return {**values, **tables, "scheme": scheme, "vela_flags": list(self.vela_flags), "shapes": shapes}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Settings:
        """What ``to_json`` made, or a part of it.

        Raises:
            SpecError: a key or a value is unknown.
        """
        if not isinstance(data, Mapping):
            raise SpecError(f"the settings are {shown(data)}; expected a table of settings by name.")
        known = [entry.name for entry in fields(cls)]
        for key in data:
            if key not in known:
                raise unknown_name("setting", key, known)
        return cls(**data)

    def with_(self, **changes: Any) -> Settings:
        """A copy with other values; those that are None stay as they are. Of another board the target is chosen again."""
        changed = {name: value for name, value in changes.items() if value is not None}
        if "board" in changed and "target" not in changed and changed["board"] != self.board:
            changed["target"] = ""
        return replace(self, **changed)

    def to_toml(self, board: str | None = None) -> str:
        """As TOML; what has its default is left out, but for the target and the scheme.

        Args:
            board: what to name the board's file, where it is kept beside the settings.
        """
        default = type(self)().to_json()
        kept = {name: value for name, value in self.to_json().items() if value != default[name] or name in ("target", "scheme")}
        if board is not None:
            kept["board"] = board
        return tomli_w.dumps({"format": FORMAT, **kept})

    @classmethod
    def from_toml(cls, text: str, name: str = "the settings", folder: Path | None = None) -> Settings:
        """What ``to_toml`` wrote, or a user.

        Args:
            folder: where the file of a board is looked for first.

        Raises:
            SpecError: it is no TOML, or a key or a value is unknown; ``name`` says of which file.
            BoardError: the board's file is wrong.
        """
        try:
            data = parse_toml(text, name)
        except FormatError as error:
            raise SpecError(str(error)) from None
        version = data.pop("format", FORMAT)
        if version != FORMAT:
            raise SpecError(f"{name} has format {shown(version)}; this ethorch reads format {FORMAT}. Install a newer one.")
        board = data.get("board")
        if folder is not None and isinstance(board, str) and isfile(folder / board):
            data["board"] = str(folder / board)
        try:
            return cls.from_json(data)
        except (SpecError, BoardError) as error:
            raise type(error)(f"{name}: {error}") from error

    @classmethod
    def read(cls, file: Path) -> Settings:
        """Return the settings in a TOML file; a board's file is looked for beside it first.

        Raises:
            SpecError: The file cannot be read, or as of ``from_toml``.
            BoardError: As of ``from_toml``.
        """
        try:
            text = read_text(file)
        except FormatError as error:
            raise SpecError(str(error)) from None
        return cls.from_toml(text, str(file), file.parent)
