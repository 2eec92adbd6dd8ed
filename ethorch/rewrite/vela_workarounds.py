"""What is done instead of what Vela gets wrong, and what it takes to recognize that: the vocabulary of ``vela_bugs``.

Nothing here changes a bit of what a graph computes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ethorch.rewrite.fold_pools import LARGEST_STRIDE
from ethorch.rewrite.insert_copies import ELEMENTWISE, copied
from ethorch.rewrite.peephole import moves_before
from ethorch.rewrite.rewriter import Place, Rewriter
from ethorch.tosa.ir import Op, Value

#: What makes the INT32 of which Vela makes the RESCALE behind it a part.
_ACCUMULATING = ("CONV2D", "DEPTHWISE_CONV2D", "TRANSPOSE_CONV2D", "CONV3D", "MATMUL", "REDUCE_SUM")
#: Operators that read or make truth values.
_LOGICAL = (
    "EQUAL", "GREATER", "GREATER_EQUAL", "LOGICAL_AND", "LOGICAL_OR", "LOGICAL_XOR", "LOGICAL_NOT", "SELECT",
    "REDUCE_ANY", "REDUCE_ALL",
)  # fmt: skip
#: What takes the RESCALEs of both operands, by whatever they multiply.
_TAKING_BOTH = ("ADD", "SUB", "MAXIMUM", "MINIMUM")
#: What computes each element of a result of one element of each operand.
POINTWISE = (
    *ELEMENTWISE, "RESCALE", "CLAMP", "CAST", "ABS", "NEGATE", "CLZ", "SELECT", "EQUAL", "GREATER", "GREATER_EQUAL",
    "BITWISE_AND", "BITWISE_OR", "BITWISE_XOR", "BITWISE_NOT", "LOGICAL_AND", "LOGICAL_OR", "LOGICAL_XOR", "LOGICAL_NOT",
    "ARITHMETIC_RIGHT_SHIFT", "LOGICAL_LEFT_SHIFT", "LOGICAL_RIGHT_SHIFT",
)  # fmt: skip
#: What Vela makes an elementwise operation of two operands, or several, of.
TAKING_TWO = (
    *ELEMENTWISE, "SELECT", "EQUAL", "GREATER", "GREATER_EQUAL", "BITWISE_AND", "BITWISE_OR", "BITWISE_XOR", "LOGICAL_AND",
    "LOGICAL_OR", "LOGICAL_XOR", "ARITHMETIC_RIGHT_SHIFT", "LOGICAL_LEFT_SHIFT", "LOGICAL_RIGHT_SHIFT", "INTDIV",
)  # fmt: skip
#: What Vela makes an elementwise operation of.
_BY_ELEMENT = (*TAKING_TWO, "ABS", "NEGATE", "CLZ", "CAST", "BITWISE_NOT", "LOGICAL_NOT")
#: What follows an elementwise operator as a part of the same operation.
_FOLLOWING = ("RESCALE", "CLAMP", "TABLE")
#: NumPy's dtypes of codes.
_CODES: Mapping[str, type[np.signedinteger[Any]]] = {"INT8": np.int8, "INT16": np.int16}
#: CASTs that keep low bits.
_NARROWING = (("INT16", "INT8"), ("INT32", "INT8"), ("INT32", "INT16"))

#: Places of the last axis up to which a copy of INT32, which Vela makes as twice as many of INT16, fits into 65,536.
_WIDEST_INT32 = 32768
#: Places of an axis up to which Vela makes one operation of a window over it.
_LONGEST_AXIS = 65536
#: Padding at the upper and left edge of a map: its register has 7 bits (npu-reference, IFM_PAD_TOP).
_WIDEST_PADDING = 127
#: Rows that one transfer reads or writes by index: its register has 16 bits (npu-reference 2.3, DMA0_SIZE0).
_MOST_ROWS = 65535
#: Axes of an operator that Vela takes as they are.
_MOST_AXES = 4
#: Channels of NHCWB16 that lie side by side.
_BRICK = 16
#: Rows and columns of a kernel, as axes of its weights.
_KERNEL_AXES = {"CONV2D": (1, 2), "DEPTHWISE_CONV2D": (0, 1)}

# --- what is recognized -----------------------------------------------------------------------------------------------


def reads(r: Rewriter, value: Value, *names: str) -> bool:
    """Does one of the operators ``names`` make ``value``, seen through RESHAPEs?"""
    while reshape := r.producer(value, "RESHAPE"):
        value = reshape.operands[0]
    return r.producer(value, *names) is not None


def is_placed(r: Rewriter, value: Value, *, reshaped: bool = False) -> bool:
    """Does a CONCAT or PAD place ``value`` in its result, seen through RESHAPEs?

    Args:
        reshaped: one RESHAPE at least must be between.
    """
    placed = not reshaped and any(reader.name in ("CONCAT", "PAD") for reader in r.readers(value))
    return placed or any(is_placed(r, reader.result) for reader in r.readers(value) if reader.name == "RESHAPE")


def any_of_them(r: Rewriter, op: Op) -> bool:
    """Every operator of the row's names."""
    return True


def is_wide(r: Rewriter, op: Op) -> bool:
    """More than four axes."""
    return op.result.rank > 4


def is_very_wide(r: Rewriter, op: Op) -> bool:
    """More than five axes."""
    return op.result.rank > 5


def is_dilated(r: Rewriter, op: Op) -> bool:
    """A dilation of more than 2, of which Vela makes several convolutions."""
    return any(dilation > 2 for dilation in op.attrs["dilation"])


def is_dilated_beyond_map(r: Rewriter, op: Op) -> bool:
    """Has padding, and along an axis of the kernel a dilation of more than 2 and than the map has places."""
    extents = zip(op.operands[0].shape[1:3], _KERNEL_AXES[op.name], op.attrs["dilation"], strict=True)
    return any(op.attrs["pad"]) and any(
        max(2, places) < dilation and op.operands[1].shape[axis] > 1 for places, axis, dilation in extents
    )


def is_dilated_along_long_axis(r: Rewriter, op: Op) -> bool:
    """A constant kernel with a dilation of 2 along an axis of which Vela makes several: of more than 65,536 places."""
    longest = [max(op.operands[0].shape[1 + axis], op.result.shape[1 + axis]) for axis in (0, 1)]
    return op.operands[1].is_const and any(longest[axis] > _LONGEST_AXIS and op.attrs["dilation"][axis] == 2 for axis in (0, 1))


def is_dilated_on_long_map(r: Rewriter, op: Op) -> bool:
    """A constant kernel with a dilation, on a map of more than 65,536 rows or columns."""
    longest = max(*op.operands[0].shape[1:3], *op.result.shape[1:3])
    return op.operands[1].is_const and longest > _LONGEST_AXIS and max(op.attrs["dilation"]) > 1


def is_padded_stride_along_long_axis(r: Rewriter, op: Op) -> bool:
    """It has a stride, and padding behind the map or a PAD before it, along an axis of more than 65,536 places."""
    padded = r.producer(op.operands[0], "PAD") is not None
    return any(
        op.operands[0].shape[1 + axis] > _LONGEST_AXIS
        and op.attrs["stride"][axis] > 1
        and (padded or op.attrs["pad"][2 * axis + 1])
        for axis in (0, 1)
    )


def is_padded_stride_beside_long_axis(r: Rewriter, op: Op) -> bool:
    """It has a stride and padding along one axis, and more than 65,536 places along the other."""
    extents, stride, pad = op.operands[0].shape[1:3], op.attrs["stride"], op.attrs["pad"]
    return any(extents[1 - axis] > _LONGEST_AXIS and stride[axis] > 1 and pad[2 * axis + 1] for axis in (0, 1))


def is_widely_padded(r: Rewriter, op: Op) -> bool:
    """It has more padding at an edge than the NPU's register counts. Of a dilation above 2 Vela makes maps with as much less."""
    steps = [dilation if dilation > 2 else 1 for dilation in op.attrs.get("dilation", (1, 1)) for _ in range(2)]
    return any(-(-pad // step) > _WIDEST_PADDING for pad, step in zip(op.attrs["pad"], steps, strict=True))


def is_resized_to_batch(r: Rewriter, op: Op) -> bool:
    """Enlarges a map by more than 2, and a CONCAT or PAD along the first axis of four reads it."""
    numerator, denominator = op.attrs["scale"][:2]
    places = [reader for reader in r.readers(op.result) if reader.name in ("CONCAT", "PAD")]
    in_batch = [place.attrs["axis"] == 0 if place.name == "CONCAT" else any(place.attrs["padding"][:2]) for place in places]
    return numerator > 2 * denominator and any(in_batch)


def is_of_constant(r: Rewriter, op: Op) -> bool:
    """Its operand is a constant, and its result no output."""
    return op.operands[0].is_const and not r.is_output(op.result)


def is_multiplied(r: Rewriter, op: Op) -> bool:
    """A depthwise convolution with several outputs for each channel."""
    return op.operands[1].shape[3] > 1


def is_rescaled_multiplied(r: Rewriter, op: Op) -> bool:
    """A RESCALE of what ``is_multiplied``."""
    depthwise = r.producer(op.operands[0], "DEPTHWISE_CONV2D")
    return depthwise is not None and is_multiplied(r, depthwise)


def is_padded_batch(r: Rewriter, op: Op) -> bool:
    """A window with padding over several pictures."""
    return any(op.attrs["pad"]) and op.operands[0].shape[0] > 1


def is_summed_along_channels(r: Rewriter, op: Op) -> bool:
    """A REDUCE_SUM along the last axis, or the RESCALE that it reads."""
    sums = r.readers(op.result) if op.name == "RESCALE" else (op,)
    return any(reader.name == "REDUCE_SUM" and reader.attrs["axis"] == reader.result.rank - 1 for reader in sums)


def is_of_codes(r: Rewriter, op: Op) -> bool:
    """Reads INT8 or INT16."""
    return op.operands[0].dtype in ("INT8", "INT16")


def is_lone(r: Rewriter, op: Op) -> bool:
    """A RESCALE from or to INT32 that is part of no other operator."""
    if "INT32" not in (op.operands[0].dtype, op.result.dtype):
        return False
    if op.result.dtype == "INT32":
        readers = r.readers(op.result)
        return len(readers) != 1 or not takes_scales(r, readers[0])
    before = r.producer(op.operands[0])
    return before is None or not (before.name in _ACCUMULATING or takes_scales(r, before))


def is_lone_in_slices(r: Rewriter, op: Op) -> bool:
    """A lone RESCALE whose result a SLICE reads, and something else does, too, or the SLICE's result has several readers."""
    return is_lone(r, op) and _is_cut(r, op.result, shared=False)


def _is_cut(r: Rewriter, value: Value, *, shared: bool) -> bool:
    """Does a SLICE read ``value``, seen through RESHAPEs, where ``shared`` or values on the way there are read several times?"""
    shared |= r.uses(value) > 1
    for reader in r.readers(value):
        if reader.name == "SLICE" and (shared or r.uses(reader.result) > 1):
            return True
        if reader.name in ("RESHAPE", "IDENTITY") and _is_cut(r, reader.result, shared=shared):
            return True
    return False


def is_rescaled_back(r: Rewriter, op: Op) -> bool:
    """A RESCALE by 1 to INT32 with one reader that it is no part of, behind one by 1 from INT32 with one reader; perhaps RESHAPEs
    between. Of numbers that may saturate: of others Vela may drop both."""
    value = op.operands[0]
    while reshape := r.producer(value, "RESHAPE", sole=True):
        value = reshape.operands[0]
    before = r.producer(value, "RESCALE", sole=True)
    if before is None or r.uses(op.result) != 1 or not is_lone(r, op) or value.dtype not in ("INT8", "INT16"):
        return False
    back = {before.operands[0].dtype, op.result.dtype} == {"INT32"} and _is_by_one(before) and _is_by_one(op)
    return back and _bound(r, before.operands[0]) > np.iinfo(_CODES[value.dtype]).max


def _bound(r: Rewriter, value: Value) -> float:
    """What no number of ``value`` exceeds, as far as codes, constants, products and sums tell."""
    if value.is_const:
        return float(np.abs(value.data.astype(np.float64)).max(initial=0.0)) if value.data is not None else np.inf
    op = r.producer(value)
    if op is None:
        return np.inf
    if op.name in ("RESHAPE", "TRANSPOSE"):
        return _bound(r, op.operands[0])
    if op.name == "MUL":
        return _bound(r, op.operands[0]) * _bound(r, op.operands[1])
    if op.name in ("ADD", "SUB"):
        return _bound(r, op.operands[0]) + _bound(r, op.operands[1])
    if op.name == "RESCALE" and op.operands[0].dtype in _CODES and not op.attrs["output_zp"]:
        scale = max(multiplier / 2.0**shift for multiplier, shift in zip(op.attrs["multiplier"], op.attrs["shift"], strict=True))
        furthest = abs(int(np.iinfo(_CODES[op.operands[0].dtype]).min)) + abs(int(op.attrs["input_zp"]))
        return furthest * float(scale) + 1
    return np.inf


def _is_by_one(op: Op) -> bool:
    """Does a RESCALE change nothing but the dtype?"""
    attrs = op.attrs
    scales = {multiplier / 2.0**shift for multiplier, shift in zip(attrs["multiplier"], attrs["shift"], strict=True)}
    return scales == {1.0} and not attrs["input_zp"] and not attrs["output_zp"]


def _largest_scale(op: Op) -> float:
    """By what a RESCALE multiplies at most."""
    return max(float(multiplier / 2.0**shift) for multiplier, shift in zip(op.attrs["multiplier"], op.attrs["shift"], strict=True))


def is_widened(r: Rewriter, op: Op) -> bool:
    """A RESCALE without zero point of codes that nothing else reads, to a wider dtype, whose results may be outside the narrow one:
    it multiplies, or another RESCALE reads it. One of both operands of a sum or of an extreme is part of that instead.
    """
    value, attrs = op.operands[0], op.attrs
    if op.result.dtype == value.dtype or not is_of_codes(r, op) or attrs["input_zp"] or not _is_only_read(r, value):
        return False
    readers = r.readers(op.result)
    if r.uses(op.result) == len(readers) == 1 and readers[0].name in _TAKING_BOTH and takes_rescales(r, readers[0]):
        return False
    return _largest_scale(op) > 1 or any(reader.name in ("RESCALE", "RESHAPE") for reader in readers)


def is_widened_pool_of_wide_stride(r: Rewriter, op: Op) -> bool:
    """A RESCALE to INT32 of a pool with a stride above 3, perhaps behind RESHAPEs, that nothing else reads."""
    source = _root(r, op.operands[0])
    pool = r.producer(source, "AVG_POOL2D", "MAX_POOL2D")
    wide = pool is not None and max(pool.attrs["stride"]) > LARGEST_STRIDE
    return wide and op.result.dtype == "INT32" and _is_only_read(r, op.operands[0])


def _is_only_read(r: Rewriter, value: Value) -> bool:
    """Is ``value`` read once, and so is what the RESHAPEs before it read?"""
    while reshape := r.producer(value, "RESHAPE"):
        if r.uses(value) > 1:
            return False
        value = reshape.operands[0]
    return r.uses(value) == 1


def is_of_wrapped(r: Rewriter, op: Op) -> bool:
    """Reads a CAST to fewer bits, perhaps behind RESHAPEs."""
    value = op.operands[0]
    while reshape := r.producer(value, "RESHAPE"):
        value = reshape.operands[0]
    cast = r.producer(value, "CAST")
    return cast is not None and (cast.operands[0].dtype, cast.result.dtype) in _NARROWING


def is_of_shifted(r: Rewriter, op: Op) -> bool:
    """Reads a logical shift, perhaps behind RESHAPEs and a RESCALE by 1."""
    value = op.operands[0]
    while (before := r.producer(value, "RESHAPE", "RESCALE")) and (before.name == "RESHAPE" or _is_by_one(before)):
        value = before.operands[0]
    return r.producer(value, "LOGICAL_LEFT_SHIFT", "LOGICAL_RIGHT_SHIFT") is not None


def takes_rescales(r: Rewriter, op: Op) -> bool:
    """Does Vela make the RESCALEs to INT32 that ``op`` reads part of it? An elementwise one's, if both are from INT8 or INT16."""
    wide = [r.producer(value, "RESCALE") for value in op.operands]
    dtypes = {before.operands[0].dtype if before else "" for before in wide}
    return op.name == "REDUCE_SUM" or (op.name in ELEMENTWISE and dtypes in ({"INT8"}, {"INT16"}))


def takes_scales(r: Rewriter, op: Op) -> bool:
    """Do RESCALEs that ``takes_rescales`` are part of ``op`` on U55 and U65, too, by what they multiply?

    By 1 they are. Of a sum of two or a difference that one RESCALE to INT8 or INT16 reads they are, too, where both are one whole
    number of 15 bits, or the larger one is the shift that the NPU does by itself: 2**19 of INT8, 2**14 of INT16. Found by trying.
    """
    if not takes_rescales(r, op):
        return False
    rescales = [rescale for value in op.operands if (rescale := r.producer(value, "RESCALE"))]
    scales = sorted(_largest_scale(rescale) for rescale in rescales)
    if set(scales) <= {1.0}:
        return True
    reader = _sole_reader(r, op.result)
    if op.name not in ("ADD", "SUB") or reader is None or reader.name != "RESCALE" or reader.result.dtype not in _CODES:
        return False
    if scales[0] == scales[1]:
        return scales[0].is_integer() and scales[0] < 2**15
    return scales[1] == 2.0 ** (19 if rescales[0].operands[0].dtype == "INT8" else 14)


def _sole_reader(r: Rewriter, value: Value) -> Op | None:
    """The one operator that reads ``value``, seen through RESHAPEs that nothing else reads; None of several, or of an output."""
    while r.uses(value) == len(readers := r.readers(value)) == 1:
        if readers[0].name != "RESHAPE":
            return readers[0]
        value = readers[0].result
    return None


def is_wide_int32(r: Rewriter, op: Op) -> bool:
    """Moves INT32 whose last axis, before or behind, has more than 32,768 places."""
    return op.result.dtype == "INT32" and max((v.shape or (1,))[-1] for v in (*op.operands, op.result)) > _WIDEST_INT32


def is_wide_int32_input(r: Rewriter, op: Op) -> bool:
    """Reads an input of the graph that is INT32 and whose last axis has more than 32,768 places."""
    value = op.operands[0]
    return value.dtype == "INT32" and value in r.graph.inputs and value.shape[-1:] > (_WIDEST_INT32,)


def is_wide_int32_read_in_shapes(r: Rewriter, op: Op) -> bool:
    """A RESHAPE of INT32 that others read, too, where one of the shapes has more than 32,768 places along its last axis."""
    value = op.operands[0]
    if value.dtype != "INT32" or r.uses(value) < 2:
        return False
    shapes = [value.shape, *(reader.result.shape for reader in r.readers(value) if reader.name == "RESHAPE")]
    return max((shape or (1,))[-1] for shape in shapes) > _WIDEST_INT32


def is_square_of_reshaped(r: Rewriter, op: Op) -> bool:
    """Both operands are one RESHAPE, or RESCALEs of one."""
    first, second = (_unscaled(r, value) for value in op.operands)
    return first is second and r.producer(second, "RESHAPE") is not None


def is_rescale_in_one_shape_of_several(r: Rewriter, op: Op) -> bool:
    """A RESHAPE of a RESCALE that is no end of another operator and that is read several times, perhaps in SLICEs.

    Of INT8 and INT16 both readers are operands of one elementwise operator, or SLICEs are read by elementwise operators alone,
    perhaps behind RESCALEs.
    """
    rescale = r.producer(op.operands[0], "RESCALE")
    if rescale is None:
        return False
    before = r.producer(rescale.operands[0])
    if before is not None and (before.name in _ACCUMULATING or takes_scales(r, before)):
        return False
    readers = list(_beyond_slices(r, op.result))
    if op.result.dtype == "INT32":
        return len(readers) > 1
    readers = [other for reader in readers for other in ([reader] if reader.name != "RESCALE" else r.readers(reader.result))]
    if any(reader.name in ELEMENTWISE and readers.count(reader) > 1 for reader in readers):
        return True
    return len(readers) > 1 and all(reader.name in _BY_ELEMENT for reader in readers)


def _beyond_slices(r: Rewriter, value: Value) -> Iterator[Op]:
    """What reads ``value`` or a SLICE of it, as often as it does; SLICEs that are outputs, too."""
    for reader in r.readers(value):
        if reader.name != "SLICE":
            yield reader
            continue
        yield from _beyond_slices(r, reader.result)
        if r.is_output(reader.result):
            yield reader


def is_of_reshaped_slice(r: Rewriter, op: Op) -> bool:
    """Reads a RESHAPE of a SLICE, to another last axis, of which one does not fill bricks of 16 channels."""
    reshape = r.producer(op.operands[0], "RESHAPE")
    if reshape is None or r.producer(reshape.operands[0], "SLICE") is None:
        return False
    channels = [value.shape[-1] if value.rank else 1 for value in (reshape.operands[0], reshape.result)]
    return channels[0] != channels[1] and any(count % _BRICK for count in channels)


def is_of_slice_behind_ones(r: Rewriter, op: Op) -> bool:
    """An operand, perhaps rescaled, is a SLICE reshaped to [1, 1, n, h, c], or with more ones before it. A RESCALE that elementwise
    operators alone read is part of them."""
    is_part = op.name == "RESCALE" and not r.is_output(op.result) and all(o.name in _BY_ELEMENT for o in r.readers(op.result))
    return not is_part and bool(_slices_behind_ones(r, op))


def _slices_behind_ones(r: Rewriter, op: Op) -> list[int]:
    """Which operands are such SLICEs."""
    values = [_unscaled(r, value) if op.name in _BY_ELEMENT else value for value in op.operands]
    return [index for index, value in enumerate(values) if _is_slice_behind_ones(r, value)]


def _is_slice_behind_ones(r: Rewriter, value: Value) -> bool:
    shape = value.shape
    return len(shape) > _MOST_AXES and 1 in shape[:-3] and math.prod(shape) > shape[-1] and reads(r, value, "SLICE")


def is_of_slice_behind_ones_for_several(r: Rewriter, op: Op) -> bool:
    """Reshapes a SLICE to [1, 1, n, h, c], or with more ones before it, for several readers."""
    return r.uses(op.result) > 1 and _is_slice_behind_ones(r, op.result)


def is_spread_in_other_shape(r: Rewriter, op: Op) -> bool:
    """Both operands are broadcast, and Vela stores the first in another shape than the operator reads."""
    spread = all(value.shape != op.result.shape for value in op.operands[:2])
    return spread and not _has_one_shape(r, op.operands[0])


def _has_one_shape(r: Rewriter, value: Value) -> bool:
    """Return True if Vela stores ``value``, and what its RESCALE reads, in the shape of ``value``: no SLICE in another one."""
    source = _root(r, value)
    rescale = r.producer(source, "RESCALE")
    read = value if rescale is None else rescale.operands[0]
    sources = [source, _root(r, read)]
    if _root(r, read) is not read and r.producer(_root(r, read), "SLICE") is not None:
        return False
    return all(_stored_shapes(r, each) == {_without_leading_ones(value.shape)} for each in sources)


def _stored_shapes(r: Rewriter, value: Value) -> set[tuple[int, ...]]:
    """Return the shapes in which Vela may store ``value``: those that RESHAPEs give it, or else its own.

    Of a value that RESHAPEs read Vela keeps one tensor, in the shape of the last RESHAPE.
    """
    shapes = {_without_leading_ones(shape) for shape in _shapes_behind(r, value)}
    return shapes or {_without_leading_ones(value.shape)}


def _shapes_behind(r: Rewriter, value: Value) -> Iterator[tuple[int, ...]]:
    for reader in r.readers(value):
        if reader.name == "RESHAPE" and not _moves_behind_transpose(r, reader):
            yield reader.result.shape
            yield from _shapes_behind(r, reader.result)


def _moves_behind_transpose(r: Rewriter, reshape: Op) -> bool:
    """Return True if Vela moves a RESHAPE that only adds or removes axes of extent 1 behind the TRANSPOSE that alone reads it."""
    before, after = ([n for n in value.shape if n != 1] for value in (reshape.operands[0], reshape.result))
    readers = r.readers(reshape.result)
    return before == after and r.uses(reshape.result) == len(readers) == 1 and readers[0].name == "TRANSPOSE"


def _without_leading_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    first = next((axis for axis, extent in enumerate(shape) if extent != 1), len(shape))
    return shape[first:]


def _root(r: Rewriter, value: Value) -> Value:
    """Return what ``value`` is before all RESHAPEs."""
    while reshape := r.producer(value, "RESHAPE"):
        value = reshape.operands[0]
    return value


def is_of_broadcast_slice_of_as_many(r: Rewriter, op: Op) -> bool:
    """An operand, perhaps rescaled, is a SLICE of a whole that has as many elements as the result."""
    return bool(_slices_of_as_many(r, op))


def _slices_of_as_many(r: Rewriter, op: Op) -> list[int]:
    """Return the operands that are SLICEs of a whole with as many elements as the result."""
    slices = [r.producer(_root(r, _unscaled(r, _root(r, value))), "SLICE") for value in op.operands]
    count = math.prod(op.result.shape)
    return [index for index, cut in enumerate(slices) if cut is not None and math.prod(cut.operands[0].shape) == count]


def is_of_two_sums(r: Rewriter, op: Op) -> bool:
    """Both operands are REDUCE_SUMs, perhaps rescaled, clamped, looked up and reshaped."""
    return len(op.operands) > 1 and all(_is_of_sum(r, value) for value in op.operands[:2])


def _is_of_sum(r: Rewriter, value: Value) -> bool:
    while before := r.producer(value, *_FOLLOWING, "RESHAPE"):
        value = before.operands[0]
    return r.producer(value, "REDUCE_SUM") is not None


def is_of_turned_slice(r: Rewriter, op: Op) -> bool:
    """Reads a TRANSPOSE of a SLICE that others read, too, and Vela's own TRANSPOSE of the operand undoes that one."""
    return _turned_slice(r, op) is not None


def _turned_slice(r: Rewriter, op: Op) -> Op | None:
    """Return the SLICE of which a MATMUL's second operand, or the operand of a REDUCE_SUM, is the TRANSPOSE that Vela undoes."""
    value = op.operands[-1]
    rescale = r.producer(value, "RESCALE") if op.name == "REDUCE_SUM" else None
    turned = _root(r, value if rescale is None else rescale.operands[0])
    transpose = r.producer(turned, "TRANSPOSE")
    if transpose is None:
        return None
    axes = [axis for axis in transpose.attrs["perms"] if transpose.operands[0].shape[axis] != 1]
    if len(axes) < 2 or sorted(axes) != [*axes[:-2], axes[-1], axes[-2]] or op.attrs.get("axis", 1) != op.operands[0].rank - 2:
        return None
    value, shared = transpose.operands[0], False
    while True:
        shared |= r.uses(value) > 1
        if (reshape := r.producer(value, "RESHAPE")) is None:
            break
        value = reshape.operands[0]
    return r.producer(value, "SLICE") if shared else None


def is_of_transposed(r: Rewriter, op: Op) -> bool:
    """Reads a TRANSPOSE of INT8, perhaps behind RESHAPEs, that nothing else reads."""
    return op.operands[0].dtype == "INT8" and any(move.name == "TRANSPOSE" for move in moves_before(r, op))


def is_of_dilated_convolution(r: Rewriter, op: Op) -> bool:
    """Reads a convolution of a dilation above 2, perhaps behind what is part of the same operation."""
    before = r.producer(op.operands[0])
    while before is not None and before.name in (*_FOLLOWING, "RESHAPE"):
        before = r.producer(before.operands[0])
    return before is not None and before.name in _KERNEL_AXES and "dilation" in before.attrs and is_dilated(r, before)


def is_of_multiplied_depthwise(r: Rewriter, op: Op) -> bool:
    """Reads INT8 that is a RESCALE of a depthwise convolution with several outputs for each channel."""
    rescale = r.producer(op.operands[0], "RESCALE")
    return op.operands[0].dtype == "INT8" and rescale is not None and is_rescaled_multiplied(r, rescale)


def is_along_last_axis_of_column(r: Rewriter, op: Op) -> bool:
    """Its axis is the last one, and what makes its operand has the axis before a last one of extent 1, or is a sum along rows.

    Vela has a REDUCE_SUM along the last axis but one write such a column.
    """
    value, axis = op.operands[0], op.attrs["axis"]
    if axis != value.rank - 1 or value.rank == 0:
        return False
    if _is_sum_along_rows(r, value) and value.shape[-1] > 1:
        return True
    extent, source = value.shape[-1], _root(r, value)
    reverse = r.producer(source, "REVERSE")
    is_column = source.shape[-2:] == (extent, 1)
    return extent > 1 and (is_column or (reverse is not None and reverse.attrs["axis"] == source.rank - 1))


def _is_sum_along_rows(r: Rewriter, value: Value) -> bool:
    while step := r.producer(value, "RESHAPE", "TRANSPOSE", *_FOLLOWING):
        value = step.operands[0]
    sums = r.producer(value, "REDUCE_SUM")
    return sums is not None and sums.attrs["axis"] == value.rank - 2


def _unscaled(r: Rewriter, value: Value) -> Value:
    rescale = r.producer(value, "RESCALE")
    return rescale.operands[0] if rescale else value


def is_read_bool_output(r: Rewriter, value: Value) -> bool:
    """Is ``value`` a BOOL output, and read: by an operator, or before the RESHAPEs that lead to it?"""
    if value.dtype != "BOOL" or not r.is_output(value) or not any(True for _ in r.named(*_LOGICAL)):
        return False
    shared = bool(r.readers(value))
    while reshape := r.producer(value, "RESHAPE"):
        value = reshape.operands[0]
        shared |= r.uses(value) > 1
    return shared


# --- what is done -----------------------------------------------------------------------------------------------------


def copy_operand(r: Rewriter, op: Op) -> None:
    """The operator reads a copy of its operand."""
    r.insert_before(op, 0, copied)


def copy_result(r: Rewriter, op: Op) -> None:
    """The readers of the result read a copy of it."""
    r.insert_after(op, copied)


def clamp_operand(r: Rewriter, op: Op) -> None:
    """The operator reads its operand through a CLAMP to all of its dtype, which Vela makes a part of what is before it."""
    info = np.iinfo(_CODES[op.operands[0].dtype])
    r.insert_before(op, 0, lambda at, value: at.emit("CLAMP", value, min_val=int(info.min), max_val=int(info.max)))


def copy_instead(r: Rewriter, op: Op) -> None:
    """A copy that Vela leaves where it is takes its place."""
    r.replace(op, copied(r.before(op), op.operands[0]))


def fill_kernel(r: Rewriter, op: Op) -> None:
    """Weights of 0 between the others take the place of the dilation: they read nothing, and Vela cuts the map right."""
    weight = op.operands[1]
    assert weight.data is not None
    shape, every = list(weight.shape), [slice(None)] * weight.rank
    for along, step in zip(_KERNEL_AXES[op.name], op.attrs["dilation"], strict=True):
        shape[along], every[along] = step * (shape[along] - 1) + 1, slice(None, None, step)
    filled = np.full(shape, op.attrs["weight_zp"], weight.data.dtype)
    filled[tuple(every)] = weight.data
    at = r.before(op)
    r.replace(op, at.again(op, op.operands[0], at.constant(filled, weight.dtype), dilation=(1, 1)))


def rescale_behind(r: Rewriter, op: Op) -> None:
    """The RESHAPE comes before the RESCALEs; where others read one of them, too, or its scales are many, it reads a copy."""
    value, rescales = op.operands[0], list[Op]()
    while rescale := r.producer(value, "RESCALE"):
        if r.uses(value) > 1 or rescale.attrs["per_channel"]:
            return copy_operand(r, op)
        rescales.append(rescale)
        value = rescale.operands[0]
    at = r.before(op)
    value = at.reshape(value, *op.result.shape)
    for rescale in reversed(rescales):
        value = at.again(rescale, value)
    r.replace(op, value)


def pad_before(r: Rewriter, op: Op) -> None:
    """The operator reads a copy of the map with its padding."""
    at, value, pad = r.before(op), op.operands[0], op.attrs["pad"]
    if any(pad):
        const = int(np.iinfo(_CODES[value.dtype]).min) if op.name == "MAX_POOL2D" else op.attrs["input_zp"]
        value = at.emit("PAD", value, padding=(0, 0, *pad, 0, 0), pad_const=const)
    r.replace(op, at.again(op, copied(at, value), pad=(0, 0, 0, 0)))


def transpose_now(r: Rewriter, op: Op) -> None:
    """The constant is transposed at compile time."""
    (value,) = op.operands
    assert value.data is not None
    r.bypass(op, r.before(op).constant(np.ascontiguousarray(value.data.transpose(op.attrs["perms"])), value.dtype))


def move_along_an_axis_more(r: Rewriter, op: Op) -> None:
    """It moves tensors with a last axis of extent 1 more. Moves of one tensor read one RESHAPE: Vela mixes up several.

    A PAD does so axis by axis.
    """
    if op.name == "PAD":
        return _pad_axis_by_axis(r, op)
    at, attrs = r.before(op), dict(op.attrs)
    operands = [_earlier_reshape(r, op, value) or at.reshape(value, *value.shape, 1) for value in op.operands]
    for name, more in (("start", (0,)), ("size", (1,)), ("padding", (0, 0)), ("multiples", (1,))):
        if name in attrs:
            attrs[name] = (*attrs[name], *more)
    moved = at.emit(op.name, *operands, **attrs)
    r.replace(op, at.reshape(moved, *op.result.shape))


def _pad_axis_by_axis(r: Rewriter, op: Op) -> None:
    """Each axis as the middle one of three, with those behind it joined to it, and the last of extent 1."""
    at, value, padding = r.before(op), op.operands[0], op.attrs["padding"]
    shape, const = list(value.shape), op.attrs["pad_const"]
    for axis in reversed(range(value.rank)):
        before, behind = padding[2 * axis : 2 * axis + 2]
        if before == behind == 0:
            continue
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        value = at.reshape(value, outer, shape[axis] * inner, 1)
        value = at.emit("PAD", value, padding=(0, 0, before * inner, behind * inner, 0, 0), pad_const=const)
        shape[axis] += before + behind
    r.replace(op, at.reshape(value, *shape))


def _earlier_reshape(r: Rewriter, op: Op, value: Value) -> Value | None:
    """``value`` with a last axis of extent 1 more, where an operator before ``op`` makes it."""
    for other in r:
        if other is op:
            return None
        if other.name == "RESHAPE" and other.operands[0] is value and other.result.shape == (*value.shape, 1):
            return other.result
    return None


def copy_reshaped_operands(r: Rewriter, op: Op) -> None:
    """The operator reads a copy of each operand that others read in another shape: RESHAPEs of one value share its memory."""
    for index, value in enumerate(op.operands):
        if not value.is_const and (_is_read_in_other_shapes(r, value) or _is_rescaled_and_reshaped(r, value)):
            r.insert_before(op, index, copied)


def _is_rescaled_and_reshaped(r: Rewriter, value: Value) -> bool:
    """Return True if ``value`` is read several times and made by RESHAPEs and by RESCALEs that are not part of another operator."""
    names, uses = set(), r.uses(value)
    while op := r.producer(value, "RESHAPE", "RESCALE"):
        before = r.producer(op.operands[0])
        if op.name == "RESCALE" and before is not None and (before.name in _ACCUMULATING or takes_scales(r, before)):
            break
        names.add(op.name)
        value = op.operands[0]
    return uses > 1 and len(names) == 2


def _is_read_in_other_shapes(r: Rewriter, value: Value) -> bool:
    """Does a RESHAPE read ``value``, or, where a RESHAPE makes it, something else what that one reads?"""
    if any(reader.name == "RESHAPE" for reader in r.readers(value)):
        return True
    while reshape := r.producer(value, "RESHAPE"):
        value = reshape.operands[0]
        if r.uses(value) > 1:
            return True
    return False


def copy_shared_operands(r: Rewriter, op: Op) -> None:
    """The loop gets a copy of each operand that is read elsewhere, too; the input of a region may be, behind it."""
    for index, value in enumerate(op.operands):
        if not value.is_const and (r.uses(value) > 1 or (r.is_region and value in r.graph.inputs)):
            r.insert_before(op, index, copied)


def copy_read_outputs(r: Rewriter, op: Op) -> None:
    """A BOOL output that is read is a copy of what is read."""
    for index, output in enumerate(op.results):
        if is_read_bool_output(r, output):
            readers = r.readers(output)
            r.insert_after(op, lambda at, value: at.emit("LOGICAL_AND", value, value), index)
            for reader in readers:
                r.read(reader, reader.operands.index(output), op.results[index])


def give_first_operand_one_shape(r: Rewriter, op: Op) -> None:
    """The operands are exchanged if the second has one shape and the operator allows it; else the first is stored for itself.

    What is stored for itself is a RESHAPE of what the RESCALE before it reads, copied if others read that.
    """
    first, second = op.operands[:2]
    if op.name != "SUB" and _has_one_shape(r, second):
        r.read(op, 0, second)
        r.read(op, 1, first)
        return
    at, rescale = r.before(op), r.producer(_root(r, first), "RESCALE")
    if rescale is None or rescale.attrs["per_channel"]:
        r.read(op, 0, copied(at, first))
        return
    source = rescale.operands[0]
    if r.uses(rescale.result) > 1 or r.uses(source) > 1 or r.producer(source, "RESHAPE") is not None or source in r.graph.inputs:
        source = copied(at, source)
    r.read(op, 0, at.again(rescale, at.reshape(source, *first.shape)))


def copy_slices_of_as_many(r: Rewriter, op: Op) -> None:
    """The operator, or the RESCALE of its operand, reads a copy of each SLICE of a whole with as many elements as the result."""
    for index in _slices_of_as_many(r, op):
        rescale = r.producer(_root(r, op.operands[index]), "RESCALE")
        r.insert_before(rescale or op, 0 if rescale else index, copied)


def copy_first_operand(r: Rewriter, op: Op) -> None:
    """The operator, or the RESCALE of its first operand, reads a copy."""
    rescale = r.producer(_root(r, op.operands[0]), "RESCALE")
    r.insert_before(rescale or op, 0, copied)


def copy_turned_slice(r: Rewriter, op: Op) -> None:
    """All readers of the SLICE read a copy of it."""
    cut = _turned_slice(r, op)
    assert cut is not None
    r.insert_after(cut, copied)


def is_of_many_rows(r: Rewriter, op: Op) -> bool:
    """Return True for a GATHER or SCATTER of more rows, or more batches of them, than a transfer counts."""
    return max(op.operands[1].shape) > _MOST_ROWS


def gather_in_parts(r: Rewriter, op: Op) -> None:
    """Split the GATHER into parts that one transfer can count, and join them with CONCATs."""
    at, (values, indices) = r.before(op), op.operands
    results = []
    for batch, first in _parts(at, indices, 0):
        own = _batches(at, values, first, batch.shape[0])
        parts = [at.again(op, own, part) for part, _ in _parts(at, batch, 1)]
        results.append(parts[0] if len(parts) == 1 else at.emit("CONCAT", *parts, axis=1))
    r.replace(op, results[0] if len(results) == 1 else at.emit("CONCAT", *results, axis=0))


def scatter_in_parts(r: Rewriter, op: Op) -> None:
    """Split the SCATTER into parts that one transfer can count: each writes into the previous result, or other batches."""
    at, (values, indices, rows) = r.before(op), op.operands
    results = []
    for batch, first in _parts(at, indices, 0):
        result, own = _batches(at, values, first, batch.shape[0]), _batches(at, rows, first, batch.shape[0])
        for part, row in _parts(at, batch, 1):
            size = (own.shape[0], part.shape[1], own.shape[2])
            result = at.again(op, result, part, own if size == own.shape else at.emit("SLICE", own, start=(0, row, 0), size=size))
        results.append(result)
    r.replace(op, results[0] if len(results) == 1 else at.emit("CONCAT", *results, axis=0))


def _batches(at: Place, value: Value, first: int, count: int) -> Value:
    if value.shape[0] == count:
        return value
    if value.data is not None:
        return at.constant(np.ascontiguousarray(value.data[first : first + count]), value.dtype)
    return at.emit("SLICE", value, start=(first, 0, 0), size=(count, *value.shape[1:]))


def _parts(at: Place, indices: Value, axis: int) -> Iterator[tuple[Value, int]]:
    """Yield equal parts of the indices along an axis, and where each begins."""
    count = indices.shape[axis]
    most = -(-count // -(-count // _MOST_ROWS))
    for first in range(0, count, most):
        size, start = list(indices.shape), [0, 0]
        size[axis], start[axis] = min(most, count - first), first
        if size[axis] == count:
            yield indices, 0
        elif indices.data is not None:
            chosen = indices.data.take(range(first, first + size[axis]), axis)
            yield at.constant(np.ascontiguousarray(chosen), indices.dtype), first
        else:
            yield at.emit("SLICE", indices, start=tuple(start), size=tuple(size)), first


def run_along_middle_axis(r: Rewriter, op: Op) -> None:
    """The operator runs along the middle one of three axes, as Vela has the NPU do it."""
    value, at = op.operands[0], r.before(op)
    column = at.reshape(value, math.prod(value.shape[:-1]), value.shape[-1], 1)
    r.replace(op, at.reshape(at.again(op, column, axis=1), *op.result.shape))


def run_in_four_axes(r: Rewriter, op: Op) -> None:
    """It and what is one operation with it run in four axes; where it broadcasts along the others, the SLICE is copied."""
    result, at = op.result, r.before(op)
    drop = result.rank - _MOST_AXES
    scaled = op.name in _BY_ELEMENT
    if math.prod(result.shape[:drop]) > 1:
        for index in _slices_behind_ones(r, op):
            rescale = r.producer(op.operands[index], "RESCALE") if scaled else None
            r.insert_before(rescale or op, 0 if rescale else index, copied)
        return
    values = op.operands[:1] if op.name == "TABLE" else op.operands
    made = at.again(op, *(_without_ones(r, at, value, drop, scaled) for value in values))
    while r.uses(op.result) == 1 and (readers := r.readers(op.result)) and readers[0].name in _FOLLOWING:
        (op,), at = readers, r.before(readers[0])
        made = at.again(op, made)
    r.replace(op, at.reshape(made, *result.shape))


def _without_ones(r: Rewriter, at: Place, value: Value, drop: int, scaled: bool) -> Value:
    """``value`` without its first ``drop`` axes, in front of its RESCALE where that is part of the operator."""
    if value.data is not None:
        return at.constant(value.data.reshape(value.shape[drop:]), value.dtype)
    rescale = r.producer(value, "RESCALE") if scaled else None
    if rescale is not None:
        return at.again(rescale, _without_ones(r, at, rescale.operands[0], drop, False))
    return at.reshape(_root(r, value), *value.shape[drop:])


def reshape_result(r: Rewriter, op: Op) -> None:
    """It reads what the RESHAPE of its operand reads, and its result is reshaped."""
    reshape = r.producer(op.operands[0], "RESHAPE")
    assert reshape is not None
    at = r.before(op)
    r.replace(op, at.reshape(at.again(op, reshape.operands[0]), *op.result.shape))


def reshape_twice(r: Rewriter, op: Op) -> None:
    """Each operand gets a RESHAPE of its own."""
    value = op.operands[1]
    rescale = r.producer(value, "RESCALE")
    reshape = r.producer(_unscaled(r, value), "RESHAPE")
    assert reshape is not None
    at = r.before(op)
    again = at.again(reshape)
    r.read(op, 1, at.again(rescale, again) if rescale else again)
