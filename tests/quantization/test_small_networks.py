"""Small networks of the kinds that public ones are made of: accurate, on the NPU, and the same bits in every layer."""

from __future__ import annotations

import time
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.models import VARIOUS
from ethorch import runtime
from ethorch.backend.build import build_pte
from ethorch.models.load import UserModel
from ethorch.quantization.calibrate import quantize
from ethorch.support.metrics import sqnr_db
from ethorch.targets.compile_spec import EthosUCompileSpec
from tests.helpers.networks import TARGETS, checked

#: Network -> dB of the fake-quantized model over its seeds below which the Arm backend's quantizer is ahead, with four calibration
#: inputs (bench/results/accuracy_various.csv has the means of eight seeds).
ARM = {"super_resolution": 32.4, "joined_inputs": 16.9, "small_gru": 18.7, "sorted": 20.8, "branches": 37.4, "attention": 28.4}


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.long] * (x not in ("super_resolution", "attention"))) for x in ARM]
)
def test_four_calibration_inputs_are_enough(name: str) -> None:
    """On inputs that it was not calibrated with."""
    case = VARIOUS[name]
    user = UserModel(case.build(), case.example_inputs(), case.calibration(4))
    quantized, fresh = quantize(user, EthosUCompileSpec("ethos-u55-128")), case.calibration(16, seed=99)
    with torch.no_grad():
        found = sqnr_db([user.module(*x) for x in fresh], [quantized(*x) for x in fresh])
    assert found > ARM[name] - 0.3, found


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("super_resolution", "ethos-u55-128"),
        ("joined_inputs", "ethos-u85-256"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [
                ("super_resolution", "ethos-u85-256"),
                ("joined_inputs", "ethos-u55-128"),
                *product(("attention", "small_gru", "branches"), TARGETS),
            ]
        ),
    ],
)
def test_every_layer_computes_it(name: str, target: str) -> None:
    """On one input, whose outputs may be small. ExecuTorch's wheel has no kernel for a sort."""
    case = VARIOUS[name]
    built = checked(case.build(), case.calibration(4), target, quantized_db=5, agreement_db=30)
    assert name == "branches" or (len(built.delegates) == 1 and not built.partition.refusals)


class Windows(nn.Module):
    """Attention within windows that are shifted by half, as of Swin; the picture's mean added at the end, then cut to its size."""

    def __init__(self, side: int = 32, width: int = 16, window: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.side, self.window = side, window
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.register_buffer("mean", torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        n, w = self.side // self.window, self.window
        y = self.first(x - self.mean)
        parts = (
            torch.roll(y, (-w // 2, -w // 2), (2, 3)).view(1, -1, n, w, n, w).permute(0, 2, 4, 3, 5, 1).reshape(n * n, w * w, -1)
        )
        parts = parts + self.attention(parts, parts, parts, need_weights=False)[0]
        y = y + parts.view(1, n, n, w, w, -1).permute(0, 5, 1, 3, 2, 4).reshape(y.shape)
        return (self.last(F.relu(y)) + self.mean)[:, :, : self.side, : self.side]


@pytest.mark.parametrize("target", [pytest.param(TARGETS[0], marks=pytest.mark.long), *TARGETS[1:]])
def test_attention_in_windows_runs_as_a_whole_and_soon(target: str) -> None:
    """Its last sum was left in float; the first run of such a network took the simulator 24 s."""
    generator = torch.Generator().manual_seed(0)
    samples = [(torch.rand(1, 3, 32, 32, generator=generator),) for _ in range(4)]
    built = checked(Windows(), samples, target)
    assert len(built.delegates) == 1 and not built.partition.refusals
    program, start = runtime.load(built.pte), time.process_time()
    program(*samples[0])
    assert time.process_time() - start < 5


@pytest.mark.long
def test_a_recurrence_takes_seconds() -> None:
    """A bidirectional LSTM of two layers over 8 steps took 65."""
    torch.manual_seed(0)
    model = nn.LSTM(8, 16, 2, bidirectional=True, batch_first=True).eval()
    samples = [(torch.randn(1, 8, 8),) for _ in range(4)]
    start = time.process_time()
    user, spec = UserModel(model, samples[0], samples), EthosUCompileSpec("ethos-u55-128")
    built = build_pte(quantize(user, spec), samples[0], spec)
    assert time.process_time() - start < 20
    assert len(built.delegates) == 1 and not built.partition.refusals
