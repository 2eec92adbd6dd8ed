"""Use 4-bit weights, rounded to minimize the error of each layer, and inputs in channels-last order.

``python examples/four_bits.py`` prints the SQNR against the float model with and without this rounding, and the timeline of the
first NPU operations.
"""

import torch
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import ethorch
from ethorch import figures
from ethorch.arm.quantizer import get_symmetric_a8w4_quantization_config
from ethorch.models.layouts import NhwcIo, from_nhwc, to_nhwc

torch.manual_seed(0)
layers = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3)).eval()
model = NhwcIo(layers)
samples = [(to_nhwc(torch.rand(1, 3, 16, 16)),) for _ in range(8)]
assert torch.equal(from_nhwc(model(*samples[0])), layers(from_nhwc(*samples[0])))


def quantize(rounds: bool) -> nn.Module:
    quantizer = ethorch.EthosUQuantizer(ethorch.EthosUCompileSpec("ethos-u55-128"))
    quantizer.set_global(get_symmetric_a8w4_quantization_config(is_qat=False))
    prepared = prepare_pt2e(torch.export.export(model, samples[0]).module(), quantizer)
    for sample in samples:
        prepared(*sample)
    converted: nn.Module = convert_pt2e(ethorch.tuning.round_weights(prepared, samples) if rounds else prepared)
    return converted


for rounds in (False, True):
    decibels = ethorch.sqnr_db(model(*samples[0]), quantize(rounds)(*samples[0]))
    print(f"{decibels:.1f} dB {'with' if rounds else 'without'} rounding for the least error")

program = ethorch.compile(model, samples[0], "ethos-u55-128", calibration=samples, progress=False)
events: tuple[figures.Event, ...] = figures.timeline(program.delegates[0].layers)
for event in events[:3]:
    print(event)
