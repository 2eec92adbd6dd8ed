"""Small models as users write them, and what tests ask of a quantized one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ethorch import EthosUCompileSpec, EthosUQuantizer, QuantizationConfig, get_symmetric_quantization_config

Inputs = tuple[Any, ...]


def sqnr_db(reference: Any, other: Any) -> float:
    """Of all outputs together."""
    a, b = (torch.cat([x.flatten().double() for x in torch.utils._pytree.tree_leaves(y)]) for y in (reference, other))
    return float(10 * torch.log10((a**2).sum() / ((a - b) ** 2).sum().clamp(min=1e-30)))


def samples(*shapes: Sequence[int], count: int = 4, seed: int = 0) -> list[Inputs]:
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randn(*shape, generator=generator) for shape in shapes) for _ in range(count)]


def quantizer(config: QuantizationConfig | None = None) -> EthosUQuantizer:
    return EthosUQuantizer(EthosUCompileSpec("ethos-u55-128")).set_global(config or get_symmetric_quantization_config())


def exported(model: nn.Module, inputs: Inputs, guards: bool = False) -> GraphModule:
    return torch.export.export(model.eval(), inputs).module(check_guards=guards)


def prepared(model: nn.Module, calibration: Sequence[Inputs], by: EthosUQuantizer, guards: bool = False) -> GraphModule:
    graph = prepare_pt2e(exported(model, calibration[0], guards), by)
    with torch.no_grad():
        for inputs in calibration:
            graph(*inputs)
    return graph


def quantized(
    model: nn.Module, calibration: Sequence[Inputs], by: EthosUQuantizer | None = None, guards: bool = False
) -> GraphModule:
    return convert_pt2e(prepared(model, calibration, by or quantizer(), guards))


def is_quantized(graph: GraphModule, name: str) -> bool:
    """Does the convolution or linear layer read a quantized weight?"""
    node = next(n for n in graph.graph.nodes if n.name == name)
    weight = node.args[1]
    return isinstance(weight, Node) and "dequantize" in str(weight.target)


def dtypes(graph: GraphModule, part: str = "dequantize_per_tensor") -> set[torch.dtype]:
    """Of all dequantize nodes."""
    return {dtype_of(node) for node in graph.graph.nodes if part in str(node.target)}


def dtype_of(node: Node) -> torch.dtype:
    return node.args[-1] if "quantize" in str(node.target) else node.meta["val"].dtype  # type: ignore[return-value]


class Small(nn.Module):
    """conv, relu, then a block with a linear layer; the layers have names and types to select by."""

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
