"""ActivationObserver: watches an activation while calibrating, and gives it a scale and a zero point."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torchao.quantization.pt2e.observer import UniformQuantizationObserverBase

from ethorch.quantization.calibration_checks import InputStatistics, check_method, warn_about
from ethorch.quantization.passes.mask_tensors import SUNK, is_mask
from ethorch.quantization.range_search import HALF_BINS, Seen, least_squares_range, percentile_range
from ethorch.support.errors import QuantizationError

#: How an activation's range is found.
ACTIVATION_METHODS = ("mse", "minmax", "moving_average", "percentile")

_SUBSAMPLE = 16384  # elements of one tensor that go into the histogram; extremes come from all of them
_NEAR = 16  # part of a range that is kept on each side of a threshold: steps are a few times finer than those of what was summed
_INPUTS = 1000  # tensors of a program's input of which statistics are kept
#: How far below the least score a masked one lies: exp(-8) is less than a tenth of softmax's step in int8, exp(-16) in int16.
ROOM_INT8, ROOM_INT16 = 8.0, 16.0


class ActivationObserver(UniformQuantizationObserverBase):  # type: ignore[misc]  # torchao has no annotations
    """Watches an activation and gives it a scale and a zero point.

    Args:
        method: ``mse`` (least expected squared error on unseen inputs, see ``range_search``), ``minmax`` (everything seen fits),
            ``moving_average`` (exponential average of each input's extremes), ``percentile`` (a share of the values fits).
        percentile: percent of the values inside the range, for ``percentile``.
        averaging_constant: weight of the newest input, for ``moving_average``.
        dtype, qscheme, quant_min, quant_max, eps: as for torchao's observers; ``eps`` is the least scale.
        known: the range that mathematics gives (softmax: 0..1). The codes cover no more than it, and less where the calibration
            asks for less: attention over hundreds of tokens has probabilities of a few percent, a small network's tanh is far
            from 1. Codes kept for the rest would cost up to 6 dB.

    Attributes:
        name: FX node whose value is watched, for messages.
        domain: reals the reader is defined for (asin: -1..1); the range does not go beyond.
        masked: an attention mask overwrites some of it with the lowest code, which therefore lies well below all that was seen.
        may_mask: some of it is masked if calibration shows numbers far below all others (``is_mask``).
        sums: of an input that may mask, the observers of the sums that it is part of.
        thresholds: numbers that it is compared with, if that is all that its readers do; see ``near_thresholds``.
        is_input: it watches an input of the program, of whose calibration tensors statistics are kept.
        statistics: of the program input's tensors, one for each.
        seen: what was observed, apart from the buffers: assigning to a module's attribute is slow.
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
        known: tuple[float, float] | None = None,
        **kwargs: Any,
    ):
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
        self.register_buffer("histogram", torch.zeros(2 * HALF_BINS, dtype=torch.float64))
        self.name = ""
        self.known = known
        self.domain = known or (-math.inf, math.inf)
        self.masked = self.may_mask = False
        self.thresholds: list[float] = []
        self._sums: list[ActivationObserver] = []
        self.is_input = False
        self.statistics: list[InputStatistics] = []
        self.seen = Seen()
        self._qparams: tuple[Tensor, Tensor] | None = None
        self.follow(None)

    def follow(self, leader: ActivationObserver | Follower | None, feed: bool = False) -> None:
        """Take the leader's qparams; with ``feed`` the leader also observes what comes by here."""
        self._leaders: list[ActivationObserver | Follower] = [] if leader is None else [leader]  # a list is no submodule
        self._feeds = feed

    @property
    def leader(self) -> ActivationObserver | Follower | None:
        """The observer whose qparams this one takes; None where it has its own."""
        return self._leaders[0] if self._leaders else None

    @property
    def sums(self) -> list[ActivationObserver]:
        """Of an input that may mask: the observers of the sums that it is part of."""
        return self._sums

    def forward(self, x: Tensor) -> Tensor:
        """Observe ``x`` and return it, without its gradient: what calibrates does not train.

        Raises:
            QuantizationError: there is a NaN in it.
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
        """Observe what is neither infinite nor masked."""
        if self.may_mask and not self.masked:
            self.masked = is_mask(values, SUNK)
        if self.masked:
            values = values[~(values <= SUNK)]
            if values.numel() == 0:
                return
        low, high = (float(v) for v in torch.aminmax(values))
        if math.isnan(low) or math.isnan(high):
            raise QuantizationError(
                "calibration.nan", f"{self.name or 'a tensor'} is NaN for a calibration input; find out why in the float model"
            )
        if math.isinf(low) or math.isinf(high):  # attention masks: infinity is the end of any range
            values = values[values.isfinite()]
            if values.numel() == 0:
                return
            low, high = (float(v) for v in torch.aminmax(values))
        self.observe(values, low, high)

    def observe(self, values: Tensor, low: float, high: float) -> None:
        """Count finite values, of which the least is ``low`` and the largest ``high``."""
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
                self.histogram[HALF_BINS // 2 : 3 * HALF_BINS // 2] = merged
            seen.reach = reach
        if seen.reach:
            bins = torch.mul(values.float(), HALF_BINS / seen.reach).add_(HALF_BINS).clamp_(0, 2 * HALF_BINS - 1)
            self.histogram += torch.bincount(bins.int(), minlength=2 * HALF_BINS)  # a third of the time of torch.histc
            seen.nonzero += float((values != 0).sum())

    def calculate_qparams(self, **_: Any) -> tuple[Tensor, Tensor]:
        """(scale, zero point), each of one element.

        Raises:
            QuantizationError: nothing was observed.
        """
        if self.leader is not None:
            if self.statistics:
                warn_about(self.name, self.statistics)
                self.statistics = []
            return self.leader.calculate_qparams()
        if self._qparams is None:
            if self.known and self.fills(self.known):
                scale, zero = known_qparams(self.known, self.dtype, self.quant_min, self.quant_max)
                self._qparams = torch.tensor([scale]), torch.tensor([zero])
                return self._qparams
            if not self.seen.inputs:
                raise QuantizationError(
                    "calibration.none",
                    f"{self.name or 'an observer'} saw no calibration input. Run the prepared model on samples before "
                    "convert_pt2e; each branch of torch.cond needs one that reaches it.",
                )
            if self.statistics:
                warn_about(self.name, self.statistics)
            (low, high), (least, most) = self.range(), self.domain
            if self.masked:
                low = min(low, self._below())
            if self.thresholds:
                low, high = near_thresholds(low, high, self.thresholds)
            low, high = max(low, least), min(high, most)
            self._qparams = self._calculate_qparams(torch.tensor(min(low, high)), torch.tensor(high))  # a softmax of one place is 1
        return self._qparams

    def _below(self) -> float:
        """What the lowest code stands for where some is masked. It is less than all that was seen, and takes sums below it too."""
        room = ROOM_INT8 if self.quant_max < 1 << 8 else ROOM_INT16
        reach = max((float(total.max_val - total.min_val) for total in self.sums if total.seen.lows), default=0.0)
        return (float(self.min_val) if self.seen.lows else 0.0) - reach - room * (2 if self.sums else 1)

    def fills(self, known: tuple[float, float]) -> bool:
        """Is all of the known range to be covered, or is nothing known of what is? A symmetric range is filled from one side."""
        low, high = self.range()
        if self.qscheme == torch.per_tensor_symmetric:
            return max(-low, high) >= max(-known[0], known[1]) or low == high == 0
        return (low <= known[0] and high >= known[1]) or low == high == 0

    def range(self) -> tuple[float, float]:
        """The real range that the codes are to cover."""
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


def near_thresholds(low: float, high: float, thresholds: list[float]) -> tuple[float, float]:
    """Return the part of a range that decides comparisons with the thresholds.

    A value beyond it saturates on its own side of each threshold. Steps near a threshold are finer, so fewer values change sides.
    """
    room = (high - low) / _NEAR
    return max(low, min(thresholds) - room), min(high, max(thresholds) + room)


def known_qparams(known: tuple[float, float], dtype: torch.dtype, quant_min: int, quant_max: int) -> tuple[float, int]:
    """(scale, zero point) that map a known real range to all codes; in int16, which has no zero point on the NPU, around zero.

    In int32 too, where ExecuTorch's kernel overflows with a zero point. To half of the codes: float32 has no 2**31 - 1.
    """
    low, high = known
    if dtype in (torch.int16, torch.int32):
        return max(abs(low), abs(high)) / min(quant_max, 1 << 30), 0
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


class Follower(UniformQuantizationObserverBase):  # type: ignore[misc]  # torchao has no annotations
    """Stands where data only moved. It has the qparams of the tensor that the data came from, and observes nothing."""

    def __init__(self, leader: ActivationObserver | Follower):
        super().__init__(
            dtype=leader.dtype,
            qscheme=leader.qscheme,
            quant_min=leader.quant_min,
            quant_max=leader.quant_max,
            eps=float(leader.eps),
            is_dynamic=leader.is_dynamic,
        )
        self._leaders = [leader]  # a list is no submodule

    @property
    def leader(self) -> ActivationObserver | Follower:
        """The observer whose qparams this one has."""
        return self._leaders[0]

    def forward(self, x: Tensor) -> Tensor:
        """``x``, unobserved."""
        return x

    def calculate_qparams(self, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The leader's."""
        return self.leader.calculate_qparams(**kwargs)


def leading(observer: Any) -> Any:
    """The observer whose qparams this one has, through those that follow others; itself where it follows none."""
    while isinstance(observer, (ActivationObserver, Follower)) and observer.leader is not None:
        observer = observer.leader
    return observer
