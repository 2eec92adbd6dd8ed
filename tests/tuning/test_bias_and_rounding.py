"""Corrected biases and rounded weights: each keeps its promise, with few bits."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

import ethorch
from ethorch import sqnr_db
from ethorch.arm.quantizer import get_symmetric_quantization_config
from ethorch.tuning.weight_rounding import compensate
from tests.helpers.quantized import prepared, quantizer
from tests.tuning.networks import CALIBRATION, FOUR_BITS, Uneven, quality

pytestmark = pytest.mark.core


def test_bias_correction_takes_the_mean_error_away() -> None:
    model = Uneven().eval()

    def mean_error(graph: nn.Module) -> float:
        with torch.no_grad():
            return float(torch.stack([(graph(*x) - model(*x)).mean((0, 2, 3)) for x in CALIBRATION]).mean(0).norm())

    plain = prepared(copy.deepcopy(model), CALIBRATION, quantizer(FOUR_BITS))
    corrected = ethorch.tuning.correct_bias(copy.deepcopy(plain), CALIBRATION)
    plain, corrected = convert_pt2e(plain), convert_pt2e(corrected)
    assert mean_error(corrected) < 0.3 * mean_error(plain)
    assert quality(model, corrected) > quality(model, plain)
    torch.export.export(corrected, CALIBRATION[0])


def test_layers_without_a_bias_get_one() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.Conv2d(8, 4, 3, bias=False)).eval()
    graph = ethorch.tuning.correct_bias(prepared(model, CALIBRATION, quantizer(FOUR_BITS)), CALIBRATION)
    assert sum(name.startswith("_bias_of") for name, _ in graph.named_parameters()) == 2
    torch.export.export(convert_pt2e(graph), CALIBRATION[0])


@pytest.mark.parametrize("shape", [(12,), (3, 12), (2, 3, 12)])
def test_a_linear_layers_bias_is_corrected_in_any_rank(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer, data = nn.Linear(12, 5).eval(), [(torch.rand(shape),) for _ in range(8)]
    plain = prepared(layer, data, quantizer(FOUR_BITS))
    corrected = convert_pt2e(ethorch.tuning.correct_bias(copy.deepcopy(plain), data))

    def mean_error(graph: nn.Module) -> float:
        with torch.no_grad():
            return float(torch.stack([(graph(*x) - layer(*x)).reshape(-1, 5).mean(0) for x in data]).mean(0).norm())

    assert mean_error(corrected) < 0.5 * mean_error(convert_pt2e(plain))


def test_rounding_for_the_output_gains_with_four_bits() -> None:
    model = Uneven().eval()
    plain = prepared(copy.deepcopy(model), CALIBRATION, quantizer(FOUR_BITS))
    rounded = ethorch.tuning.round_weights(copy.deepcopy(plain), CALIBRATION)
    plain, rounded = convert_pt2e(plain), convert_pt2e(rounded)
    assert quality(model, rounded) > quality(model, plain) + 0.4
    weights = [b for name, b in rounded.named_buffers() if "frozen" in name]
    assert max(int(w.abs().max()) for w in weights) <= 7


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(12, 5),
        nn.Linear(12, 5, bias=False),
        nn.Conv1d(3, 6, 3, stride=2, padding=1),
        nn.Conv2d(3, 6, 3, dilation=2, padding=2),
        nn.Conv2d(3, 6, 1, groups=3),
        nn.Conv2d(3, 6, 3, padding="same"),
        nn.Conv3d(3, 6, 2, stride=(1, 2, 1), padding=(0, 1, 0)),
    ],
    ids=str,
)
def test_every_kind_of_layer_is_rounded_for_its_output(layer: nn.Module) -> None:
    torch.manual_seed(0)
    layer.reset_parameters()
    shape = {nn.Conv1d: (4, 3, 12), nn.Conv3d: (2, 3, 4, 5, 6)}.get(type(layer), (2, 3, 12, 12))
    data = [(torch.randn(shape, generator=torch.Generator().manual_seed(i)).cumsum(-1),) for i in range(8)]
    config = get_symmetric_quantization_config(weight_qmin=-3, weight_qmax=3)
    plain = prepared(nn.Sequential(layer).eval(), data, quantizer(config))
    rounded = ethorch.tuning.round_weights(copy.deepcopy(plain), data)
    graphs = [convert_pt2e(g) for g in (plain, rounded)]
    with torch.no_grad():
        wanted = [layer(*x) for x in data]
        before, after = (sqnr_db(wanted, [g(*x) for x in data]) for g in graphs)
    one_weight = layer.weight[0].numel() == 1  # its scale fits it: only the bias changes, in units that are coarse beside 7 codes
    assert after > before or (one_weight and after >= before - 1)


def test_compensation_is_exact_for_what_fits_and_never_worse_in_its_own_measure() -> None:
    generator = torch.Generator().manual_seed(0)
    scale = torch.full((1, 4, 1), 0.1)
    on_grid = torch.randint(-7, 8, (1, 4, 6), generator=generator) * 0.1
    rows = torch.randn(1, 200, 6, generator=generator)
    rows[..., 1] = rows[..., 0] * 0.9 + rows[..., 1] * 0.1
    moments = rows.transpose(1, 2) @ rows
    torch.testing.assert_close(compensate(on_grid, moments, scale, -7, 7), on_grid)
    weight = torch.randn(1, 4, 6, generator=generator) * 0.3

    def loss(codes: Tensor) -> float:
        return float(((rows @ (weight - codes).transpose(1, 2)) ** 2).sum())

    nearest = torch.clamp(torch.round(weight / scale), -7, 7) * scale
    assert loss(compensate(weight, moments, scale, -7, 7)) < loss(nearest)
