"""Where int8 is not enough: activations of 16 bits for the whole model, or for the modules that need them.

``python examples/int16.py``: SQNR against the float model, and Vela's cycles, of int8, 16x8 and of a mixture that is raised until
it reaches 55 dB.
"""

import torch
from torch import Tensor, nn

import ethorch
from ethorch import EthosUCompileSpec
from ethorch.arm.quantizer import get_symmetric_a16w8_quantization_config, get_symmetric_quantization_config
from ethorch.backend.build import build_pte
from ethorch.models.load import UserModel
from ethorch.quantization.calibrate import quantize
from ethorch.support.quiet import quiet


class Spiky(nn.Module):
    """A first layer that int8 holds well, and a gate with a few large values, which it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32), nn.Tanh())
        self.gate = nn.Linear(32, 32)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return self.head(x * self.gate(x) ** 3)


torch.manual_seed(0)
model = Spiky().eval()
samples = [(torch.randn(4, 32),) for _ in range(16)]
fresh = [(torch.randn(4, 32),) for _ in range(8)]
spec = EthosUCompileSpec("ethos-u85-256")


def decibels(quantized: nn.Module) -> float:
    """SQNR on inputs that were not calibrated with."""
    with torch.no_grad():
        return ethorch.sqnr_db([model(*x) for x in fresh], [quantized(*x) for x in fresh])


user = UserModel(model, samples[0], samples)
with quiet():  # without warnings about the internals of torch
    for name, config in (
        ("int8", get_symmetric_quantization_config(is_per_channel=True)),
        ("16x8", get_symmetric_a16w8_quantization_config(is_per_channel=True)),
    ):
        quantized = quantize(user, spec, config)
        cycles = sum(delegate.performance.npu_cycles for delegate in build_pte(quantized, samples[0], spec).delegates)
        print(f"{name:6}{decibels(quantized):6.1f} dB {cycles:7.0f} cycles")
mixed = ethorch.tuning.mixed_precision(model, spec, samples, target_sqnr_db=55)
print(f"raised to 16 bits, in this order:\n{mixed}")
