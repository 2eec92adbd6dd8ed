"""Functions of int16: every code of them, where samples see a few hundred."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ethorch import EthosUCompileSpec
from ethorch.backend import builder_for
from ethorch.errors import Unsupported
from ethorch.layout import contiguous
from ethorch.ops import OPS
from ethorch.ops.compare import compared
from ethorch.qparams import QParams, QTensor
from ethorch.tosa.builder import Builder
from ethorch.tosa.flatbuffer import serialize
from ethorch.tosa.rewrite import rewrite
from ethorch.tosa.tables import FAR
from tests.ladder import machine, reference

ALL = np.arange(-32768, 32768, dtype=np.int16).reshape(1, 256, 256)


def q(largest: float) -> QParams:
    return QParams((largest / 32767,), (0,), -32767, 32767, "INT16")


def traced(largest: float) -> tuple[Builder, QTensor]:
    b = Builder()
    return b, QTensor(b.input("x", ALL.shape, "INT16"), contiguous(ALL.shape), q(largest))


def computed(b: Builder, result: QTensor, target: str = "") -> np.ndarray:
    b.graph.outputs.append(result.value)
    b.graph.verify()
    (found,) = reference(serialize(b.graph), [ALL])
    if target:
        (same,) = machine(serialize(b.graph), [ALL], EthosUCompileSpec(target))
        np.testing.assert_array_equal(same.ravel(), found.ravel())
    return found.astype(np.int64).ravel()


STEEP: dict[str, tuple[Any, float, float, int]] = {  # the function, the largest input and output, tables
    "sqrt": (torch.sqrt, 4.0, 2.0, 2),
    "log": (torch.log, 4.0, 3.0, 2),
    "reciprocal": (torch.reciprocal, 4.0, 5.0, 4),
    "acos": (torch.acos, 1.0, 3.1416, 3),
    "a clamp between entries": (lambda x: x.clamp(-2.2, 1.3), 4.0, 2.3, 3),
    "exp, beyond its range": (torch.exp, 3.0, 7.4, 1),
    "gelu": (torch.nn.functional.gelu, 8.0, 8.0, 1),
}


@pytest.mark.parametrize("name", STEEP)
def test_no_code_is_further_off_than_the_function_goes_in_one(name: str) -> None:
    function, largest, most, tables = STEEP[name]
    b, x = traced(largest)
    real = function(torch.from_numpy(x.qparams.table_inputs)).numpy()
    found = computed(b, b.table(x, real, q(most)), "ethos-u55-128" if name == "sqrt" else "")
    assert sum(op.name == "TABLE" for op in b.graph.ops) == tables
    wanted = np.clip(np.nan_to_num(real.astype(np.float64), nan=np.nan) / q(most).step, -32767, 32767)
    change = np.abs(np.diff(wanted, append=wanted[-1]))
    near = np.max([np.roll(change, k) for k in range(-2, 3)], axis=0)
    known = np.isfinite(wanted[:-1]) & np.isfinite(near[:-1])
    assert known.sum() > 16000
    assert (np.abs(found - wanted[:-1]) <= np.maximum(FAR, near[:-1]) + 2)[known].all()


JUMPS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], Any]] = {
    "floor": ("aten.floor.default", (), {}, torch.floor),
    "ceil": ("aten.ceil.default", (), {}, torch.ceil),
    "trunc": ("aten.trunc.default", (), {}, torch.trunc),
    "round": ("aten.round.default", (), {}, torch.round),
    "round to tenths": ("aten.round.decimals", (), {"decimals": 1}, lambda x: torch.round(x, decimals=1)),
    "remainder": ("aten.remainder.Scalar", (0.75,), {}, lambda x: torch.remainder(x, 0.75)),
    "fmod": ("aten.fmod.Scalar", (0.75,), {}, lambda x: torch.fmod(x, 0.75)),
    "remainder of -0.75": ("aten.remainder.Scalar", (-0.75,), {}, lambda x: torch.remainder(x, -0.75)),
    "fmod of -0.75": ("aten.fmod.Scalar", (-0.75,), {}, lambda x: torch.fmod(x, -0.75)),
    "frac": ("aten.frac.default", (), {}, torch.frac),
    "floor of a quotient": (
        "aten.div.Scalar_mode", (0.3,), {"rounding_mode": "floor"}, lambda x: torch.div(x, 0.3, rounding_mode="floor"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("largest", [3.0, 2.7182, 60.0])
@pytest.mark.parametrize("name", JUMPS)
def test_every_code_is_rounded_as_pytorch_does(name: str, largest: float) -> None:
    aten, args, keywords, function = JUMPS[name]
    b, x = traced(largest)
    real = function(torch.from_numpy(x.qparams.table_inputs))[:-1].numpy()
    out = q(float(np.abs(real).max()))
    assert OPS[aten].lower is not None
    found = computed(b, OPS[aten].lower(b, x, *args, **keywords, out=out), "ethos-u55-128" if largest == 60 else "")
    off = np.abs(found - out.quantize(real))
    # 3.0 / 0.3 is 10 but for what float32 makes of both: PyTorch has 9 there.
    assert np.count_nonzero(off > 1) <= (name == "floor of a quotient")


@pytest.mark.parametrize("largest", [3.0, 60.0, 7000.0])
def test_every_code_becomes_the_integer_that_pytorch_makes_of_it(largest: float) -> None:
    b, x = traced(largest)
    b.result_shape, b.result_dtype = ALL.shape, "INT32"
    found = computed(b, OPS["aten._to_copy.default"].lower(b, x, out=None), "ethos-u85-256")  # type: ignore[misc]
    off = np.abs(found - torch.from_numpy(x.qparams.table_inputs)[:-1].to(torch.int32).numpy())
    # Where a code is a whole number but for float32's rounding, either side is right.
    assert off.max() <= 1 and np.count_nonzero(off) <= (largest > 100) * 20


def test_a_function_that_jumps_a_few_times_is_exact() -> None:
    b, x = traced(3.0)
    real = torch.nn.functional.hardshrink(torch.from_numpy(x.qparams.table_inputs)).numpy()
    found = computed(b, b.table(x, real, q(3.0), exact=True), "ethos-u85-256")
    assert np.abs(found - q(3.0).quantize(real[:-1])).max() <= 1
    assert sum(op.name == "TABLE" for op in b.graph.ops) == 3


def test_halves_everywhere_are_refused() -> None:
    """Every other code is a half, which goes to the even number: no threshold says that."""
    b = Builder()
    x = QTensor(b.input("x", ALL.shape, "INT16"), contiguous(ALL.shape), QParams((0.5,), (0,), -32767, 32767, "INT16"))
    with pytest.raises(Unsupported) as refusal:
        OPS["aten.round.default"].lower(b, x, out=q(2000.0))  # type: ignore[misc]
    assert refusal.value.reason.id == "table.int16_steps"


COMPARED: list[tuple[str, Any]] = [("eq", torch.eq), ("ge", torch.ge), ("gt", torch.gt), ("le", torch.le), ("lt", torch.lt)]


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize(("name", "function"), COMPARED, ids=[name for name, _ in COMPARED])
def test_numbers_are_compared_as_pytorch_does(name: str, function: Any, target: str) -> None:
    """1.0 is the last code of its scale but for what float32 makes of it; others lie on a code, between two, and outside."""
    numbers = torch.tensor([1.0, -1.0, 0.0, 0.3, -0.70001, 2.0, -3.0], dtype=torch.float32).reshape(7, 1, 1)
    b = builder_for(EthosUCompileSpec(target).target)
    codes = np.unique(np.r_[-32767:32768:97, 9825:9835, -32767:-32760, 32760:32768]).astype(np.int16).reshape(1, 1, -1)
    x = QTensor(b.input("x", codes.shape, "INT16"), contiguous(codes.shape), q(1.0))
    result = compared(b, name, x, numbers.numpy())
    b.graph.outputs.append(result.value)
    (found,) = machine(serialize(rewrite(b.graph, forms=b.forms)), [codes], EthosUCompileSpec(target))
    wanted = function(torch.from_numpy(q(1.0).dequantize(codes.astype(np.int32))), numbers).numpy()
    assert wanted.any() and not wanted.all()
    np.testing.assert_array_equal(found.reshape(wanted.shape) != 0, wanted)


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-256", "ethos-u85-256"])
@pytest.mark.parametrize("largest", [200.0, 3.0])
def test_products_of_any_codes(target: str, largest: float) -> None:
    """Rows of extremes among them, and sums far beyond the output's range: U55 and U65 put the product together from halves."""
    generator = np.random.default_rng(7)
    codes = [generator.integers(-32768, 32768, shape).astype(np.int16) for shape in ((2, 9, 150), (2, 150, 7))]
    codes[0][:, :3] = np.array([-32768, 32767, -129], np.int16)[:, None]
    codes[1][:, :, :3] = np.array([-32768, 32767, 127], np.int16)
    b = builder_for(EthosUCompileSpec(target).target)
    x, y = (QTensor(b.input(n, c.shape, "INT16"), contiguous(c.shape), q(1.0)) for n, c in zip("xy", codes, strict=True))
    b.graph.outputs.append(OPS["aten.bmm.default"].lower(b, x, y, out=q(largest)).value)  # type: ignore[misc]
    (found,) = machine(serialize(rewrite(b.graph, forms=b.forms)), codes, EthosUCompileSpec(target))
    exact = codes[0].astype(np.int64) @ codes[1].astype(np.int64)
    wanted = np.clip(np.rint(exact * q(1.0).step ** 2 / q(largest).step), -32767, 32767)
    assert np.unique(wanted).size > 60
    assert np.abs(found.reshape(wanted.shape) - wanted).max() <= 1
