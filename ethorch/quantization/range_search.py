"""Choose the range of an activation of least expected squared error, on the calibration inputs and on inputs that were not seen.

Three errors add up: rounding inside the range, clipping of calibration values outside it, and clipping of what a fresh input may
bring. The last is estimated from how far the extremes of the calibration inputs differ. Only small tensors, such as pooled features
and logits, need it: eight samples of 64 values contain little information about the next sample's largest.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

HALF_BINS = 2048  # histogram bins on each side of zero
#: Weight of what was clipped while calibrating, relative to rounding. The range was fitted to it, so a fresh input clips more.
_CLIPPED = 2.0
#: Weight of what a fresh input may clip. Squared errors average over inputs, and few inputs clip much: with 1, the range of a small
#: tensor costs all other inputs up to 5 dB. Means over 11 networks of ``bench.accuracy``, eight calibration inputs: fresh inputs
#: are 4.0 dB above the Arm backend's and calibration inputs 0.5 below. With 1 they are 3.8 above and 1.7 below.
_UNSEEN = 0.1
#: A tensor of ``_MANY`` elements or more gets no room for fresh inputs in int8: their extremes clip too few elements to pay for it.
_MANY = 2000
#: The standard deviation of the largest of so many normal values, in units of theirs. The extreme of a smaller tensor is supposed
#: to deviate so much of the elements' own deviation, which counts as ``_SUPPOSED_INPUTS`` more inputs, until there are
#: ``_ENOUGH_INPUTS``. With 16 inputs, pooled features that hardly vary would get room that costs 4 dB.
_ELEMENTS, _DEVIATIONS = (1, 4, 16, 64, 500, 2000), (1.0, 0.70, 0.56, 0.44, 0.36, 0.31)
_SUPPOSED_INPUTS, _ENOUGH_INPUTS = 4, 10
#: In 16 bits room costs nothing. The extreme of ``_HUNDREDS`` of elements or more is supposed to deviate by ``_USUAL`` of itself
#: from one input to the next, which counts as ``_USUAL_INPUTS`` more inputs.
_HUNDREDS, _USUAL, _USUAL_INPUTS = 500, 0.15, 6
#: Of fewer elements the extremes of some inputs may differ tenfold (gates, features of one outlying picture), and their deviation
#: asks for room that no input ever fills. No bound is further than this many times the largest value seen. Gains with four inputs:
#: ghostnetv3_050 2.6 dB (two seeds), patch_tst, small_gru and sorted 0.8 to 1.3 (eight), joined_inputs -0.4 +-1.0; with 2 instead
#: joined_inputs loses 1.3, with 1.5 six.
_FARTHEST = 2.5


@dataclass
class Seen:
    """What an observer knows of an activation besides its histogram.

    Attributes:
        inputs: tensors observed.
        lows, highs: the extremes of each that has finite elements.
        elements: of all tensors.
        reach: the histogram covers -reach..reach, a power of two; 0 before it covers anything.
        nonzero: elements in the histogram that are not exactly zero.
    """

    inputs: int = 0
    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    elements: int = 0
    reach: float = 0.0
    nonzero: float = 0.0


def bin_centres(reach: float) -> Floats:
    """The number in the middle of each bin of a histogram over -reach..reach."""
    return np.asarray((np.arange(-HALF_BINS, HALF_BINS) + 0.5) * (reach / HALF_BINS))


def percentile_range(counts: Floats, reach: float, percentile: float) -> tuple[float, float]:
    """(low, high) such that ``percentile`` percent of the counted values lie between, and as many below as above."""
    centres = bin_centres(reach)
    share = np.cumsum(counts) / counts.sum()
    outside = (1 - percentile / 100) / 2
    low, high = (centres[min(int(np.searchsorted(share, part)), len(share) - 1)] for part in (outside, 1 - outside))
    return float(low), float(high)


def least_squares_range(seen: Seen, counts: Floats, levels: int, symmetric: bool) -> tuple[float, float]:
    """(low, high) of least expected squared error.

    Args:
        seen: with a reach above 0 and elements that are not zero.
        counts: the histogram.
        levels: steps between the least code and the largest.
        symmetric: the range is -x..x.
    """
    centres, inputs = bin_centres(seen.reach), len(seen.lows)
    weight = seen.elements / counts.sum()  # histogram counts stand for this many elements each
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
    """Upper bounds worth trying, and for each the squared error of clipping there, summed over all inputs.

    Args:
        extremes: the largest value of each input.
        counts, centres: histogram, ascending.
        weight: elements that a count stands for.
        inputs: number of inputs.
        fine: rounding costs so little that an extreme which the histogram's share of the elements lacks counts by itself.
    """
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
    if spread > 0:  # the next input's largest value M follows Student's distribution: E[max(M - bound, 0)^2]
        sigma = spread * math.sqrt(1 + 1 / inputs)
        z, excess = _student_excess(freedom)
        unseen = sigma**2 * np.interp((np.maximum(bounds, largest) - float(extremes.mean())) / sigma, z, excess)
    return bounds, _CLIPPED * seen + (1.0 if fine else _UNSEEN) * inputs * unseen


def _deviation(counts: Floats, centres: Floats) -> float:
    """Return the standard deviation of the values in a histogram."""
    mean = float((counts * centres).sum() / counts.sum())
    return math.sqrt(float((counts * (centres - mean) ** 2).sum() / counts.sum()))


def _spread(extremes: Floats, elements: float, deviation: float, fine: bool) -> tuple[float, int]:
    """Return (standard deviation of the extreme of an input of so many elements, degrees of freedom); 0 if it gets no room.

    If codes are many (``fine``), room costs nothing and clipping much: extremes vary as they usually do, whatever was seen.
    """
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
    """(z, E[max(T - z, 0)^2]) for T of Student's t distribution, which is what is known of the next of a few normal values.

    Args:
        freedom: degrees of freedom, at least 3: the integral diverges below.
    """
    t = np.concatenate([np.linspace(-2, 40, 1051), 40 + np.geomspace(1e-3, 1e4, 200)])
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    density = scale * (1 + t * t / freedom) ** (-(freedom + 1) / 2)
    z = np.linspace(-1, 20, 211)
    return z, np.trapezoid(np.maximum(t - z[:, None], 0) ** 2 * density, t, axis=1)
