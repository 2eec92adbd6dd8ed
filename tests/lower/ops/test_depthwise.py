"""Depthwise convolutions with several results per channel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ethorch import EthosUCompileSpec
from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QParams
from ethorch.lower.builder.window import Window
from ethorch.lower.ops.weights import Filters
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.targets import TARGETS
from ethorch.tosa.ir import Graph
from ethorch.tosa.serialize import serialize
from tests.helpers.ladder import machine, reference

X8, Y8 = QParams((0.02,), (5,), -128, 127, "INT8"), QParams((0.07,), (-9,), -128, 127, "INT8")
X16, Y16 = QParams((1e-4,), (0,), -32767, 32767, "INT16"), QParams((7e-4,), (0,), -32767, 32767, "INT16")


def convolve(target: str, channels: int, count: int, dtype: str, *, repeats_channels: bool) -> Graph:
    """Return a graph that convolves [2,6,5,channels] and has ``count`` results per channel."""
    generator = np.random.default_rng(channels)
    x_qparams, y_qparams = (X8, Y8) if dtype == "INT8" else (X16, Y16)
    codes = generator.integers(-127, 128, (3, 3, channels, count)).astype(np.int8)
    scales = tuple(x_qparams.scale[0] * generator.uniform(0.003, 0.01, channels * count))
    filters = Filters(codes, 0, generator.normal(0, 1, channels * count), scales, x_qparams)
    b = Builder(tuning=replace(TARGETS[target].tuning, repeats_channels=repeats_channels))
    x = b.input("x", (2, 6, 5, channels), dtype)
    b.graph.outputs.append(filters.depthwise_conv2d(b, x, Window.of((3, 3), padding=(1, 1)), y_qparams))
    return b.graph


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-512", "ethos-u85-256"])
@pytest.mark.parametrize("dtype", ["INT8", "INT16"])
@pytest.mark.parametrize(("channels", "count"), [(2, 3), (32, 2), (67, 2)])
def test_repeated_channels_preserve_bits(target: str, dtype: str, channels: int, count: int) -> None:
    x = np.random.default_rng(1).integers(
        -128 if dtype == "INT8" else -32768, 128 if dtype == "INT8" else 32768, (2, 6, 5, channels)
    )
    codes = [x.astype(np.int8 if dtype == "INT8" else np.int16)]
    (expected,) = reference(serialize(convolve(target, channels, count, dtype, repeats_channels=False)), codes)
    graph = convolve(target, channels, count, dtype, repeats_channels=True)
    assert [op.operands[1].shape[3] for op in graph.ops if op.name == "DEPTHWISE_CONV2D"] == [1]
    (actual,) = machine(serialize(rewrite(graph, tuning=TARGETS[target].tuning)), codes, EthosUCompileSpec(target))
    np.testing.assert_array_equal(actual.ravel(), expected.ravel())
    assert np.unique(actual).size > 50
