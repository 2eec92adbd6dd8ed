"""Windows: as many results as PyTorch counts, the last one at the end of the padded map, and nothing read that is not there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.window import Window

pytestmark = pytest.mark.core


def places(window: Window, extent: int) -> list[list[int]]:
    """The elements of its one axis that each result reads."""
    (kernel,), (stride,), (dilation,), (before,), (after,) = (
        window.kernel, window.stride, window.dilation, window.before, window.after,
    )  # fmt: skip
    count, rest = divmod(extent + before + after - window.span[0], stride)
    assert rest == 0, "TOSA demands that the last window ends where the padded map does"
    return [[i * stride - before + k * dilation for k in range(kernel)] for i in range(count + 1)]


@given(*(st.integers(1, 5) for _ in range(3)), st.integers(0, 4), st.integers(1, 20))
def test_there_are_as_many_results_as_pytorch_counts(kernel: int, stride: int, dilation: int, pad: int, extent: int) -> None:
    window = Window.of((kernel,), stride, pad, dilation)
    assume(window.span[0] <= extent + 2 * pad)
    map_, ones = torch.zeros(1, 1, extent), torch.zeros(1, 1, kernel)
    count = torch.nn.functional.conv1d(map_, ones, stride=stride, padding=pad, dilation=dilation).shape[-1]
    read = places(window.ending((extent,)), extent)
    assert len(read) == count and read == places(window.ending((extent,), (count,)), extent)
    assert max(max(places) for places in read) == extent + window.ending((extent,)).after[0] - 1


def test_pytorchs_arguments() -> None:
    assert Window.of((3, 2)) == Window((3, 2), (1, 1), (1, 1), (0, 0), (0, 0))
    assert Window.of((3, 2), [2], [1], 3) == Window((3, 2), (2, 2), (3, 3), (1, 1), (1, 1))
    assert Window.of((3, 2), (1, 2), [(1, 2), 0]).pad == (1, 2, 0, 0)


def test_axes_are_taken_and_put_together() -> None:
    window = Window.of((3, 2, 4), (1, 2, 3), (0, 1, 2), (3, 2, 1))
    assert window.axes(0) + window.axes(1, 2) == window
    assert window.axes(2) == Window.of((4,), 3, 2, 1)


def test_what_no_window_reads_is_sliced_off() -> None:
    b = Builder()
    value = b.input("x", (2, 8, 9, 3), "INT8")
    cropped, window = Window.of((3, 3), (3, 2)).ending((8, 9)).crop(b, value)
    assert cropped.shape == (2, 6, 9, 3) and window.pad == (0, 0, 0, 0)
    assert Window.of((3, 3), 2, 1).ending((9, 9)).crop(b, value)[0] is value


@pytest.mark.parametrize(("dtype", "accumulator"), [("INT8", "INT32"), ("INT16", "INT48")])
def test_a_convolution_has_a_bias_of_its_accumulators_dtype(dtype: str, accumulator: str) -> None:
    b = Builder()
    value = b.input("x", (1, 5, 6, 2), dtype)
    b.conv2d(value, b.const(np.ones((4, 3, 3, 2), np.int8)))
    b.depthwise_conv2d(value, b.const(np.ones((3, 3, 2, 1), np.int8)), window=Window.of((3, 3), 2, 1).ending((5, 6)))
    assert [op.operands[2].dtype for op in b.graph.ops] == [accumulator] * 2
    assert [op.results[0].shape for op in b.graph.ops] == [(1, 3, 4, 4), (1, 3, 3, 2)]
