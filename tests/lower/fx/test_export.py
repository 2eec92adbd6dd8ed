"""torch.export, and what is refused before it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ethorch.lower.fx.export import export_module
from ethorch.support.errors import QuantizationError


class Last(nn.Module):
    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0][:, -1]  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_a_sequence_that_is_too_long_is_refused_before_tracing(kind: type[nn.RNNBase], monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch takes 95 s to export 8,192 steps. Here it may not run the layer at all."""
    layer = kind(2, 2, batch_first=True)
    monkeypatch.setattr(layer, "forward", lambda *_: pytest.fail("the layer ran"))
    with pytest.raises(QuantizationError) as refusal:
        export_module(Last(layer), (torch.rand(1, 65_537, 2),))
    assert refusal.value.id == "recurrent.steps"


def test_the_other_axes_may_be_long_and_no_hook_stays() -> None:
    layer = nn.GRU(2, 3)
    export_module(Last(layer), (torch.rand(4, 5_000, 2),))
    assert not layer._forward_pre_hooks
