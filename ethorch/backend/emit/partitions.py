"""Replace the partitions of a converted graph with delegate calls, without ExecuTorch."""

from __future__ import annotations

import copy
import heapq
import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from ethorch.backend.dry_run import DryRun
from ethorch.backend.emit import reasons
from ethorch.backend.emit.checks import check_layouts, set_values
from ethorch.backend.emit.partial_writes import write_parts, write_to_views
from ethorch.backend.root_causes import root_causes
from ethorch.lower.fx.node import (
    ASSERTIONS,
    DEQUANTIZE,
    QUANTIZE,
    Converted,
    constants_of,
    converts_input,
    is_in_place,
    op_name,
    origin_of,
    target_buffer,
)
from ethorch.lower.fx.states import writes_of
from ethorch.lower.partition_report import PartitionReport, Refusal
from ethorch.lower.walk import Walk
from ethorch.support.errors import Reason, Unsupported
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.tuning import Tuning
from ethorch.tosa.ir import Graph as TosaGraph
from ethorch.tosa.verify import verify
from ethorch.vela.delegate import builder_for

_TAG = "delegation_tag"
#: Quantize and dequantize operators with one scale per tensor.
_PER_TENSOR = frozenset(f"quantized_decomposed.{name}_per_tensor.default" for name in ("quantize", "dequantize"))


def call_delegate(inputs: Sequence[Tensor], number: int) -> list[Tensor]:
    """Represent the delegate of partition ``number`` in a graph.

    Calls are never executed. Their ``meta["val"]`` contains meta tensors.
    """
    raise NotImplementedError


@dataclass(frozen=True)
class Partition:
    """The TOSA graph of a partition, and the ``Tuning`` for the rewrites of this graph."""

    graph: TosaGraph
    tuning: Tuning


@dataclass(frozen=True)
class PartitionedGraph:
    """A graph with one call to ``call_delegate`` for each partition.

    Attributes:
        module: Graph of CPU operators and delegate calls.
        partitions: The partition of each call.
        report: Operators in the partitions, and refused operators with their reasons.
        buffers: Names of the mutable buffers.
    """

    module: GraphModule
    partitions: tuple[Partition, ...]
    report: PartitionReport
    buffers: tuple[str, ...]


def partition_graph(module: GraphModule, spec: EthosUCompileSpec) -> PartitionedGraph | Reason:
    """Copy a graph from ``convert_pt2e``, and lower the copy's partitions.

    If ethorch's ``.pte`` writer does not support the graph, e.g. because of control flow, return the reason instead.
    """
    program = Converted(GraphModule(module, copy.deepcopy(module.graph)))
    graph = program.graph
    problem = set_values(program.graph_module) or check_layouts(program.graph_module) or _check_writes(program)
    if problem is not None:
        return problem
    buffers = _find_mutable_buffers(graph)
    _remove_idle_writes(graph)
    program = replace(program, mutable=buffers)
    parts = write_parts(program.graph_module, constants_of(program))
    choice = DryRun(spec)
    choice.pick_codes(program)
    supported, refusals = choice.dry_run(program)
    refusals = root_causes(refusals)
    choice.report.refusals = [
        Refusal(node.name, origin_of(node), refusals[node])
        for node in graph.nodes
        if node in refusals and node.target is not operator.getitem and not converts_input(node) and not _writes_codes(node)
    ]
    tags = choice.tag(program, supported)
    if not tags:
        return reasons.no_delegate()
    partitions = []
    is_whole = _is_fully_delegated(graph)
    for number, tag in enumerate(tags):
        nodes = [node for node in graph.nodes if node.meta.get(_TAG) == tag]
        inputs = _inputs_of(nodes)
        if is_whole:
            inputs = [node for node in graph.nodes if node in inputs]
        partition = _replace_by_call(program, nodes, inputs, number, spec)
        if isinstance(partition, Reason):
            return partition
        partitions.append(partition)
    write_to_views(graph, parts)
    _sort(graph)
    graph.eliminate_dead_code(
        lambda node: node.is_impure() or is_in_place(node) or (node.op == "get_attr" and str(node.target) in buffers)
    )
    small = GraphModule(program.graph_module, graph)  # without unused parameters
    return PartitionedGraph(small, tuple(partitions), choice.report, buffers)


def _check_writes(program: Converted) -> Reason | None:
    places = {node: number for number, node in enumerate(program.graph.nodes)}
    for node in program.graph.nodes:
        if node.op == "call_function" and is_in_place(node):
            changed = node.args[0]
            is_late = any(places[user] > places[node] for user in changed.users)
            if node.users or is_late or changed.op not in ("get_attr", "placeholder"):
                return reasons.in_place(node.name)
    return None


def _writes_codes(node: Node) -> bool:
    if not is_in_place(node):
        return False
    target = node.args[0]
    return isinstance(target, Node) and not target.meta["val"].dtype.is_floating_point


def _find_mutable_buffers(graph: Graph) -> tuple[str, ...]:
    written = [target_buffer(node) for node in graph.nodes if node.op == "call_function" and is_in_place(node)]
    return tuple(dict.fromkeys(str(node.target) for node in written if node is not None))


def _remove_idle_writes(graph: Graph) -> None:
    for name, write in writes_of(graph).items():
        buffer, written = write.args[:2]
        assert isinstance(buffer, Node) and isinstance(written, Node)
        if not buffer.meta["val"].dtype.is_floating_point and _is_unchanged(name, written):
            graph.erase_node(write)
            graph.eliminate_dead_code(lambda node: node.is_impure() or is_in_place(node) or node.op == "get_attr")


def _is_unchanged(name: str, written: Node) -> bool:
    parameters = set()
    while written.op == "call_function":
        if op_name(written.target) in _PER_TENSOR:
            parameters.add(written.args[1:6])
        elif written.target is not torch.ops.aten.clone.default:
            return False
        written = written.all_input_nodes[0]
    return written.op == "get_attr" and str(written.target) == name and len(parameters) <= 1


def _sort(graph: Graph) -> None:
    places = {node: number for number, node in enumerate(graph.nodes)}
    waiting = {node: len(node.all_input_nodes) for node in graph.nodes}

    def entry(node: Node) -> tuple[int, int, Node]:
        late = 2 if node.op == "output" else 1 if node.op == "call_function" and is_in_place(node) else 0
        return late, places[node], node

    free = [entry(node) for node, count in waiting.items() if not count]
    heapq.heapify(free)
    ordered: list[Node] = []
    while free:
        node = heapq.heappop(free)[2]
        ordered.append(node)
        for user in node.users:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(free, entry(user))
    for before, node in itertools.pairwise(ordered):
        before.append(node)


def _is_fully_delegated(graph: Graph) -> bool:
    conversions = QUANTIZE | DEQUANTIZE | ASSERTIONS
    calls = (node for node in graph.nodes if node.op == "call_function" and _TAG not in node.meta)
    return all(op_name(node.target) in conversions or converts_input(node) or is_in_place(node) for node in calls)


def _inputs_of(nodes: Sequence[Node]) -> list[Node]:
    inside = set(nodes)
    return list(dict.fromkeys(arg for node in nodes for arg in node.all_input_nodes if arg not in inside))


def _replace_by_call(
    program: Converted, nodes: Sequence[Node], read: Sequence[Node], number: int, spec: EthosUCompileSpec
) -> Partition | Reason:
    constants = constants_of(program)
    inside, inputs, graph = set(nodes), list[Node](), Graph()
    copies: dict[Node, Node] = {}
    for arg in read:
        if constants(arg) is not None:
            copies[arg] = graph.node_copy(arg)
            continue
        copies[arg] = graph.placeholder(arg.name)
        copies[arg].meta["val"] = _empty_like(arg)
        inputs.append(arg)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    outputs = [node for node in nodes if any(user not in inside for user in node.users)]
    if not inputs:
        return reasons.no_input(str(number))
    builder = builder_for(spec.target)
    walk = Walk(graph, constants, builder, strict=False).run()
    for node, reason in walk.refusals.items():
        return reasons.vela_refusal(f"{node.name}: {reason}")
    try:
        walk.give([(copies[node], tuple(range(node.meta["val"].dim()))) for node in outputs])
    except Unsupported as refusal:
        return reasons.vela_refusal(str(refusal.reason))
    order = [next(k for k, arg in enumerate(inputs) if walk.inputs.get(copies[arg]) is value) for value in builder.graph.inputs]
    verify(builder.graph)
    with program.graph.inserting_after(nodes[-1]):
        call = program.graph.call_function(call_delegate, ([inputs[k] for k in order], number))
    call.meta["val"] = [_empty_like(node) for node in outputs]
    for k, node in reversed(list(enumerate(outputs))):
        with program.graph.inserting_after(call):
            item = program.graph.call_function(operator.getitem, (call, k))
        item.meta = {key: value for key, value in node.meta.items() if key != _TAG}
        node.replace_all_uses_with(item, delete_user_cb=lambda user: user not in inside)
    for node in reversed(nodes):
        program.graph.erase_node(node)
    return Partition(builder.graph, builder.tuning)


def _empty_like(node: Node) -> Tensor:
    value = node.meta["val"]
    return torch.empty(value.shape, dtype=value.dtype, device="meta")
