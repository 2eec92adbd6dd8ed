"""Bandwidths and latencies of memories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ethorch.npu.memory import INTERNAL

CONSTANTS, ARENA, STAGING = 0, 1, 2  # regions (npu-reference 1.4)


@dataclass(frozen=True)
class MemoryRate:
    """The bandwidth and latencies (in NPU cycles) of a memory in a Vela system config."""

    name: str
    bytes_per_cycle: float  # of all ports
    read_latency: int = 0
    write_latency: int = 0
    burst_bytes: int = 1  # longest burst
    ports: int = 1
    max_reads: int = 1  # outstanding transactions per port of U85
    max_writes: int = 1


#: SHRAM or LUT RAM as the target of table transfers (ArchEthosU55::ApplyConfig, ArchEthosU85::ApplyConfig).
INTERNAL_RATE = MemoryRate("internal", 1.0, max_reads=1000, max_writes=1000)

Regions = Mapping[int, MemoryRate]


def read_regions(port_bytes: int, memories: Mapping[str, Mapping[str, float]], constants: str, arena: str, staging: str) -> Regions:
    """Return the MemoryRate of each region.

    Args:
        port_bytes: Width of an AXI port.
        memories: Values of a ``System_Config`` section by memory name, then key. Missing keys default to the values in regor.cpp.
        constants, arena, staging: Names of the memories that contain these regions.
    """

    def rate(name: str) -> MemoryRate:
        keys = memories.get(name, {})
        ports = int(keys.get("ports_used", 1))
        return MemoryRate(
            name,
            port_bytes * keys.get("clock_scale", 1.0) * ports,
            int(keys.get("read_latency", 1)),
            int(keys.get("write_latency", 1)),
            int(keys.get("burst_length", 64)),
            ports,
            int(keys.get("max_reads", 1)),
            int(keys.get("max_writes", 1)),
        )

    return {CONSTANTS: rate(constants), ARENA: rate(arena), STAGING: rate(staging), INTERNAL: INTERNAL_RATE}
