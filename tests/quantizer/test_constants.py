"""What depends on no input becomes a constant of the graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ethorch.quantizer.constants import fold_constants
from tests.support.quantized import exported


class Filled(nn.Module):
    """Writes to memory that nobody has set, as the attention of DeepSeek-V3 does."""

    def forward(self, x: Tensor) -> Tensor:
        made = x.new_empty(2, 8)
        return torch.slice_scatter(torch.slice_scatter(made, x, 1, 0, 4), x, 1, 4, 8)


def test_memory_that_nobody_has_set_is_zeros() -> None:
    torch.use_deterministic_algorithms(True)  # fills such memory with NaN
    try:
        graph = exported(Filled(), (torch.ones(2, 4),))
        fold_constants(graph)
    finally:
        torch.use_deterministic_algorithms(False)
    folded = dict(graph.named_buffers())
    assert folded and not any(bool(buffer.any()) for buffer in folded.values())
