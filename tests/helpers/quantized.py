"""Small models and their quantized forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._pytree import tree_map
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ethorch import EthosUCompileSpec, EthosUPartitioner, EthosUQuantizer, QuantizationConfig
from ethorch.arm import TOSAQuantizer
from ethorch.arm.quantizer import get_symmetric_quantization_config
from ethorch.backend.emit.checks import set_values
from ethorch.lower.fx.node import DEQUANTIZE, QUANTIZE, Converted, op_name, storage_order

Inputs = tuple[Any, ...]


def samples(*shapes: Sequence[int], count: int = 4, seed: int = 0) -> list[Inputs]:
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randn(*shape, generator=generator) for shape in shapes) for _ in range(count)]


class Function(nn.Module):
    """A function of the model's inputs."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, x: Any, *others: Any) -> Any:
        return self.function(x, *others)


def quantizer(config: QuantizationConfig | None = None) -> EthosUQuantizer:
    return EthosUQuantizer(EthosUCompileSpec("ethos-u55-128")).set_global(config or get_symmetric_quantization_config())


def exported(model: nn.Module, inputs: Inputs, guards: bool = False) -> GraphModule:
    return torch.export.export(model.eval(), inputs).module(check_guards=guards)


def prepared(model: nn.Module, calibration: Sequence[Inputs], by: TOSAQuantizer, guards: bool = False) -> GraphModule:
    graph = prepare_pt2e(exported(model, calibration[0], guards), by)
    with torch.no_grad():
        for inputs in calibration:
            graph(*inputs)
    return graph


class InFloat64(Interpreter):
    """Run a converted graph with float64 between quantize nodes, without PyTorch's rounding to float32."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = op_name(target)
        if name in QUANTIZE and "per_tensor" in name:
            x, scale, zero, low, high, dtype = args
            return torch.clamp(torch.round(x.double() / scale) + zero, low, high).to(dtype)
        if name in DEQUANTIZE and "per_tensor" in name:
            return (args[0].double() - args[2]) * args[1]
        args = tree_map(lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, args)
        return super().call_function(target, args, kwargs)


@dataclass
class Quantized:
    """A converted module, its program, and the quantization parameters of inputs and outputs."""

    module: Any  # a GraphModule, or a function that computes the same
    example: Inputs

    @cached_property
    def program(self) -> torch.export.ExportedProgram:
        """Export the module again."""
        return torch.export.export(self.module, self.example)

    @cached_property
    def converted(self) -> Converted:
        """The module as ethorch's writer reads it. This takes a fifth of the time of an export."""
        assert set_values(self.module) is None
        return Converted(self.module)

    def computed_by(self, function: Callable[..., Any]) -> Quantized:
        """Return the same program, to be compared with ``function``."""
        other = Quantized(function, self.example)
        other.converted = self.converted
        return other

    def in_float64(self) -> Quantized:
        """Return the same program, to be compared with PyTorch in float64."""
        return self.computed_by(lambda *inputs: InFloat64(self.module).run(*inputs))

    def input_codes(self, inputs: Inputs) -> list[np.ndarray]:
        """Return the codes of the first quantize nodes for the inputs, in the TOSA graph's order."""
        placeholders = [node for node in self.converted.graph.nodes if node.op == "placeholder"]
        given = dict(zip(placeholders, inputs, strict=True))
        codes = []
        for node in self.converted.graph.nodes:
            if node in given and not given[node].dtype.is_floating_point:
                codes.append(given[node].numpy())
            elif node.op == "call_function" and op_name(node.target) in QUANTIZE and node.args[0] in given:
                codes.append(node.target(given[node.args[0]], *node.args[1:]).numpy())
        return codes

    def output_codes(self, inputs: Inputs) -> list[np.ndarray]:
        """Return the fake-quantized outputs as codes of the last dequantize nodes; integers unchanged."""
        results = self.module(*inputs)
        results = results if isinstance(results, (tuple, list)) else (results,)
        nodes: Any = self.converted.graph.output_node().args[0]
        nodes = nodes if isinstance(nodes, (tuple, list)) else (nodes,)
        codes = []
        for node, result in zip(nodes, results, strict=True):
            stored = result.permute(storage_order(node.meta["val"]))  # a permuted output keeps its strides
            if result.dtype.is_floating_point:
                assert op_name(node.target) in DEQUANTIZE, node.format_node()
                scale, zero = node.args[1:3]
                stored = torch.round(stored.to(torch.float64) / scale + zero)
            codes.append(stored.numpy().astype(np.int64))
        return codes


def quantized(
    model: nn.Module,
    calibration: Sequence[Inputs],
    by: TOSAQuantizer | QuantizationConfig | None = None,
    target: str | EthosUCompileSpec = "ethos-u55-128",
    guards: bool = False,
) -> Quantized:
    """Export, annotate, calibrate, convert. ``by`` is a quantizer, or the global config (int8) for the target's."""
    if not isinstance(by, TOSAQuantizer):
        spec = target if isinstance(target, EthosUCompileSpec) else EthosUCompileSpec(target)
        by = EthosUQuantizer(spec).set_global(by or get_symmetric_quantization_config())
    return Quantized(convert_pt2e(prepared(model, calibration, by, guards)), calibration[0])


def lower(module: nn.Module, inputs: Inputs, partitioner: EthosUPartitioner) -> bytes:
    """Return the .pte of a quantized module."""
    edge = to_edge_transform_and_lower(
        torch.export.export(module, inputs), partitioner=[partitioner], compile_config=EdgeCompileConfig(_check_ir_validity=False)
    )
    return edge.to_executorch(config=ExecutorchBackendConfig(extract_delegate_segments=False)).buffer


def is_quantized(graph: GraphModule, name: str) -> bool:
    """Return True if the convolution or linear layer reads a quantized weight."""
    node = next(n for n in graph.graph.nodes if n.name == name)
    weight = node.args[1]
    return isinstance(weight, Node) and "dequantize" in str(weight.target)


def dtypes(graph: GraphModule, part: str = "dequantize_per_tensor") -> set[torch.dtype]:
    """Return the dtypes of all dequantize nodes."""
    return {dtype_of(node) for node in graph.graph.nodes if part in str(node.target)}


def dtype_of(node: Node) -> torch.dtype:
    return node.args[-1] if "quantize" in str(node.target) else node.meta["val"].dtype  # type: ignore[return-value]


class Small(nn.Module):
    """Convolution, ReLU, and a block with a linear layer. Layers can be selected by name and type."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.act = nn.Conv2d(4, 4, 3, padding=1), nn.Hardtanh(-1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.conv(x)) + x

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem = nn.Conv2d(3, 4, 3)
        self.blocks = nn.Sequential(self.Block(), self.Block())
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        return self.head(self.blocks(x).mean((2, 3)))


IMAGE = (1, 3, 10, 10)
