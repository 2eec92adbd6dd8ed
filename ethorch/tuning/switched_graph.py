"""A calibrated graph in which each module and operator can be quantized separately."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.observer import ObserverBase
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

from ethorch.backend.build import build_pte
from ethorch.lower.fx.aten_builder import MADE_FOR
from ethorch.lower.fx.node import op_name, origin_of
from ethorch.quantization.activation_observer import Follower
from ethorch.quantization.prepare import convert
from ethorch.quantization.quantizer import TOSAQuantizer
from ethorch.quantization.selection import module_path
from ethorch.support.errors import QuantizationError
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.tuning.sample_runs import Inputs, compute_outputs, copy_state, export_copy, outputs_on_npu, reset


class Switch(nn.Module):
    """A module that replaces an observer and quantizes its input while enabled."""

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
    """A calibrated model with a switch in place of every observer.

    Attributes:
        owners: For each switch, the names of the enclosing modules, outermost first. If the observed operator is outside of
            leaf modules, e.g. ``torch.log`` in ``forward``, its name is appended.
        parts: Names of the leaf modules, and of operators outside of leaf modules, in execution order.
        operators: ATen name and source line of each operator in ``parts``.
    """

    def __init__(self, model: nn.Module, quantizer: TOSAQuantizer, samples: Sequence[Inputs]):
        if not samples:
            raise QuantizationError("quantize.no_samples", "expected samples, got none. Pass a few dozen representative inputs.")
        graph = export_copy(model, samples[0])
        self._state = copy_state(graph)
        self.graph: GraphModule = prepare_pt2e(graph, quantizer)
        self.run(samples)  # calibrates
        self._calibrated = copy.deepcopy(self.graph)
        owners: dict[str, tuple[list[str], Node]] = {}
        self._switches: dict[str, Switch] = {}
        switches: dict[int, Switch] = {}
        for node in self.graph.graph.nodes:
            if node.op != "call_module":
                continue
            observer = self.graph.get_submodule(node.target)
            if isinstance(observer, ObserverBase):
                owner = _owner(self.graph, node)
                owners[node.target] = [name for name, _ in module_path(owner) if name], owner
                switches[id(observer)] = switch = switches.get(id(observer)) or Switch(observer)
                self._switches[node.target] = copy.copy(switch)
                setattr(self.graph, node.target, self._switches[node.target])
        paths = [path for path, _ in owners.values()]
        outer = {tuple(path[:depth]) for path in paths for depth in range(len(path))} | {()}
        modules = {name for path in paths for name in path}
        self.operators: dict[str, str] = {}
        self.owners: dict[str, list[str]] = {}
        parts: dict[str, None] = {}  # an ordered set
        for target, (path, owner) in owners.items():
            name, function = owner.meta.get(MADE_FOR, (owner.name, owner.target))
            is_outside = tuple(path) in outer and name not in modules
            if is_outside:
                self.operators[name] = ", ".join(filter(None, (op_name(function), origin_of(owner).source)))
            own_name = [name] if is_outside else []
            self.owners[target] = [*path, *own_name]
            parts |= dict.fromkeys([*path[-1:], *own_name])
        self.parts = list(parts)

    def switch(self, on: Callable[[list[str]], bool]) -> None:
        """Enable each switch whose entry in ``owners`` satisfies the predicate ``on``, and disable all other switches."""
        for target, path in self.owners.items():
            self._switches[target].on = on(path)

    def run(self, samples: Iterable[Inputs]) -> list[Any]:
        """Return the model's outputs for each sample, computed with the enabled switches."""
        return compute_outputs(self.graph, samples, self._state)

    def run_on_npu(self, samples: Sequence[Inputs], spec: EthosUCompileSpec) -> list[Any]:
        """Return the outputs computed by the simulated NPU. Operators with disabled switches run in float on the CPU."""
        graph = copy.deepcopy(self._calibrated)
        for node in list(graph.graph.nodes):
            if node.op == "call_module" and node.target in self._switches and not self._switches[node.target].on:
                node.replace_all_uses_with(node.all_input_nodes[0])
                graph.graph.erase_node(node)
        graph.recompile()
        reset(graph, self._state)
        converted = convert(graph)
        return outputs_on_npu(build_pte(converted, samples[0], spec), converted, samples)


def _owner(graph: GraphModule, node: Node) -> Node:
    """Return the producer of a quantized value, or its first reader if the value is an input, parameter or constant."""
    # Outside modules, data movement belongs to the operator that computed the data.
    (source,) = node.all_input_nodes
    while source.op == "call_module":  # the value has several observers
        (source,) = source.all_input_nodes
    if source.op != "call_function":
        return next(iter(node.users))
    if isinstance(graph.get_submodule(str(node.target)), Follower) and not any(name for name, _ in module_path(source)):
        return _owner(graph, source.all_input_nodes[0]) if source.all_input_nodes[0].op == "call_module" else source
    return source
