"""Round weights to minimize the error of a layer's output.

Later columns compensate for the rounding of earlier columns (GPTQ, Frantar et al. 2022).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ethorch.lower.builder.window import Window


def extract_patches(x: Tensor, window: Window) -> Tensor:
    """Convert float[N, C, ...] to float[N * positions, C * kernel], the input elements of each output position."""
    spatial = len(window.kernel)
    ends = zip(reversed(window.before), reversed(window.after), strict=True)
    x = F.pad(x.reshape(-1, *x.shape[-spatial - 1 :]), [end for both in ends for end in both])
    for axis, (span, stride, dilation) in enumerate(zip(window.span, window.stride, window.dilation, strict=True), start=2):
        x = x.unfold(axis, span, stride)[..., ::dilation]
    places, elements = range(2, 2 + spatial), range(2 + spatial, 2 + 2 * spatial)
    return x.permute(0, *places, 1, *elements).flatten(1 + spatial).flatten(0, spatial)


def shrink_moments(moments: Tensor, rows: int) -> Tensor:
    """Shrink second moments float[groups, K, K] toward their diagonal, because correlations from few rows can be spurious."""
    size = moments.shape[-1]
    share = size / (size + rows)
    return (1 - share) * moments + share * torch.diag_embed(torch.diagonal(moments, dim1=1, dim2=2))


def compensate(weight: Tensor, moments: Tensor, scale: Tensor, low: int, high: int) -> Tensor:
    """Return ``weight`` rounded to multiples of ``scale``. Later elements compensate for the rounding of earlier elements.

    Args:
        weight: float[groups, outputs, K].
        moments: float[groups, K, K], the sum of x x^T over the inputs x.
        scale: float[groups, outputs, 1].
        low, high: Range of the integer values.
    """
    size = weight.shape[-1]
    diagonal = torch.diagonal(moments, dim1=1, dim2=2)
    damping = diagonal.mean(1, keepdim=True) * 0.01 + 1e-8
    moments = moments + torch.diag_embed(damping.expand_as(diagonal))
    order = torch.argsort(diagonal.sum(0), descending=True)  # most important first, because all later columns compensate
    moments = moments[:, order][:, :, order]
    upper = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(moments)), upper=True)
    left = weight[:, :, order].clone()
    columns = torch.empty_like(left)
    for column in range(size):
        value = left[:, :, column]
        rounded = torch.clamp(torch.round(value / scale[..., 0]), low, high) * scale[..., 0]
        columns[:, :, column] = rounded
        error = (value - rounded) / upper[:, column, column, None]
        left[:, :, column + 1 :] -= error[:, :, None] * upper[:, None, column, column + 1 :]
    return columns[:, :, torch.argsort(order)]
