"""The TOSA graph: text form, verification, serialization."""

from __future__ import annotations

import numpy as np
import pytest

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QParams, QTensor
from ethorch.tosa.ir import Graph, Value
from ethorch.tosa.layout import contiguous
from ethorch.tosa.serialize import serialize, serialize_with_positions
from ethorch.tosa.text import from_text, to_text
from ethorch.tosa.verify import verify
from tests.helpers.ladder import reference

pytestmark = pytest.mark.core

Q = QParams((0.1,), (3,), -128, 127, "INT8")


def conv_graph(channels: int = 72) -> Graph:
    """Two 1x1 convolutions with a scale per channel, so that constants of one shape differ in content."""
    rng = np.random.default_rng(0)
    b = Builder()
    value = b.input("x", (1, 2, 2, channels), "INT8")
    for _ in range(2):
        weight = b.const(rng.integers(-127, 128, (channels, 1, 1, channels)).astype(np.int8), name="weight")
        bias = b.const(rng.integers(-900, 900, channels).astype(np.int32), name="bias")
        acc = b.emit("CONV2D", value, weight, bias, pad=(0, 0, 0, 0), stride=(1, 1), dilation=(1, 1), input_zp=3, weight_zp=0)
        value = b.requantize(acc, rng.uniform(1e-4, 3e-4, channels).tolist(), Q)
    b.graph.outputs.append(value)
    return b.graph


def test_text_is_read_back() -> None:
    graph = conv_graph()
    text = to_text(graph, constants=True)
    again = from_text(text)
    verify(again)
    assert to_text(again, constants=True) == text
    assert serialize(again) == serialize(graph)


@pytest.mark.parametrize(
    "line", ["%y: INT8[1] = NOPE", "const %c: INT8[2]", "input x: INT8[1]", "output %x", "%y: INT8[1] = ABS {axis=}"]
)
def test_text_that_is_not_a_graph_is_refused(line: str) -> None:
    with pytest.raises(
        ValueError, match=r"expected an operator|expected a constant with data|expected a value|does not define|expected attributes"
    ):
        from_text(f"graph main\n{line}\n")


def test_verify_finds_a_wrong_shape_and_an_undefined_operand() -> None:
    graph = conv_graph()
    graph.ops[0].results[0].shape = (1, 2, 2, 5)
    with pytest.raises(AssertionError, match="the opset infers"):
        verify(graph)
    graph = conv_graph()
    graph.ops[0].operands = (Value("ghost", (1, 2, 2, 72), "INT8"), *graph.ops[0].operands[1:])
    with pytest.raises(AssertionError, match="before it is defined"):
        verify(graph)


def test_large_constants_of_one_shape_stay_apart() -> None:
    """Per-channel multipliers are temporaries of one shape; they must never be taken for each other."""
    graph = conv_graph()
    x = np.random.default_rng(1).integers(-128, 128, (1, 2, 2, 72)).astype(np.int8)
    (found,) = reference(serialize(graph), [x])
    value = x.astype(np.int64)
    for conv, rescale in zip(graph.ops[::2], graph.ops[1::2], strict=True):
        weight, bias = (operand.data for operand in conv.operands[1:])
        acc = (value - 3) @ weight[:, 0, 0].T.astype(np.int64) + bias
        multiplier, shift = (np.asarray(rescale.attrs[key], np.int64) for key in ("multiplier", "shift"))
        value = np.clip(((acc * multiplier + (1 << (shift - 1))) >> shift) + 3, -128, 127)
    np.testing.assert_array_equal(found, value)
    assert len(np.unique(found)) > 50


def test_positions_count_constants() -> None:
    graph = conv_graph()
    _, positions = serialize_with_positions(graph)
    assert len(positions) == len(graph.ops)
    assert positions == sorted(set(positions))
    assert positions[0] >= 4  # weight, bias and two zero points come first


def test_every_elementary_operator_serializes_for_the_reference_model() -> None:
    """One operator of each kind that has attributes; the reference model checks the flatbuffer's form."""
    b = Builder()
    x = b.input("x", (1, 4, 6, 2), "INT8")
    wide = b.rescale(x, 1.0, dtype="INT32")
    other = b.const(np.arange(12, dtype=np.int32).reshape(1, 1, 6, 2) + 1)
    outputs = [
        b.emit("TRANSPOSE", x, perms=(0, 3, 1, 2)),
        b.emit("PAD", x, padding=(0, 0, 1, 0, 0, 2, 0, 0), pad_const=5),
        b.emit("SLICE", x, start=(0, 1, 2, 0), size=(1, 2, 3, 2)),
        b.emit("CONCAT", x, x, axis=3),
        b.emit("TILE", x, multiples=(1, 2, 1, 1)),
        b.emit("REVERSE", x, axis=2),
        b.emit("REDUCE_SUM", wide, axis=1),
        b.emit("REDUCE_MAX", wide, axis=3),
        b.emit("ARGMAX", x, axis=3),
        b.emit("ADD", wide, other),
        b.emit("MUL", wide, other, shift=0),
        b.emit("ARITHMETIC_RIGHT_SHIFT", wide, b.const(np.ones((1, 1, 1, 1), np.int32)), round=True),
        b.emit("GREATER", wide, other),
        b.emit("CLAMP", x, min_val=-3, max_val=9),
        b.emit("MAXIMUM", wide, other),
        b.emit("CAST", x, dtype="INT16"),
        b.emit("NEGATE", x, input_zp=0, output_zp=0),
        b.emit("RESIZE", x, mode="NEAREST", scale=(2, 1, 2, 1), offset=(0, 0), border=(1, 1)),
    ]
    b.graph.outputs += outputs
    verify(b.graph)
    x_codes = np.random.default_rng(0).integers(-127, 128, (1, 4, 6, 2)).astype(np.int8)
    results = reference(serialize(b.graph), [x_codes])
    for value, result in zip(outputs, results, strict=True):
        assert value.shape == result.shape, value
    np.testing.assert_array_equal(results[9], x_codes.astype(np.int32) + other.data)
    np.testing.assert_array_equal(results[13], np.clip(x_codes, -3, 9))


def test_layout_only_moves_data_where_it_must() -> None:
    b = Builder()
    x = QTensor(b.input("x", (1, 3, 8, 8), "INT8"), contiguous((1, 3, 8, 8)), Q)
    y = b.permute(b.permute(x, (0, 2, 3, 1)), (0, 3, 1, 2))
    assert b.logical(b.view(y, (3, 64))).shape == (3, 64)
    assert [op.name for op in b.graph.ops] == ["RESHAPE"]
    b.nhwc(y)
    assert [op.name for op in b.graph.ops].count("TRANSPOSE") == 1
    b.nhwc(x)  # the same order again is made once
    assert [op.name for op in b.graph.ops].count("TRANSPOSE") == 1
