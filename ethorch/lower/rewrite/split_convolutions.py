"""Split convolutions by output channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.lower.rewrite.rewriter import Place, Rewriter
from ethorch.targets.tuning import SplitWeights
from ethorch.tosa.ir import Op, Value

#: Minimum number of channels for which a convolution uses the multipliers well (the U85 computes blocks of 16).
_FEWEST_CHANNELS = 16
#: Elementwise operators that are allowed between a convolution and a slice.
_ALONG = ("RESCALE", "CLAMP", "TABLE")

Channels = npt.NDArray[np.intp]


def split_convolutions(r: Rewriter) -> None:
    """Replace a CONV2D that is read only in slices of at least 16 channels, e.g. a joint projection, with one CONV2D per slice."""
    for op in r.select("CONV2D"):
        if not all(value.is_const for value in op.operands[1:]):
            continue
        chain, follower = _find_chain(r, op)
        if follower is None or follower.name != "RESHAPE" or r.is_output(follower.result):
            continue
        slices = r.readers(follower.result)
        if len(slices) < 2 or sum(math.prod(s.result.shape) for s in slices) > math.prod(op.result.shape):
            continue
        channels_by_slice = [_channels(op.result.shape, s) if s.name == "SLICE" else () for s in slices]
        if min(len(channels) for channels in channels_by_slice) < _FEWEST_CHANNELS:
            continue
        for cut, channels in zip(slices, channels_by_slice, strict=True):
            _compute(r, cut, chain, np.asarray(channels))
        for link in (follower, *reversed(chain)):
            r.erase(link)


def split_weights(r: Rewriter, setting: SplitWeights) -> None:
    """Replace a CONV2D with many weights and few output positions with one CONV2D per slice of output channels."""
    for op in r.select("CONV2D"):
        weights, (images, height, width, channels) = op.operands[1], op.result.shape
        if weights.data is None or not op.operands[2].is_const or images * height * width > setting.most_places:
            continue
        count = min(weights.data.size // setting.fewest_weights, setting.most_slices, channels // _FEWEST_CHANNELS)
        chain, _ = _find_chain(r, op)
        last = chain[-1]
        if count < 2 or last.result.dtype not in ("INT8", "INT16"):
            continue
        groups = np.array_split(np.arange(-(-channels // _FEWEST_CHANNELS)), count)
        starts = [int(group[0]) * _FEWEST_CHANNELS for group in groups]
        at = r.before(last)
        slices = [_select(at, chain, np.arange(*ends)) for ends in pairwise([*starts, channels])]
        r.replace(last, at.emit("CONCAT", *slices, axis=3))
        for link in reversed(chain[:-1]):
            r.erase(link)


def _find_chain(r: Rewriter, op: Op) -> tuple[list[Op], Op | None]:
    """Return a convolution and the elementwise operators after it, and the only reader of their result, or None."""
    chain = [op]
    while (follower := _sole_reader(r, chain[-1].result)) and follower.name in _ALONG:
        chain.append(follower)
    return chain, follower


def _sole_reader(r: Rewriter, value: Value) -> Op | None:
    readers = r.readers(value)
    return readers[0] if r.uses(value) == len(readers) == 1 and readers[0].operands[0] is value else None


def _channels(shape: Sequence[int], cut: Op) -> Channels | tuple[()]:
    reshaped, start, size = cut.operands[0].shape, cut.attrs["start"], cut.attrs["size"]
    first = next((k for k in range(len(reshaped), -1, -1) if math.prod(reshaped[k:]) == shape[-1]), None)
    if first is None or tuple(size[:first]) != tuple(reshaped[:first]):
        return ()
    ranges = tuple(slice(s, s + n) for s, n in zip(start[first:], size[first:], strict=True))
    return np.arange(shape[-1]).reshape(reshaped[first:])[ranges].ravel()


def _compute(r: Rewriter, cut: Op, chain: Sequence[Op], channels: Channels) -> None:
    at = r.before(cut)
    r.replace(cut, at.reshape(_select(at, chain, channels), *cut.result.shape))


def _select(at: Place, chain: Sequence[Op], channels: Channels) -> Value:
    """Insert copies of a convolution and its followers that compute only ``channels``."""
    value = chain[0].operands[0]
    for op in chain:
        attrs: dict[str, Any] = {}
        if op.attrs.get("per_channel"):
            attrs = {key: tuple(op.attrs[key][channel] for channel in channels) for key in ("multiplier", "shift")}
        constants = op.operands[1:] if op is chain[0] else ()
        selected = [
            full if full.shape[0] == 1 else at.constant(full.data[channels], full.dtype)
            for full in constants
            if full.data is not None
        ]
        value = at.again(op, value, *selected, **attrs)
    return value
