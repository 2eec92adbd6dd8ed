"""Rewrites of the operators that match ``VELA_BUGS``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from ethorch.lower.rewrite.insert_copies import copy_value
from ethorch.lower.rewrite.rewriter import Place, Rewriter
from ethorch.lower.rewrite.vela_patterns import (
    ACCUMULATING,
    BY_ELEMENT,
    CODES,
    FOLLOWING,
    KERNEL_AXES,
    MOST_AXES,
    MOST_ROWS,
    find_transposed_slice,
    has_one_shape,
    has_weights_of_another,
    is_read_bool_output,
    root,
    skip_rescale,
    slices_of_as_many,
    slices_with_leading_ones,
    takes_scales,
)
from ethorch.tosa.ir import Op, Value


def copy_operand(r: Rewriter, op: Op) -> None:
    """Copy the first operand of the operator."""
    r.insert_before(op, 0, copy_value)


def copy_result(r: Rewriter, op: Op) -> None:
    """Insert a copy of the result before its readers."""
    r.insert_after(op, copy_value)


def clamp_operand(r: Rewriter, op: Op) -> None:
    """Clamp the operand to its full range, with a CLAMP that Vela fuses with the operand's producer."""
    bounds = np.iinfo(CODES[op.operands[0].dtype])
    r.insert_before(op, 0, lambda at, value: at.emit("CLAMP", value, min_val=int(bounds.min), max_val=int(bounds.max)))


def copy_instead(r: Rewriter, op: Op) -> None:
    """Replace the operator with a copy that Vela does not remove."""
    r.replace(op, copy_value(r.before(op), op.operands[0]))


def fill_kernel(r: Rewriter, op: Op) -> None:
    """Replace the convolution's dilation with zero weights between the original weights."""
    weight = op.operands[1]
    assert weight.data is not None
    shape, every = list(weight.shape), [slice(None)] * weight.rank
    for along, step in zip(KERNEL_AXES[op.name], op.attrs["dilation"], strict=True):
        shape[along], every[along] = step * (shape[along] - 1) + 1, slice(None, None, step)
    filled = np.full(shape, op.attrs["weight_zp"], weight.data.dtype)
    filled[tuple(every)] = weight.data
    at = r.before(op)
    r.replace(op, at.again(op, op.operands[0], at.constant(filled, weight.dtype), dilation=(1, 1)))


def change_weights(r: Rewriter, op: Op) -> None:
    """Change the weights' zero point, so that no other convolution stores equal weights.

    If no zero point suffices, widen the kernel with columns of zeros.
    """
    axes, weight = KERNEL_AXES[op.name], op.operands[1]
    info, data = np.iinfo(CODES[weight.dtype]), np.asarray(weight.data).astype(np.int64) - op.attrs["weight_zp"]
    for columns in itertools.count():
        padded_weights = np.pad(data, [(0, columns if axis == axes[1] else 0) for axis in range(weight.rank)])
        top, bottom, left, right = op.attrs["pad"]
        pad = (top, bottom, left, right + columns * op.attrs["dilation"][1])
        lowest, highest = max(info.min - int(padded_weights.min()), info.min), min(info.max - int(padded_weights.max()), info.max)
        for zero in sorted(range(lowest, highest + 1), key=abs):
            at = r.before(op)
            value = at.constant((padded_weights + zero).astype(CODES[weight.dtype]), weight.dtype)
            r.replace(op, at.again(op, op.operands[0], value, weight_zp=zero, pad=pad))
            replacement = r.producer(op.result)
            assert replacement is not None
            op = replacement
            if not has_weights_of_another(r, op):
                return


def rescale_after(r: Rewriter, op: Op) -> None:
    """Move the RESHAPE before the RESCALEs that compute its operand if possible, or else copy the operand."""
    value, rescales = op.operands[0], list[Op]()
    while rescale := r.producer(value, "RESCALE"):
        if r.uses(value) > 1 or not _may_be_reshaped(rescale):
            return copy_operand(r, op)
        rescales.append(rescale)
        value = rescale.operands[0]
    at = r.before(op)
    value = at.reshape(value, *op.result.shape)
    for rescale in reversed(rescales):
        value = at.again(rescale, value)
    r.replace(op, value)


def _may_be_reshaped(rescale: Op) -> bool:
    return not rescale.attrs["per_channel"] and rescale.operands[0].dtype != "INT48"


def pad_before(r: Rewriter, op: Op) -> None:
    """Replace the operator's padding with a PAD and a copy."""
    at, value, pad = r.before(op), op.operands[0], op.attrs["pad"]
    if any(pad):
        const = int(np.iinfo(CODES[value.dtype]).min) if op.name == "MAX_POOL2D" else op.attrs["input_zp"]
        value = at.emit("PAD", value, padding=(0, 0, *pad, 0, 0), pad_const=const)
    r.replace(op, at.again(op, copy_value(at, value), pad=(0, 0, 0, 0)))


def transpose_now(r: Rewriter, op: Op) -> None:
    """Replace the TRANSPOSE of a constant with a transposed constant."""
    (value,) = op.operands
    assert value.data is not None
    r.bypass(op, r.before(op).constant(np.ascontiguousarray(value.data.transpose(op.attrs["perms"])), value.dtype))


def move_with_last_axis(r: Rewriter, op: Op) -> None:
    """Add a last axis of extent 1 to the operands.

    Operators that move the same tensor share a RESHAPE, because Vela confuses several RESHAPEs of one tensor.
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
    at, value, padding = r.before(op), op.operands[0], op.attrs["padding"]
    shape, const = list(value.shape), op.attrs["pad_const"]
    for axis in reversed(range(value.rank)):
        before, after = padding[2 * axis : 2 * axis + 2]
        if before == after == 0:
            continue
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        value = at.reshape(value, outer, shape[axis] * inner, 1)
        value = at.emit("PAD", value, padding=(0, 0, before * inner, after * inner, 0, 0), pad_const=const)
        shape[axis] += before + after
    r.replace(op, at.reshape(value, *shape))


def _earlier_reshape(r: Rewriter, op: Op, value: Value) -> Value | None:
    for candidate in r:
        if candidate is op:
            return None
        if candidate.name == "RESHAPE" and candidate.operands[0] is value and candidate.result.shape == (*value.shape, 1):
            return candidate.result
    return None


def copy_reshaped_operands(r: Rewriter, op: Op) -> None:
    """Copy each operand also read in another shape, because a tensor and its RESHAPEs share memory."""
    for index, value in enumerate(op.operands):
        if not value.is_const and (_is_read_in_other_shapes(r, value) or _is_rescaled_and_reshaped(r, value)):
            r.insert_before(op, index, copy_value)


def _is_rescaled_and_reshaped(r: Rewriter, value: Value) -> bool:
    names, uses = set(), r.uses(value)
    while op := r.producer(value, "RESHAPE", "RESCALE"):
        before = r.producer(op.operands[0])
        if op.name == "RESCALE" and before is not None and (before.name in ACCUMULATING or takes_scales(r, before)):
            break
        names.add(op.name)
        value = op.operands[0]
    return uses > 1 and len(names) == 2


def _is_read_in_other_shapes(r: Rewriter, value: Value) -> bool:
    if any(reader.name == "RESHAPE" for reader in r.readers(value)):
        return True
    while reshape := r.producer(value, "RESHAPE"):
        value = reshape.operands[0]
        if r.uses(value) > 1:
            return True
    return False


def copy_shared_operands(r: Rewriter, op: Op) -> None:
    """Copy a WHILE_LOOP's operands that other operators read, or that are region inputs."""
    for index, value in enumerate(op.operands):
        if not value.is_const and (r.uses(value) > 1 or (r.is_region and value in r.graph.inputs)):
            r.insert_before(op, index, copy_value)


def copy_read_outputs(r: Rewriter, op: Op) -> None:
    """Copy a BOOL output that operators also read."""
    for index, output in enumerate(op.results):
        if is_read_bool_output(r, output):
            readers = r.readers(output)
            r.insert_after(op, lambda at, value: at.emit("LOGICAL_AND", value, value), index)
            for reader in readers:
                r.read(reader, reader.operands.index(output), op.results[index])


def give_first_operand_one_shape(r: Rewriter, op: Op) -> None:
    """Swap the operands if Vela stores the second in one shape and ``op`` is not a SUB, or else copy or reshape the first."""
    first, second = op.operands[:2]
    if op.name != "SUB" and has_one_shape(r, second):
        r.read(op, 0, second)
        r.read(op, 1, first)
        return
    at, rescale = r.before(op), r.producer(root(r, first), "RESCALE")
    if rescale is None or not _may_be_reshaped(rescale):
        r.read(op, 0, copy_value(at, first))
        return
    source = rescale.operands[0]
    if r.uses(rescale.result) > 1 or r.uses(source) > 1 or r.producer(source, "RESHAPE") is not None or source in r.graph.inputs:
        source = copy_value(at, source)
    r.read(op, 0, at.again(rescale, at.reshape(source, *first.shape)))


def copy_slices_of_as_many(r: Rewriter, op: Op) -> None:
    """Copy each SLICE whose source has as many elements as the operator's result. A RESCALE of the SLICE reads the copy."""
    for index in slices_of_as_many(r, op):
        rescale = r.producer(root(r, op.operands[index]), "RESCALE")
        r.insert_before(rescale or op, 0 if rescale else index, copy_value)


def copy_first_operand(r: Rewriter, op: Op) -> None:
    """Copy the first operand, or the operand of the RESCALE that computes it."""
    rescale = r.producer(root(r, op.operands[0]), "RESCALE")
    r.insert_before(rescale or op, 0, copy_value)


def copy_transposed_slice(r: Rewriter, op: Op) -> None:
    """Copy the transposed SLICE, so that all of its readers read the copy."""
    cut = find_transposed_slice(r, op)
    assert cut is not None
    r.insert_after(cut, copy_value)


def gather_in_parts(r: Rewriter, op: Op) -> None:
    """Split the GATHER into parts whose rows fit into one transfer, and concatenate the parts."""
    at, (values, indices) = r.before(op), op.operands
    results = []
    for batch, first in _parts(at, indices, 0):
        values_of_batch = _batches(at, values, first, batch.shape[0])
        parts = [at.again(op, values_of_batch, part) for part, _ in _parts(at, batch, 1)]
        results.append(parts[0] if len(parts) == 1 else at.emit("CONCAT", *parts, axis=1))
    r.replace(op, results[0] if len(results) == 1 else at.emit("CONCAT", *results, axis=0))


def scatter_in_parts(r: Rewriter, op: Op) -> None:
    """Split the SCATTER into parts whose rows fit into one transfer. Each part updates the result of the previous part."""
    at, (values, indices, rows) = r.before(op), op.operands
    results = []
    for batch, first in _parts(at, indices, 0):
        result, source = _batches(at, values, first, batch.shape[0]), _batches(at, rows, first, batch.shape[0])
        for part, row in _parts(at, batch, 1):
            size = (source.shape[0], part.shape[1], source.shape[2])
            result = at.again(
                op,
                result,
                part,
                source if size == source.shape else at.emit("SLICE", source, start=(0, row, 0), size=size),
            )
        results.append(result)
    r.replace(op, results[0] if len(results) == 1 else at.emit("CONCAT", *results, axis=0))


def _batches(at: Place, value: Value, first: int, count: int) -> Value:
    if value.shape[0] == count:
        return value
    if value.data is not None:
        return at.constant(np.ascontiguousarray(value.data[first : first + count]), value.dtype)
    return at.emit("SLICE", value, start=(first, 0, 0), size=(count, *value.shape[1:]))


def _parts(at: Place, indices: Value, axis: int) -> Iterator[tuple[Value, int]]:
    count = indices.shape[axis]
    most = -(-count // -(-count // MOST_ROWS))
    for first in range(0, count, most):
        size, start = list(indices.shape), [0, 0]
        size[axis], start[axis] = min(most, count - first), first
        if size[axis] == count:
            yield indices, 0
        elif indices.data is not None:
            part = indices.data.take(range(first, first + size[axis]), axis)
            yield at.constant(np.ascontiguousarray(part), indices.dtype), first
        else:
            yield at.emit("SLICE", indices, start=tuple(start), size=tuple(size)), first


def run_along_middle_axis(r: Rewriter, op: Op) -> None:
    """Reshape the operand to three axes, and run the operator along the middle axis."""
    value, at = op.operands[0], r.before(op)
    column = at.reshape(value, math.prod(value.shape[:-1]), value.shape[-1], 1)
    r.replace(op, at.reshape(at.again(op, column, axis=1), *op.result.shape))


def run_in_four_axes(r: Rewriter, op: Op) -> None:
    """Run the operator and those fused with it on four axes. If outer extents exceed 1, copy sliced operands instead."""
    result, at = op.result, r.before(op)
    drop = result.rank - MOST_AXES
    scaled = op.name in BY_ELEMENT
    if math.prod(result.shape[:drop]) > 1:
        for index in slices_with_leading_ones(r, op):
            rescale = r.producer(op.operands[index], "RESCALE") if scaled else None
            r.insert_before(rescale or op, 0 if rescale else index, copy_value)
        return
    elements = op.operands[:1] if op.name == "TABLE" else op.operands
    output = at.again(op, *(_without_ones(r, at, value, drop, scaled) for value in elements))
    while r.uses(op.result) == 1 and (readers := r.readers(op.result)) and readers[0].name in FOLLOWING:
        (op,), at = readers, r.before(readers[0])
        output = at.again(op, output)
    r.replace(op, at.reshape(output, *result.shape))


def _without_ones(r: Rewriter, at: Place, value: Value, drop: int, scaled: bool) -> Value:
    if value.data is not None:
        return at.constant(value.data.reshape(value.shape[drop:]), value.dtype)
    rescale = r.producer(value, "RESCALE") if scaled else None
    if rescale is not None:
        return at.again(rescale, _without_ones(r, at, rescale.operands[0], drop, False))
    return at.reshape(root(r, value), *value.shape[drop:])


def reshape_result(r: Rewriter, op: Op) -> None:
    """Remove the RESHAPE of the operand, and reshape the result instead."""
    reshape = r.producer(op.operands[0], "RESHAPE")
    assert reshape is not None
    at = r.before(op)
    r.replace(op, at.reshape(at.again(op, reshape.operands[0]), *op.result.shape))


def reshape_twice(r: Rewriter, op: Op) -> None:
    """Insert a separate RESHAPE for each operand."""
    value = op.operands[1]
    rescale = r.producer(value, "RESCALE")
    reshape = r.producer(skip_rescale(r, value), "RESHAPE")
    assert reshape is not None
    at = r.before(op)
    second_reshape = at.again(reshape)
    r.read(op, 1, at.again(rescale, second_reshape) if rescale else second_reshape)
