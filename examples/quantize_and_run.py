"""Quantize a small CNN, compile it to a .pte for the Ethos-U55, and run the .pte in the simulator.

``python examples/quantize_and_run.py [FILE.pte]`` uses the standard flow of PyTorch and ExecuTorch. ethorch provides the
quantizer, the partitioner and the NPU simulator.
"""

import sys

import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from torch import Tensor, nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ethorch import EthosUCompileSpec, EthosUPartitioner, EthosUQuantizer, runtime
from ethorch.arm.quantizer import get_symmetric_quantization_config


class Residual(nn.Module):
    """Two convolutions with a shortcut, as in the ResNets of torchvision."""

    def __init__(self, channels: int):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(self.first(x)))


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), Residual(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
).eval()
images = [torch.rand(1, 3, 32, 32) for _ in range(16)]  # use real images: their ranges set the quantization parameters

# Quantize. The calibration inputs determine the ranges.
spec = EthosUCompileSpec("ethos-u55-128")
quantizer = EthosUQuantizer(spec).set_global(get_symmetric_quantization_config(is_per_channel=True))
prepared = prepare_pt2e(torch.export.export(model, (images[0],)).module(), quantizer)
for image in images:
    prepared(image)
quantized = convert_pt2e(prepared)

# Compile. Operators that the NPU supports become a delegate of the ExecuTorch program.
partitioner = EthosUPartitioner(spec)
edge = to_edge_transform_and_lower(
    torch.export.export(quantized, (images[0],)),
    partitioner=[partitioner],
    compile_config=EdgeCompileConfig(_check_ir_validity=False),
)
program = edge.to_executorch(ExecutorchBackendConfig(extract_delegate_segments=False)).buffer
if len(sys.argv) > 1:
    with open(sys.argv[1], "wb") as file:
        file.write(program)
print(partitioner.report.summary())

# Run the program in the runtime of ExecuTorch, with a simulated Ethos-U.
image = torch.rand(1, 3, 32, 32)
(output,) = runtime.load(program)(image)
print("float    ", [f"{x:.3f}" for x in model(image)[0].tolist()])
print("simulator", [f"{x:.3f}" for x in output[0].tolist()])
