"""Quotients of all pairs of int8 values, with random scales."""

from __future__ import annotations

import numpy as np
import pytest

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QParams, QTensor, Result, dtype_range
from ethorch.lower.ops.division import div
from ethorch.tosa.interpreter import run

NUMBERS = np.arange(-128, 128, dtype=np.int8)
COUNT = NUMBERS.size**2


@pytest.mark.parametrize("seed", range(12))
def test_quotients_are_rounded_or_saturated(seed: int) -> None:
    generator = np.random.default_rng(seed)
    steps = 10 ** generator.uniform(-4, 3, 2)
    scales = (*steps, steps[0] / steps[1] * 10 ** generator.uniform(-2.6, 1.5))
    zero_points = generator.choice([-128, -60, 0, 5, 127], 3)
    qparams = [
        QParams((scale,), (int(zero),), *dtype_range("INT8"), "INT8") for scale, zero in zip(scales, zero_points, strict=True)
    ]
    b = Builder()
    x, y = (QTensor(b.input(name, (COUNT,), "INT8"), ((0,),), q) for name, q in zip("xy", qparams, strict=False))
    b.graph.outputs.append(div(b, x, y, out=Result((COUNT,), "FP32", qparams[2])).value)
    dividends, divisors = (values.ravel() for values in np.meshgrid(NUMBERS, NUMBERS))
    (found,) = run(b.graph, [dividends, divisors])
    (numerator, denominator), out = (
        (q.dequantize(v.astype(np.int32)) for q, v in zip(qparams, (dividends, divisors), strict=False)),
        qparams[2],
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted = np.nan_to_num(numerator.astype(np.float64) / denominator, nan=0.0)  # 0 / 0 is 0
    limited = np.clip(wanted / out.step + out.zp, out.qmin, out.qmax)
    assert np.abs(found - limited).max() < 0.8
    exact = np.abs(limited - np.rint(limited)) < 1e-4  # whole steps, and saturated quotients
    np.testing.assert_array_equal(found[exact], np.rint(limited[exact]))
