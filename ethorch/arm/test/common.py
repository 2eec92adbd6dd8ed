"""The names of ``executorch.backends.arm.test.common``: compile specs for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ethorch.targets.compile_spec import DEFAULT_INI, EthosUCompileSpec
from ethorch.targets.tosa_spec import TosaCompileSpec
from ethorch.targets.tosa_specification import TosaSpecification

__all__ = ["get_tosa_compile_spec", "get_u55_compile_spec", "get_u65_compile_spec", "get_u85_compile_spec"]


def get_tosa_compile_spec(
    tosa_spec: str | TosaSpecification, custom_path: str | None = None, tosa_debug_mode: Any = None
) -> TosaCompileSpec:
    """Return a compile spec for TOSA, e.g. of ``"TOSA-1.0+INT"``.

    Args:
        custom_path: A folder for TOSA graphs.
        tosa_debug_mode: Which debug information goes there.
    """
    return TosaCompileSpec(tosa_spec).dump_intermediate_artifacts_to(custom_path).dump_debug_info(tosa_debug_mode)


def _spec(
    name: str,
    system_config: str | None,
    memory_mode: str | None,
    extra_flags: str | Sequence[str] | None,
    custom_path: str | None,
    config: str | None,
    tosa_debug_mode: Any,
) -> EthosUCompileSpec:
    spec = EthosUCompileSpec(name, system_config, memory_mode, extra_flags, config or DEFAULT_INI)
    return spec.dump_intermediate_artifacts_to(custom_path).dump_debug_info(tosa_debug_mode)


def get_u55_compile_spec(
    macs: int = 128,
    system_config: str | None = None,
    memory_mode: str | None = None,
    extra_flags: str | Sequence[str] | None = None,
    custom_path: str | None = None,
    config: str | None = None,
    tosa_debug_mode: Any = None,
) -> EthosUCompileSpec:
    """Return a compile spec for an Ethos-U55 of this many MACs; the other arguments are those of ``EthosUCompileSpec``."""
    return _spec(f"ethos-u55-{macs}", system_config, memory_mode, extra_flags, custom_path, config, tosa_debug_mode)


def get_u65_compile_spec(
    macs: int = 256,
    system_config: str | None = None,
    memory_mode: str | None = None,
    extra_flags: str | Sequence[str] | None = None,
    custom_path: str | None = None,
    config: str | None = None,
    tosa_debug_mode: Any = None,
) -> EthosUCompileSpec:
    """Return a compile spec for an Ethos-U65 of this many MACs; the other arguments are those of ``EthosUCompileSpec``."""
    return _spec(f"ethos-u65-{macs}", system_config, memory_mode, extra_flags, custom_path, config, tosa_debug_mode)


def get_u85_compile_spec(
    macs: int = 128,
    system_config: str | None = None,
    memory_mode: str | None = None,
    extra_flags: str | Sequence[str] | None = None,
    custom_path: str | None = None,
    config: str | None = None,
    tosa_debug_mode: Any = None,
) -> EthosUCompileSpec:
    """Return a compile spec for an Ethos-U85 of this many MACs; the other arguments are those of ``EthosUCompileSpec``."""
    return _spec(f"ethos-u85-{macs}", system_config, memory_mode, extra_flags, custom_path, config, tosa_debug_mode)
