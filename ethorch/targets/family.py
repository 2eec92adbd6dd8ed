"""Family: what all NPUs of one generation share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ethorch.targets.tuning import Tuning
from ethorch.tosa.limits import Limits


@dataclass(frozen=True)
class Family:
    """One generation of NPUs.

    Attributes:
        name: ``u55``, ``u65`` or ``u85``, as in the names of its configurations.
        vela_arch: the architecture name that Vela's in-process compiler takes.
        default_system_config, default_memory_mode: sections of Vela's vela.ini that a user gets who names none; the
            same as ExecuTorch's own EthosUCompileSpec gives (executorch 1.4.1, backends/arm/ethosu/compile_spec.py).
        address_bits: width of an address on the NPU's memory ports (Vela's axi_port_address_width).
        port_bytes: what one of those ports moves in a cycle of its memory (Vela's axi_port_bytes_per_cycle).
        limits: TOSA operator name -> what the NPU can run of it. Source: Vela 5.2; each edge and the step beyond is compiled by
            tests/targets/test_limits.py.
        tuning: which of several ways to say the same in TOSA the NPU runs fastest.
        tosa_extensions: TOSA extensions that Vela compiles for it, as ExecuTorch's own EthosUCompileSpec names them.
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
