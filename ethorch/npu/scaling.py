"""OFM scaling and rounding, as the registers of an operation say."""

from __future__ import annotations

from ethorch.npu import arithmetic, registers
from ethorch.npu.arithmetic import Scaling
from ethorch.npu.stream import Operation


def ofm_rounding(op: Operation) -> str:
    """The rounding of the OFM scale: in OFM_PRECISION on U55/U65, in OFM_SCALE on U85 (npu-reference 2.4)."""
    for key in ("OFM_PRECISION.rounding", "OFM_SCALE.rounding"):
        if key in op.state:
            return registers.value_names(op.npu.family)[key][op[key]]
    raise AssertionError(op.npu.family)


def ofm_scaling(op: Operation) -> Scaling:
    """The global OFM scale. dbl_rnd of U85's OFM_SCALE counts as 0 (npu-reference 6.1)."""
    return arithmetic.scaling(op["OFM_SCALE.scale"], op["OFM_SCALE.shift"], ofm_rounding(op))
