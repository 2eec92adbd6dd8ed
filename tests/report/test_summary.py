"""What stays on the CPU, in sentences."""

from __future__ import annotations

from ethorch.errors import Reason
from ethorch.lower.partition_report import PartitionReport, Refusal
from ethorch.report.build import partition_text
from ethorch.report.summary import refusal_texts
from ethorch.tosa.ir import Origin

INDEX = Reason("GATHER.absent", "there is no GATHER on ethos-u55-128", "Use an ethos-u85 target.")
SORT = Reason("operator.unknown", "aten.sort.default has no lowering to the NPU", "Use amax.")


def test_operators_that_one_reason_keeps_on_the_cpu_share_a_sentence() -> None:
    report = PartitionReport("ethos-u55-128")
    for line in range(3):
        report.refusals.append(Refusal(f"index_{line}", Origin("", "aten.index.Tensor", f"layers.{line}", f"net.py:{line}"), INDEX))
    report.refusals.append(Refusal("sort", Origin("", "aten.sort.default", "", "net.py:9"), SORT))
    index, sort = refusal_texts(report.to_json())
    assert index == f"aten.index.Tensor at layers.0 (net.py:0) and 2 more: {INDEX.text} [GATHER.absent] {INDEX.way_out}"
    assert sort.startswith("aten.sort.default (net.py:9): ")
    text = partition_text(report)
    assert text.count("GATHER.absent") == text.count("operator.unknown") == 1
