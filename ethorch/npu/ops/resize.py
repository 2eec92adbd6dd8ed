"""NPU_OP_RESIZE, U85 only (npu-reference 8.6)."""

from __future__ import annotations

import numpy as np

from ethorch.npu.arrays import Ints
from ethorch.npu.feature_map import feature_map
from ethorch.npu.forms import Resize
from ethorch.npu.memory import Memory
from ethorch.npu.output import OutputStage
from ethorch.npu.prepared import Prepared, operation
from ethorch.npu.registers import U85
from ethorch.npu.scaling import ofm_scaling
from ethorch.npu.stream import Operation

FRACTION = 16  # fraction bits of the accumulator
BILINEAR, REPLICATE, NEAREST = 0, 1, 2


@operation("NPU_OP_RESIZE", U85)
def resize(op: Operation) -> Prepared:
    """Prepare the operation OFM = output_stage(resized IFM << 16).

    Row i of the OFM corresponds to the fractional IFM row (i*RESIZE_Y + RESIZE_Y_OFFSET) / RESIZE_Y_SCALE_N. BILINEAR adds the
    two nearest rows, weighted by integers whose sum is RESIZE_Y_SCALE_N. Other modes select one row. The same holds for columns.
    """
    stage = OutputStage(op)
    height, width, depth = stage.shape
    ifm = feature_map(op, "IFM", (op["KERNEL_HEIGHT"], op["KERNEL_WIDTH"], depth))
    y0, y1, fy = _axis(op, "Y", height, ifm.height)
    x0, x1, fx = _axis(op, "X", width, ifm.width)
    ny, nx = op["RESIZE_Y_SCALE_N"], op["RESIZE_X_SCALE_N"]
    scale = ofm_scaling(op)

    def run(m: Memory) -> None:
        v = m.read(ifm).astype(np.int64) - ifm.zero_point
        if op.mode == BILINEAR:
            rows = v[y0] * (ny - fy)[:, None, None] + v[y1] * fy[:, None, None]
            acc = rows[:, x0] * (nx - fx)[:, None] + rows[:, x1] * fx[:, None]
        elif op.mode == NEAREST:
            acc = v[np.where(2 * fy >= ny, y1, y0)][:, np.where(2 * fx >= nx, x1, x0)]
        else:
            acc = v[y0][:, x0]
        stage.accumulate(m, acc << FRACTION, scale)

    elements = max(ifm.elements, stage.ofm.elements, height * ifm.width * depth)
    form = Resize(ifm, op.mode, (ny, y0, y1, fy), (nx, x0, x1, fx), scale, stage)
    return Prepared(run, (ifm, *stage.reads), stage.writes, 0, elements, form=form)


def _axis(op: Operation, axis: str, count: int, size: int) -> tuple[Ints, Ints, Ints]:
    n = op[f"RESIZE_{axis}_SCALE_N"]
    step = op[f"RESIZE_{axis}.one_step_int"] * n + op[f"RESIZE_{axis}.one_step_mod"]
    position = np.arange(count) * step + op[f"RESIZE_{axis}_OFFSET"]
    index = position // n
    return np.clip(index, 0, size - 1), np.clip(index + 1, 0, size - 1), position % n
