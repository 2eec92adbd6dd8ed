"""One convolution whose result is cut up becomes several, one for each piece, where no bit changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ethorch.tosa.ir import Graph, Op, Value

#: A convolution of fewer channels leaves most of the multipliers idle (U85 works on blocks of 16).
_FEWEST_CHANNELS = 16
#: What may stand between a convolution and the cut: each works on every element alone.
_ALONG = ("RESCALE", "CLAMP", "TABLE")


def split_convolutions(graph: Graph) -> bool:
    """A CONV2D that is reshaped and only read in slices of its channels is one CONV2D for each slice. True if there was one.

    A joint projection of queries, keys and values is such: its slices are copied row by row otherwise.
    """
    users, outputs = graph.users(), {id(value) for value in graph.outputs}
    pieces: dict[int, list[Op]] = {}
    gone: set[int] = set()
    for op in graph.ops:
        if op.name != "CONV2D" or not all(value.is_const for value in op.operands[1:]):
            continue
        chain = [op]
        while (follower := _sole_reader(chain[-1].result, users, outputs)) and follower.name in _ALONG:
            chain.append(follower)
        if follower is None or follower.name != "RESHAPE" or id(follower.result) in outputs:
            continue
        slices = users.get(id(follower.result), [])
        chosen = [_channels(op.result.shape, s) if s.name == "SLICE" else None for s in slices]
        if len(slices) < 2 or sum(math.prod(s.result.shape) for s in slices) > math.prod(op.result.shape):
            continue
        for cut, channels in zip(slices, chosen, strict=True):
            if channels is None or len(channels) < _FEWEST_CHANNELS:
                break
            pieces[id(cut)] = _piece(chain, channels, cut)
        else:
            gone.update(id(link) for link in (*chain, follower))
            continue
        for cut in slices:
            pieces.pop(id(cut), None)
    graph.ops = [new for op in graph.ops if id(op) not in gone for new in pieces.get(id(op), [op])]
    return bool(pieces)


def _sole_reader(value: Value, users: Mapping[int, Sequence[Op]], outputs: set[int]) -> Op | None:
    """The operator that reads ``value``, if it is the only one, and reads it as data."""
    readers = users.get(id(value), ())
    return readers[0] if len(readers) == 1 and id(value) not in outputs and readers[0].operands[0] is value else None


def _channels(shape: Sequence[int], cut: Op) -> np.ndarray | None:
    """The channels, last of ``shape``, that a SLICE of the reshaped tensor takes at every place; None if it takes more or less."""
    reshaped, start, size = cut.operands[0].shape, cut.attrs["start"], cut.attrs["size"]
    first = next((k for k in range(len(reshaped), -1, -1) if math.prod(reshaped[k:]) == shape[-1]), None)
    if first is None or tuple(size[:first]) != tuple(reshaped[:first]):
        return None
    taken = tuple(slice(s, s + n) for s, n in zip(start[first:], size[first:], strict=True))
    return np.arange(shape[-1]).reshape(reshaped[first:])[taken].ravel()


def _piece(chain: Sequence[Op], channels: np.ndarray, cut: Op) -> list[Op]:
    """``chain``, a convolution and what follows it, for these channels alone; its result is that of ``cut``."""
    made: list[Op] = []
    for number, op in enumerate(chain):
        name = f"{cut.result.name}_of_{number}"
        value = Value(name, (*op.result.shape[:-1], len(channels)), op.result.dtype, op.result.origin)
        attrs = dict(op.attrs)
        if number == 0:
            constants = [
                Value(f"{name}_{what}", (len(channels), *full.shape[1:]), full.dtype, full.origin, full.data[channels])
                for what, full in zip(("weight", "bias"), op.operands[1:], strict=True)
                if full.data is not None
            ]
            operands = (op.operands[0], *constants)
        else:
            operands = (made[-1].result, *op.operands[1:])
        if attrs.get("per_channel"):
            attrs |= {key: tuple(attrs[key][channel] for channel in channels) for key in ("multiplier", "shift")}
        made.append(Op(op.name, operands, attrs, (value,)))
    return [*made, Op("RESHAPE", (made[-1].result,), {"shape": cut.result.shape}, cut.results)]
