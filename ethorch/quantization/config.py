"""QuantizationConfig, and factories for common configs."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node
from torchao.quantization.pt2e import (
    FakeQuantize,
    FusedMovingAvgObsFakeQuantize,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    PlaceholderObserver,
)
from torchao.quantization.pt2e.quantizer import QuantizationSpec, QuantizationSpecBase

from ethorch.quantization.activation_observer import ACTIVATION_METHODS, ActivationObserver
from ethorch.quantization.calibration_checks import check_method
from ethorch.quantization.trained_weight_observer import PerChannelTrainedWeightObserver, TrainedWeightObserver
from ethorch.quantization.weight_observer import WEIGHT_METHODS, PerChannelWeightObserver, WeightObserver
from ethorch.support.errors import QuantizationError

#: Minimum scale, for tensors of zeros.
_EPS = 2.0**-24
#: Number of integer values below which ``weight_calibration`` defaults to ``mse``. With three levels, ``max`` sets half of a layer
#: to zero (digit classification: 54% instead of 90% accuracy).
_FEW = 16


@dataclass(frozen=True)
class QuantizationConfig:
    """The quantization specs of operators' inputs, outputs and weights. A value without a spec remains in float.

    The lowering quantizes biases to int32, or to int48 if activations are int16. The bias scale is input scale x weight scale.

    Attributes:
        input_activation, output_activation, weight: torchao's ``QuantizationSpec``.
        bias, label: Unused fields for compatibility with ExecuTorch's Arm backend.
        is_qat: Whether the config is for ``prepare_qat_pt2e``.
        per_tensor_weight: Observer factory for weights without a channel axis (grouped transposed convolutions).
    """

    input_activation: QuantizationSpec | None
    output_activation: QuantizationSpec | None
    weight: QuantizationSpec | None
    bias: Any = None
    label: str | None = field(default=None, compare=False)
    is_qat: bool = False
    per_tensor_weight: Any = field(default=None, compare=False, repr=False)

    @property
    def is_static(self) -> bool:
        """True if activations are quantized with ranges fixed before the model runs."""
        spec = self.input_activation
        return spec is not None and not spec.is_dynamic and self.output_activation is not None

    def get_input_act_qspec(self, node: Node | None = None, input_node: Node | None = None) -> QuantizationSpecBase | None:
        """Return the spec of ``input_node`` as an input of ``node``. Subclasses can return a different spec for each operator."""
        return self.input_activation

    def get_output_act_qspec(self, node: Node | None = None) -> QuantizationSpecBase | None:
        """Return the spec of the output of ``node``."""
        return self.output_activation

    def get_weight_qspec(self, node: Node | None = None) -> QuantizationSpecBase | None:
        """Return the spec of the weight of ``node``. The quantizer adapts the channel axis of the spec."""
        return self.weight

    def get_bias_qspec(self, node: Node | None = None) -> Any:
        """Return ``bias``, regardless of ``node``."""
        return self.bias


def get_symmetric_quantization_config(
    is_per_channel: bool = True,
    is_qat: bool = False,
    is_dynamic: bool = False,
    act_qmin: int = -128,
    act_qmax: int = 127,
    weight_qmin: int = -127,
    weight_qmax: int = 127,
    eps: float = _EPS,
    *,
    calibration: str = "mse",
    weight_calibration: str | None = None,
    percentile: float = 99.99,
    averaging_constant: float = 0.01,
) -> QuantizationConfig:
    """Return a config with int8 activations (affine, per tensor) and int8 weights (symmetric).

    Args:
        is_per_channel: Whether each output channel has its own weight scale.
        is_qat: Whether to use fake-quantize modules for ``prepare_qat_pt2e``. They average activation ranges over training steps.
        is_dynamic: Whether the CPU computes activation ranges at run time.
        act_qmin, act_qmax, weight_qmin, weight_qmax: Limits of the integer values, within int8.
        eps: Minimum scale.
        calibration: See :class:`ethorch.quantization.activation_observer.ActivationObserver`.
        weight_calibration: ``max`` (largest magnitude) or ``mse`` (least squared error). Default: ``mse`` for weights of up to
            four bits, and to ``max`` otherwise.
        percentile: Percentage of values inside the range (above 50, at most 100), for ``calibration="percentile"``.
        averaging_constant: Weight of the newest input in averages, for ``calibration="moving_average"`` and QAT.

    Raises:
        QuantizationError: A range is empty, excludes zero or exceeds int8, or a method is unknown.
    """
    _check_range("activation", act_qmin, act_qmax, 8)
    _check_range("weight", weight_qmin, weight_qmax, 8)
    act = _activation(
        torch.int8,
        torch.per_tensor_affine,
        act_qmin,
        act_qmax,
        eps,
        is_qat,
        is_dynamic,
        calibration,
        percentile,
        averaging_constant,
    )
    return _with_weights(act, is_per_channel, is_qat, is_dynamic, weight_qmin, weight_qmax, eps, weight_calibration)


def get_symmetric_a16w8_quantization_config(
    is_per_channel: bool = True,
    is_qat: bool = False,
    is_dynamic: bool = False,
    weight_qmin: int = -127,
    weight_qmax: int = 127,
    eps: float = _EPS,
    *,
    calibration: str = "mse",
    weight_calibration: str | None = None,
    percentile: float = 99.99,
    averaging_constant: float = 0.01,
    epsilon: float | None = None,
) -> QuantizationConfig:
    """Return a config with int16 activations (symmetric, -32767..32767) and int8 weights.

    Compared with int8, the SQNR is 5 to 25 dB higher. The NPU needs two to four times as many cycles, or up to 16 times as many for
    attention on U55.

    See :func:`get_symmetric_quantization_config` for the other arguments.

    Args:
        epsilon: Alias of ``eps``, for scripts written for ExecuTorch's Arm backend.

    Raises:
        QuantizationError: An argument is invalid, ``is_dynamic`` is set, or ``eps`` and ``epsilon`` differ.
    """
    if epsilon is not None:
        if eps not in (_EPS, epsilon):
            raise QuantizationError(
                "config.epsilon", f"expected one minimum scale, got eps={eps} and epsilon={epsilon}. Use only eps."
            )
        eps = epsilon
    _check_range("weight", weight_qmin, weight_qmax, 8)
    if is_dynamic:
        raise QuantizationError(
            "config.dynamic_int16",
            "expected is_dynamic=False, got True. Use int8 activations, because torchao supports dynamic ranges only for "
            "8-bit activations.",
        )
    act = _activation(
        torch.int16,
        torch.per_tensor_symmetric,
        -32767,
        32767,
        eps,
        is_qat,
        is_dynamic,
        calibration,
        percentile,
        averaging_constant,
    )
    return _with_weights(act, is_per_channel, is_qat, is_dynamic, weight_qmin, weight_qmax, eps, weight_calibration)


def get_symmetric_a8w4_quantization_config(
    is_per_channel: bool = True,
    is_qat: bool = True,
    is_dynamic: bool = False,
    *,
    calibration: str = "mse",
    weight_calibration: str | None = None,
) -> QuantizationConfig:
    """Return a config with int8 activations and 4-bit weights (-7..7). Most networks require QAT with this config.

    See :func:`get_symmetric_quantization_config` for the arguments.
    """
    return get_symmetric_quantization_config(
        is_per_channel,
        is_qat,
        is_dynamic,
        weight_qmin=-7,
        weight_qmax=7,
        calibration=calibration,
        weight_calibration=weight_calibration,
    )


def get_uint8_io_quantization_config(
    is_qat: bool = False, is_dynamic: bool = False, eps: float = _EPS, *, calibration: str = "mse"
) -> QuantizationConfig:
    """Return a config with uint8 program inputs and outputs, for ``set_io``.

    See :func:`get_symmetric_quantization_config` for the arguments.
    """
    act = _activation(torch.uint8, torch.per_tensor_affine, 0, 255, eps, is_qat, is_dynamic, calibration, 99.99, 0.01)
    return QuantizationConfig(act, None if is_dynamic else act, None, is_qat=is_qat)


def _check_range(name: str, low: int, high: int, bits: int) -> None:
    allowed = (-(1 << bits - 1), (1 << bits - 1) - 1)
    if not (allowed[0] <= low <= 0 <= high <= allowed[1] and low < high):
        raise QuantizationError(
            "config.range",
            f"expected a {name} range that contains 0 and at least one other value, within {allowed[0]}..{allowed[1]} (int{bits}), "
            f"got {low}..{high}",
        )


@functools.cache
def _make_factory(kind: Any, /, **arguments: Any) -> Any:
    # Caching makes equal configs compare equal.
    return kind.with_args(**arguments)


def _activation(
    dtype: torch.dtype,
    qscheme: torch.qscheme,
    qmin: int,
    qmax: int,
    eps: float,
    is_qat: bool,
    is_dynamic: bool,
    calibration: str,
    percentile: float,
    averaging_constant: float,
) -> QuantizationSpec:
    check_method(calibration, ACTIVATION_METHODS)
    common = {"dtype": dtype, "quant_min": qmin, "quant_max": qmax, "qscheme": qscheme, "eps": eps}
    if is_dynamic and is_qat:
        observer: Any = _make_factory(
            FakeQuantize, observer=_make_factory(MovingAverageMinMaxObserver, averaging_constant=1, is_dynamic=True), **common
        )
    elif is_dynamic:
        observer = _make_factory(PlaceholderObserver, **common, is_dynamic=True)
    elif is_qat:
        observer = _make_factory(
            FusedMovingAvgObsFakeQuantize, observer=MovingAverageMinMaxObserver, averaging_constant=averaging_constant, **common
        )
    else:
        ActivationObserver(calibration, percentile)  # raise errors for invalid arguments here instead of in prepare_pt2e
        observer = _make_factory(
            ActivationObserver, method=calibration, percentile=percentile, averaging_constant=averaging_constant, eps=eps
        )
    return QuantizationSpec(
        dtype=dtype, quant_min=qmin, quant_max=qmax, qscheme=qscheme, is_dynamic=is_dynamic, observer_or_fake_quant_ctr=observer
    )


def _with_weights(
    act: QuantizationSpec,
    is_per_channel: bool,
    is_qat: bool,
    is_dynamic: bool,
    qmin: int,
    qmax: int,
    eps: float,
    method: str | None,
) -> QuantizationConfig:
    method = method or ("mse" if qmax - qmin < _FEW else "max")
    check_method(method, WEIGHT_METHODS)
    weight = QuantizationSpec(
        dtype=torch.int8,
        quant_min=qmin,
        quant_max=qmax,
        ch_axis=0 if is_per_channel else None,
        qscheme=torch.per_channel_symmetric if is_per_channel else torch.per_tensor_symmetric,
        observer_or_fake_quant_ctr=_weight_observer(is_qat, is_per_channel, qmin, qmax, eps, method),
    )
    return QuantizationConfig(
        act,
        None if is_dynamic else act,
        weight,
        is_qat=is_qat,
        per_tensor_weight=_weight_observer(is_qat, False, qmin, qmax, eps, method),
    )


def _weight_observer(is_qat: bool, is_per_channel: bool, qmin: int, qmax: int, eps: float, method: str) -> Any:
    if not is_qat:
        return _make_factory(PerChannelWeightObserver if is_per_channel else WeightObserver, method=method, eps=eps)
    scheme = torch.per_channel_symmetric if is_per_channel else torch.per_tensor_symmetric
    if method == "mse":
        observer = PerChannelTrainedWeightObserver if is_per_channel else TrainedWeightObserver
    else:
        following = MovingAveragePerChannelMinMaxObserver if is_per_channel else MovingAverageMinMaxObserver
        observer = _make_factory(
            following, averaging_constant=1.0
        )  # the range of the current weight instead of the maximum over all steps
    return _make_factory(FakeQuantize, observer=observer, dtype=torch.int8, quant_min=qmin, quant_max=qmax, qscheme=scheme, eps=eps)
