"""Predicates that recognize the bugs in ``VELA_BUGS``."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.lower.rewrite.fold_pools import LARGEST_STRIDE
from ethorch.lower.rewrite.insert_copies import ELEMENTWISE
from ethorch.lower.rewrite.peephole import moves_before
from ethorch.lower.rewrite.rewriter import Rewriter
from ethorch.targets.tuning import BRICK
from ethorch.tosa.ir import Op, Value

#: Operators that Vela fuses with a RESCALE after them.
ACCUMULATING = ("CONV2D", "DEPTHWISE_CONV2D", "TRANSPOSE_CONV2D", "CONV3D", "MATMUL", "REDUCE_SUM")
_LOGICAL = (
    "EQUAL", "GREATER", "GREATER_EQUAL", "LOGICAL_AND", "LOGICAL_OR", "LOGICAL_XOR", "LOGICAL_NOT", "SELECT",
    "REDUCE_ANY", "REDUCE_ALL",
)  # fmt: skip
#: Operators with which Vela fuses the RESCALEs of both operands, with any scale.
_TAKING_BOTH = ("ADD", "SUB", "MAXIMUM", "MINIMUM")
#: Elementwise operators.
POINTWISE = (
    *ELEMENTWISE, "RESCALE", "CLAMP", "CAST", "ABS", "NEGATE", "CLZ", "SELECT", "EQUAL", "GREATER", "GREATER_EQUAL",
    "BITWISE_AND", "BITWISE_OR", "BITWISE_XOR", "BITWISE_NOT", "LOGICAL_AND", "LOGICAL_OR", "LOGICAL_XOR", "LOGICAL_NOT",
    "ARITHMETIC_RIGHT_SHIFT", "LOGICAL_LEFT_SHIFT", "LOGICAL_RIGHT_SHIFT",
)  # fmt: skip
#: Operators that Vela converts to binary elementwise operations.
TAKING_TWO = (
    *ELEMENTWISE, "SELECT", "EQUAL", "GREATER", "GREATER_EQUAL", "BITWISE_AND", "BITWISE_OR", "BITWISE_XOR", "LOGICAL_AND",
    "LOGICAL_OR", "LOGICAL_XOR", "ARITHMETIC_RIGHT_SHIFT", "LOGICAL_LEFT_SHIFT", "LOGICAL_RIGHT_SHIFT", "INTDIV",
)  # fmt: skip
#: Operators that Vela converts to elementwise operations.
BY_ELEMENT = (*TAKING_TWO, "ABS", "NEGATE", "CLZ", "CAST", "BITWISE_NOT", "LOGICAL_NOT")
#: Operators that Vela fuses with the elementwise operator before them.
FOLLOWING = ("RESCALE", "CLAMP", "TABLE")
#: NumPy dtypes of quantized values.
CODES: Mapping[str, type[np.signedinteger[Any]]] = {"INT8": np.int8, "INT16": np.int16}
#: Operand and result dtypes of CASTs that wrap.
_NARROWING = (("INT16", "INT8"), ("INT32", "INT8"), ("INT32", "INT16"))

#: Longest last axis of an INT32 copy, which Vela converts to INT16.
_WIDEST_INT32 = 32768
#: Longest axis of a convolution or pool that Vela does not split.
_LONGEST_AXIS = 65536
#: Largest padding at the top and left (npu-reference, IFM_PAD_TOP: 7 bits).
_WIDEST_PADDING = 127
#: Maximum number of rows of an indexed transfer (npu-reference 2.3, DMA0_SIZE0: 16 bits).
MOST_ROWS = 65535
#: Maximum number of axes that Vela does not split.
MOST_AXES = 4
#: Axes of rows and columns in the weights.
KERNEL_AXES = {"CONV2D": (1, 2), "DEPTHWISE_CONV2D": (0, 1)}


def reads(r: Rewriter, value: Value, *names: str) -> bool:
    """Return True if an operator in ``names`` computes ``value``, ignoring RESHAPEs in between."""
    while reshape := r.producer(value, "RESHAPE"):
        value = reshape.operands[0]
    return r.producer(value, *names) is not None


def is_placed(r: Rewriter, value: Value, *, reshaped: bool = False) -> bool:
    """Return True if a CONCAT or PAD reads ``value``, reshaped or not. If ``reshaped`` is True, ignore direct reads."""
    is_read = not reshaped and any(reader.name in ("CONCAT", "PAD") for reader in r.readers(value))
    return is_read or any(is_placed(r, reader.result) for reader in r.readers(value) if reader.name == "RESHAPE")


def any_of_them(r: Rewriter, op: Op) -> bool:
    return True


def is_wide(r: Rewriter, op: Op) -> bool:
    return op.result.rank > 4


def is_very_wide(r: Rewriter, op: Op) -> bool:
    return op.result.rank > 5


def is_dilated(r: Rewriter, op: Op) -> bool:
    """Return True if the convolution's dilation exceeds 2 along an axis. Vela splits such a convolution into several."""
    return any(dilation > 2 for dilation in op.attrs["dilation"])


def is_dilated_beyond_map(r: Rewriter, op: Op) -> bool:
    """Return True if the convolution is padded, and its dilation exceeds both 2 and the extent of the feature map."""
    extents = zip(op.operands[0].shape[1:3], KERNEL_AXES[op.name], op.attrs["dilation"], strict=True)
    return any(op.attrs["pad"]) and any(
        max(2, places) < dilation and op.operands[1].shape[axis] > 1 for places, axis, dilation in extents
    )


def has_weights_of_another(r: Rewriter, op: Op) -> bool:
    """Return True if an earlier convolution has the same constant weights and scales, but a different bias or weight zero point."""
    return op in r.analyze(_find_equal_weights)


def _find_equal_weights(r: Rewriter) -> set[Op]:
    candidates: dict[Any, list[Op]] = {}
    for op in r.select(*KERNEL_AXES):
        if op.operands[1].dtype in CODES and all(value.is_const for value in op.operands[1:3]):
            rescale = next((reader for reader in r.readers(op.result) if reader.name == "RESCALE"), None)
            scale = () if rescale is None else (rescale.attrs["multiplier"], rescale.attrs["shift"])
            candidates.setdefault((op.name, op.operands[1].shape, scale), []).append(op)
    duplicates, firsts = set[Op](), dict[Any, tuple[Any, npt.NDArray[Any]]]()
    for kind, ops in candidates.items():
        for op in ops if len(ops) > 1 else ():
            weight, bias = (np.ascontiguousarray(np.asarray(value.data)) for value in op.operands[1:3])
            zero = op.attrs["weight_zp"]
            first_zero, first_bias = firsts.setdefault((kind, hashlib.sha256(weight.tobytes()).digest()), (zero, bias))
            if zero != first_zero or not np.array_equal(bias, first_bias):
                duplicates.add(op)
    return duplicates


def is_dilated_along_long_axis(r: Rewriter, op: Op) -> bool:
    """Return True if the convolution's weights are constant, and its dilation is 2 along an axis longer than 65,536."""
    longest = [max(op.operands[0].shape[1 + axis], op.result.shape[1 + axis]) for axis in (0, 1)]
    return op.operands[1].is_const and any(longest[axis] > _LONGEST_AXIS and op.attrs["dilation"][axis] == 2 for axis in (0, 1))


def is_dilated_on_long_map(r: Rewriter, op: Op) -> bool:
    """Return True if a dilated convolution has constant weights and an input or output axis longer than 65,536."""
    longest = max(*op.operands[0].shape[1:3], *op.result.shape[1:3])
    return op.operands[1].is_const and longest > _LONGEST_AXIS and max(op.attrs["dilation"]) > 1


def is_padded_stride_along_long_axis(r: Rewriter, op: Op) -> bool:
    """Return True if ``op`` has a stride along an axis longer than 65,536, and pads the axis's end or follows a PAD."""
    padded = r.producer(op.operands[0], "PAD") is not None
    return any(
        op.operands[0].shape[1 + axis] > _LONGEST_AXIS
        and op.attrs["stride"][axis] > 1
        and (padded or op.attrs["pad"][2 * axis + 1])
        for axis in (0, 1)
    )


def is_padded_stride_beside_long_axis(r: Rewriter, op: Op) -> bool:
    """Return True if ``op`` has a stride and padding at the end along one axis, and the other axis is longer than 65,536."""
    extents, stride, pad = op.operands[0].shape[1:3], op.attrs["stride"], op.attrs["pad"]
    return any(extents[1 - axis] > _LONGEST_AXIS and stride[axis] > 1 and pad[2 * axis + 1] for axis in (0, 1))


def is_widely_padded(r: Rewriter, op: Op) -> bool:
    """Return True if the padding of ``op`` does not fit into the NPU's register. Padding is divided by a dilation above 2."""
    steps = [dilation if dilation > 2 else 1 for dilation in op.attrs.get("dilation", (1, 1)) for _ in range(2)]
    return any(-(-pad // step) > _WIDEST_PADDING for pad, step in zip(op.attrs["pad"], steps, strict=True))


def is_resized_to_batch(r: Rewriter, op: Op) -> bool:
    """Return True if a RESIZE enlarges by a factor above 2, and a CONCAT or PAD makes the result part of a batch."""
    numerator, denominator = op.attrs["scale"][:2]
    places = [reader for reader in r.readers(op.result) if reader.name in ("CONCAT", "PAD")]
    in_batch = [place.attrs["axis"] == 0 if place.name == "CONCAT" else any(place.attrs["padding"][:2]) for place in places]
    return numerator > 2 * denominator and any(in_batch)


def is_of_constant(r: Rewriter, op: Op) -> bool:
    return op.operands[0].is_const and not r.is_output(op.result)


def drops_unit_axes_of_long_transpose(r: Rewriter, op: Op) -> bool:
    """Return True if Vela refuses a TRANSPOSE of three axes because Vela also transposes axes of extent 1 that a RESHAPE removed.

    Vela refuses INT32 if a moved axis is longer than 16,384. Vela refuses all dtypes if the RESHAPE removed the last axis, and the
    product of the extents of a moved axis and the unmoved axis exceeds 65,536.
    """
    # Determined by experiments.
    value, perms = op.operands[0], op.attrs["perms"]
    source = _without_leading_ones(root(r, value).shape)
    if perms not in ((0, 2, 1), (2, 1, 0)) or 1 in value.shape or tuple(n for n in source if n != 1) != value.shape:
        return False
    (kept,) = (axis for axis in range(3) if perms[axis] == axis)
    longest = max(extent for axis, extent in enumerate(value.shape) if axis != kept)
    if source != value.shape and value.dtype == "INT32" and longest > _LONGEST_AXIS // 4:
        return True
    return source[-1] == 1 and longest * value.shape[kept] > _LONGEST_AXIS


def is_padded_batch(r: Rewriter, op: Op) -> bool:
    return any(op.attrs["pad"]) and op.operands[0].shape[0] > 1


def is_summed_along_channels(r: Rewriter, op: Op) -> bool:
    """Return True if ``op`` is a REDUCE_SUM along the last axis, or a RESCALE that such a REDUCE_SUM reads."""
    sums = r.readers(op.result) if op.name == "RESCALE" else (op,)
    return any(reader.name == "REDUCE_SUM" and reader.attrs["axis"] == reader.result.rank - 1 for reader in sums)


def is_of_codes(r: Rewriter, op: Op) -> bool:
    return op.operands[0].dtype in ("INT8", "INT16")


def is_lone(r: Rewriter, op: Op) -> bool:
    """Return True if ``op`` is a RESCALE from or to INT32 that Vela does not fuse."""
    if "INT32" not in (op.operands[0].dtype, op.result.dtype):
        return False
    if op.result.dtype == "INT32":
        readers = r.readers(op.result)
        return len(readers) != 1 or not takes_scales(r, readers[0])
    before = r.producer(op.operands[0])
    return before is None or not (before.name in ACCUMULATING or takes_scales(r, before))


def is_lone_in_slices(r: Rewriter, op: Op) -> bool:
    """Return True if a SLICE reads the unfused RESCALE ``op``, and the SLICE or the RESCALE has several readers."""
    return is_lone(r, op) and _is_cut(r, op.result, shared=False)


def _is_cut(r: Rewriter, value: Value, *, shared: bool) -> bool:
    shared |= r.uses(value) > 1
    for reader in r.readers(value):
        if reader.name == "SLICE" and (shared or r.uses(reader.result) > 1):
            return True
        if reader.name in ("RESHAPE", "IDENTITY") and _is_cut(r, reader.result, shared=shared):
            return True
    return False


def is_rescaled_back(r: Rewriter, op: Op) -> bool:
    """Return True if a RESCALE by 1 to INT32 follows a RESCALE by 1 from INT32, and the values in between can saturate."""
    value = op.operands[0]
    while reshape := r.producer(value, "RESHAPE", sole=True):
        value = reshape.operands[0]
    before = r.producer(value, "RESCALE", sole=True)
    if before is None or r.uses(op.result) != 1 or not is_lone(r, op) or value.dtype not in ("INT8", "INT16"):
        return False
    is_inverse = {before.operands[0].dtype, op.result.dtype} == {"INT32"} and _is_by_one(before) and _is_by_one(op)
    return is_inverse and _find_bound(r, before.operands[0]) > np.iinfo(CODES[value.dtype]).max


def _find_bound(r: Rewriter, value: Value) -> float:
    if value.is_const:
        return float(np.abs(value.data.astype(np.float64)).max(initial=0.0)) if value.data is not None else np.inf
    op = r.producer(value)
    if op is None:
        return np.inf
    if op.name in ("RESHAPE", "TRANSPOSE"):
        return _find_bound(r, op.operands[0])
    if op.name == "MUL":
        return _find_bound(r, op.operands[0]) * _find_bound(r, op.operands[1])
    if op.name in ("ADD", "SUB"):
        return _find_bound(r, op.operands[0]) + _find_bound(r, op.operands[1])
    if op.name == "RESCALE" and op.operands[0].dtype in CODES and not op.attrs["output_zp"]:
        scale = max(multiplier / 2.0**shift for multiplier, shift in zip(op.attrs["multiplier"], op.attrs["shift"], strict=True))
        furthest = abs(int(np.iinfo(CODES[op.operands[0].dtype]).min)) + abs(int(op.attrs["input_zp"]))
        return furthest * float(scale) + 1
    return np.inf


def _is_by_one(op: Op) -> bool:
    attrs = op.attrs
    scales = {multiplier / 2.0**shift for multiplier, shift in zip(attrs["multiplier"], attrs["shift"], strict=True)}
    return scales == {1.0} and not attrs["input_zp"] and not attrs["output_zp"]


def _largest_scale(op: Op) -> float:
    return max(float(multiplier / 2.0**shift) for multiplier, shift in zip(op.attrs["multiplier"], op.attrs["shift"], strict=True))


def is_widened(r: Rewriter, op: Op) -> bool:
    """Return True if ``op`` is a RESCALE to a wider dtype whose results Vela may clamp to the narrower dtype.

    Pairs of RESCALEs that Vela fuses with a sum, minimum or maximum are excluded.
    """
    value, attrs = op.operands[0], op.attrs
    if op.result.dtype == value.dtype or not is_of_codes(r, op) or attrs["input_zp"] or not _is_only_read(r, value):
        return False
    readers = r.readers(op.result)
    if r.uses(op.result) == len(readers) == 1 and readers[0].name in _TAKING_BOTH and takes_rescales(r, readers[0]):
        return False
    return _largest_scale(op) > 1 or any(reader.name in ("RESCALE", "RESHAPE") for reader in readers)


def is_widened_pool_of_wide_stride(r: Rewriter, op: Op) -> bool:
    """Return True if a RESCALE to INT32 is the only reader of a pool with a stride above 3, ignoring RESHAPEs in between."""
    source = root(r, op.operands[0])
    pool = r.producer(source, "AVG_POOL2D", "MAX_POOL2D")
    wide = pool is not None and max(pool.attrs["stride"]) > LARGEST_STRIDE
    return wide and op.result.dtype == "INT32" and _is_only_read(r, op.operands[0])


def _is_only_read(r: Rewriter, value: Value) -> bool:
    while reshape := r.producer(value, "RESHAPE"):
        if r.uses(value) > 1:
            return False
        value = reshape.operands[0]
    return r.uses(value) == 1


def is_of_wrapped(r: Rewriter, op: Op) -> bool:
    """Return True if the operand is a CAST to fewer bits, ignoring RESHAPEs in between."""
    value = op.operands[0]
    while reshape := r.producer(value, "RESHAPE"):
        value = reshape.operands[0]
    cast = r.producer(value, "CAST")
    return cast is not None and (cast.operands[0].dtype, cast.result.dtype) in _NARROWING


def is_of_shifted(r: Rewriter, op: Op) -> bool:
    """Return True if the operand is a logical shift, ignoring RESHAPEs and RESCALEs by 1 in between."""
    value = op.operands[0]
    while (before := r.producer(value, "RESHAPE", "RESCALE")) and (before.name == "RESHAPE" or _is_by_one(before)):
        value = before.operands[0]
    return r.producer(value, "LOGICAL_LEFT_SHIFT", "LOGICAL_RIGHT_SHIFT") is not None


def takes_rescales(r: Rewriter, op: Op) -> bool:
    """Return True if Vela can fuse RESCALEs to INT32 with ``op``.

    If ``op`` is elementwise, all RESCALEs must read INT8, or all must read INT16.
    """
    wide = [r.producer(value, "RESCALE") for value in op.operands]
    dtypes = {before.operands[0].dtype if before else "" for before in wide}
    return op.name == "REDUCE_SUM" or (op.name in ELEMENTWISE and dtypes in ({"INT8"}, {"INT16"}))


def takes_scales(r: Rewriter, op: Op) -> bool:
    """Return True if Vela fuses RESCALEs to INT32 with ``op`` on U55 and U65.

    Vela fuses RESCALEs by 1. If ``op`` is an ADD or SUB before a RESCALE to INT8 or INT16, Vela also fuses RESCALEs by equal
    integers below 2**15. It fuses RESCALEs by unequal scales if the larger is 2**19 (INT8 inputs) or 2**14 (INT16 inputs).
    """
    # Determined by experiments.
    if not takes_rescales(r, op):
        return False
    rescales = [rescale for value in op.operands if (rescale := r.producer(value, "RESCALE"))]
    scales = sorted(_largest_scale(rescale) for rescale in rescales)
    if set(scales) <= {1.0}:
        return True
    reader = _sole_reader(r, op.result)
    if op.name not in ("ADD", "SUB") or reader is None or reader.name != "RESCALE" or reader.result.dtype not in CODES:
        return False
    if scales[0] == scales[1]:
        return scales[0].is_integer() and scales[0] < 2**15
    return scales[1] == 2.0 ** (19 if rescales[0].operands[0].dtype == "INT8" else 14)


def _sole_reader(r: Rewriter, value: Value) -> Op | None:
    while r.uses(value) == len(readers := r.readers(value)) == 1:
        if readers[0].name != "RESHAPE":
            return readers[0]
        value = readers[0].result
    return None


def is_wide_int32(r: Rewriter, op: Op) -> bool:
    """Return True if ``op`` moves INT32 values, and the last axis of an operand or the result is longer than 32,768."""
    return op.result.dtype == "INT32" and max((v.shape or (1,))[-1] for v in (*op.operands, op.result)) > _WIDEST_INT32


def is_wide_int32_input(r: Rewriter, op: Op) -> bool:
    """Return True if the operand is an INT32 graph input with a last axis longer than 32,768."""
    value = op.operands[0]
    return value.dtype == "INT32" and value in r.graph.inputs and value.shape[-1:] > (_WIDEST_INT32,)


def is_wide_int32_read_in_shapes(r: Rewriter, op: Op) -> bool:
    """Return True if a shared INT32 value that ``op`` reshapes is read with a last axis longer than 32,768."""
    value = op.operands[0]
    if value.dtype != "INT32" or r.uses(value) < 2:
        return False
    shapes = [value.shape, *(reader.result.shape for reader in r.readers(value) if reader.name == "RESHAPE")]
    return max((shape or (1,))[-1] for shape in shapes) > _WIDEST_INT32


def is_square_of_reshaped(r: Rewriter, op: Op) -> bool:
    first, second = (skip_rescale(r, value) for value in op.operands)
    return first is second and r.producer(second, "RESHAPE") is not None


def is_rescale_in_one_shape_of_several(r: Rewriter, op: Op) -> bool:
    """Return True if a RESHAPE with several readers reads a RESCALE that Vela does not fuse with the operator before it."""
    rescale = r.producer(op.operands[0], "RESCALE")
    if rescale is None:
        return False
    before = r.producer(rescale.operands[0])
    if before is not None and (before.name in ACCUMULATING or takes_scales(r, before)):
        return False
    readers = list(_read_through_slices(r, op.result))
    if op.result.dtype == "INT32":
        return len(readers) > 1
    readers = [last for reader in readers for last in ([reader] if reader.name != "RESCALE" else r.readers(reader.result))]
    if any(reader.name in ELEMENTWISE and readers.count(reader) > 1 for reader in readers):
        return True
    return len(readers) > 1 and all(reader.name in BY_ELEMENT for reader in readers)


def _read_through_slices(r: Rewriter, value: Value) -> Iterator[Op]:
    for reader in r.readers(value):
        if reader.name != "SLICE":
            yield reader
            continue
        yield from _read_through_slices(r, reader.result)
        if r.is_output(reader.result):
            yield reader


def is_of_reshaped_slice(r: Rewriter, op: Op) -> bool:
    """Return True if the operand is a SLICE whose last axis is reshaped, and the old or new extent is not a multiple of 16."""
    reshape = r.producer(op.operands[0], "RESHAPE")
    if reshape is None or r.producer(reshape.operands[0], "SLICE") is None:
        return False
    channels = [value.shape[-1] if value.rank else 1 for value in (reshape.operands[0], reshape.result)]
    return channels[0] != channels[1] and any(count % BRICK for count in channels)


def is_of_slice_with_leading_ones(r: Rewriter, op: Op) -> bool:
    """Return True if an operand is a SLICE reshaped to more than four axes, and an axis before the last three has extent 1."""
    is_part = op.name == "RESCALE" and not r.is_output(op.result) and all(o.name in BY_ELEMENT for o in r.readers(op.result))
    return not is_part and bool(slices_with_leading_ones(r, op))


def slices_with_leading_ones(r: Rewriter, op: Op) -> list[int]:
    values = [skip_rescale(r, value) if op.name in BY_ELEMENT else value for value in op.operands]
    return [index for index, value in enumerate(values) if _has_leading_ones(r, value)]


def _has_leading_ones(r: Rewriter, value: Value) -> bool:
    shape = value.shape
    return len(shape) > MOST_AXES and 1 in shape[:-3] and math.prod(shape) > shape[-1] and reads(r, value, "SLICE")


def is_of_slice_with_leading_ones_for_several(r: Rewriter, op: Op) -> bool:
    """Return True if ``op`` reshapes a SLICE as in ``is_of_slice_with_leading_ones``, and has several readers."""
    return r.uses(op.result) > 1 and _has_leading_ones(r, op.result)


def is_spread_in_other_shape(r: Rewriter, op: Op) -> bool:
    """Return True if both operands are broadcast, and Vela does not store the first in the shape that ``op`` reads."""
    spread = all(value.shape != op.result.shape for value in op.operands[:2])
    return spread and not has_one_shape(r, op.operands[0])


def has_one_shape(r: Rewriter, value: Value) -> bool:
    """Return True if Vela stores ``value``, and the operand of a RESCALE that computes ``value``, in the shape of ``value``."""
    source = root(r, value)
    rescale = r.producer(source, "RESCALE")
    read = value if rescale is None else rescale.operands[0]
    sources = [source, root(r, read)]
    if root(r, read) is not read and r.producer(root(r, read), "SLICE") is not None:
        return False
    return all(_find_shapes(r, each) == {_without_leading_ones(value.shape)} for each in sources)


def _find_shapes(r: Rewriter, value: Value) -> set[tuple[int, ...]]:
    shapes = {_without_leading_ones(shape) for shape in _shapes_after(r, value)}
    return shapes or {_without_leading_ones(value.shape)}


def _shapes_after(r: Rewriter, value: Value) -> Iterator[tuple[int, ...]]:
    for reader in r.readers(value):
        if reader.name == "RESHAPE" and not _is_moved_after_transpose(r, reader):
            yield reader.result.shape
            yield from _shapes_after(r, reader.result)


def _is_moved_after_transpose(r: Rewriter, reshape: Op) -> bool:
    before, after = ([n for n in value.shape if n != 1] for value in (reshape.operands[0], reshape.result))
    readers = r.readers(reshape.result)
    return before == after and r.uses(reshape.result) == len(readers) == 1 and readers[0].name == "TRANSPOSE"


def _without_leading_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    first = next((axis for axis, extent in enumerate(shape) if extent != 1), len(shape))
    return shape[first:]


def root(r: Rewriter, value: Value) -> Value:
    """Return the value from which RESHAPEs compute ``value``, or ``value`` itself."""
    while reshape := r.producer(value, "RESHAPE"):
        value = reshape.operands[0]
    return value


def is_of_broadcast_slice_of_as_many(r: Rewriter, op: Op) -> bool:
    """Return True if an operand is a SLICE or rescaled SLICE whose source has as many elements as the result of ``op``."""
    return bool(slices_of_as_many(r, op))


def slices_of_as_many(r: Rewriter, op: Op) -> list[int]:
    slices = [r.producer(root(r, skip_rescale(r, root(r, value))), "SLICE") for value in op.operands]
    count = math.prod(op.result.shape)
    return [index for index, cut in enumerate(slices) if cut is not None and math.prod(cut.operands[0].shape) == count]


def is_of_two_sums(r: Rewriter, op: Op) -> bool:
    return len(op.operands) > 1 and all(_is_of_sum(r, value) for value in op.operands[:2])


def _is_of_sum(r: Rewriter, value: Value) -> bool:
    while before := r.producer(value, *FOLLOWING, "RESHAPE"):
        value = before.operands[0]
    return r.producer(value, "REDUCE_SUM") is not None


def is_of_transposed_slice(r: Rewriter, op: Op) -> bool:
    return find_transposed_slice(r, op) is not None


def find_transposed_slice(r: Rewriter, op: Op) -> Op | None:
    """Return the shared SLICE whose TRANSPOSE Vela undoes for the MATMUL or REDUCE_SUM ``op``, or None."""
    value = op.operands[-1]
    rescale = r.producer(value, "RESCALE") if op.name == "REDUCE_SUM" else None
    transposed = root(r, value if rescale is None else rescale.operands[0])
    transpose = r.producer(transposed, "TRANSPOSE")
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
    """Return True if the INT8 TABLE ``op`` is the only reader of a TRANSPOSE, ignoring RESHAPEs in between."""
    return op.operands[0].dtype == "INT8" and any(move.name == "TRANSPOSE" for move in moves_before(r, op))


def is_of_dilated_convolution(r: Rewriter, op: Op) -> bool:
    """Return True if the operand is a convolution with a dilation above 2, ignoring fused operators in between."""
    before = r.producer(op.operands[0])
    while before is not None and before.name in (*FOLLOWING, "RESHAPE"):
        before = r.producer(before.operands[0])
    return before is not None and before.name in KERNEL_AXES and "dilation" in before.attrs and is_dilated(r, before)


def is_along_last_axis_of_column(r: Rewriter, op: Op) -> bool:
    """Return True if ``op`` runs along the last axis of a sum over rows, of a REVERSE, or of a tensor reshaped from [..., 1]."""
    value, axis = op.operands[0], op.attrs["axis"]
    if axis != value.rank - 1 or value.rank == 0:
        return False
    if _is_sum_along_rows(r, value) and value.shape[-1] > 1:
        return True
    extent, source = value.shape[-1], root(r, value)
    reverse = r.producer(source, "REVERSE")
    is_column = source.shape[-2:] == (extent, 1)
    return extent > 1 and (is_column or (reverse is not None and reverse.attrs["axis"] == source.rank - 1))


def _is_sum_along_rows(r: Rewriter, value: Value) -> bool:
    left, seen = [value], set[Value]()
    while left:
        value = left.pop()
        sums = r.producer(value, "REDUCE_SUM")
        if sums is not None and sums.attrs["axis"] == value.rank - 2:
            return True
        step = r.producer(value, "RESHAPE", "TRANSPOSE", "TABLE", *POINTWISE)
        if step is not None and value not in seen:
            seen.add(value)
            left += step.operands
    return False


def skip_rescale(r: Rewriter, value: Value) -> Value:
    rescale = r.producer(value, "RESCALE")
    return rescale.operands[0] if rescale else value


def is_read_bool_output(r: Rewriter, value: Value) -> bool:
    """Return True if ``value`` is a BOOL output, and operators read it or a tensor from which RESHAPEs compute it."""
    if value.dtype != "BOOL" or not r.is_output(value) or not any(True for _ in r.select(*_LOGICAL)):
        return False
    shared = bool(r.readers(value))
    while reshape := r.producer(value, "RESHAPE"):
        value = reshape.operands[0]
        shared |= r.uses(value) > 1
    return shared


def is_of_many_rows(r: Rewriter, op: Op) -> bool:
    """Return True if a GATHER or SCATTER has more rows or batches than one transfer supports."""
    return max(op.operands[1].shape) > MOST_ROWS
