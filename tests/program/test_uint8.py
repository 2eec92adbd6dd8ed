"""Programs of uint8: one delegate call and nothing else, and the codes of the quantized model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch import EthosUCompileSpec, EthosUQuantizer, runtime
from ethorch.backend.build import build_pte
from ethorch.models.load import UserModel
from ethorch.program.program import record_of
from ethorch.quantization.calibrate import quantize
from ethorch.quantization.integer_io import boundary_codes

TARGETS = ["ethos-u55-128", "ethos-u65-256", "ethos-u85-256"]


class Two(nn.Module):
    """Two inputs of different ranges, two outputs: one of an operator of its own, one that only moves codes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.relu(self.first(x)) + self.second(y)
        return nn.functional.max_pool2d(z, 2), torch.cat([x, y], 1).permute(0, 2, 3, 1)


@pytest.mark.parametrize(
    ("scheme", "target"),
    [
        pytest.param(scheme, target, marks=[pytest.mark.long] * ((scheme == "a16w8") != (target == "ethos-u65-256")))
        for scheme in ("int8", "a16w8")
        for target in TARGETS
    ],
)
def test_uint8_program_is_one_delegate(scheme: str, target: str, images: list[Tensor]) -> None:
    torch.manual_seed(0)
    samples = [(image, 3 * image.flip(1) - 1) for image in images]
    program = ethorch.compile(Two().eval(), samples[0], target, calibration=samples, io="uint8", scheme=scheme)
    assert [call.operator for call in record_of(program).description.calls] == [""], "a call of the delegate and nothing else"
    assert [info.dtype for info in (*program.inputs, *program.outputs)] == ["uint8"] * 4
    found = program.compare(samples=samples[:3])
    assert found.bit_exact and found.first_divergence is None and len(found.layers) > 4
    assert not [layer for layer in found.layers if not layer.on_npu and layer.operator != "input"]
    assert record_of(program).quantized is not None
    for info, wanted, got in zip(program.outputs, record_of(program).quantized(*samples[3]), program(*samples[3]), strict=True):
        assert got.dtype == torch.uint8 and info.codes is not None
        assert (info.codes.quantize(wanted).int() - got.int()).abs().max() <= 2, "a step of each rounding"


@pytest.mark.parametrize("target", TARGETS)
def test_float_programs_quantize_to_uint8_once(target: str, model: nn.Module, images: list[Tensor]) -> None:
    """As ``set_io`` alone makes them: of floats on both sides. The CPU quantizes and dequantizes, and no more."""
    quantizer = EthosUQuantizer(EthosUCompileSpec(target)).set_global(ethorch.arm.quantizer.get_symmetric_quantization_config())
    quantizer.set_io(ethorch.arm.quantizer.get_uint8_io_quantization_config())
    user = UserModel(model, (images[0],), [(image,) for image in images])
    spec = EthosUCompileSpec(target)
    graph = quantize(user, spec, quantizer=quantizer)
    built = build_pte(graph, user.example_inputs, spec)
    device = runtime.load(built.pte)
    kernels = [call.operator.split("::")[-1] for call in device.description.calls]
    assert kernels == ["quantize_per_tensor.out", "", "dequantize_per_tensor.out"]
    assert isinstance(graph, torch.fx.GraphModule)
    step = boundary_codes(graph)["output0"].scale
    (found,) = device(images[1])
    assert (found - graph(images[1])).abs().max() < 2.5 * step


def test_uint8_that_is_more_than_codes_stays_on_the_cpu(images: list[Tensor]) -> None:
    """A picture of uint8 that the model itself makes floats of is no quantized tensor."""

    class Picture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x.to(torch.float32) / 255)

    samples = [(255 * image).to(torch.uint8) for image in images]
    torch.manual_seed(0)
    model = Picture().eval()
    program = ethorch.compile(model, samples[0], calibration=samples)
    assert program.inputs[0].dtype == "uint8" and program.inputs[0].codes is None
    assert ethorch.sqnr_db(model(samples[1]).detach(), program(samples[1])) > 25


def test_uint8_between_operators_of_the_cpu(images: list[Tensor]) -> None:
    """Delegates hand int8 to the CPU and take it; only what the program takes and gives is uint8."""

    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.topk(torch.relu(self.first(x)), 8, dim=1).values)

    torch.manual_seed(0)
    program = ethorch.compile(Keeps().eval(), images[0], calibration=images, io="uint8")
    assert record_of(program).build is not None and len(record_of(program).build.delegates) == 2
    found = program.compare(samples=images[:2])
    assert found.bit_exact and found.first_divergence is None and found.outputs[0].quantized_db > 20
    calls = [call.operator for call in record_of(program).description.calls]
    assert calls.count("") == 2 and calls[0] == "" and calls[-1] == "", "the ends are the NPU's"
