"""Layout and movement of tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ethorch.lower.builder.qparams import QParams, QTensor
from ethorch.targets.tuning import UNTUNED, Tuning
from ethorch.tosa.emitter import Emitter
from ethorch.tosa.ir import Value
from ethorch.tosa.layout import MAX_RANK, Dims, around, arrangement, coarsest, contiguous, refine
from ethorch.tosa.limits import Limits


class MovementBuilder(Emitter):
    """A builder of operators that move elements.

    Args:
        limits: Limits of the target for each operator.
        tuning: Preferred choices between equivalent operators.
        target: Name of the target, for refusals.
    """

    def __init__(self, limits: Mapping[str, Limits] | None = None, *, tuning: Tuning = UNTUNED, target: str = ""):
        super().__init__(limits, target=target)
        self.tuning = tuning

    # --- values -------------------------------------------------------------------------------------------------------

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Emit a RESHAPE unless ``value`` already has the shape."""
        return value if value.shape == tuple(shape) else self.emit("RESHAPE", value, shape=tuple(shape))

    def reorder(self, value: Value, order: Sequence[int], shape: Sequence[int]) -> Value:
        """Reorder the axes of ``value``, then reshape it. Calls with equal arguments return the same value."""
        return self.once(("ordered", value, tuple(order), tuple(shape)), lambda: self._reorder(value, order, shape))

    def _reorder(self, value: Value, order: Sequence[int], shape: Sequence[int]) -> Value:
        move = arrangement(value.shape, order)
        moved = value
        if move is not None and self.tuning.transpose == "whole" and value.rank <= 4:
            perms = (*(axis for axis in range(value.rank) if axis not in order), *order)
            moved = self.emit("TRANSPOSE", value, perms=perms)
        elif move is not None:
            moved = self._transpose(self.reshape(value, move[0]), move[1])
        return self.reshape(moved, shape)

    def _transpose(self, value: Value, order: Sequence[int]) -> Value:
        shape, current = value.shape, list(range(value.rank))
        count = 0
        while current != list(order):
            count = len(shape) if len(shape) <= MAX_RANK or len(shape) - count < MAX_RANK else count + 2
            target = [*order[:count], *(axis for axis in current if axis not in order[:count])]
            step = arrangement(tuple(shape[axis] for axis in current), [current.index(axis) for axis in target])
            if step is not None:
                value = self.emit("TRANSPOSE", self.reshape(value, step[0]), perms=step[1])
            current = target
        return value

    def slice_axis(self, value: Value, axis: int, start: int, size: int) -> Value:
        if size == value.shape[axis]:
            return value
        starts = tuple(start if k == axis else 0 for k in range(value.rank))
        sizes = tuple(size if k == axis else extent for k, extent in enumerate(value.shape))
        return self.emit("SLICE", value, start=starts, size=sizes)

    def crop(self, value: Value, shape: Sequence[int]) -> Value:
        """Return the first ``shape[k]`` elements along each axis k."""
        if tuple(shape) == value.shape:
            return value
        return self.emit("SLICE", value, start=(0,) * value.rank, size=tuple(shape))

    def pad_axis(self, value: Value, axis: int, before: int, after: int, code: int) -> Value:
        """Pad ``axis`` with the constant ``code``."""
        if before == 0 == after:
            return value
        padding = [0] * (2 * value.rank)
        padding[2 * axis : 2 * axis + 2] = before, after
        return self.emit("PAD", value, padding=tuple(padding), pad_const=code)

    # --- tensors ------------------------------------------------------------------------------------------------------

    def store_as(self, x: QTensor, groups: Sequence[Sequence[int]]) -> Value:
        """Return a value with one axis for each group of dimensions of ``x``. Dimensions outside the groups must have size 1."""
        shape = x.shape
        order = [axis for group in groups for dim in group for axis in x.dims[dim]]
        return self.reorder(x.value, order, [math.prod(shape[dim] for dim in group) for group in groups])

    def logical(self, x: QTensor) -> Value:
        """Return a value with the elements of ``x`` in PyTorch's order and shape."""
        return self.store_as(x, [(dim,) for dim in range(x.rank)])

    def nhwc(self, x: QTensor) -> Value:
        """Convert an [N, C, H, W] or [C, H, W] tensor to the layout [N, H, W, C]."""
        if x.rank == 3:
            return self.store_as(x, [(), (1,), (2,), (0,)])
        return self.store_as(x, [(0,), (2,), (3,), (1,)])

    def from_nhwc(self, value: Value, q: QParams | None, rank: int = 4) -> QTensor:
        """Return an NHWC value as a QTensor [N, C, H, W], or [C, H, W] if ``rank`` is 3."""
        return QTensor(value, ((0,), (3,), (1,), (2,)) if rank == 4 else ((3,), (1,), (2,)), q)

    def from_order(self, value: Value, order: Sequence[int], q: QParams | None) -> QTensor:
        """Return the tensor whose dimension ``order[k]`` is axis k of ``value``."""
        return QTensor(value, tuple((order.index(dim),) for dim in range(len(order))), q)

    def view(self, x: QTensor, shape: Sequence[int]) -> QTensor:
        """Reshape a tensor. Data moves only if no layout of at most ``MAX_RANK`` axes can express the shape."""
        refined = refine(x.value.shape, x.dims, shape)
        if refined is not None and len(refined[0]) > MAX_RANK:
            refined = coarsest(*refined)
        if refined is None or len(refined[0]) > MAX_RANK >= len(shape):
            return QTensor(self.reshape(self.logical(x), shape), contiguous(shape), x.q)
        stored, dims = refined
        return QTensor(self.reshape(x.value, stored), dims, x.q)

    def permute(self, x: QTensor, order: Sequence[int]) -> QTensor:
        """Permute the dimensions without moving data."""
        q = x.q
        if q is not None and q.axis is not None:
            q = QParams(q.scale, q.zero_point, q.qmin, q.qmax, q.dtype, list(order).index(q.axis))
        return QTensor(x.value, tuple(x.dims[dim] for dim in order), q)

    def axis_of(self, x: QTensor, dim: int) -> tuple[Value, int, Dims]:
        """Return (value, axis, dims) with the elements of ``x``. In the value, ``dim`` is the single axis ``axis``."""
        dim %= x.rank
        if len(x.dims[dim]) == 1:
            return x.value, x.dims[dim][0], x.dims
        if x.shape[dim] == 1:
            value, axis = x.value, x.value.rank
            if axis >= MAX_RANK:  # reuse an axis that no other dim uses
                used_axes = {axis for k, axes in enumerate(x.dims) if k != dim for axis in axes}
                axis = next((k for k, extent in enumerate(value.shape) if extent == 1 and k not in used_axes), axis)
            if axis < MAX_RANK or x.rank > MAX_RANK:
                value = value if axis < value.rank else self.reshape(value, (*value.shape, 1))
                return value, axis, tuple((axis,) if k == dim else axes for k, axes in enumerate(x.dims))
        value = self.logical(x)
        return value, dim, contiguous(x.shape)

    def alike(self, tensors: Sequence[QTensor]) -> tuple[list[Value], Dims]:
        """Convert tensors of equal rank to the layout of the largest tensor, with one axis for each dimension."""
        leader = max((x for x in tensors if not x.value.is_const), key=lambda x: math.prod(x.shape), default=tensors[0])
        order = list(range(leader.rank))
        if all(len(axes) <= 1 for axes in leader.dims):
            order.sort(key=lambda dim: leader.dims[dim] or (-1,))
        dims = tuple((order.index(dim),) for dim in range(leader.rank))
        return [self.store_as(x, [(dim,) for dim in order]) for x in tensors], dims

    def align(self, *tensors: QTensor) -> tuple[list[Value], Dims]:
        """Convert the operands of a broadcasting operator to equal ranks, if possible in the layout of the largest operand."""
        rank = max(x.rank for x in tensors)
        if rank == 0:
            return [self.logical(x) for x in tensors], ()
        padded = [QTensor(x.value, ((),) * (rank - x.rank) + x.dims, x.q) for x in tensors]
        shapes = [x.shape for x in padded]
        extents = tuple(max(extents) if 0 not in extents else 0 for extents in zip(*shapes, strict=True))
        leader = max((x for x in padded if not x.value.is_const), key=lambda x: math.prod(x.shape), default=padded[0])
        if any(leader.shape[d] not in (1, extents[d]) for d in range(rank)) or not self._follows(leader, padded, extents):
            return [self.logical(x) for x in padded], contiguous(extents)
        # Slots: axes of the result. Axes of the leader follow the dims in which the leader is broadcast.
        slots: list[tuple[int, int]] = []  # (dim, factor index) in axis order
        places = {axis: (dim, k) for dim, axes in enumerate(leader.dims) for k, axis in enumerate(axes)}
        slots = [places[axis] for axis in range(leader.value.rank) if axis in places]
        missing = [(dim, 0) for dim in range(rank) if extents[dim] > 1 and leader.shape[dim] == 1 and not leader.dims[dim]]
        slots = [*missing, *slots] or [(0, 0)]
        values = []
        for x in padded:
            order, shape = [], []
            for dim, k in slots:
                axes = x.dims[dim]
                if x.shape[dim] == 1 or k >= len(axes):
                    shape.append(1)
                else:
                    order.append(axes[k])
                    shape.append(x.value.shape[axes[k]])
            values.append(self.reorder(x.value, order, shape))
        index = {slot: k for k, slot in enumerate(slots)}
        dims = tuple(tuple(index[dim, k] for k in range(len(leader.dims[dim]) or 1) if (dim, k) in index) for dim in range(rank))
        return values, dims

    @staticmethod
    def _follows(leader: QTensor, tensors: Sequence[QTensor], extents: tuple[int, ...]) -> bool:
        def factors(x: QTensor, dim: int) -> list[int]:
            return [x.value.shape[axis] for axis in x.dims[dim]]

        for x in tensors:
            for dim in range(x.rank):
                if x.shape[dim] == 1 or x is leader:
                    continue
                if leader.shape[dim] == 1:
                    if leader.dims[dim] or len(x.dims[dim]) != 1:
                        return False
                elif factors(x, dim) != factors(leader, dim):
                    return False
        return True

    def narrow(self, x: QTensor, dim: int, start: int, length: int) -> QTensor:
        value, axis, dims = self.axis_of(x, dim)
        return x if length == value.shape[axis] else QTensor(self.slice_axis(value, axis, start, length), dims, x.q)

    def every(self, x: QTensor, dim: int, step: int) -> QTensor:
        """Return x[::step] along ``dim``."""
        if step == 1 or x.shape[dim] == 1:
            return x
        value, axis, dims = self.axis_of(x, dim)
        count = -(-value.shape[axis] // step)
        missing = count * step - value.shape[axis]
        value = self.pad_axis(value, axis, 0, missing, 0)  # complete the last group
        before, after = value.shape[:axis], value.shape[axis + 1 :]
        if value.rank < MAX_RANK:
            firsts = self.slice_axis(self.reshape(value, (*before, count, step, *after)), axis + 1, 0, 1)
        else:
            firsts = self.slice_axis(self.reshape(value, (math.prod(before) * count, step, math.prod(after))), 1, 0, 1)
        return QTensor(self.reshape(firsts, (*before, count, *after)), dims, x.q)

    def pad_or_crop(self, x: QTensor, dim: int, before: int, extent: int) -> QTensor:
        """Pad the start of ``dim`` with ``before`` zero points, or crop it if ``before`` is negative.

        Then pad or crop the end until ``dim`` has size ``extent``.
        """
        after = extent - before - x.shape[dim]
        if before == 0 == after:
            return x
        value, axis, dims = self.axis_of(x, dim)
        flat = self.reshape(value, around(value.shape, axis))
        flat = self.slice_axis(flat, 1, max(-before, 0), flat.shape[1] + min(before, 0) + min(after, 0))
        flat = self.pad_axis(flat, 1, max(before, 0), max(after, 0), x.qparams.zp if max(before, after) > 0 else 0)
        return QTensor(self.reshape(flat, (*value.shape[:axis], extent, *value.shape[axis + 1 :])), dims, x.q)

    def tile(self, x: QTensor, multiples: Sequence[int]) -> QTensor:
        (value,), dims = self.alike([x])
        stored = [1] * value.rank
        for dim, count in enumerate(multiples):
            stored[dims[dim][0]] = count
        return QTensor(self.emit("TILE", value, multiples=tuple(stored)) if max(stored, default=1) > 1 else value, dims, x.q)

    def concat(self, parts: Sequence[QTensor], dim: int) -> QTensor:
        """Concatenate tensors with equal quantization parameters along ``dim``."""
        if len(parts) == 1:
            return parts[0]
        values, dims = self.alike(parts)
        return QTensor(self.emit("CONCAT", *values, axis=dims[dim % parts[0].rank][0]), dims, parts[0].q)
