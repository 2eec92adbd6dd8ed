"""The whole way in one call: what the command line and short scripts use instead of spelling the flow out.

``load_model`` finds a user's model, ``quantize`` calibrates it, ``build`` makes the program; each result holds what the
next needs and what a report wants to say.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ethorch.backend import Lowered, lowered_delegates
from ethorch.backend.partition_report import PartitionReport
from ethorch.backend.partitioner import EthosUPartitioner
from ethorch.errors import EthorchError
from ethorch.model_files import Inputs, UserModel
from ethorch.nhwc import NhwcIo, nhwc_inputs
from ethorch.quantize.config import QuantizationConfig, get_symmetric_quantization_config
from ethorch.quantize.quantizer import EthosUQuantizer
from ethorch.target.compile_spec import EthosUCompileSpec

__all__ = ["Build", "Inputs", "UserModel", "build", "quantize", "with_nhwc_io"]


@dataclass(frozen=True)
class Build:
    """A finished program and what became of each operator.

    Attributes:
        pte: the ExecuTorch program.
        partition: which operators are on the NPU, and why the others are not.
        delegates: the parts on the NPU, in the order of the file.
    """

    pte: bytes = field(repr=False)
    partition: PartitionReport
    delegates: tuple[Lowered, ...]


def with_nhwc_io(model: UserModel) -> UserModel:
    """The model with inputs and outputs in NHWC (see ``ethorch.nhwc``).

    Raises:
        EthorchError: it is quantized already: wrap the float model.
    """
    if model.quantized:
        raise EthorchError("the model is quantized already; wrap the float model in ethorch.nhwc.NhwcIo before torch.export.")
    calibration = [nhwc_inputs(inputs) for inputs in model.calibration]
    return UserModel(NhwcIo(model.module).eval(), nhwc_inputs(model.example_inputs), calibration)


def quantize(model: UserModel, spec: EthosUCompileSpec, config: QuantizationConfig | None = None) -> nn.Module:
    """The model with calibrated quantize and dequantize operators: int8, weights per channel, or as ``config`` says."""
    if model.quantized:
        return model.module
    quantizer = EthosUQuantizer(spec)
    quantizer.set_global(config or get_symmetric_quantization_config(is_per_channel=True))
    graph = torch.export.export(model.module, model.example_inputs).module(check_guards=False)
    prepared = prepare_pt2e(graph, quantizer)
    with torch.no_grad():
        for inputs in model.calibration or [model.example_inputs]:
            prepared(*inputs)
    converted: GraphModule = convert_pt2e(prepared)
    return converted


def build(quantized: nn.Module, example_inputs: Inputs, spec: EthosUCompileSpec) -> Build:
    """Export, partition, lower and serialize a quantized model for the spec's target. Vela compiles each delegate once."""
    exported: ExportedProgram = torch.export.export(quantized, example_inputs)
    partitioner = EthosUPartitioner(spec)
    edge = to_edge_transform_and_lower(
        exported, partitioner=[partitioner], compile_config=EdgeCompileConfig(_check_ir_validity=False)
    )
    delegates = tuple(lowered_delegates(edge.exported_program()))
    program = edge.to_executorch(config=ExecutorchBackendConfig(extract_delegate_segments=False))
    return Build(program.buffer, partitioner.report, delegates)
