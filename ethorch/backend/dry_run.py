"""EthosUPartitioner: a dry run of the lowering decides what goes to the NPU, and keeps a Reason for all that does not."""

from __future__ import annotations

import copy
import functools
import logging
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
from executorch.exir.backend.backend_api import MethodProgramsPartitionerSpec, to_backend
from executorch.exir.backend.backend_details import BackendDetails
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.passes.operator_support import OperatorSupportBase

from ethorch.backend import EthosUBackend, TOSABackend, builder_for, check_only_backend, register_quantized_kernels
from ethorch.branches import is_control_flow, nodes_everywhere
from ethorch.compile_spec import EthosUCompileSpec
from ethorch.errors import Reason, VelaError
from ethorch.lower import Walk
from ethorch.nodes import (
    DEQUANTIZE,
    INT64_OUTPUT,
    NO_SUCH_FLOAT,
    NOT_OUTPUT_QUANTIZED,
    QUANTIZE,
    TOSA_DTYPE,
    constants_of,
    origin_of,
)
from ethorch.ops.spec import OPS, op_name
from ethorch.tosa.ir import Origin
from ethorch.tosa_spec import TosaCompileSpec
from ethorch.whole import break_up

logger = logging.getLogger(__name__)


class _Desk(logging.StreamHandler[Any]):
    """Shows the package's messages, summary lines included, on stderr where nobody has set logging up."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.setStream(sys.stderr)
            super().emit(record)


def _show_summaries() -> None:
    """``logging.getLogger("ethorch").setLevel(logging.WARNING)`` silences them."""
    package = logging.getLogger("ethorch")
    if package.level == logging.NOTSET and not package.handlers:
        package.setLevel(logging.INFO)
        package.addHandler(_Desk())


_show_summaries()

#: Operators that need no place on the NPU or the CPU: bookkeeping of the graph.
_BOOKKEEPING = {"<built-in function getitem>"}


@dataclass(frozen=True)
class Refusal:
    """One operator that stays on the CPU: which, where in the user's code, and why."""

    node: str
    origin: Origin
    reason: Reason

    def __str__(self) -> str:
        return f"{self.origin}: {self.reason}"


@dataclass
class PartitionReport:
    """What a partitioner decided, over every graph it has seen.

    Attributes:
        target: name of the NPU.
        delegated: FX names of operators on the NPU, per delegate tag (quantize and dequantize not counted).
        refusals: what stays on the CPU, with reasons.
    """

    target: str
    delegated: dict[str, list[str]] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)

    def restore(self, before: PartitionReport) -> None:
        """Forget what came since ``before`` was copied."""
        self.delegated, self.refusals = before.delegated, before.refusals

    @property
    def npu_operators(self) -> int:
        return sum(len(names) for names in self.delegated.values())

    def summary(self) -> str:
        """One line: how many operators run where, and which do not run on the NPU."""
        total, count = self.npu_operators + len(self.refusals), len(self.delegated)
        line = f"{self.npu_operators} of {total} operators on {self.target} in {count} delegate{'s' if count != 1 else ''}"
        if self.refusals:
            names = sorted({refusal.origin.target for refusal in self.refusals})
            line += f"; {len(self.refusals)} on the CPU: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
        return line

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "target": self.target,
            "delegates": self.delegated,
            "cpu": [
                {
                    "node": r.node, "operator": r.origin.target, "module": r.origin.module, "source": r.origin.source,
                    "id": r.reason.id, "reason": r.reason.text, "way_out": r.reason.way_out,
                }
                for r in self.refusals
            ],
        }  # fmt: skip


class _DryRunPartitioner(Partitioner):
    """The partitioner of any backend whose ``preprocess`` is our walk: its dry run decides."""

    backend: ClassVar[type[BackendDetails]]

    def __init__(
        self, compile_spec: EthosUCompileSpec | TosaCompileSpec, additional_checks: Sequence[OperatorSupportBase] | None
    ):
        super().__init__()
        self.compile_spec = compile_spec
        self.delegation_spec = DelegationSpec(self.backend.__name__, compile_spec.to_list())
        self.additional_checks = list(additional_checks or ())
        self.report = PartitionReport(compile_spec.target.name)
        self.declined: dict[Origin, str] = {}  # what Vela refused though the limits allow it -> its words
        self._whole: tuple[ExportedProgram, tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]] | None = None

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """Operators that ethorch lowers whole and so ExecuTorch shall leave whole: those a dry run finds on the NPU.

        What stays on the CPU must be decomposed, since the CPU has no kernel for it. Where one operator is on the NPU here
        and on the CPU there, a filter tells which; ExecuTorch then decomposes once more, which takes longer.
        """
        if self._whole and self._whole[0] is ep:                # ExecuTorch asks several times for one program
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
        check_only_backend(self.backend)
        register_quantized_kernels()
        supported, refusals = self.dry_run(exported_program)
        tags = self.tag(exported_program, supported)
        tag_constant_data(exported_program)
        for node in exported_program.graph.nodes:
            if node in refusals and op_name(node.target) not in _BOOKKEEPING:
                self.report.refusals.append(Refusal(node.name, origin_of(node), refusals[node]))
        self.log(exported_program, bool(tags))
        return PartitionResult(exported_program, dict.fromkeys(tags, self.delegation_spec))

    def dry_run(self, program: ExportedProgram) -> tuple[set[Node], dict[Node, Reason]]:
        """(nodes the NPU can run, reason for each other operator): the lowering itself, until nothing more is refused."""
        constants = constants_of(program)
        modules = dict(program.graph_module.named_modules())
        refused = {
            node: Reason("user.check", f"{type(check).__name__} does not support it")
            for node in nodes_everywhere(program.graph)
            for check in self.additional_checks
            if node.op == "call_function" and not _plumbing(node) and not check.is_node_supported(modules, node)
        }
        refused |= {
            node: Reason("vela.refused", f"Vela refuses it: {self.declined[origin]}", "Please report it: a limit is missing.")
            for node in nodes_everywhere(program.graph)
            if self.declined and (origin := origin_of(node)) in self.declined
        }
        while True:
            walk = Walk(program.graph, constants, builder_for(self.compile_spec.target), strict=False, refused=refused).run()
            found = {**walk.refusals, **_unread(walk)}
            if found.keys() == refused.keys():
                return {node for node in walk.supported | walk.inside if node not in refused}, refused
            refused = found

    def break_up_what_stays(self, program: ExportedProgram) -> None:
        """Break up what was left whole in an edge program and cannot run on the NPU; Vela is not asked about the pieces."""
        supported, _ = self.dry_run(program)
        left = [node for node in program.graph.nodes if node.op == "call_function" and node not in supported]
        operators = [getattr(node.target, "_op", None) for node in left]
        whole = [node for node, op in zip(left, operators, strict=True) if isinstance(op, torch._ops.OpOverload) and keep_whole(op)]
        for node in break_up(program, whole):
            self.declined[origin_of(node)] = "it is a part of what Vela refuses"

    def tag(self, program: ExportedProgram, supported: set[Node]) -> list[str]:
        """Write ``delegation_tag`` into the nodes of each partition; returns the tags."""
        folded = _folded(program, supported)
        tagged = {node for node in supported if not _plumbing(node)} - folded
        for node in program.graph.nodes:
            follows = op_name(node.target) in QUANTIZE or node.target is operator.getitem
            if node not in supported or not follows:
                continue
            source = node.args[0]
            if op_name(source.target) in DEQUANTIZE and source in supported:  # what stood between did nothing and is gone
                source = _behind_dequantize(source)
            if source in tagged:
                tagged.add(node)
        tags: list[str] = []
        prefix = f"ethosu_{len(self.report.delegated)}"
        for group in partitions(program, tagged):
            tag = f"{prefix}_{len(tags)}" if tags else prefix
            for node in group:
                node.meta["delegation_tag"] = tag
            tags.append(tag)
            self.report.delegated[tag] = [node.name for node in group if not _plumbing(node)]
        for node in reversed(list(program.graph.nodes)):
            if node in folded or (op_name(node.target) in DEQUANTIZE and node in supported):
                tag_with_readers(program, node)
        return tags

    def log(self, program: ExportedProgram, any_delegate: bool) -> None:
        quantized = any(op_name(node.target) in QUANTIZE | DEQUANTIZE for node in program.graph.nodes)
        if not quantized and not self.compile_spec.target.floats and (self.report.refusals or not any_delegate):
            logger.warning(
                "nothing is quantized, so nothing can run on %s: quantize with EthosUQuantizer, prepare_pt2e, calibration and "
                "convert_pt2e before lowering", self.report.target,
            )  # fmt: skip
        elif not any_delegate:
            logger.warning("no operator can run on %s: %s", self.report.target, "; ".join(map(str, self.report.refusals[:3])))
        else:
            logger.info("%s", self.report.summary())


@final
class EthosUPartitioner(_DryRunPartitioner):
    """Tags what ``compile_spec``'s NPU can run.

    Args:
        compile_spec: an EthosUCompileSpec, or its list form.
        additional_checks: ``OperatorSupportBase`` objects; a node that one of them does not support stays on the CPU.

    Attributes:
        report: the PartitionReport of every program partitioned so far.
    """

    backend = EthosUBackend

    def __init__(
        self,
        compile_spec: EthosUCompileSpec | Sequence[CompileSpec],
        additional_checks: Sequence[OperatorSupportBase] | None = None,
    ):
        super().__init__(EthosUCompileSpec.of(compile_spec), additional_checks)


@final
class TOSAPartitioner(_DryRunPartitioner):
    """Tags what the TOSA of ``compile_spec`` can say. Arguments and ``report`` as for EthosUPartitioner."""

    backend = TOSABackend

    def __init__(
        self,
        compile_spec: TosaCompileSpec | Sequence[CompileSpec],
        additional_checks: Sequence[OperatorSupportBase] | None = None,
    ):
        super().__init__(TosaCompileSpec.of(compile_spec), additional_checks)


def keep_whole(target: torch._ops.OpOverload) -> bool:
    """Would ExecuTorch break up this operator that ethorch lowers whole? Views and aliases stay with ExecuTorch."""
    spec = OPS.get(op_name(target))
    if spec is None or spec.composite or target.namespace != "aten" or target._schema.is_mutable:
        return False
    return not any(ret.alias_info is not None for ret in target._schema.returns) and not _maybe_alias(target)


def _maybe_alias(target: torch._ops.OpOverload) -> bool:
    """ExecuTorch refuses to keep operators that may return a view of their input; its batch norm is another one."""
    names = {
        "native_batch_norm",
        "contiguous",
        "reshape",
        "flatten",
        "dropout",
        "batch_norm",
        "_unsafe_view",
        "pad",
        "concat",
        "concatenate",
    }
    return target._schema.name.split("::")[1] in names


def _plumbing(node: Node) -> bool:
    """Quantize and dequantize nodes and tuple access: they go where their operators go."""
    return op_name(node.target) in QUANTIZE | DEQUANTIZE or node.target is operator.getitem


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


def _dtype(node: Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None


def _folded(program: ExportedProgram, supported: set[Node]) -> set[Node]:
    """Supported nodes that depend on constants alone: the lowering folds them, in each delegate that reads one."""
    constants = constants_of(program)
    found: set[Node] = set()
    for node in program.graph.nodes:
        if node not in supported or is_control_flow(node):
            continue
        if all(arg in found or constants(arg) is not None for arg in node.all_input_nodes):
            found.add(node)
    return found


def tag_with_readers(program: ExportedProgram, node: Node) -> None:
    """Put a dequantize node, or one of constants, into the delegate that reads it; where several do, each gets a copy."""
    readers: dict[str | None, list[Node]] = {}
    for user in node.users:
        readers.setdefault(user.meta.get("delegation_tag"), []).append(user)
    tags = [tag for tag in readers if tag is not None]
    for tag in tags:
        own = node
        if len(readers) > 1:
            with program.graph.inserting_before(node):
                own = program.graph.node_copy(node)
            for user in readers[tag]:
                user.replace_input_with(node, own)
        own.meta["delegation_tag"] = tag
    if not node.users:
        program.graph.erase_node(node)


def partitions(program: ExportedProgram, tagged: set[Node]) -> list[list[Node]]:
    """The tagged nodes in as few groups as have no path out of a group and back into it, each in graph order.

    Greedy over levels: a node's level counts the CPU stretches on the longest path before it; nodes of one level form one
    delegate, since no path leads from one of them over the CPU to another. Dequantize nodes belong to whoever reads them.
    """
    level: dict[Node, int] = {}
    for node in program.graph.nodes:
        if op_name(node.target) in DEQUANTIZE:
            continue
        before = 0
        for arg in map(_behind_dequantize, node.all_input_nodes):
            crosses = arg in tagged and node not in tagged
            before = max(before, level[arg] + (1 if crosses else 0))
        level[node] = before
    groups: dict[int, list[Node]] = {}
    for node in program.graph.nodes:
        if node in tagged:
            groups.setdefault(level[node], []).append(node)
    return [groups[key] for key in sorted(groups)]


def _behind_dequantize(node: Node) -> Node:
    while op_name(node.target) in DEQUANTIZE:
        node = node.all_input_nodes[0]
    return node


def _pairs(spec: MethodProgramsPartitionerSpec) -> list[tuple[ExportedProgram, Partitioner]]:
    """Each method's program and its partitioner."""
    return [(spec.method_to_edge_program[name], user) for name, user in spec.method_to_partitioner.items()]


def _again_without_what_vela_declines() -> None:
    """Give ExecuTorch's ``to_backend`` a second attempt: what Vela declines of a delegate goes to the CPU.

    ExecuTorch partitions first and compiles the delegates then, too late for a partitioner to hear of it. Its to_backend
    dispatches on the type of the first argument, so the two forms that take a partitioner are registered anew, around
    themselves. Nothing is compiled twice unless Vela raised.
    """
    for form in (ExportedProgram, MethodProgramsPartitionerSpec):
        once = to_backend.dispatch(form)

        @functools.wraps(once)
        def attempts(program: Any, *rest: Any, once: Callable[..., Any] = once) -> Any:
            users = rest if rest else program.method_to_partitioner.values()
            ours = [user for user in users if isinstance(user, EthosUPartitioner)]
            while True:
                before = [(user, copy.deepcopy(user.report)) for user in ours]
                try:
                    return once(program, *rest)
                except VelaError as error:
                    new = {origin: words for origin, words in error.declined.items() if any(origin not in p.declined for p in ours)}
                    if not new:
                        raise
                    logger.warning("Vela refused a delegate; again without %s", "; ".join(map(str, new)))
                    for user, report in before:
                        user.declined.update(new)
                        user.report.restore(report)
                    pairs = [(program, user) for user in rest] if rest else _pairs(program)
                    for edge, user in pairs:
                        if isinstance(user, EthosUPartitioner):
                            user.break_up_what_stays(edge)

        to_backend.register(form, attempts)


_again_without_what_vela_declines()
