"""A converted graph that is one delegate as a whole: lowered as it is, without ExecuTorch."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ethorch.builder.qparams import QTensor
from ethorch.errors import Unsupported
from ethorch.fx.control_flow import is_control_flow
from ethorch.fx.node import ASSERTIONS, DEQUANTIZE, QUANTIZE, Converted, constants_of, op_name, storage_order, tensor_of
from ethorch.lower.delegate import Lowered, builder_for, compile_graph, rewritten
from ethorch.lower.partition_report import PartitionReport
from ethorch.lower.walk import Walk
from ethorch.target.compile_spec import EthosUCompileSpec
from ethorch.tosa.verify import verify

_PER_TENSOR_QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
_PER_TENSOR_DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor.default"


class NotWhole(Exception):
    """The program is not one delegate between quantize and dequantize nodes; the message says what else it has."""


@dataclass(frozen=True)
class Whole:
    """A program that is one delegate.

    Attributes:
        lowered: the delegate.
        inputs: the program's inputs, in order: placeholders.
        taken: what each input of the delegate is: one of ``inputs``, or a quantize node of one.
        given: what each output of the delegate is.
        outputs: the program's outputs, in order: each one of ``given``, or a dequantize node of one.
        partition: which operators that is.
        structure: how the program's inputs and outputs nest.
    """

    lowered: Lowered
    inputs: tuple[Node, ...]
    taken: tuple[Node, ...]
    given: tuple[Node, ...]
    outputs: tuple[Node, ...]
    partition: PartitionReport
    structure: tuple[str, str]


def lower_whole(module: GraphModule, spec: EthosUCompileSpec) -> Whole:
    """What ``convert_pt2e`` returned, all of it, as one delegate. The graph gets values in its metadata where it has none.

    Raises:
        NotWhole: something in it has to run on the CPU, or changes a buffer, or is not laid out row by row.
        VelaError: Vela declined the graph.
    """
    graph = module.graph
    inputs = tuple(node for node in graph.nodes if node.op == "placeholder")
    outputs = _flat(next(node for node in graph.nodes if node.op == "output"))
    give_values(module)
    check_layouts(module)
    builder = builder_for(spec.target)
    walk = Walk(graph, constants_of(Converted(module)), builder, strict=False).run()
    _check_all_there(walk)
    places = {node: number for number, node in enumerate(graph.nodes)}
    given = sorted({_before_dequantize(node) for node in outputs}, key=places.__getitem__)
    for node in given:
        if not isinstance(walk.plain(walk.env[node]), QTensor) or node.op != "call_function":
            raise NotWhole(f"output {node.name} is not computed by the NPU")
    try:
        walk.give([(node, tuple(range(node.meta["val"].dim()))) for node in given])
    except Unsupported as refusal:
        raise NotWhole(str(refusal.reason)) from None
    sources = {id(value): node for node, value in walk.inputs.items()}
    taken = tuple(sources[id(value)] for value in builder.graph.inputs)
    for node in taken:
        _check_input(node)
    verify(builder.graph)
    report = PartitionReport(spec.target.name)
    report.delegated["ethosu_0"] = [node.name for node in graph.nodes if node in walk.supported and not _plumbing(node)]
    lowered = compile_graph(rewritten(builder.graph, builder.tuning, spec), spec)
    return Whole(lowered, inputs, taken, tuple(given), outputs, report, _structure(module))


def _structure(module: GraphModule) -> tuple[str, str]:
    """As ExecuTorch writes it: torch's own words for the nests of inputs and outputs; nothing where torch did not keep them."""
    specs = (getattr(module, "_in_spec", None), getattr(module, "_out_spec", None))
    inputs, outputs = ("" if spec is None else torch.utils._pytree.treespec_dumps(spec) for spec in specs)
    return inputs, outputs


def _flat(output: Node) -> tuple[Node, ...]:
    """What the graph returns, each a tensor of its own."""
    leaves = torch.utils._pytree.tree_leaves(output.args)
    if not leaves or not all(isinstance(leaf, Node) for leaf in leaves):
        raise NotWhole("it returns something that is no tensor")
    return tuple(leaves)


def give_values(module: GraphModule) -> None:
    """``meta["val"]`` for what prepare and convert put into the graph: quantize and dequantize nodes, folded parameters."""
    for node in module.graph.nodes:
        name = op_name(node.target) if node.op == "call_function" else ""
        if node.op == "get_attr":
            tensor = tensor_of(module, node)
            if tensor is None:
                raise NotWhole(f"{node.name} is no tensor")
            node.meta["val"] = tensor.detach().to("meta")
        elif name in QUANTIZE | DEQUANTIZE:
            source = node.args[0].meta["val"]
            dtype = node.args[-1] if name in QUANTIZE else node.kwargs.get("out_dtype") or torch.float32
            node.meta["val"] = torch.empty(source.shape, dtype=dtype, device="meta")
        elif node.op in ("placeholder", "call_function") and "val" not in node.meta and name not in ASSERTIONS:
            raise NotWhole(f"nothing is known of {node.name}")


def check_layouts(module: GraphModule) -> None:
    """Everything lies in memory row by row, so that the delegate's tensors do too."""
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if node.op in ("placeholder", "get_attr") and isinstance(value, torch.Tensor):
            if storage_order(value) != tuple(range(value.dim())) or any(not isinstance(extent, int) for extent in value.shape):
                raise NotWhole(f"{node.name} is not laid out row by row, or of no fixed shape")
        elif node.op == "placeholder":
            raise NotWhole(f"input {node.name} is no tensor")
        if is_control_flow(node):
            raise NotWhole(f"{node.name} is control flow")
        if node.kwargs.get("memory_format") in (torch.channels_last, torch.channels_last_3d):
            raise NotWhole(f"{node.name} lays its result out channels last")


def _check_all_there(walk: Walk) -> None:
    """No operator was refused, and none computes something that nobody is given."""
    for node, reason in walk.refusals.items():
        raise NotWhole(f"{node.name}: {reason}")
    for node in walk.graph.nodes:
        if node.op == "call_module" and node.users:
            raise NotWhole(f"{node.name} is a module")
        if node.op == "call_function" and not node.users and op_name(node.target) not in ASSERTIONS:
            raise NotWhole(f"nothing reads {node.name}: it may change something in place")


def _before_dequantize(node: Node) -> Node:
    """The codes that an output of the program is made of."""
    if op_name(node.target) in DEQUANTIZE:
        if op_name(node.target) != _PER_TENSOR_DEQUANTIZE or node.kwargs.get("out_dtype"):
            raise NotWhole(f"output {node.name} is dequantized in another way than by one scale to float32")
        source: Node = node.args[0]  # type: ignore[assignment]
        return source
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype.is_floating_point or value.dtype == torch.int64:
        raise NotWhole(f"output {node.name} is not quantized")
    return node


def _check_input(node: Node) -> None:
    """It is an input of the program, or such an input quantized by one scale."""
    if node.op == "placeholder":
        return
    simple = op_name(node.target) == _PER_TENSOR_QUANTIZE and not any(isinstance(arg, Node) for arg in node.args[1:])
    source: Any = node.args[0] if simple else None
    if source is None or source.op != "placeholder" or source.meta["val"].dtype != torch.float32:
        raise NotWhole(f"{node.name} is no input that is quantized by one scale")


def _plumbing(node: Node) -> bool:
    return op_name(node.target) in QUANTIZE | DEQUANTIZE | ASSERTIONS or node.target is operator.getitem
