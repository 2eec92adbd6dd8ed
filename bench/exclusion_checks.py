"""Compare the operators that a user's check keeps on the CPU in ethorch and in ExecuTorch's Arm backend.

``python -m bench.exclusion_checks [--target ethos-u85-256] [--operators softmax,conv] [--page docs/exclusion-checks.md]``: for the
first sample of each operator of ``ethorch ops``, record the operators that the Arm backend's partitioner passes to
``additional_checks``. If ethorch's partitioner passes the same operator, both partitioners are run with the same checks:
``DontPartition``, ``DontPartitionName``, a custom check, and ``DontPartitionModule`` for the module. Other operators occur only in
decompositions of the Arm backend's quantizer. Nothing is compiled, because only the partitions are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.fx.passes.operator_support import OperatorSupportBase

from ethorch.lower.ops import OPS
from ethorch.lower.ops.sample_calls import Call, inputs_for

KINDS = ("DontPartition", "DontPartitionName", "custom", "DontPartitionModule")
FEWER = "fewer with ethorch"
VERDICTS = ("same", FEWER, "in other parts", "different", "ethorch fails", "the Arm backend fails", "not asked")
ONLY_THEIRS = "a part that only the Arm backend has"
#: Operators that only move data, convert, or check; where they run depends on their neighbors.
_PLUMBING = (
    "quantize", "view", "permute", "transpose", "reshape", "expand", "clone", "dim_order", "getitem", "squeeze",
    "slice", "select", "built-in", "alias", "detach", "full", "to_copy", "scalar_tensor", "executorch_call_delegate",
    "assert", "sym", "cat", "arange", "lift",
)  # fmt: skip


class Network(nn.Module):
    """A network that calls a sample as the submodule ``op``."""

    def __init__(self, name: str):
        super().__init__()
        self.op = Call(name, OPS[name].samples[0])

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.op(*inputs)


class Recorder(OperatorSupportBase):
    """A check that accepts all nodes and records them."""

    def __init__(self) -> None:
        self.nodes: dict[str, Any] = {}

    def is_node_supported(self, submodules: Mapping[str, nn.Module], node: Node) -> bool:
        self.nodes.setdefault(node.name, node.target)
        return True


class Custom(OperatorSupportBase):
    """A custom check, as written by a user."""

    def __init__(self, target: Any):
        self.target = target

    def is_node_supported(self, submodules: Mapping[str, nn.Module], node: Node) -> bool:
        return node.target != self.target


@dataclass(frozen=True)
class Split:
    """The names of the operators on the CPU and on the NPU, except operators that only move or convert data."""

    cpu: tuple[str, ...] = ()
    npu: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """The result of one check for one operator. ``ours`` and ``theirs`` are the partitions, or an error."""

    operator: str
    kind: str
    about: str
    ours: Split | str
    theirs: Split | str

    @property
    def verdict(self) -> str:
        """The result of the comparison, one of ``VERDICTS``."""
        if self.kind == ONLY_THEIRS:
            return "not asked"
        if isinstance(self.theirs, str):
            return "the Arm backend fails"
        if isinstance(self.ours, str):
            return "ethorch fails"
        if self.ours.cpu == self.theirs.cpu:
            return "same"
        if self.ours.cpu and set(self.ours.cpu) < set(self.theirs.cpu):
            return FEWER
        return "different" if self.ours.npu or self.theirs.npu else "in other parts"


def base_name(target: Any) -> str:
    """Return the name without dialect and overload, e.g. ``convolution`` for ``aten.convolution.default``."""
    name = str(getattr(target, "_op", target))
    return (name.split(".")[1] if name.count(".") > 1 else name).strip("_").removesuffix("_copy")


def is_plumbing(target: Any) -> bool:
    """Return True if the operator only moves, converts or checks data."""
    return any(word in str(getattr(target, "_op", target)) for word in _PLUMBING)


@contextlib.contextmanager
def remember_decompositions(results: dict[Any, Any]) -> Iterator[None]:
    """Cache the results of ``ExportedProgram.run_decompositions``. Further calls for the same graph and table return a copy.

    Args:
        results: Results so far, for one program.
    """
    run = ExportedProgram.run_decompositions

    def run_once(self: ExportedProgram, table: Any = None, **settings: Any) -> ExportedProgram:
        key = (str(self.graph), None if table is None else frozenset(map(str, table)), *settings.items())
        if key not in results:
            results[key] = run(self, table, **settings)
        return copy.deepcopy(results[key])

    ExportedProgram.run_decompositions = run_once  # type: ignore[method-assign]
    try:
        yield
    finally:
        ExportedProgram.run_decompositions = run  # type: ignore[method-assign]


class Side:
    """One backend: a quantized program, partitioned with checks.

    Args:
        names: The module with the backend's public names.
    """

    def __init__(self, names: Any, target: str):
        self.names, self.spec = names, names.EthosUCompileSpec(target)
        self._programs: dict[str, Any] = {}
        self._decomposed: dict[Any, Any] = {}

    def split(self, name: str, checks: Sequence[OperatorSupportBase]) -> Split | str:
        """Return the partitions, or the error."""
        from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
        from executorch.exir.lowered_backend_module import get_lowered_submodules

        try:
            program = self._quantize(name)
            with remember_decompositions(self._decomposed):
                edge = to_edge_transform_and_lower(
                    program,
                    partitioner=[self.names.EthosUPartitioner(self.spec, additional_checks=list(checks))],
                    compile_config=EdgeCompileConfig(_check_ir_validity=False),
                )
        except Exception as error:
            return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120] if str(error).strip() else ''}"
        program = edge.exported_program()
        lowered = [module.original_module.graph for _, module, _ in get_lowered_submodules(program.graph_module)]
        return Split(_operators([program.graph]), _operators(lowered))

    def _quantize(self, name: str) -> Any:
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

        if name not in self._programs:
            model, inputs = Network(name).eval(), inputs_for(OPS[name].samples[0], 0)
            quantizer = self.names.EthosUQuantizer(self.spec)
            quantizer.set_global(self.names.get_symmetric_quantization_config())
            graph = prepare_pt2e(torch.export.export(model, inputs).module(check_guards=False), quantizer)
            graph(*inputs)
            self._programs = {name: torch.export.export(convert_pt2e(graph), inputs)}
            self._decomposed.clear()
        return self._programs[name]


def _operators(graphs: Sequence[Graph]) -> tuple[str, ...]:
    calls = [node.target for graph in graphs for node in graph.nodes if node.op == "call_function"]
    return tuple(sorted({base_name(target) for target in calls if not is_plumbing(target)}))


def sides(target: str) -> tuple[Side, Side]:
    """Return ethorch and the Arm backend. Both lower every partition to an empty blob."""
    import executorch.backends.arm as arm
    from executorch.backends.arm.ethosu.backend import EthosUBackend as Theirs
    from executorch.exir.backend.backend_details import PreprocessResult

    import ethorch.arm

    for backend in (ethorch.arm.EthosUBackend, Theirs):
        backend.preprocess = staticmethod(lambda program, specs: PreprocessResult(processed_bytes=b""))  # type: ignore[method-assign]
    return Side(ethorch.arm, target), Side(arm, target)


def rows(names: Sequence[str], target: str) -> Iterator[Row]:
    """Yield a row for each check of each operator that the Arm backend can lower."""
    from executorch.exir.backend.operator_support import DontPartition, DontPartitionModule, DontPartitionName

    ours, theirs = sides(target)
    for name in names:
        recorder = Recorder()
        plain = theirs.split(name, [recorder])
        if isinstance(plain, str):
            yield Row(name, "none", "", ours.split(name, []), plain)
            continue
        own = Recorder()
        ours.split(name, [own])
        everything = {t: node for node, t in reversed(recorder.nodes.items()) if not is_plumbing(t)}
        asked = [t for t in everything if t in own.nodes.values()]
        shared = {t: node for node, t in reversed(recorder.nodes.items()) if own.nodes.get(node) == t}
        yield from (Row(name, ONLY_THEIRS, str(t), Split(), Split((base_name(t),))) for t in everything if t not in asked)
        checks: list[tuple[str, str, OperatorSupportBase]] = []
        for node_target in asked:
            checks.append(("DontPartition", str(node_target), DontPartition(node_target)))
            checks.append(("custom", str(node_target), Custom(node_target)))
            if node_target in shared:  # a name that only one program has excludes nothing from the other
                checks.append(("DontPartitionName", shared[node_target], DontPartitionName(shared[node_target])))
        checks.append(("DontPartitionModule", "op", DontPartitionModule(instance_name="op")))
        for kind, about, check in checks:
            yield Row(name, kind, about, ours.split(name, [check]), theirs.split(name, [check]))


def page(rows: Sequence[Row], target: str) -> str:
    """Return the table of counts and the list of differences as Markdown."""
    count = len({row.operator for row in rows if row.kind != "none"})
    lines = [
        "# Exclusion checks",
        "",
        f"Operators that stay on the CPU of {target} because of a partitioner's `additional_checks`, with ethorch and with "
        f"ExecuTorch's Arm backend: the same check about each node of the first sample of {count} operators. "
        "`python -m bench.exclusion_checks` writes this page.",
        "",
        f"- **{FEWER}**: the excluded operator is on the CPU with both. The Arm backend also leaves operators next to it on the",
        "  CPU, because it delegates them only together.",
        "- **in other parts**: the whole operator is on the CPU with both, but one of them decomposes it.",
        f"- **{ONLY_THEIRS}**: not excluded, because ethorch's graph does not contain it.",
        "",
        f"| check | {' | '.join(VERDICTS)} |",
        "| --- |" + " ---: |" * len(VERDICTS),
    ]
    for kind in ("none", *KINDS, ONLY_THEIRS):
        counts = Counter(row.verdict for row in rows if row.kind == kind)
        label = {"none": "without a check: the Arm backend cannot lower it", ONLY_THEIRS: ONLY_THEIRS}.get(kind, f"`{kind}`")
        lines.append(f"| {label} | {' | '.join(str(counts[verdict]) for verdict in VERDICTS)} |")
    groups: dict[tuple[str, Any, Any, str], list[str]] = {}
    for row in rows:
        if row.verdict in (FEWER, "different", "ethorch fails"):
            groups.setdefault((row.operator, row.ours, row.theirs, row.verdict), []).append(row.kind)
    if groups:
        lines += ["", "| operator | checks | verdict | on the CPU with ethorch | with the Arm backend |", "|" + " --- |" * 5]
    for (operator, mine, other, verdict), kinds in groups.items():
        cells = (value if isinstance(value, str) else ", ".join(value.cpu) or "nothing" for value in (mine, other))
        lines.append(f"| `{operator}` | {', '.join(dict.fromkeys(kinds))} | {verdict} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("bench.exclusion_checks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="ethos-u85-256")
    parser.add_argument("--operators", default="", help="parts of operator names, separated by commas")
    parser.add_argument("--every", type=int, default=1, help="check every n-th operator")
    parser.add_argument("--page", type=Path, help="write the table to this file")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # of samples that are no real inputs
    names = [spec.name for spec in dict.fromkeys(OPS.values()) if spec.samples]
    names = [name for name in names if any(part in name for part in options.operators.split(","))][:: options.every]
    found = []
    for row in rows(names, options.target):
        found.append(row)
        print(f"{row.operator} {row.kind} {row.about[:60]}: {row.verdict}", file=sys.stderr, flush=True)
    text = page(found, options.target)
    if options.page:
        options.page.write_text(text, encoding="utf-8")
    print(text)
    return int(any(row.verdict == "ethorch fails" for row in found))


if __name__ == "__main__":
    sys.exit(main())
