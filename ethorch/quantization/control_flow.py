"""Quantize models with control flow: the branches of torch.cond, and the condition and body of while_loop."""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer import Quantizer

from ethorch.lower.fx.control_flow import Subgraph, is_control_flow, subgraphs_of
from ethorch.lower.fx.node import is_in_place, tensor_of
from ethorch.quantization.activation_observer import ActivationObserver, Follower, find_leader
from ethorch.quantization.annotate import BRANCHES
from ethorch.quantization.passes.context import PassContext
from ethorch.quantization.passes.wrapped_graphs import inline_wrapped_graphs
from ethorch.support.errors import QuantizationError

logger = logging.getLogger(__name__)


def join_control_flow(model: GraphModule) -> None:
    """Share observers across the boundaries of control flow and between loop iterations."""
    for node in model.graph.nodes:
        if not is_control_flow(node):
            continue
        graphs = [part.of(model) for part in subgraphs_of(node)]
        results: dict[int, list[ActivationObserver]] = {}
        for user in node.users:
            if user.target is operator.getitem:
                results[user.args[1]] = list(_readers(model, user))
        loops = node.target is torch.ops.higher_order.while_loop
        carried: Any = node.args[2] if loops else ()
        captured: Any = node.args[3]
        operands = [*carried, *captured]
        returned: Any = graphs[-1].graph.output_node().args[0]
        for index, operand in enumerate(operands):
            outside = _observer(model, operand)
            inside = [reader for graph in graphs for reader in _readers(graph, _placeholder(graph, index))]
            if index < len(carried):
                leader = next(iter(_readers(graphs[1], _placeholder(graphs[1], index))), outside)
                _lead(leader, [outside, *inside, _observer(graphs[1], returned[index])])
                _lead(leader, results.get(index, []), feed=True)  # outputs of the last iteration
            else:
                _lead(outside, inside)
        if not loops:
            for index, readers in results.items():
                ends: list[Any] = [graph.graph.output_node().args[0] for graph in graphs]
                _lead(next(iter(readers), None), [_observer(graph, end[index]) for graph, end in zip(graphs, ends, strict=True)])
        for graph in graphs:
            join_control_flow(graph)


def _placeholder(graph: GraphModule, index: int) -> Node:
    places: list[Node] = graph.graph.find_nodes(op="placeholder")
    return places[index]


def _observer(model: GraphModule, node: Any) -> Any:
    return model.get_submodule(str(node.target)) if isinstance(node, Node) and node.op == "call_module" else None


def _readers(model: GraphModule, node: Node) -> Iterator[ActivationObserver]:
    for user in node.users:
        observer = _observer(model, user)
        if isinstance(observer, ActivationObserver):
            yield observer


def _lead(leader: Any, observers: list[Any], feed: bool = False) -> None:
    kind = ("dtype", "qscheme", "quant_min", "quant_max")
    if not isinstance(leader, (ActivationObserver, Follower)):
        return
    for observer in observers:
        plain = isinstance(observer, ActivationObserver) and observer.leader is None and not observer.masked
        if not plain or observer is find_leader(leader) or observer.domain != (-math.inf, math.inf):
            continue
        if all(getattr(observer, name) == getattr(leader, name) for name in kind):
            observer.follow(leader, feed)


#: Subgraphs (operator, argument index) that torchao prepares.
_BY_TORCHAO = {(torch.ops.higher_order.while_loop, 1)}


def branches(model: GraphModule) -> Iterator[tuple[Node, int, str, str]]:
    """Yield (control-flow node, argument index, attribute name, description) for each subgraph."""
    for node in model.graph.nodes:
        for part in subgraphs_of(node) if is_control_flow(node) else ():
            yield node, part.index, part.name, part.description


def quantize_with_submodules(
    quantizer: Quantizer, model: GraphModule, samples: Sequence[tuple[Any, ...]], is_qat: bool, fold_quantize: bool
) -> GraphModule:
    if not samples:
        raise QuantizationError(
            "quantize.no_samples",
            "expected calibration samples, got none. Call quantize_with_submodules with at least one sample for each branch.",
        )
    inline_wrapped_graphs(model, PassContext(trainable=is_qat))
    for graph in model.modules():
        if isinstance(graph, GraphModule):
            graph.meta[BRANCHES] = True
    _inline(model)
    prepared = _prepare(model, quantizer, is_qat)
    join_control_flow(prepared)
    branches = list(_watch_branches(prepared))
    try:
        with torch.no_grad():
            for sample in samples:
                prepared(*sample)
            _observe_unreached(prepared, branches, samples)
    finally:
        for branch in branches:
            branch.hook.remove()
    return _convert(prepared, fold_quantize)


def _inline(model: GraphModule) -> None:
    """Move parameters from the arguments of branches into the branches, recursively. Each parameter is then quantized once."""
    for node in _control_flow(model):
        carried = len(node.args[2]) if node.target is torch.ops.higher_order.while_loop else 0  # type: ignore[arg-type]
        operands = list(node.args[3])  # type: ignore[arg-type]
        for index in range(len(operands) - 1, -1, -1):
            operand = operands[index]
            tensor = tensor_of(model, operand) if isinstance(operand, Node) else None
            if tensor is None or _is_written(operand):
                continue
            del operands[index]
            for branch in _graphs(model, node):
                placeholders = [n for n in branch.graph.nodes if n.op == "placeholder"]
                placeholder = placeholders[carried + index]
                with branch.graph.inserting_after(placeholders[-1]):  # quantize nodes of the tensor must follow all placeholders
                    inner = branch.graph.get_attr(_register(branch, f"{operand.name}", tensor))
                inner.meta = dict(placeholder.meta)
                placeholder.replace_all_uses_with(inner)
                branch.graph.erase_node(placeholder)
        node.update_arg(3, tuple(operands))
        for branch in _graphs(model, node):
            _inline(branch)
    model.recompile()


def _lift(model: GraphModule) -> None:
    for node in _control_flow(model):
        graphs = _graphs(model, node)
        for number, owner in enumerate(graphs):
            for inner in [n for n in owner.graph.nodes if tensor_of(owner, n) is not None]:
                tensor = tensor_of(owner, inner)
                assert tensor is not None
                with model.graph.inserting_before(node):
                    name = f"{node.name}_graph{number}_{inner.target}".replace(".", "_")  # must differ from all names in the branch
                    outer = model.graph.get_attr(_register(model, name, tensor))
                outer.meta = dict(inner.meta)
                node.update_arg(3, (*node.args[3], outer))  # type: ignore[misc]
                for branch in graphs:
                    placeholders = [n for n in branch.graph.nodes if n.op == "placeholder"]
                    position = branch.graph.inserting_after(placeholders[-1]) if placeholders else branch.graph.inserting_before()
                    with position:
                        placeholder = branch.graph.placeholder(outer.name)
                    placeholder.meta = dict(inner.meta)
                    if branch is owner:
                        replacement = placeholder
                        if branch.graph.output_node() in inner.users:  # a branch must not return its argument
                            with branch.graph.inserting_before(inner):
                                replacement = branch.graph.call_function(torch.ops.aten.clone.default, (placeholder,))
                            replacement.meta = dict(inner.meta)
                        inner.replace_all_uses_with(replacement)
                        branch.graph.erase_node(inner)
        for branch in graphs:
            branch.graph.lint()
            branch.recompile()
    model.recompile()


def _control_flow(model: GraphModule) -> list[Node]:
    return [node for node in model.graph.nodes if is_control_flow(node)]


def _graphs(model: GraphModule, node: Node) -> list[GraphModule]:
    return list(dict.fromkeys(part.of(model) for part in subgraphs_of(node)))


def _register(model: GraphModule, prefix: str, tensor: torch.Tensor) -> str:
    name, number = prefix, 0
    while hasattr(model, name):
        number += 1
        name = f"{prefix}_{number}"
    if isinstance(tensor, torch.nn.Parameter):
        model.register_parameter(name, tensor)
    else:
        model.register_buffer(name, tensor)
    return name


def _is_written(node: Node) -> bool:
    return any(map(is_in_place, node.users))


def _prepare(model: GraphModule, quantizer: Quantizer, is_qat: bool) -> GraphModule:
    prepared: GraphModule = (prepare_qat_pt2e if is_qat else prepare_pt2e)(model, quantizer)
    for node, index, name, _ in branches(prepared):
        branch = prepared.get_submodule(name)
        is_prepared = (node.target, index) in _BY_TORCHAO and not is_qat
        assert isinstance(branch, GraphModule)
        if not is_prepared:
            setattr(prepared, name, _prepare(branch, quantizer, is_qat))
        else:
            for _, _, inner, _ in branches(branch):
                setattr(branch, inner, _prepare(branch.get_submodule(inner), quantizer, is_qat))  # type: ignore[arg-type]
    return prepared


def _convert(prepared: GraphModule, fold_quantize: bool) -> GraphModule:
    # The branches are converted separately, because torchao would delete them as unused modules.
    graphs: dict[str, GraphModule] = {}
    for _, _, name, _ in branches(prepared):
        if name not in graphs:
            branch = prepared.get_submodule(name)
            assert isinstance(branch, GraphModule)
            setattr(prepared, name, _stub(branch))
            graphs[name] = _convert(branch, fold_quantize)
    converted: GraphModule = convert_pt2e(prepared, fold_quantize=fold_quantize)
    for name, graph in graphs.items():
        setattr(converted, name, graph)
    _lift(converted)
    return converted


def _stub(prepared: GraphModule) -> GraphModule:
    graph = Graph()
    graph.output(())
    stub = GraphModule(torch.nn.Module(), graph)
    stub.meta.update(prepared.meta)
    return stub


@dataclass
class _ObservedBranch:
    part: Subgraph  # position of the branch in the operator
    owner: GraphModule
    graph: GraphModule
    alternatives: list[_ObservedBranch]
    around: tuple[_ObservedBranch, ...]
    operands: list[tuple[Any, ...]]  # operands of the first call, recorded by ``hook``
    hook: Any

    @property
    def label(self) -> str:
        path = ".".join(branch.part.name for branch in (*self.around, self))
        return f"{path} ({self.part.description} of {self.part.node.name})"


#: Maximum number of samples for each unreached branch.
_MOST_FORCED = 16


def _watch_branches(model: GraphModule, around: tuple[_ObservedBranch, ...] = ()) -> Iterator[_ObservedBranch]:
    for node in _control_flow(model):
        alternatives: list[_ObservedBranch] = []
        for part in subgraphs_of(node):
            graph, operands = part.of(model), list[tuple[Any, ...]]()

            def record(module: Any, args: tuple[Any, ...], operands: list[tuple[Any, ...]] = operands) -> None:
                if not operands:
                    operands.append(args)

            hook = graph.register_forward_pre_hook(record)
            alternatives.append(_ObservedBranch(part, model, graph, alternatives, around, operands, hook))
        for branch in alternatives:
            yield branch
            yield from _watch_branches(branch.graph, (*around, branch))


@contextmanager
def _force(branches: Sequence[_ObservedBranch]) -> Iterator[None]:
    replaced = [(branch, alternative) for branch in branches for alternative in branch.alternatives]
    for branch, alternative in replaced:
        setattr(branch.owner, alternative.part.name, branch.graph)
    try:
        yield
    finally:
        for _, alternative in replaced:
            setattr(alternative.owner, alternative.part.name, alternative.graph)


def _observe_unreached(model: GraphModule, branches: Sequence[_ObservedBranch], samples: Sequence[tuple[Any, ...]]) -> None:
    """Run each branch that no sample reached, outer branches first, with the operands of a sibling branch."""
    unreached, unseen = list[str](), list[str]()
    for branch in branches:
        if branch.operands:
            continue
        path = (*branch.around, branch)
        if all(step.part.node.target is torch.ops.higher_order.cond for step in path):
            with _force(path):
                for sample in samples[:_MOST_FORCED]:
                    model(*sample)
        elif any(alternative.operands for alternative in branch.alternatives):
            branch.graph(*next(alternative.operands[0] for alternative in branch.alternatives if alternative.operands))
        (unreached if branch.operands else unseen).append(branch.label)
    if unseen:
        raise QuantizationError(
            "submodules.unreached_branch",
            f"none of {len(samples)} calibration samples reached {'; '.join(unseen)}, so activation ranges are unknown. Add a "
            "sample that reaches each branch.",
        )
    if unreached:
        logger.warning(
            "the %d calibration samples never reached %s. These branches were calibrated with the operands of other "
            "branches, so their ranges may be wrong. Add a sample for each branch. [submodules.unreached_branch]",
            len(samples),
            "; ".join(unreached),
        )
