"""Cycles of feature map transfers."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ethorch.npu.cycles.compounds import Compound
from ethorch.npu.cycles.compute import Computation
from ethorch.npu.cycles.memories import CONSTANTS, MemoryRate, Regions
from ethorch.npu.cycles.traffic import COPY, IFM, MAPS, WRITE, Traffic, copy_cycles, count_bus_bytes, transfer_bytes
from ethorch.npu.cycles.work import Map
from ethorch.npu.forms import Copy, Transfer
from ethorch.npu.ir import Op
from ethorch.npu.memory import INTERNAL
from ethorch.npu.registers import Npu

_INDEX_BITS = 32
_BLOCK = (1, 1, 1)  # Vela has no blocks for a gather (ElementTransferToBytes in ethos_u85_performance.cpp)


def rate_copy(op: Op, regions: Regions) -> Compound | None:
    """Return the cycles and traffic of a transfer, or None for copies of tables and constants, which Vela ignores."""
    form = op.prepared.form
    if isinstance(form, Transfer):
        source, target, size = form.source[0], form.target[0], form.outer * form.inner * form.length
    else:
        assert isinstance(form, Copy)
        source, target, size = form.source.region, form.target.region, form.source.size_bytes
    if isinstance(form, Transfer) and (form.by_source or form.by_target):
        # A gather or scatter has accesses only (MeasureCycleCost in ethos_u85_performance.cpp).
        indices = regions[form.index[0]]
        return Compound(Computation(0, 0, 0), tuple(_gather_traffic(op.npu, form, regions[source], indices, regions[target])))
    if INTERNAL in (source, target) or source == CONSTANTS:
        return None
    rows = form.outer * form.inner if isinstance(form, Transfer) else 1
    ends = (regions[source], COPY), (regions[target], WRITE)
    traffic = tuple(Traffic(memory, channel, MAPS, count_bus_bytes(memory, size, rows)) for memory, channel in ends)
    return Compound(Computation(copy_cycles(op.npu, regions[source], regions[target], size, rows), 0, 0), traffic)


def _gather_traffic(npu: Npu, form: Transfer, source: MemoryRate, indices: MemoryRate, target: MemoryRate) -> Iterator[Traffic]:
    # Vela counts one source element for each index (MeasureElementAccess).
    count = form.outer * form.inner
    yield _move(npu, source, (1, 1, count), 8, write=False)
    yield _move(npu, indices, (1, 1, count), _INDEX_BITS, write=False)
    yield _move(npu, target, (1, count, form.length), 8, write=True)


def _move(npu: Npu, memory: MemoryRate, size: tuple[int, int, int], bits: int, *, write: bool) -> Traffic:
    fm = Map(size, bits, False, memory)
    return Traffic(memory, WRITE if write else IFM, MAPS, transfer_bytes(npu, fm, _BLOCK, prod(size), write=write))
