"""Every range in a limits row: Vela compiles its edge, to the results of the TOSA reference model where that is quick; the step
beyond is refused with the row's id, and Vela refuses it too (or compiles it to something else, which the row says)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from ethorch import EthosUCompileSpec, vela
from ethorch.lower.builder.builder import Builder
from ethorch.support.errors import Unsupported, VelaError
from ethorch.targets.npus import TARGETS
from ethorch.tosa.ir import DTYPES, Value
from ethorch.tosa.serialize import serialize
from tests.helpers import ladder

#: One NPU of each family.
FAMILIES = ("ethos-u55-128", "ethos-u65-256", "ethos-u85-256")
Shape = tuple[int, ...]
Draw = Callable[[Builder], Value]


def conv(
    shape: Shape, kernel: Shape, stride: int = 1, pad: int = 0, dilation: int = 1, depthwise: bool = False, channels: int = 4
) -> Draw:
    def draw(b: Builder) -> Value:
        weight = np.ones((*kernel, shape[3], 1) if depthwise else (channels, *kernel, shape[3]), np.int8)
        acc = b.emit(
            "DEPTHWISE_CONV2D" if depthwise else "CONV2D",
            b.input("x", shape, "INT8"),
            b.const(weight),
            b.const(np.zeros(shape[3] if depthwise else channels, np.int32)),
            pad=(pad,) * 4,
            stride=(stride,) * 2,
            dilation=(dilation,) * 2,
            input_zp=0,
            weight_zp=0,
        )
        return b.rescale(acc, 0.01)

    return draw


def pool(kind: str, shape: Shape, kernel: Shape, stride: Shape = (1, 1), pad: int = 0) -> Draw:
    def draw(b: Builder) -> Value:
        zero_points = {} if kind == "MAX_POOL2D" else {"input_zp": 0, "output_zp": 0}
        return b.emit(kind, b.input("x", shape, "INT8"), kernel=kernel, stride=stride, pad=(pad,) * 4, **zero_points)

    return draw


def total(shape: Shape, axis: int) -> Draw:
    """A sum as sums are emitted: between RESCALEs, which Vela merges into it."""

    def draw(b: Builder) -> Value:
        wide = b.rescale(b.input("x", shape, "INT8"), 1.0, input_zp=3, dtype="INT32")
        return b.rescale(b.emit("REDUCE_SUM", wide, axis=axis), 2.0 / shape[axis], output_zp=-2)

    return draw


def flow(kind: str, *regions: str) -> Draw:
    """Control flow whose regions return what they get; a loop's condition is the truth that it carries."""

    def draw(b: Builder) -> Value:
        loop = kind == "WHILE_LOOP"
        graphs = {}
        for region in regions:
            inner = b.region(region)
            given = [*([inner.input("p", (), "BOOL")] if loop else []), inner.input("x", (2, 3), "INT8")]
            inner.graph.outputs += [inner.emit("IDENTITY", value) for value in (given[:1] if region == "cond_graph" else given)]
            graphs[region] = inner.graph
        b.emit(kind, b.input("p", (), "BOOL"), b.input("x", (2, 3), "INT8"), **graphs)
        return b.graph.ops[-1].results[-1]

    return draw


def binary(kind: str, dtype: str, **attrs: bool) -> Draw:
    return lambda b: b.emit(kind, b.input("x", (1, 2, 3, 4), dtype), b.input("y", (1, 2, 3, 4), dtype), **attrs)


def product(dtype: str) -> Draw:
    def draw(b: Builder) -> Value:
        acc = b.emit("MATMUL", b.input("x", (2, 3, 4), dtype), b.input("y", (2, 4, 5), dtype), a_zp=0, b_zp=0)
        return b.rescale(acc, 0.01, dtype=dtype)

    return draw


def rows(count: int) -> Draw:
    """A product of a matrix of so many rows."""

    def draw(b: Builder) -> Value:
        acc = b.emit("MATMUL", b.input("x", (1, count, 2), "INT8"), b.input("y", (1, 2, 3), "INT8"), a_zp=0, b_zp=0)
        return b.rescale(acc, 0.01, dtype="INT8")

    return draw


def products(count: int) -> Draw:
    """So many products of two by two."""

    def draw(b: Builder) -> Value:
        acc = b.emit("MATMUL", b.input("x", (count, 2, 2), "INT8"), b.input("y", (count, 2, 2), "INT8"), a_zp=0, b_zp=0)
        return b.rescale(acc, 0.01, dtype="INT8")

    return draw


def index(shape: Shape, dtype: str = "INT8") -> Draw:
    return lambda b: b.emit("ARGMAX", b.input("x", shape, dtype), axis=len(shape) - 1)


@dataclass(frozen=True)
class Edge:
    """The last that runs and the first that does not.

    Attributes:
        compiles: Vela takes that one all the same, on some NPU, and gets it wrong.
        big: more work than a machine's budget: compiled only.
    """

    inside: Draw
    beyond: Draw
    compiles: bool = False
    big: bool = False


#: TOSA operator, feature -> its edge. A feature of ``absent`` or ``dtype`` has another kind of row.
EDGES = {
    ("CONV2D", "ifm_c"): Edge(conv((1, 1, 1, 65536), (1, 1)), conv((1, 1, 1, 65537), (1, 1))),
    ("CONV2D", "padding_of_wide_stride"): Edge(conv((1, 16, 16, 4), (4, 4), 4), conv((1, 18, 18, 4), (4, 4), 4, pad=1)),
    ("CONV2D", "dilation_of_wide_stride"): Edge(conv((1, 13, 13, 4), (3, 3), 5), conv((1, 20, 20, 4), (3, 3), 5, dilation=2)),
    ("DEPTHWISE_CONV2D", "stride"): Edge(
        conv((1, 9, 9, 8), (3, 3), 3, depthwise=True), conv((1, 16, 16, 8), (4, 4), 4, depthwise=True)
    ),
    ("DEPTHWISE_CONV2D", "ifm_c"): Edge(
        conv((1, 1, 1, 65536), (1, 1), depthwise=True), conv((1, 1, 1, 65537), (1, 1), depthwise=True), compiles=True
    ),
    ("AVG_POOL2D", "padded_kernel"): Edge(
        pool("AVG_POOL2D", (1, 12, 12, 4), (8, 8), pad=2), pool("AVG_POOL2D", (1, 13, 13, 4), (9, 9), pad=2)
    ),
    ("REDUCE_SUM", "extent"): Edge(total((2, 65536), 1), total((2, 65537), 1), compiles=True),
    ("REDUCE_SUM", "outer"): Edge(total((65536, 2, 2), 1), total((65537, 2, 2), 1)),
    ("REDUCE_SUM", "inner"): Edge(total((2, 2, 65536), 1), total((2, 2, 65537), 1)),
    ("ARGMAX", "extent"): Edge(index((1, 1, 5, 127)), index((1, 1, 5, 128))),
    ("ARGMAX", "others"): Edge(index((1, 1, 65536, 3)), index((1, 1, 65537, 3)), compiles=True),
    ("ARGMAX", "dtype"): Edge(index((1, 1, 5, 9)), index((1, 1, 5, 9), "INT16")),
    ("MATMUL", "longest_axis"): Edge(rows(65536), rows(65537), compiles=True),
    ("MATMUL", "pictures"): Edge(products(16384), products(16385), compiles=True, big=True),  # in seconds, and 65,536 in minutes
    ("CONV2D", "pictures"): Edge(conv((16384, 2, 2, 2), (2, 2)), conv((16385, 2, 2, 2), (2, 2)), compiles=True, big=True),
    ("DEPTHWISE_CONV2D", "pictures"): Edge(
        conv((16384, 2, 2, 2), (2, 2), depthwise=True), conv((16385, 2, 2, 2), (2, 2), depthwise=True), compiles=True, big=True
    ),
    ("MATMUL", "dtype"): Edge(product("INT8"), product("INT16")),
    ("ARITHMETIC_RIGHT_SHIFT", "rounds"): Edge(
        binary("ARITHMETIC_RIGHT_SHIFT", "INT32", round=True),
        binary("ARITHMETIC_RIGHT_SHIFT", "INT32", round=False),
        compiles=True,  # against SUPPORTED_OPS ("Round: true only"): not relied on
    ),
    ("ARITHMETIC_RIGHT_SHIFT", "dtype"): Edge(
        binary("ARITHMETIC_RIGHT_SHIFT", "INT32", round=True), binary("ARITHMETIC_RIGHT_SHIFT", "INT16", round=True), compiles=True
    ),
    ("LOGICAL_LEFT_SHIFT", "dtype"): Edge(binary("LOGICAL_LEFT_SHIFT", "INT32"), binary("LOGICAL_LEFT_SHIFT", "INT16")),
}
for _kind in ("MAX_POOL2D", "AVG_POOL2D"):
    EDGES[_kind, "ifm_c"] = Edge(pool(_kind, (1, 2, 2, 65536), (2, 2)), pool(_kind, (1, 2, 2, 65537), (2, 2)))
    EDGES[_kind, "kernel_w"] = Edge(pool(_kind, (1, 1, 65536, 1), (1, 65536)), pool(_kind, (1, 1, 65537, 1), (1, 65537)), big=True)
    EDGES[_kind, "pictures"] = Edge(
        pool(_kind, (16384, 2, 2, 2), (2, 2)), pool(_kind, (16385, 2, 2, 2), (2, 2)), compiles=True, big=True
    )
    EDGES[_kind, "padding_of_wide_stride"] = Edge(
        pool(_kind, (1, 16, 16, 4), (4, 4), (4, 4)), pool(_kind, (1, 14, 14, 4), (4, 4), (4, 4), pad=1), compiles=True
    )
    EDGES[_kind, "extent_of_padded_stride"] = Edge(
        pool(_kind, (1, 1, 65535, 2), (5, 5), (1, 2), pad=2), pool(_kind, (1, 1, 65537, 2), (5, 5), (1, 2), pad=2), compiles=True
    )

#: Absent operators that two int operands or one make up; the others have no graph of their own here.
ABSENT = {
    **{f"BITWISE_{name}": binary(f"BITWISE_{name}", "INT32") for name in ("AND", "OR", "XOR")},
    **{f"LOGICAL_{name}": binary(f"LOGICAL_{name}", "BOOL") for name in ("AND", "OR", "XOR")},
    **{name: binary(name, "INT32") for name in ("EQUAL", "GREATER", "GREATER_EQUAL", "INTDIV", "LOGICAL_RIGHT_SHIFT")},
    "LOGICAL_NOT": lambda b: b.emit("LOGICAL_NOT", b.input("x", (1, 2, 3, 4), "BOOL")),
    "BITWISE_NOT": lambda b: b.emit("BITWISE_NOT", b.input("x", (1, 2, 3, 4), "INT32")),
    "SELECT": lambda b: b.emit("SELECT", *(b.input(dtype.lower(), (1, 2, 3), dtype) for dtype in ("BOOL", "INT8", "INT8"))),
    "REDUCE_ALL": lambda b: b.emit("REDUCE_ALL", b.input("x", (1, 2, 3, 4), "BOOL"), axis=1),
    "REDUCE_ANY": lambda b: b.emit("REDUCE_ANY", b.input("x", (1, 2, 3, 4), "BOOL"), axis=1),
    "SCATTER": lambda b: b.emit(
        "SCATTER", b.input("x", (1, 5, 4), "INT8"), b.input("i", (1, 3), "INT32"), b.input("y", (1, 3, 4), "INT8")
    ),
    "GATHER": lambda b: b.emit("GATHER", b.input("x", (1, 5, 4), "INT8"), b.input("i", (1, 3), "INT32")),
    "COND_IF": flow("COND_IF", "then_graph", "else_graph"),
    "WHILE_LOOP": flow("WHILE_LOOP", "cond_graph", "body_graph"),
}  # fmt: skip


def rows() -> Iterator[tuple[str, str, str]]:
    """(target, TOSA operator, feature) of every range, dtype set and absence."""
    for target in FAMILIES:
        for operator, limits in TARGETS[target].limits.items():
            for feature in limits.ranges:
                yield target, operator, feature
            if limits.dtypes is not None:
                yield target, operator, "dtype"
            if not limits.present:
                yield target, operator, "absent"


def drawn(draw: Draw, target: str, *, checked: bool) -> tuple[Builder, bytes]:
    b = Builder(TARGETS[target].limits if checked else None, target=target)
    b.graph.outputs.append(draw(b))
    return b, serialize(b.graph)


def vela_and_reference_agree(b: Builder, tosa: bytes, target: str) -> bool:
    """Does Vela's stream compute what the TOSA reference model does?"""
    rng = np.random.default_rng(0)
    codes = [rng.integers(0, 20, value.shape).astype(DTYPES[value.dtype]) for value in b.graph.inputs]
    wanted = ladder.reference(tosa, codes)[0].ravel()
    return bool((ladder.machine(tosa, codes, EthosUCompileSpec(target))[0].ravel() == wanted).all())


ROWS = sorted(rows())


@pytest.mark.long
@pytest.mark.parametrize(("target", "operator", "feature"), [row for row in ROWS if row[2] != "absent"])
def test_edge(target: str, operator: str, feature: str) -> None:
    edge = EDGES[operator, feature]
    inside, tosa = drawn(edge.inside, target, checked=True)
    if edge.big:
        vela.compile(tosa, EthosUCompileSpec(target))
    else:
        assert vela_and_reference_agree(inside, tosa, target)
    with pytest.raises(Unsupported) as refusal:
        drawn(edge.beyond, target, checked=True)
    assert refusal.value.reason.id == f"{operator}.{feature}"
    if not edge.compiles:
        with pytest.raises(VelaError):
            vela.compile(drawn(edge.beyond, target, checked=False)[1], EthosUCompileSpec(target))


@pytest.mark.long
@pytest.mark.parametrize(("target", "operator"), [row[:2] for row in ROWS if row[2] == "absent"])
def test_absent(target: str, operator: str) -> None:
    with pytest.raises(Unsupported) as refusal:
        drawn(ABSENT[operator], target, checked=True)
    assert refusal.value.reason.id == f"{operator}.absent"
    with pytest.raises(VelaError):
        vela.compile(drawn(ABSENT[operator], target, checked=False)[1], EthosUCompileSpec(target))


#: Beyond what SUPPORTED_OPS promises: Vela splits these, and the results are right.
SPLIT = {
    "kernel 65 high": conv((1, 65, 8, 4), (65, 1)), "kernel 64x65": conv((1, 64, 65, 1), (64, 65)),
    "batch 3": conv((3, 9, 9, 8), (3, 3)), "depthwise batch 3": conv((3, 9, 9, 8), (3, 3), depthwise=True),
    "depthwise kernel 64x64": conv((1, 64, 64, 2), (64, 64), depthwise=True),
    "dilation 8": conv((1, 21, 21, 4), (3, 3), 1, dilation=8), "65537 output channels": conv((1, 1, 1, 1), (1, 1), channels=65537),
    **{
        f"{kind} {what}": pool(kind, *args)
        for kind in ("AVG_POOL2D", "MAX_POOL2D")
        for what, args in {
            "257x1": ((1, 257, 2, 4), (257, 1)), "256x257": ((1, 256, 257, 1), (256, 257)),
            "strides 2 and 7": ((1, 17, 17, 4), (3, 3), (2, 7)), "batch 3": ((3, 16, 16, 4), (4, 4), (4, 4)),
            "30x20 of two": ((2, 30, 20, 4), (30, 20)),
        }.items()
    },
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("target", FAMILIES)
@pytest.mark.parametrize("what", SPLIT)
def test_vela_splits(what: str, target: str) -> None:
    assert vela_and_reference_agree(*drawn(SPLIT[what], target, checked=True), target)


def test_every_row_has_an_edge() -> None:
    ranges = {(operator, feature) for _, operator, feature in ROWS if feature != "absent"}
    assert ranges - EDGES.keys() == set()
    absent = {operator for _, operator, feature in ROWS if feature == "absent"}
    assert absent - ABSENT.keys() == set()
