from __future__ import annotations

import operator
from collections.abc import Mapping

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ethorch.backend.codes_on_cpu import find_int32_indices, find_picks, pick_codes, widen_indices
from ethorch.backend.products_on_cpu import reason_for_cpu
from ethorch.backend.tagging import (
    constant_nodes,
    drop_asserted,
    group_nodes,
    is_plumbing,
    requantizes,
    skip_dequantize,
    tag_with_readers,
)
from ethorch.lower.fx.control_flow import is_control_flow, nodes_everywhere
from ethorch.lower.fx.node import CASTS, DEQUANTIZE, QUANTIZE, TOSA_DTYPE, Converted, constants_of, op_name, origin_of_codes
from ethorch.lower.partition_report import PartitionReport
from ethorch.lower.reasons import INT64_OUTPUT, NO_SUCH_FLOAT, NOT_OUTPUT_QUANTIZED, OTHER_RESULT
from ethorch.lower.walk import Walk
from ethorch.models.open_sizes import suppress_guards
from ethorch.support.errors import Reason
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.tosa_spec import TosaCompileSpec
from ethorch.tosa.ir import Origin
from ethorch.vela.delegate import builder_for


class DryRun:
    """A selector of the operators and partitions that run on the NPU. It does not use ExecuTorch.

    Attributes:
        report: PartitionReport of all programs processed so far.
        declined: Operators that the dry run accepted but that a delegate's lowering or Vela rejected.
        begins: Operator that begins a new delegate because a command stream was too long -> number that ``group_nodes`` adds
            to its level.
    """

    def __init__(self, compile_spec: EthosUCompileSpec | TosaCompileSpec):
        super().__init__()
        self.compile_spec = compile_spec
        self.report = PartitionReport(compile_spec.target.name)
        self.declined: dict[Origin, Reason] = {}
        self.begins: dict[Origin, int] = {}

    def refusals_by_user(self, program: ExportedProgram | Converted) -> dict[Node, Reason]:
        """Return the operators that the user's checks refuse, with reasons. The base class returns {}."""
        return {}

    def dry_run(self, program: ExportedProgram | Converted) -> tuple[set[Node], dict[Node, Reason]]:
        """Lower a graph repeatedly until no further operator is refused. Return the NPU nodes, and the CPU nodes with reasons."""
        constants = constants_of(program)
        refused = self.refusals_by_user(program)
        refused |= {
            node: self.declined[origin]
            for node in nodes_everywhere(program.graph)
            if self.declined and (origin := origin_of_codes(node)) in self.declined
        }
        refused |= {node: reason for node in nodes_everywhere(program.graph) if (reason := reason_for_cpu(node))}
        while True:
            with suppress_guards(program.graph.nodes):
                walk = Walk(program.graph, constants, builder_for(self.compile_spec.target), strict=False, refused=refused).run()
            refusals = {**walk.refusals, **_refuse_results(walk)}
            refusals |= _refuse_incomplete(walk, refusals)
            is_final = refusals.keys() == walk.refusals.keys() and not any(map(is_control_flow, program.graph.nodes))
            if refusals.keys() == refused.keys() or is_final:  # the traversal already treats refused operators as CPU operators
                return {node for node in walk.supported | walk.inside if node not in refusals}, refusals
            refused = refusals

    def pick_codes(self, program: ExportedProgram | Converted) -> None:
        """Let gathers and scatters on the CPU read integer values and int64 indices."""
        with suppress_guards(program.graph.nodes):
            picks = find_picks(program, self.compile_spec.target.limits)
        indexed = find_int32_indices(program)
        if picks or indexed:
            supported, _ = self.dry_run(program)
            widen_indices(program, [node for node in indexed if node not in supported])
            pick_codes(program, [node for node in picks if node not in supported])

    def tag(self, program: ExportedProgram | Converted, supported: set[Node]) -> list[str]:
        """Set ``delegation_tag`` in each partition, add the partitions to ``report``, and return the tags."""
        folded = constant_nodes(program, supported)
        inner = {node for node in supported if op_name(node.target) in CASTS and not self._can_leave(node)} - folded
        tagged = {node for node in supported if not is_plumbing(node)} - folded - inner
        for node in program.graph.nodes:
            follows = op_name(node.target) in QUANTIZE or node.target is operator.getitem
            if node not in supported or not follows:
                continue
            source = node.args[0]
            if op_name(source.target) in DEQUANTIZE and source in supported:  # the operator between the two was removed
                source = skip_dequantize(source)
            if source in tagged or source in inner:
                tagged.add(node)
        tagged = drop_asserted(program, tagged)
        tags: list[str] = []
        prefix = f"ethosu_{len(self.report.delegated)}"
        later = {node: self.begins.get(origin_of_codes(node), 0) for node in tagged if self.begins and not is_plumbing(node)}
        for group in group_nodes(program, tagged, inner, later):
            tag = f"{prefix}_{len(tags)}" if tags else prefix
            for node in group:
                node.meta["delegation_tag"] = tag
            tags.append(tag)
            self.report.delegated[tag] = [node.name for node in group if not is_plumbing(node)]
        for node in reversed(list(program.graph.nodes)):
            dequantizes = op_name(node.target) in DEQUANTIZE and node in supported
            if node in folded | inner or dequantizes or requantizes(node, supported, tagged):
                tag_with_readers(program, node)
        return tags

    def _can_leave(self, node: Node) -> bool:
        dtype = _dtype(node)
        return dtype is None or (
            dtype in TOSA_DTYPE and (not dtype.is_floating_point or TOSA_DTYPE[dtype] in self.compile_spec.target.floats)
        )


def _refuse_results(walk: Walk) -> dict[Node, Reason]:

    def reads_on_npu(user: Node) -> bool:
        return user in walk.supported

    return {
        node: INT64_OUTPUT if not dtype.is_floating_point else NO_SUCH_FLOAT if walk.b.floats else NOT_OUTPUT_QUANTIZED
        for node in walk.supported
        if op_name(node.target) not in QUANTIZE | DEQUANTIZE
        and (dtype := _dtype(node)) is not None
        and ((dtype.is_floating_point and TOSA_DTYPE.get(dtype) not in walk.b.floats) or dtype == torch.int64)
        and not all(map(reads_on_npu, node.users))
    }


def _refuse_incomplete(walk: Walk, refused: Mapping[Node, Reason]) -> dict[Node, Reason]:
    items = [node for node in walk.graph.nodes if node.target is operator.getitem and node.users]
    return {
        source: refused.get(item, OTHER_RESULT)
        for item in items
        if (source := item.all_input_nodes[0]) in walk.supported and (item not in walk.supported or item in refused)
    }


def _dtype(node: Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None
