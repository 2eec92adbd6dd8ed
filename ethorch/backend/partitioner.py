"""Partitioners for an NPU and for TOSA flatbuffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.fx.passes.operator_support import OperatorSupportBase

from ethorch.backend import preprocess, retry
from ethorch.backend.dry_run_partitioner import DryRunPartitioner
from ethorch.backend.preprocess import EthosUBackend, TOSABackend
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.tosa_spec import TosaCompileSpec


@final
class EthosUPartitioner(DryRunPartitioner):
    """A partitioner for the NPU of a compile spec.

    Args:
        compile_spec: An EthosUCompileSpec, or its list form.
        additional_checks: User-defined checks. Nodes that a check refuses stay on the CPU.
    """

    backend = EthosUBackend

    def __init__(
        self,
        compile_spec: EthosUCompileSpec | Sequence[CompileSpec],
        additional_checks: Sequence[OperatorSupportBase] | None = None,
    ):
        super().__init__(EthosUCompileSpec.of(compile_spec), additional_checks)
        retry.install()
        preprocess.install()


@final
class TOSAPartitioner(DryRunPartitioner):
    """A partitioner for TOSA output. See :class:`EthosUPartitioner`."""

    backend = TOSABackend

    def __init__(
        self,
        compile_spec: TosaCompileSpec | Sequence[CompileSpec],
        additional_checks: Sequence[OperatorSupportBase] | None = None,
    ):
        super().__init__(TosaCompileSpec.of(compile_spec), additional_checks)
        retry.install()
        preprocess.install()
