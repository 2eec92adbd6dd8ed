"""Programs in pickles and deep copies: sent to processes and clusters, they compute and answer as the original."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch.program.program import record_of

X = torch.linspace(-1, 1, 3 * 12 * 12).sin().reshape(1, 3, 12, 12)
STEPS = [torch.full((1, 4), 0.25 * k) for k in range(1, 4)]


class Mixed(nn.Module):
    """A part on the CPU between two delegates, and a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.conv(x).relu()
        means = y.mean((2, 3))
        chosen = torch.cond(means.sum() > 0, lambda m: m + 0.5, lambda m: m - 0.5, (means,))
        return {"head": self.head(torch.cumsum(chosen, 1)), "map": y}


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).mean((2, 3))


class Sum(nn.Module):
    """A running sum."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(x)
        return self.total * 0.5


def outputs(program: ethorch.Program, *inputs: Tensor) -> list[Tensor]:
    """In this process, or in another."""
    return torch.utils._pytree.tree_leaves(program(*inputs))


@pytest.fixture(scope="module")
def whole() -> ethorch.Program:
    torch.manual_seed(0)
    return ethorch.compile(Whole().eval(), X, "ethos-u55-128", calibration=[X, X / 2])


@pytest.fixture(scope="module")
def mixed() -> ethorch.Program:
    torch.manual_seed(0)
    return ethorch.compile(Mixed().eval(), X, "ethos-u85-256", calibration=[X, -X])


def same(a: ethorch.Program, b: ethorch.Program) -> None:
    assert a is not b and a.to_json() == b.to_json() and str(a) == str(b)
    for one, two in zip(outputs(a, X), outputs(b, X), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


def copies(program: ethorch.Program) -> Iterator[ethorch.Program]:
    yield pickle.loads(pickle.dumps(program))
    yield copy.deepcopy(program)
    yield pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(program))))


@pytest.mark.core
def test_copies_compute_and_answer_as_the_original(whole: ethorch.Program, mixed: ethorch.Program) -> None:
    for program in (whole, mixed):
        wanted = program(X)
        for other in copies(program):
            same(program, other)
            torch.utils._pytree.tree_map(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0), wanted, other(X))
            assert str(other.explain()) == str(program.explain())


def test_a_copy_has_the_models_and_their_lines(whole: ethorch.Program) -> None:
    wanted = whole.compare(X)
    for other in copies(whole):
        assert record_of(other).model is not None and record_of(other).model.module is not record_of(whole).model.module
        assert str(other.compare(X)) == str(wanted) and "test_transfer.py:" in str(wanted)
        assert other.accuracy == whole.accuracy


def test_a_copy_begins_with_the_initial_contents() -> None:
    program = ethorch.compile(Sum(), STEPS[0], "ethos-u55-128", calibration=[(x,) for x in STEPS])
    first = [program(x).clone() for x in STEPS]
    for other in copies(program):
        assert all(torch.equal(other(x), wanted) for x, wanted in zip(STEPS, first, strict=True))


def test_methods_stay_together() -> None:
    torch.manual_seed(0)
    one, two = Whole().eval(), nn.Sequential(nn.Flatten(), nn.Linear(432, 4)).eval()
    program = ethorch.compile({"one": one, "two": two}, {"one": X, "two": X}, "ethos-u55-128")
    for other in copies(program["two"]):
        assert (
            record_of(other).method == "two"
            and other.methods == ("one", "two")
            and record_of(other["one"]["two"]) is record_of(other)
        )
        for name in ("one", "two"):
            torch.testing.assert_close(other[name](X), program[name](X), rtol=0, atol=0)


def test_a_loaded_program_is_copied(whole: ethorch.Program, tmp_path: Path) -> None:
    loaded = ethorch.load(whole.save(tmp_path / "model.pte"))
    for other in copies(loaded):
        same(loaded, other)


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_a_process_gets_a_program(whole: ethorch.Program, start: str) -> None:
    """The spawned one imports nothing of the user's: the models are read on first use."""
    if start not in multiprocessing.get_all_start_methods():
        pytest.skip(f"the platform has no {start}")
    with multiprocessing.get_context(start).Pool(1) as pool:
        (found,) = pool.starmap(ethorch.Program.__call__, [(whole, X)])
    torch.testing.assert_close(found, whole(X), rtol=0, atol=0)


def test_a_cluster_gets_a_program(whole: ethorch.Program) -> None:
    import distributed

    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        found = client.submit(outputs, whole, X).result(timeout=120)
    torch.testing.assert_close(found, outputs(whole, X), rtol=0, atol=0)
