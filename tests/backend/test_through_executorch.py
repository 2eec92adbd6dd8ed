"""Programs that ExecuTorch writes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ethorch


class TwoLayouts(nn.Module):
    """A channels-last and a contiguous convolution of one image."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
        self.second = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) + self.second(x)


def channels_last(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(*modules).to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("make", "modules"),
    [
        (lambda: channels_last(nn.Conv2d(3, 8, 3), nn.ReLU()), ("0",)),
        (lambda: channels_last(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), ("0", "2")),
        (lambda: channels_last(nn.ConvTranspose2d(3, 8, 3), nn.ReLU()), ("0",)),
        (TwoLayouts, ("first", "second")),
    ],
)
def test_float_convolutions_with_channels_last_weights_read_contiguous_images(make, modules: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    model = make().eval()
    samples = [torch.randn(1, 3, 8, 8) for _ in range(4)]
    program = ethorch.compile(model, samples[0], "ethos-u55-128", calibration=samples, modules=dict.fromkeys(modules, "float"))
    assert program.explain().writer["name"] == "ExecuTorch"
    assert ethorch.sqnr_db(model(samples[1]), program(samples[1])) > 30
