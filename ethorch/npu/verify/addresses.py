"""Alignment, lengths and bounds of accesses.

Sources: Vela's register_command_stream_util.py, regor (``CheckAddresses``, ``GetTiles``), npu-reference 3.3, 4, 5.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ethorch.npu.arithmetic import ceil_div
from ethorch.npu.feature_map import BRICK, FeatureMap
from ethorch.npu.filters import Streams
from ethorch.npu.forms import Copy, Transfer
from ethorch.npu.ir.image import CONSTANTS, Image
from ethorch.npu.memory import INTERNAL
from ethorch.npu.registers import U55, U85
from ethorch.npu.runs import Run
from ethorch.npu.verify.instruction import Facts, reject
from ethorch.npu.verify.rejection import Rejection

STREAM_BYTES = 16  # alignment of streams and transfers
SCALE_BYTES = 10  # of a channel (npu-reference 5)


def check_addresses(facts: Facts, index: int, image: Image) -> Iterator[Rejection]:
    assert facts.prepared is not None
    if facts.is_dma:
        yield from _check_transfer(facts, index)
    for access in facts.prepared.maps:
        if access.in_memory:
            yield from _check_map(facts, index, access)
    if streams := find_streams(facts):
        yield from _check_streams(facts, index, streams)
    yield from _check_bounds(facts, index, image)


def find_streams(facts: Facts) -> Streams | None:
    form = facts.prepared.form if facts.prepared else None
    streams = getattr(form, "streams", None) or getattr(form, "scaling", None)
    return streams if isinstance(streams, Streams) else None


def _check_map(facts: Facts, index: int, fm: FeatureMap) -> Iterator[Rejection]:
    size = fm.dtype.itemsize
    unit = BRICK if fm.bricks else size
    for tile in fm.tiles:
        if tile.base % unit:
            register = f"{fm.name}_BASE{tile.number}"
            yield reject(facts, index, "alignment", register, tile.base, f"multiples of {unit}")
    names = ("STRIDE_Y", "STRIDE_X", "STRIDE_C")
    for name, stride in zip(names, fm.strides if fm.bricks else fm.strides[:2], strict=False):
        if stride % unit:
            yield reject(facts, index, "alignment", f"{fm.name}_{name}", stride, f"multiples of {unit}")
    if fm.bricks and fm.width > 1 and fm.strides[1] % (BRICK * size):
        yield reject(facts, index, "alignment", f"{fm.name}_STRIDE_X", fm.strides[1], f"multiples of {BRICK * size}")


def _check_transfer(facts: Facts, index: int) -> Iterator[Rejection]:
    values = facts.values
    everywhere = facts.npu.family == U55
    internal = bool(values["DMA0_DST_REGION.internal"])
    constant = values["DMA0_SRC_REGION.region"] == CONSTANTS  # Vela aligns every constant
    checked = {"DMA0_SRC": everywhere or constant, "DMA0_DST": everywhere or internal, "DMA0_LEN": everywhere or internal}
    for register, is_checked in checked.items():
        if is_checked and values[register] % STREAM_BYTES:
            yield reject(facts, index, "alignment", register, values[register], f"multiples of {STREAM_BYTES}")
    if not values["DMA0_LEN"]:
        yield reject(facts, index, "length", "DMA0_LEN", 0, "at least 1")
    for read in facts.reads:
        for written in facts.writes:
            if _share_bytes(facts, read, written):
                yield reject(facts, index, "overlap", "DMA0_DST", written.base, f"addresses outside the source at {read.base}")


def _share_bytes(facts: Facts, read: Run, written: Run) -> bool:
    # A transfer may copy one range of bytes onto itself.
    if read.region != written.region or read.low >= written.high or written.low >= read.high:
        return False
    form = facts.prepared.form if facts.prepared else None
    if isinstance(form, Copy):
        return read.base != written.base
    if not isinstance(form, Transfer) or read.register != "DMA0_SRC" or form.source_rows is None or form.target_rows is None:
        return True
    return bool(np.isin(form.source_rows.addresses(), form.target_rows.addresses()).any())


def _check_streams(facts: Facts, index: int, streams: Streams) -> Iterator[Rejection]:
    cores = facts.npu.cores if facts.npu.family != U85 else 1
    if facts.npu.family == U85:
        unit = max(facts.npu.ofm_units.get(facts.values["ACC_FORMAT.microblock"], BRICK), BRICK)
        channels = [ceil_div(streams.depth, unit) * unit]
        least = [streams.depth]
    else:
        least = channels = [len(range(core, streams.depth, cores)) for core in range(min(cores, streams.depth))]
    for core, (most, fewest) in enumerate(zip(channels, least, strict=True)):
        register = f"SCALE{core or ''}_LENGTH"
        allowed = {ceil_div(SCALE_BYTES * n, STREAM_BYTES) * STREAM_BYTES for n in (fewest, most)}
        if facts.values[register] not in allowed:
            text = " or ".join(map(str, sorted(allowed)))
            yield reject(facts, index, "length", register, facts.values[register], f"{text} for {streams.depth} channels")


def _check_bounds(facts: Facts, index: int, image: Image) -> Iterator[Rejection]:
    for runs, writes in ((facts.reads, False), (facts.writes, True)):
        for run in runs:
            size = facts.npu.internal_bytes if run.region == INTERNAL else image.size_bytes(run.region)
            if size is None:
                name = run.register.split("_BASE")[0]
                regions = ", ".join(map(str, sorted({CONSTANTS, *image.sizes})))
                yield reject(facts, index, "region", f"{name}_REGION", run.region, f"regions {regions}")
            elif run.low < 0 or run.high > size:
                span = f"{run.base:#x} (bytes {run.low:#x} to {run.high:#x})"
                yield reject(facts, index, "bounds", run.register, span, f"bytes 0 to {size:#x} of region {run.region}")
            elif writes and run.region == CONSTANTS:
                yield reject(facts, index, "region", run.register, run.region, "regions other than the constants")
            elif writes and run.region == INTERNAL and run.low < facts.npu.lut_base:
                yield reject(facts, index, "lut", run.register, run.low, f"the tables from byte {facts.npu.lut_base}")
