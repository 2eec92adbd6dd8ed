"""Convolutions that are split by output channels compute equal results."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

from ethorch import EthosUCompileSpec
from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.targets.tuning import UNTUNED, SplitWeights
from ethorch.tosa.ir import Graph, Value
from ethorch.tosa.serialize import serialize
from ethorch.tosa.verify import verify
from tests.helpers.ladder import machine, reference

ROWS, CHANNELS = 7, 96


def projected(b: Builder, activation: str = "") -> Value:
    """int8 [1, 1, ROWS, 96]: a linear layer with a scale for each channel."""
    rng = np.random.default_rng(1)
    x = b.input("x", (1, 1, ROWS, 24), "INT8")
    weight = b.const(rng.integers(-127, 128, (CHANNELS, 1, 1, 24)).astype(np.int8))
    acc = b.emit(
        "CONV2D",
        x,
        weight,
        b.const(rng.integers(-900, 900, CHANNELS).astype(np.int32)),
        pad=(0, 0, 0, 0),
        stride=(1, 1),
        dilation=(1, 1),
        input_zp=-4,
        weight_zp=0,
    )
    value = b.rescale(acc, [0.001 + 1e-5 * channel for channel in range(CHANNELS)], output_zp=6)
    if activation == "TABLE":
        return b.emit("TABLE", value, b.const(rng.integers(-128, 128, 256).astype(np.int8)))
    return b.emit("CLAMP", value, min_val=-100, max_val=90) if activation else value


def cut(b: Builder, value: Value, start: tuple[int, ...], size: tuple[int, ...]) -> None:
    b.graph.outputs.append(b.emit("SLICE", value, start=start, size=size))


def queries_keys_values(b: Builder) -> None:
    value = b.reshape(projected(b), (ROWS, 3, 2, 16))
    for number in range(3):
        cut(b, value, (0, number, 0, 0), (ROWS, 1, 2, 16))


def head_by_head(b: Builder) -> None:
    """As some models lay them out: each head's query, key and value side by side."""
    value = b.reshape(projected(b, "CLAMP"), (ROWS, 2, 3, 16))
    for number in range(3):
        cut(b, value, (0, 0, number, 0), (ROWS, 2, 1, 16))


def of_different_size(b: Builder) -> None:
    value = b.reshape(projected(b, "TABLE"), (1, ROWS, 6, 16))
    cut(b, value, (0, 0, 4, 0), (1, ROWS, 2, 16))
    cut(b, value, (0, 0, 0, 0), (1, ROWS, 4, 16))


def rows_too(b: Builder) -> None:
    value = b.reshape(projected(b), (ROWS, 3, 32))
    cut(b, value, (0, 0, 0), (ROWS, 1, 32))
    cut(b, value, (1, 1, 0), (ROWS - 1, 1, 32))


def overlapping(b: Builder) -> None:
    value = b.reshape(projected(b), (ROWS, 3, 32))
    cut(b, value, (0, 0, 0), (ROWS, 2, 32))
    cut(b, value, (0, 1, 0), (ROWS, 2, 32))


def read_whole(b: Builder) -> None:
    queries_keys_values(b)
    b.graph.outputs.append(next(op.result for op in b.graph.ops if op.name == "RESHAPE"))


def in_small_pieces(b: Builder) -> None:
    value = b.reshape(projected(b), (ROWS, 8, 12))
    for number in range(8):
        cut(b, value, (0, number, 0), (ROWS, 1, 12))


CASES = {
    queries_keys_values: 3, head_by_head: 3, of_different_size: 2, rows_too: 1, overlapping: 1, read_whole: 1, in_small_pieces: 1,
}  # fmt: skip


@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_pieces(build) -> None:
    b = Builder()
    build(b)
    before, after = b.graph, rewrite(copy.deepcopy(b.graph))
    verify(after)
    assert kinds(after).count("CONV2D") == CASES[build]
    assert ("SLICE" in kinds(after)) == (CASES[build] == 1)
    codes = [np.random.default_rng(3).integers(-128, 128, (1, 1, ROWS, 24)).astype(np.int8)]
    wanted = reference(serialize(before), codes)
    for target in ("ethos-u55-128", "ethos-u85-256"):
        for found, expected in zip(machine(serialize(after), codes, EthosUCompileSpec(target)), wanted, strict=True):
            np.testing.assert_array_equal(found.ravel(), expected.ravel())


def classify(b: Builder, places: int = 1, bias: int = 90) -> None:
    """int8 [1, 1, places, 90]: a linear layer with 90 * 128 weights."""
    rng = np.random.default_rng(2)
    x = b.input("x", (1, 1, places, 128), "INT8")
    weight = b.const(rng.integers(-127, 128, (90, 1, 1, 128)).astype(np.int8))
    biases = b.const(rng.integers(-900, 900, bias).astype(np.int32))
    attributes = {"pad": (0, 0, 0, 0), "stride": (1, 1), "dilation": (1, 1), "input_zp": -4, "weight_zp": 0}
    value = b.rescale(b.emit("CONV2D", x, weight, biases, **attributes), [0.001 + 1e-5 * n for n in range(90)], output_zp=6)
    b.graph.outputs.append(b.emit("CLAMP", value, min_val=-100, max_val=90))


SPLIT = SplitWeights(fewest_weights=2000, most_slices=4, most_places=8)


@pytest.mark.parametrize(("places", "bias", "setting", "count"), [
    (1, 90, SPLIT, 4),
    (8, 1, SPLIT, 4),
    (9, 90, SPLIT, 1),
    (1, 90, replace(SPLIT, fewest_weights=5000), 2),
    (1, 90, replace(SPLIT, fewest_weights=6000), 1),
    (1, 90, replace(SPLIT, fewest_weights=1, most_slices=100), 5),
    (1, 90, None, 1),
])  # fmt: skip
def test_slices_of_a_layer_with_many_weights(places: int, bias: int, setting: SplitWeights | None, count: int) -> None:
    b = Builder()
    classify(b, places, bias)
    before, after = b.graph, rewrite(copy.deepcopy(b.graph), replace(UNTUNED, split_weights=setting))
    verify(after)
    slices = [op.result.shape[3] for op in after.ops if op.name == "CONV2D"]
    assert len(slices) == count and sum(slices) == 90 and not any(size % 16 for size in slices[:-1])
    codes = [np.random.default_rng(3).integers(-128, 128, (1, 1, places, 128)).astype(np.int8)]
    (expected,) = reference(serialize(before), codes)
    (found,) = machine(serialize(after), codes, EthosUCompileSpec("ethos-u85-256"))
    np.testing.assert_array_equal(found.ravel(), expected.ravel())


def kinds(graph: Graph) -> list[str]:
    return [op.name for op in graph.ops]
