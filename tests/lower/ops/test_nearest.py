"""Source rows of nearest interpolation: those of PyTorch, which computes them in float32."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from ethorch.lower.ops.resize import nearest_rows


def test_rows_of_all_sizes() -> None:
    for extent in (*range(1, 20), 123):
        x = torch.arange(extent, dtype=torch.float32).reshape(1, 1, extent)
        for count in range(1, 140):
            expected = F.interpolate(x, size=count, mode="nearest").flatten().long().numpy()
            np.testing.assert_array_equal(nearest_rows(extent, count, None), expected, f"{extent} to {count}")


def test_rows_of_scales() -> None:
    for extent in range(1, 20):
        x = torch.arange(extent, dtype=torch.float32).reshape(1, 1, extent)
        for scale in (0.3, 0.7, 1.1, 1.7, 2.3, 3.3):
            if count := int(extent * scale):
                expected = (
                    F.interpolate(x, scale_factor=scale, mode="nearest", recompute_scale_factor=False).flatten().long().numpy()
                )
                np.testing.assert_array_equal(nearest_rows(extent, count, scale), expected, f"{extent} by {scale}")
