from __future__ import annotations

import logging
import math
from typing import Any

import torch
from torch import Tensor
from torchao.quantization.pt2e.observer import UniformQuantizationObserverBase

from ethorch.quantization.calibration_checks import InputStatistics, check_method, warn_about, warn_about_mask
from ethorch.quantization.passes.mask_tensors import APART, SUNK, is_mask
from ethorch.quantization.range_search import HALF_BINS, Observations, least_squares_range, percentile_range
from ethorch.support.errors import QuantizationError

logger = logging.getLogger(__name__)

#: Methods that choose the range of an activation.
ACTIVATION_METHODS = ("mse", "minmax", "moving_average", "percentile")

_SUBSAMPLE = 16384  # approximate number of elements of one tensor that are added to the histogram
_SPARSE = 16  # if fewer than 1/16 of these are nonzero, the sample consists of nonzero elements, so that it shows their tails
_LEAST_EXPONENT = -100  # of the histogram's reach, because the reciprocal of a denormal bin width overflows
_NEAR = 16  # 1/16 of the range remains on each side of a threshold, for a finer scale than that of the compared sum
_INPUTS = 1000  # maximum number of tensors of a program input for which statistics are recorded
#: Extension of a follower's range: four steps of int8.
EXTENSION = 1 / 64
#: Difference between the lowest unmasked score and masked scores. exp(-8) and exp(-16) are below a tenth of softmax's scale.
ROOM_INT8, ROOM_INT16 = 8.0, 16.0


class ActivationObserver(UniformQuantizationObserverBase):  # type: ignore[misc]  # torchao has no annotations
    """An observer of an activation.

    Args:
        method: ``mse`` (least expected squared error on unseen inputs, see ``range_search``), ``minmax``, ``moving_average``
            (moving averages of the inputs' extremes), or ``percentile``.
        percentile: Percentage of values inside the range, above 50 and at most 100.
        averaging_constant: Weight of the newest input in ``moving_average``.
        dtype, qscheme, quant_min, quant_max: See torchao's observers.
        eps: Minimum scale.
        fixed_range: Output range of the function that computes the value, e.g. 0..1 for softmax. A smaller observed range replaces
            it, which improves the SQNR by up to 6 dB.

    Attributes:
        name: Name of the value's FX node, for messages.
        domain: Limits of the range, e.g. -1..1 if asin reads the value. Default: ``fixed_range``.
        masked: Whether an attention mask sets elements to the lowest integer value.
        may_mask: Whether to set ``masked`` if some values are far below all others.
        center: (zero point, factor), or None. The zero point is used if it increases the scale by at most this factor.
        sums: If the value is a mask, observers of its sums with scores. Used if ``masked`` is set.
        thresholds: If all readers of the value are comparisons, the constants in these comparisons.
        is_input: Whether the value is a program input, for which statistics are recorded.
        seen: Statistics of the observed tensors. The histogram is stored separately.
    """

    min_val: Tensor
    max_val: Tensor
    histogram: Tensor

    def __init__(
        self,
        method: str = "mse",
        percentile: float = 99.99,
        averaging_constant: float = 0.01,
        dtype: torch.dtype = torch.int8,
        qscheme: torch.qscheme = torch.per_tensor_affine,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = 2.0**-24,
        is_dynamic: bool = False,
        fixed_range: tuple[float, float] | None = None,
        **kwargs: Any,
    ):
        super().__init__(
            dtype=dtype, qscheme=qscheme, quant_min=quant_min, quant_max=quant_max, eps=eps, is_dynamic=is_dynamic, **kwargs
        )
        check_method(method, ACTIVATION_METHODS)
        if not 50 < percentile <= 100:
            raise QuantizationError(
                "calibration.percentile",
                f"expected a percentile of more than 50 and at most 100, got {percentile}",
            )
        self.method, self.percentile, self.averaging_constant = method, percentile, averaging_constant
        self.register_buffer("min_val", torch.tensor(math.inf))
        self.register_buffer("max_val", torch.tensor(-math.inf))
        self.register_buffer("histogram", torch.zeros(2 * HALF_BINS, dtype=torch.float64))
        self.name = ""
        self.fixed_range = fixed_range
        self.domain = fixed_range or (-math.inf, math.inf)
        self.masked = self.may_mask = False
        self.center: tuple[int, float] | None = None
        self.thresholds: list[float] = []
        self._sums: list[ActivationObserver] = []
        self.is_input = False
        self.statistics: list[InputStatistics] = []
        self.seen = Observations()  # not buffers, because assigning to a module's attribute is slow
        self._qparams: tuple[Tensor, Tensor] | None = None
        self.follow(None)

    def follow(self, leader: ActivationObserver | Follower | None, feed: bool = False) -> None:
        """Use the quantization parameters of ``leader``. If ``feed`` is set, the leader also observes this observer's values."""
        self._leaders: list[ActivationObserver | Follower] = (
            [] if leader is None else [leader]
        )  # in a list, which nn.Module does not register as a submodule
        self._feeds = feed

    @property
    def leader(self) -> ActivationObserver | Follower | None:
        """The observer whose quantization parameters this observer uses, or None."""
        return self._leaders[0] if self._leaders else None

    @property
    def sums(self) -> list[ActivationObserver]:
        return self._sums

    def forward(self, x: Tensor) -> Tensor:
        """Observe ``x`` and return it without a gradient, which calibration does not need.

        Raises:
            QuantizationError: ``x`` contains NaN.
        """
        values = x.detach()
        if self.leader is not None and self._feeds:
            self.leader(values)
        if self._qparams is not None:
            self._qparams = None
        self.seen.inputs += 1
        if x.numel():
            if self.is_input and len(self.statistics) < _INPUTS:
                self.statistics.append(InputStatistics.of(values))
            self._observe_finite(values)
        return values if x.requires_grad else x

    def _observe_finite(self, values: Tensor) -> None:
        if self.may_mask and not self.masked:
            self.masked = is_mask(values, SUNK)
        if self.masked:
            values = values[~(values <= SUNK)]
            if values.numel() == 0:
                return
        low, high = (float(v) for v in torch.aminmax(values))
        if math.isnan(low) or math.isnan(high):
            raise QuantizationError(
                "calibration.nan", f"{self.name or 'a tensor'} contains NaN for a calibration input. Check the float model."
            )
        if math.isinf(low) or math.isinf(high):  # attention masks contain -inf, which cannot be in a range
            values = values[values.isfinite()]
            if values.numel() == 0:
                self.seen.infinite |= high == math.inf
                return
            low, high = (float(v) for v in torch.aminmax(values))
        if max(-low, high) >= -SUNK:
            self.seen.separate(values.abs(), -SUNK)
        self.observe(values, low, high)

    def observe(self, values: Tensor, low: float, high: float) -> None:
        """Record finite values with minimum ``low`` and maximum ``high``."""
        seen, first = self.seen, not self.seen.lows
        seen.lows.append(low)
        seen.highs.append(high)
        seen.elements += values.numel()
        if self.method == "moving_average" and not first:
            share = self.averaging_constant
            self.min_val += share * (low - self.min_val)
            self.max_val += share * (high - self.max_val)
        else:
            self.min_val.fill_(min(low, float(self.min_val)))
            self.max_val.fill_(max(high, float(self.max_val)))
        if seen.are_integers:
            seen.are_integers = bool((values == values.round()).all())
        if self.method in ("mse", "percentile"):
            self._sample(values, max(-low, high))

    def _sample(self, values: Tensor, largest: float) -> None:
        sample = _subsample(values)
        if sample.numel() == values.numel() or int(torch.count_nonzero(sample)) * _SPARSE >= sample.numel():
            self._count(sample, largest)
            return
        nonzero = values[values != 0]
        weight = nonzero.numel() * sample.numel() / values.numel()
        sampled = _subsample(nonzero)
        self._count(sampled, largest, weight / max(sampled.numel(), 1))
        self.histogram[HALF_BINS] += sample.numel() - weight

    def _count(self, values: Tensor, largest: float, weight: float = 1.0) -> None:
        # Doubles the bin width until the histogram covers the magnitude ``largest``
        seen = self.seen
        if largest > seen.reach:
            reach = 2.0 ** max(math.ceil(math.log2(largest)), _LEAST_EXPONENT) if largest > 0 else 0.0
            for _ in range(round(math.log2(reach / seen.reach)) if seen.reach else 0):
                merged = self.histogram.reshape(-1, 2).sum(1)
                self.histogram.zero_()
                self.histogram[HALF_BINS // 2 : 3 * HALF_BINS // 2] = merged
            seen.reach = reach
        if seen.reach:
            bins = torch.mul(values.float(), HALF_BINS / seen.reach).add_(HALF_BINS).clamp_(0, 2 * HALF_BINS - 1)
            counts = torch.bincount(bins.int(), minlength=2 * HALF_BINS)  # three times as fast as torch.histc
            self.histogram.add_(counts, alpha=weight)
            seen.nonzero += float((values != 0).sum()) * weight

    def calculate_qparams(self, **_: Any) -> tuple[Tensor, Tensor]:
        """Return (scale, zero point) as one-element tensors.

        Raises:
            QuantizationError: No value was observed, or the scale overflows float32.
        """
        if self.leader is not None:
            if self.statistics:
                warn_about(self.name, self.statistics)
                self.statistics = []
            return self.leader.calculate_qparams()
        if self._qparams is None:
            if self.fixed_range and self.fills(self.fixed_range):
                scale, zero = compute_range_qparams(self.fixed_range, self.dtype, self.quant_min, self.quant_max)
                self._qparams = self._calculate_centered(*self.fixed_range) or (torch.tensor([scale]), torch.tensor([zero]))
                return self._qparams
            if not self.seen.inputs:
                raise QuantizationError(
                    "calibration.none",
                    f"{self.name or 'an observer'} observed no calibration input. Run the prepared model on samples before "
                    "convert_pt2e, with at least one sample for each branch of torch.cond.",
                )
            if self.statistics:
                warn_about(self.name, self.statistics)
            if self.seen.infinite and not self.seen.lows:
                logger.warning(
                    "%s is infinite for all calibration inputs, so all its values will be 0 or nearly 0. Calibrate with inputs "
                    "for which it is finite. [calibration.infinite]",
                    self.name or "a tensor",
                )
            (low, high), (least, most) = self.range(), self.domain
            if self.masked:
                low = min(low, self._lowest_with_mask())
            if self.thresholds:
                low, high = narrow_to_thresholds(low, high, self.thresholds)
            low, high = max(low, least), min(high, most)
            low = min(low, high)  # because the softmax of one element is always 1
            self._qparams = self._calculate_exact() or self._calculate_centered(low, high)
            self._qparams = self._qparams or self._calculate_qparams(torch.tensor(low), torch.tensor(high))
            if not self._qparams[0].isfinite().all():
                raise QuantizationError(
                    "calibration.overflow",
                    f"{self.name or 'a tensor'}: expected a range whose width is at most {torch.finfo(torch.float32).max:.4g}, got "
                    f"{low:.4g} to {high:.4g}. Divide the inputs of the model by a constant, or clamp the values in the model.",
                )
            if self.seen.large >= APART * max(1.0, self.seen.small):
                warn_about_mask(self.name, self.seen.small, self.seen.large, float(self._qparams[0].max()))
        return self._qparams

    def _calculate_exact(self) -> tuple[Tensor, Tensor] | None:
        """Return a power of two as the scale of integers, which a program may truncate."""
        low, high = min(float(self.min_val), 0.0), max(float(self.max_val), 0.0)
        is_symmetric = self.qscheme == torch.per_tensor_symmetric or self.dtype == torch.int16
        span = max(-low, high) if is_symmetric else high - low
        steps = self.quant_max if is_symmetric else self.quant_max - self.quant_min
        is_free = self.domain == (-math.inf, math.inf) and not self.masked and self.dtype != torch.int32
        if not is_free or not self.seen.are_integers or not 0 < span <= steps:
            return None
        scale = 2.0 ** -math.floor(math.log2(steps / span))
        zero = 0 if is_symmetric else round(self.quant_min - low / scale)
        return torch.tensor([scale]), torch.tensor([zero])

    def _calculate_centered(self, low: float, high: float) -> tuple[Tensor, Tensor] | None:
        if self.center is None or self.qscheme != torch.per_tensor_affine or not low < high:
            return None
        zero, most = self.center
        scale = max(max(-low, 0.0) / (zero - self.quant_min), max(high, 0.0) / (self.quant_max - zero), float(self.eps))
        step = (max(high, 0.0) - min(low, 0.0)) / (self.quant_max - self.quant_min)
        return (torch.tensor([scale]), torch.tensor([zero])) if scale <= most * step else None

    def _lowest_with_mask(self) -> float:
        room = ROOM_INT8 if self.quant_max < 1 << 8 else ROOM_INT16
        reach = max((float(total.max_val - total.min_val) for total in self.sums if total.seen.lows), default=0.0)
        return (float(self.min_val) if self.seen.lows else 0.0) - reach - room * (2 if self.sums else 1)

    def fills(self, limits: tuple[float, float]) -> bool:
        """Return True if the observed range covers ``limits``, or if all values are 0.

        If quantization is symmetric, compare only the largest magnitudes.
        """
        low, high = self.range()
        if self.qscheme == torch.per_tensor_symmetric:
            return max(-low, high) >= max(-limits[0], limits[1]) or low == high == 0
        return (low <= limits[0] and high >= limits[1]) or low == high == 0

    def range(self) -> tuple[float, float]:
        """Return the (minimum, maximum) selected by ``method``."""
        if not self.seen.lows:
            return 0.0, 0.0
        if self.method in ("minmax", "moving_average") or self.seen.reach == 0 or not self.seen.nonzero:
            return float(self.min_val), float(self.max_val)
        counts = self.histogram.cpu().numpy()
        if self.method == "percentile":
            low, high = percentile_range(counts, self.seen.reach, self.percentile)
            return max(low, float(self.min_val)), min(high, float(self.max_val))
        return least_squares_range(
            self.seen, counts, self.quant_max - self.quant_min, symmetric=self.qscheme == torch.per_tensor_symmetric
        )

    def extra_repr(self) -> str:
        return f"{self.method}, min={float(self.min_val):.4g}, max={float(self.max_val):.4g}, inputs={self.seen.inputs}"


def narrow_to_thresholds(low: float, high: float, thresholds: list[float]) -> tuple[float, float]:
    """Narrow a range to ``thresholds`` plus a margin. Saturation outside the range does not change comparison results."""
    room = (high - low) / _NEAR
    return max(low, min(thresholds) - room), min(high, max(thresholds) + room)


def compute_range_qparams(limits: tuple[float, float], dtype: torch.dtype, quant_min: int, quant_max: int) -> tuple[float, int]:
    """Return the (scale, zero point) for mapping a real range to the integer range.

    The zero point is 0 for int16, as the NPU requires, and for int32, because other zero points would overflow in ExecuTorch's
    kernel. int32 uses half of its range, because float32 cannot represent 2**31 - 1.
    """
    low, high = limits
    if dtype in (torch.int16, torch.int32):
        return max(abs(low), abs(high)) / min(quant_max, 1 << 30), 0
    scale = (high - low) / (quant_max - quant_min)
    return scale, round(quant_min - low / scale)


def _subsample(values: Tensor) -> Tensor:
    flat = values.reshape(-1) if values.is_contiguous() else values.flatten()
    stride = flat.numel() // _SUBSAMPLE
    if stride < 2:
        return flat
    while math.gcd(stride, flat.numel()) != 1:
        stride += 1
    return flat[::stride]


class Follower(UniformQuantizationObserverBase):  # type: ignore[misc]  # torchao has no annotations
    """An observer that uses another observer's quantization parameters, e.g. for the output of a view."""

    def __init__(self, leader: ActivationObserver | Follower):
        super().__init__(
            dtype=leader.dtype,
            qscheme=leader.qscheme,
            quant_min=leader.quant_min,
            quant_max=leader.quant_max,
            eps=float(leader.eps),
            is_dynamic=leader.is_dynamic,
        )
        self._leaders = [leader]  # in a list, which nn.Module does not register as a submodule

    @property
    def leader(self) -> ActivationObserver | Follower:
        return self._leaders[0]

    def forward(self, x: Tensor) -> Tensor:
        return x

    def calculate_qparams(self, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return self.leader.calculate_qparams(**kwargs)


class ExtendedFollower(Follower):
    """A follower with integers below its leader's range."""

    def calculate_qparams(self, **kwargs: Any) -> tuple[Tensor, Tensor]:
        scale, zero = self.leader.calculate_qparams(**kwargs)
        wider = scale * (1 + EXTENSION)
        if self.qscheme == torch.per_tensor_symmetric:
            return wider, zero
        highest = (self.quant_max - zero) * scale
        return wider, (self.quant_max - highest / wider).round().clamp(self.quant_min, self.quant_max).to(zero.dtype)


def find_leader(observer: Any) -> Any:
    """Return the last leader in the chain that starts with ``observer``."""
    while isinstance(observer, (ActivationObserver, Follower)) and observer.leader is not None:
        if isinstance(observer, ExtendedFollower):
            break
        observer = observer.leader
    return observer
