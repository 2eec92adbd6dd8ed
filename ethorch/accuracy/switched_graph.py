"""A calibrated graph whose quantization can be switched on and off per module, without preparing it again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.observer import ObserverBase
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ethorch import flow
from ethorch.accuracy.sample_runs import Inputs, exported, outputs_of, outputs_on_npu, reset, state_of
from ethorch.errors import QuantizationError
from ethorch.quantizer.quantizer import TOSAQuantizer
from ethorch.quantizer.selection import module_path
from ethorch.target.compile_spec import EthosUCompileSpec


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
        result: Tensor = (torch.clamp(torch.round(x / scale) + zero, self.low, self.high) - zero) * scale
        return result


class Switched:
    """The model, calibrated, with a switch in the place of every observer: its quantization goes on and off by module.

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
        self._state = state_of(graph)
        self.graph: GraphModule = prepare_pt2e(graph, quantizer)
        self.run(samples)  # calibrates
        self._calibrated = copy.deepcopy(self.graph)
        self.owners: dict[str, list[str]] = {}
        self._switches: dict[str, Switch] = {}
        made: dict[int, Switch] = {}
        for node in self.graph.graph.nodes:
            if node.op != "call_module":
                continue
            observer = self.graph.get_submodule(node.target)
            if isinstance(observer, ObserverBase):
                self.owners[node.target] = [name for name, _ in module_path(_owner(node)) if name]
                made[id(observer)] = switch = made.get(id(observer)) or Switch(observer)
                self._switches[node.target] = copy.copy(switch)
                setattr(self.graph, node.target, self._switches[node.target])
        self.modules = list(dict.fromkeys(path[-1] for path in self.owners.values() if path))

    def switch(self, on: Callable[[list[str]], bool]) -> None:
        """Quantize what lies in modules (outermost first) that ``on`` says yes to."""
        for target, path in self.owners.items():
            self._switches[target].on = on(path)

    def run(self, samples: Iterable[Inputs]) -> list[Any]:
        """What the model returns for each sample, with the switches as they are."""
        return outputs_of(self.graph, samples, self._state)

    def run_on_npu(self, samples: Sequence[Inputs], spec: EthosUCompileSpec) -> list[Any]:
        """The same of the program that is compiled of it, on the simulated NPU; what is not quantized runs on the CPU."""
        graph = copy.deepcopy(self._calibrated)
        for node in list(graph.graph.nodes):
            if node.op == "call_module" and node.target in self._switches and not self._switches[node.target].on:
                node.replace_all_uses_with(node.all_input_nodes[0])
                graph.graph.erase_node(node)
        graph.recompile()
        reset(graph, self._state)
        converted = convert_pt2e(graph)
        return outputs_on_npu(flow.build(converted, samples[0], spec), converted, samples)


def _owner(node: Node) -> Node:
    """The operator a quantized value belongs to: who computed it; who reads it, if it is an input, a parameter or a constant."""
    (source,) = node.all_input_nodes
    while source.op == "call_module":  # an observer in front of this one
        (source,) = source.all_input_nodes
    if source.op == "call_function":
        return source
    return next(iter(node.users))
