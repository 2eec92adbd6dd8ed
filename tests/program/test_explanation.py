"""Rows of ``Program.explain``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ethorch
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


class Tokens(nn.Module):
    """An embedding of the tokens or of the clamped tokens, and their halves, which the CPU computes in int64."""

    def __init__(self, clamped: bool, halves: bool):
        super().__init__()
        self.table, self.clamped, self.halves = nn.Embedding(6, 4), clamped, halves

    def forward(self, tokens: torch.Tensor) -> Any:
        embedded = self.table(tokens.clamp(0, 5) if self.clamped else tokens)
        return (embedded, tokens // 2) if self.halves else embedded


@pytest.mark.parametrize(
    ("clamped", "halves", "expected"),
    [
        (False, False, {"to_dim_order_copy": "io.int64"}),
        (True, False, {"clamp": "io.int64", "to_dim_order_copy": "io.int64"}),
        (False, True, {"div": "cpu.lowered", "floor_divide": "graph.int64_input", "to_dim_order_copy": "io.int64"}),
    ],
)
def test_each_cpu_row_has_a_reason_and_a_remedy(clamped: bool, halves: bool, expected: dict[str, str]) -> None:
    tokens = torch.randint(0, 6, (3,))
    found = ethorch.compile(Tokens(clamped, halves), tokens, "ethos-u85-256", calibration=[tokens]).explain(cpu_only=True)
    assert all(row.id and row.reason and row.remedy for row in found.operators)
    ids = {row.operator.split(".")[1].strip("_"): row.id for row in found.operators if row.id != "io.floats"}
    assert ids == expected


def test_int32_tokens_need_no_conversion() -> None:
    tokens = torch.randint(0, 6, (3,), dtype=torch.int32)
    found = ethorch.compile(Tokens(False, False), tokens, "ethos-u85-256", calibration=[tokens]).explain(cpu_only=True)
    assert {row.id for row in found.operators} == {"io.floats"}


def test_each_call_of_an_operator_on_one_line_has_the_reason() -> None:
    layers = [Layer(k, "mode", "CPU", None, "aten::mode.values", ("aten.mode.default",), source="net.py:4") for k in range(2)]
    origin = Origin("", "aten.mode.default", "", "net.py:4")
    refusals = [Refusal(f"mode_{k}", origin, Reason("operator.unknown", "text", "way out")) for k in range(2)]
    found = explanation("ethos-u55-128", layers, PartitionReport("ethos-u55-128", refusals=refusals))
    assert [row.id for row in found.operators] == ["operator.unknown"] * 2
