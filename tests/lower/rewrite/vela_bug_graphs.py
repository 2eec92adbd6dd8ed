"""For each row of ``VELA_BUGS`` graphs, as small as they get, that Vela gets wrong as they stand."""

from __future__ import annotations

from collections.abc import Mapping

from ethorch.lower.rewrite.insert_copies import ELEMENTWISE
from ethorch.lower.rewrite.vela_bugs import BY_ID
from tests.lower.rewrite.vela_bug_makers import (
    WIDE_MOVES,
    Avoided,
    Make,
    added_and_subtracted,
    among_pictures,
    before_another,
    beside,
    by_constants,
    clamped,
    clamped_shift,
    concat_of_five_axes,
    convolved,
    cut,
    dilated,
    dilated_rows_of_long_columns,
    equal_weights,
    five_axes,
    in_slices,
    int32,
    int32_slice_in_cascade,
    long_result,
    long_sum,
    loop,
    maximum,
    multiplied,
    narrowed_and_widened,
    of_all_rows,
    of_reshaped,
    of_slices,
    one_element,
    over_long_axis,
    pad_of_five_axes,
    padded_windows_of_a_batch,
    pooled,
    pooled_along,
    product,
    read_condition,
    read_in_wide_shapes,
    reduced_condition,
    rescaled_sum,
    rescaled_wrapped,
    reshaped_input,
    reshaped_matmul,
    resized,
    select,
    select_of_folded,
    select_of_rescaled,
    selected,
    six_axes,
    slice_behind_ones,
    slice_of_five_axes,
    spread,
    spread_slices,
    square,
    strided_rows_of_long_columns,
    table,
    tables,
    tables_of_parts,
    total,
    transposed_constant,
    two_sums,
    undone_transpose,
    unread_input,
    whole,
    wide_rows,
    widened,
    widened_maximum,
    widened_pool,
    widened_twice,
    within,
)
from tests.lower.rewrite.vela_bug_views import (
    along_column,
    along_reversed,
    along_sum,
    along_truths_of_sum,
    beside_convolution,
    chained_slice,
    gathered,
    gathered_in_batches,
    parts_of_reshaped_rescale,
    product_of_turned_slice,
    reverse_rows,
    scattered,
    scattered_in_batches,
    several_of_slice_behind_ones,
    sum_of_turned_slice,
    table_of_transpose,
    transpose_of_dropped,
)

GRAPHS: Mapping[str, Mapping[str, Make | Avoided]] = {
    "vela.transposed-convolution-of-slice": {"": lambda b: convolved(b, cut(b), "TRANSPOSE_CONV2D")},
    "vela.dilated-convolution-of-slice": {
        "CONV2D": lambda b: convolved(b, cut(b), "CONV2D", dilation=3),
        "DEPTHWISE_CONV2D": lambda b: convolved(b, cut(b), "DEPTHWISE_CONV2D", dilation=3),
    },
    "vela.padded-window-of-sliced-batch": {"": padded_windows_of_a_batch},
    "vela.tile-of-five-axes-of-slice": {"": five_axes},
    "vela.rescale-of-six-axes-of-slice": {"": six_axes},
    "vela.maximum-of-slice": {
        "along the first axis": lambda b: maximum(b, cut(b), 1),
        "along the last axis": lambda b: maximum(b, cut(b), 3),
        "REDUCE_MIN": lambda b: b.emit("REDUCE_MIN", cut(b), axis=3),
    },
    "vela.sum-along-channels-of-slice": {"": lambda b: b.rescale(b.emit("REDUCE_SUM", int32(b, cut(b)), axis=3), 0.1)},
    "vela.turned-slice": {
        "MATMUL": product_of_turned_slice,
        "REDUCE_SUM": sum_of_turned_slice,
    },
    "vela.broadcast-slice-in-chain": {
        **{name: chained_slice(name) for name in ("MUL", "ADD", "SUB")},
        "of one element": chained_slice("ADD", 1),
    },
    "vela.matmul-of-slice": {
        "": lambda b: multiplied(b, b.emit("SLICE", b.input("x", (2, 5, 9), "INT8"), start=(0, 0, 1), size=(2, 5, 8)))
    },
    "vela.lone-rescale-of-move": {
        "ADD": lambda b: b.rescale(of_slices(b, "ADD", 0.7, 0.7), 0.3),
        "ADD of INT32": lambda b: of_slices(b, "ADD", 2.0, 2.0),
        "ADD of wide numbers": lambda b: b.rescale(of_slices(b, "ADD", 2.0**19, 2.0**19), 2.0**-20),
        "MAXIMUM": lambda b: b.rescale(of_slices(b, "MAXIMUM", 2.0, 2.0), 0.3),
        "REDUCE_SUM": lambda b: b.rescale(b.emit("REDUCE_SUM", int32(b, within(b, whole(b)), 0.7), axis=1), 0.1),
        "SLICE": lambda b: b.rescale(cut(b, "INT32"), 0.7, dtype="INT16"),
        "CONCAT": lambda b: b.rescale(beside(b, whole(b, "INT32")), 0.7),
        "PAD": lambda b: int32(b, within(b, whole(b))),
        "TILE": lambda b: int32(b, b.emit("TILE", b.input("x", (96,), "INT8"), multiples=(5,))),
        "TILE to a long row": lambda b: int32(b, b.emit("TILE", b.input("x", (9000,), "INT8"), multiples=(9,))),
    },
    "vela.lone-rescale-in-slices": {
        "two slices": lambda b: in_slices(b, int32(b, b.input("x", (24,), "INT8"), 0.7), 0, 16),
        "one": lambda b: in_slices(b, int32(b, b.input("x", (24,), "INT8"), 0.7), 5, 5),
        "of rows": lambda b: in_slices(b, int32(b, b.input("x", (6, 8), "INT16"), 0.7), 1, 3),
        "long": lambda b: in_slices(b, int32(b, b.input("x", (65_537,), "INT16"), 0.7), 0, 65_535),
    },
    "vela.lone-rescale-placed": {
        "product": lambda b: beside(b, by_constants(b, whole(b))),
        "CONCAT": lambda b: beside(b, b.rescale(whole(b, "INT32"), 0.7)),
        "PAD": lambda b: within(b, int32(b, whole(b), 0.7)),
    },
    "vela.rescale-between-placements": {
        "CONCAT": lambda b: beside(b, b.rescale(beside(b, whole(b)), 0.7, input_zp=3, output_zp=-5)),
        "PAD": lambda b: within(b, b.rescale(within(b, whole(b)), 90.7, dtype="INT16")),
        "TILE": lambda b: beside(b, b.rescale(b.emit("TILE", whole(b), multiples=(1, 1, 2, 1)), 0.7)),
    },
    "vela.maximum-placed": {
        "along the first axis": lambda b: beside(b, maximum(b, whole(b), 1)),
        "along the last axis": lambda b: beside(b, maximum(b, whole(b), 3)),
        "REDUCE_MIN": lambda b: beside(b, b.emit("REDUCE_MIN", whole(b), axis=3)),
    },
    "vela.clamp-of-transpose-placed": {
        "": lambda b: beside(b, b.emit("CLAMP", b.emit("TRANSPOSE", whole(b), perms=(0, 3, 1, 2)), min_val=-9, max_val=9))
    },
    "vela.resize-in-steps-of-batch": {
        f"by {factor}, {name}": lambda b, factor=factor, place=place: place(b, resized(b, factor))
        for factor in (4, 8)
        for name, place in (("CONCAT", before_another), ("PAD", among_pictures))
    },
    "vela.transposed-convolution-placed": {
        "CONCAT": lambda b: beside(b, convolved(b, whole(b), "TRANSPOSE_CONV2D")),
        "PAD": lambda b: within(b, convolved(b, whole(b), "TRANSPOSE_CONV2D")),
    },
    "vela.reshaped-matmul-placed": {
        "CONCAT": lambda b: beside(b, reshaped_matmul(b)),
        "PAD": lambda b: within(b, reshaped_matmul(b)),
    },
    "vela.wide-int32-move": {name: lambda b, move=move: move(b, wide_rows(b)) for name, move in WIDE_MOVES.items()},
    "vela.wide-int32-identity": {"": lambda b: b.emit("IDENTITY", wide_rows(b))},
    "vela.wide-int32-input": {"": lambda b: b.reshape(wide_rows(b), (2, 4, 10_000))},
    "vela.wide-int32-in-shapes": {"": read_in_wide_shapes},
    "vela.select-of-reshaped": {
        f"{shared}, {dtype}": select(shared, dtype) for shared in ("condition", "first", "second") for dtype in ("INT8", "INT16")
    }
    | {
        f"folded, {dtype}{', broadcast' * broadcast}": select_of_folded(dtype, broadcast=broadcast)
        for dtype in ("INT8", "INT16")
        for broadcast in (False, True)
    }
    | {f"rescaled{' twice' * twice}": select_of_rescaled(twice=twice) for twice in (False, True)},
    "vela.square-of-reshaped": {
        "SUB": square("SUB", (12,), (3, 4)),
        "MUL": square("MUL", (12,), (3, 4)),
        "MUL of three axes": square("MUL", (2, 3, 4), (2, 12)),
        "MUL of four axes": square("MUL", (1, 4, 6, 8), (1, 24, 8)),
    },
    "vela.rescale-in-shapes": {
        "INT8": lambda b: of_reshaped(b, b.rescale(whole(b), 0.7)),
        "INT16": lambda b: of_reshaped(b, b.rescale(whole(b), 70.0, dtype="INT16")),
        "INT32": lambda b: of_reshaped(b, int32(b, whole(b), 0.7)),
        "long": lambda b: of_reshaped(b, b.rescale(b.input("x", (1, 2, 65_537), "INT16"), 0.7)),
        "parts in several operators": parts_of_reshaped_rescale,
        "the same in several operators": added_and_subtracted,
    },
    "vela.table-of-reshaped-slice": {
        "one channel": tables_of_parts((12, 16, 1), (12, 16)),
        "two channels": tables_of_parts((12, 8, 2), (12, 16)),
        "rows to one": tables_of_parts((6, 1, 5), (30,)),
        "CLAMP": tables_of_parts((12, 16, 1), (12, 16), clamped),
    },
    "vela.spread-in-other-shape": {
        "MUL": spread("MUL", (12, 32)),
        "ADD of four axes": spread("ADD", (1, 1, 12, 32)),
        "MUL of a sum": spread("MUL", (1, 1, 12, 32), rescaled_sum),
        "SUB of one value": of_all_rows("SUB"),
        "MUL of one value": of_all_rows("MUL", lambda b, x: table(b, x, 1)),
        "SUB of a sum": of_all_rows("SUB", lambda b, x: b.rescale(rescaled_sum(b, x), 1.0, dtype="INT8")),
        **{f"{name} of one that a convolution reads": beside_convolution(name) for name in ("MUL", "SUB")},
    },
    "vela.five-axes-of-slice": {
        **{name: slice_behind_ones(name) for name in ("RESCALE", "CLAMP", "NEGATE", "MUL", "ADD", "TABLE", "ABS")},
        "MUL, broadcast": slice_behind_ones("MUL", into=3),
        "CLAMP of six axes": slice_behind_ones("CLAMP", axes=6),
        "MUL of two, broadcast": spread_slices,
    },
    "vela.five-axes-of-slice-for-several": {
        "REVERSE and RESHAPE": several_of_slice_behind_ones(reverse_rows, lambda b, x: b.reshape(x, (160,))),
        "REVERSE and REDUCE_MAX": several_of_slice_behind_ones(reverse_rows, lambda b, x: b.emit("REDUCE_MAX", x, axis=2)),
    },
    "vela.argmax-of-slice": {"": lambda b: b.emit("ARGMAX", cut(b), axis=2)},
    "vela.operator-of-two-sums": {"": two_sums},
    "vela.bool-output-that-is-read": {"SELECT": read_condition, "REDUCE_ANY": reduced_condition},
    "vela.loop-in-operands": {"": loop},
    "vela.concat-of-five-axes": {f"along {axis}": concat_of_five_axes(axis) for axis in range(5)},
    "vela.slice-of-five-axes": {f"of {axes}": slice_of_five_axes(*axes) for axes in ((0,), (0, 2, 4))},
    "vela.pad-of-five-axes": {"": pad_of_five_axes},
    "vela.one-element-of-five-axes": {
        **{f"{name}, {dtype}": one_element(name, dtype) for name in ELEMENTWISE for dtype in ("INT8", "INT32")},
        "ARITHMETIC_RIGHT_SHIFT": one_element("ARITHMETIC_RIGHT_SHIFT", "INT32"),
    },
    "vela.table-between-transposes": {"": tables},
    "vela.dilated-convolution-of-short-map": {
        name: lambda b, name=name: dilated(b, name, rows=1, dilation=3, pad=4) for name in ("CONV2D", "DEPTHWISE_CONV2D")
    },
    "vela.transpose-of-dilated-convolution": {
        name: lambda b, name=name: b.emit("TRANSPOSE", dilated(b, name, rows=3, dilation=3, pad=2, stride=3), perms=(0, 3, 1, 2))
        for name in ("CONV2D", "DEPTHWISE_CONV2D")
    },
    "vela.dilated-convolution-along-long-axis": {
        name: over_long_axis(name, 65_537, taps=3, dilation=2) for name in ("CONV2D", "DEPTHWISE_CONV2D")
    },
    "vela.dilated-convolution-of-long-map": {f"rows by {step}": dilated_rows_of_long_columns(step) for step in (2, 3)},
    "vela.padded-stride-along-long-axis": {
        "CONV2D": over_long_axis("CONV2D", 131_073, taps=5, stride=2),
        "PAD and CONV2D": over_long_axis("CONV2D", 131_073, taps=5, stride=2, apart=True),
        "DEPTHWISE_CONV2D": over_long_axis("DEPTHWISE_CONV2D", 131_073, taps=5, stride=2),
    },
    "vela.equal-weights": {
        **{name: equal_weights(name) for name in ("CONV2D", "DEPTHWISE_CONV2D")},
        "INT16": equal_weights("CONV2D", "INT16"),
        "several": equal_weights("CONV2D", biases=(100, -200, 100, 4000, 900)),
    },
    "vela.transpose-of-constant": {"": transposed_constant},
    "vela.padded-stride-beside-long-axis": {"": strided_rows_of_long_columns},
    "vela.widened-in-pool-of-wide-stride": {
        dtype: widened_pool(dtype, reshaped) for dtype, reshaped in (("INT8", False), ("INT16", True))
    },
    "vela.wide-padding": {
        **{name: over_long_axis(name, 300, taps=257) for name in ("CONV2D", "DEPTHWISE_CONV2D")},
        "of a long axis": over_long_axis("CONV2D", 66_000, taps=257),
        "MAX_POOL2D": pooled_along(300, 257, 1),
    },
    "vela.gather-of-many-rows": {f"{rows}": gathered(rows) for rows in (65_536, 70_000)} | {"batches": gathered_in_batches(65_537)},
    "vela.scatter-of-many-rows": {f"{rows}": scattered(rows) for rows in (65_536, 70_000)}
    | {"batches": scattered_in_batches(65_537)},
    "vela.transpose-of-dropped-axis": {
        "the last one": transpose_of_dropped(2, 3, 1, 65_535, 1),
        "INT8": transpose_of_dropped(40, 2000, 3, 1, dtype="INT8"),
        "of ends": transpose_of_dropped(3, 300, 300, 1, perms=(2, 1, 0)),
        "INT32": transpose_of_dropped(2, 3, 1, 20_000, dtype="INT32"),
    },
    "vela.table-of-transpose": {"": table_of_transpose},
    "vela.axis-of-column": {
        **{name: along_column(name) for name in ("ARGMAX", "REDUCE_MAX", "REDUCE_MIN")},
        "of a REVERSE": along_reversed,
        **{f"{name} of a sum along rows": along_sum(name) for name in ("ARGMAX", "REDUCE_MAX")},
        "of a transposed sum along rows": along_sum("ARGMAX", transposed=True),
        "of truth values of a sum along rows": along_truths_of_sum,
    },
    "vela.transposed-convolution-of-long-result": {
        "": Avoided(long_result(transposed=True), instead=long_result(transposed=False))
    },
    "vela.narrowed-and-widened": {
        "MUL": narrowed_and_widened("MUL", "INT16"),
        "SUB": narrowed_and_widened("SUB", "INT16"),
        "MAXIMUM": narrowed_and_widened("MAXIMUM", "INT8"),
        "reshaped": narrowed_and_widened("MUL", "INT16", (3, 8)),
    },
    "vela.rescale-of-wrapped": {"": rescaled_wrapped},
    "vela.widened-in-producer": {
        **{name: widened(name, "INT8", "INT16", 300.0) for name in BY_ID["vela.widened-in-producer"].reads},
        "of INT16": widened("MAX_POOL2D", "INT16", "INT32", 3000.0),
        "to INT32": widened("SELECT", "INT8", "INT32", 3.0),
        "twice": widened_twice,
        "in a sum": widened_maximum,
    },
    "vela.clamp-of-shift": {
        "to the left": clamped_shift("LOGICAL_LEFT_SHIFT", "INT8", "INT8"),
        "to the right": clamped_shift("LOGICAL_RIGHT_SHIFT", "INT16", "INT16"),
        "widened": clamped_shift("LOGICAL_LEFT_SHIFT", "INT8", "INT16"),
    },
    "vela.sum-of-whole-scales": {"": Avoided(total(13), instead=total(14))},
    "vela.rescale-in-select": {"": Avoided(selected(added=False), instead=selected(added=True))},
    "vela.rescale-of-product-per-channel": {"": Avoided(product(per_channel=True), instead=product(per_channel=False))},
    "vela.unread-input": {"": Avoided(unread_input(read=False), instead=unread_input(read=True))},
    "vela.padded-pool-of-wide-stride": {"": Avoided(pooled(pad=2), instead=pooled(pad=0))},
    "vela.padded-pool-along-long-axis": {"": Avoided(pooled_along(65_537), instead=pooled_along(65_535))},
    "vela.long-sum": {"": Avoided(long_sum(folded=False), instead=long_sum(folded=True))},
    "vela.int32-slice-in-cascade": {"": int32_slice_in_cascade},
    "vela.undone-transpose-output": {"": undone_transpose},
    "vela.input-in-its-readers-shape": {"": reshaped_input},
}
#: Rows without a graph, and why.
UNSHOWN: Mapping[str, str] = {
    "vela.rescale-in-comparison": "the simulator scales operands of comparisons as Vela means it",
}
