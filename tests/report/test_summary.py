"""What stays on the CPU, in sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import ethorch
from ethorch.lower.partition_report import PartitionReport, Refusal
from ethorch.program.explanation import explanation
from ethorch.program.program import record_of
from ethorch.report.markdown import markdown
from ethorch.report.page.page import page
from ethorch.report.summary import summary
from ethorch.support.errors import Reason
from ethorch.support.rendering import as_text
from ethorch.tosa.ir import Origin

INDEX = Reason("GATHER.absent", "GATHER is not supported on ethos-u55-128", "Use an ethos-u85 target.")
SORT = Reason("operator.unknown", "aten.sort.default has no lowering to the NPU", "Use amax.")


def test_a_program_without_operators_takes_no_time(tmp_path: Path) -> None:
    program = ethorch.compile(torch.nn.Identity(), torch.zeros(1, 4))
    data = program.to_json()
    assert data["milliseconds"] == 0 and data["inferences_per_second"] is None
    assert "0.000 ms" in str(program) and "0.000 ms." in markdown(data) and program.report(tmp_path / "page.html").exists()


def test_operators_that_one_reason_keeps_on_the_cpu_share_a_sentence(program: ethorch.Program, data: dict[str, Any]) -> None:
    report = PartitionReport("ethos-u55-128")
    for line in range(3):
        report.refusals.append(Refusal(f"index_{line}", Origin("", "aten.index.Tensor", f"layers.{line}", f"net.py:{line}"), INDEX))
    report.refusals.append(Refusal("sort", Origin("", "aten.sort.default", "", "net.py:9"), SORT))
    index, sort = report.refusal_texts()
    again = Refusal("mode", Origin("", "aten.mode.default", "", "net.py:10"), Reason("cpu.no_kernel", "no kernel", SORT.remedy))
    texts = PartitionReport("ethos-u55-128", refusals=report.refusals, without_kernel=[again]).refusal_texts()
    assert len(texts) == 3 and "".join(texts).count(SORT.remedy) == 1
    assert index == f"aten.index.Tensor at layers.0 (net.py:0) and 2 more: {INDEX.text} [GATHER.absent] {INDEX.remedy}"
    assert sort.startswith("aten.sort.default (net.py:9): ")
    data |= {key: report.to_json()[key] for key in ("cpu", "without_kernel")}
    table, html = markdown(data), page(data)
    for text in (
        as_text(summary(data)),
        str(explanation("ethos-u55-128", record_of(program).layers, report)),
    ):
        assert text.count("[GATHER.absent]") == text.count("[operator.unknown]") == 1 and "and 2 more" in text
    assert table.count("(GATHER.absent)") == html.count("<code>GATHER.absent</code>") == 1
    assert "| 3 | aten.index.Tensor | layers.0 |" in table
    assert "<tr><td>3</td><td>aten.index.Tensor</td><td>layers.0</td>" in html


def test_passes_state_what_they_save_and_add(data: dict[str, Any]) -> None:
    sizes = {"cycles_before": 2000, "cycles_after": 1500, "bytes_before": 400, "bytes_after": 500}
    equal = {**sizes, "name": "allocation", "cycles_after": 2000, "bytes_after": 300}
    data["stream_passes"] = [{**sizes, "name": "attention", "delegates": 1}, {**equal, "delegates": 1}]
    text = as_text(summary(data))
    assert "saves 500 estimated cycles (25.0%) and adds 100 bytes of the NPU's RAM (25.0%), untested on devices" in text
    assert "saves 100 bytes of the NPU's RAM (25.0%)" in text and text.count("untested") == 1
    data["settings"]["stream"] = "attention,allocation"  # selected by the user or by a probe
    assert "untested" not in as_text(summary(data))
