"""Rows of ``Program.explain``."""

from __future__ import annotations

import pytest

from ethorch.figures.layer import Layer
from ethorch.lower.partition_report import PartitionReport, Refusal
from ethorch.program.explanation import explanation
from ethorch.support.errors import Reason, SpecError
from ethorch.tosa.ir import Origin


def test_no_rows() -> None:
    text = str(explanation("ethos-u55-128", [], None, cpu_only=True))
    assert text.rstrip().endswith("No rows, because all selected operators run on the NPU.")


def test_name_without_match() -> None:
    with pytest.raises(SpecError, match="no operator name contains 'conv'"):
        explanation("ethos-u55-128", [], None, "conv")


def test_an_operator_with_two_reasons_is_listed_once_and_a_selection_does_not_change_the_counts() -> None:
    layers = [
        Layer(0, "relu", "NPU", 0, "Relu", ("aten.relu.default",), cycles=10),
        Layer(1, "mode", "CPU", None, "aten::mode.values", ("aten.mode.default",), source="net.py:4", cycles=3200),
    ]
    origin = Origin("", "aten.mode.default", "", "net.py:4")
    refusals, missing = ([Refusal("mode", origin, Reason(id, "text", "way out"))] for id in ("operator.unknown", "cpu.no_kernel"))
    partition = PartitionReport("ethos-u55-128", {"tag0": ["relu"]}, refusals, missing)
    all_rows, cpu_rows = (str(explanation("ethos-u55-128", layers, partition, cpu_only=only)) for only in (False, True))
    assert "Rows: 1 operation on the NPU, 1 operator on the CPU" in all_rows
    assert "Rows: 1 of 2 (1 operation on the NPU, 1 operator on the CPU" in cpu_rows
    for text in (all_rows, cpu_rows):
        assert sum(line.startswith("CPU") for line in text.splitlines()) == 1 and "3,200" in text and "[cpu.no_kernel]" in text
