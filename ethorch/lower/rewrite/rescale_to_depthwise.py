"""Convert INT8 RESCALEs, CLAMPs and TABLEs to 1x1 depthwise convolutions, which take half the cycles of Vela's pools."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ethorch.lower.rewrite.insert_copies import LONGEST
from ethorch.lower.rewrite.planes import fold_bricks
from ethorch.lower.rewrite.rewriter import Rewriter
from ethorch.targets.tuning import BRICK
from ethorch.tosa.ir import Op
from ethorch.tosa.opset import BY_ONE, KERNEL_1X1

#: Operators that move data.
_MOVES = ("CONCAT", "SLICE", "PAD")
#: Minimum number of channels for which Vela fuses a TABLE with a convolution.
CHANNELS_OF_TABLE = 8


def rescale_to_depthwise(r: Rewriter, smallest: int | None, with_tables: bool = False) -> None:
    """Replace RESCALEs from INT8 to INT8, and separate INT8 CLAMPs, with a DEPTHWISE_CONV2D and operators that Vela fuses.

    Long axes remain, because Vela's pools have no limit.

    Args:
        smallest: Minimum number of elements, or None to replace nothing.
        with_tables: Whether to replace TABLEs, too.
    """
    if smallest is None:
        return
    for op in r.select("RESCALE", "CLAMP", "TABLE"):
        value, is_moved = op.operands[0], _is_moved(r, op)
        if value.is_const or value.dtype != "INT8" or math.prod(value.shape) < smallest or (op.name == "TABLE" and not with_tables):
            continue
        # Vela fuses other CLAMPs and TABLEs with the preceding operator.
        is_separate = not is_moved and (r.producer(value) is None or r.uses(value) > 1)
        shape = _as_map(value.shape, is_folded=not is_moved)
        fits = max(shape) <= LONGEST and (op.name != "TABLE" or shape[3] >= CHANNELS_OF_TABLE)
        if fits and (is_plain(op) if op.name == "RESCALE" else is_separate):
            _multiply_by_one(r, op, shape)


def _is_moved(r: Rewriter, op: Op) -> bool:
    # Vela stores operands of a CONCAT in its result, and reads a SLICE in its source, unless they are reshaped.
    return r.producer(op.operands[0], *_MOVES) is not None or any(reader.name in _MOVES for reader in r.readers(op.result))


def _as_map(shape: Sequence[int], is_folded: bool) -> tuple[int, int, int, int]:
    # With 16 channels, the convolution needs few scales, which can be in slow memory, and processes whole bricks.
    *outer, width, channels = (1, 1, *shape)
    bricks, rest = divmod(math.prod(shape), BRICK)
    if is_folded and channels != BRICK and not rest:
        return 1, *fold_bricks(shape, bricks), BRICK
    return 1, math.prod(outer), width, channels


def is_plain(op: Op) -> bool:
    """Return True if ``op`` is a signed per-tensor RESCALE from INT8 to INT8."""
    if op.name != "RESCALE" or not op.operands[0].dtype == op.result.dtype == "INT8":
        return False
    return not (op.attrs["per_channel"] or op.attrs["input_unsigned"] or op.attrs["output_unsigned"])


def _multiply_by_one(r: Rewriter, op: Op, shape: tuple[int, int, int, int]) -> None:
    at, value = r.before(op), op.operands[0]
    weight = at.constant(np.ones((1, 1, shape[3], 1), np.int8), "INT8")
    bias = at.constant(np.zeros(1, np.int32), "INT32")
    value = value if value.shape == shape else at.reshape(value, *shape)
    wide = at.emit("DEPTHWISE_CONV2D", value, weight, bias, **{**KERNEL_1X1, "input_zp": op.attrs.get("input_zp", 0)})
    value = at.again(op, wide, input_zp=0) if op.name == "RESCALE" else at.again(op, at.emit("RESCALE", wide, **BY_ONE))
    r.replace(op, value if value.shape == op.result.shape else at.reshape(value, *op.result.shape))
