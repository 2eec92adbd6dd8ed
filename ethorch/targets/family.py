"""NPU families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ethorch.targets.tuning import Tuning
from ethorch.tosa.limits import Limits


@dataclass(frozen=True)
class Family:
    """A generation of NPUs.

    Attributes:
        vela_arch: Vela's name for the architecture.
        tosa_extensions: Supported TOSA extensions, as in ExecuTorch 1.4.1 (backends/arm/ethosu/compile_spec.py).
        default_system_config, default_memory_mode: Default sections of Vela's vela.ini, also as in ExecuTorch 1.4.1.
        address_bits: Address width of the memory ports (Vela's axi_port_address_width).
        port_bytes: Bytes that a port transfers per memory cycle (Vela's axi_port_bytes_per_cycle).
        limits: Limits in Vela 5.2, keyed by TOSA operator.
    """

    name: str
    vela_arch: str
    default_system_config: str
    default_memory_mode: str
    address_bits: int
    port_bytes: int
    limits: Mapping[str, Limits]
    tuning: Tuning
    tosa_extensions: tuple[str, ...]
