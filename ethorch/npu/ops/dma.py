"""NPU_OP_DMA_START, and commands that only order or observe execution (npu-reference 7)."""

from __future__ import annotations

import numpy as np

from ethorch.npu.arrays import Ints
from ethorch.npu.forms import Copy, Nothing, Transfer
from ethorch.npu.memory import INTERNAL, Memory, Span
from ethorch.npu.prepared import Prepared, operation
from ethorch.npu.registers import ALL, U5X, U85
from ethorch.npu.stream import Operation
from ethorch.support.errors import MachineFault


@operation("NPU_OP_DMA_WAIT", *ALL)
@operation("NPU_OP_KERNEL_WAIT", *ALL)
@operation("NPU_OP_PMU_MASK", *ALL)
@operation("NPU_OP_IRQ", *ALL)
def nothing(op: Operation) -> Prepared:
    """Prepare a wait, PMU mask or interrupt, which has no effect because the simulator executes commands in order."""
    return Prepared(lambda m: None, computes=False, form=Nothing())


def _region(op: Operation, end: str) -> int:
    return INTERNAL if op[f"DMA0_{end}_REGION.internal"] else op[f"DMA0_{end}_REGION.region"]


@operation("NPU_OP_DMA_START", *U5X)
def copy(op: Operation) -> Prepared:
    """Prepare a copy of DMA0_LEN bytes. Vela generates only 1D transfers for U55 and U65."""
    if op["DMA0_SRC_REGION.stride_mode"] or op["DMA0_DST_REGION.stride_mode"]:
        raise MachineFault("2D and 3D transfers are not supported on U55 and U65; expected 1D")
    return _copy(op)


def _copy(op: Operation) -> Prepared:
    source = Span("DMA0_SRC", _region(op, "SRC"), op["DMA0_SRC"], op["DMA0_LEN"])
    target = Span("DMA0_DST", _region(op, "DST"), op["DMA0_DST"], op["DMA0_LEN"])

    def run(m: Memory) -> None:
        m.writable(target)[...] = m.span(source)

    form = Copy(source, target)
    return Prepared(run, (source,), (target,), turns=1, dma_bytes=op["DMA0_LEN"], computes=False, form=form)


@operation("NPU_OP_DMA_START", U85)
def copy_strided(op: Operation) -> Prepared:
    """Prepare a copy in 1D, 2D or 3D, or a gather or scatter with 32-bit indices."""
    mode = op["DMA0_SRC_REGION.stride_mode"]
    by_source, by_target = op["DMA0_SRC_REGION.indexed"], op["DMA0_DST_REGION.indexed"]
    if not mode and not by_source and not by_target:
        return _copy(op)
    length = op["DMA0_LEN"]
    inner = op["DMA0_SIZE0"] if mode or by_source or by_target else 1
    outer = op["DMA0_SIZE1"] if mode == 2 else 1
    index_region, index_base, index_skip = op["DMA0_IDX_REGION"], op["DMA0_IDX"], op["DMA0_IDX_SKIP1"]
    limit = op["DMA0_IDX_MAX"]
    source_region, target_region = _region(op, "SRC"), _region(op, "DST")
    source_base, target_base = op["DMA0_SRC"], op["DMA0_DST"]
    source_strides = op["DMA0_SRC_STRIDE0"], op["DMA0_SRC_STRIDE1"]
    target_strides = op["DMA0_DST_STRIDE0"], op["DMA0_DST_STRIDE1"]

    def indices(m: Memory, j: int) -> Ints:
        if not (by_source or by_target):
            return np.arange(inner)
        base = index_base + j * (4 * inner + index_skip)
        values = m.span(Span("DMA0_IDX", index_region, base, 4 * inner)).view("<i4")
        if values.size and (values.min() < 0 or values.max() > limit):
            raise MachineFault(f"DMA indices are {values.min()}..{values.max()}; expected 0..{limit}")
        return values

    def run(m: Memory) -> None:
        for j in range(outer):
            row = indices(m, j)
            source = source_base + j * source_strides[1]
            target = target_base + j * target_strides[1]
            for i in range(inner):
                a = source + int(row[i] if by_source else i) * source_strides[0]
                b = target + int(row[i] if by_target else i) * target_strides[0]
                m.writable(Span("DMA0_DST", target_region, b, length))[...] = m.span(Span("DMA0_SRC", source_region, a, length))

    moved = length * inner * outer
    form = Transfer(
        length,
        inner,
        outer,
        (source_region, source_base, *source_strides),
        (target_region, target_base, *target_strides),
        bool(by_source),
        bool(by_target),
        (index_region, index_base, 4 * inner + index_skip),
        limit,
    )
    source_rows, target_rows = form.source_rows, form.target_rows
    if source_rows is not None and target_rows is not None:
        return Prepared(run, (source_rows,), (target_rows,), turns=inner * outer, dma_bytes=moved, computes=False, form=form)
    ends = source_region, target_region
    return Prepared(run, turns=inner * outer, dma_bytes=moved, computes=False, scattered=ends, form=form)
