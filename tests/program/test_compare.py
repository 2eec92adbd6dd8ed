"""``Program.compare``: the ladder, and each operator's own."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch.lower.builder.qparams import QTensor
from ethorch.lower.ops.spec import OPS
from ethorch.program.comparison import Comparison
from ethorch.program.program import record_of
from ethorch.support.errors import EthorchError, HostError


@pytest.fixture(scope="module")
def comparison(program: ethorch.Program, images: list[Tensor]) -> Comparison:
    return program.compare(samples=images[:3])


class Keeps(nn.Module):
    """Operators on the CPU between those of the NPU, and a buffer that each call adds to."""

    state: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)
        self.register_buffer("state", torch.zeros(1, 8, 14, 14))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.relu(self.first(x)) + self.state
        self.state.copy_(x)
        y = self.second(torch.topk(x, 8, dim=1)[0])
        return y, y > 0.1


def test_last_operator_is_the_output(comparison: Comparison) -> None:
    last, output = comparison.layers[-1], comparison.outputs[0]
    assert last.operator == "aten.linear.default" and last.module == "5" and last.on_npu
    assert last.float_npu_db == pytest.approx(output.npu_db, abs=1e-3)
    assert last.float_fake_db == pytest.approx(output.quantized_db, abs=1e-3)
    assert last.steps * (last.scale or 0) == pytest.approx(output.largest_difference, abs=1e-6)
    assert comparison.bit_exact and comparison.first_divergence is None and comparison.samples == 3 and not comparison.missing


def test_outputs_are_those_of_all_samples(
    comparison: Comparison, program: ethorch.Program, model: nn.Module, images: list[Tensor]
) -> None:
    floats, found = [model(x).detach() for x in images[:3]], [program(x) for x in images[:3]]
    assert comparison.outputs[0].npu_db == pytest.approx(ethorch.sqnr_db(floats, found), abs=1e-6)


def test_operators_in_front_are_those_of_the_float_model(comparison: Comparison, model: nn.Module, images: list[Tensor]) -> None:
    """The dB of an operator in the middle, against what the float model and the program's codes say apart from compare."""
    convolution = next(layer for layer in comparison.layers if "aten.conv2d.default" in (layer.operator, *layer.fused))
    assert convolution.operator == "aten.relu6.default" or convolution.fused == ("aten.conv2d.default",)
    assert convolution.scale is not None and convolution.float_fake_db is not None and convolution.own_db is not None
    assert isinstance(model, nn.Sequential)
    real = [model[:3](x) for x in images[:3]]
    rounded = [(x / convolution.scale).round() * convolution.scale for x in real]
    best = ethorch.sqnr_db(real, rounded)  # nothing but the rounding of the result
    assert best - 12 < convolution.float_fake_db <= convolution.own_db + 1 <= best + 1
    assert convolution.elements == real[0].numel() and 0.5 < (convolution.range_used or 0) <= 1


def test_each_input_is_a_line(comparison: Comparison, images: list[Tensor]) -> None:
    first = comparison.layers[0]
    assert first.operator == "input" and not first.on_npu and first.steps == 0 and first.scale is not None
    rounded = [(x / first.scale).round() * first.scale for x in images[:3]]
    assert first.own_db == pytest.approx(ethorch.sqnr_db(images[:3], rounded), abs=0.5)


@pytest.mark.parametrize("io", [pytest.param("int8", marks=pytest.mark.long), "uint8"])
def test_codes_as_inputs_and_outputs_compare_as_floats(
    io: str, comparison: Comparison, model: nn.Module, images: list[Tensor]
) -> None:
    found = ethorch.compile(model, images[0], calibration=images, io=io).compare(samples=images[:3])
    assert found.bit_exact and found.first_divergence is None
    assert found.outputs[0].npu_db == pytest.approx(comparison.outputs[0].npu_db, abs=6)
    assert [x.node for x in found.layers if x.operator not in ("input", "requantize")] == [x.node for x in comparison.layers[1:]]


def test_where_lowering_is_wrong_is_named_and_only_there(
    model: nn.Module, images: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = OPS["aten.adaptive_avg_pool2d.default"]

    def wrong(b: Any, *args: Any, out: Any) -> QTensor:
        assert right.lower is not None
        y = right.lower(b, *args, out=out)
        return QTensor(b.clamp(y.value, -128, -40), y.dims, y.q)

    monkeypatch.setitem(OPS, right.name, replace(right, lower=wrong))
    found = ethorch.compile(model, images[0], calibration=images).compare(images[1])
    first = found.first_divergence
    assert first is not None and first.operator == right.name and first.module == "3"
    assert first.own_steps > 1 and not any(x.diverges for x in found.layers if x is not first)
    assert found.layers[-1].steps > 1, "what is behind differs by what came before"
    assert found.bit_exact, "the simulator computes what was lowered"
    assert "first differ at adaptive_avg_pool2d at 3" in str(found)


def test_where_most_noise_enters_is_named(images: list[Tensor]) -> None:
    """One scale for all of the weights, and one of them large: the others are a step or two."""

    class Outlier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.good, self.bad, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1, bias=False), nn.Conv2d(8, 4, 3)
            with torch.no_grad():
                self.bad.weight[0, 0] = 60.0

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.good(x))
            x = self.bad(x)[:, 1:]
            return self.last(torch.cat([x, x[:, :1]], 1))

    program = ethorch.compile(Outlier(), images[0], calibration=images, scheme="int8-per-tensor")
    found = program.compare(samples=images)
    loss = found.largest_loss
    assert loss is not None and loss.source.startswith("test_compare.py:") and loss.own_db is not None
    by_module = {x.module: x for x in found.layers if x.operator == "aten.conv2d.default"}
    assert loss.own_db < min(by_module[name].own_db or 0 for name in ("last",)) - 6
    assert f"{loss} adds the most noise" in str(found)


def test_what_moves_codes_adds_no_noise(comparison: Comparison) -> None:
    flatten = next(x for x in comparison.layers if x.operator.startswith("aten.flatten"))
    before = comparison.layers[comparison.layers.index(flatten) - 1]
    assert flatten.own_db == float("inf") and flatten.float_fake_db == before.float_fake_db


def test_several_delegates_and_a_buffer(images: list[Tensor]) -> None:
    model = Keeps().eval()
    program = ethorch.compile(model, images[0], calibration=images)
    assert record_of(program).build is not None and len(record_of(program).build.delegates) == 2
    found = program.compare(samples=images[:3])
    assert found.bit_exact and found.first_divergence is None
    assert len(found.delegates) == 2 and all(delegate.elements for delegate in found.delegates)
    by_name = {x.operator.split(".")[1] if "." in x.operator else x.operator: x for x in found.layers}
    assert not by_name["topk"].on_npu and by_name["conv2d"].on_npu
    assert by_name["gt"].dtype == "bool" and by_name["gt"].scale is None and by_name["gt"].saturated is None
    assert by_name["conv2d"].float_npu_db == pytest.approx(found.outputs[0].npu_db, abs=1e-3)
    assert not model.state.any(), "the user's buffers are as they were"
    assert program.compare(samples=images[:3]) == found, "and so are the program's"


def test_control_flow_compares_its_outputs(images: list[Tensor]) -> None:
    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor, flag: Tensor) -> Tensor:
            return torch.cond(flag, lambda y: torch.relu(y), lambda y: y * 0.5, (self.conv(x),))

    torch.manual_seed(0)
    samples = [(image, torch.tensor(number % 2 == 0)) for number, image in enumerate(images)]
    program = ethorch.compile(Chooses().eval(), samples[0], "ethos-u85-256", calibration=samples)
    found = program.compare(samples=samples[:2])
    assert found.bit_exact and not found.layers and "control flow" in found.missing and found.outputs[0].npu_db > 20


def test_clipping_is_a_share_of_the_elements(images: list[Tensor]) -> None:
    """Calibrated with dark pictures; of a bright one, what exceeds the range is clipped."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    program = ethorch.compile(model, images[0], calibration=[0.5 * image for image in images])
    found = program.compare(images[1]).layers[0]
    codes = ethorch.compile(model, images[0], calibration=[0.5 * image for image in images], io="int8").inputs[0].codes
    assert codes is not None and codes.scale == found.scale
    share = float((images[1] > (codes.high - codes.zero_point + 0.5) * codes.scale).double().mean())
    assert found.saturated == pytest.approx(share, abs=1e-6) and share > 0.1
    low = codes.quantize(images[1]).min()
    assert found.range_used == pytest.approx((codes.high - int(low) + 1) / 256)


def test_quantized_model_needs_the_float_one(model: nn.Module, images: list[Tensor], comparison: Comparison) -> None:
    program = ethorch.compile(ethorch.quantize(model, images[0], calibration=images), images[0])
    with pytest.raises(EthorchError, match=r"compiled from a quantized model.*compare\(x, model=model\)"):
        program.compare(images[0])
    assert program.compare(samples=images[:3], model=model) == comparison
    other = nn.Sequential(nn.Conv2d(3, 10, 16), nn.Flatten()).eval()
    found = program.compare(images[0], model=other)
    assert "quantized model differ" in found.missing
    assert all(x.float_fake_db is None and x.own_db is None for x in found.layers) and found.layers[-1].fake_npu_db > 30


def test_file_compares_its_outputs(program: ethorch.Program, model: nn.Module, images: list[Tensor]) -> None:
    loaded = ethorch.load(program.pte)
    with pytest.raises(EthorchError, match=r"a \.pte does not contain the float model"):
        loaded.compare(images[0])
    found = loaded.compare(images[0], model=model)
    assert not found.layers and "does not contain the quantized model" in found.missing
    assert found.outputs[0].npu_db == pytest.approx(ethorch.sqnr_db(model(images[0]), program(images[0])))
    assert found.to_json()["outputs"][0]["quantized_db"] is None


def test_file_compares_samples_of_every_form(program: ethorch.Program, model: nn.Module, images: list[Tensor]) -> None:
    loaded = ethorch.load(program.pte)
    found = loaded.compare(samples=images[:3], model=model)
    for samples in (torch.cat(images[:3]), [image[0] for image in images[:3]], ethorch.samples(torch.cat(images), limit=3)):
        assert loaded.compare(samples=samples, model=model) == found


def test_json_is_strict_and_has_every_figure(comparison: Comparison) -> None:
    found = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert found["largest_loss"] == (comparison.largest_loss and comparison.largest_loss.node)
    assert found["first_divergence"] is None and found["bit_exact"] is True
    assert len(found["layers"]) == len(comparison.layers) and found["layers"][0]["fake_npu_db"] is None


def test_table_has_a_line_for_each_operator(comparison: Comparison) -> None:
    lines = comparison.table().splitlines()
    assert len(lines) == len(comparison.layers) + 2
    assert lines[-1].startswith("linear 5") and all(line == line.rstrip() for line in lines)


def test_without_inputs_the_example_is_compared(program: ethorch.Program, images: list[Tensor]) -> None:
    assert program.compare() == program.compare(images[0])


def test_inputs_that_do_not_fit_are_refused(program: ethorch.Program) -> None:
    with pytest.raises(HostError, match=r"float32\[1, 3, 16, 16\]"):
        program.compare(torch.rand(1, 3, 8, 8))
    with pytest.raises(EthorchError, match="expected inputs or samples, got none"):
        program.compare(samples=[])


def test_what_is_left_in_float_is_not_tried_on_the_npu(images: list[Tensor]) -> None:
    """Its neighbours are quantized, and so are its operands; its weights are not."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1)).eval()
    program = ethorch.compile(model, images[0], calibration=images, modules={"1": "float"})
    assert record_of(program).build is not None
    assert [(x.origin.module, x.reason.id) for x in record_of(program).build.partition.refusals] == [("1", "quantize.left_out")]
    found = program.compare(images[0])
    assert found.first_divergence is None and [x.on_npu for x in found.layers if x.module == "1"] == [False]
