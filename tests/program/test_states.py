"""What became of the buffers that a model changes: said by explain, in the JSON, and of a file alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import ethorch
from ethorch.backend.through_executorch import lower_by_executorch
from ethorch.lower.fx.states import with_codes
from ethorch.program.program import Program, record_of
from ethorch.program.record import Record
from ethorch.quantization.shared_buffers import start_from_initial_state
from ethorch.support.errors import SpecError
from tests.helpers.states import CASES, run


class Mixed(nn.Module):
    """A state for each way it may go."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        for name in ("turned", "last", "unread", "decaying"):
            self.register_buffer(name, torch.zeros(1, 4))
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("never", torch.ones(1, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.calls += 1
        y = torch.relu(self.lin(x))
        z = y + self.last + self.never
        self.last.copy_(x)
        self.unread.copy_(y)
        self.decaying.mul_(0.5)
        self.decaying.add_(z)
        angle = torch.atan2(self.turned + y, y + 1)
        self.turned.copy_(angle)
        return angle + self.decaying, self.calls, self.decaying


def compiled(model: nn.Module, steps: list[Any], target: str = "ethos-u55-128") -> Program:
    return ethorch.compile(model.eval(), steps[0], calibration=steps, target=target)


@pytest.fixture(scope="module")
def mixed() -> Program:
    return compiled(Mixed(), [(torch.randn(1, 4),) for _ in range(8)])


def test_each_state_says_what_became_of_it(mixed: Program) -> None:
    states = {state.name: state for state in mixed.explain().states}
    assert {name: (state.dtype, state.id) for name, state in states.items()} == {
        "turned": ("float32", "state.written_as_float"),
        "last": ("int8", ""),
        "unread": ("int8", ""),
        "decaying": ("int8", ""),
        "calls": ("int64", ""),
    }
    assert states["last"].scale is not None and states["calls"].scale is None
    assert states["decaying"].size_bytes == 4 and states["turned"].size_bytes == 16
    text = str(mixed.explain())
    assert "Mutable buffers" in text and "[state.written_as_float] Quantize the module" in text
    assert mixed.explain(operator="add").states == ()


def test_what_executorch_plans_lies_among_tensors() -> None:
    module, steps, spec = CASES["ring"].quantized()
    (state,) = Program(Record(lower_by_executorch(with_codes(module)[0], steps[0], spec).pte)).explain().states
    assert (state.name, state.dtype, state.id, state.in_place) == ("keys", "int8", "state.among_tensors", False)


def test_the_json_has_the_states(mixed: Program) -> None:
    rows = {row["name"]: row for row in mixed.to_json()["states"]}
    assert rows["turned"]["remedy"] and rows["unread"]["reason"] == ""
    assert rows["last"]["to_npu_bytes"] == 4
    assert {name for name, row in rows.items() if row["in_place"]} == {"last", "decaying"}
    assert [row["name"] for row in mixed.explain().to_json()["states"]] == list(rows)


def test_a_mixed_model_gives_what_the_quantized_one_gives(mixed: Program) -> None:
    steps = [(torch.randn(1, 4),) for _ in range(6)]
    assert record_of(mixed).quantized is not None
    for ours, fake in zip(run(mixed, steps), run(record_of(mixed).quantized, steps), strict=True):
        torch.testing.assert_close(ours, fake, rtol=0, atol=0.1)


def test_a_stateful_program_is_evaluated_in_order_from_its_beginning(mixed: Program) -> None:
    """Float, quantized and NPU each have buffers of their own, and find and leave them at their initial contents."""
    steps = [(torch.randn(1, 4),) for _ in range(6)]
    assert record_of(mixed).model is not None and record_of(mixed).quantized is not None
    mixed(*steps[0])
    begun = copy.deepcopy(record_of(mixed).quantized)
    record_of(mixed).quantized(*steps[0])  # what it holds now is no beginning
    before = [buffer.clone() for buffer in record_of(mixed).model.module.buffers()]
    found = ethorch.evaluate(mixed, steps, keep=True)
    with start_from_initial_state(begun):
        wanted_of = {"float": run(copy.deepcopy(record_of(mixed).model.module), steps), "quantized": run(begun, steps)}
    for column, outputs in wanted_of.items():
        for wanted, one in zip(outputs, found.sample_results, strict=True):
            assert torch.equal(wanted, one.outputs[column][0]), column
    assert all(torch.equal(a, b) for a, b in zip(before, record_of(mixed).model.module.buffers(), strict=True))
    assert found.results["npu"]["sqnr_db"] > 20
    assert abs(found.results["npu"]["sqnr_db"] - found.results["quantized"]["sqnr_db"]) < 3
    again = ethorch.evaluate(mixed, steps)
    assert again.results == found.results
    with pytest.raises(SpecError, match="does not support programs with state"):
        ethorch.evaluate(mixed, steps, jobs=2)


def test_accuracy_follows_the_samples_in_order() -> None:
    case = CASES["denoiser"]
    program = compiled(case.model(), case.steps(8), case.target)
    wanted = ethorch.evaluate(program, case.steps(8)).results["npu"]["sqnr_db"]
    program(*case.steps(1)[0])
    assert program.accuracy is not None
    assert program.accuracy.sqnr_db == pytest.approx(wanted, abs=1e-3)


class Fading(nn.Module):
    """Weights that each call halves, as some networks rescale theirs."""

    def __init__(self, parameter: bool) -> None:
        super().__init__()
        weight = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
        if parameter:
            self.weight = nn.Parameter(weight)
        else:
            self.register_buffer("weight", weight)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.mul_(0.5)  # type: ignore[operator]
            return torch.relu(nn.functional.linear(x, self.weight))  # type: ignore[arg-type]


def test_a_parameter_that_a_model_writes_is_state() -> None:
    steps = [(torch.randn(1, 8),) for _ in range(4)]
    found, held = [], []
    for parameter in (True, False):
        model = Fading(parameter)
        program = compiled(model, steps)
        assert [state.name for state in program.explain().states] == ["weight"]
        held.append(model.weight.detach().clone())  # type: ignore[union-attr, operator]
        found.append(run(program, steps))
    assert torch.equal(*held)  # calibration has put back what it changed
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert ethorch.sqnr_db(run(Fading(True), steps), found[0]) > 15


def test_a_float_module_reads_its_buffer_in_float() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), Fading(False)), torch.rand(1, 8)
    quantized = record_of(ethorch.compile(model, x, calibration=torch.rand(8, 8), modules={"1": "float"})).quantized
    assert isinstance(quantized, GraphModule)
    (buffer,) = (node for node in quantized.graph.nodes if str(node.target) == "1.weight")
    assert {str(user.target) for user in buffer.users} == {"aten.clone.default", "aten.copy_.default"}


def test_a_file_alone_names_what_it_keeps() -> None:
    case = CASES["streaming"]
    program = compiled(case.model(), case.steps(10), case.target)
    opened = ethorch.load(program.pte)
    for state, known in zip(opened.explain().states, program.explain().states, strict=True):
        assert (state.name, state.dtype, state.where, state.to_npu_bytes, state.from_npu_bytes) == (
            known.name,
            "int8",
            ("NPU 0",),
            known.size_bytes,
            known.size_bytes,
        )
        assert state.scale is None and known.scale is not None and state.in_place and known.in_place
    assert "in place: generated firmware and the simulator do not copy the buffer" in str(opened.explain())


@pytest.mark.parametrize("name", (pytest.param("denoiser", marks=pytest.mark.long), "streaming", "slots", "wide positions"))
def test_layers_compare_where_state_holds_codes(name: str) -> None:
    """The TOSA reference model's bits are the simulator's."""
    case = CASES[name]
    program = compiled(case.model(), case.steps(10), case.target)
    found = program.compare(*case.steps(1)[0])
    assert found.bit_exact
    assert len(found.layers) > 5
