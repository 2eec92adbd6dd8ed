"""What observers make of what they see: a range for an activation, scales for a weight.

An activation's range is chosen to minimize the expected squared error on inputs that were not seen: rounding inside the
range, clipping of what was seen beyond it, and clipping of what a fresh input may bring, estimated from how far the
extremes of the calibration inputs lie apart. That last term is what small tensors need (pooled features, logits): eight
samples of 64 values say little about the next sample's largest. It gains 3 dB on ds_cnn, 6 on resnet8
and the autoencoder of MLPerf Tiny.
"""

from __future__ import annotations

import functools
import logging
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchao.quantization.pt2e.observer import UniformQuantizationObserverBase

from ethorch.errors import QuantizationError
from ethorch.masks import HUGE
from ethorch.quantize.checks import Look, look_at, warn_about

logger = logging.getLogger(__name__)

#: How an activation's range is found.
ACTIVATION_METHODS = ("mse", "minmax", "moving_average", "percentile")
#: How a weight's scale is found.
WEIGHT_METHODS = ("max", "mse")

_HALF_BINS = 2048  # histogram bins on each side of zero
_SUBSAMPLE = 16384  # elements of one tensor that go into the histogram; extremes come from all of them
#: How much what was clipped while calibrating counts next to rounding: the range was fitted to it, so a fresh input clips
#: more. Best mean over six networks of ``bench.accuracy``, three seeds, 32 fresh inputs; 1 loses up to 0.8 dB.
_CLIPPED = 8.0
#: How far below the least score a masked one lies: exp(-8) is less than a tenth of softmax's step in int8, exp(-16) in int16.
ROOM_INT8, ROOM_INT16 = 8.0, 16.0
#: A known range is kept as long as what is to be covered fills this part of it. Attention over hundreds of tokens has
#: probabilities of a few percent: with 197 (deit) that is 3 dB.
_USED = 1 / 3
_BIAS_BITS = {torch.int8: 30, torch.int16: 46}  # of the accumulator, one left for the sum (TOSA 1.0 CONV2D: int32, int48)


@dataclass
class _Seen:
    """What an activation observer knows besides its buffers; apart, since assigning to a module's attribute is slow.

    Attributes:
        inputs: tensors observed.
        lows, highs: the extremes of each that has finite elements.
        elements: of all tensors.
        reach: the histogram covers -reach..reach, a power of two.
        nonzero: elements in the histogram that are not exactly zero.
    """

    inputs: int = 0
    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    elements: int = 0
    reach: float = 0.0
    nonzero: float = 0.0
    qparams: tuple[Tensor, Tensor] | None = None


class ActivationObserver(UniformQuantizationObserverBase):
    """Watches an activation and gives it a scale and a zero point.

    Args:
        method: ``mse`` (least expected squared error on unseen inputs), ``minmax`` (everything seen fits),
            ``moving_average`` (exponential average of each input's extremes), ``percentile`` (a share of the values fits).
        percentile: percent of the values inside the range, for ``percentile``.
        averaging_constant: weight of the newest input, for ``moving_average``.
        dtype, qscheme, quant_min, quant_max, eps: as for torchao's observers; ``eps`` is the least scale.
        known: the range that mathematics gives (softmax: 0..1). It is what the codes cover, unless the calibration fills less than
            a third of it.

    Attributes:
        name: FX node whose value is watched, for messages.
        domain: reals the reader is defined for (asin: -1..1); the range does not go beyond.
        masked: an attention mask overwrites some of it with the lowest code, which therefore lies well below all that was seen.
        is_input: it watches an input of the program, whose calibration tensors are looked at for what they are.
        seen: what was observed.
    """

    min_val: Tensor
    max_val: Tensor
    histogram: Tensor

    def __init__(
        self, method: str = "mse", percentile: float = 99.99, averaging_constant: float = 0.01,
        dtype: torch.dtype = torch.int8, qscheme: torch.qscheme = torch.per_tensor_affine, quant_min: int | None = None,
        quant_max: int | None = None, eps: float = 2.0**-24, is_dynamic: bool = False,
        known: tuple[float, float] | None = None, **kwargs: Any,
    ):  # fmt: skip
        super().__init__(
            dtype=dtype, qscheme=qscheme, quant_min=quant_min, quant_max=quant_max, eps=eps, is_dynamic=is_dynamic, **kwargs
        )
        check_method(method, ACTIVATION_METHODS)
        if not 50 < percentile <= 100:
            raise QuantizationError(
                "calibration.percentile",
                f"percentile {percentile} is outside 50..100: it is the percentage of values inside the range",
            )
        self.method, self.percentile, self.averaging_constant = method, percentile, averaging_constant
        self.register_buffer("min_val", torch.tensor(math.inf))
        self.register_buffer("max_val", torch.tensor(-math.inf))
        self.register_buffer("histogram", torch.zeros(2 * _HALF_BINS, dtype=torch.float64))
        self.name = ""
        self.known = known
        self.domain = known or (-math.inf, math.inf)
        self.masked = False
        self.is_input = False
        self.looks: list[Look] = []
        self.seen = _Seen()
        self.follow(None)

    def follow(self, leader: ActivationObserver | Follower | None, feed: bool = False) -> None:
        """Take the leader's qparams; with ``feed`` the leader also observes what comes by here."""
        self.__dict__["leader"] = leader  # in no way a submodule
        self.feeds = feed

    @property
    def leader(self) -> ActivationObserver | Follower | None:
        return self.__dict__["leader"]

    def forward(self, x: Tensor) -> Tensor:
        """Observe ``x`` and return it.

        Raises:
            QuantizationError: there is a NaN in it.
        """
        if self.leader is not None and self.feeds:
            self.leader(x)
        self.seen.qparams = None
        self.seen.inputs += 1
        if x.numel() == 0:
            return x
        values = x.detach()
        if self.is_input and len(self.looks) < 1000:
            self.looks.append(look_at(values))
        if self.masked:
            values = values[~(values <= HUGE)]
            if values.numel() == 0:
                return x
        low, high = (float(v) for v in torch.aminmax(values))
        if math.isnan(low) or math.isnan(high):
            raise QuantizationError(
                "calibration.nan", f"{self.name or 'a tensor'} is NaN for a calibration input; find out why in the float model"
            )
        if math.isinf(low) or math.isinf(high):  # attention masks: infinity is the end of any range
            values = values[values.isfinite()]
            if values.numel() == 0:
                return x
            low, high = (float(v) for v in torch.aminmax(values))
        self.observe(values, low, high)
        return x

    def observe(self, values: Tensor, low: float, high: float) -> None:
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
        if self.method in ("mse", "percentile"):
            self.count(_subsample(values), max(-low, high))

    def count(self, values: Tensor, largest: float) -> None:
        """Add to the histogram, whose bins double in width until everything fits; bins stay aligned at zero."""
        seen = self.seen
        if largest > seen.reach:
            reach = 2.0 ** math.ceil(math.log2(largest)) if largest > 0 else 0.0
            for _ in range(round(math.log2(reach / seen.reach)) if seen.reach else 0):
                merged = self.histogram.reshape(-1, 2).sum(1)
                self.histogram.zero_()
                self.histogram[_HALF_BINS // 2 : 3 * _HALF_BINS // 2] = merged
            seen.reach = reach
        if seen.reach:
            bins = torch.mul(values.float(), _HALF_BINS / seen.reach).add_(_HALF_BINS).clamp_(0, 2 * _HALF_BINS - 1)
            self.histogram += torch.bincount(bins.int(), minlength=2 * _HALF_BINS)  # a third of the time of torch.histc
            seen.nonzero += float((values != 0).sum())

    def calculate_qparams(self, **_: Any) -> tuple[Tensor, Tensor]:
        """(scale, zero point), each of one element.

        Raises:
            QuantizationError: nothing was observed.
        """
        if self.leader is not None:
            return self.leader.calculate_qparams()
        if self.seen.qparams is None:
            if self.known and self.reaches(self.known):
                scale, zero = known_qparams(self.known, self.dtype, self.quant_min, self.quant_max)
                self.seen.qparams = torch.tensor([scale]), torch.tensor([zero])
                return self.seen.qparams
            if not self.seen.inputs:
                raise QuantizationError(
                    "calibration.none",
                    f"{self.name or 'an observer'} saw no calibration input. Run the prepared model on samples before "
                    "convert_pt2e; each branch of torch.cond needs one that reaches it.",
                )
            if self.looks:
                warn_about(self.name, self.looks)
            (low, high), (least, most) = self.range(), self.domain
            if self.masked:
                low = min(low, float(self.min_val) - (ROOM_INT8 if self.quant_max < 1 << 8 else ROOM_INT16))
            self.seen.qparams = self._calculate_qparams(torch.tensor(max(low, least)), torch.tensor(min(high, most)))
        return self.seen.qparams

    def reaches(self, known: tuple[float, float]) -> bool:
        """Does what is to be covered fill a part of the known range that is worth its codes, as far as is known?"""
        largest = max(abs(bound) for bound in self.range())
        return largest == 0 or largest >= _USED * max(-known[0], known[1])

    def range(self) -> tuple[float, float]:
        """The real range that the codes are to cover."""
        if not self.seen.lows:
            return 0.0, 0.0
        if self.method in ("minmax", "moving_average") or self.seen.reach == 0 or not self.seen.nonzero:
            return float(self.min_val), float(self.max_val)
        counts = self.histogram.cpu().numpy()
        centres = (np.arange(-_HALF_BINS, _HALF_BINS) + 0.5) * (self.seen.reach / _HALF_BINS)
        if self.method == "percentile":
            share = np.cumsum(counts) / counts.sum()
            outside = (1 - self.percentile / 100) / 2
            low = centres[min(int(np.searchsorted(share, outside)), len(share) - 1)]
            high = centres[min(int(np.searchsorted(share, 1 - outside)), len(share) - 1)]
            return max(float(low), float(self.min_val)), min(float(high), float(self.max_val))
        return self.least_squares(counts, centres)

    def least_squares(self, counts: np.ndarray, centres: np.ndarray) -> tuple[float, float]:
        """The range of least expected squared error; see the module's docstring."""
        inputs = len(self.seen.lows)
        weight = self.seen.elements / counts.sum()  # histogram counts stand for this many elements each
        levels = self.quant_max - self.quant_min
        symmetric = self.qscheme == torch.per_tensor_symmetric
        rounding = self.seen.nonzero * weight / 12
        fine = levels > 255
        highs, above = _candidates(np.asarray(self.seen.highs), counts, centres, weight, inputs, fine)
        lows, below = _candidates(-np.asarray(self.seen.lows), counts[::-1], centres, weight, inputs, fine)
        if symmetric:  # one bound for both sides
            bounds = np.union1d(highs, lows)
            cost = np.interp(bounds, highs, above) + np.interp(bounds, lows, below) + rounding * (2 * bounds / levels) ** 2
            bound = float(bounds[np.argmin(cost)])
            return -bound, bound
        step = (highs[None, :] + lows[:, None]) / levels
        cost = above[None, :] + below[:, None] + rounding * step**2
        row, column = np.unravel_index(np.argmin(cost), cost.shape)
        return -float(lows[row]), float(highs[column])

    def extra_repr(self) -> str:
        return f"{self.method}, min={float(self.min_val):.4g}, max={float(self.max_val):.4g}, inputs={self.seen.inputs}"


def known_qparams(known: tuple[float, float], dtype: torch.dtype, quant_min: int, quant_max: int) -> tuple[float, int]:
    """(scale, zero point) that map a known real range to all codes."""
    low, high = known
    if dtype != torch.int8:  # symmetric: zero point 0
        return max(abs(low), abs(high)) / quant_max, 0
    scale = (high - low) / (quant_max - quant_min)
    return scale, round(quant_min - low / scale)


def _subsample(values: Tensor) -> Tensor:
    """At most about 16384 elements, evenly spread, at a stride that has no factor in common with the extents."""
    flat = values.reshape(-1) if values.is_contiguous() else values.flatten()
    stride = flat.numel() // _SUBSAMPLE
    if stride < 2:
        return flat
    while math.gcd(stride, flat.numel()) != 1:
        stride += 1
    return flat[::stride]


def _candidates(
    extremes: np.ndarray, counts: np.ndarray, centres: np.ndarray, weight: float, inputs: int, fine: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Upper bounds worth trying, and for each the squared error of clipping there, summed over all inputs.

    Args:
        extremes: the largest value of each input.
        counts, centres: histogram, ascending.
        weight: elements that a count stands for.
        inputs: number of inputs.
        fine: rounding costs so little that an extreme which the histogram's share of the elements lacks counts by itself.
    """
    largest = max(float(extremes.max()), 0.0)
    spread = float(np.std(extremes, ddof=1)) if inputs > 1 else 0.0
    bounds = np.concatenate([np.linspace(0.2, 1.0, 65) * largest, largest + np.linspace(0.1, 8.0, 40) * spread])
    if largest == 0:
        bounds = np.unique(bounds)
    s0, s1, s2 = (np.concatenate([np.cumsum((counts * centres**k)[::-1])[::-1], [0.0]]) for k in range(3))
    first = np.searchsorted(centres, bounds)
    seen = np.maximum(s2[first] - 2 * bounds * s1[first] + bounds**2 * s0[first], 0) * weight
    if fine:
        seen = np.maximum(seen, (np.maximum(extremes[:, None] - bounds, 0) ** 2).sum(axis=0))
    seen[bounds >= largest] = 0
    unseen = np.zeros_like(bounds)
    if spread > 0:  # the next input's largest value M follows Student's distribution: E[max(M - bound, 0)^2]
        sigma = spread * math.sqrt(1 + 1 / inputs)
        z, excess = _student_excess(max(inputs - 1, 3))
        unseen = sigma**2 * np.interp((np.maximum(bounds, largest) - float(extremes.mean())) / sigma, z, excess)
    return bounds, _CLIPPED * seen + inputs * unseen


@functools.cache
def _student_excess(freedom: int) -> tuple[np.ndarray, np.ndarray]:
    """(z, E[max(T - z, 0)^2]) for T of Student's t distribution, which is what is known of the next of a few normal values.

    Args:
        freedom: degrees of freedom, at least 3: the integral diverges below.
    """
    t = np.concatenate([np.linspace(-2, 40, 1051), 40 + np.geomspace(1e-3, 1e4, 200)])
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    density = scale * (1 + t * t / freedom) ** (-(freedom + 1) / 2)
    z = np.linspace(-1, 20, 211)
    return z, np.trapezoid(np.maximum(t - z[:, None], 0) ** 2 * density, t, axis=1)


def check_method(method: str, known: tuple[str, ...]) -> None:
    """Raise QuantizationError for a calibration method nobody knows."""
    if method not in known:
        raise QuantizationError("calibration.method", f"unknown calibration method {method!r}; known: {', '.join(known)}")


class PerChannelWeightObserver(UniformQuantizationObserverBase):
    """A scale per output channel: the largest magnitude, or the one of least squared error.

    A channel whose bias would leave the accumulator gets a larger scale, and a warning says so.

    Args:
        method: ``max`` or ``mse``.
        ch_axis: the output channels' axis; None for one scale in all.
        dtype, qscheme, quant_min, quant_max, eps: as for torchao's observers.
    """

    min_val: Tensor
    max_val: Tensor

    def __init__(
        self, method: str = "max", ch_axis: int | None = 0, dtype: torch.dtype = torch.int8,
        qscheme: torch.qscheme = torch.per_channel_symmetric, quant_min: int | None = None, quant_max: int | None = None,
        eps: float = 2.0**-24, is_dynamic: bool = False, **kwargs: Any,
    ):  # fmt: skip
        super().__init__(dtype=dtype, qscheme=qscheme, quant_min=quant_min, quant_max=quant_max, eps=eps, **kwargs)
        check_method(method, WEIGHT_METHODS)
        self.method = method
        per_channel = qscheme in (torch.per_channel_symmetric, torch.per_channel_affine)
        self.ch_axis = ch_axis if per_channel and ch_axis is not None else 0
        self.per_channel = per_channel
        self.register_buffer("min_val", torch.tensor([]))
        self.register_buffer("max_val", torch.tensor([]))
        self.name = ""
        self.uses: list[tuple[Tensor, list[Any]]] = []  # bias and, in a list so that it is no submodule, the input's observer
        self.fixed: tuple[Tensor, Tensor] | None = None  # qparams that weights were rounded with
        self._weight: Tensor | None = None
        self._seen: tuple[int, int] | None = None

    def forward(self, w: Tensor) -> Tensor:
        """Observe ``w``, once for each value it has, and return it."""
        seen = (w.data_ptr(), w._version)
        if seen != self._seen:
            rows = w.detach().transpose(0, self.ch_axis).flatten(1) if self.per_channel else w.detach().reshape(1, -1)
            low, high = rows.aminmax(dim=1)
            self.min_val, self.max_val = low.float(), high.float()
            self._weight, self._seen = w.detach(), seen
        return w

    def calculate_qparams(self, **_: Any) -> tuple[Tensor, Tensor]:
        """(scales, zero points), int32 zeros: one each, or one per channel."""
        if self.fixed is not None:
            return self.fixed
        if self._weight is None:
            raise QuantizationError(
                "calibration.none",
                f"{self.name or 'a weight'} saw no calibration input. Run the prepared model on samples before convert_pt2e.",
            )
        scale, zero = self._calculate_qparams(self.min_val, self.max_val)
        if self.method == "mse":
            scale = self.least_squares(scale)
        return self.fit_bias(scale), zero

    def least_squares(self, scale: Tensor) -> Tensor:
        """Of 71 scales per channel between 0.3 and 1 times the largest, the one of least squared error."""
        assert self._weight is not None
        rows = self._weight.transpose(0, self.ch_axis).flatten(1) if self.per_channel else self._weight.reshape(1, -1)
        best, least = scale.clone(), torch.full_like(scale, math.inf)
        for factor in torch.linspace(0.3, 1.0, 71).tolist():
            tried = scale * factor
            codes = torch.clamp(torch.round(rows / tried[:, None]), self.quant_min, self.quant_max)
            error = ((codes * tried[:, None] - rows) ** 2).sum(1)
            best, least = torch.where(error < least, tried, best), torch.minimum(error, least)
        return torch.maximum(best, self.eps)

    def fit_bias(self, scale: Tensor) -> Tensor:
        """Scales large enough for bias / (input scale x weight scale) to fit the accumulator."""
        needed = torch.zeros_like(scale)
        for bias, (observer,) in self.uses:
            limit = float(1 << _BIAS_BITS.get(observer.dtype, 30))
            each = bias.detach().abs().float() / (float(observer.calculate_qparams()[0]) * limit)
            needed = torch.maximum(needed, each if self.per_channel else each.max().reshape(1))
        short = needed > scale
        if bool(short.any()):
            channels = torch.nonzero(short).flatten().tolist()
            logger.warning(
                "%s: the bias of channels %s is beyond the accumulator in units of input scale x weight scale; their weights get "
                "a scale up to %.3g times coarser so that it fits [bias.accumulator]", self.name or "a weight", channels[:8],
                float((needed / scale)[short].max()),
            )  # fmt: skip
        return torch.where(short, needed, scale)

    def extra_repr(self) -> str:
        return f"{self.method}, ch_axis={self.ch_axis if self.per_channel else None}"


class WeightObserver(PerChannelWeightObserver):
    """One scale for a whole weight; torchao gives per-channel arguments only to classes named PerChannel..."""


class Follower(UniformQuantizationObserverBase):
    """Stands where data only moved: the qparams of the tensor it came from, nothing observed twice."""

    def __init__(self, leader: UniformQuantizationObserverBase):
        super().__init__(
            dtype=leader.dtype, qscheme=leader.qscheme, quant_min=leader.quant_min, quant_max=leader.quant_max,
            eps=float(leader.eps), is_dynamic=leader.is_dynamic,
        )  # fmt: skip
        self.__dict__["leader"] = leader  # in no way a submodule

    @property
    def leader(self) -> UniformQuantizationObserverBase:
        return self.__dict__["leader"]

    def forward(self, x: Tensor) -> Tensor:
        return x

    def calculate_qparams(self, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return self.leader.calculate_qparams(**kwargs)
