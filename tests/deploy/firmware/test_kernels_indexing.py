"""Embeddings, gathers, scatters, resized images and products beside ExecuTorch's runtime."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.helpers.c_kernels import Loaded, Program, both, floats, inputs_of, only, programs_of, same_bits, steps_apart


def _taken(x: Tensor, i: Tensor, j: Tensor) -> tuple[Tensor, ...]:
    """x: (5, 6, 7); i: (2, 3) and j: (3,) of 0..4."""
    along = (i.reshape(1, 6, 1) + j[:1]).clamp(0, 4).expand(3, 6, 7)
    return (
        x.index_select(0, j),
        x.index_select(2, i[0]),
        F.embedding(i, x[:, 0]),
        F.embedding(j, x[:, :, 2].contiguous()),
        x.gather(0, along),
        x.gather(1, i.reshape(1, 6, 1).expand(2, 6, 7)),
        x[i],
        x[:, j],
        x[i, j],
        x[:, i, j],
        x[i[0], :, j],
        x[:, j, 1:3],
        x[-1 - j],
        x.index_select(1, j[0]),
        x[0, 0, 0].index_select(0, j[:1] * 0),
    )


def _put(x: Tensor, i: Tensor, j: Tensor) -> tuple[Tensor, ...]:
    along = i.reshape(1, 6, 1).expand(1, 6, 7)
    columns = torch.arange(3)
    replaced = x.clone()
    replaced[:, columns] = x[:, 2:5]
    return (
        x.scatter(0, along, x[:1] + x[1:2]),
        x.scatter(0, along, 3),
        x.scatter(2, j.reshape(3, 1, 1).expand(3, 2, 1), x),
        x.index_put((j,), x[:1]),
        replaced,
        x.index_put((columns, columns), x[0, :3]),
        x.slice_scatter(x[:, 1:3], 1, 2, 4),
        torch.select_scatter(x, x[:, 0], 1, 2),
        x[0, 0, 0].scatter(0, j[0] * 0, x[1, 1, 1]),
    )


def _added(x: Tensor, i: Tensor, j: Tensor) -> tuple[Tensor, ...]:
    return (
        x.scatter_add(0, i.reshape(1, 6, 1).expand(1, 6, 7), x),
        x.index_put((j,), x[:1], accumulate=True),
        x.index_put((j[:1], j[1:2]), x[0, :1], accumulate=True),
        x.roll(2, 1),
        x.roll((1, -2), (0, 2)),
        x[0, 0, 0].scatter_add(0, j[0] * 0, x[1, 1, 1]),
    )


def _indices() -> tuple[Tensor, Tensor]:
    return torch.tensor([[0, 4, 2], [1, 1, 3]]), torch.tensor([4, 0, 4])


def _nearest(x: Tensor) -> tuple[Tensor, ...]:
    return (
        F.interpolate(x, scale_factor=2, mode="nearest"),
        F.interpolate(x, size=(7, 3), mode="nearest"),
        F.interpolate(x, scale_factor=(1.5, 2.3), mode="nearest"),
        F.interpolate(x.contiguous(memory_format=torch.channels_last), size=(11, 4), mode="nearest"),
    )


def _bilinear(x: Tensor) -> tuple[Tensor, ...]:
    return (
        F.interpolate(x, scale_factor=2, mode="bilinear"),
        F.interpolate(x, size=(7, 3), mode="bilinear", align_corners=True),
        F.interpolate(x, size=(3, 9), mode="bilinear"),
        F.interpolate(x, scale_factor=(1.5, 2.3), mode="bilinear"),
        F.interpolate(x, size=(1, 1), mode="bilinear", align_corners=True),
    )


def _products(x: Tensor) -> tuple[Tensor, ...]:
    a, b = x[0, 0], x[0, 1]
    return (
        a @ b.T,
        torch.bmm(x[0], x[1].transpose(1, 2)),
        F.linear(x, b, a[:, 0]),
        torch.addmm(a[:, :1].T, a, b.T, beta=0.5, alpha=2),
    )


Case = tuple[Callable[..., tuple[Tensor, ...]], Callable[[], tuple[Tensor, ...]]]
CASES: dict[str, Case] = {
    "taken_float32": (_taken, lambda: (floats(5, 6, 7), *_indices())),
    "taken_int8": (_taken, lambda: (torch.randint(-128, 128, (5, 6, 7), dtype=torch.int8), *_indices())),
    "taken_int64": (_taken, lambda: (torch.randint(-(2**62), 2**62, (5, 6, 7)), *_indices())),
    "put_float32": (_put, lambda: (floats(5, 6, 7), *_indices())),
    "put_int16": (_put, lambda: (torch.randint(-(2**15), 2**15, (5, 6, 7), dtype=torch.int16), *_indices())),
    "added_float32": (_added, lambda: (torch.randn(5, 6, 7), *_indices())),
    "added_int32": (_added, lambda: (torch.randint(-(2**30), 2**30, (5, 6, 7), dtype=torch.int32), *_indices())),
    "nearest_float32": (_nearest, lambda: (floats(2, 3, 5, 6),)),
    "nearest_int8": (_nearest, lambda: (torch.randint(-128, 128, (2, 3, 5, 6), dtype=torch.int8),)),
    "bilinear": (_bilinear, lambda: (torch.rand(2, 3, 5, 6) + 1,)),
    "products": (_products, lambda: (torch.rand(2, 3, 4, 4) + 1,)),
}
#: How many floats results may lie from the runtime's, which adds in another order.
BOUNDS = {"bilinear": 4, "products": 4}


class Rows(nn.Module):
    """A cache whose rows are replaced one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(4, 3))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        self.rows[at] = x
        return self.rows * 2


@lru_cache(maxsize=1)
def programs(names: frozenset[str] = frozenset(CASES)) -> dict[str, Program]:
    return programs_of(only(CASES, names), rows=(Rows(), [torch.zeros(1, 3), torch.tensor([0])]))


#: Each function once.
FEW = ("taken_int8", "put_float32", "added_float32", "nearest_int8", "bilinear", "products")


@pytest.mark.parametrize("name", [name if name in FEW else pytest.param(name, marks=pytest.mark.long) for name in CASES])
def test_the_c_gives_what_the_runtime_gives(name: str, library: Loaded) -> None:
    found = both(library, name, inputs_of(CASES, name))
    for number, (got, want) in enumerate(found):
        if name in BOUNDS:
            assert steps_apart(got, want) <= BOUNDS[name], number
        else:
            assert same_bits(got, want), (number, got, want)


def test_an_index_that_is_out_of_range_fails_the_call_and_writes_nothing(
    library: Loaded,
) -> None:
    c, programs = library
    for at in (4, -5, 2**40):
        before = c.arena(programs["rows"]).copy()
        inputs = [torch.ones(1, 3), torch.tensor([at])]
        status, _ = c.run(programs["rows"], inputs)
        assert status == -1
        method = programs["rows"].method
        value = next(method.values[call.args[0]] for call in method.calls if call.operator == "aten::copy_")
        assert value.place is not None
        where = slice(value.place[1], value.place[1] + value.nbytes)
        assert (c.arena(programs["rows"])[where] == before[where]).all()
    status, (rows,) = c.run(programs["rows"], [torch.ones(1, 3), torch.tensor([3])])
    assert status == 0 and rows[3].tolist() == [2, 2, 2] and not rows[:3].any()
