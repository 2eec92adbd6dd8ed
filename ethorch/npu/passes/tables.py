"""Transfers of lookup tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ethorch.npu.ir import Op
from ethorch.npu.memory import INTERNAL


def drop_transfers(ops: Sequence[Op], needed: npt.NDArray[np.bool_]) -> list[Op]:
    """Return the operations without transfers of unused lookup tables.

    ``needed`` marks the bytes of internal memory that later operations read, and is modified.
    """
    remaining = []
    for op in reversed(ops):
        written = [run for run in op.writes if run.region == INTERNAL] if op.is_dma else []
        if written and not any(needed[run.low : run.high].any() for run in written):
            continue
        for run in written:
            needed[run.low : run.high] = False
        for run in op.reads if not op.is_dma else ():
            if run.region == INTERNAL:
                needed[run.low : run.high] = True
        remaining.append(op)
    return remaining[::-1]
