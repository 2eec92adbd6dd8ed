"""A calibrated graph whose quantization can be switched on and off per module, without preparing it again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.observer import ObserverBase
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

from ethorch.errors import QuantizationError
from ethorch.quantize.selection import module_path
from ethorch.quantizer import TOSAQuantizer

Inputs = tuple[Any, ...]
#: (float outputs, quantized outputs), one entry per sample -> a figure of merit, larger is better.
Metric = Callable[[Sequence[Any], Sequence[Any]], float]


class Switch(nn.Module):
    """Quantizes and dequantizes while it is on; in the place of one observer."""

    def __init__(self, observer: Any):
        super().__init__()
        scale, zero = observer.calculate_qparams()
        self.scale, self.zero = scale.detach().float(), zero.detach()
        self.low, self.high = observer.quant_min, observer.quant_max
        self.axis = observer.ch_axis if self.scale.numel() > 1 else None
        self.on = True

    def forward(self, x: Tensor) -> Tensor:
        if not self.on:
            return x
        shape = [1] * x.dim()
        if self.axis is not None:
            shape[self.axis] = -1
        scale, zero = self.scale.reshape(shape), self.zero.reshape(shape)
        return (torch.clamp(torch.round(x / scale) + zero, self.low, self.high) - zero) * scale


class Switched:
    """The model, calibrated, with a switch in the place of every observer.

    Args:
        model: in eval mode, or a graph module from torch.export.
        quantizer: with its settings made.
        samples: calibration inputs.

    Attributes:
        modules: the innermost modules in which something is quantized, in the order they run.
    """

    def __init__(self, model: nn.Module, quantizer: TOSAQuantizer, samples: Sequence[Inputs]):
        if not samples:
            raise QuantizationError("quantize.no_samples", "no samples were given: ranges and losses are measured on them")
        graph = exported(model, samples[0])
        self.graph = prepare_pt2e(graph, quantizer)
        with torch.no_grad():
            for inputs in samples:
                self.graph(*inputs)
        self.owners: dict[str, list[str]] = {}
        made: dict[int, Switch] = {}
        for node in self.graph.graph.nodes:
            if node.op != "call_module":
                continue
            observer = self.graph.get_submodule(node.target)
            if isinstance(observer, ObserverBase):
                self.owners[node.target] = [name for name, _ in module_path(_owner(node)) if name]
                made[id(observer)] = switch = made.get(id(observer)) or Switch(observer)
                setattr(self.graph, node.target, copy.copy(switch))
        self.modules = list(dict.fromkeys(path[-1] for path in self.owners.values() if path))

    def switch(self, on: Callable[[list[str]], bool]) -> None:
        """Quantize what lies in modules (outermost first) that ``on`` says yes to."""
        for target, path in self.owners.items():
            self.graph.get_submodule(target).on = on(path)

    def run(self, samples: Iterable[Inputs]) -> list[Any]:
        with torch.no_grad():
            return [self.graph(*inputs) for inputs in samples]


def exported(model: nn.Module, inputs: Inputs) -> GraphModule:
    """A graph module of the model that may be changed."""
    if isinstance(model, GraphModule):
        return copy.deepcopy(model)
    return torch.export.export(model.eval(), inputs).module(check_guards=False)  # type: ignore[return-value]


def _owner(node: Node) -> Node:
    """The operator a quantized value belongs to: who computed it; who reads it, if it is an input, a parameter or a constant."""
    source: Any = node.args[0]
    while source.op == "call_module":  # an observer in front of this one
        source = source.args[0]
    if source.op == "call_function":
        return source
    return next(iter(node.users))


def sqnr_db(reference: Sequence[Any], other: Sequence[Any]) -> float:
    """10 log10(signal / noise) over all outputs of all samples, in dB; infinite if nothing differs."""
    signal = noise = 0.0
    for a, b in zip(tensors(reference), tensors(other), strict=True):
        signal += float((a.double() ** 2).sum())
        noise += float(((a.double() - b.double()) ** 2).sum())
    return float(10 * torch.log10(torch.tensor(signal / noise))) if noise > 0 else float("inf")


def tensors(outputs: Any) -> list[Tensor]:
    """The floating-point tensors in any nest of outputs."""
    return [x for x in torch.utils._pytree.tree_leaves(outputs) if isinstance(x, Tensor) and x.dtype.is_floating_point]
