"""A converted graph that is one delegate as a whole: lowered as it is, without ExecuTorch."""

from __future__ import annotations

import copy
import operator
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ethorch.backend.emit.partial_writes import Part, parts_of
from ethorch.lower.builder.qparams import QTensor
from ethorch.lower.fx.control_flow import is_control_flow
from ethorch.lower.fx.node import (
    ASSERTIONS,
    DEQUANTIZE,
    INTEGERS,
    QUANTIZE,
    TOSA_DTYPE,
    Converted,
    constants_of,
    converts_input,
    op_name,
    origin_of,
    storage_order,
    tensor_of,
)
from ethorch.lower.fx.states import writes_of
from ethorch.lower.partition_report import PartitionReport, Refusal
from ethorch.lower.walk import Walk
from ethorch.support.errors import Unsupported
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.tosa.verify import verify
from ethorch.vela.delegate import builder_for, compile_lowered
from ethorch.vela.lowered import Lowered

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
        taken: what each input of the delegate is: one of ``inputs``, a quantize node of one, or a cast of an int64 one to int32; or
            the ``read`` of a state.
        given: what each output of the delegate is.
        outputs: the program's outputs, in order: each one of ``given``, or a dequantize node of one.
        partition: which operators that is.
        structure: how the program's inputs and outputs nest.
        states: name of a buffer of codes that the program changes -> its State.
    """

    lowered: Lowered
    inputs: tuple[Node, ...]
    taken: tuple[Node, ...]
    given: tuple[Node, ...]
    outputs: tuple[Node, ...]
    partition: PartitionReport
    structure: tuple[str, str]
    states: dict[str, State] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """A buffer of codes that a program changes.

    Attributes:
        read: the get_attr node that stands for it; the delegate takes it, if anything reads it.
        written: all of what is written to it, one of ``Whole.given``; None where parts are, or an input, and where it stays as it
            was read.
        initial: what it holds before the first run.
        parts: where only parts are written: those, whose rows are of ``Whole.given``.
        copied: where an input of the program is written: that one, or its quantize node, one of ``Whole.taken``.
    """

    read: Node
    written: Node | None
    initial: torch.Tensor
    parts: tuple[Part, ...] = ()
    copied: Node | None = None

    @property
    def given(self) -> tuple[Node, ...]:
        """What the delegate gives for it."""
        return tuple(node for part in self.parts for node in part.given) if self.written is None else (self.written,)


def lower_whole(module: GraphModule, spec: EthosUCompileSpec) -> Whole:
    """What ``convert_pt2e`` returned, all of it, as one delegate. The graph gets values in its metadata where it has none.

    Raises:
        NotWhole: something in it has to run on the CPU, or changes a buffer, or is not laid out row by row.
        VelaError: Vela declined the graph.
    """
    give_values(module)
    check_layouts(module)
    graph, states = _states_apart(module)
    inputs = tuple(node for node in graph.nodes if node.op == "placeholder")
    outputs = _flat(next(node for node in graph.nodes if node.op == "output"))
    builder = builder_for(spec.target)
    walk = _WholeWalk(graph, constants_of(Converted(module)), builder, strict=False).run()
    written = {node for state in states.values() for node in state.given}
    _check_all_there(walk, written | {state.copied for state in states.values() if state.copied is not None})
    places = {node: number for number, node in enumerate(graph.nodes)}
    given = sorted({*map(_before_dequantize, outputs), *written}, key=places.__getitem__)
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
        if not (node.op == "get_attr" and str(node.target) in states):
            _check_input(node)
    verify(builder.graph)
    report = PartitionReport(spec.target.name)
    report.delegated["ethosu_0"] = [node.name for node in graph.nodes if node in walk.supported and not _plumbing(node)]
    report.refusals = [
        Refusal(node.name, origin_of(node), reason) for node, reason in walk.refusals.items() if not converts_input(node)
    ]
    lowered = compile_lowered(builder.graph, builder.tuning, spec)
    return Whole(lowered, inputs, taken, tuple(given), outputs, report, structure_of(module), states)


class _WholeWalk(Walk):
    """A walk that ends where an operator would have to run on the CPU."""

    def call(self, node: Node) -> None:
        super().call(node)
        if node in self.refusals and not _narrows_input(node):
            raise NotWhole(f"{node.name}: {self.refusals[node]}")


def _states_apart(module: GraphModule) -> tuple[Graph, dict[str, State]]:
    """The graph without the writes at its end, in which one node stands for each buffer; and what is written.

    It is a copy, unless nothing is to be taken out.

    Raises:
        NotWhole: something changes a tensor in another way than by codes that are copied into a buffer of codes.
    """
    if not writes_of(module.graph) and all(node.users or node.is_impure() for node in module.graph.nodes):
        return module.graph, {}  # the copy would be the same
    graph, states = copy.deepcopy(module.graph), dict[str, State]()
    constants = constants_of(Converted(module))
    for name, write in writes_of(graph).items():
        buffer, written = write.args[:2]
        tensor = tensor_of(module, buffer) if isinstance(buffer, Node) else None
        if tensor is None or not isinstance(written, Node) or TOSA_DTYPE.get(tensor.dtype) not in INTEGERS:
            raise NotWhole(f"{name} is a buffer of the CPU's")
        graph.erase_node(write)
        first, *others = [node for node in graph.nodes if node.op == "get_attr" and str(node.target) == name]
        for node in others:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
        initial = tensor.detach()
        if _is_input(written):
            states[name] = State(first, None, initial, copied=written)
            continue
        left = _unless_read_from(first, written)
        parts = None if left is None else parts_of(constants, graph, first, written)
        states[name] = State(first, left if parts is None else None, initial, parts or ())
    kept = {node for state in states.values() for node in (state.read, *state.given, *filter(None, [state.copied]))}
    graph.eliminate_dead_code(lambda node: node.is_impure() or node in kept)
    return graph, states


def _unless_read_from(buffer: Node, written: Node) -> Node | None:
    """What is written to a buffer; None, and gone from the graph where nothing else reads it, if it is what was read from it."""
    chain, parameters = [written], set()
    while chain[-1] is not buffer:
        node = chain[-1]
        if op_name(node.target) in (_PER_TENSOR_QUANTIZE, _PER_TENSOR_DEQUANTIZE):
            parameters.add(node.args[1:6])
        elif node.target is not torch.ops.aten.clone.default:
            return written
        chain.append(node.all_input_nodes[0])
    if len(parameters) > 1:
        return written
    for node in chain[:-1]:
        if node.users:
            break
        node.graph.erase_node(node)
    return None


def _is_input(node: Node) -> bool:
    """Is it an input of the program, or a quantize node of one?"""
    source = node.args[0] if node.op == "call_function" and op_name(node.target) == _PER_TENSOR_QUANTIZE else node
    return isinstance(source, Node) and source.op == "placeholder"


def structure_of(module: GraphModule) -> tuple[str, str]:
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


def _check_all_there(walk: Walk, written: Set[Node]) -> None:
    """No operator computes something that nobody is given and that is not ``written`` to a buffer."""
    for node in walk.graph.nodes:
        if node.op == "call_module" and node.users:
            raise NotWhole(f"{node.name} is a module")
        if node.op == "call_function" and not node.users and node not in written and op_name(node.target) not in ASSERTIONS:
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
    if node.op == "placeholder" or _narrows_input(node):
        return
    simple = op_name(node.target) == _PER_TENSOR_QUANTIZE and not any(isinstance(arg, Node) for arg in node.args[1:])
    source: Any = node.args[0] if simple else None
    if source is None or source.op != "placeholder" or source.meta["val"].dtype != torch.float32:
        raise NotWhole(f"{node.name} is no input that is quantized by one scale")


def _narrows_input(node: Node) -> bool:
    """Is it an int64 input as int32, which the CPU makes of a token or a position?"""
    return converts_input(node) and node.all_input_nodes[0].op == "placeholder" and bool(node.meta["val"].dtype == torch.int32)


def _plumbing(node: Node) -> bool:
    return op_name(node.target) in QUANTIZE | DEQUANTIZE | ASSERTIONS or node.target is operator.getitem
