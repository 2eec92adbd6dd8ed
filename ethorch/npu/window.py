"""Kernel windows on a padded and optionally upscaled IFM (npu-reference 3.1, 6.5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ethorch.npu.arithmetic import ceil_div
from ethorch.npu.arrays import Array
from ethorch.npu.feature_map import FeatureMap, feature_map
from ethorch.npu.memory import Memory
from ethorch.npu.stream import Operation, Pair, kernel_stride
from ethorch.support.errors import MachineFault

UPSCALE_NONE, UPSCALE_NEAREST, UPSCALE_ZEROS = 0, 1, 2


@dataclass(eq=False)
class Window:
    """The geometry of a kernel window. Pairs are (y, x). ``size`` is the size of the upscaled IFM without padding."""

    ifm: FeatureMap
    out: Pair
    kernel: Pair  # taps, undilated
    extent: Pair  # size of the dilated kernel
    stride: Pair
    dilation: Pair
    before: Pair  # padding at the top and left
    padded: Pair  # size with padding
    size: Pair
    upscale: int

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def is_pointwise(self) -> bool:
        return self.kernel == (1, 1) and self.padded == self.size and self.upscale == UPSCALE_NONE

    @property
    def padded_elements(self) -> int:
        return self.padded[0] * self.padded[1] * self.ifm.depth

    def input_rows(self, n: int) -> int:
        return (n - 1) * self.stride[0] + self.extent[0]

    def read(self, m: Memory, first: int, n: int, dtype: type, fill: float) -> Array:
        """Return the input rows [rows, padded W, C] for ``n`` output rows starting at ``first``.

        Padding and UPSCALE_ZEROS insert ``fill``.
        """
        rows = self.input_rows(n)
        start = first * self.stride[0] - self.before[0]
        low, high = max(start, 0), min(start + rows, self.size[0])
        out: Array = np.empty((rows, self.padded[1], self.ifm.depth), dtype)
        left, right = self.before[1], self.before[1] + self.size[1]
        if high <= low:
            out.fill(fill)
            return out
        out[: low - start] = fill
        out[high - start :] = fill
        out[:, :left] = fill
        out[:, right:] = fill
        inner = out[low - start : high - start, left:right]
        if self.upscale == UPSCALE_NONE:
            m.read_rows(self.ifm, low, inner)
        else:
            self._read_upscaled(m, low, high, inner, fill)
        return out

    def _read_upscaled(self, m: Memory, low: int, high: int, inner: Array, fill: float) -> None:
        first, last = low // 2, (high - 1) // 2
        source = np.empty((last - first + 1, self.ifm.width, self.ifm.depth), inner.dtype)
        m.read_rows(self.ifm, first, source)
        width = inner.shape[1]
        if self.upscale == UPSCALE_NEAREST:
            inner[...] = source[np.arange(low, high) // 2 - first][:, np.arange(width) // 2]
        else:
            inner[...] = fill
            even = low + low % 2  # upscaled rows that contain pixels
            inner[even - low :: 2, ::2] = source[even // 2 - first :, : ceil_div(width, 2)]

    def tap(self, rows: Array, n: int, ky: int, kx: int) -> Array:
        """Return a view [n, OW, C] of the inputs of a kernel element. ``rows`` is the result of ``read`` for ``n`` output rows."""
        y, x = ky * self.dilation[0], kx * self.dilation[1]
        sy, sx = self.stride
        return rows[y : y + (n - 1) * sy + 1 : sy, x : x + (self.out[1] - 1) * sx + 1 : sx]

    def patches(self, rows: Array, y: slice, x: slice) -> Array:
        """Return the windows of the output rows ``y`` and columns ``x`` as a matrix [ny*nx, KH*KW*C].

        ``rows`` is the result of ``read``. ``y`` is relative to the argument ``first`` of ``read``.
        """
        (sy, sx), (dy, dx) = self.stride, self.dilation
        ry, rx, rc = rows.strides
        shape = (y.stop - y.start, x.stop - x.start, *self.kernel, rows.shape[2])
        first = rows[y.start * sy :, x.start * sx :]
        strides = (ry * sy, rx * sx, ry * dy, rx * dx, rc)
        windows = np.lib.stride_tricks.as_strided(first, shape, strides)
        return windows.reshape(shape[0] * shape[1], self.taps * shape[4])


def window(op: Operation) -> Window:
    """Return the window of an operation. Raise MachineFault if its input consists only of padding."""
    stride = kernel_stride(op)
    dilation = op["KERNEL_STRIDE.dilation_y"], op["KERNEL_STRIDE.dilation_x"]
    extent = op["KERNEL_HEIGHT"], op["KERNEL_WIDTH"]
    kernel = (extent[0] - 1) // dilation[0] + 1, (extent[1] - 1) // dilation[1] + 1
    out = op["OFM_HEIGHT"], op["OFM_WIDTH"]
    before = op["IFM_PAD_TOP"], op["IFM_PAD_LEFT"]
    after = op["IFM_PAD_BOTTOM"], op["IFM_PAD_RIGHT"]
    padded = (out[0] - 1) * stride[0] + extent[0], (out[1] - 1) * stride[1] + extent[1]
    size = padded[0] - before[0] - after[0], padded[1] - before[1] - after[1]
    if min(size) < 1:
        raise MachineFault(
            f"kernel {extent}, stride {stride} and padding {before}, {after} imply an IFM of size {size}; expected at least (1, 1)"
        )
    factor = 1 if op["IFM_UPSCALE"] == UPSCALE_NONE else 2
    ifm = feature_map(op, "IFM", (ceil_div(size[0], factor), ceil_div(size[1], factor), op["IFM_DEPTH"]))
    return Window(ifm, out, kernel, extent, stride, dilation, before, padded, size, op["IFM_UPSCALE"])
