"""State beside operators on the CPU, written without ExecuTorch: its results, with buffers apart and rows alone moved."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ethorch import EthosUCompileSpec, runtime
from ethorch.backend.build import build_pte
from ethorch.backend.through_executorch import lower_by_executorch
from ethorch.figures.persistent_buffers import is_kept
from ethorch.formats import pte
from ethorch.lower.fx.states import with_reads_first
from ethorch.models.load import UserModel
from ethorch.quantization.calibrate import quantize
from tests.helpers.pte_files import check_round_trip
from tests.helpers.states import CASES, Inputs, run


class Beside(nn.Module):
    """A model with state; the CPU counts its calls, and looks for the largest results of it."""

    calls: Tensor

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))

    def forward(self, *inputs: Any) -> tuple[Tensor, Tensor]:
        self.calls += 1
        return torch.topk(self.model(*inputs), 1)[0], self.calls * 2


class Behind(nn.Module):
    """The CPU reads buffers before and behind the NPU, and writes some; one takes what another held."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        for name in ("kept", "last", "before", "largest"):
            self.register_buffer(name, torch.zeros(1, 8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        order = torch.argmax(torch.relu(self.kept + self.a(x)), 1)
        y = self.b(x) + self.last
        late = torch.topk(self.kept, 8)[0]  # the old contents, when the NPU has the new ones
        self.before.copy_(self.last)
        self.last.copy_(y)
        self.kept.copy_(torch.tanh(y))
        self.largest.copy_(torch.flip(torch.topk(y, 8)[0], [1]))
        return late + order + self.before, self.largest.cumsum(1)


def check(model: nn.Module, steps: list[Inputs], target: str, beside_executorch: bool) -> pte.Method:
    """The results of fake quantization, and the same as by ExecuTorch, of a program that it did not plan; its method."""
    torch.manual_seed(1)
    spec = EthosUCompileSpec(target)
    module = quantize(UserModel(model.eval(), steps[0], steps), spec)
    build = build_pte(module, steps[0], spec)
    check_round_trip(build.pte)
    method = pte.read(build.pte).methods["forward"]
    kept = {value.extra.name for value in method.values if is_kept(value) and value.extra}
    assert kept == {state.name for state in build.states} and kept
    ours = wanted = runtime.load(build.pte)
    if beside_executorch:
        wanted = runtime.load(lower_by_executorch(with_reads_first(module), steps[0], spec).pte)
    fake = copy.deepcopy(module)
    for number, inputs in enumerate(steps):
        found = [result.clone() for result in ours(*inputs)]
        for one, other in zip(found, fake(*inputs), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0.2)
        assert not beside_executorch or all(map(torch.equal, found, wanted(*inputs))), f"step {number}"
    ours.reset()
    assert torch.equal(run(ours, steps[:1])[0], run(runtime.load(build.pte), steps[:1])[0])
    return method


BOTH = [("slots", False), ("wide positions", False), *(pytest.param(name, True, marks=pytest.mark.long) for name in CASES)]


@pytest.mark.parametrize(("name", "beside_executorch"), BOTH)
def test_state_beside_operators_on_the_cpu(name: str, beside_executorch: bool) -> None:
    case = CASES[name]
    method = check(Beside(case.model()), case.steps(12), case.target, beside_executorch)
    kernels = [call.operator for call in method.calls if call.delegate is None]
    delegate = next(call for call in method.calls if call.delegate is not None)
    results = [method.values[arg] for arg in delegate.args]
    if name == "wide positions":  # rows of two caches
        assert kernels.count("aten::index_put_") == 2 and sum(is_kept(value) for value in results) == 2
    if name == "slots":  # three rows, inside the buffer
        assert kernels.count("aten::copy_") == 1 and sum(is_kept(value) for value in results) == 4


@pytest.mark.parametrize("beside_executorch", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_delegate_writes_a_buffer_of_which_the_cpu_reads_the_new_contents(beside_executorch: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    steps = [(torch.randn(1, 8, generator=generator),) for _ in range(8)]
    method = check(Behind(), list(steps), "ethos-u55-128", beside_executorch)
    assert "aten::copy_" not in [call.operator for call in method.calls]
