"""Operators between others, and every broadcast of each: where Vela chains, changes layouts, and picks microblocks.

What it emits for PyTorch's operators and the cases of single operators do not hold: ``tests/npu/test_samples.py`` tells.
"""

from __future__ import annotations

import numpy as np

from tests.helpers.npu_graphs import Graph, Tensor, ts
from tests.npu.cases.registry import case

SHAPE = (1, 4, 5, 18)
# Second operands: every combination of axes that is one there.
SMALLER = tuple((1, *(1 if ones >> axis & 1 else size for axis, size in enumerate(SHAPE[1:]))) for ones in range(1, 8))
ATTRIBUTES = {
    "MAXIMUM": {"nan_mode": ts.NanPropagationMode.PROPAGATE},
    "MINIMUM": {"nan_mode": ts.NanPropagationMode.PROPAGATE},
    "ARITHMETIC_RIGHT_SHIFT": {"round": True},
}
TESTS = ("EQUAL", "GREATER", "GREATER_EQUAL")
SHIFTS = ("ARITHMETIC_RIGHT_SHIFT", "LOGICAL_LEFT_SHIFT", "LOGICAL_RIGHT_SHIFT")


def apply(g: Graph, kind: str, x: Tensor, y: Tensor) -> Tensor:
    """An elementwise operator of two operands."""
    operands = [x, y, g.const([0], "INT8")] if kind == "MUL" else [x, y]
    shape = np.broadcast_shapes(x.shape, y.shape)
    return g.op(kind, operands, shape, "BOOL" if kind in TESTS else x.dtype, **ATTRIBUTES.get(kind, {}))


@case("broadcasts_add", "ADD", "INT32")
@case("broadcasts_sub", "SUB", "INT32")
@case("broadcasts_mul", "MUL", "INT32")
@case("broadcasts_maximum", "MAXIMUM", "INT32")
@case("broadcasts_minimum", "MINIMUM", "INT32")
@case("broadcasts_equal", "EQUAL", "INT32")
@case("broadcasts_greater", "GREATER", "INT32")
@case("broadcasts_greater_equal", "GREATER_EQUAL", "INT32")
@case("broadcasts_bitwise_and", "BITWISE_AND", "INT32")
@case("broadcasts_bitwise_or", "BITWISE_OR", "INT16")
@case("broadcasts_bitwise_xor", "BITWISE_XOR", "INT32")
@case("broadcasts_logical_and", "LOGICAL_AND", "BOOL")
@case("broadcasts_logical_or", "LOGICAL_OR", "BOOL")
@case("broadcasts_logical_xor", "LOGICAL_XOR", "BOOL")
@case("broadcasts_asr", "ARITHMETIC_RIGHT_SHIFT", "INT16")
@case("broadcasts_lsl", "LOGICAL_LEFT_SHIFT", "INT16")
@case("broadcasts_lsr", "LOGICAL_RIGHT_SHIFT", "INT32")
def _broadcasts(g: Graph, kind: str, dtype: str) -> None:
    most = 3 if kind in TESTS else 300
    bounds = {} if dtype == "BOOL" else {"low": 0, "high": 15} if kind in SHIFTS else {"low": -most, "high": most}
    x = g.input(*SHAPE, dtype=dtype, **bounds)
    for shape in SMALLER:
        if shape == (1, 1, 1, 1) and kind in (*TESTS, *SHIFTS, "LOGICAL_AND", "LOGICAL_OR"):
            continue  # one value may leave nothing of the other operand
        y = g.input(*shape, dtype=dtype, **bounds)
        g.output(apply(g, kind, x, y), apply(g, kind, y, x))
    scalar = g.const([[[[0 if kind == "LOGICAL_OR" else 1]]]], dtype)
    g.output(apply(g, kind, x, scalar), apply(g, kind, scalar, x))


@case("broadcasts_select")
def _broadcast_selects(g: Graph) -> None:
    """Of each operand: what TOSA's SELECT becomes are AND, AND_NOT, OR and CMP_NE."""
    whole = g.input(*SHAPE, dtype="BOOL"), g.input(*SHAPE), g.input(*SHAPE)
    for shape in SMALLER:
        for place, dtype in enumerate(("BOOL", "INT8", "INT8")):
            operands = list(whole)
            operands[place] = g.input(*shape, dtype=dtype)
            g.output(g.op("SELECT", operands, SHAPE, "INT8"))


@case("between_add", "ADD")
@case("between_sub", "SUB")
@case("between_mul", "MUL")
@case("between_maximum", "MAXIMUM")
@case("between_minimum", "MINIMUM")
@case("between_equal", "EQUAL")
@case("between_greater", "GREATER")
@case("between_greater_equal", "GREATER_EQUAL")
def _between(g: Graph, kind: str) -> None:
    """Convolutions before and behind, operands that are rescaled, broadcast and used twice; tables behind."""
    x, y = g.conv(g.input(1, 8, 6, 20), 18, pad=(1, 1, 1, 1)), g.conv(g.input(1, 8, 6, 20), 18, kernel=(1, 1))
    unit = 0.05 if kind == "EQUAL" else 1.0
    a, b = g.rescale(x, "INT32", 1.3 * unit, zp_in=3), g.rescale(y, "INT32", 0.7 * unit)
    c = g.rescale(g.input(1, 1, 6, 1), "INT32", 0.9 * unit)
    for p, q in ((a, b), (b, a), (a, c), (c, b)):
        z = apply(g, kind, p, q)
        if kind in TESTS:
            g.output(g.op("SELECT", [z, x, y], x.shape, "INT8"))
            either = g.op(
                "LOGICAL_OR", [g.op("LOGICAL_NOT", [z], z.shape, "BOOL"), g.input(*z.shape, dtype="BOOL")], z.shape, "BOOL"
            )
            g.output(g.op("LOGICAL_AND", [either, z], z.shape, "BOOL"))
        else:
            narrow = g.rescale(z, "INT8", 0.4 if kind != "MUL" else 0.01)
            g.output(g.conv(narrow, 16, kernel=(1, 1)))
            g.output(g.op("TABLE", [narrow, g.random(256, low=-128)], narrow.shape, "INT8"))
            g.output(g.rescale(apply(g, kind, z, q), "INT16", 3.1 if kind != "MUL" else 0.01))


@case("chained_add", "ADD")
@case("chained_sub", "SUB")
@case("chained_maximum", "MAXIMUM")
@case("chained_minimum", "MINIMUM")
@case("chained_equal", "EQUAL")
@case("chained_greater", "GREATER")
@case("chained_greater_equal", "GREATER_EQUAL")
@case("chained_bitwise_and", "BITWISE_AND")
@case("chained_bitwise_or", "BITWISE_OR")
@case("chained_bitwise_xor", "BITWISE_XOR")
@case("chained_asr", "ARITHMETIC_RIGHT_SHIFT")
@case("chained_lsl", "LOGICAL_LEFT_SHIFT")
@case("chained_lsr", "LOGICAL_RIGHT_SHIFT")
def _chained(g: Graph, kind: str) -> None:
    """Read by one operator only, which U85 hands on without memory: as either operand, in shapes of few channels and rows."""
    for shape in ((1, 8, 5, 6), (1, 1, 3, 40), (1, 3, 1, 3), (1, 16, 16, 16)):
        for order in (1, -1):
            x, y = (g.rescale(g.input(*shape), "INT32", 1.0) for _ in range(2))
            d = g.op("SUB", [x, y], shape, "INT32")
            few = g.input(*shape, dtype="INT32", low=0, high=7)
            if kind in SHIFTS:
                z = apply(g, kind, d, few)
            else:
                z = apply(g, kind, *[d, few][::order])
            if kind in TESTS:
                g.output(g.op("LOGICAL_NOT", [apply(g, kind, *[few, d][::order])], shape, "BOOL"))
                z = g.op("SELECT", [g.op("LOGICAL_XOR", [z, g.input(*shape, dtype="BOOL")], shape, "BOOL"), d, few], shape, "INT32")
            g.output(z if kind == "LOGICAL_RIGHT_SHIFT" else g.rescale(z, "INT8", 0.4))


@case("chained_select")
def _chained_select(g: Graph) -> None:
    for shape in ((1, 8, 5, 6), (1, 1, 3, 40), (1, 3, 1, 3), (1, 16, 16, 16)):
        a, b = (
            g.rescale(apply(g, "ADD", g.rescale(g.input(*shape), "INT32"), g.const([[[[3]]]], "INT32")), "INT8") for _ in range(2)
        )
        g.output(g.op("SELECT", [g.input(*shape, dtype="BOOL"), a, b], shape, "INT8"))
        p, q, r = (g.input(*shape, dtype="BOOL") for _ in range(3))
        either = g.op("LOGICAL_OR", [p, q], shape, "BOOL")
        g.output(g.op("LOGICAL_XOR", [either, g.op("LOGICAL_AND", [q, r], shape, "BOOL")], shape, "BOOL"))
        g.output(g.op("SELECT", [either, a, b], shape, "INT8"))


@case("extremes_int16", "MINIMUM")
@case("extremes_int16_max", "MAXIMUM")
def _extremes16(g: Graph, kind: str) -> None:
    """On int16, with a table behind."""
    x, y = (g.rescale(g.input(*SHAPE, dtype="INT16"), "INT32") for _ in range(2))
    z = g.rescale(apply(g, kind, x, y), "INT16")
    g.output(z, table16(g, g.rescale(apply(g, kind, x, g.rescale(g.input(1, 1, 1, 18, dtype="INT16"), "INT32")), "INT16")))


def table16(g: Graph, x: Tensor) -> Tensor:
    values = (30000 * np.sin(np.linspace(-5, 5, 513))).round()
    return g.rescale(g.op("TABLE", [x, g.const(values, "INT16")], x.shape, "INT32"), "INT16", 1 / 128)


def table8(g: Graph, x: Tensor) -> Tensor:
    return g.op("TABLE", [x, g.const(g.rng.permutation(256) - 128, "INT8")], x.shape, "INT8")


@case("tables_behind_add", "ADD")
@case("tables_behind_sub", "SUB")
@case("tables_behind_mul", "MUL")
@case("tables_behind_minimum", "MINIMUM")
def _tables_behind(g: Graph, kind: str) -> None:
    """Eight tables behind operators of two operands, each twice, so that all of them stay in internal memory."""
    x = g.input(*SHAPE)
    tables = [g.const(g.rng.permutation(256) - 128, "INT8") for _ in range(8)]
    for table in tables * 2:
        y = apply(g, kind, g.rescale(x, "INT32", zp_in=2), g.rescale(g.input(1, 1, 1, 18), "INT32"))
        x = g.op("TABLE", [g.rescale(y, "INT8", 0.5 if kind != "MUL" else 0.01), table], SHAPE, "INT8")
    g.output(x)


@case("tables_behind_others")
def _tables_behind_others(g: Graph) -> None:
    x = g.input(1, 8, 6, 20)
    window = {"kernel": [2, 2], "stride": [2, 2], "pad": [0, 0, 0, 0], "nan_mode": ts.NanPropagationMode.PROPAGATE}
    g.output(table8(g, g.op("MAX_POOL2D", [x], (1, 4, 3, 20), "INT8", **window)))
    g.output(table8(g, g.rescale(x, "INT8", 0.7, zp_in=5, zp_out=-3)))
    y = g.input(1, 8, 6, 20)
    total = apply(g, "ADD", *(g.rescale(table16(g, g.rescale(y, "INT16", 128.0)), "INT32", scale) for scale in (1.0, 2.0**8)))
    g.output(g.rescale(apply(g, "MUL", g.rescale(g.input(1, 8, 6, 20), "INT32", 0.01), total), "INT8", 1e-6))
    mask = g.op("CAST", [g.input(1, 8, 6, 20, dtype="BOOL")], (1, 8, 6, 20), "INT8")
    g.output(g.rescale(g.rescale(mask, "INT32"), "INT8", 255.0, zp_out=-128))


@case("argmax_row", "INT8")
@case("argmax_row_int16", "INT16")
def _argmax_row(g: Graph, dtype: str) -> None:
    for shape in ((1, 1, 1, 15), (1, 1, 20, 10)):
        x = g.input(*shape, dtype=dtype)
        g.output(g.op("ARGMAX", [x], shape[:3], "INT32", axis=3, nan_mode=ts.NanPropagationMode.PROPAGATE))


@case("reduce_sum_to_int16")
def _reduce_sum_to_int16(g: Graph) -> None:
    for axis in (1, 3):
        shape = [1 if a == axis else n for a, n in enumerate(SHAPE)]
        x = g.rescale(g.input(*SHAPE, dtype="INT16"), "INT32")
        g.output(g.rescale(g.op("REDUCE_SUM", [x], shape, "INT32", axis=axis), "INT16", 0.2))


@case("reduce_bools_twice", "REDUCE_ALL")
@case("reduce_bools_twice_any", "REDUCE_ANY")
def _reduce_bools(g: Graph, kind: str) -> None:
    for shape in ((1, 2, 2, 18), (1, 2, 1, 40)):
        x = g.input(*shape, dtype="BOOL")
        rows = g.op(kind, [x], (1, 1, *shape[2:]), "BOOL", axis=1)
        g.output(g.op(kind, [rows], (1, 1, 1, shape[3]), "BOOL", axis=2))
        p = g.op("LOGICAL_OR" if kind == "REDUCE_ALL" else "LOGICAL_AND", [x, g.input(*shape, dtype="BOOL")], shape, "BOOL")
        less = (1, 1, *shape[2:])
        g.output(g.op("LOGICAL_NOT", [g.op(kind, [p], less, "BOOL", axis=1)], less, "BOOL"))


@case("softmax_parts")
def _softmax_parts(g: Graph) -> None:
    """Exponentials, their sum and what is done with both: a softmax but for its reciprocal."""
    x = g.conv(g.input(1, 6, 4, 20), 18, kernel=(1, 1))
    top = g.op("REDUCE_MAX", [x], (1, 6, 4, 1), "INT8", axis=3, nan_mode=ts.NanPropagationMode.PROPAGATE)
    low = g.rescale(apply(g, "SUB", g.rescale(x, "INT32"), g.rescale(top, "INT32")), "INT8", zp_out=127)
    e = g.rescale(table8(g, low), "INT32", zp_in=-128)
    total = g.op("REDUCE_SUM", [e], (1, 6, 4, 1), "INT32", axis=3)
    narrow = table16(g, g.rescale(apply(g, "SUB", total, g.const([[[[2000]]]], "INT32")), "INT16", 7.3))
    g.output(g.rescale(apply(g, "MUL", e, g.rescale(narrow, "INT32")), "INT8", 1e-5))
    short = g.op("REDUCE_SUM", [g.rescale(g.input(1, 6, 4, 20), "INT32")], (1, 1, 4, 20), "INT32", axis=1)
    g.output(g.rescale(short, "INT8", 0.1, zp_out=-45))
    square = g.rescale(g.input(1, 6, 40, 40), "INT32")
    rows = g.op("REDUCE_SUM", [apply(g, "MUL", square, square)], (1, 6, 40, 1), "INT32", axis=3)
    columns = g.op("REDUCE_SUM", [g.rescale(rows, "INT32", 0.025)], (1, 6, 1, 1), "INT32", axis=2)
    g.output(g.op("REDUCE_SUM", [g.rescale(columns, "INT32", 0.025)], (1, 1, 1, 1), "INT32", axis=1), columns)


LAYOUTS = {"chw": (0, 3, 1, 2), "hcw": (0, 1, 3, 2), "wch": (0, 2, 3, 1), "whc": (0, 2, 1, 3)}


@case("layout_chw", "chw")
@case("layout_hcw", "hcw")
@case("layout_wch", "wch")
@case("layout_whc", "whc")
def _layouts(g: Graph, layout: str) -> None:
    """Results that are transposed: U85 writes them so at once."""
    perms = LAYOUTS[layout]
    x = g.input(1, 8, 6, 20)
    window = {"kernel": [2, 2], "stride": [2, 2], "pad": [0, 0, 0, 0]}
    pooled = g.op("MAX_POOL2D", [x], (1, 4, 3, 20), "INT8", **window, nan_mode=ts.NanPropagationMode.PROPAGATE)
    zero = g.zero("INT8")
    average = g.op("AVG_POOL2D", [x, zero, zero], (1, 4, 3, 20), "INT8", **window, acc_type=ts.DType.INT32)
    wide = g.rescale(x, "INT32")
    less = g.rescale(apply(g, "SUB", wide, g.rescale(g.input(1, 8, 6, 20), "INT32")), "INT8", 0.5)
    rows = g.rescale(g.op("REDUCE_SUM", [wide], (1, 1, 6, 20), "INT32", axis=1), "INT8", 0.2)
    results = [g.conv(x, 24), g.conv(x, 1, depthwise=True), pooled, average, less, rows, g.rescale(x, "INT8", 0.7)]
    for result in (*results, g.op("MUL", [wide, wide, g.const([0], "INT8")], wide.shape, "INT32")):
        g.output(g.op("TRANSPOSE", [result], [result.shape[p] for p in perms], result.dtype, perms=list(perms)))


@case("attention_parts")
def _attention_parts(g: Graph) -> None:
    """Products of computed tensors."""
    a, b = (g.conv(g.input(1, 1, 9, 20), 32, kernel=(1, 1)) for _ in range(2))
    left, right = (g.op("RESHAPE", [t, g.const([1, 9, 32], "SHAPE")], (1, 9, 32), "INT8") for t in (a, b))
    turned = g.op("TRANSPOSE", [right], (1, 32, 9), "INT8", perms=[0, 2, 1])
    zero = g.zero("INT8")
    scores = g.rescale(g.op("MATMUL", [left, turned, zero, zero], (1, 9, 9), "INT32"), "INT8", 0.0008)
    mixed = g.rescale(g.op("MATMUL", [scores, right, zero, zero], (1, 9, 32), "INT32"), "INT8", 0.003)
    back = g.op("RESHAPE", [mixed, g.const([1, 1, 9, 32], "SHAPE")], (1, 1, 9, 32), "INT8")
    g.output(g.conv(back, 16, kernel=(1, 1)), scores)


@case("between_resize", "BILINEAR", 20)
@case("between_resize_nearest", "NEAREST", 20)
@case("between_resize_narrow", "BILINEAR", 3)
@case("between_resize_int16", "BILINEAR", 18, "INT16")
@case("between_resize_nearest_int16", "NEAREST", 18, "INT16")
def _between_resize(g: Graph, mode: str, depth: int, dtype: str = "INT8") -> None:
    shapes = [g.const(v, "SHAPE") for v in ([4, 2, 4, 2], [0, 0], [-2, -2])]
    wide = dtype if mode == "NEAREST" else {"INT8": "INT32", "INT16": "INT48"}[dtype]

    def resized(x: Tensor, h: int, w: int) -> Tensor:
        y = g.op("RESIZE", [x, *shapes], (1, h, w, depth), wide, mode=getattr(ts.ResizeMode, mode))
        return y if wide == dtype else g.rescale(y, dtype, 1 / 16)

    x = g.conv(g.input(1, 5, 6, 20, dtype=dtype), depth, kernel=(1, 1), rescale=dtype)
    g.output(g.conv(resized(x, 8, 10), 16, kernel=(1, 1), rescale=dtype))
    g.output(resized(g.input(1, 4, 4, depth, dtype=dtype), 6, 6))


@case("single_use_equal", "EQUAL")
@case("single_use_greater", "GREATER")
@case("single_use_greater_equal", "GREATER_EQUAL")
def _single_use(g: Graph, kind: str) -> None:
    """A difference that only one comparison reads, and a result that only one NOT or SELECT does."""
    for dtype, shape in (("INT8", (1, 8, 5, 6)), ("INT16", (1, 8, 5, 6)), ("INT16", SHAPE)):

        def difference(dtype=dtype, shape=shape) -> Tensor:
            x, y = (g.rescale(g.input(*shape, dtype=dtype, low=-9, high=9), "INT32") for _ in range(2))
            return g.op("SUB", [x, y], shape, "INT32")

        zero = g.const([[[[0]]]], "INT32")
        g.output(apply(g, kind, difference(), zero), apply(g, kind, zero, difference()))
        g.output(g.op("LOGICAL_NOT", [apply(g, kind, difference(), zero)], shape, "BOOL"))
        chosen = [g.rescale(apply(g, "ADD", difference(), g.const([[[[3]]]], "INT32")), dtype) for _ in range(2)]
        g.output(g.op("SELECT", [apply(g, kind, difference(), zero), *chosen], shape, dtype))
        chosen = [g.rescale(apply(g, "ADD", difference(), g.const([[[[3]]]], "INT32")), dtype) for _ in range(2)]
        g.output(g.op("SELECT", [g.input(*shape, dtype="BOOL"), *chosen], shape, dtype))
        for operands in ((g.input(*shape, dtype=dtype), chosen[0]), (chosen[1], g.input(*shape, dtype=dtype))):
            g.output(g.op("SELECT", [g.input(1, 1, 1, 1, dtype="BOOL"), *operands], shape, dtype))


@case("single_use_others")
def _single_use_others(g: Graph) -> None:
    x = g.rescale(g.input(*SHAPE), "INT32")
    bounds = g.const([[[[-40]]]], "INT32"), g.rescale(g.input(1, 1, 1, 18), "INT32")
    g.output(g.rescale(apply(g, "MINIMUM", apply(g, "MAXIMUM", x, bounds[0]), bounds[1]), "INT8"))
    g.output(
        g.op(
            "CAST",
            [g.op("TABLE", [g.input(1, 1, 2, 7), g.const(g.rng.integers(0, 2, 256), "INT8")], (1, 1, 2, 7), "INT8")],
            (1, 1, 2, 7),
            "BOOL",
        )
    )


@case("shifts_narrow", "INT8")
@case("shifts_narrow_int16", "INT16")
def _shifts_narrow(g: Graph, dtype: str) -> None:
    """Right, left and right again, of what was narrower."""
    bits = g.const([[24 if dtype == "INT8" else 16]], "INT32")
    for row in (g.input(1, 30, dtype=dtype, low=0, high=7), None):
        x = g.rescale(g.input(3, 30, dtype=dtype), "INT32")
        by = g.const([[3]], "INT32") if row is None else g.rescale(row, "INT32")
        for kind in SHIFTS[:2]:
            y = g.op(kind, [x, by], (3, 30), "INT32", **({"round": False} if kind == SHIFTS[0] else {}))
            y = g.op("LOGICAL_LEFT_SHIFT", [y, bits], (3, 30), "INT32")
            g.output(g.rescale(g.op(SHIFTS[0], [y, bits], (3, 30), "INT32", round=True), dtype))


@case("layout_and_back")
def _layout_and_back(g: Graph) -> None:
    """Channels first outside, last inside."""
    for dtype, depth, h, w in (("INT8", 8, 5, 6), ("INT16", 40, 3, 3)):
        x = g.op("TRANSPOSE", [g.input(1, depth, h, w, dtype=dtype)], (1, h, w, depth), dtype, perms=[0, 2, 3, 1])
        y = g.conv(x, 72, kernel=(1, 1), rescale=dtype)
        g.output(g.op("TRANSPOSE", [y], (1, 72, h, w), dtype, perms=[0, 3, 1, 2]))
        if dtype == "INT8":
            operands = [x, g.random(6, 2, 2, depth), g.random(6, dtype="INT32"), g.zero(dtype), g.zero(dtype)]
            attributes = {"out_pad": [0] * 4, "stride": [2, 2], "local_bound": False, "acc_type": ts.DType.INT32}
            y = g.op("TRANSPOSE_CONV2D", operands, (1, 10, 12, 6), "INT32", **attributes)
            y = g.spread(y, depth, dtype, dtype)
            g.output(g.op("TRANSPOSE", [y], (1, 6, 10, 12), dtype, perms=[0, 3, 1, 2]))


@case("layout_of_resize")
def _layout_of_resize(g: Graph) -> None:
    x = g.op("TRANSPOSE", [g.input(1, 8, 5, 6)], (1, 5, 6, 8), "INT8", perms=[0, 2, 3, 1])
    shapes = [g.const(v, "SHAPE") for v in ([4, 2, 4, 2], [-1, -1], [1, 1])]
    y = g.rescale(g.op("RESIZE", [x, *shapes], (1, 10, 12, 8), "INT32", mode=ts.ResizeMode.BILINEAR), "INT8", 1 / 16)
    g.output(g.op("TRANSPOSE", [y], (1, 8, 10, 12), "INT8", perms=[0, 3, 1, 2]))


@case("sum_of_exponentials")
def _sum_of_exponentials(g: Graph) -> None:
    """Along the rows, and along the channels of a batch."""
    for shape, axis in (((6, 9, 5), 1), ((2, 6, 7), 2), ((1, 9600), 1)):
        x = g.input(*shape)
        short = [1 if a == axis else n for a, n in enumerate(shape)]
        one = g.const(np.full([1] * len(shape), 3), "INT32")
        top = g.op("REDUCE_MAX", [x], short, "INT8", axis=axis, nan_mode=ts.NanPropagationMode.PROPAGATE)
        low = g.rescale(g.op("SUB", [g.rescale(x, "INT32"), g.rescale(top, "INT32")], shape, "INT32"), "INT8", zp_out=127)
        e = table8(g, low)
        total = g.op("REDUCE_SUM", [g.rescale(e, "INT32", zp_in=-128)], short, "INT32", axis=axis)
        narrow = table16(g, g.rescale(g.op("SUB", [total, one], short, "INT32"), "INT16", 3.0))
        wide = g.rescale(e, "INT32", zp_in=-128)
        g.output(
            narrow, g.rescale(g.op("MUL", [wide, g.rescale(narrow, "INT32"), g.const([0], "INT8")], shape, "INT32"), "INT8", 1e-5)
        )
