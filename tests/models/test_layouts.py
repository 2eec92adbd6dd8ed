"""NHWC programs: the same numbers, no transposes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ethorch import EthosUCompileSpec, runtime
from ethorch.backend.build import build_pte
from ethorch.models.layouts import NhwcIo, from_nhwc, nhwc_inputs, to_nhwc, with_nhwc_io
from ethorch.models.load import UserModel
from ethorch.quantization.calibrate import quantize
from ethorch.support.errors import EthorchError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor, scale: Tensor) -> dict[str, Tensor]:
        x = torch.relu(self.a(x)) * scale
        return {"map": self.b(x), "mean": x.mean((2, 3))}


def test_permutes() -> None:
    x = torch.randn(2, 3, 4, 5)
    assert to_nhwc(x).shape == (2, 4, 5, 3)
    assert torch.equal(from_nhwc(to_nhwc(x)), x)
    assert from_nhwc(torch.zeros(2, 4, 5, 6, 3)).shape == (2, 3, 4, 5, 6)
    assert to_nhwc(torch.zeros(2, 3)).shape == (2, 3)


@pytest.mark.parametrize("target", ["ethos-u55-128", pytest.param("ethos-u85-256", marks=pytest.mark.long)])
def test_no_transpose_is_left(target: str) -> None:
    torch.manual_seed(0)
    model, spec = Net().eval(), EthosUCompileSpec(target)
    samples = [(torch.randn(1, 3, 10, 12), torch.rand(1, 8, 1, 1)) for _ in range(4)]
    user = with_nhwc_io(UserModel(model, samples[0], samples))
    built = build_pte(quantize(user, spec), user.example_inputs, spec)
    assert len(built.delegates) == 1
    assert "TRANSPOSE" not in built.delegates[0].text
    found = runtime.load(built.pte)(*nhwc_inputs(samples[1]))
    wanted = NhwcIo(model)(*nhwc_inputs(samples[1]))
    assert found[0].shape == (1, 10, 12, 5)
    for mine, real in zip(found, wanted.values(), strict=True):
        assert (mine - real).abs().max() < 0.05 * real.abs().max()


def test_a_quantized_model_is_refused() -> None:
    with pytest.raises(EthorchError, match="got a quantized model"):
        with_nhwc_io(UserModel(Net(), (), quantized=True))
