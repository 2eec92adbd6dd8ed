"""Drop-in replacement for ``executorch.backends.arm.util._factory``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.fx.passes.operator_support import OperatorSupportBase

from ethorch.backend.partitioner import EthosUPartitioner, TOSAPartitioner
from ethorch.quantization.quantizer import EthosUQuantizer, TOSAQuantizer
from ethorch.targets.compile_spec import ArmCompileSpec, EthosUCompileSpec
from ethorch.targets.tosa_spec import TosaCompileSpec

__all__ = ["create_partitioner", "create_quantizer", "parse_compile_spec"]


def parse_compile_spec(compile_specs: Sequence[CompileSpec]) -> Any:
    """Create a compile spec from its list form.

    Raises:
        SpecError: The list belongs to another backend, or is malformed.
    """
    return ArmCompileSpec.from_list(compile_specs)


def create_partitioner(
    compile_spec: ArmCompileSpec, additional_checks: Sequence[OperatorSupportBase] | None = None
) -> EthosUPartitioner | TOSAPartitioner:
    """Return a partitioner for a compile spec.

    Raises:
        ValueError: The class of the compile spec is not supported.
    """
    if isinstance(compile_spec, TosaCompileSpec):
        return TOSAPartitioner(compile_spec, additional_checks)
    if isinstance(compile_spec, EthosUCompileSpec):
        return EthosUPartitioner(compile_spec, additional_checks)
    raise ValueError(f"expected a TosaCompileSpec or an EthosUCompileSpec, got {type(compile_spec).__name__}.")


def create_quantizer(compile_spec: ArmCompileSpec) -> EthosUQuantizer | TOSAQuantizer:
    """Return a quantizer for a compile spec.

    Raises:
        ValueError: The class of the compile spec is not supported.
    """
    if isinstance(compile_spec, TosaCompileSpec):
        return TOSAQuantizer(compile_spec)
    if isinstance(compile_spec, EthosUCompileSpec):
        return EthosUQuantizer(compile_spec)
    raise ValueError(f"expected a TosaCompileSpec or an EthosUCompileSpec, got {type(compile_spec).__name__}.")
