"""A converted graph with some of its operators on the CPU: lowered as it is, and only the CPU's part shown to ExecuTorch.

ExecuTorch exports a graph anew and traces it several times, some 0.1 s an operator. What the NPU computes need not take part:
each partition is compiled from the converted graph, and a call of ``ethorch::delegate`` stands for it in the graph that
ExecuTorch gets, whose partitioner then hands over what is compiled already.
"""

from __future__ import annotations

import copy
import functools
import heapq
import itertools
import logging
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from ethorch.backend.cpu_kernels import without_kernel
from ethorch.backend.emit.mixed import DELEGATE
from ethorch.backend.emit.partial_writes import at_their_places, write_parts
from ethorch.backend.emit.whole import NotWhole, check_layouts, give_values
from ethorch.backend.handover import attach
from ethorch.backend.partitioner import EthosUPartitioner
from ethorch.backend.preprocess import READY, EthosUBackend, register_quantized_kernels
from ethorch.backend.root_causes import root_causes
from ethorch.lower.fx.node import Converted, changes_in_place, constants_of, converts_input, op_name, origin_of
from ethorch.lower.partition_report import PartitionReport, Refusal, refusal_texts
from ethorch.lower.walk import Walk
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.tosa.verify import verify
from ethorch.vela.delegate import builder_for, compile_lowered
from ethorch.vela.lowered import Lowered

logger = logging.getLogger(__name__)

_TAG = "delegation_tag"
_numbers = itertools.count()
_results: dict[int, list[Tensor]] = {}  # number of a delegate -> what it returns, on the meta device


@functools.cache
def _delegate_operator() -> tuple[torch.library.Library, Any]:
    """``ethorch::delegate(Tensor[] inputs, int number) -> Tensor[]``, which only stands for a delegate; defined on first use."""
    library = torch.library.Library("ethorch", "DEF")
    library.define("delegate(Tensor[] inputs, int number) -> Tensor[]")

    def results(inputs: Sequence[Tensor], number: int) -> list[Tensor]:
        return [inputs[0].new_empty(value.shape, dtype=value.dtype) for value in _results[number]]

    torch.library.register_fake("ethorch::delegate", results, lib=library)
    return library, torch.ops.ethorch.delegate.default


@dataclass(frozen=True)
class Reduced:
    """A graph in which each partition is one call.

    Attributes:
        module: the graph.
        partitioner: for ``to_edge_transform_and_lower``.
    """

    module: GraphModule
    partitioner: ReadyPartitioner


@contextmanager
def reduced(module: GraphModule, spec: EthosUCompileSpec) -> Iterator[Reduced]:
    """``module``, which ``convert_pt2e`` returned and which stays as it is, with its partitions compiled; inside the context.

    Raises:
        NotWhole: it has control flow, or tensors that do not lie row by row, or no operator for the NPU.
        VelaError: Vela declined a delegate.
    """
    program = Converted(GraphModule(module, copy.deepcopy(module.graph)))
    give_values(program.graph_module)
    check_layouts(program.graph_module)
    _check_writes(program)
    parts = write_parts(program.graph_module, constants_of(program))
    choice = EthosUPartitioner(spec)
    choice.pick_codes(program)
    supported, refusals = choice.dry_run(program)
    refusals = root_causes(refusals)
    choice.report.refusals = [
        Refusal(node.name, origin_of(node), refusals[node])
        for node in program.graph.nodes
        if node in refusals and node.target is not operator.getitem and not converts_input(node)
    ]
    tags = choice.tag(program, supported)
    if not tags:
        raise NotWhole("no operator runs on the NPU")
    delegates: dict[int, Lowered] = {}
    try:
        for tag in tags:
            nodes = [node for node in program.graph.nodes if node.meta.get(_TAG) == tag]
            number = next(_numbers)
            delegates[number] = _put_in_place(program, nodes, number, spec)
        at_their_places(program.graph, parts)
        _put_in_order(program.graph)
        program.graph.eliminate_dead_code(lambda node: node.is_impure() or changes_in_place(node))
        small = GraphModule(program.graph_module, program.graph)  # with the parameters that are left
        yield Reduced(small, ReadyPartitioner(spec, choice.report, delegates))
    finally:
        for number in delegates:
            _results.pop(number, None)


def _check_writes(program: Converted) -> None:
    """What the program changes, it reads before: the order of the calls that stand for partitions says nothing of the writes."""
    places = {node: number for number, node in enumerate(program.graph.nodes)}
    for node in program.graph.nodes:
        if node.op == "call_function" and changes_in_place(node):
            changed = node.args[0]
            late = [user for user in changed.users if places[user] > places[node]]
            if node.users or late or changed.op not in ("get_attr", "placeholder"):
                raise NotWhole(f"{node.name} changes {changed.name}, which something reads behind it")


def _put_in_order(graph: Graph) -> None:
    """Sort the nodes so that each stands behind what it reads, as near to the order they have as that allows; writes come last."""
    places = {node: number for number, node in enumerate(graph.nodes)}
    waiting = {node: len(node.all_input_nodes) for node in graph.nodes}

    def entry(node: Node) -> tuple[int, int, Node]:
        late = 2 if node.op == "output" else 1 if node.op == "call_function" and changes_in_place(node) else 0
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


def _put_in_place(program: Converted, nodes: Sequence[Node], number: int, spec: EthosUCompileSpec) -> Lowered:
    """Compile a partition and let a call stand for it."""
    constants = constants_of(program)
    inside, inputs, graph = set(nodes), list[Node](), Graph()
    copies: dict[Node, Node] = {}
    for node in nodes:
        for arg in node.all_input_nodes:
            if arg in copies:
                continue
            if constants(arg) is not None:
                copies[arg] = graph.node_copy(arg)
                continue
            copies[arg] = graph.placeholder(arg.name)
            value = arg.meta["val"]
            copies[arg].meta["val"] = torch.empty(value.shape, dtype=value.dtype, device="meta")
            inputs.append(arg)
        copies[node] = graph.node_copy(node, copies.__getitem__)
    outputs = [node for node in nodes if any(user not in inside for user in node.users)]
    if not inputs:
        raise NotWhole("a delegate has no input")
    builder = builder_for(spec.target)
    walk = Walk(graph, constants, builder, strict=False).run()
    for node, reason in walk.refusals.items():
        raise NotWhole(f"{node.name}: {reason}")
    walk.give([(copies[node], tuple(range(node.meta["val"].dim()))) for node in outputs])
    order = [next(k for k, arg in enumerate(inputs) if walk.inputs.get(copies[arg]) is value) for value in builder.graph.inputs]
    verify(builder.graph)
    lowered = compile_lowered(builder.graph, builder.tuning, spec)
    _results[number] = [torch.empty(node.meta["val"].shape, dtype=node.meta["val"].dtype, device="meta") for node in outputs]
    with program.graph.inserting_after(nodes[-1]):
        call = program.graph.call_function(_delegate_operator()[1], ([inputs[k] for k in order], number))
    for k, node in reversed(list(enumerate(outputs))):
        with program.graph.inserting_after(call):
            item = program.graph.call_function(operator.getitem, (call, k))
        item.meta = {key: value for key, value in node.meta.items() if key != _TAG}
        node.replace_all_uses_with(item, delete_user_cb=lambda user: user not in inside)
    for node in reversed(nodes):
        program.graph.erase_node(node)
    return lowered


@final
class ReadyPartitioner(Partitioner):  # type: ignore[misc]  # ExecuTorch has no types
    """Tags each call of ``ethorch::delegate`` with what is compiled for it.

    Attributes:
        report: what ran where, as of EthosUPartitioner.
    """

    def __init__(self, spec: EthosUCompileSpec, report: PartitionReport, delegates: dict[int, Lowered]):
        super().__init__()
        self.delegation_spec = DelegationSpec(EthosUBackend.__name__, spec.publish().to_list())
        self.compile_spec, self.report, self.delegates = spec, report, delegates

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """A delegate for each call and the items of its result.

        Raises:
            NotWhole: nobody reads one of the results any more, since ExecuTorch has taken an operator apart and no part reads it;
                or two inputs have become one, since it dropped an operator that does nothing.
        """
        register_quantized_kernels()
        tags: dict[str, DelegationSpec] = {}
        for node in exported_program.graph.nodes:
            if node.op != "call_function":
                continue
            if op_name(node.target) == DELEGATE:
                number: Any = node.args[1]
                read = {item.args[1] for item in node.users if item.users}
                if len(read) < len(self.delegates[number].payload.outputs):
                    raise NotWhole("ExecuTorch's export dropped what read a result of a delegate")
                if len(set(node.all_input_nodes)) < len(self.delegates[number].payload.inputs):
                    raise NotWhole("ExecuTorch's export made one of two inputs of a delegate")
                tag = f"ethosu_{number}"
                tags[tag] = self.delegation_spec
                attach((node, *node.users), self.compile_spec)
                for part in (node, *node.users):
                    part.meta[_TAG] = tag
                    part.meta[READY] = self.delegates[number]
            elif _TAG not in node.meta and (missing := without_kernel(node)):
                self.report.without_kernel.append(Refusal(node.name, origin_of(node), missing))
        return PartitionResult(exported_program, tags)

    def log(self) -> None:
        """Say what ran where, as EthosUPartitioner does."""
        for text in refusal_texts(missing.to_json() for missing in self.report.without_kernel):
            logger.warning("%s", text)
        logger.info("%s", self.report.summary())
