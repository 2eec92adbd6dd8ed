"""Operators of one element each: arithmetic has the bits of ExecuTorch's runtime, functions are within a few steps of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import pytest
import torch
from torch import Tensor

from tests.helpers.c_kernels import Loaded, Program, Several, both, floats, inputs_of, only, programs_of, same_bits, steps_apart

Function = Callable[..., Tensor]

#: Functions of the same floats, and how many floats of float32 their results may lie from the runtime's.
FUNCTIONS: dict[str, tuple[Function, int]] = {
    "exp": (torch.exp, 1),
    "expm1": (torch.expm1, 2),
    "log": (torch.log, 1),
    "log1p": (torch.log1p, 2),
    "log2": (torch.log2, 2),
    "log10": (torch.log10, 2),
    "tanh": (torch.tanh, 2),
    "sigmoid": (torch.sigmoid, 2),
    "sin": (torch.sin, 2),
    "cos": (torch.cos, 2),
    "tan": (torch.tan, 4),
    "erf": (torch.erf, 2),
    "elu": (lambda x: torch.nn.functional.elu(x, 0.7), 2),
    "pow_3": (lambda x: x**3, 1),
    "pow_-2.5": (lambda x: x**-2.5, 1),
    "pow_0.5": (lambda x: x**0.5, 1),
    "pow_2": (lambda x: x**2, 1),
    "2_pow": (lambda x: 2**x, 1),
}


def _gelus(x: Tensor) -> tuple[Tensor, ...]:
    return torch.nn.functional.gelu(x), torch.nn.functional.gelu(x, approximate="tanh")


def _exact(x: Tensor, y: Tensor, row: Tensor) -> tuple[Tensor, ...]:
    """Of float32 or integers: results have the bits of the runtime."""
    return (
        x + y,
        x + row,
        row - x,
        torch.add(x, y, alpha=3),
        torch.sub(x, y, alpha=2),
        x * y,
        x * 3,
        x - 2,
        5 - x,
        -x,
        x.abs(),
        x.sign(),
        x.relu(),
        x.clamp(1, 7),
        x.clamp(min=2),
        x.clamp(max=2),
        torch.nn.functional.hardtanh(x, 1, 3),
        torch.minimum(x, y),
        torch.maximum(x, row),
        torch.maximum(x, y),
        x.clamp(0, 6),
        x.clamp(min=0),
        torch.nn.functional.hardtanh(x, 0, 6),
        x == y,
        x != row,
        x < y,
        x <= 2,
        x > 2,
        x >= y,
        torch.where(x > y, x, y),
        x.masked_fill(y > x, 3),
        torch.logical_and(x, y),
        torch.logical_or(x, row),
        torch.logical_xor(x, y),
        torch.logical_not(x),
    )


def _divided(x: Tensor, y: Tensor, row: Tensor) -> tuple[Tensor, ...]:
    """Results with the bits of the runtime, of divisors other than 0."""
    return (
        x / y,
        x / 3,
        x / row[2:3],
        x / row[2, 0],
        row[2:3] / x,
        x[3:4, 1:2, 2:3] / row,
        x[3:4, 1:2, 2:3] / row[2:3],
        x[3:, 1, 2] / row[2],
        torch.div(x, y, rounding_mode="floor"),
        torch.div(x, y, rounding_mode="trunc"),
        torch.floor_divide(x, row),
        torch.remainder(x, y),
        torch.remainder(x, 3),
        torch.fmod(x, y),
        torch.fmod(x, 3),
        x.floor(),
        x.ceil(),
        x.trunc(),
        x.round(),
    )


def _of_floats(x: Tensor, y: Tensor, row: Tensor) -> tuple[Tensor, ...]:
    return (
        x.sqrt(),
        x.rsqrt(),
        x.reciprocal(),
        x.isnan(),
        x.isinf(),
        torch.nn.functional.leaky_relu(x, 0.1),
        x.clamp(min=row, max=y),
        x + y.to(torch.int8).float(),
        x * True,
        x + 0.3,
        x * 0.3 - 7,
    )


def _of_integers(x: Tensor, y: Tensor, row: Tensor) -> tuple[Tensor, ...]:
    shifted = torch.bitwise_left_shift(x, y & 7), torch.bitwise_right_shift(x, row & 7)
    return (x & y, x | row, x ^ y, ~x, x & 6, *shifted, x * 0.5, x + 0.25, x < 2.5, x.clamp(0.5, 3.5))


def _of_bools(x: Tensor, y: Tensor, row: Tensor) -> tuple[Tensor, ...]:
    return (x & y, x | row, x ^ y, ~x, torch.logical_not(x), x == y, x + 1, x * 2.5, torch.where(x, 2, 3), torch.where(x, y, row))


def _mixed(x: Tensor, y: Tensor, row: Tensor) -> tuple[Tensor, ...]:
    return (x + y, x * row, x < y, torch.where(x > 0, x, row), row - y, torch.maximum(x, y), x / y, x == row)


def _whole(dtype: torch.dtype, *shape: int, most: int = 2**62) -> Tensor:
    """Random integers, a third of them small, with the ends of the dtype at the front."""
    info = torch.iinfo(dtype)
    low, high = max(info.min, -most), min(info.max, most)
    x = torch.randint(low, high, shape, dtype=dtype)
    flat = x.reshape(-1)
    flat[::3] = torch.randint(max(info.min, -5), 6, flat[::3].shape, dtype=dtype)
    flat[0], flat[1] = (info.min, info.max) if most == 2**62 else (low, high)
    return x


def _triple(make: Callable[..., Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Two tensors of one shape, with all pairs of the first elements, and one that broadcasts."""
    x, y = make(60, 3, 7), make(60, 3, 7)
    n = 30
    first = make(400).reshape(-1)[:n]
    x.reshape(-1)[: n * n], y.reshape(-1)[: n * n] = first.repeat_interleave(n), first.repeat(n)
    return x, y, make(3, 1)


def _divisors(x: Tensor, y: Tensor, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Without divisions of integers on which the runtime fails: by 0, and of the least number by -1."""
    if x.is_floating_point():
        return x, y, row
    x = torch.where(x == torch.iinfo(x.dtype).min, 1, x).to(x.dtype)
    return x, torch.where(y == 0, 3, y).to(y.dtype), torch.where(row == 0, 3, row).to(row.dtype)


INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)


def _ints(dtype: torch.dtype) -> Callable[[], tuple[Tensor, Tensor, Tensor]]:
    return lambda: _triple(lambda *shape: _whole(dtype, *shape))


def _quotients(dtype: torch.dtype) -> Callable[[], tuple[Tensor, Tensor, Tensor]]:
    """Of at most 24 bits: beyond, ExecuTorch divides integers in floats, and the C exactly."""
    return lambda: _divisors(*_triple(lambda *shape: _whole(dtype, *shape, most=2**24)))


def _bools() -> tuple[Tensor, Tensor, Tensor]:
    return torch.rand(6, 3, 7) > 0.5, torch.rand(6, 3, 7) > 0.5, torch.rand(3, 1) > 0.5


CASES: dict[str, tuple[Callable[..., tuple[Tensor, ...]], Callable[[], tuple[Tensor, ...]]]] = {
    "exact_float32": (_exact, lambda: _triple(floats)),
    "divided_float32": (_divided, lambda: _triple(floats)),
    "of_floats": (_of_floats, lambda: _triple(floats)),
    "of_bools": (_of_bools, _bools),
    "mixed_int8_int32_float32": (_mixed, lambda: (_whole(torch.int8, 5, 3, 7), _whole(torch.int32, 5, 3, 7), floats(3, 1))),
    "mixed_float32_int64_uint8": (_mixed, lambda: (floats(5, 3, 7), _whole(torch.int64, 5, 3, 7), _whole(torch.uint8, 3, 1))),
    "mixed_int16_uint8_int64": (
        _mixed,
        lambda: (_whole(torch.int16, 5, 3, 7), _whole(torch.uint8, 5, 3, 7), _whole(torch.int64, 3, 1)),
    ),
}
for _dtype in INTEGERS:
    _name = str(_dtype).removeprefix("torch.")
    CASES[f"exact_{_name}"] = (_exact, _ints(_dtype))
    CASES[f"divided_{_name}"] = (_divided, _quotients(_dtype))
    CASES[f"of_integers_{_name}"] = (_of_integers, _ints(_dtype))


def _all_functions(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(function(x) for function, _ in FUNCTIONS.values())


@lru_cache(maxsize=1)
def programs(names: frozenset[str] = frozenset(CASES)) -> dict[str, Program]:
    return programs_of(
        only(CASES, names), functions=(Several(_all_functions), [_arguments()]), gelus=(Several(_gelus), [_arguments()])
    )


#: Each function of floats and of integers, of different dtypes.
FEW = (
    "exact_float32", "divided_float32", "of_floats", "of_bools", "mixed_int8_int32_float32", "exact_int8", "divided_int32",
    "of_integers_uint8",
)  # fmt: skip


@pytest.mark.parametrize("name", [name if name in FEW else pytest.param(name, marks=pytest.mark.long) for name in CASES])
def test_the_c_gives_the_bits_of_the_runtime(name: str, library: Loaded) -> None:
    inputs = inputs_of(CASES, name)
    found = both(library, name, inputs)
    different = {}
    for number, (got, want) in enumerate(found):
        if not same_bits(got, want):
            where = (got != want) & ~((got != got) & (want != want)) if got.shape == want.shape else ...
            different[number] = (got[where][:5], want[where][:5], [x.expand(got.shape)[where][:5] for x in inputs])
    assert not different, different


def _arguments() -> Tensor:
    """Floats of all sizes and signs, dense where functions change most."""
    bits = torch.randint(-(2**31), 2**31, (5000,)).to(torch.int32)
    near = torch.cat([torch.linspace(-12, 12, 5001), torch.linspace(-105, 90, 2501), 1 + torch.linspace(-1e-3, 1e-3, 501)])
    return torch.cat([floats(1000), bits.view(torch.float32), near, torch.arange(-200, 200) * (torch.pi / 4)])


@pytest.fixture(scope="module")
def steps(library: Loaded) -> dict[str, int]:
    """How far the C's results are from the runtime's, by function."""
    x = _arguments()
    found = both(library, "functions", [x])
    return {name: steps_apart(got, want) for name, (got, want) in zip(FUNCTIONS, found, strict=True)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_within_a_few_steps_of_the_runtime(name: str, steps: dict[str, int]) -> None:
    assert steps[name] <= FUNCTIONS[name][1]


def test_gelu_is_within_two_units_of_the_last_place_of_its_argument(
    library: Loaded,
) -> None:
    """Below 0 it is x times a difference of numbers near 1, in ExecuTorch and here: its own last place means nothing there."""
    x = _arguments()
    for got, want in both(library, "gelus", [x]):
        finite = want.isfinite()
        assert same_bits(got[~finite], want[~finite])
        assert ((got - want).abs()[finite] <= 2**-22 * x.abs()[finite]).all()
