"""Reductions, places of extremes, softmax and normalization beside ExecuTorch's runtime."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import pytest
import torch
from torch import Tensor

from tests.helpers.c_kernels import Loaded, Program, both, floats, inputs_of, only, programs_of, same_bits, steps_apart


def _extremes(x: Tensor) -> tuple[Tensor, ...]:
    return (
        x.amax((1, 2)),
        x.amax(1, keepdim=True),
        x.amin((0, 3)),
        x.amin(-1),
        x.max(),
        x.min(),
        *x.max(1),
        *x.min(-1, keepdim=True),
        x.argmax(1),
        x.argmax(-1, keepdim=True),
        x.argmin(2),
        x.argmax(),
        x[0, 0, 0].argmin(),
        x[:1, :, :1, :1].amax((0, 2)),
    )


def _largest(x: Tensor) -> tuple[Tensor, ...]:
    return (*x.topk(3, -1), *x.topk(2, 1), *x.topk(2, 2, largest=False), *x.topk(5, -1))


def _sums_of_integers(x: Tensor) -> tuple[Tensor, ...]:
    return (
        x.sum(),
        x.sum(1),
        x.sum((0, 2, 3)),
        x.sum((1, 3), keepdim=True),
        x.cumsum(1),
        x.cumsum(-1),
        x[0, 0, 0].cumsum(0),
        x.cumsum(0, dtype=torch.int32),
        x.prod(),
        x.prod(2),
        x.sum(1, dtype=torch.int32),
        x.any(),
        x.any(1),
        x.any(2, keepdim=True),
        x.all(1),
        x.sum((1, 2), dtype=torch.float32),
    )


def _sums(x: Tensor) -> tuple[Tensor, ...]:
    return (
        x.sum(),
        x.sum(1),
        x.sum((0, 2, 3)),
        x.sum((1, 3), keepdim=True),
        x.mean(),
        x.mean(-1),
        x.mean((2, 3)),
        x.mean((2, 3), keepdim=True),
        x.cumsum(1),
        x.cumsum(-1),
        x[0, 0, 0].cumsum(0),
        x.prod(2),
        x.prod(),
    )


def _softmaxes(x: Tensor) -> tuple[Tensor, ...]:
    return x.softmax(-1), x.softmax(1), x.log_softmax(-1), x.log_softmax(1), x[0, 0, 0].softmax(0), torch.nn.functional.glu(x, 1)


class Normalized(torch.nn.Module):
    """Layer norms, over one axis and over two, with and without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(7)
        self.plain = torch.nn.LayerNorm((6, 7), elementwise_affine=False)
        torch.nn.init.normal_(self.norm.weight)
        torch.nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.norm(x), self.plain(x)


class BatchNorms(torch.nn.Module):
    """Of images and of sequences, with and without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.images, self.sequences = torch.nn.BatchNorm2d(4), torch.nn.BatchNorm1d(4, affine=False)
        for norm in (self.images, self.sequences):
            torch.nn.init.normal_(norm.running_mean)
            torch.nn.init.uniform_(norm.running_var, 0.1, 3)
        torch.nn.init.normal_(self.images.weight)
        torch.nn.init.normal_(self.images.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.images(x), self.sequences(x[:, :, 0])


def _ints(dtype: torch.dtype, most: int = 100) -> Callable[[], Tensor]:
    low = 0 if dtype is torch.uint8 else -most
    return lambda: torch.randint(low, most, (3, 4, 6, 7), dtype=dtype)


def _bools() -> Tensor:
    return torch.rand(3, 4, 6, 7) > 0.7


def _with_nan() -> Tensor:
    x = torch.randn(3, 4, 6, 7).round(decimals=1)
    x.reshape(-1)[torch.randint(0, x.numel(), (9,))] = float("nan")
    x[2, 2, 3, 4], x[0, 1, 1, 1] = float("inf"), -float("inf")
    return x


def _distinct(dtype: torch.dtype) -> Callable[[], Tensor]:
    """No two equal: of equal ones, ExecuTorch gives any."""
    return lambda: (torch.randperm(3 * 4 * 2 * 5) - 60).to(dtype).reshape(3, 4, 2, 5)


CASES: dict[str, tuple[Callable[..., tuple[Tensor, ...]], Callable[[], Tensor]]] = {
    "extremes_float32": (_extremes, _with_nan),
    "extremes_int8": (_extremes, _ints(torch.int8, 128)),
    "extremes_uint8": (_extremes, _ints(torch.uint8, 256)),
    "extremes_int32": (_extremes, _ints(torch.int32, 2**31)),
    "extremes_int64": (_extremes, _ints(torch.int64, 2**62)),
    "largest_float32": (_largest, _distinct(torch.float32)),
    "largest_int8": (_largest, _distinct(torch.int8)),
    "largest_int64": (_largest, _distinct(torch.int64)),
    "sums_int8": (_sums_of_integers, _ints(torch.int8)),
    "sums_int32": (_sums_of_integers, _ints(torch.int32)),
    "sums_int64": (_sums_of_integers, _ints(torch.int64)),
    "sums_bool": (_sums_of_integers, _bools),
    "sums_float32": (_sums, lambda: torch.randn(3, 4, 6, 7) + 1),
    "softmaxes": (_softmaxes, lambda: torch.randn(3, 4, 6, 7) * 5),
    "softmaxes_of_extremes": (_softmaxes, lambda: floats(3, 4, 6, 7)),
}
#: How many floats results may lie from the runtime's, which adds in another order or has another exp.
BOUNDS = {"sums_float32": 4, "softmaxes": 8, "softmaxes_of_extremes": 8}


@lru_cache(maxsize=1)
def programs(names: frozenset[str] = frozenset(CASES)) -> dict[str, Program]:
    return programs_of(
        only(CASES, names),
        batch_norms=(BatchNorms(), [torch.zeros(3, 4, 6, 7)]),
        normalized=(Normalized(), [torch.zeros(3, 4, 6, 7)]),
    )


#: Each function of floats and of integers.
FEW = ("extremes_float32", "extremes_uint8", "largest_int8", "sums_int32", "sums_bool", "sums_float32", "softmaxes_of_extremes")


@pytest.mark.parametrize("name", [name if name in FEW else pytest.param(name, marks=pytest.mark.long) for name in CASES])
def test_the_c_gives_what_the_runtime_gives(name: str, library: Loaded) -> None:
    found = both(library, name, inputs_of(CASES, name))
    for number, (got, want) in enumerate(found):
        if want.is_floating_point() and name in BOUNDS:
            assert steps_apart(got, want) <= BOUNDS[name], number
        else:
            assert same_bits(got, want), (number, got, want)


def test_layer_norms_are_those_of_the_runtime(library: Loaded) -> None:
    x = torch.randn(3, 4, 6, 7) * 3 + 20
    for got, want in both(library, "normalized", [x]):
        assert same_bits(got, want)


def test_batch_norms_are_within_rounding_of_the_runtime(library: Loaded) -> None:
    """A difference and a sum whose parts may cancel: compared by the size of the parts, at most 16 here."""
    x = torch.randn(3, 4, 6, 7)
    for got, want in both(library, "batch_norms", [x]):
        assert got.shape == want.shape and (got - want).abs().max() <= 16 * 2**-22
