"""Compile specs for tests, named as in ``executorch.backends.arm.test.common``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ethorch.targets.compile_spec import DEFAULT_INI, EthosUCompileSpec
from ethorch.targets.tosa_spec import TosaCompileSpec
from ethorch.targets.tosa_specification import TosaSpecification

__all__ = ["get_tosa_compile_spec", "get_u55_compile_spec", "get_u65_compile_spec", "get_u85_compile_spec"]


def get_tosa_compile_spec(
    tosa_spec: str | TosaSpecification, custom_path: str | None = None, tosa_debug_mode: Any = None
) -> TosaCompileSpec:
    """Return a compile spec for a TOSA specification, e.g. ``"TOSA-1.0+INT"``.

    Args:
        custom_path: Folder for TOSA graphs.
        tosa_debug_mode: Debug information to write to ``custom_path``.
    """
    return TosaCompileSpec(tosa_spec).dump_intermediate_artifacts_to(custom_path).dump_debug_info(tosa_debug_mode)


def _getter(family: str, default_macs: int) -> Callable[..., EthosUCompileSpec]:

    def get_compile_spec(
        macs: int = default_macs,
        system_config: str | None = None,
        memory_mode: str | None = None,
        extra_flags: str | Sequence[str] | None = None,
        custom_path: str | None = None,
        config: str | None = None,
        tosa_debug_mode: Any = None,
    ) -> EthosUCompileSpec:
        spec = EthosUCompileSpec(f"ethos-{family}-{macs}", system_config, memory_mode, extra_flags, config or DEFAULT_INI)
        return spec.dump_intermediate_artifacts_to(custom_path).dump_debug_info(tosa_debug_mode)

    npu = f"Ethos-{family.upper()}"
    get_compile_spec.__doc__ = f"Return a compile spec for an {npu} with ``macs`` MACs per cycle (default: {default_macs})."
    return get_compile_spec


get_u55_compile_spec = _getter("u55", 128)
get_u65_compile_spec = _getter("u65", 256)
get_u85_compile_spec = _getter("u85", 128)
