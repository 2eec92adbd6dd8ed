"""What the user chose: target, memories, compiler flags; to and from ExecuTorch's CompileSpec list."""

from __future__ import annotations

import copy
import enum
import os
import shlex
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ethorch.support.errors import SpecError, unknown_name
from ethorch.support.wording import shown
from ethorch.targets import vela_ini
from ethorch.targets.npus import FAMILIES, Target, lookup
from ethorch.targets.tosa_specification import TosaSpecification
from ethorch.targets.vela_flags import FLAGS, parse_flags
from ethorch.targets.vela_ini import MemorySystem, VelaConfig

if TYPE_CHECKING:
    from executorch.exir.backend.compile_spec_schema import CompileSpec


DEFAULT_INI = "Arm/vela.ini"

# Keys of the list, as ExecuTorch's own Arm backend writes them, so that a .pte says the same thing in the same place.
_TARGET, _FLAGS, _FORMAT = "target", "compile_flags", "output_format"
_CONFIG = "vela_config"  # ours alone: an ini text, where no file has it
_ARTIFACTS, _DEBUG = "debug_artifact_path", "dump_debug_info"
_ARENA = "ethorch_arena"  # ours alone
_RESIDENT = "ethorch_resident_bytes"  # likewise
_VERIFY = "ethorch_verify"  # likewise
_PLACEMENTS = "external_block_placements"  # theirs alone: what goes to a .ptd file
# Keys that only that backend gives a meaning to: read over, never written.
_INCUMBENT_ONLY = frozenset(
    (
        "tosa_spec",
        "ouput_reorder_workaround",
        "transform_pipeline_config",
        "preserve_io_quantization",
        "tosa_sw_dev_mode",
    )
)

#: How large the NPU's arena may be: as large as Vela likes, or what it takes without more cycles.
FAST, FREE = "fast", "free"

SpecT = TypeVar("SpecT", bound="ArmCompileSpec")


class ArmCompileSpec:
    """What every kind of compile spec shares: where to dump, what to dump, and the list form.

    A subclass sets ``_OUTPUT_FORMAT``, the word by which a list tells which kind it is, and writes and reads its own
    keys in ``_own_items`` and ``_from_items``.
    """

    class DebugMode(enum.Enum):
        """Which debug artifact is written beside the intermediate ones."""

        JSON = 1
        TOSA = 2

    tosa_spec: Any  # a TosaSpecification: an attribute of one subclass, a property of the other
    _OUTPUT_FORMAT: ClassVar[str] = ""
    _KINDS: ClassVar[dict[str, type[ArmCompileSpec]]] = {}

    def __init__(self) -> None:
        self.path_for_intermediates: str | None = None
        self.tosa_debug_mode: ArmCompileSpec.DebugMode | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        ArmCompileSpec._KINDS[cls._OUTPUT_FORMAT] = cls

    def dump_intermediate_artifacts_to(self: SpecT, output_path: str | os.PathLike[str] | None) -> SpecT:
        """Write each delegate's .tosa, its text, and its text after each rewrite into this folder; None stops it. Returns self."""
        self.path_for_intermediates = None if output_path is None else os.fspath(output_path)
        return self

    def dump_debug_info(self: SpecT, debug_mode: ArmCompileSpec.DebugMode | str | None) -> SpecT:
        """Write debug information (``DebugMode.JSON`` or ``DebugMode.TOSA``) into that folder. Returns self."""
        if debug_mode is None:
            self.tosa_debug_mode = None
            return self
        name = str(getattr(debug_mode, "name", debug_mode))  # ExecuTorch's own enum has the same names
        modes = ArmCompileSpec.DebugMode.__members__
        if name not in modes:
            raise unknown_name("debug mode", name, modes)
        self.tosa_debug_mode = modes[name]
        return self

    def set_pass_pipeline_config(self, config: Any) -> None:
        """Kept for programs that call it: ethorch has no pass pipeline, so there is nothing to configure."""
        warnings.warn(
            "set_pass_pipeline_config() has no effect: ethorch lowers in one walk and has no pass pipeline.",
            UserWarning,
            stacklevel=2,
        )

    def set_output_order_workaround(self: SpecT, output_order_workaround: bool) -> SpecT:
        """Kept for programs that call it: outputs always keep the program's order. Returns self."""
        warnings.warn(
            "set_output_order_workaround() has no effect: outputs always keep the program's order.",
            DeprecationWarning,
            stacklevel=2,
        )
        return self

    def get_output_order_workaround(self) -> bool:
        """Always False: outputs keep the program's order without one."""
        return False

    def to_list(self) -> list[CompileSpec]:
        """Return ExecuTorch's list of key and value, each with the attribute ``from_ethorch``.

        The attribute tells the list from one of ``executorch.backends.arm``, whose backends have the same names.

        Raises:
            SpecError: Debug information has no folder to go to.
        """
        from executorch.exir.backend.compile_spec_schema import CompileSpec

        specs = [CompileSpec(key, value) for key, value in self.to_pairs()]
        for spec in specs:
            spec.from_ethorch = True
        return specs

    def to_pairs(self) -> list[tuple[str, bytes]]:
        """The keys and values of ``to_list``, without ExecuTorch. SpecError as there."""
        if self.tosa_debug_mode is not None and not self.path_for_intermediates:
            raise SpecError(
                "dump_debug_info() needs a folder: call dump_intermediate_artifacts_to(path) too, or dump_debug_info(None)."
            )
        items = {_FORMAT: self._OUTPUT_FORMAT, **self._own_items()}
        if self.path_for_intermediates is not None:
            items[_ARTIFACTS] = self.path_for_intermediates
        if self.tosa_debug_mode is not None:
            items[_DEBUG] = self.tosa_debug_mode.name
        return [(key, value.encode()) for key, value in items.items()]

    def published(self: SpecT) -> SpecT:
        """What a .pte keeps of the spec: no folder of artifacts, ini files by their names alone, no flag without effect.

        What a file says must not depend on whose computer made it.

        Raises:
            SpecError: the spec asks for debug information and names no folder.
        """
        self.to_pairs()
        public: SpecT = copy.copy(self).dump_intermediate_artifacts_to(None).dump_debug_info(None)
        return public

    @classmethod
    def from_list(cls: type[SpecT], compile_specs: Iterable[CompileSpec]) -> SpecT:
        """The spec that ``to_list`` wrote, or ExecuTorch's own Arm backend did. SpecError for anything else."""
        return cls.from_pairs(
            (item.key, item.value if isinstance(item.value, str) else bytes(item.value)) for item in compile_specs
        )

    @classmethod
    def from_pairs(cls: type[SpecT], pairs: Iterable[tuple[str, bytes | str]]) -> SpecT:
        """As ``from_list``, of the keys and values alone: a .pte holds them, and no ExecuTorch is needed to read it.

        Raises:
            SpecError: a key is there twice, unknown or missing, or a value is not what its key takes.
        """
        items: dict[str, str] = {}
        for key, value in pairs:
            if key in items:
                raise SpecError(f"compile spec list holds {key!r} twice.")
            try:
                items[key] = value if isinstance(value, str) else value.decode()
            except UnicodeDecodeError:
                raise SpecError(f"compile spec {key!r} is not text: {value[:32]!r}.") from None
        kinds = {name: kind for name, kind in ArmCompileSpec._KINDS.items() if issubclass(kind, cls)}
        if (found := items.pop(_FORMAT, None)) is None:
            raise SpecError(f"compile spec list has no {_FORMAT!r}; it holds {', '.join(sorted(items)) or 'nothing'}.")
        if found not in kinds:
            raise unknown_name(f"{_FORMAT} for {cls.__name__}", found, kinds)
        path, mode = items.pop(_ARTIFACTS, None), items.pop(_DEBUG, None)
        spec = kinds[found]._from_items(items)
        for key in _INCUMBENT_ONLY & items.keys():
            del items[key]
        if _PLACEMENTS in items:
            raise SpecError(
                f"{_PLACEMENTS} puts commands or weights into a .ptd file beside the program; ethorch keeps all in the .pte. "
                "Leave it out of the compile spec."
            )
        if items:
            raise unknown_name("compile spec key", min(items), (_FORMAT, _TARGET, _FLAGS, _CONFIG, _ARTIFACTS, _DEBUG))
        return spec.dump_intermediate_artifacts_to(path).dump_debug_info(mode)  # type: ignore[return-value]

    @classmethod
    def of(cls: type[SpecT], spec: SpecT | Sequence[CompileSpec]) -> SpecT:
        """A spec from a spec or from its list form: the quantizer and the partitioner take either."""
        if isinstance(spec, cls):
            return spec
        if isinstance(spec, Sequence) and not isinstance(spec, (str, bytes)):
            return cls.from_list(spec)
        raise SpecError(f"expected {cls.__name__} or its to_list(), found {type(spec).__name__}: {spec!r:.80}.")

    def _own_items(self) -> dict[str, str]:
        raise NotImplementedError

    @classmethod
    def _from_items(cls, items: dict[str, str]) -> ArmCompileSpec:
        """Build from ``items``, removing each key that was understood."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]


class EthosUCompileSpec(ArmCompileSpec):
    """Compile for an Ethos-U NPU.

    Args:
        target: one of ``ethorch.targets.TARGETS``, e.g. ``"ethos-u55-128"``.
        system_config: a ``System_Config`` section of the ini; None takes the target's default.
        memory_mode: a ``Memory_Mode`` section of the ini; None takes the target's default.
        extra_flags: further flags of Vela's command line, as a list or one string.
        config_ini: Vela's own ``Arm/vela.ini``, or the path of an ini file of yours.
        arena: the NPU's arena: ``"fast"``, as large as makes Vela's schedule fastest; ``"free"``, the smallest found that costs
            hardly more cycles (``ethorch.vela.arena``); or a limit in bytes, under which the fastest is taken. Vela's own flags
            for it, ``--arena-cache-size`` and ``--optimise``, go before.
        resident_bytes: bytes that the scratch region may grow by for weights that are read several times in a call: they are copied
            there once, at its beginning (``ethorch.vela.resident``).
        config_text: the content of an ini file instead, as ``ethorch.targets.boards.memory_roles`` makes it of a board. It becomes
            a part of the spec, and of each delegate in the ``.pte``: some 600 bytes, by which any computer knows clock and
            memories.
        verify: Run each compiled delegate in the simulator on random inputs, compare it with its TOSA graph, and insert copies if
            it differs (``ethorch.vela.repair``).

    Raises:
        SpecError: a name or flag that is unknown, with the list of known ones.
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
        resident_bytes: int = 0,
        config_text: str | None = None,
        verify: bool = True,
    ):
        super().__init__()
        if isinstance(resident_bytes, bool) or not isinstance(resident_bytes, int) or not 0 <= resident_bytes < 1 << 40:
            raise SpecError(f"resident_bytes is {resident_bytes!r}; it has to be a number of bytes.")
        self.resident_bytes = resident_bytes
        self.config_text = config_text
        self.verify = verify
        self.arena: str | int = _arena(arena)
        self.target: Target = lookup(target)
        self.flags: dict[str, Any] = parse_flags(extra_flags)
        accelerator = self.flags.pop("--accelerator-config", self.target.name)
        if lookup(accelerator) != self.target:
            raise SpecError(
                f"extra_flags: --accelerator-config {shown(accelerator)} contradicts target {self.target.name!r}. "
                "Change target and leave the flag out."
            )
        self.flags.pop("--output-format", None)
        files = (*self.flags.pop("--config", ()), config_ini or DEFAULT_INI)
        if config_text is not None and files != (DEFAULT_INI,):
            raise SpecError(f"config_text and the ini file {files[0]!r} say the same in two ways: give one of them.")
        self.config_files: tuple[str, ...] = files if config_text is None else ()
        self.system_config: str = self._choose("system_config", system_config, self.target.default_system_config)
        self.memory_mode: str = self._choose("memory_mode", memory_mode, self.target.default_memory_mode)
        self.config_files = tuple(dict.fromkeys(self.config_files))
        memory = self.memory_system  # refuses unknown sections now, not in the middle of lowering
        largest = 1 << self.target.address_bits
        for what, size in (
            ("--arena-cache-size", self.flags.get("--arena-cache-size")),
            (f"arena_cache_size of memory mode {self.memory_mode!r}", memory.arena_cache_bytes),
        ):
            if size is not None and size > largest:
                raise SpecError(f"{what} is {size} bytes; {self.target.name} addresses at most {largest}.")
        family = self.target.family.upper()
        if self.system_config.startswith("Ethos_U") and not self.system_config.startswith(f"Ethos_{family}"):
            warnings.warn(
                f"system config {shown(self.system_config)} describes another NPU than {self.target.name}: Vela compiles, "
                f"but clock and bandwidths, and so cycle estimates, are those of the other. Default: "
                f"{self.target.default_system_config!r}.",
                UserWarning,
                stacklevel=2,
            )

    def _choose(self, argument: str, given: str | None, default: str) -> str:
        """The argument, else its flag among extra_flags, else the default; SpecError when argument and flag differ."""
        flag = "--" + argument.replace("_", "-")
        from_flag = self.flags.pop(flag, None)
        if given is not None and from_flag is not None and given != from_flag:
            raise SpecError(f"extra_flags: {flag} {shown(from_flag)} contradicts {argument}={shown(given)}. Leave one of them out.")
        return given or from_flag or default

    @property
    def tosa_spec(self) -> TosaSpecification:
        """The TOSA that Vela compiles for the target."""
        return TosaSpecification("1.0", ("INT",), FAMILIES[self.target.family].tosa_extensions)

    @property
    def vela_config(self) -> VelaConfig:
        """The ini files or the ini text, read."""
        if self.config_text is not None:
            return vela_ini.parse(self.config_text, "the generated configuration")
        return vela_ini.load(self.config_files)

    @property
    def memory_system(self) -> MemorySystem:
        """Clock and memories that ``system_config`` and ``memory_mode`` stand for."""
        return self.vela_config.memory_system(self.system_config, self.memory_mode)

    @property
    def bytes_per_cycle(self) -> dict[str, float]:
        """What each memory moves in a cycle of the NPU at best, by its name: its ports' width times its clock by the NPU's.

        Source: Vela 5.2 architecture_features.py, memory_bandwidths_per_cycle, and the system configuration.
        """
        found = {name: self.target.port_bytes * s for name, s in self.vela_config.port_scales(self.system_config).items()}
        memory = self.memory_system
        if memory.constants_in_sram:
            found[memory.const_area] = found["Sram"]
        return found

    @property
    def arena_cache_bytes(self) -> int:
        """Staging memory that Vela may use: the flag, else the memory mode's, else all the NPU can address."""
        for size in (self.flags.get("--arena-cache-size"), self.memory_system.arena_cache_bytes):
            if size is not None:
                return size
        return 1 << self.target.address_bits

    @property
    def compiler_flags(self) -> list[str]:
        """The same choices as a Vela command line, for ``vela`` itself and for the .pte.

        Of a ``config_text`` it names a file that would hold it.
        """
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

    def published(self) -> EthosUCompileSpec:
        """See ArmCompileSpec."""
        public = super().published()
        shipped = vela_ini.shipped_configs()
        public.config_files = tuple(name if name in shipped else os.path.basename(name) for name in public.config_files)
        public.flags = {name: value for name, value in public.flags.items() if name not in public.flags_without_effect}
        public.verify = True
        return public

    @property
    def flags_without_effect(self) -> dict[str, str]:
        """Flags that were accepted but change nothing, each with the reason."""
        return {name: FLAGS[name].effect for name in self.flags if FLAGS[name].effect != "used"}

    def _own_items(self) -> dict[str, str]:
        items = {_TARGET: self.target.name, _FLAGS: shlex.join(self.compiler_flags)}
        if self.config_text is not None:
            items[_CONFIG] = self.config_text
        if self.resident_bytes:
            items[_RESIDENT] = str(self.resident_bytes)
        if not self.verify:
            items[_VERIFY] = "false"
        return items if self.arena == FAST else {**items, _ARENA: str(self.arena)}

    @classmethod
    def _from_items(cls, items: dict[str, str]) -> EthosUCompileSpec:
        flags = parse_flags(items.pop(_FLAGS, ""))
        name = items.pop(_TARGET, None) or flags.get("--accelerator-config")
        if name is None:
            raise SpecError(f"compile spec list has neither {_TARGET!r} nor --accelerator-config in {_FLAGS!r}.")
        text = items.pop(_CONFIG, None)
        *others, ini = flags.pop("--config", [DEFAULT_INI])
        if text is not None:  # the flags name a file that need not be there
            others, ini = [], DEFAULT_INI
        words = [name_ if value is True else f"{name_}={value}" for name_, value in flags.items()]
        arena = items.pop(_ARENA, FAST)
        given = int(arena) if arena.isdecimal() else arena
        resident = items.pop(_RESIDENT, "0")
        return cls(
            name,
            extra_flags=[*words, *(f"--config={other}" for other in others)],
            config_ini=ini,
            arena=given,
            resident_bytes=int(resident) if resident.isdecimal() else -1,
            config_text=text,
            verify=items.pop(_VERIFY, "true") != "false",
        )

    def __repr__(self) -> str:
        return f"EthosUCompileSpec({self.target.name!r}, flags={self.compiler_flags!r})"


def _arena(arena: str | int) -> str | int:
    """The argument, checked."""
    if isinstance(arena, bool) or not (arena in (FAST, FREE) or (isinstance(arena, int) and 0 < arena < 1 << 40)):
        raise SpecError(f"arena is {arena!r}; it has to be {FAST!r}, {FREE!r} or a number of bytes.")
    return arena
