"""``TARGETS``: every Ethos-U configuration as facts. A target that differs is a row that differs, never an ``if``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ethorch.errors import unknown_name
from ethorch.limits import FORMS, LIMITS, Limits


@dataclass(frozen=True)
class Target:
    """One NPU configuration.

    Attributes:
        name: as Vela's ``--accelerator-config`` spells it, e.g. ``ethos-u55-128``.
        family: ``u55``, ``u65`` or ``u85``.
        macs: 8-bit multiply-accumulates per cycle, all cores together.
        cores: MAC engines; Vela is told ``macs / cores`` for each (its accelerator_configs table).
        vela_arch: the architecture name that Vela's in-process compiler takes.
        default_system_config, default_memory_mode: sections of Vela's vela.ini that a user gets who names none; the
            same as ExecuTorch's own EthosUCompileSpec gives (executorch 1.4.1, backends/arm/ethosu/compile_spec.py).
        address_bits: width of an address on the NPU's memory ports (Vela's axi_port_address_width).
        limits: TOSA operator name -> what this NPU can run of it.
        forms: which of several ways to say the same in TOSA the NPU runs fastest, e.g. ``mean`` -> ``AVG_POOL2D``.
    """

    name: str
    family: str
    macs: int
    cores: int
    vela_arch: str
    default_system_config: str
    default_memory_mode: str
    address_bits: int
    limits: Mapping[str, Limits] = field(default_factory=dict, compare=False, repr=False)
    forms: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def floats(self) -> tuple[str, ...]:
        """The float dtypes it computes in: none."""
        return ()

    @property
    def integers(self) -> bool:
        """Does it compute with quantized tensors?"""
        return True

    def __str__(self) -> str:
        return self.name


# family: Vela's architecture, default system config, default memory mode, address bits
_FAMILIES = {
    "u55": ("EthosU55", "Ethos_U55_High_End_Embedded", "Shared_Sram", 32),
    "u65": ("EthosU65", "Ethos_U65_High_End", "Dedicated_Sram_384KB", 40),
    "u85": ("EthosU85", "Ethos_U85_SYS_DRAM_Mid", "Sram_Only", 40),
}

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

TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        name: Target(name, family, macs, cores, *_FAMILIES[family], LIMITS[family], FORMS[family])
        for name, family, macs, cores in _CONFIGURATIONS
    }
)


def lookup(name: str) -> Target:
    """The target called ``name``, in any case; SpecError with near misses and the whole list for anything else."""
    found = TARGETS.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        raise unknown_name("target", str(name), TARGETS)
    return found
