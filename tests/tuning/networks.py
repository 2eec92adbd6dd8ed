"""Models that lose accuracy where tests want them to, and data for them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ethorch import EthosUCompileSpec, sqnr_db
from ethorch.arm.quantizer import get_symmetric_quantization_config
from tests.helpers.quantized import samples


class Uneven(nn.Module):
    """Convolutions whose channels differ a hundredfold, one of them depthwise, batch normalization in between."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16)
        self.depthwise = nn.Conv2d(16, 16, 3, groups=16)
        self.last = nn.Conv2d(16, 4, 1)
        with torch.no_grad():
            self.norm.weight.copy_(torch.logspace(-1, 1, 16))
            self.last.weight.div_(torch.logspace(-1, 1, 16).reshape(1, -1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.depthwise(torch.relu(self.norm(self.first(x))))))


CALIBRATION = [(torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(i)),) for i in range(8)]


FRESH = [(torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(100 + i)),) for i in range(8)]


PER_TENSOR = get_symmetric_quantization_config(is_per_channel=False)


FOUR_BITS = get_symmetric_quantization_config(weight_qmin=-7, weight_qmax=7)


def quality(model: nn.Module, graph: nn.Module) -> float:
    with torch.no_grad():
        return sqnr_db([model(*x) for x in FRESH], [graph(*x) for x in FRESH])


SPEC = EthosUCompileSpec("ethos-u85-256")


class Squash(nn.Module):
    """One channel three hundred times larger than the others, in front of a tanh: int8 between them holds that one only."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)
        with torch.no_grad():
            self.conv.weight[0] *= 300

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.conv(x))


class Fragile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Conv2d(4, 4, 1), Squash(), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x).relu()))


MODULES = ["first", "middle", "last"]


SAMPLES = samples((1, 4, 6, 6), count=6)


class Stateful(nn.Module):
    """Its output depends on what it saw before."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("state", torch.zeros(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.state = self.state * 0.9 + self.linear(x)
        return self.state * 1.5
