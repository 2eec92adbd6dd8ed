"""Quantize activations to 16 bits, for the whole model or only for the modules that require it.

``python examples/int16.py`` prints the SQNR against the float model and the cycles estimated by Vela, for int8 and for 16x8. A
search then changes modules to 16 bits until the mixed-precision model reaches 55 dB.
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
    """A model with a body that is accurate in int8, and a gate that is not, because it has a few large values."""

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
test_inputs = [(torch.randn(4, 32),) for _ in range(8)]
spec = EthosUCompileSpec("ethos-u85-256")


def measure_sqnr_db(quantized: nn.Module) -> float:
    """Return the SQNR in dB on inputs that are not part of the calibration."""
    with torch.no_grad():
        return ethorch.sqnr_db([model(*x) for x in test_inputs], [quantized(*x) for x in test_inputs])


user = UserModel(model, samples[0], samples)
with quiet():  # without warnings about the internals of torch
    for name, config in (
        ("int8", get_symmetric_quantization_config(is_per_channel=True)),
        ("16x8", get_symmetric_a16w8_quantization_config(is_per_channel=True)),
    ):
        quantized = quantize(user, spec, config)
        cycles = sum(delegate.performance.npu_cycles for delegate in build_pte(quantized, samples[0], spec).delegates)
        print(f"{name:6}{measure_sqnr_db(quantized):6.1f} dB {cycles:7.0f} cycles")
mixed = ethorch.tuning.mixed_precision(model, spec, samples, target_sqnr_db=55)
print(f"modules raised to 16 bits, in this order:\n{mixed}")
