from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from ethorch.formats.pte_types import ITEM_BYTES, Value


@dataclass(frozen=True)
class View:
    """A strided view of a tensor.

    Attributes:
        address: C constant expression for the tensor's address.
        dtype: Name of the PyTorch dtype.
        shape, strides: Sizes and strides of the logical axes, in elements. Stride 0 repeats an element.
        offset: Offset of the view's first element from the tensor's start, in elements.
    """

    address: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def of(cls, value: Value, address: str) -> View:
        """Return a view of a tensor stored in the order ``value.dim_order``."""
        strides, step = [0] * len(value.shape), 1
        for axis in reversed(value.dim_order):
            strides[axis] = step
            step *= max(value.shape[axis], 1)
        return cls(address, value.dtype, value.shape, tuple(strides))

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """True if the elements are adjacent, in the order of the logical axes."""
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != step:
                return False
            step *= size
        return True

    def axis(self, dim: int) -> int:
        """Normalize a possibly negative axis; a scalar accepts 0 and -1."""
        return dim + max(self.rank, 1) if dim < 0 else dim

    def permute(self, order: Sequence[int]) -> View:
        axes = [self.axis(dim) for dim in order]
        return replace(self, shape=tuple(self.shape[a] for a in axes), strides=tuple(self.strides[a] for a in axes))

    def swap(self, first: int, second: int) -> View:
        order = list(range(self.rank))
        if order:
            a, b = self.axis(first), self.axis(second)
            order[a], order[b] = order[b], order[a]
        return self.permute(order)

    def select(self, dim: int, index: int) -> View:
        """Select one index along an axis and remove the axis."""
        at = self.axis(dim)
        index += self.shape[at] if index < 0 else 0
        return replace(
            self,
            shape=self.shape[:at] + self.shape[at + 1 :],
            strides=self.strides[:at] + self.strides[at + 1 :],
            offset=self.offset + index * self.strides[at],
        )

    def slice(self, dim: int, start: int | None, end: int | None, step: int = 1) -> View:
        """Slice an axis like Python's ``start:end:step``."""
        at = self.axis(dim)
        first, last, step = slice(start, end, step).indices(self.shape[at])
        size, stride = len(range(first, last, step)), self.strides[at]
        return self._with_axis(at, size, stride * step, first * stride if size else 0)

    def flip(self, dims: Sequence[int]) -> View:
        view = self
        for dim in dims:
            at = self.axis(dim)
            view = view._with_axis(at, self.shape[at], -self.strides[at], max(self.shape[at] - 1, 0) * self.strides[at])
        return view

    def expand(self, shape: Sequence[int]) -> View | None:
        """Broadcast to a shape, or return None if this is impossible. A size of -1 leaves the axis unchanged."""
        lead = len(shape) - self.rank
        if lead < 0:
            return None
        padded_shape = (1,) * lead + self.shape
        new_shape = tuple(size if want == -1 else want for size, want in zip(padded_shape, shape, strict=True))
        if any(size not in (1, want) for size, want in zip(padded_shape, new_shape, strict=True)):
            return None
        strides = tuple(
            0 if size != want else stride
            for size, want, stride in zip(padded_shape, new_shape, (0,) * lead + self.strides, strict=True)
        )
        return replace(self, shape=new_shape, strides=strides)

    def reshape(self, shape: Sequence[int]) -> View | None:
        """Reshape in logical order. Return None if strides cannot express the new shape."""
        new_shape = tuple(shape)
        if prod(new_shape) != self.numel:
            return None
        if self.numel == 0:
            return replace(self, shape=new_shape, strides=(0,) * len(new_shape))
        groups = merge_axes([(size, (stride,)) for size, stride in zip(self.shape, self.strides, strict=True)])
        strides: list[int] = []
        for size in reversed(new_shape):  # split each group of adjacent axes into the requested axes
            while groups and groups[-1][0] == 1:
                groups.pop()
            if size == 1:
                strides.append(0)
                continue
            have, (stride,) = groups.pop()
            if have % size:
                return None
            strides.append(stride)
            groups.append((have // size, (stride * size,)))
        return replace(self, shape=new_shape, strides=tuple(reversed(strides)))

    def insert_axis(self, dim: int) -> View:
        at = dim + self.rank + 1 if dim < 0 else dim
        return replace(self, shape=self.shape[:at] + (1,) + self.shape[at:], strides=self.strides[:at] + (0,) + self.strides[at:])

    def windows(self, dim: int, size: int, step: int) -> View:
        """Replace an axis with an axis of windows, and append an axis for the elements of a window."""
        at = self.axis(dim)
        if not self.rank:
            return self.insert_axis(0)
        stride = self.strides[at]
        view = self._with_axis(at, max((self.shape[at] - size) // step + 1, 0), stride * step, 0)
        return replace(view, shape=(*view.shape, size), strides=(*view.strides, stride))

    def diagonal(self, offset: int, first: int, second: int) -> View:
        """Replace two axes with their diagonal, which becomes the last axis."""
        a, b = self.axis(first), self.axis(second)
        size = max(min(self.shape[a] + min(offset, 0), self.shape[b] - max(offset, 0)), 0)
        start = max(-offset, 0) * self.strides[a] + max(offset, 0) * self.strides[b]
        rest = [axis for axis in range(self.rank) if axis not in (a, b)]
        return replace(
            self,
            shape=(*(self.shape[axis] for axis in rest), size),
            strides=(*(self.strides[axis] for axis in rest), self.strides[a] + self.strides[b]),
            offset=self.offset + (start if size else 0),
        )

    def _with_axis(self, at: int, size: int, stride: int, offset: int) -> View:
        shape = self.shape[:at] + (size,) + self.shape[at + 1 :]
        return replace(
            self, shape=shape, strides=self.strides[:at] + (stride,) + self.strides[at + 1 :], offset=self.offset + offset
        )


Axes = list[tuple[int, tuple[int, ...]]]


def merge_axes(axes: Axes) -> Axes:
    """Merge adjacent axes that are equivalent to one axis in every operand.

    Args:
        axes: Size of each axis and its strides in all operands, outermost axis first.
    """
    long_axes = [axis for axis in axes if axis[0] != 1]
    result: Axes = long_axes[:1]
    for size, strides in long_axes[1:]:
        outer_size, outer = result[-1]
        if all(wide == narrow * size for wide, narrow in zip(outer, strides, strict=True)):
            result[-1] = (outer_size * size, strides)
        else:
            result.append((size, strides))
    return result


def order_axes(views: Sequence[View], order: Sequence[int] | None = None) -> Axes:
    """Return the merged axes, with strides in bytes, of views with the same shape.

    Args:
        order: Order of the axes, outermost first. Default: the memory order of the first view.
    """
    first = views[0]
    if order is None:
        order = sorted(range(first.rank), key=lambda axis: -abs(first.strides[axis]))
    return merge_axes([(first.shape[a], tuple(view.strides[a] * view.item_bytes for view in views)) for a in order])


def is_run(axes: Axes, item_bytes: int) -> bool:
    """Return True if the elements of the innermost axis are adjacent in every operand."""
    return bool(axes) and all(stride == item_bytes for stride in axes[-1][1])
