"""All Ethos-U configurations (``TARGETS``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ethorch.support.errors import unknown_name
from ethorch.targets.family import Family
from ethorch.targets.tuning import UNTUNED, Tuning
from ethorch.targets.u55 import U55, U65
from ethorch.targets.u85 import U85
from ethorch.tosa.limits import Limits

FAMILIES: Mapping[str, Family] = MappingProxyType({family.name: family for family in (U55, U65, U85)})
#: Family -> TOSA operator -> limits; family -> tuning.
LIMITS: Mapping[str, Mapping[str, Limits]] = MappingProxyType({name: family.limits for name, family in FAMILIES.items()})
TUNING: Mapping[str, Tuning] = MappingProxyType({name: family.tuning for name, family in FAMILIES.items()})


@dataclass(frozen=True)
class Target:
    """An NPU configuration. Fields after ``cores`` are those of :class:`Family`.

    Attributes:
        name: Value of Vela's ``--accelerator-config``, e.g. ``ethos-u55-128``.
        family: ``u55``, ``u65`` or ``u85``.
        macs: 8-bit multiply-accumulates per cycle, summed over all cores.
        cores: Number of MAC engines. Each computes ``macs / cores`` per cycle. Source: Vela's accelerator_configs.
    """

    name: str
    family: str
    macs: int
    cores: int
    vela_arch: str
    default_system_config: str
    default_memory_mode: str
    address_bits: int
    port_bytes: int
    limits: Mapping[str, Limits] = field(default_factory=dict, compare=False, repr=False)
    tuning: Tuning = field(default=UNTUNED, compare=False, repr=False)

    @property
    def floats(self) -> tuple[str, ...]:
        """The supported float dtypes. Always empty."""
        return ()

    @property
    def integers(self) -> bool:
        """True if the target supports quantized tensors. Always True."""
        return True

    def __str__(self) -> str:
        return self.name


# name, family, MACs per cycle, cores. Source: Vela 5.2 architecture_features.py, accelerator_configs.
_CONFIGURATIONS = (
    ("ethos-u55-32", "u55", 32, 1),
    ("ethos-u55-64", "u55", 64, 1),
    ("ethos-u55-128", "u55", 128, 1),
    ("ethos-u55-256", "u55", 256, 1),
    ("ethos-u65-256", "u65", 256, 1),
    ("ethos-u65-512", "u65", 512, 2),
    ("ethos-u85-128", "u85", 128, 1),
    ("ethos-u85-256", "u85", 256, 1),
    ("ethos-u85-512", "u85", 512, 1),
    ("ethos-u85-1024", "u85", 1024, 1),
    ("ethos-u85-2048", "u85", 2048, 1),
)
#: NPUs that have 16 KB of SHRAM. Source: Vela 5.2 ethos_u55.cpp, s_EthosU55Configs.
_SMALL_SHRAM = ("ethos-u55-32", "ethos-u55-64")


def _configuration(name: str, family: Family, macs: int, cores: int) -> Target:
    return Target(
        name,
        family.name,
        macs,
        cores,
        family.vela_arch,
        family.default_system_config,
        family.default_memory_mode,
        family.address_bits,
        family.port_bytes,
        family.limits,
        replace(family.tuning, vela_small_shram=True) if name in _SMALL_SHRAM else family.tuning,
    )


TARGETS: Mapping[str, Target] = MappingProxyType(
    {name: _configuration(name, FAMILIES[family], macs, cores) for name, family, macs, cores in _CONFIGURATIONS}
)


def lookup(name: str) -> Target:
    """Return a target by name, ignoring case. The prefix ``ethos-`` is optional. Raise SpecError if the name is unknown."""
    lower_name = name.lower() if isinstance(name, str) else ""
    target = TARGETS.get(lower_name) or TARGETS.get(f"ethos-{lower_name}")
    if target is None:
        raise unknown_name("target", str(name), TARGETS)
    return target
