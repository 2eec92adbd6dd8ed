"""System configurations and memory modes from Vela's ini files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from configparser import ConfigParser
from configparser import Error as IniError
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from ethorch.support.errors import SpecError, unknown_name
from ethorch.support.wording import shorten

_SYSTEM, _MEMORY = "System_Config.", "Memory_Mode."

# Allowed memories per area (Vela 5.2, ArchitectureFeatures._get_vela_config, "check configuration").
_ALLOWED = {
    "const_mem_area": ("Dram", "OnChipFlash", "OffChipFlash"),
    "arena_mem_area": ("Sram", "Dram"),
    "cache_mem_area": ("Sram",),
}
_MEMORIES = ("Sram", "Dram", "OnChipFlash", "OffChipFlash")
# Keys of a memory in a system configuration (parse_vela_system_config_section in Vela's regor.cpp).
_PARAMETERS = ("clock_scale", "ports_used", "burst_length", "read_latency", "write_latency", "max_reads", "max_writes")


@dataclass(frozen=True)
class MemorySystem:
    """A system configuration combined with a memory mode.

    Attributes:
        core_clock_hz: NPU clock. Vela's estimates are in cycles of this clock.
        const_area, arena_area, cache_area: Memories for constants, feature maps and staged data.
        arena_cache_bytes: Size of the staging memory or, without staging, maximum arena size. None if the file does not define it.
        constants_in_sram: Whether constants and feature maps share the SRAM (Sram_Only).
    """

    core_clock_hz: float
    const_area: str
    arena_area: str
    cache_area: str
    arena_cache_bytes: int | None
    constants_in_sram: bool = False

    @property
    def staged(self) -> bool:
        """True if region 2 is a separate staging memory (Dedicated_Sram)."""
        return self.cache_area != self.arena_area


@dataclass(frozen=True)
class VelaConfig:
    """The contents of one or more ini files, combined as in Vela.

    Attributes:
        names: File names passed by the user.
        text: Concatenated text of the files.
        sections: Values, keyed by section and by key.
    """

    names: tuple[str, ...]
    text: str
    sections: Mapping[str, Mapping[str, str]]

    @property
    def system_configs(self) -> list[str]:
        """The names of the system configurations (``--system-config``)."""
        return sorted(name.removeprefix(_SYSTEM) for name in self.sections if name.startswith(_SYSTEM))

    @property
    def memory_modes(self) -> list[str]:
        """The names of the memory modes (``--memory-mode``)."""
        return sorted(name.removeprefix(_MEMORY) for name in self.sections if name.startswith(_MEMORY))

    def memory_system(self, system_config: str, memory_mode: str) -> MemorySystem:
        """Combine a system configuration and a memory mode. Raise SpecError if either is unknown or invalid."""
        where = f"in {', '.join(self.names)}"
        if _SYSTEM + system_config not in self.sections:
            raise unknown_name(f"system config {where}:", system_config, self.system_configs)
        if _MEMORY + memory_mode not in self.sections:
            raise unknown_name(f"memory mode {where}:", memory_mode, self.memory_modes)
        ports = {}
        for port in ("axi0_port", "axi1_port"):
            memory = self._get(_SYSTEM + system_config, port, "")
            if memory not in _MEMORIES:
                raise SpecError(
                    f"system config {system_config!r} {where}: expected {port} to be one of {', '.join(_MEMORIES)}, got {memory!r}."
                )
            ports[port.removesuffix("_port")] = memory
        chosen = {}
        for area in _ALLOWED:
            port = self._get(_MEMORY + memory_mode, area, "").lower()
            if port not in ports:
                raise SpecError(f"memory mode {memory_mode!r} {where}: expected {area} to be Axi0 or Axi1, got {port!r}.")
            chosen[area] = ports[port]
        constants_in_sram = set(chosen.values()) == {"Sram"}
        if constants_in_sram:
            chosen["const_mem_area"] = "OnChipFlash"  # Vela's name for the SRAM that contains constants in Sram_Only
        for area, memory in chosen.items():
            if memory not in _ALLOWED[area]:
                raise SpecError(
                    f"memory mode {memory_mode!r} with system config {system_config!r} {where}: {area} is {memory}, "
                    f"but Vela requires {' or '.join(_ALLOWED[area])}. Use another memory mode "
                    f"({', '.join(self.memory_modes)}), or another system config."
                )
        size = self._get(_MEMORY + memory_mode, "arena_cache_size", "")
        clock_hz = self._number(_SYSTEM + system_config, "core_clock", "")
        cache_bytes = int(self._number(_MEMORY + memory_mode, "arena_cache_size", "", int)) if size else None
        if not clock_hz > 0 or (cache_bytes is not None and cache_bytes < 0):
            raise SpecError(
                f"system config {system_config!r} with memory mode {memory_mode!r} {where}: expected a positive "
                f"core_clock and an arena_cache_size of at least 0, got {clock_hz} and {size or None}."
            )
        areas = (chosen["const_mem_area"], chosen["arena_mem_area"], chosen["cache_mem_area"])
        return MemorySystem(clock_hz, *areas, cache_bytes, constants_in_sram)

    def port_scales(self, system_config: str) -> dict[str, float]:
        """Return the bandwidth of each memory in port widths per NPU cycle: clock scale times number of ports.

        Raises:
            SpecError: A value is not a number.
        """
        section, scales = _SYSTEM + system_config, {}
        for memory in dict.fromkeys(self._get(section, port, "") for port in ("axi0_port", "axi1_port")):
            keys = (f"{memory.lower()}_clock_scale", f"{memory.lower()}_ports_used")
            scale, ports = (self._number(section, key, "1") for key in keys)
            scales[memory] = scale * ports
        return scales

    def read_latencies(self, system_config: str) -> dict[str, float]:
        """Return the read latency of each memory in NPU cycles. Raise SpecError if a value is not a number."""
        section, latencies = _SYSTEM + system_config, {}
        for memory in dict.fromkeys(self._get(section, port, "") for port in ("axi0_port", "axi1_port")):
            latencies[memory] = self._number(section, f"{memory.lower()}_read_latency", "0")
        return latencies

    def memory_parameters(self, system_config: str) -> dict[str, dict[str, float]]:
        """Return the parameters of each memory, e.g. ``{"Sram": {"clock_scale": 1.0, "burst_length": 32.0}}``.

        Raises:
            SpecError: A value is not a number.
        """
        section, parameters = _SYSTEM + system_config, {}
        for memory in dict.fromkeys(self._get(section, port, "") for port in ("axi0_port", "axi1_port")):
            keys = {name: f"{memory.lower()}_{name}" for name in _PARAMETERS}
            parameters[memory] = {name: self._number(section, key, "") for name, key in keys.items() if self._get(section, key, "")}
        return parameters

    def _number(self, section: str, key: str, default: str, convert: Callable[[str], float] = float) -> float:
        value = self._get(section, key, default)
        try:
            return convert(value)
        except ValueError:
            kind = section.replace("_", " ").partition(".")[0].lower()
            names = ", ".join(self.names)
            raise SpecError(
                f"{kind} {section.partition('.')[2]!r} in {names}: expected a number for {key}, got {value!r}."
            ) from None

    def _get(self, section: str, key: str, default: str) -> str:
        seen: list[str] = []
        while section not in seen:
            values = self.sections.get(section)
            if values is None and not seen:
                kind, _, name = section.partition(".")
                names = [other.removeprefix(f"{kind}.") for other in self.sections if other.startswith(f"{kind}.")]
                raise unknown_name(kind.replace("_", " ").lower(), name, names)
            if values is None:
                raise SpecError(f"section {seen[-1]!r} in {', '.join(self.names)} inherits from the unknown section {section!r}.")
            if key in values:
                return values[key]
            if "inherit" not in values:
                return default
            seen.append(section)
            section = values["inherit"]
        raise SpecError(f"sections in {', '.join(self.names)} inherit in a cycle: {' -> '.join([*seen, section])}.")


def list_shipped_configs() -> list[str]:
    """List the ini files shipped with the installed Vela, as values of ``--config``, e.g. ``["Arm/vela.ini"]``."""
    root = find_shipped_root()
    return sorted(path.relative_to(root).as_posix() for path in root.glob("*/*.ini"))


def load(names: Sequence[str]) -> VelaConfig:
    """Read one or more ini files. Raise SpecError if a file is missing or invalid.

    As in Vela, later files override values with the same section and key in earlier files.
    """
    paths = [_find(name) for name in names]
    return _load(tuple(names), tuple((str(path), path.stat().st_mtime_ns) for path in paths))


@lru_cache(maxsize=16)
def _load(names: tuple[str, ...], files: tuple[tuple[str, int], ...]) -> VelaConfig:
    parser = ConfigParser()
    text = ""
    for name, (path, _) in zip(names, files, strict=True):
        try:
            part = Path(path).read_text(encoding="utf-8")
            parser.read_string(part, source=name)
        except (OSError, UnicodeDecodeError, IniError) as error:
            raise SpecError(f"config_ini {shorten(name, 300)} ({path}) cannot be read: {error}") from None
        text += part + ("" if part.endswith("\n") else "\n")
    try:
        sections = {section: dict(parser[section]) for section in parser.sections()}
    except IniError as error:
        raise SpecError(f"config_ini {', '.join(names)} cannot be read: {error}") from None
    return VelaConfig(names, text, sections)


@lru_cache(maxsize=64)
def parse(text: str, name: str) -> VelaConfig:
    """Parse an ini file's text. Raise SpecError if it is malformed. ``name`` is the file name in error messages."""
    parser = ConfigParser()
    try:
        parser.read_string(text, source=name)
        sections = {section: dict(parser[section]) for section in parser.sections()}
    except IniError as error:
        raise SpecError(f"{name} cannot be read: {error}") from None
    return VelaConfig((name,), text, sections)


def _find(name: str) -> Path:
    path = Path(os.path.expanduser(name))
    if path.suffix != ".ini":
        raise SpecError(f"config_ini {shorten(name, 300)} does not end in .ini, which Vela requires.")
    parts = Path(os.path.normpath(name)).parts
    candidates = [path]
    if len(parts) == 2 and not path.is_absolute() and not name.startswith("."):
        candidates.insert(0, find_shipped_root() / path)
    for candidate in candidates:
        if os.path.isfile(candidate):  # returns False if the name is too long
            return candidate
    places = " and ".join(shorten(str(candidate.absolute()), 300) for candidate in candidates)
    raise SpecError(
        f"config_ini {shorten(name, 300)} was not found. Searched {places}. Use the path of your own file, or one of Vela's: "
        f"{', '.join(list_shipped_configs())}."
    )


@lru_cache(maxsize=1)
def find_shipped_root() -> Path:
    """Return the folder with Vela's configuration files. Raise SpecError if Vela is not installed."""
    spec = find_spec("ethosu")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (root := Path(folder) / "config_files").is_dir():
            return root
    raise SpecError("Vela is not installed. Run pip install 'ethos-u-vela>=5.1'.")
