"""OFM scaling and rounding."""

from __future__ import annotations

from ethorch.npu import arithmetic, registers
from ethorch.npu.arithmetic import Scaling
from ethorch.npu.stream import Operation


def ofm_rounding(op: Operation) -> str:
    """Return the rounding of the OFM scale (npu-reference 2.3, 2.4), from OFM_PRECISION (U55, U65) or OFM_SCALE (U85)."""
    for key in ("OFM_PRECISION.rounding", "OFM_SCALE.rounding"):
        if key in op.state:
            return registers.value_names(op.npu.family)[key][op[key]]
    raise AssertionError(op.npu.family)


def ofm_scaling(op: Operation) -> Scaling:
    """Return the global OFM scale. OFM_SCALE.dbl_rnd has no effect on U85 (npu-reference 6.1)."""
    return arithmetic.scaling(op["OFM_SCALE.scale"], op["OFM_SCALE.shift"], ofm_rounding(op))
