"""Quantizing a model whose control flow holds graphs of its own: the branches of torch.cond, the two parts of while_loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.observer import ObserverBase
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer import Quantizer

from ethorch.errors import QuantizationError

#: Control flow -> which of its arguments are graphs, and what to call them.
_GRAPHS = {
    torch.ops.higher_order.cond: {1: "the branch for true", 2: "the branch for false"},
    torch.ops.higher_order.while_loop: {0: "the condition", 1: "the body"},
}
#: Prepared and converted by torchao itself, together with the graph they are in.
_BY_TORCHAO = {(torch.ops.higher_order.while_loop, 1)}


def branches(model: GraphModule) -> Iterator[tuple[Node, int, str, str]]:
    """(control flow node, argument index, attribute name, what it is) of each graph that the model's control flow holds."""
    for node in model.graph.nodes:
        for index, what in _GRAPHS.get(node.target, {}).items() if node.op == "call_function" else ():
            branch = node.args[index]
            if isinstance(branch, Node) and branch.op == "get_attr":
                yield node, index, str(branch.target), what


def quantize_with_submodules(
    quantizer: Quantizer, model: GraphModule, samples: Sequence[tuple[Any, ...]], is_qat: bool, fold_quantize: bool
) -> GraphModule:
    """See ``TOSAQuantizer.quantize_with_submodules``."""
    if not samples:
        raise QuantizationError(
            "quantize.no_samples", "quantize_with_submodules got no calibration samples; give one for each path at least"
        )
    prepared = _prepare(model, quantizer, is_qat)
    calls: dict[str, int] = {}
    handles = list(_count_calls(prepared, "", calls))
    with torch.no_grad():
        for sample in samples:
            prepared(*sample)
    for handle in handles:
        handle.remove()
    unreached = [name for name, count in calls.items() if not count]
    if unreached:
        raise QuantizationError(
            "submodules.unreached_branch",
            f"no calibration sample reached {'; '.join(unreached)}. Its ranges are unknown: add a sample that takes this path, "
            f"or leave it in float. {len(samples)} sample(s) were given.",
        )
    return _convert(prepared, is_qat, fold_quantize)


def _inline(model: GraphModule) -> None:
    """Parameters that a branch gets as arguments become its own attributes, so that quantizing them can be done once."""
    for node in _control_flow(model):
        carried = len(node.args[2]) if node.target is torch.ops.higher_order.while_loop else 0  # type: ignore[arg-type]
        operands = list(node.args[3])  # type: ignore[arg-type]
        for index in range(len(operands) - 1, -1, -1):
            operand = operands[index]
            tensor = _attribute(model, operand) if isinstance(operand, Node) and operand.op == "get_attr" else None
            if tensor is None or _is_written(operand):
                continue
            del operands[index]
            for branch in _graphs(model, node):
                placeholder = [n for n in branch.graph.nodes if n.op == "placeholder"][carried + index]
                with branch.graph.inserting_before(placeholder):
                    inner = branch.graph.get_attr(_register(branch, f"{operand.name}", tensor))
                inner.meta = dict(placeholder.meta)
                placeholder.replace_all_uses_with(inner)
                branch.graph.erase_node(placeholder)
        node.update_arg(3, tuple(operands))
        for branch in _graphs(model, node):
            branch.recompile()
    model.recompile()


def _lift(model: GraphModule) -> None:
    """Tensors that a branch holds become arguments again, as torch.export wants them."""
    for node in _control_flow(model):
        graphs = _graphs(model, node)
        for number, owner in enumerate(graphs):
            for inner in [n for n in owner.graph.nodes if n.op == "get_attr" and _attribute(owner, n) is not None]:
                tensor = _attribute(owner, inner)
                assert tensor is not None
                with model.graph.inserting_before(node):
                    name = f"{node.name}_graph{number}_{inner.target}".replace(".", "_")  # no name of a branch's node
                    outer = model.graph.get_attr(_register(model, name, tensor))
                outer.meta = dict(inner.meta)
                node.update_arg(3, (*node.args[3], outer))  # type: ignore[misc]
                for branch in graphs:
                    placeholders = [n for n in branch.graph.nodes if n.op == "placeholder"]
                    behind = branch.graph.inserting_after(placeholders[-1]) if placeholders else branch.graph.inserting_before()
                    with behind:
                        placeholder = branch.graph.placeholder(outer.name)
                    placeholder.meta = dict(inner.meta)
                    if branch is owner:
                        given = placeholder
                        if branch.graph.output_node() in inner.users:  # a branch may not return its argument itself
                            with branch.graph.inserting_before(inner):
                                given = branch.graph.call_function(torch.ops.aten.clone.default, (placeholder,))
                            given.meta = dict(inner.meta)
                        inner.replace_all_uses_with(given)
                        branch.graph.erase_node(inner)
        for branch in graphs:
            branch.graph.lint()
            branch.recompile()
    model.recompile()


def _control_flow(model: GraphModule) -> list[Node]:
    return [node for node in model.graph.nodes if node.op == "call_function" and node.target in _GRAPHS]


def _graphs(model: GraphModule, node: Node) -> list[GraphModule]:
    """The graphs of one control flow node, each once."""
    graphs = [model.get_submodule(str(node.args[index].target)) for index in _GRAPHS[node.target]]  # type: ignore[union-attr, index]
    return list(dict.fromkeys(graphs))  # type: ignore[arg-type]


def _attribute(model: GraphModule, node: Node) -> torch.Tensor | None:
    value: object = model
    for part in str(node.target).split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, torch.Tensor) else None


def _register(model: GraphModule, wanted: str, tensor: torch.Tensor) -> str:
    """Make the tensor a parameter or buffer of the model, under that name or one like it."""
    name, number = wanted, 0
    while hasattr(model, name):
        number += 1
        name = f"{wanted}_{number}"
    if isinstance(tensor, torch.nn.Parameter):
        model.register_parameter(name, tensor)
    else:
        model.register_buffer(name, tensor)
    return name


def _is_written(node: Node) -> bool:
    return any(getattr(getattr(user.target, "_schema", None), "is_mutable", False) for user in node.users)


def _prepare(model: GraphModule, quantizer: Quantizer, is_qat: bool) -> GraphModule:
    _inline(model)
    prepared = (prepare_qat_pt2e if is_qat else prepare_pt2e)(model, quantizer)
    for node, index, name, _ in branches(prepared):
        branch = prepared.get_submodule(name)
        done = (node.target, index) in _BY_TORCHAO and not is_qat
        assert isinstance(branch, GraphModule)
        if not done:
            setattr(prepared, name, _prepare(branch, quantizer, is_qat))
        else:
            for _, _, inner, _ in branches(branch):
                setattr(branch, inner, _prepare(branch.get_submodule(inner), quantizer, is_qat))  # type: ignore[arg-type]
    return prepared


def _convert(prepared: GraphModule, is_qat: bool, fold_quantize: bool) -> GraphModule:
    for node, index, name, _ in branches(prepared):
        branch = prepared.get_submodule(name)
        assert isinstance(branch, GraphModule)
        if (node.target, index) not in _BY_TORCHAO:
            setattr(prepared, name, _convert(branch, is_qat, fold_quantize))
        else:
            for _, _, inner, _ in branches(branch):
                setattr(branch, inner, _convert(branch.get_submodule(inner), is_qat, fold_quantize))  # type: ignore[arg-type]
    converted = convert_pt2e(prepared, fold_quantize=fold_quantize)
    _lift(converted)
    return converted


def _count_calls(model: GraphModule, path: str, calls: dict[str, int]) -> Iterator[Any]:
    """Hooks that count how often each branch runs, for branches in which something is quantized."""
    for node, _, name, what in branches(model):
        branch = model.get_submodule(name)
        if not any(isinstance(module, ObserverBase) for module in branch.modules()):
            continue
        label = f"{path}{name} ({what} of {node.name})"
        calls[label] = 0

        def count(module: Any, args: Any, label: str = label) -> None:
            calls[label] += 1

        yield branch.register_forward_pre_hook(count)
        assert isinstance(branch, GraphModule)
        yield from _count_calls(branch, f"{path}{name}.", calls)
