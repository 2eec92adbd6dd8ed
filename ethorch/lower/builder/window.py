"""Input windows of convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ethorch.lower.builder.movement import MovementBuilder
from ethorch.tosa.ir import Value


@dataclass(frozen=True)
class Window:
    """The input elements that each output element reads.

    Along an axis, output element i reads input elements i * stride - before + k * dilation for k < kernel. ``before`` and
    ``after`` count the padding at the start and end. A negative ``after`` counts elements at the end that no window reads. Each
    attribute has one entry per axis.
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
        """Create a window from PyTorch's arguments. A number applies to all axes.

        The padding of an axis is a number or a pair (before, after).
        """
        rank = len(kernel)

        def each(values: int | Sequence[int]) -> tuple[int, ...]:
            entries = (values,) if isinstance(values, int) else tuple(values)
            return entries * rank if len(entries) == 1 else entries

        pads = [padding] * rank if isinstance(padding, int) else list(padding)
        pads = pads * rank if len(pads) == 1 else pads
        ends = [(pad, pad) if isinstance(pad, int) else pad for pad in pads]
        before, after = (tuple(end[k] for end in ends) for k in range(2))
        return Window(tuple(kernel), each(stride), each(dilation), before, after)

    @property
    def span(self) -> tuple[int, ...]:
        """The number of elements from the first to the last element of a window."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    def counts(self, extents: Sequence[int]) -> tuple[int, ...]:
        ends = zip(extents, self.before, self.after, self.span, self.stride, strict=True)
        return tuple((extent + before + after - span) // stride + 1 for extent, before, after, span, stride in ends)

    @property
    def pad(self) -> tuple[int, ...]:
        """The TOSA attribute (top, bottom, left, right)."""
        return tuple(amount for ends in zip(self.before, self.after, strict=True) for amount in ends)

    @property
    def is_padded(self) -> bool:
        return any((*self.before, *self.after))

    def axes(self, *which: int) -> Window:
        kernel, stride, dilation, before, after = (
            tuple(values[k] for k in which) for values in (self.kernel, self.stride, self.dilation, self.before, self.after)
        )
        return Window(kernel, stride, dilation, before, after)

    def __add__(self, right: Window) -> Window:
        return Window(
            self.kernel + right.kernel,
            self.stride + right.stride,
            self.dilation + right.dilation,
            self.before + right.before,
            self.after + right.after,
        )

    def without_padding(self) -> Window:
        return replace(self, before=(0,) * len(self.kernel), after=(0,) * len(self.kernel))

    def ending(self, extents: Sequence[int], sizes: Sequence[int] | None = None) -> Window:
        """Adjust ``after`` so that the last window ends with the padding, as TOSA requires.

        ``sizes`` contains the number of windows along each axis (default: all that fit).
        """
        after = []
        for axis, (extent, span, stride) in enumerate(zip(extents, self.span, self.stride, strict=True)):
            fit = (extent + self.before[axis] + self.after[axis] - span) // stride + 1
            count = fit if sizes is None else sizes[axis]
            after.append((count - 1) * stride + span - self.before[axis] - extent)
        return replace(self, after=tuple(after))

    def misses(self, extents: Sequence[int], sizes: Sequence[int]) -> bool:
        """Return True if, along some axis, all windows read only padding."""
        axes = zip(extents, sizes, self.before, self.kernel, self.stride, self.dilation, strict=True)
        return any(
            not any(0 <= place * stride - before + tap * dilation < extent for place in range(count) for tap in range(kernel))
            for extent, count, before, kernel, stride, dilation in axes
        )

    def crop(self, b: MovementBuilder, value: Value) -> tuple[Value, Window]:
        """Remove unread rows and columns from the end of an NHWC value. Return the cropped value and its window."""
        n, height, width, c = value.shape
        value = b.crop(value, (n, height + min(self.after[0], 0), width + min(self.after[1], 0), c))
        return value, replace(self, after=tuple(max(after, 0) for after in self.after))
