"""What a lowering adds to the rounding of its result: how far TOSA is off the exact result, against one rounding, in dB."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ethorch.arm.quantizer import get_symmetric_a16w8_quantization_config
from ethorch.tosa.serialize import serialize
from tests.helpers.ladder import lowered
from tests.helpers.quantized import quantized, samples
from tests.helpers.tosa_runs import reference


class Of(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def noise_db(function: Callable[[Tensor], Tensor], shape: tuple[int, ...], factor: float | Tensor, config: Any = None) -> float:
    """How much more than rounding alone the TOSA graph is off the function of the input's codes."""
    calibration = [(x * factor,) for (x,) in samples(shape)]
    q = quantized(Of(function), calibration, config, "ethos-u85-256")
    quantizes = [n for n in q.converted.graph.nodes if ".quantize_per_tensor" in str(n.target)]
    first, last = quantizes[0], quantizes[-1]
    found = wanted = 0.0
    for inputs in calibration:
        codes = q.input_codes(inputs)
        scale, zero = first.args[1:3]
        exact = function((torch.from_numpy(codes[0]).double() - zero) * scale).numpy().ravel()
        scale, zero, low, high = last.args[1:5]
        exact = np.clip(exact / scale + zero, low, high)
        ran = reference(serialize(lowered(q.converted, "ethos-u85-256")), codes)[0].ravel()
        found += float(((ran - exact) ** 2).sum())
        wanted += float(((np.rint(exact) - exact) ** 2).sum())
    return 10 * math.log10(found / wanted)


def layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


@pytest.mark.parametrize(
    ("function", "shape", "factor", "most"),
    [
        (lambda x: x.softmax(-1), (1, 4, 16, 16), 0.02, 0.3),
        (lambda x: x.softmax(-1), (1, 4, 16, 16), 2.0, 0.3),
        (lambda x: x.softmax(-1), (1, 1, 8, 200), 1.0, 0.3),
        (layer_norm, (1, 64, 128), 1.0, 0.3),
        (lambda x: F.fold(x, (9, 10), 3, padding=1), (1, 27, 90), 1.0, 0.3),
        (lambda x: F.fold(x, (11, 12), (3, 5), (2, 1), stride=(1, 2)), (1, 30, 28), 1.0, 0.3),
        (lambda x: F.affine_grid(x, [2, 3, 5, 7], align_corners=False), (2, 2, 3), 1.0, 0.3),
    ],
    ids=["softmax, flat", "softmax, peaked", "softmax, long", "layer_norm", "fold", "fold, dilated", "affine_grid"],
)
def test_composites_of_int8_are_rounded_once(function: Callable[[Tensor], Tensor], shape: Any, factor: float, most: float) -> None:
    assert noise_db(function, shape, factor) < most


ROWS = torch.linspace(0.05, 2.0, 32)[:, None]  # reciprocals from all over their tables


@pytest.mark.parametrize(
    ("function", "factor", "most"),
    [
        (layer_norm, ROWS, 4.0),
        (lambda x: F.rms_norm(x, x.shape[-1:]), ROWS, 2.8),
        (lambda x: x.softmax(-1), ROWS, 1.0),
        (lambda x: x.softmax(-1), 5.0, 8.0),
        (lambda x: x.log_softmax(-1), 0.01, 0.5),
        (lambda x: x.log_softmax(-1), ROWS, 0.6),
        (lambda x: x.logsumexp(-1), 0.01, 0.6),
        (lambda x: x.logsumexp(-1), 1.0, 1.2),
        (lambda x: x.std(-1), 1.0, 1.8),
        (lambda x: x.norm(dim=-1), 1.0, 1.8),
        (torch.tanh, 1.0, 10.0),
        (torch.tanh, 3.0, 3.0),
        (torch.sigmoid, 3.0, 10.0),
        (lambda x: (x.abs() + 0.1).rsqrt(), 1.0, 9.0),
        (F.gelu, 1.0, 3.0),
    ],
    ids=[
        "layer_norm",
        "rms_norm",
        "softmax",
        "softmax, peaked",
        "log_softmax, flat",
        "log_softmax",
        "logsumexp, flat",
        "logsumexp",
        "std",
        "norm",
        "tanh",
        "tanh of much",
        "sigmoid",
        "rsqrt",
        "gelu",
    ],
)
def test_int16_is_a_few_codes_off(function: Callable[[Tensor], Tensor], factor: float | Tensor, most: float) -> None:
    assert noise_db(function, (1, 32, 64), factor, get_symmetric_a16w8_quantization_config()) < most
