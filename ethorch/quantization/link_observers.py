"""Configure observers created by torchao: names, biases, masks and leaders."""

from __future__ import annotations

import copy
import operator
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import FakeQuantizeBase

from ethorch.lower.fx.node import op_name, tensor_of
from ethorch.lower.ops.attention import EXCLUDED
from ethorch.lower.ops.matmul import has_many_columns
from ethorch.lower.ops.quant_rules import Layer
from ethorch.lower.ops.spec import find
from ethorch.quantization.activation_observer import ROOM_INT8, ActivationObserver, ExtendedFollower, Follower, find_leader
from ethorch.quantization.bias_observer import BiasObserver
from ethorch.quantization.mask_inputs import lift_excluded, lift_masked, mark_mask_inputs
from ethorch.quantization.passes.mask_tensors import is_mask_fill
from ethorch.quantization.passes.top_k import TOPK
from ethorch.quantization.weight_observer import PerChannelWeightObserver
from ethorch.support.errors import QuantizationError
from ethorch.targets.tuning import UNTUNED, Tuning, WrittenWeights

#: Key of ``GraphModule.meta``: whether the graph is a subgraph of control flow.
INNER = "ethorch_inner"
Edge = Node | tuple[Node, Node]


def link_observers(model: GraphModule, observers: dict[Edge, Any], tuning: Tuning = UNTUNED) -> None:
    """Configure ethorch's observers, for example their names, masks and leaders.

    If an output shares the input's quantization parameters, its observer follows the input's.

    Args:
        observers: Observers keyed by node or edge (argument, node). They are changed in place.
    """
    inputs: set[Node] = set()  # if an input has two observers, only the first records statistics
    for key, observer in observers.items():
        if isinstance(observer, (ActivationObserver, PerChannelWeightObserver)) and not observer.name:
            watched = key if isinstance(key, Node) else key[0]
            observer.name = watched.name
            if isinstance(observer, ActivationObserver):
                observer.is_input = watched.op == "placeholder" and not model.meta.get(INNER) and watched not in inputs
                inputs.add(watched)
    for node in model.graph.nodes:
        spec = find(node.target) if node.op == "call_function" else None
        if op_name(node.target) == TOPK:
            _follow(node, observers)
        if spec is None:
            continue
        rule = spec.rule(node)
        if rule.domain is not None:
            watcher = observers.get((node.all_input_nodes[0], node))
            if isinstance(watcher, ActivationObserver):
                watcher.domain = rule.domain
        if is_mask_fill(node):
            if node.args[2] == EXCLUDED:
                _extend_range(node, observers)
                continue
            watcher = find_leader(observers.get((node.all_input_nodes[0], node)))
            trained = observers.get(node)
            if isinstance(watcher, ActivationObserver):
                watcher.masked = True
            elif isinstance(trained, FakeQuantizeBase):
                depth = 0.0 if isinstance(node.args[0], Node) and is_mask_fill(node.args[0]) else ROOM_INT8
                trained.register_forward_pre_hook(partial(lift_masked, depth=depth))
            _mark_readers(node, observers)
        if rule.is_threshold:
            _set_thresholds(model, node, observers)
        if rule.layer is not None:
            _check_finite(model, node, rule.layer, observers)
            _link_bias(model, node, rule.layer, observers)
        elif rule.output == "same" or rule.keeps_codes:
            _follow(node, observers)
    mark_mask_inputs(model, observers)
    _observe_outermost_joins(model, observers)
    if tuning.written_weights is not None:
        _center_weights(model, observers, tuning, tuning.written_weights)


def _center_weights(model: GraphModule, observers: dict[Edge, Any], tuning: Tuning, written: WrittenWeights) -> None:
    """In each matrix product, set ``ActivationObserver.center`` of the int8 operand that the NPU converts to weights."""
    for node in model.graph.nodes:
        spec = find(node.target) if node.op == "call_function" else None
        factors = None if spec is None else spec.rule(node).factors
        operands = [node.args[position] for position in factors or ()]
        if not operands or not all(isinstance(operand, Node) for operand in operands):
            continue
        rows, columns = operands[0].meta["val"].shape[-2], operands[1].meta["val"].shape[-1]
        operand = operands[0 if has_many_columns(tuning, rows, columns) else 1]
        observer = find_leader(observers.get((operand, node)))
        if isinstance(observer, ActivationObserver) and observer.dtype == torch.int8:
            observer.center = written.zero_point, written.largest_step


def _extend_range(node: Node, observers: dict[Edge, Any]) -> None:
    output, source = observers.get(node), observers.get((node.args[0], node))  # type: ignore[arg-type]
    if isinstance(output, ActivationObserver) and isinstance(source, (ActivationObserver, Follower)):
        extended = ExtendedFollower(source)
        observers.update({key: extended for key, observer in observers.items() if observer is output})
    elif isinstance(output, FakeQuantizeBase) and isinstance(source, FakeQuantizeBase):
        output.register_forward_pre_hook(partial(lift_excluded, source))


def _mark_readers(node: Node, observers: dict[Edge, Any]) -> None:
    waiting = [node]
    while waiting:
        masked = waiting.pop()
        for user in masked.users:
            observer = find_leader(observers.get((masked, user)))
            if isinstance(observer, ActivationObserver):
                observer.masked = True
            spec = find(user.target) if user.op == "call_function" else None
            if spec is not None and spec.rule(user).output == "same" and not is_mask_fill(user):
                waiting.append(user)


def _set_thresholds(model: GraphModule, node: Node, observers: dict[Edge, Any]) -> None:
    value = node.args[0]
    observer = observers.get(value) if isinstance(value, Node) else None
    if not isinstance(value, Node) or not isinstance(observer, ActivationObserver) or observer.thresholds:
        return
    numbers = [_threshold(model, value, user) for user in value.users]
    edges = {edge for edge, candidate in observers.items() if candidate is observer}
    if None not in numbers and edges <= {value, *((value, user) for user in value.users)}:
        observer.thresholds = [number for number in numbers if number is not None]


def _threshold(model: GraphModule, value: Node, user: Node) -> float | None:
    spec = find(user.target) if user.op == "call_function" else None
    if spec is None or not spec.rule(user).is_threshold or user.args[0] is not value:
        return None
    bound = user.args[1]
    tensor = tensor_of(model, bound) if isinstance(bound, Node) else None
    if tensor is not None and tensor.numel() == 1:
        return float(tensor)
    return float(bound) if isinstance(bound, (int, float)) else None


def _check_finite(model: GraphModule, node: Node, layer: Layer, observers: dict[Edge, Any]) -> None:
    args: list[Any] = [*node.args, *[None] * 3]
    if (args[layer.weight], node) not in observers:
        return
    for arg in (args[layer.weight], args[layer.bias]):
        parameter = tensor_of(model, arg) if isinstance(arg, Node) else None
        if parameter is not None and not parameter.isfinite().all():
            wrong = parameter[~parameter.isfinite()]
            raise QuantizationError(
                "quantize.parameter",
                f"{arg.target}: expected finite weights and biases, got {float(wrong[0])} ({wrong.numel()} of {parameter.numel()} "
                "elements are infinite or NaN). Check the training or the checkpoint of the float model.",
            )


def _link_bias(model: GraphModule, node: Node, layer: Layer, observers: dict[Edge, Any]) -> None:
    args: list[Any] = [*node.args, *[None] * 3]
    if not all(isinstance(arg, Node) for arg in (args[0], args[layer.weight], args[layer.bias])):
        return
    watcher, source = observers.get((args[layer.weight], node)), observers.get((args[0], node))
    value = tensor_of(model, args[layer.bias])
    if isinstance(watcher, PerChannelWeightObserver) and isinstance(source, (ActivationObserver, Follower)) and value is not None:
        watcher.uses.append((value, [source]))
        rounds = observers.get((args[layer.bias], node))
        if isinstance(rounds, BiasObserver):
            rounds.link(watcher, source)


def _follow(node: Node, observers: dict[Edge, Any]) -> None:
    result = next((user for user in node.users if user.target is operator.getitem and user.args[1] == 0), node)
    leader = observers.get(result)
    source = next((arg for arg in node.all_input_nodes if find_leader(observers.get((arg, node))) is leader), None)
    if not isinstance(leader, ActivationObserver) or source is None:
        return
    follower = Follower(leader)
    observers[result] = follower
    for user in result.users:
        if observers.get((result, user)) is leader:
            observers[(result, user)] = follower


def _observe_outermost_joins(model: GraphModule, observers: dict[Edge, Any]) -> None:
    # The inputs of a concatenation are not observed, because their extremes vary more and would widen the range. Inputs of averages
    # are observed, because an average of clipped elements is wrong even if it is inside the range.
    joins = [node for node in model.graph.nodes if (spec := find(node.target)) is not None and spec.rule(node).joins]
    joined = {observer for node in joins if isinstance(observer := observers.get(node), ActivationObserver)}
    outermost = {
        node for node in joins if not any(user in joins and observers.get(user) is observers.get(node) for user in node.users)
    }
    averaged = {node.args[0] for node in model.graph.nodes if (spec := find(node.target)) is not None and spec.rule(node).averages}
    followers: dict[Node, ActivationObserver | Follower] = {}
    for key, observer in observers.items():
        value = key if isinstance(key, Node) else key[0]
        if value in averaged and value.op != "placeholder":
            if isinstance(observer, Follower) and observer.leader in joined:
                observers[key] = observer.leader
            continue
        if observer not in joined or value in outermost:
            continue
        if value not in followers:
            followers[value] = Follower(observer)
            if value.op == "placeholder" and not model.meta.get(INNER):  # record the statistics of program inputs
                followers[value] = recorder = copy.deepcopy(observer)
                recorder.follow(observer, feed=value in averaged)
                recorder.name, recorder.is_input = value.name, True
        observers[key] = followers[value]
    for node in outermost:
        if observers.get(node) in joined:
            observers[node].name, observers[node].is_input = node.name, False
