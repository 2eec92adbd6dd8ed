"""Window: what each result of a convolution or pooling reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ethorch.lower.builder.movement import MovementBuilder
from ethorch.tosa.ir import Value


@dataclass(frozen=True)
class Window:
    """What the results read along each axis: result i reads elements i * stride - before + k * dilation for k in 0..kernel - 1.

    Elements that are not there are padding: ``before`` the first and ``after`` the last. A negative ``after`` says how many of the
    map's last elements no window reads; ``cropped`` removes those. Every attribute has one entry for each axis.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @staticmethod
    def of(
        kernel: Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int | tuple[int, int]] = 0,
        dilation: int | Sequence[int] = 1,
    ) -> Window:
        """From PyTorch's arguments: a number stands for all axes; a padding is one number for both ends, or a pair."""
        rank = len(kernel)

        def each(values: int | Sequence[int]) -> tuple[int, ...]:
            found = (values,) if isinstance(values, int) else tuple(values)
            return found * rank if len(found) == 1 else found

        pads = [padding] * rank if isinstance(padding, int) else list(padding)
        pads = pads * rank if len(pads) == 1 else pads
        ends = [(pad, pad) if isinstance(pad, int) else pad for pad in pads]
        before, after = (tuple(end[k] for end in ends) for k in range(2))
        return Window(tuple(kernel), each(stride), each(dilation), before, after)

    @property
    def span(self) -> tuple[int, ...]:
        """How many elements lie between the first that a result reads and the last, both included."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    def counts(self, extents: Sequence[int]) -> tuple[int, ...]:
        """Return the number of windows along each axis of a map."""
        ends = zip(extents, self.before, self.after, self.span, self.stride, strict=True)
        return tuple((extent + before + after - span) // stride + 1 for extent, before, after, span, stride in ends)

    @property
    def pad(self) -> tuple[int, ...]:
        """TOSA's attribute: (top, bottom, left, right)."""
        return tuple(amount for both in zip(self.before, self.after, strict=True) for amount in both)

    @property
    def is_padded(self) -> bool:
        """Does it read padding at any end?"""
        return any((*self.before, *self.after))

    def axes(self, *which: int) -> Window:
        """The window along some of its axes."""
        kernel, stride, dilation, before, after = (
            tuple(values[k] for k in which) for values in (self.kernel, self.stride, self.dilation, self.before, self.after)
        )
        return Window(kernel, stride, dilation, before, after)

    def __add__(self, other: Window) -> Window:
        """The axes of both, one behind the other."""
        return Window(
            self.kernel + other.kernel,
            self.stride + other.stride,
            self.dilation + other.dilation,
            self.before + other.before,
            self.after + other.after,
        )

    def unpadded(self) -> Window:
        """The same over a map that is padded already."""
        return replace(self, before=(0,) * len(self.kernel), after=(0,) * len(self.kernel))

    def ending(self, extents: Sequence[int], sizes: Sequence[int] | None = None) -> Window:
        """The same with ``after`` such that the last window ends at the end of the padded map, as TOSA 1.0 demands.

        Args:
            extents: of the map.
            sizes: how many results there are; as many as fit if it is not given.
        """
        after = []
        for axis, (extent, span, stride) in enumerate(zip(extents, self.span, self.stride, strict=True)):
            fit = (extent + self.before[axis] + self.after[axis] - span) // stride + 1
            count = fit if sizes is None else sizes[axis]
            after.append((count - 1) * stride + span - self.before[axis] - extent)
        return replace(self, after=tuple(after))

    def misses(self, extents: Sequence[int], sizes: Sequence[int]) -> bool:
        """Return True if all elements that windows read along an axis are padding, because the map lies between them.

        Args:
            extents: The extents of the map.
            sizes: How many results there are along each axis.
        """
        axes = zip(extents, sizes, self.before, self.kernel, self.stride, self.dilation, strict=True)
        return any(
            not any(0 <= place * stride - before + tap * dilation < extent for place in range(count) for tap in range(kernel))
            for extent, count, before, kernel, stride, dilation in axes
        )

    def cropped(self, b: MovementBuilder, value: Value) -> tuple[Value, Window]:
        """A stored [N,H,W,C] without the far rows and columns that no window reads, and the window over it. TOSA 1.0 SLICE."""
        n, height, width, c = value.shape
        value = b.cropped(value, (n, height + min(self.after[0], 0), width + min(self.after[1], 0), c))
        return value, replace(self, after=tuple(max(after, 0) for after in self.after))
