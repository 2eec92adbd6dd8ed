"""Base class of ethorch's partitioners."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from executorch.exir.backend.backend_details import BackendDetails
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.passes.operator_support import OperatorSupportBase

from ethorch.backend.break_up import break_up, keep_whole
from ethorch.backend.cpu_kernels import without_kernel
from ethorch.backend.dry_run import DryRun
from ethorch.backend.handover import attach, detach
from ethorch.backend.preprocess import register_quantized_kernels
from ethorch.backend.root_causes import is_consequence, root_causes
from ethorch.backend.tagging import constant_nodes
from ethorch.backend.user_checks import UserChecks
from ethorch.lower.fx.control_flow import nodes_everywhere
from ethorch.lower.fx.node import (
    CASTS,
    DEQUANTIZE,
    QUANTIZE,
    Converted,
    converts_input,
    op_name,
    origin_of,
    origin_of_codes,
    recorded_name,
)
from ethorch.lower.partition_report import Refusal, refusal_texts
from ethorch.support.errors import Reason
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.tosa_spec import TosaCompileSpec
from ethorch.vela.diagnose import STREAM_TOO_LONG

logger = logging.getLogger(__name__)

#: Operators that compute nothing.
_BOOKKEEPING = {"<built-in function getitem>"}


def refusal_of(message: str) -> Reason:
    """Return the reason for an operator that Vela rejects with ``message``."""
    if STREAM_TOO_LONG in message:
        return Reason(
            "vela.stream",
            f"the operator is too large for one delegate: {message}",
            "Split the operator in the model, and join the results with torch.cat on the CPU.",
        )
    return Reason(
        "vela.refused",
        f"Vela rejects the operator: {message}",
        "Please report this; ethorch should detect unsupported operators before Vela does.",
    )


class DryRunPartitioner(DryRun, Partitioner):  # type: ignore[misc]  # ExecuTorch has no types
    """A partitioner for a backend whose ``preprocess`` uses ethorch's lowering."""

    backend: ClassVar[type[BackendDetails]]

    def __init__(self, compile_spec: EthosUCompileSpec | TosaCompileSpec, additional_checks: Sequence[OperatorSupportBase] | None):
        super().__init__(compile_spec)
        self.delegation_spec = DelegationSpec(self.backend.__name__, compile_spec.publish().to_list())
        self.additional_checks = list(additional_checks or ())
        self.checks = UserChecks(self.additional_checks)
        self._whole: tuple[ExportedProgram, tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]] | None = None
        self._refused_whole: dict[str, Reason] = {}  # reasons for operators before decomposition, keyed by name

    def refusals_by_user(self, program: ExportedProgram | Converted) -> dict[Node, Reason]:
        return self.checks.refusals(program)

    def tag(self, program: ExportedProgram | Converted, supported: set[Node]) -> list[str]:
        """Tag partitions as in ``DryRun``, and attach the compile spec to their nodes."""
        tags = super().tag(program, supported)
        attach((node for node in program.graph.nodes if node.meta.get("delegation_tag") in tags), self.compile_spec)
        return tags

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """Return the operators of NPU nodes, which ExecuTorch must not decompose, and an optional node filter.

        The filter, which accepts only NPU nodes, is omitted if all nodes with these operators run on the NPU. With a filter,
        ExecuTorch decomposes the program twice.
        """
        if self._whole and self._whole[0] is ep:  # ExecuTorch calls this method several times for one program
            return self._whole[1]
        nodes: dict[torch._ops.OpOverload, list[Node]] = {}
        for node in nodes_everywhere(ep.graph):
            if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and keep_whole(node.target):
                nodes.setdefault(node.target, []).append(node)
        supported, refusals = self.dry_run(ep) if nodes else (set(), {})
        refused = {node: reason for node, reason in refusals.items() if node.target in nodes and not is_consequence(reason)}
        self._refused_whole |= {recorded_name(node): reason for node, reason in refused.items()}
        targets = [target for target, calls in nodes.items() if any(node in supported for node in calls)]
        is_mixed = any(node not in supported for target in targets for node in nodes[target])
        self._whole = (ep, (targets, supported.__contains__ if is_mixed else None))
        return self._whole[1]

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Group the supported nodes into as few partitions as possible, tag them, and add the refused operators to ``report``."""
        register_quantized_kernels()
        supported, refusals = self.dry_run(exported_program)
        tags = self.tag(exported_program, supported)
        tag_constant_data(exported_program)
        refusals = root_causes(refusals)
        by_operator: dict[str, Refusal] = {}  # one refusal for all operators of a decomposition
        for node in exported_program.graph.nodes:
            if node in refusals and op_name(node.target) not in _BOOKKEEPING and not converts_input(node):
                name = recorded_name(node)
                if name not in by_operator or is_consequence(by_operator[name].reason):
                    by_operator[name] = Refusal(name, origin_of(node), self._refused_whole.get(name, refusals[node]))
            if node.op == "call_function" and "delegation_tag" not in node.meta and (missing := without_kernel(node)):
                origin = replace(origin_of(node), target=op_name(node.target))  # the name of the missing kernel's operator
                self.report.without_kernel.append(Refusal(node.name, origin, missing))
        self.report.refusals += by_operator.values()
        self.log(exported_program, bool(tags))
        return PartitionResult(exported_program, dict.fromkeys(tags, self.delegation_spec))

    def break_up_what_stays(self, program: ExportedProgram) -> None:
        """Decompose refused operators that were left undecomposed for the NPU. The resulting operators stay on the CPU."""
        supported, _ = self.dry_run(program)
        for node in break_up(program, [node for node in _undecomposed(program) if node not in supported]):
            self.declined[origin_of_codes(node)] = refusal_of(
                "the operator results from the decomposition of an operator that the NPU or Vela rejects"
            )

    def prepare(self, program: ExportedProgram) -> None:
        """Prepare an edge program in advance, because ``partition`` must not change it.

        If ``additional_checks`` is set, decompose operators that stay on the CPU. Call ``pick_codes``. Copy quantize, dequantize,
        cast and constant operators for each delegate that reads them.
        """
        if self.additional_checks:
            supported, _ = self.dry_run(program)
            self.checks.break_up(program, [node for node in _undecomposed(program) if node not in supported])
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

    def log(self, program: ExportedProgram, has_delegate: bool) -> None:
        """Log a summary, and warnings if kernels are missing or the program has no delegate."""
        for text in refusal_texts(missing.to_json() for missing in self.report.without_kernel):
            logger.warning("%s", text)
        quantized = any(op_name(node.target) in QUANTIZE | DEQUANTIZE for node in program.graph.nodes)
        is_open = any(refusal.reason.id == "graph.dynamic_shape" for refusal in self.report.refusals)
        if not quantized and not is_open and not self.compile_spec.target.floats and (self.report.refusals or not has_delegate):
            logger.warning(
                "no operator is quantized, so none can run on %s. Use operators listed in docs/ops.md. If you do not use "
                "ethorch.compile, quantize the model before lowering (EthosUQuantizer, prepare_pt2e, calibration, convert_pt2e)",
                self.report.target,
            )
        elif not has_delegate:
            logger.warning("no operator can run on %s: %s", self.report.target, " ".join(self.report.refusal_texts()[:3]))
        else:
            logger.info("%s", self.report.summary())


def _undecomposed(program: ExportedProgram) -> list[Node]:
    calls = [(node, getattr(node.target, "_op", None)) for node in nodes_everywhere(program.graph) if node.op == "call_function"]
    return [node for node, op in calls if isinstance(op, torch._ops.OpOverload) and keep_whole(op)]
