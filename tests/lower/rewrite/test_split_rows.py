"""Parts of a graph in bands of rows: the same bits, and smaller arenas than any schedule of Vela's has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ethorch
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.lower.rewrite.split_rows import parts
from ethorch.program.program import record_of
from ethorch.targets.npus import TUNING
from ethorch.tosa.ir import Graph
from ethorch.tosa.serialize import serialize
from ethorch.tosa.verify import verify
from ethorch.vela import arena
from ethorch.vela.bands import Way, apply_bands
from tests.helpers.tosa_runs import reference


class Windows(nn.Module):
    """Windows of many kinds, two readers of one value, channels that are joined, rows that become channels and back."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.stem, self.wide = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, padding=2, dilation=2)
        self.depthwise, self.gate = nn.Conv2d(8, 8, (5, 3), padding=(2, 1), groups=8), nn.Linear(8, 8)
        self.narrow, self.up = nn.Conv2d(16, 8, 1), nn.ConvTranspose2d(8, 4, 2, 2)
        self.last = nn.Conv2d(4, 4, 3, 1, 0)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y = F.max_pool2d(F.silu(self.wide(x)), 3, 1, 1) + self.depthwise(x)
        y = y * torch.sigmoid(self.gate(x.mean((2, 3))))[:, :, None, None]
        y = self.narrow(torch.cat([F.avg_pool2d(y, 3, 1, 1), x], 1))
        return F.pixel_shuffle(self.last(self.up(F.avg_pool2d(y, 2))), 2)


class Skips(nn.Module):
    """A U: what comes down is joined with what goes up."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.down, self.bottom = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.up, self.merge, self.head = nn.ConvTranspose2d(16, 16, 2, 2), nn.Conv2d(32, 16, 3, padding=1), nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = F.relu(self.down(x))
        coarse = F.relu(self.bottom(F.max_pool2d(fine, 2)))
        return self.head(F.relu(self.merge(torch.cat([fine, self.up(coarse)], 1))))


def lowered(program: ethorch.Program) -> Graph:
    assert record_of(program).build is not None
    (delegate,) = record_of(program).build.delegates
    return delegate.graph


def arena_of(program: ethorch.Program) -> int:
    assert record_of(program).build is not None
    return arena.arena_bytes(record_of(program).build.delegates[0].compiled)


@pytest.mark.parametrize("scheme", ["int8", "a16w8"])
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_bits(scheme: str, target: str) -> None:
    x = torch.randn(4, 1, 3, 26, 20)
    graph = lowered(ethorch.compile(Windows().eval(), x[0], target, calibration=list(x), scheme=scheme))
    codes = [np.random.default_rng(0).integers(-120, 120, value.shape).astype(value.dtype.lower()) for value in graph.inputs]
    (wanted,) = reference(serialize(graph), codes)
    found = list(parts(graph))
    assert {op.name for part in found for op in part.ops} >= {
        "CONV2D", "DEPTHWISE_CONV2D", "AVG_POOL2D", "MAX_POOL2D", "ADD", "MUL", "TABLE", "CONCAT", "TRANSPOSE", "RESHAPE",
    }  # fmt: skip
    for number in (*range(0, len(found), 5), len(found) - 1):
        for count in (0, 1):
            banded = apply_bands(graph, Way(number, count, found[number]))
            verify(banded)
            assert len(banded.ops) > len(graph.ops)
            np.testing.assert_array_equal(reference(serialize(banded), codes)[0], wanted)
    both = rewrite(apply_bands(graph, Way(0, 1, max(found, key=lambda part: len(part.ops)))), TUNING[target.split("-")[1]])
    np.testing.assert_array_equal(reference(serialize(both), codes)[0], wanted)


def test_what_cannot_be_cut_stays() -> None:
    x = torch.randn(4, 1, 16, 16)
    graph = lowered(ethorch.compile(nn.Linear(16, 16).eval(), x[0], calibration=list(x)))
    assert not list(parts(graph))


@pytest.fixture(scope="module")
def pictures() -> Sequence[Tensor]:
    torch.manual_seed(5)
    return [torch.randn(1, 3, 48, 48) for _ in range(4)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What earlier compilations found out does not count."""
    monkeypatch.setattr("ethorch.vela.arena.cache_folder", lambda: tmp_path)


def test_a_limit_that_no_schedule_keeps(pictures: Sequence[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(limit: int | str) -> ethorch.Program:
        return ethorch.compile(
            Skips().eval(), pictures[0], "ethos-u55-128", calibration=list(pictures), settings=ethorch.Settings(arena=limit)
        )

    usual = compiled("fast")
    limit = arena_of(usual) * 3 // 4
    small = compiled(limit)
    assert arena_of(small) <= limit and small.compare(pictures[0]).bit_exact
    assert torch.equal(small(pictures[1]), usual(pictures[1]))
    with monkeypatch.context() as patched:
        patched.setattr("ethorch.vela.bands._better", lambda *_: pytest.fail("the cache knows"))
        again = compiled(limit)
    assert again.pte == small.pte
    monkeypatch.setattr("ethorch.vela.delegate.split_into_bands", lambda *_: None)
    assert arena_of(compiled(limit)) > limit


def test_a_budget_finds_them(pictures: Sequence[Tensor]) -> None:
    usual = ethorch.compile(Skips().eval(), pictures[0], "ethos-u55-128", calibration=list(pictures), io="int8")
    limit = usual.memory.ram_bytes - 20_000
    program = ethorch.compile(Skips().eval(), pictures[0], "ethos-u55-128", calibration=list(pictures), io="int8", ram=limit)
    assert program.budgets.met and program.memory.ram_bytes <= limit
