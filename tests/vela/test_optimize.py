"""Streams that cannot be optimized: Vela's stream is used."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from torch import nn

import ethorch
from ethorch.npu.ir import Stream
from ethorch.npu.passes import pipeline
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.pipeline import Pass
from ethorch.program.program import Program, record_of
from ethorch.support.errors import MachineFault
from ethorch.vela import optimize


def compile_with(stream: str) -> Program:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 4))
    return ethorch.compile(
        model.eval(), torch.randn(1, 3, 8, 8), "ethos-u55-128", settings=ethorch.Settings(stream=stream), progress=False
    )


def shorten_weights(stream: Stream, context: Context) -> Stream:
    """Shorten the weight stream of the last convolution."""
    ops = list(stream.ops)
    last = max(position for position, op in enumerate(ops) if op.name == "NPU_OP_CONV")
    ops[last] = ops[last].copy(WEIGHT_LENGTH=ops[last].registers["WEIGHT_LENGTH"] - 16)
    return replace(stream, ops=ops)


def misplace_output(stream: Stream, context: Context) -> Stream:
    """Write the result of the first convolution to an address that is not aligned."""
    ops = list(stream.ops)
    first = min(position for position, op in enumerate(ops) if op.name == "NPU_OP_CONV")
    ops[first] = ops[first].copy(OFM_BASE0=ops[first].registers["OFM_BASE0"] + 1)
    return replace(stream, ops=ops)


def keep(stream: Stream, context: Context) -> Stream:
    return replace(stream, ops=list(stream.ops))


@pytest.mark.parametrize("run", [shorten_weights, misplace_output])
def test_a_rejected_stream_is_replaced_by_velas(
    run: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = record_of(compile_with("vela")).payloads
    passes = (Pass("attention", keep), Pass("allocation", run))  # type: ignore[arg-type]
    monkeypatch.setattr(optimize, "optimize", lambda *arguments: pipeline.optimize(*arguments, passes))
    with caplog.at_level(logging.WARNING, "ethorch"):
        program = compile_with("optimized")
    assert "[stream.rejected]" in caplog.text and "pass allocation" in caplog.text
    assert [payload.commands for payload in record_of(program).payloads] == [payload.commands for payload in expected]


def test_a_stream_that_cannot_be_decoded_is_kept(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    expected = record_of(compile_with("vela")).payloads

    def fail(*_: object) -> None:
        raise MachineFault("NPU_OP_BRANCH has no representation")

    monkeypatch.setattr(optimize, "optimize", fail)
    with caplog.at_level(logging.WARNING, "ethorch"):
        program = compile_with("optimized")
    assert "stream" not in caplog.text
    assert [payload.commands for payload in record_of(program).payloads] == [payload.commands for payload in expected]
