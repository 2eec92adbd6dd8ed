"""Stages of the tester, interchangeable with the stages of ExecuTorch's test harness."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pprint import pformat
from typing import Any

import torch
from executorch.backends.test.harness import stages as harness
from executorch.exir import EdgeCompileConfig, EdgeProgramManager, ExecutorchBackendConfig, to_edge_transform_and_lower
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ethorch import runtime
from ethorch.backend.partitioner import EthosUPartitioner, TOSAPartitioner
from ethorch.backend.preprocess import lowered_graphs
from ethorch.lower.fx.export import export_module
from ethorch.lower.partition_report import PartitionReport
from ethorch.quantization.quantizer import TOSAQuantizer
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.tosa_spec import TosaCompileSpec
from ethorch.testing.tosa_delegates import run_program
from ethorch.tosa.debug import as_data

Inputs = tuple[Any, ...]
Partitioner = EthosUPartitioner | TOSAPartitioner
Spec = EthosUCompileSpec | TosaCompileSpec


def partitioner_for(spec: Spec, additional_checks: Sequence[Any] | None = None) -> Partitioner:
    if isinstance(spec, TosaCompileSpec):
        return TOSAPartitioner(spec, additional_checks)
    return EthosUPartitioner(spec, additional_checks)


def _delegate_segments() -> ExecutorchBackendConfig:
    return ExecutorchBackendConfig(extract_delegate_segments=False)


def run_lowered(manager: EdgeProgramManager, spec: Spec, inputs: Inputs) -> Any:
    """Run an edge program, with TOSA delegates in the reference model and Ethos-U delegates in the simulator."""
    if isinstance(spec, TosaCompileSpec):
        return run_program(manager.exported_program(), inputs)
    return runtime.load(copy.deepcopy(manager).to_executorch(_delegate_segments()).buffer)(*inputs)


def _dump_delegates(module: GraphModule, path: str | os.PathLike[str] | None) -> None:
    graphs = enumerate(lowered_graphs(module))
    text = "".join(f"\nTOSA of delegate {number}:\n{pformat(as_data(graph), compact=True, indent=1)}\n" for number, graph in graphs)
    if not path:
        print(text)
    else:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)


class Quantize(harness.Quantize):  # type: ignore[misc]  # ExecuTorch has no types
    """The stage that exports, prepares, calibrates and converts the model.

    Args:
        calibration: Samples. Default: the example inputs.
        fold_quantize: Whether to store weights as integers. See ``convert_pt2e``.
    """

    def __init__(self, quantizer: TOSAQuantizer, calibration: Sequence[Inputs] = (), fold_quantize: bool = True):
        super().__init__(quantizer, None, calibration_samples=list(calibration) or None, fold_quantize=fold_quantize)

    def run(self, artifact: nn.Module, inputs: Inputs) -> None:
        graph = export_module(artifact, inputs).module(check_guards=False)
        initial = {name: buffer.clone() for name, buffer in graph.named_buffers()}
        prepared = prepare_pt2e(graph, self.quantizer)
        with torch.no_grad():
            for sample in self.calibration_samples or [inputs]:
                prepared(*copy.deepcopy(sample))
            for name, buffer in prepared.named_buffers():  # restore the initial state
                if name in initial:
                    buffer.copy_(initial[name])
        self.converted_graph = convert_pt2e(prepared, fold_quantize=self.fold_quantize)


class Export(harness.Export):  # type: ignore[misc]
    """The stage that runs ``torch.export``. Without dynamic shapes, errors contain the user's source line."""

    def run(self, artifact: nn.Module, inputs: Inputs) -> None:
        if self.dynamic_shapes is None:
            self.exported_program = export_module(artifact, inputs)
        else:
            self.exported_program = torch.export.export(artifact, inputs, dynamic_shapes=self.dynamic_shapes)

    def run_artifact(self, inputs: Inputs) -> Any:
        with torch.no_grad():
            return self.artifact.module(check_guards=False)(*inputs)


class ToEdge(harness.ToEdge):  # type: ignore[misc]
    """The stage that runs ``to_edge``."""

    def __init__(self, edge_compile_config: EdgeCompileConfig | None = None):
        super().__init__(edge_compile_config or EdgeCompileConfig(_check_ir_validity=False))


class Partition(harness.Partition):  # type: ignore[misc]
    """The stage that runs ``to_backend`` on an edge program."""

    def __init__(self, spec: Spec, partitioner: Partitioner | None = None):
        super().__init__(partitioner or partitioner_for(spec))
        self.spec = spec

    def run(self, artifact: EdgeProgramManager, inputs: Any = None) -> None:
        self.delegate_module = artifact.to_backend(self.partitioner)

    def dump_artifact(self, path_to_dump: str | os.PathLike[str] | None) -> None:
        """Append the stage's graph and each delegate's TOSA graph to a file, by default standard output."""
        super().dump_artifact(path_to_dump)
        _dump_delegates(self.graph_module, path_to_dump)

    def run_artifact(self, inputs: Inputs) -> Any:
        return run_lowered(self.artifact, self.spec, inputs)


class ToEdgeTransformAndLower(harness.ToEdgeTransformAndLower):  # type: ignore[misc]
    """The stage that runs ``to_edge_transform_and_lower``. Operators that ethorch lowers are not decomposed."""

    def __init__(
        self,
        spec: Spec,
        partitioners: Sequence[Any] | None = None,
        edge_compile_config: EdgeCompileConfig | None = None,
        constant_methods: Mapping[str, Any] | None = None,
        transform_passes: Any = None,
    ):
        super().__init__(edge_compile_config=edge_compile_config)
        self.spec = spec
        self.partitioners = list(partitioners or [partitioner_for(spec)])
        self.constant_methods, self.transform_passes = constant_methods, transform_passes

    def run(self, artifact: ExportedProgram, inputs: Any = None, generate_etrecord: bool = False) -> None:
        self.edge_dialect_program = to_edge_transform_and_lower(
            artifact,
            transform_passes=self.transform_passes,
            compile_config=self.edge_compile_conf,
            partitioner=self.partitioners,
            constant_methods=None if self.constant_methods is None else dict(self.constant_methods),
            generate_etrecord=generate_etrecord,
        )

    def dump_artifact(self, path_to_dump: str | os.PathLike[str] | None) -> None:
        """See :meth:`Partition.dump_artifact`."""
        super().dump_artifact(path_to_dump)
        _dump_delegates(self.graph_module, path_to_dump)

    def run_artifact(self, inputs: Inputs) -> Any:
        return run_lowered(self.artifact, self.spec, inputs)


class ToExecutorch(harness.ToExecutorch):  # type: ignore[misc]
    """The stage that runs ``to_executorch``. TOSA programs run as edge programs, because no runtime supports TOSA delegates."""

    def __init__(self, spec: Spec, config: ExecutorchBackendConfig | None = None):
        super().__init__(config or _delegate_segments())
        self.spec = spec
        self.lowered: EdgeProgramManager | None = None

    def run(self, artifact: EdgeProgramManager, inputs: Any = None) -> None:
        self.lowered = copy.deepcopy(artifact) if isinstance(self.spec, TosaCompileSpec) else None
        super().run(artifact, inputs)

    @property
    def graph_module(self) -> Any:
        return self.artifact.exported_program().graph_module

    def run_artifact(self, inputs: Inputs) -> Any:
        """Run TOSA programs as edge programs, and others in ExecuTorch's runtime with the simulator."""
        if self.lowered is not None:
            return run_lowered(self.lowered, self.spec, inputs)
        return runtime.load(self.artifact.buffer)(*inputs)


class Serialize(harness.Serialize):  # type: ignore[misc]
    """The stage that serializes the ``.pte``."""

    def __init__(self, program: ToExecutorch | None = None):
        super().__init__()
        self.program = program

    def run_artifact(self, inputs: Inputs) -> Any:
        """Run the ``.pte`` in ExecuTorch's runtime with the simulator. Run TOSA programs as ``ToExecutorch`` does."""
        if self.program is not None and self.program.lowered is not None:
            return self.program.run_artifact(inputs)
        return runtime.load(self.artifact)(*inputs)


def report_of(stage: Any) -> PartitionReport | None:
    """Return the report of a stage's partitioner, or None if the stage has no ethorch partitioner."""
    partitioners = getattr(stage, "partitioners", None) or [getattr(stage, "partitioner", None)]
    return next((p.report for p in partitioners if isinstance(getattr(p, "report", None), PartitionReport)), None)
