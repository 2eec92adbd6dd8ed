"""The dry run: the lowering itself, tried on a whole program, decides what goes to the NPU."""

from __future__ import annotations

import copy
import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from executorch.exir.backend.backend_details import BackendDetails
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.passes.operator_support import OperatorSupportBase

from ethorch.backend.break_up import break_up, keep_whole
from ethorch.backend.codes_on_cpu import pick_codes, picked_from_codes
from ethorch.backend.cpu_kernels import without_kernel
from ethorch.backend.handover import attach, detach
from ethorch.backend.preprocess import register_quantized_kernels
from ethorch.backend.products_on_cpu import LEFT_TO_CPU
from ethorch.backend.root_causes import root_causes
from ethorch.backend.tagging import (
    behind_dequantize,
    constant_nodes,
    partitions,
    plumbing,
    requantizes,
    tag_with_readers,
    without_asserted,
)
from ethorch.backend.user_checks import UserChecks
from ethorch.lower.fx.control_flow import is_control_flow, nodes_everywhere
from ethorch.lower.fx.node import (
    CASTS,
    DEQUANTIZE,
    QUANTIZE,
    TOSA_DTYPE,
    Converted,
    constants_of,
    converts_input,
    op_name,
    origin_of,
    origin_of_codes,
)
from ethorch.lower.partition_report import PartitionReport, Refusal, refusal_texts
from ethorch.lower.reasons import INT64_OUTPUT, NO_SUCH_FLOAT, NOT_OUTPUT_QUANTIZED, OTHER_RESULT
from ethorch.lower.walk import Walk
from ethorch.models.open_sizes import suppress_guards
from ethorch.support.errors import Reason
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.tosa_spec import TosaCompileSpec
from ethorch.tosa.ir import Origin
from ethorch.vela.delegate import builder_for
from ethorch.vela.diagnose import STREAM_TOO_LONG

logger = logging.getLogger(__name__)

#: Operators that need no place on the NPU or the CPU: bookkeeping of the graph.
_BOOKKEEPING = {"<built-in function getitem>"}


def refusal_of(words: str) -> Reason:
    """Return the reason for an operator that Vela refuses in these words."""
    if STREAM_TOO_LONG in words:
        return Reason(
            "vela.stream",
            f"it takes too many commands by itself: {words}",
            "Compute a part of it at a time in the model, and join the results with torch.cat on the CPU.",
        )
    return Reason("vela.refused", f"Vela refuses it: {words}", "Please report it: a limit is missing.")


class DryRunPartitioner(Partitioner):  # type: ignore[misc]  # ExecuTorch has no types
    """The partitioner of any backend whose ``preprocess`` is ethorch's walk: its dry run decides."""

    backend: ClassVar[type[BackendDetails]]

    def __init__(self, compile_spec: EthosUCompileSpec | TosaCompileSpec, additional_checks: Sequence[OperatorSupportBase] | None):
        super().__init__()
        self.compile_spec = compile_spec
        self.delegation_spec = DelegationSpec(self.backend.__name__, compile_spec.publish().to_list())
        self.additional_checks = list(additional_checks or ())
        self.checks = UserChecks(self.additional_checks)
        self.report = PartitionReport(compile_spec.target.name)
        self.declined: dict[Origin, Reason] = {}  # what Vela or a delegate's lowering refused though the dry run accepted it
        self.begins: dict[Origin, int] = {}  # what begins a delegate, since the one before had too many commands -> how much later
        self._whole: tuple[ExportedProgram, tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]] | None = None

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """Operators that ethorch lowers whole and so ExecuTorch shall leave whole: those a dry run finds on the NPU.

        What stays on the CPU must be decomposed, since the CPU has no kernel for it. Where one operator is on the NPU here
        and on the CPU there, a filter tells which; ExecuTorch then decomposes once more, which takes longer.
        """
        if self._whole and self._whole[0] is ep:  # ExecuTorch asks several times for one program
            return self._whole[1]
        nodes: dict[torch._ops.OpOverload, list[Node]] = {}
        for node in nodes_everywhere(ep.graph):
            if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and keep_whole(node.target):
                nodes.setdefault(node.target, []).append(node)
        supported = self.dry_run(ep)[0] if nodes else set()
        kept = [target for target, calls in nodes.items() if any(node in supported for node in calls)]
        mixed = any(node not in supported for target in kept for node in nodes[target])
        self._whole = (ep, (kept, supported.__contains__ if mixed else None))
        return self._whole[1]

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the supported nodes, as few delegates as possible; the reasons for the rest go to ``report``."""
        register_quantized_kernels()
        supported, refusals = self.dry_run(exported_program)
        tags = self.tag(exported_program, supported)
        tag_constant_data(exported_program)
        refusals = root_causes(refusals)
        for node in exported_program.graph.nodes:
            if node in refusals and op_name(node.target) not in _BOOKKEEPING and not converts_input(node):
                self.report.refusals.append(Refusal(node.name, origin_of(node), refusals[node]))
            if node.op == "call_function" and "delegation_tag" not in node.meta and (missing := without_kernel(node)):
                self.report.without_kernel.append(Refusal(node.name, origin_of(node), missing))
        self.log(exported_program, bool(tags))
        return PartitionResult(exported_program, dict.fromkeys(tags, self.delegation_spec))

    def dry_run(self, program: ExportedProgram | Converted) -> tuple[set[Node], dict[Node, Reason]]:
        """(nodes the NPU can run, reason for each other operator): the lowering itself, until nothing more is refused."""
        constants = constants_of(program)
        refused = self.checks.refusals(program)
        refused |= {
            node: self.declined[origin]
            for node in nodes_everywhere(program.graph)
            if self.declined and (origin := origin_of_codes(node)) in self.declined
        }
        refused |= {node: node.meta[LEFT_TO_CPU] for node in nodes_everywhere(program.graph) if LEFT_TO_CPU in node.meta}
        while True:
            with suppress_guards(program.graph.nodes):
                walk = Walk(program.graph, constants, builder_for(self.compile_spec.target), strict=False, refused=refused).run()
            found = {**walk.refusals, **_unread(walk)}
            found |= _incomplete(walk, found)
            walked = found.keys() == walk.refusals.keys() and not any(map(is_control_flow, program.graph.nodes))
            if found.keys() == refused.keys() or walked:  # the walk took what it refused as being on the CPU from there on
                return {node for node in walk.supported | walk.inside if node not in found}, found
            refused = found

    def break_up_what_stays(self, program: ExportedProgram) -> None:
        """Break up what was left whole in an edge program and cannot run on the NPU; Vela is not asked about the pieces."""
        supported, _ = self.dry_run(program)
        for node in break_up(program, [node for node in _whole(program) if node not in supported]):
            self.declined[origin_of_codes(node)] = refusal_of("it is a part of what Vela refuses")

    def pick_codes(self, program: ExportedProgram | Converted) -> None:
        """Let the CPU pick rows of codes, where it picks rows of a quantized table."""
        with suppress_guards(program.graph.nodes):
            picks = picked_from_codes(program, self.compile_spec.target.limits)
        if picks:
            supported, _ = self.dry_run(program)
            pick_codes(program, [node for node in picks if node not in supported])

    def prepare(self, program: ExportedProgram) -> None:
        """Change an edge program as a partitioner may not: ExecuTorch holds what it was given against what it returns.

        What a user's check refuses is broken up, the CPU picks rows of codes (``pick_codes``), and each delegate gets a dequantize
        node of its own, and the operators of constants that it reads.
        """
        if self.additional_checks:
            supported, _ = self.dry_run(program)
            self.checks.break_up(program, [node for node in _whole(program) if node not in supported])
        self.pick_codes(program)
        constant = constant_nodes(program, set(program.graph.nodes))
        copied = QUANTIZE | DEQUANTIZE | CASTS
        if not any(len(n.users) > 1 and (n in constant or op_name(n.target) in copied) for n in program.graph.nodes):
            return
        report = copy.deepcopy(self.report)
        self.tag(program, self.dry_run(program)[0])
        detach(program.graph.nodes)
        for node in program.graph.nodes:
            node.meta.pop("delegation_tag", None)
        self.report.restore(report)
        program.graph_module.recompile()

    def tag(self, program: ExportedProgram | Converted, supported: set[Node]) -> list[str]:
        """Write ``delegation_tag`` into the nodes of each partition; returns the tags."""
        folded = constant_nodes(program, supported)
        inner = {node for node in supported if op_name(node.target) in CASTS and not self._can_leave(node)} - folded
        tagged = {node for node in supported if not plumbing(node)} - folded - inner
        for node in program.graph.nodes:
            follows = op_name(node.target) in QUANTIZE or node.target is operator.getitem
            if node not in supported or not follows:
                continue
            source = node.args[0]
            if op_name(source.target) in DEQUANTIZE and source in supported:  # what stood between did nothing and is gone
                source = behind_dequantize(source)
            if source in tagged or source in inner:
                tagged.add(node)
        tagged = without_asserted(program, tagged)
        tags: list[str] = []
        prefix = f"ethosu_{len(self.report.delegated)}"
        later = {node: self.begins.get(origin_of_codes(node), 0) for node in tagged if self.begins and not plumbing(node)}
        for group in partitions(program, tagged, inner, later):
            tag = f"{prefix}_{len(tags)}" if tags else prefix
            for node in group:
                node.meta["delegation_tag"] = tag
            attach(group, self.compile_spec)
            tags.append(tag)
            self.report.delegated[tag] = [node.name for node in group if not plumbing(node)]
        for node in reversed(list(program.graph.nodes)):
            dequantizes = op_name(node.target) in DEQUANTIZE and node in supported
            if node in folded | inner or dequantizes or requantizes(node, supported, tagged):
                tag_with_readers(program, node)
        return tags

    def _can_leave(self, node: Node) -> bool:
        """Is its result one that a delegate can give?"""
        dtype = _dtype(node)
        return dtype is None or (
            dtype in TOSA_DTYPE and (not dtype.is_floating_point or TOSA_DTYPE[dtype] in self.compile_spec.target.floats)
        )

    def log(self, program: ExportedProgram, any_delegate: bool) -> None:
        for text in refusal_texts(missing.to_json() for missing in self.report.without_kernel):
            logger.warning("%s", text)
        quantized = any(op_name(node.target) in QUANTIZE | DEQUANTIZE for node in program.graph.nodes)
        is_open = any(refusal.reason.id == "graph.dynamic_shape" for refusal in self.report.refusals)
        if not quantized and not is_open and not self.compile_spec.target.floats and (self.report.refusals or not any_delegate):
            logger.warning(
                "nothing is quantized, so nothing can run on %s: quantize with EthosUQuantizer, prepare_pt2e, calibration and "
                "convert_pt2e before lowering",
                self.report.target,
            )
        elif not any_delegate:
            logger.warning("no operator can run on %s: %s", self.report.target, " ".join(self.report.refusal_texts()[:3]))
        else:
            logger.info("%s", self.report.summary())


def _whole(program: ExportedProgram) -> list[Node]:
    """The operators of an edge program that ExecuTorch would have broken up."""
    calls = [(node, getattr(node.target, "_op", None)) for node in nodes_everywhere(program.graph) if node.op == "call_function"]
    return [node for node, op in calls if isinstance(op, torch._ops.OpOverload) and keep_whole(op)]


def _unread(walk: Walk) -> dict[Node, Reason]:
    """Supported operators whose float or int64 result someone off the NPU reads: they cannot stay."""

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


def _incomplete(walk: Walk, refused: Mapping[Node, Reason]) -> dict[Node, Reason]:
    """Supported operators of several results, one of which is read and is not on the NPU: a delegate returns all or none."""
    items = [node for node in walk.graph.nodes if node.target is operator.getitem and node.users]
    return {
        source: refused.get(item, OTHER_RESULT)
        for item in items
        if (source := item.all_input_nodes[0]) in walk.supported and (item not in walk.supported or item in refused)
    }


def _dtype(node: Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None
