"""Rates of the memories in a compile spec."""

from __future__ import annotations

from ethorch.npu.cycles import Regions, read_regions
from ethorch.targets.compile_spec import EthosUCompileSpec


def read_memory_rates(spec: EthosUCompileSpec) -> Regions:
    """Return the MemoryRate of each NPU region, based on the memory that contains the region."""
    memory, parameters = spec.memory_system, spec.vela_config.memory_parameters(spec.system_config)
    if memory.constants_in_sram:
        parameters[memory.const_area] = parameters["Sram"]
    return read_regions(spec.target.port_bytes, parameters, memory.const_area, memory.arena_area, memory.cache_area)
