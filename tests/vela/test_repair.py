"""A delegate that Vela compiles wrong is compiled again with copies, until it computes what its TOSA graph does."""

from __future__ import annotations

import itertools
import logging
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch import EthosUCompileSpec, runtime
from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.vela_bugs import VELA_BUGS
from ethorch.program.program import record_of
from ethorch.support.errors import MachineFault, VelaError, VerificationError
from ethorch.targets.npus import TARGETS
from ethorch.tosa.ir import Graph
from ethorch.vela import delegate, repair
from ethorch.vela.compiled_model import CompiledModel
from ethorch.vela.delegate import compile_lowered
from ethorch.vela.lowered import Lowered
from ethorch.vela.optimize import optimize_model
from tests.helpers.random_networks.sweeps import without_row
from tests.lower.rewrite.vela_bug_findings import built, npu_of
from tests.lower.rewrite.vela_bug_graphs import GRAPHS
from tests.lower.rewrite.vela_bug_makers import Avoided

#: Rows whose bugs copies do not mend: a kernel that the NPU cannot run, maps, windows and transfers beyond a register that Vela
#: splits incorrectly, weights and constants, and values that Vela loses before any copy or fuses with it.
NOT_MENDED = {
    "vela.dilated-convolution-of-short-map", "vela.dilated-convolution-of-long-map", "vela.dilated-convolution-along-long-axis",
    "vela.padded-stride-along-long-axis", "vela.padded-stride-beside-long-axis", "vela.wide-padding", "vela.gather-of-many-rows",
    "vela.scatter-of-many-rows", "vela.wide-int32-move", "vela.bool-output-that-is-read", "vela.equal-weights",
    "vela.transpose-of-constant", "vela.widened-in-producer",
}  # fmt: skip


def lowered(graph: Graph, npu: str, **options: bool) -> Lowered:
    return compile_lowered(graph, TARGETS[npu].tuning, EthosUCompileSpec(npu, **options))


@pytest.mark.parametrize(
    "id, npu",
    [
        ("vela.matmul-of-slice", "ethos-u55-128"),
        ("vela.broadcast-slice-in-chain", "ethos-u85-256"),
        ("vela.dilated-convolution-of-slice", "ethos-u65-256"),
        ("vela.turned-slice", "ethos-u55-128"),
    ],
)
def test_copies_mend_what_vela_gets_wrong(id: str, npu: str, caplog: pytest.LogCaptureFixture) -> None:
    for make in GRAPHS[id].values():
        assert not isinstance(make, Avoided)
        caplog.clear()
        with without_row(id), caplog.at_level(logging.WARNING, "ethorch"):
            found = lowered(built(make, npu), npu)
        assert 1 <= len(found.repairs) <= 2
        assert "[vela.repaired]" in caplog.text and found.repairs[0] in caplog.text


def test_attempts_run_no_passes_but_the_result_does(monkeypatch: pytest.MonkeyPatch) -> None:
    id, npu = "vela.matmul-of-slice", "ethos-u55-128"
    calls: list[frozenset[str]] = []

    def optimize(compiled: CompiledModel, spec: EthosUCompileSpec) -> CompiledModel:
        calls.append(spec.stream_passes)
        return optimize_model(compiled, spec)

    monkeypatch.setattr(delegate, "optimize_model", optimize)
    make = next(iter(GRAPHS[id].values()))
    assert not isinstance(make, Avoided)
    with without_row(id):
        found = lowered(built(make, npu), npu)
    passes = EthosUCompileSpec(npu).stream_passes
    assert found.repairs and calls[0] == calls[-1] == passes and len(calls) > 2
    assert set(calls[1:-1]) == {frozenset()}


def test_nothing_is_copied_if_the_commands_are_right(caplog: pytest.LogCaptureFixture) -> None:
    (make, *_) = GRAPHS["vela.matmul-of-slice"].values()
    assert not isinstance(make, Avoided)
    found = lowered(built(make, "ethos-u55-128"), "ethos-u55-128")
    assert (found.repairs, caplog.text) == ((), "")


def test_a_busy_machine_does_not_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = itertools.count(step=3600)
    monkeypatch.setattr(repair, "time", SimpleNamespace(monotonic=hours.__next__, thread_time=time.thread_time))
    (make, *_) = GRAPHS["vela.matmul-of-slice"].values()
    assert not isinstance(make, Avoided)
    with without_row("vela.matmul-of-slice"):
        assert len(lowered(built(make, "ethos-u55-128"), "ethos-u55-128").repairs) == 1


def test_what_copies_do_not_mend_is_an_error() -> None:
    id = "vela.dilated-convolution-of-short-map"
    (make, *_) = GRAPHS[id].values()
    assert not isinstance(make, Avoided)
    with without_row(id):
        with pytest.raises(VerificationError, match=r"cannot run.*kernel"):
            lowered(built(make, "ethos-u55-128"), "ethos-u55-128")
        assert lowered(built(make, "ethos-u55-128"), "ethos-u55-128", verify=False).repairs == ()


def test_a_delegate_that_needs_more_memory_than_the_simulator_has_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_memory(payload: object) -> None:
        raise MachineFault("region 1 is too large")

    monkeypatch.setattr(runtime, "npu_machine", refuse_memory)
    (make, *_) = GRAPHS["vela.matmul-of-slice"].values()
    assert not isinstance(make, Avoided)
    assert lowered(built(make, "ethos-u55-128"), "ethos-u55-128").repairs == ()


def test_two_bugs_in_one_delegate_are_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of two operands apart from each other; the fewest are kept."""
    b = Builder(tuning=TARGETS["ethos-u55-128"].tuning)
    values = [b.input(f"x{number}", (1, 4, 4), "INT32") for number in range(5)]
    total = values[0]
    for value in values[1:]:
        total = b.emit("ADD", total, value)
    b.graph.outputs.append(total)
    needed = {(op.result.name, 1) for op in b.graph.ops if op.operands[1].name in ("x1", "x4")}
    seen: list[set[tuple[str, int | None]]] = []
    insert = repair.insert_copies

    def watched(graph: Graph, operands: list[repair._Operand]) -> tuple[str, ...]:
        seen.append({(operand.reader, operand.place) for operand in operands})
        return insert(graph, operands)

    monkeypatch.setattr(repair, "insert_copies", watched)
    monkeypatch.setattr(repair, "_equal", lambda outputs, expected: bool(seen) and needed <= seen[-1])
    monkeypatch.setattr(repair, "check_outputs", refuse)
    found = lowered(b.graph, "ethos-u55-128")
    assert seen[-1] == needed and len(found.repairs) == 2


def refuse(*arguments: object) -> None:
    raise VerificationError("differs", "an operator", "no such value")


@pytest.mark.parametrize("dtype", ["INT8", "INT16", "INT32", "BOOL"])
def test_random_inputs_use_the_range_of_their_dtype(dtype: str) -> None:
    value = Builder().input("x", (100, 100), dtype)
    drawn = repair._random(value, np.random.default_rng(0), None, 8)
    low, high = {"INT8": (-128, 127), "INT16": (-32768, 32767), "INT32": (0, 7), "BOOL": (0, 1)}[dtype]
    assert low <= drawn.min() <= low + 8 and high - 8 <= drawn.max() <= high


class Shifts(nn.Module):
    def forward(self, x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        return x << n, x >> n


@pytest.mark.parametrize("npu", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16])
def test_random_shift_amounts_have_a_result(dtype: torch.dtype, npu: str) -> None:
    x, n = torch.arange(-50, 50).to(dtype), torch.arange(100).remainder(8).to(dtype)
    program = ethorch.compile(Shifts(), (x, n), npu)
    (delegate,) = record_of(program).build.delegates  # type: ignore[union-attr]
    assert repair.random_inputs(delegate) is not None
    assert all(map(torch.equal, program(x, n), Shifts()(x, n)))


class Rows(nn.Module):
    """Two slices of rows multiplied: U55 reads the second from offset 0 without the row of VELA_BUGS."""

    def forward(self, x: Tensor) -> Tensor:
        a = x.narrow(1, 2, 1)
        return a @ a.transpose(-1, -2)


def test_the_program_says_what_was_repaired() -> None:
    x = torch.randn(1, 4, 8, 5, generator=torch.Generator().manual_seed(0))
    with without_row("vela.turned-slice"):
        program = ethorch.compile(Rows(), x, "ethos-u55-128", calibration=[(x,)])
    assert record_of(program).verification is not None and len(record_of(program).verification.repairs) == 1
    assert program.to_json()["verification"]["repairs"] == record_of(program).verification.repairs
    assert "Repaired" in str(program)


@pytest.mark.long
def test_every_row_but_a_few_would_be_repaired() -> None:
    """Without its row, each graph of each bug is repaired, unless Vela refuses it."""
    failed, repairs = set(), 0
    for bug in VELA_BUGS:
        for make in GRAPHS.get(bug.id, {}).values():
            if isinstance(bug.instead, str) or isinstance(make, Avoided):
                continue
            for family in bug.families:
                npu = npu_of(bug, family)
                if bug.id in failed:  # one search takes minutes
                    continue
                with without_row(bug.id):
                    try:
                        repairs += bool(lowered(built(make, npu), npu).repairs)
                    except VerificationError:
                        failed.add(bug.id)
                    except VelaError:
                        pass
    assert failed == NOT_MENDED and repairs > 100
