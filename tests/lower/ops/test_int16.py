"""Operators of int16 that jump or compare: right for every code, where samples see a few hundred."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ethorch import EthosUCompileSpec
from ethorch.arm.quantizer import get_symmetric_a16w8_quantization_config
from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QParams, QTensor, Result
from ethorch.lower.ops import OPS
from ethorch.lower.ops.compare import emit_comparison
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.support.errors import Unsupported
from ethorch.tosa.layout import contiguous
from ethorch.tosa.serialize import serialize
from ethorch.vela.delegate import builder_for
from tests.helpers.every_code import ALL, computed, q, traced
from tests.helpers.ladder import lowered as lowered_graph
from tests.helpers.ladder import machine, reference
from tests.helpers.quantized import Function, quantized, samples

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
    lowered = OPS[aten].lower(b, x, *args, **keywords, out=Result(ALL.shape, "FP32", out))  # type: ignore[misc]
    found = computed(b, lowered, "ethos-u55-128" if largest == 60 else "")
    off = np.abs(found - out.quantize(real))
    # 3.0 / 0.3 is 10 but for what float32 makes of both: PyTorch has 9 there.
    assert np.count_nonzero(off > 1) <= (name == "floor of a quotient")


@pytest.mark.parametrize("largest", [3.0, 60.0, 7000.0])
def test_every_code_becomes_the_integer_that_pytorch_makes_of_it(largest: float) -> None:
    b, x = traced(largest)
    found = computed(b, OPS["aten._to_copy.default"].lower(b, x, out=Result(ALL.shape, "INT32")), "ethos-u85-256")  # type: ignore[misc]
    off = np.abs(found - torch.from_numpy(x.qparams.table_inputs)[:-1].to(torch.int32).numpy())
    # Where a code is a whole number but for float32's rounding, either side is right.
    assert off.max() <= 1 and np.count_nonzero(off) <= (largest > 100) * 20


def test_halves_everywhere_are_refused() -> None:
    """Every other code is a half, which goes to the even number: no threshold says that."""
    b = Builder()
    x = QTensor(b.input("x", ALL.shape, "INT16"), contiguous(ALL.shape), QParams((0.5,), (0,), -32767, 32767, "INT16"))
    with pytest.raises(Unsupported) as refusal:
        OPS["aten.round.default"].lower(b, x, out=Result(ALL.shape, "FP32", q(2000.0)))  # type: ignore[misc]
    assert refusal.value.reason.id == "table.int16_steps"


COMPARED = [(name, getattr(torch, name)) for name in ("eq", "ge", "gt", "le", "lt", "ne")]


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize(("name", "function"), COMPARED, ids=[name for name, _ in COMPARED])
def test_numbers_are_compared_as_pytorch_does(name: str, function: Any, target: str) -> None:
    """1.0 is the last code of its scale but for what float32 makes of it; others lie on a code, between two, and outside."""
    numbers = torch.tensor([1.0, -1.0, 0.0, 0.3, -0.70001, 2.0, -3.0, torch.nan, torch.inf, -torch.inf]).reshape(-1, 1, 1)
    b = builder_for(EthosUCompileSpec(target).target)
    codes = np.unique(np.r_[-32767:32768:97, 9825:9835, -32767:-32760, 32760:32768]).astype(np.int16).reshape(1, 1, -1)
    x = QTensor(b.input("x", codes.shape, "INT16"), contiguous(codes.shape), q(1.0))
    result = emit_comparison(b, name, x, numbers.numpy())
    b.graph.outputs.append(result.value)
    (found,) = machine(serialize(rewrite(b.graph, tuning=b.tuning)), [codes], EthosUCompileSpec(target))
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
    b.graph.outputs.append(OPS["aten.bmm.default"].lower(b, x, y, out=Result((2, 9, 7), "FP32", q(largest))).value)  # type: ignore[misc]
    (found,) = machine(serialize(rewrite(b.graph, tuning=b.tuning)), codes, EthosUCompileSpec(target))
    exact = codes[0].astype(np.int64) @ codes[1].astype(np.int64)
    wanted = np.clip(np.rint(exact * q(1.0).step ** 2 / q(largest).step), -32767, 32767)
    assert np.unique(wanted).size > 60
    assert np.abs(found.reshape(wanted.shape) - wanted).max() <= 1


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("largest", [1.0, 40.0])
@pytest.mark.parametrize("constant", [False, True])
def test_quotients_of_divisors_of_all_sizes(target: str, largest: float, constant: bool) -> None:
    """A divisor for each row, from 1 code to all of them; dividends from next to 0 to beyond the largest quotient."""
    generator = np.random.default_rng(5)
    divisors = np.unique(np.r_[1:5, np.geomspace(5, 32767, 60).astype(int)]).astype(np.int16)[:, None]
    divisors[1::2] *= -1
    share = generator.uniform(-1.2, 1.2, (divisors.size, 100))
    dividends = np.clip(np.rint(share * divisors * largest), -32768, 32767).astype(np.int16)
    b = builder_for(EthosUCompileSpec(target).target)
    x = QTensor(b.input("x", dividends.shape, "INT16"), contiguous(dividends.shape), q(1.0))
    value = b.const(divisors) if constant else b.input("y", divisors.shape, "INT16")
    y = QTensor(value, contiguous(divisors.shape), q(1.0))
    result = OPS["aten.div.Tensor"].lower(b, x, y, out=Result(dividends.shape, "FP32", q(largest)))  # type: ignore[misc]
    b.graph.outputs.append(result.value)
    given = [dividends] if constant else [dividends, divisors]
    (found,) = machine(serialize(rewrite(b.graph, tuning=b.tuning)), given, EthosUCompileSpec(target))
    exact = np.clip(dividends / divisors.astype(float) / q(largest).step, -32767, 32767)
    off = np.abs(found.reshape(exact.shape) - exact)
    assert off.max() < 2.5
    assert np.sqrt((off**2).mean()) < 0.7  # 0.29 is one rounding


def test_by_nothing_it_divides_as_by_a_code() -> None:
    b = Builder()
    x, y = (QTensor(b.input(name, (1, 3), "INT16"), contiguous((1, 3)), q(1.0)) for name in "xy")
    b.graph.outputs.append(OPS["aten.div.Tensor"].lower(b, x, y, out=Result((1, 3), "FP32", q(2.0))).value)  # type: ignore[misc]
    codes = [np.array([[9, 0, -7]], np.int16), np.zeros((1, 3), np.int16)]
    assert reference(serialize(b.graph), codes)[0].tolist() == [[32767, 0, -32767]]


@pytest.mark.parametrize(("largest", "most"), [(1e-5, 1.1), (0.9, 1.3), (8.0, 0.8), (300.0, 0.8)])
@pytest.mark.parametrize(("name", "function"), [("hardswish", F.hardswish), ("hardsigmoid", F.hardsigmoid)])
def test_piecewise_polynomials_are_close_in_any_range(name: str, function: Any, largest: float, most: float) -> None:
    """Of a range of 300 the bends at 3 lie within three entries of a table. Of a range below 1 the gate has fewer bits than x."""
    b, x = traced(largest)
    real = function(torch.from_numpy(x.qparams.table_inputs[:-1]).double()).numpy()
    out = q(float(real.max()))
    lowered = OPS[f"aten.{name}.default"].lower(b, x, out=Result(ALL.shape, "FP32", out))  # type: ignore[misc]
    found = computed(b, lowered, "ethos-u85-256" if largest == 300 else "")
    assert np.abs(found - np.clip(real / out.step, -32767, 32767)).max() < most


def test_piecewise_polynomials_of_int16_need_no_table() -> None:
    """A network of hardswish and hardsigmoid, as MobileNetV3's blocks are."""
    calibration = [(100 * x,) for (x,) in samples((1, 4, 8, 8))]
    made = quantized(Gated(), calibration, get_symmetric_a16w8_quantization_config(), "ethos-u55-128")
    graph = lowered_graph(made.program, "ethos-u55-128")
    assert "TABLE" not in {op.name for op in graph.ops}


class Gated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(x)
        return x * F.hardsigmoid(x.mean((2, 3), keepdim=True))


@pytest.mark.parametrize("name", ["aten.softmax.int", "aten.log_softmax.int"])
@pytest.mark.parametrize("largest", [30.0, 1e5, 2e5, 1e9, 1e30])
def test_softmax_of_scores_of_any_size(name: str, largest: float) -> None:
    """With a mask of -1e9 among the scores, one step is more than exp leaves anything of."""
    b, x = traced(largest)
    rows = torch.from_numpy(ALL.astype(np.float64) * x.qparams.step)
    wanted = (torch.softmax if name == "aten.softmax.int" else torch.log_softmax)(rows, 2).numpy()
    out = q(max(1.0, float(np.abs(wanted).max())))
    lower = OPS[name].lower
    assert lower is not None
    found = computed(b, lower(b, x, 2, out=Result(ALL.shape, "FP32", out)), "ethos-u55-128" if largest == 1e9 else "")
    assert np.abs(found - out.quantize(wanted.ravel())).max() <= OPS[name].bound16


@pytest.mark.parametrize("function", [torch.sigmoid, torch.tanh, lambda x: x.softmax(-1)], ids=["sigmoid", "tanh", "softmax"])
def test_one_is_the_highest_code(function: Any) -> None:
    made = quantized(Function(function), [(100 * x,) for (x,) in samples((6, 16))], get_symmetric_a16w8_quantization_config())
    assert made.module(*made.example).max() == 1
    (found,) = reference(serialize(lowered_graph(made.program, "ethos-u55-128")), made.input_codes(made.example))
    assert 32766 <= found.max() <= 32767


@pytest.mark.parametrize("largest", [1e-30, 1.0, 1e30])
def test_logsumexp_of_one_element_is_the_element(largest: float) -> None:
    b, x = traced(largest)
    lowered = OPS["aten.logsumexp.default"].lower(b, x, [0], out=Result(ALL.shape[1:], "FP32", x.qparams))  # type: ignore[misc]
    assert computed(b, lowered).tolist() == ALL.ravel().tolist()
