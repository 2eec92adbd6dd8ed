"""Ranges and scales: what each calibration method promises, on data made to tell them apart; and the warnings about data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from statistics import fmean

import pytest
import torch
from torch import Tensor, nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

from ethorch.quantization.activation_observer import ActivationObserver
from ethorch.quantization.calibration_checks import InputStatistics
from ethorch.quantization.weight_observer import PerChannelWeightObserver, WeightObserver
from ethorch.support.errors import QuantizationError
from ethorch.support.metrics import sqnr_db
from tests.helpers.quantized import prepared, quantizer


def observed(tensors: Sequence[Tensor], **kwargs: object) -> ActivationObserver:
    observer = ActivationObserver(quant_min=-128, quant_max=127, **kwargs)  # type: ignore[arg-type]
    for x in tensors:
        assert observer(x) is x
    return observer


def ends(observer: ActivationObserver) -> tuple[float, float]:
    scale, zero = (float(v) for v in observer.calculate_qparams())
    return (observer.quant_min - zero) * scale, (observer.quant_max - zero) * scale


def normal(count: int, size: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) for _ in range(count)]


def test_int16_covers_a_rare_value_that_the_histogram_missed() -> None:
    """Of 116,427 attention weights 16,384 are counted. Clipping the largest cost 20 dB."""
    x = torch.full((116_427,), 0.01)
    x[100] = 0.25
    observer = ActivationObserver(dtype=torch.int16, qscheme=torch.per_tensor_symmetric, quant_min=-32767, quant_max=32767)
    observer(x)
    assert float(observer.histogram.sum()) < 20_000 and ends(observer)[1] > 0.24


@pytest.mark.parametrize("share", [0.5, 0.02, 0.001, 0.00001])
def test_few_nonzero_elements_are_not_clipped(share: float) -> None:
    """A cache with one row of 1,024 had a quarter of its range, because 16 of 768 nonzero elements were counted."""
    torch.manual_seed(0)
    x = torch.randn(786_432) * (torch.rand(786_432) < share)
    scale, zero = (float(v) for v in observed([x] * 4).calculate_qparams())
    assert sqnr_db(x, torch.fake_quantize_per_tensor_affine(x, scale, int(zero), -128, 127)) > 38


def test_minmax_covers_everything_seen() -> None:
    tensors = [*normal(3, 1000), torch.tensor([-9.0, 31.0])]
    low, high = ends(observed(tensors, method="minmax"))
    assert low == pytest.approx(-9, abs=0.2) and high == pytest.approx(31, abs=0.2)


def test_moving_average_follows_the_extremes() -> None:
    observer = observed([torch.tensor([0.5, 1.0]), torch.tensor([0.5, 2.0])], method="moving_average", averaging_constant=0.25)
    assert ends(observer)[1] == pytest.approx(1.25, abs=0.01)


def test_percentile_leaves_the_rest_outside() -> None:
    tensors = [torch.linspace(0, 100, 10001)]
    low, high = ends(observed(tensors, method="percentile", percentile=90))
    assert high == pytest.approx(95, abs=0.5) and low <= 0.0
    assert ends(observed(tensors, method="percentile", percentile=100))[1] == pytest.approx(100, abs=0.5)


def test_least_squares_beats_minmax_on_an_outlier() -> None:
    tensors = [torch.cat([x, torch.tensor([60.0])]) for x in normal(8, 30000)]
    errors = {}
    for method in ("mse", "minmax"):
        scale, zero = (float(v) for v in observed(tensors, method=method).calculate_qparams())
        errors[method] = sum(
            float(((torch.fake_quantize_per_tensor_affine(x, scale, int(zero), -128, 127) - x) ** 2).sum()) for x in tensors
        )
    assert errors["mse"] <= errors["minmax"]
    clean = observed(normal(8, 30000), method="mse")
    assert 2.5 < ends(clean)[1] < 5


def test_few_values_that_vary_get_room_for_the_next_input() -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.rand(64, generator=generator) * scale for scale in (1.0, 2.5, 1.4, 0.8, 2.0, 1.2, 1.7, 2.2)]
    largest = max(float(x.max()) for x in tensors)
    assert largest * 1.02 < ends(observed(tensors))[1] < largest * 2
    same = [x / x.max() * 6 for x in tensors]  # all reach the same bound: a clamp, which the next one will not pass either
    assert ends(observed(same))[1] == pytest.approx(6, abs=0.05)


def test_small_tensors_lose_less_on_fresh_inputs_and_little_on_those_seen() -> None:
    """Few inputs clip much, so the range is between the one of all that was seen and the one of least mean squared error."""
    fresh, seen = [], []
    for seed in range(12):
        tensors, others = normal(4, 32, seed=100 * seed), normal(16, 32, seed=100 * seed + 50)
        errors = {}
        for method in ("mse", "minmax"):
            scale, zero = (float(v) for v in observed(tensors, method=method).calculate_qparams())
            errors[method] = [
                sqnr_db(x, torch.fake_quantize_per_tensor_affine(x, scale, int(zero), -128, 127))
                for x in (torch.cat(others), torch.cat(tensors))
            ]
        gains = [mse - minmax for mse, minmax in zip(errors["mse"], errors["minmax"], strict=True)]
        fresh.append(gains[0])
        seen.append(gains[1])
    assert fmean(fresh) > 3 and fmean(seen) > -4


@pytest.mark.parametrize("elements", [2000, 8000])
def test_large_tensors_get_no_room(elements: int) -> None:
    """Fresh extremes clip too few of their elements: room would cost 0.4 to 1.4 dB of an operator on normal inputs."""
    for seed in range(4):
        tensors = normal(4, elements, seed=100 * seed)
        low, high = ends(observed(tensors))
        reach = max(float(x.max()) for x in tensors) - min(float(x.min()) for x in tensors)
        assert 0.85 * reach < high - low < 1.01 * reach


def test_one_outlying_input_of_few_elements_does_not_stretch_the_range_fivefold() -> None:
    """GhostNetV3's last stages: the range was four times the largest value seen, and the Arm backend 2 dB ahead."""
    tensors = normal(4, 320)
    tensors[2] = 5 * tensors[2]
    largest = max(float(x.abs().max()) for x in tensors)
    low, high = ends(observed(tensors))
    assert -2.6 * largest < low < -0.9 * largest and 0.8 * largest < high < 2.6 * largest


@pytest.mark.parametrize("method", ["mse", "minmax"])
def test_a_softmax_of_one_place_has_a_range(method: str) -> None:
    observer = observed([torch.ones(8)] * 4, method=method, fixed_range=(0.0, 255 / 256))
    assert ends(observer)[1] == pytest.approx(255 / 256, abs=1e-3)


def test_histograms_of_growing_reach_stay_exact() -> None:
    observer = observed([torch.full((10,), 0.3), torch.full((20,), 5.0), torch.full((5,), -700.0)])
    assert float(observer.histogram.sum()) == 35 and observer.seen.reach == 1024
    width = observer.seen.reach / 2048
    assert float(observer.histogram[2048 + int(0.3 / width)]) == 10 and float(observer.histogram[2048 + int(5 / width)]) == 20


def test_infinity_is_left_out_and_empty_and_zero_tensors_are_fine() -> None:
    low, high = ends(observed([torch.tensor([float("-inf"), -1.0, 0.5, 2.0]), torch.empty(0)], method="minmax"))
    assert low == pytest.approx(-1, abs=0.1) and high == pytest.approx(2, abs=0.1)
    assert float(observed([torch.zeros(5)]).calculate_qparams()[0]) > 0
    assert float(observed([torch.empty(0)]).calculate_qparams()[0]) > 0


@pytest.mark.parametrize("tensors", [[1e-42], [1e-42, 1.0], [1e-42, 5.0, 1e37]])
def test_denormal_and_huge_values_are_counted(tensors: list[float]) -> None:
    observer = observed([torch.tensor([0.0, x]) for x in tensors])
    assert float(observer.histogram.sum()) == 2 * len(tensors)
    assert max(tensors) <= ends(observer)[1] <= max(2.6 * max(tensors), 1e-4)


@pytest.mark.parametrize("method", ["mse", "minmax", "percentile"])
def test_a_range_beyond_float32_is_an_error(method: str) -> None:
    with pytest.raises(QuantizationError, match=r"got -3e\+38 to 3e\+38.*clamp .*\[calibration\.overflow\]"):
        observed([torch.tensor([-3e38, 3e38])], method=method).calculate_qparams()


def test_what_is_moved_more_than_once_is_observed_once() -> None:
    """A pooled tensor has smaller extremes; taken for another input, they look like a spread, and the range grows by it."""

    class Moved(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            pooled = nn.functional.avg_pool2d(x.unsqueeze(1).transpose(-1, -2), (4, 1))
            return nn.functional.adaptive_avg_pool1d(pooled.flatten(1)[:, 3:40].unsqueeze(0), 5)

    tensors = [x.reshape(1, 10, 20) for x in normal(3, 200)]
    observers = [m for m in prepared(Moved(), [(x,) for x in tensors], quantizer()).modules() if isinstance(m, ActivationObserver)]
    assert len(observers) == 1 and observers[0].seen.highs == [float(x.max()) for x in tensors]


def test_nothing_observed_is_an_error() -> None:
    with pytest.raises(QuantizationError, match=r"\[calibration\.none\]"):
        observed([]).calculate_qparams()


def test_weights_per_channel_on_any_axis_and_as_a_whole() -> None:
    w = torch.tensor([[1.0, -2.0, 4.0], [8.0, 0.5, -1.0]])
    for axis, wanted in ((0, [4.0, 8.0]), (1, [8.0, 2.0, 4.0])):
        observer = PerChannelWeightObserver(ch_axis=axis, quant_min=-127, quant_max=127)
        observer(w)
        torch.testing.assert_close(observer.calculate_qparams()[0] * 127, torch.tensor(wanted))
    whole = WeightObserver(qscheme=torch.per_tensor_symmetric, quant_min=-127, quant_max=127)
    whole(w)
    torch.testing.assert_close(whole.calculate_qparams()[0] * 127, torch.tensor([8.0]))


def test_a_weight_that_changes_is_observed_again() -> None:
    w = torch.ones(2, 2)
    observer = PerChannelWeightObserver(quant_min=-127, quant_max=127)
    observer(w)
    w.mul_(3)
    observer(w)
    torch.testing.assert_close(observer.calculate_qparams()[0] * 127, torch.tensor([3.0, 3.0]))


def test_least_squares_weights_lose_less() -> None:
    w = torch.randn(4, 500, generator=torch.Generator().manual_seed(0)) ** 3

    def loss(method: str) -> float:
        observer = PerChannelWeightObserver(method=method, quant_min=-7, quant_max=7)
        observer(w)
        scale = observer.calculate_qparams()[0][:, None]
        return float(((torch.clamp(torch.round(w / scale), -7, 7) * scale - w) ** 2).sum())

    assert loss("mse") < 0.9 * loss("max")


def test_a_bias_beyond_the_accumulator_is_said_and_made_to_fit(caplog: pytest.LogCaptureFixture) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)
            with torch.no_grad():
                self.linear.weight.fill_(1e-6)
                self.linear.bias.copy_(torch.tensor([1e6, 1e-3]))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x)

    calibration = [(torch.randn(3, 4, generator=torch.Generator().manual_seed(i)) / 100,) for i in range(3)]
    with caplog.at_level(logging.WARNING):
        graph = convert_pt2e(prepared(Model(), calibration, quantizer()))
    assert all(
        x in caplog.text
        for x in (
            "linear_weight: bias / (input scale x weight scale) exceeds half the range of biases in channels [0]",
            "[bias.accumulator]",
        )
    )
    scales = next(b for name, b in graph.named_buffers() if "scale" in name)
    first = next(n for n in graph.graph.nodes if "quantize_per_tensor" in str(n.target))
    assert 1e6 / (float(scales[0]) * first.args[1]) < 2**31


@pytest.mark.parametrize("function", [torch.asin, torch.acos, torch.atanh])
def test_inputs_of_inverse_functions_stay_in_their_domain(function: Callable[[Tensor], Tensor]) -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x)

    extremes = (0.5, 0.99, 0.7, 0.6)
    calibration = [(torch.linspace(-most, most, 40),) for most in extremes]
    graph = convert_pt2e(prepared(Model(), calibration, quantizer()))
    scale, zero = next(n.args[1:3] for n in graph.graph.nodes if "quantize_per_tensor" in str(n.target))
    assert (127 - zero) * scale <= 1.005 and (-128 - zero) * scale >= -1.005
    assert torch.isfinite(graph(torch.linspace(-0.95, 0.95, 40))).all()


# --- warnings about the data -----------------------------------------------------------------------------------------


class Pool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(x, 2)


def picture(seed: int) -> Tensor:
    noise = torch.randn(1, 3, 40, 40, generator=torch.Generator().manual_seed(seed))
    return nn.functional.avg_pool2d(noise, 9, 1)


def warnings_for(tensors: Sequence[Tensor], caplog: pytest.LogCaptureFixture) -> str:
    with caplog.at_level(logging.WARNING):
        convert_pt2e(prepared(Pool(), [(x,) for x in tensors], quantizer()))
    return " ".join(r.getMessage() for r in caplog.records if r.name.startswith("ethorch"))


def test_a_single_sample_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert "[calibration.single_sample]" in warnings_for([picture(0)], caplog)


def test_noise_next_to_pictures_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    mixed = [torch.randn(1, 3, 32, 32), *map(picture, range(3))]
    assert "tensors [0] of input x look like noise compared with" in warnings_for(mixed, caplog)


def test_nothing_but_noise_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    noise = [torch.randn(1, 3, 32, 32) for _ in range(3)]
    assert (
        "all calibration tensors of input x look like noise" in warnings_for(noise, caplog) and "[calibration.noise]" in caplog.text
    )


def test_neighbors_along_any_axis_correlate() -> None:
    walk = torch.randn(2, 200, 3).cumsum(1)  # time steps correlate, features do not
    assert InputStatistics.of(walk).correlation > 0.5
    assert InputStatistics.of(walk[:, :, :1]).correlation > 0.5
    assert abs(InputStatistics.of(torch.randn(2, 200, 16)).correlation) < 0.1
    assert InputStatistics.of(torch.ones(2, 200, 3)).correlation is None
    assert InputStatistics.of(torch.tensor(1.0)).correlation is None


@pytest.mark.parametrize("period", [2, 3, 4, 5, 9])
def test_a_tone_is_not_noise(period: int) -> None:
    tone = torch.cos(torch.arange(600) * 2 * torch.pi / period)[None, None]
    assert abs(InputStatistics.of(tone).correlation) > 0.4


def test_pictures_are_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_for([picture(i) for i in range(3)], caplog) == ""
