"""Convert INT8 RESCALEs to 1x1 depthwise convolutions, which take half the cycles of Vela's pools on the U55."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ethorch.lower.rewrite.insert_copies import LONGEST
from ethorch.lower.rewrite.rewriter import Rewriter
from ethorch.tosa.ir import Op


def rescale_to_depthwise(r: Rewriter, smallest: int | None, channels: tuple[int, int] | None = None) -> None:
    """Replace each RESCALE from INT8 to INT8 with a DEPTHWISE_CONV2D and a RESCALE that Vela fuses.

    A RESCALE with an axis too long for the NPU is not replaced. Vela converts it to a pool, which has no such limit.

    Args:
        smallest: Minimum number of elements, or None to replace nothing.
        channels: Minimum and maximum number of channels. Default: any.
    """
    if smallest is None:
        return
    fewest, most = channels or (1, LONGEST)
    for op in r.select("RESCALE"):
        shape = _as_map(op.result.shape)
        pays = math.prod(shape) >= smallest and fewest <= shape[3] <= most and max(shape) <= LONGEST
        if is_plain(op) and not op.operands[0].is_const and pays:
            _multiply_by_one(r, op)


def _as_map(shape: Sequence[int]) -> tuple[int, int, int, int]:
    *outer, width, channels = (1, 1, *shape)
    return 1, math.prod(outer), width, channels


def is_plain(op: Op) -> bool:
    """Return True if ``op`` is a signed per-tensor RESCALE from INT8 to INT8."""
    if op.name != "RESCALE" or not op.operands[0].dtype == op.result.dtype == "INT8":
        return False
    return not (op.attrs["per_channel"] or op.attrs["input_unsigned"] or op.attrs["output_unsigned"])


def _multiply_by_one(r: Rewriter, op: Op) -> None:
    at, value = r.before(op), op.operands[0]
    shape = _as_map(value.shape)
    weight = at.constant(np.ones((1, 1, shape[3], 1), np.int8), "INT8")
    bias = at.constant(np.zeros(1, np.int32), "INT32")
    window = {"pad": (0, 0, 0, 0), "stride": (1, 1), "dilation": (1, 1), "input_zp": op.attrs["input_zp"], "weight_zp": 0}
    value = value if value.shape == shape else at.reshape(value, *shape)
    value = at.again(op, at.emit("DEPTHWISE_CONV2D", value, weight, bias, **window), input_zp=0)
    r.replace(op, value if value.shape == op.result.shape else at.reshape(value, *op.result.shape))
