"""One convolution whose result is cut up becomes several, one for each piece, where no bit changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.lower.rewrite.rewriter import Rewriter
from ethorch.tosa.ir import Op, Value

#: A convolution of fewer channels leaves most of the multipliers idle (U85 works on blocks of 16).
_FEWEST_CHANNELS = 16
#: What may stand between a convolution and the cut: each works on every element alone.
_ALONG = ("RESCALE", "CLAMP", "TABLE")

Channels = npt.NDArray[np.intp]


def split_convolutions(r: Rewriter) -> None:
    """A CONV2D that is reshaped and only read in slices of its channels is one CONV2D for each slice.

    A joint projection of queries, keys and values is such: its slices are copied row by row otherwise.
    """
    for op in r.named("CONV2D"):
        if not all(value.is_const for value in op.operands[1:]):
            continue
        chain = [op]
        while (follower := _sole_reader(r, chain[-1].result)) and follower.name in _ALONG:
            chain.append(follower)
        if follower is None or follower.name != "RESHAPE" or r.is_output(follower.result):
            continue
        slices = r.readers(follower.result)
        if len(slices) < 2 or sum(math.prod(s.result.shape) for s in slices) > math.prod(op.result.shape):
            continue
        chosen = [_channels(op.result.shape, s) if s.name == "SLICE" else () for s in slices]
        if min(len(channels) for channels in chosen) < _FEWEST_CHANNELS:
            continue
        for cut, channels in zip(slices, chosen, strict=True):
            _compute(r, cut, chain, np.asarray(channels))
        for link in (follower, *reversed(chain)):
            r.erase(link)


def _sole_reader(r: Rewriter, value: Value) -> Op | None:
    """The operator that reads ``value``, if it is the only one, and reads it as data."""
    readers = r.readers(value)
    return readers[0] if r.uses(value) == len(readers) == 1 and readers[0].operands[0] is value else None


def _channels(shape: Sequence[int], cut: Op) -> Channels | tuple[()]:
    """The channels, last of ``shape``, that a SLICE of the reshaped tensor takes at every place; none if it takes more or less."""
    reshaped, start, size = cut.operands[0].shape, cut.attrs["start"], cut.attrs["size"]
    first = next((k for k in range(len(reshaped), -1, -1) if math.prod(reshaped[k:]) == shape[-1]), None)
    if first is None or tuple(size[:first]) != tuple(reshaped[:first]):
        return ()
    taken = tuple(slice(s, s + n) for s, n in zip(start[first:], size[first:], strict=True))
    return np.arange(shape[-1]).reshape(reshaped[first:])[taken].ravel()


def _compute(r: Rewriter, cut: Op, chain: Sequence[Op], channels: Channels) -> None:
    """Replace ``cut`` by ``chain``, a convolution and what follows it, for these channels alone."""
    at = r.before(cut)
    value = chain[0].operands[0]
    for op in chain:
        attrs: dict[str, Any] = {}
        if op.attrs.get("per_channel"):
            attrs = {key: tuple(op.attrs[key][channel] for channel in channels) for key in ("multiplier", "shift")}
        constants = op.operands[1:] if op is chain[0] else ()
        picked = [at.constant(full.data[channels], full.dtype) for full in constants if full.data is not None]
        value = at.again(op, value, *picked, **attrs)
    r.replace(cut, at.reshape(value, *cut.result.shape))
