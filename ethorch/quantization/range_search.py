from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

Floats = npt.NDArray[np.float64]

HALF_BINS = 2048  # histogram bins on each side of zero
#: Weight of clipped calibration values. It exceeds 1 because the range is fitted to these values, so unseen inputs clip more.
_CLIPPED = 2.0
#: Weight of clipping in unseen inputs, few of which clip much. Means over 11 networks of ``bench.accuracy`` with eight calibration
#: inputs, relative to the Arm backend: unseen inputs +4.0 dB, calibration inputs -0.5 dB. With 1: +3.8 and -1.7 dB.
_UNSEEN = 0.1
#: Number of elements from which the range of an int8 tensor is not widened for unseen inputs.
_MANY = 2000
#: Standard deviation of the maximum of ``_ELEMENTS`` normal values, relative to their standard deviation. This prior
#: counts as ``_SUPPOSED_INPUTS`` inputs if there are fewer than ``_ENOUGH_INPUTS``. With 16, pooled features lose 4 dB.
_ELEMENTS, _DEVIATIONS = (1, 4, 16, 64, 500, 2000), (1.0, 0.70, 0.56, 0.44, 0.36, 0.31)
_SUPPOSED_INPUTS, _ENOUGH_INPUTS = 4, 10
#: With 16 bits, a wider range costs little precision. For ``_HUNDREDS`` or more elements, the prior deviation of the extreme is
#: ``_USUAL`` times the extreme, and counts as ``_USUAL_INPUTS`` inputs.
_HUNDREDS, _USUAL, _USUAL_INPUTS = 500, 0.15, 6
#: Limit of a bound as a multiple of the largest observed value, because the extremes of small tensors (gates) may differ tenfold
#: between inputs. Gains with four inputs: ghostnetv3_050 2.6 dB, patch_tst, small_gru and sorted 0.8 to 1.3 dB, joined_inputs
#: -0.4 +-1.0 dB. With 2, joined_inputs loses 1.3 dB, with 1.5 it loses 6 dB.
_FARTHEST = 2.5


@dataclass
class Observations:
    """Statistics of the observed tensors of an activation. The histogram is stored separately.

    Attributes:
        inputs: Number of observed tensors.
        lows, highs: Extremes of each tensor with finite elements.
        infinite: Whether a tensor has no finite elements, but +inf.
        elements: Number of finite, unmasked elements.
        reach: Largest magnitude in the histogram's range, a power of two, or 0 if the histogram is empty.
        nonzero: Number of nonzero elements counted in the histogram.
        are_integers: Whether all elements are integers.
        small, large: Largest magnitude below a limit, and smallest magnitude from the limit on, of tensors with both.
    """

    inputs: int = 0
    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    infinite: bool = False
    elements: int = 0
    reach: float = 0.0
    nonzero: float = 0.0
    are_integers: bool = True
    small: float = 0.0
    large: float = 0.0

    def separate(self, magnitudes: Tensor, limit: float) -> None:
        """Update ``small`` and ``large``, unless all magnitudes are at least ``limit``."""
        small, large = magnitudes[magnitudes < limit], magnitudes[magnitudes >= limit]
        if small.numel():
            self.small = max(self.small, float(small.max()))
            self.large = min(self.large or math.inf, float(large.min()))


def bin_centres(reach: float) -> Floats:
    """Return the bin centers of a histogram over -reach..reach."""
    return np.asarray((np.arange(-HALF_BINS, HALF_BINS) + 0.5) * (reach / HALF_BINS))


def percentile_range(counts: Floats, reach: float, percentile: float) -> tuple[float, float]:
    """Return the (low, high) range of the central ``percentile`` percent of the values."""
    centres = bin_centres(reach)
    share = np.cumsum(counts) / counts.sum()
    outside = (1 - percentile / 100) / 2
    low, high = (centres[min(int(np.searchsorted(share, part)), len(share) - 1)] for part in (outside, 1 - outside))
    return float(low), float(high)


def least_squares_range(seen: Observations, counts: Floats, levels: int, symmetric: bool) -> tuple[float, float]:
    """Return the (low, high) with the least expected squared error.

    The error results from rounding and from clipping of calibration values and unseen values. Clipping of unseen values
    matters for small tensors, such as logits, and is estimated from the variation of the extremes between inputs.

    Args:
        seen: Observations with positive ``reach`` and ``nonzero``.
        counts: Histogram over ``-seen.reach..seen.reach``.
        levels: Difference between the highest and the lowest integer value.
        symmetric: Whether the range is -x..x.
    """
    centres, inputs = bin_centres(seen.reach), len(seen.lows)
    weight = seen.elements / counts.sum()  # number of elements that one histogram count represents
    rounding = seen.nonzero * weight / 12
    fine = levels > 255
    highs, above = _candidates(np.asarray(seen.highs), counts, centres, weight, inputs, fine)
    lows, below = _candidates(-np.asarray(seen.lows), counts[::-1], centres, weight, inputs, fine)
    if symmetric:  # one bound for both sides
        bounds = np.union1d(highs, lows)
        cost = np.interp(bounds, highs, above) + np.interp(bounds, lows, below) + rounding * (2 * bounds / levels) ** 2
        bound = float(bounds[np.argmin(cost)])
        return -bound, bound
    step = (highs[None, :] + lows[:, None]) / levels
    cost = above[None, :] + below[:, None] + rounding * step**2
    row, column = np.unravel_index(np.argmin(cost), cost.shape)
    return -float(lows[row]), float(highs[column])


def _candidates(extremes: Floats, counts: Floats, centres: Floats, weight: float, inputs: int, fine: bool) -> tuple[Floats, Floats]:
    largest = max(float(extremes.max()), 0.0)
    elements = counts.sum() * weight / inputs
    spread, freedom = _spread(extremes, elements, _deviation(counts, centres), fine)
    bounds = np.concatenate([np.linspace(0.2, 1.0, 65) * largest, largest + np.linspace(0.1, 8.0, 40) * spread])
    if largest > 0 and elements < _MANY and not fine:
        bounds = np.minimum(bounds, _FARTHEST * largest)
    if largest == 0:
        bounds = np.unique(bounds)
    s0, s1, s2 = (np.concatenate([np.cumsum((counts * centres**k)[::-1])[::-1], [0.0]]) for k in range(3))
    first = np.searchsorted(centres, bounds)
    seen = np.maximum(s2[first] - 2 * bounds * s1[first] + bounds**2 * s0[first], 0) * weight
    if fine:
        seen = np.maximum(seen, (np.maximum(extremes[:, None] - bounds, 0) ** 2).sum(axis=0))
    seen[bounds >= largest] = 0
    unseen = np.zeros_like(bounds)
    if spread > 0:  # the maximum M of the next input follows Student's t distribution: E[max(M - bound, 0)^2]
        sigma = spread * math.sqrt(1 + 1 / inputs)
        z, excess = _student_excess(freedom)
        unseen = sigma**2 * np.interp((np.maximum(bounds, largest) - float(extremes.mean())) / sigma, z, excess)
    return bounds, _CLIPPED * seen + (1.0 if fine else _UNSEEN) * inputs * unseen


def _deviation(counts: Floats, centres: Floats) -> float:
    mean = float((counts * centres).sum() / counts.sum())
    return math.sqrt(float((counts * (centres - mean) ** 2).sum() / counts.sum()))


def _spread(extremes: Floats, elements: float, deviation: float, fine: bool) -> tuple[float, int]:
    """Return the (standard deviation, degrees of freedom) of ``extremes``. A deviation of 0 limits the range to the extremes."""
    # If there are many integer values (``fine``), a wider range costs little precision, so a typical variation is assumed.
    freedom = len(extremes) - 1
    variance = float(np.var(extremes, ddof=1)) if freedom else 0.0
    if variance == 0 or (elements >= _MANY and not fine):
        return 0.0, 3
    if fine:
        inputs, supposed = (_USUAL_INPUTS, _USUAL * float(extremes.mean())) if elements >= _HUNDREDS else (0, 0.0)
    else:
        inputs = _SUPPOSED_INPUTS if len(extremes) < _ENOUGH_INPUTS else 0
        supposed = deviation * float(np.interp(math.log(max(elements, 1)), np.log(_ELEMENTS), _DEVIATIONS))
    return math.sqrt((inputs * supposed**2 + freedom * variance) / (freedom + inputs)), max(freedom + inputs, 3)


@functools.cache
def _student_excess(freedom: int) -> tuple[Floats, Floats]:
    t = np.concatenate([np.linspace(-2, 40, 1051), 40 + np.geomspace(1e-3, 1e4, 200)])
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    density = scale * (1 + t * t / freedom) ** (-(freedom + 1) / 2)
    z = np.linspace(-1, 20, 211)
    return z, np.trapezoid(np.maximum(t - z[:, None], 0) ** 2 * density, t, axis=1)
