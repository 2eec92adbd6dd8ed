"""Specs that select a target, memories and compiler flags, and convert to ExecuTorch's CompileSpec list."""

from __future__ import annotations

import copy
import enum
import os
import shlex
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ethorch.npu.passes.names import PASSES
from ethorch.support.errors import SpecError, unknown_name
from ethorch.support.wording import shorten
from ethorch.targets import vela_ini
from ethorch.targets.npus import FAMILIES, Target, lookup
from ethorch.targets.tosa_specification import TosaSpecification
from ethorch.targets.vela_flags import FLAGS, parse_flags
from ethorch.targets.vela_ini import MemorySystem, VelaConfig

if TYPE_CHECKING:
    from executorch.exir.backend.compile_spec_schema import CompileSpec


DEFAULT_INI = "Arm/vela.ini"

# Keys of the list, as in ExecuTorch's Arm backend.
_TARGET, _FLAGS, _FORMAT = "target", "compile_flags", "output_format"
_CONFIG = "vela_config"  # only in ethorch: an ini text in place of a file
_ARTIFACTS, _DEBUG = "debug_artifact_path", "dump_debug_info"
_ARENA = "ethorch_arena"  # only ethorch's
_RESIDENT = "ethorch_resident_bytes"  # only ethorch's
RESIDENT_BYTES = 32 << 10  # default of resident_bytes
_STREAM = "ethorch_stream"  # only ethorch's
_VERIFY = "ethorch_verify"  # only ethorch's
_PLACEMENTS = "external_block_placements"  # only in ExecuTorch: blocks in a .ptd file
# Keys of ExecuTorch's backend that are ignored when a list is parsed. Only TosaCompileSpec writes and reads tosa_spec.
_INCUMBENT_ONLY = frozenset(
    (
        "tosa_spec",
        "ouput_reorder_workaround",
        "transform_pipeline_config",
        "preserve_io_quantization",
        "tosa_sw_dev_mode",
    )
)

#: Arena sizes: unlimited, or the smallest with at most 0.5 % more cycles.
FAST, FREE = "fast", "free"
#: Command stream: changed by all passes of ``ethorch.npu.passes``, or that of Vela.
OPTIMIZED, VELA = "optimized", "vela"

SpecT = TypeVar("SpecT", bound="ArmCompileSpec")


class ArmCompileSpec:
    """The base class of compile specs, with debug output and conversion to and from lists.

    Subclasses define ``_own_items``, ``_from_items`` and ``_OUTPUT_FORMAT``, which identifies the class in a list.
    """

    class DebugMode(enum.Enum):
        """The kinds of debug information. ``JSON`` writes ``debug.json``, and ``TOSA`` adds source locations to ``.tosa`` files."""

        JSON = 1
        TOSA = 2

    tosa_spec: Any  # a TosaSpecification; an attribute or a property of the subclass
    _OUTPUT_FORMAT: ClassVar[str] = ""
    _KINDS: ClassVar[dict[str, type[ArmCompileSpec]]] = {}

    def __init__(self) -> None:
        self.path_for_intermediates: str | None = None
        self.tosa_debug_mode: ArmCompileSpec.DebugMode | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        ArmCompileSpec._KINDS[cls._OUTPUT_FORMAT] = cls

    def dump_intermediate_artifacts_to(self: SpecT, output_path: str | os.PathLike[str] | None) -> SpecT:
        """Set the folder for the delegates' TOSA graphs (.tosa and text) and the graphs after each rewrite. Return the spec."""
        self.path_for_intermediates = None if output_path is None else os.fspath(output_path)
        return self

    def dump_debug_info(self: SpecT, debug_mode: ArmCompileSpec.DebugMode | str | None) -> SpecT:
        """Add debug information to the intermediate artifacts. Return the spec. Raise SpecError if the mode is unknown."""
        if debug_mode is None:
            self.tosa_debug_mode = None
            return self
        name = str(getattr(debug_mode, "name", debug_mode))  # ExecuTorch's enum has the same names
        modes = ArmCompileSpec.DebugMode.__members__
        if name not in modes:
            raise unknown_name("debug mode", name, modes)
        self.tosa_debug_mode = modes[name]
        return self

    def set_pass_pipeline_config(self, config: Any) -> None:
        """Warn that the call has no effect, because ethorch has no pass pipeline."""
        warnings.warn(
            "set_pass_pipeline_config() has no effect, because ethorch has no pass pipeline.",
            UserWarning,
            stacklevel=2,
        )

    def set_output_order_workaround(self: SpecT, output_order_workaround: bool) -> SpecT:
        """Warn that the call has no effect, because outputs always keep the program's order. Return the spec."""
        warnings.warn(
            "set_output_order_workaround() has no effect, because outputs always keep the program's order.",
            DeprecationWarning,
            stacklevel=2,
        )
        return self

    def get_output_order_workaround(self) -> bool:
        """Return False, for compatibility."""
        return False

    def to_list(self) -> list[CompileSpec]:
        """Return the spec as a list of ExecuTorch's CompileSpecs.

        The items' attribute ``from_ethorch`` distinguishes ethorch's backends from ExecuTorch's Arm backends of the same names.

        Raises:
            SpecError: Debug information is requested, but no folder is set.
        """
        from executorch.exir.backend.compile_spec_schema import CompileSpec

        specs = [CompileSpec(key, value) for key, value in self.to_pairs()]
        for spec in specs:
            spec.from_ethorch = True
        return specs

    def to_pairs(self) -> list[tuple[str, bytes]]:
        """Return the keys and values of ``to_list`` without importing ExecuTorch. Raise the same errors as ``to_list``."""
        if self.tosa_debug_mode is not None and not self.path_for_intermediates:
            raise SpecError(
                "dump_debug_info() requires a folder. Call dump_intermediate_artifacts_to(path) too, or dump_debug_info(None)."
            )
        items = {_FORMAT: self._OUTPUT_FORMAT, **self._own_items()}
        if self.path_for_intermediates is not None:
            items[_ARTIFACTS] = self.path_for_intermediates
        if self.tosa_debug_mode is not None:
            items[_DEBUG] = self.tosa_debug_mode.name
        return [(key, value.encode()) for key, value in items.items()]

    def publish(self: SpecT) -> SpecT:
        """Return a copy for the .pte, without the artifact folder and the debug mode. Raise the same errors as ``to_list``."""
        self.to_pairs()
        public: SpecT = copy.copy(self).dump_intermediate_artifacts_to(None).dump_debug_info(None)
        return public

    @classmethod
    def from_list(cls: type[SpecT], compile_specs: Iterable[CompileSpec]) -> SpecT:
        """Parse a list from ``to_list`` or from ExecuTorch's Arm backend. Raise SpecError for other lists."""
        return cls.from_pairs(
            (item.key, item.value if isinstance(item.value, str) else bytes(item.value)) for item in compile_specs
        )

    @classmethod
    def from_pairs(cls: type[SpecT], pairs: Iterable[tuple[str, bytes | str]]) -> SpecT:
        """Parse keys and values, e.g. from a .pte, without importing ExecuTorch.

        Raises:
            SpecError: A key is repeated, unknown or missing, or a value is invalid.
        """
        items: dict[str, str] = {}
        for key, value in pairs:
            if key in items:
                raise SpecError(f"the compile spec list contains {key!r} twice.")
            try:
                items[key] = value if isinstance(value, str) else value.decode()
            except UnicodeDecodeError:
                raise SpecError(f"compile spec {key!r}: expected UTF-8 text, got {value[:32]!r}.") from None
        kinds = {name: kind for name, kind in ArmCompileSpec._KINDS.items() if issubclass(kind, cls)}
        if (kind_name := items.pop(_FORMAT, None)) is None:
            raise SpecError(f"the compile spec list has no {_FORMAT!r}; it contains {', '.join(sorted(items)) or 'no keys'}.")
        if kind_name not in kinds:
            raise unknown_name(f"{_FORMAT} for {cls.__name__}", kind_name, kinds)
        path, mode = items.pop(_ARTIFACTS, None), items.pop(_DEBUG, None)
        spec = kinds[kind_name]._from_items(items)
        for key in _INCUMBENT_ONLY & items.keys():
            del items[key]
        if _PLACEMENTS in items:
            raise SpecError(
                f"{_PLACEMENTS} moves commands or weights into a .ptd file, but ethorch stores both in the .pte. Remove this key "
                "from the compile spec."
            )
        if items:
            raise unknown_name("compile spec key", min(items), (_FORMAT, _TARGET, _FLAGS, _CONFIG, _ARTIFACTS, _DEBUG))
        return spec.dump_intermediate_artifacts_to(path).dump_debug_info(mode)  # type: ignore[return-value]

    @classmethod
    def of(cls: type[SpecT], spec: ArmCompileSpec | Sequence[CompileSpec]) -> SpecT:
        """Return a spec unchanged, or parse a list from ``to_list``. Raise SpecError for other values."""
        if isinstance(spec, cls):
            return spec
        if isinstance(spec, Sequence) and not isinstance(spec, (str, bytes)):
            return cls.from_list(spec)
        raise SpecError(f"expected {cls.__name__} or the result of its to_list(), got {type(spec).__name__} {spec!r:.80}.")

    def _own_items(self) -> dict[str, str]:
        raise NotImplementedError

    @classmethod
    def _from_items(cls, items: dict[str, str]) -> ArmCompileSpec:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]


class EthosUCompileSpec(ArmCompileSpec):
    """A compile spec for an Ethos-U NPU.

    Args:
        target: One of ``ethorch.targets.TARGETS``, e.g. ``"ethos-u55-128"``.
        system_config, memory_mode: ``System_Config`` and ``Memory_Mode`` sections of the ini file. Default: those of the target.
        extra_flags: Additional Vela command-line flags, as a list or one string.
        config_ini: Vela's ``Arm/vela.ini``, or the path of another ini file.
        arena: Size of the NPU's arena. ``"fast"`` does not limit the size. ``"free"`` selects the smallest size with at most
            0.5 % more cycles (``ethorch.vela.arena``). An integer is a limit in bytes, which is exceeded only if Vela's
            smallest arena is larger. Vela's flags ``--arena-cache-size`` and ``--optimise`` take precedence.
        resident_bytes: Maximum number of bytes that the pass ``resident-weights`` adds to the arena for copies of
            weights read repeatedly.
        config_text: Contents of an ini file that replaces ``config_ini``, e.g. from ``ethorch.targets.boards.memory_roles``. The
            spec and each delegate in the ``.pte`` contain this text (about 600 bytes).
        verify: Whether to simulate each delegate on random inputs, compare the results with the TOSA reference, and insert copies
            if they differ (``ethorch.vela.repair``).
        stream: Command stream: ``optimized`` (all passes of ``ethorch.npu.passes``), ``vela`` (unchanged), or comma-separated
            names of passes.

    Raises:
        SpecError: A name, flag or value is invalid.
    """

    _OUTPUT_FORMAT = "vela"

    def __init__(
        self,
        target: str,
        system_config: str | None = None,
        memory_mode: str | None = None,
        extra_flags: str | Sequence[str] | None = None,
        config_ini: str | None = DEFAULT_INI,
        *,
        arena: str | int = FAST,
        resident_bytes: int = RESIDENT_BYTES,
        config_text: str | None = None,
        verify: bool = True,
        stream: str = OPTIMIZED,
    ):
        super().__init__()
        if isinstance(resident_bytes, bool) or not isinstance(resident_bytes, int) or not 0 <= resident_bytes < 1 << 40:
            raise SpecError(f"resident_bytes is {resident_bytes!r}; expected a number of bytes.")
        self.resident_bytes = resident_bytes
        self.config_text = config_text
        self.verify = verify
        self.stream = stream
        self.stream_passes: frozenset[str] = parse_passes(stream)
        self.arena: str | int = _arena(arena)
        self.target: Target = lookup(target)
        self.flags: dict[str, Any] = parse_flags(extra_flags)
        accelerator = self.flags.pop("--accelerator-config", self.target.name)
        if lookup(accelerator) != self.target:
            raise SpecError(
                f"extra_flags: --accelerator-config {shorten(accelerator)} contradicts target {self.target.name!r}. "
                "Change target and remove the flag."
            )
        self.flags.pop("--output-format", None)
        files = (*self.flags.pop("--config", ()), config_ini or DEFAULT_INI)
        if config_text is not None and files != (DEFAULT_INI,):
            raise SpecError(f"config_text and the ini file {files[0]!r} define the same configuration. Use one of them.")
        self.config_files: tuple[str, ...] = files if config_text is None else ()
        self.system_config: str = self._choose("system_config", system_config, self.target.default_system_config)
        self.memory_mode: str = self._choose("memory_mode", memory_mode, self.target.default_memory_mode)
        self.config_files = tuple(dict.fromkeys(self.config_files))
        memory = self.memory_system  # raises SpecError for unknown sections before lowering
        largest = 1 << self.target.address_bits
        for what, size in (
            ("--arena-cache-size", self.flags.get("--arena-cache-size")),
            (f"arena_cache_size of memory mode {self.memory_mode!r}", memory.arena_cache_bytes),
        ):
            if size is not None and size > largest:
                raise SpecError(
                    f"{what} is {size} bytes; expected at most {largest}, the size of the address space of {self.target.name}."
                )
        family = self.target.family.upper()
        if self.system_config.startswith("Ethos_U") and not self.system_config.startswith(f"Ethos_{family}"):
            warnings.warn(
                f"system config {shorten(self.system_config)} describes an NPU other than {self.target.name}. Clock, bandwidths "
                f"and cycle estimates are those of the other NPU. The default is {self.target.default_system_config!r}.",
                UserWarning,
                stacklevel=2,
            )

    def _choose(self, argument: str, value: str | None, default: str) -> str:
        flag = "--" + argument.replace("_", "-")
        from_flag = self.flags.pop(flag, None)
        if value is not None and from_flag is not None and value != from_flag:
            raise SpecError(
                f"extra_flags: {flag} {shorten(from_flag)} contradicts {argument}={shorten(value)}. Remove one of them."
            )
        return value or from_flag or default

    @property
    def tosa_spec(self) -> TosaSpecification:
        """The TOSA specification that Vela supports for the target."""
        return TosaSpecification("1.0", ("INT",), FAMILIES[self.target.family].tosa_extensions)

    @property
    def vela_config(self) -> VelaConfig:
        """The parsed ini files or ini text."""
        if self.config_text is not None:
            return vela_ini.parse(self.config_text, "the generated configuration")
        return vela_ini.load(self.config_files)

    @property
    def memory_system(self) -> MemorySystem:
        """The clock and memories defined by ``system_config`` and ``memory_mode``."""
        return self.vela_config.memory_system(self.system_config, self.memory_mode)

    @property
    def bytes_per_cycle(self) -> dict[str, float]:
        """The peak bandwidth of each memory in bytes per NPU cycle.

        Source: Vela 5.2 architecture_features.py, memory_bandwidths_per_cycle.
        """
        rates = {name: self.target.port_bytes * s for name, s in self.vela_config.port_scales(self.system_config).items()}
        memory = self.memory_system
        if memory.constants_in_sram:
            rates[memory.const_area] = rates["Sram"]
        return rates

    @property
    def arena_cache_bytes(self) -> int:
        """The arena limit for Vela in bytes: ``--arena-cache-size``, the memory mode's size, or the NPU's address range."""
        for size in (self.flags.get("--arena-cache-size"), self.memory_system.arena_cache_bytes):
            if size is not None:
                return size
        return 1 << self.target.address_bits

    @property
    def compiler_flags(self) -> list[str]:
        """The flags of the equivalent Vela command line. With ``config_text``, the ini file is ``<system_config>.ini``."""
        flags = []
        files = self.config_files if self.config_text is None else (f"{self.system_config}.ini",)
        for name, value in self.flags.items():
            flags.append(name if value is True else f"{name}={value}")
        return [
            *flags,
            f"--accelerator-config={self.target.name}",
            *(f"--config={name}" for name in files),
            "--output-format=raw",
            f"--system-config={self.system_config}",
            f"--memory-mode={self.memory_mode}",
        ]

    def publish(self) -> EthosUCompileSpec:
        """Return a copy for the .pte.

        The copy omits ``verify``, ``resident_bytes``, the artifact folder, the debug mode, folders of ini files, and flags
        without effect.
        """
        public = super().publish()
        shipped = vela_ini.list_shipped_configs()
        public.config_files = tuple(name if name in shipped else os.path.basename(name) for name in public.config_files)
        public.flags = {name: value for name, value in public.flags.items() if name not in public.flags_without_effect}
        public.verify, public.resident_bytes = True, RESIDENT_BYTES
        return public

    @property
    def flags_without_effect(self) -> dict[str, str]:
        """The accepted flags without effect, each with the reason."""
        return {name: FLAGS[name].effect for name in self.flags if FLAGS[name].effect != "used"}

    def _own_items(self) -> dict[str, str]:
        items = {_TARGET: self.target.name, _FLAGS: shlex.join(self.compiler_flags)}
        if self.config_text is not None:
            items[_CONFIG] = self.config_text
        if self.resident_bytes != RESIDENT_BYTES:
            items[_RESIDENT] = str(self.resident_bytes)
        if not self.verify:
            items[_VERIFY] = "false"
        if self.stream != OPTIMIZED:
            items[_STREAM] = self.stream
        return items if self.arena == FAST else {**items, _ARENA: str(self.arena)}

    @classmethod
    def _from_items(cls, items: dict[str, str]) -> EthosUCompileSpec:
        flags = parse_flags(items.pop(_FLAGS, ""))
        name = items.pop(_TARGET, None) or flags.get("--accelerator-config")
        if name is None:
            raise SpecError(f"the compile spec list has neither {_TARGET!r} nor --accelerator-config in {_FLAGS!r}.")
        text = items.pop(_CONFIG, None)
        *files, ini = flags.pop("--config", [DEFAULT_INI])
        if text is not None:  # the file in the flags may not exist
            files, ini = [], DEFAULT_INI
        words = [name_ if value is True else f"{name_}={value}" for name_, value in flags.items()]
        arena = items.pop(_ARENA, FAST)
        size = int(arena) if arena.isdecimal() else arena
        resident = items.pop(_RESIDENT, str(RESIDENT_BYTES))
        return cls(
            name,
            extra_flags=[*words, *(f"--config={file}" for file in files)],
            config_ini=ini,
            arena=size,
            resident_bytes=int(resident) if resident.isdecimal() else -1,
            config_text=text,
            verify=items.pop(_VERIFY, "true") != "false",
            stream=items.pop(_STREAM, OPTIMIZED),
        )

    def __repr__(self) -> str:
        return f"EthosUCompileSpec({self.target.name!r}, flags={self.compiler_flags!r})"


def parse_passes(stream: str) -> frozenset[str]:
    """Return the stream passes that the setting ``stream`` selects. Raise SpecError if a name is unknown."""
    if stream in (OPTIMIZED, VELA):
        return frozenset(PASSES) if stream == OPTIMIZED else frozenset()
    names = frozenset(name.strip() for name in stream.split(",")) if isinstance(stream, str) else frozenset({stream})
    for name in names:
        if name not in PASSES:
            raise unknown_name("command stream", str(name), (OPTIMIZED, VELA, *PASSES))
    return names


def _arena(arena: str | int) -> str | int:
    if isinstance(arena, bool) or not (arena in (FAST, FREE) or (isinstance(arena, int) and 0 < arena < 1 << 40)):
        raise SpecError(f"arena is {arena!r}; expected {FAST!r}, {FREE!r} or a number of bytes.")
    return arena
