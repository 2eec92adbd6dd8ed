"""BLOCKDEP: the number of blocks of a kernel that may be unfinished when the next kernel starts.

Source: ``CalcBlockDep`` and ``GetJobs`` of regor's register_cs_generator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ethorch.npu.arithmetic import ceil_div
from ethorch.npu.feature_map import BRICK, FeatureMap
from ethorch.npu.registers import U55, U65, U85
from ethorch.npu.verify import blocks_u85, shram
from ethorch.npu.verify.chains import is_chained, read_operands
from ethorch.npu.verify.instruction import Facts, Instruction, reject
from ethorch.npu.verify.rejection import Rejection
from ethorch.npu.window import Window

MOST_BLOCKDEP = {U55: 3, U65: 3, U85: 7}

Size = tuple[int, int, int]
Box = tuple[Size, Size]  # first and end coordinate: row, column, channel


def check_blockdep(instructions: Sequence[Instruction], all_facts: Sequence[Facts]) -> Iterator[Rejection]:
    """Check the BLOCKDEP of each kernel against the previous kernel, or, within a chain, against the kernel before the chain."""
    earlier: Facts | None = None
    latest: Facts | None = None
    for index, (instruction, facts) in enumerate(zip(instructions, all_facts, strict=True)):
        if any(not wait.is_dma and wait.count == 0 for wait in instruction.waits):
            earlier = latest = None
        if facts.is_dma:
            continue
        if not any(is_chained(facts, operand) for operand in read_operands(facts)):
            earlier = latest
        most = MOST_BLOCKDEP[facts.npu.family]
        blockdep = facts.values["BLOCKDEP"]
        if blockdep and earlier is not None:
            most = min(most, largest_blockdep(earlier, facts))
        if blockdep > most:
            yield reject(facts, index, "blockdep", "BLOCKDEP", blockdep, f"0 to {most}")
        latest = facts


def largest_blockdep(first: Facts, second: Facts) -> int:
    """Return the largest BLOCKDEP with which ``second`` reads no bytes that unfinished blocks of ``first`` write.

    On NPUs whose tables share SHRAM with other data, ``second`` must also not overwrite the table of ``first``.
    """
    if shram.tables_share_banks(first.npu) and first.table is not None and second.table is None:
        return 0
    most = MOST_BLOCKDEP[second.npu.family]
    assert first.prepared is not None and second.prepared is not None
    written = [access for access in first.prepared.writes if isinstance(access, FeatureMap) and access.in_memory]
    read = [access for access in second.prepared.reads if isinstance(access, FeatureMap) and access.in_memory]
    for ofm in written:
        for ifm in read:
            if _may_overlap(ofm, ifm):
                most = min(most, _by_jobs(first, ofm, second, ifm, read, most))
    return most


def _may_overlap(a: FeatureMap, b: FeatureMap) -> bool:
    if a.region != b.region:
        return False
    return any(low < end and start < high for low, high in _list_extents(a) for start, end in _list_extents(b))


def _list_extents(fm: FeatureMap) -> list[tuple[int, int]]:
    """Return the address range of each tile, without the unused channels of the last brick (npu-reference 3.3)."""
    unused = -fm.depth % BRICK * fm.dtype.itemsize if fm.bricks else 0
    return [(low, high - unused) for low, high in fm.extents()]


def _by_jobs(first: Facts, ofm: FeatureMap, second: Facts, ifm: FeatureMap, read: list[FeatureMap], most: int) -> int:
    if first.values.get("OFM_PRECISION.transpose") or first.values.get("OFM_PRECISION.reverse"):
        return 0
    if second.name == "NPU_OP_ELEMENTWISE" and any(ifm.size_bytes < operand.size_bytes for operand in read):
        return 0  # a broadcast operand
    units, origin = _find_units(ofm, ifm), min(tile.base for tile in (*ofm.tiles, *ifm.tiles))
    if units is None or not all(_has_unique_positions(fm, origin, units) for fm in (ofm, ifm)):
        return 0
    last = list_jobs((ofm.height, ofm.width, ofm.depth), shram.block_size(first), most, from_end=True)
    start = list_jobs((ifm.height, ifm.width, ifm.depth), _ifm_job(second), most)
    written = [_locate(ofm, job, origin, units) for job in reversed(last)]
    needed = [_locate(ifm, job, origin, units) for job in start]
    conflicts = [i + j for i, a in enumerate(needed) for j, b in enumerate(written) if _intersect(a, b)]
    return min([len(last), len(start), *conflicts]) if conflicts else most


def _find_units(a: FeatureMap, b: FeatureMap) -> Size | None:
    """Return the strides of a layout that contains both feature maps, or None. Either can be a strided slice of it."""
    axes = 3 if a.bricks else 2
    pairs = list(zip(a.strides, b.strides, strict=True))
    if (a.bricks, a.dtype.itemsize) != (b.bricks, b.dtype.itemsize) or any(min(pair) <= 0 for pair in pairs[:axes]):
        return None
    if any(max(pair) % min(pair) for pair in pairs[:2]) or (a.bricks and pairs[2][0] != pairs[2][1]):
        return None
    return min(pairs[0]), min(pairs[1]), a.strides[2]


def _has_unique_positions(fm: FeatureMap, origin: int, units: Size) -> bool:
    # Rows and columns must not overlap or wrap in the layout.
    size = fm.dtype.itemsize
    for tile in fm.tiles:
        offset = tile.base - origin
        _, x, c = _position(fm, offset, units)
        start = offset % units[0] % (units[2] if fm.bricks else units[0]) % units[1]
        end = x * units[1] + (tile.width - 1) * fm.strides[1] + start + (BRICK if fm.bricks else fm.depth) * size
        if fm.bricks and (start or end > units[2] or (c // BRICK + ceil_div(fm.depth, BRICK)) * units[2] > units[0]):
            return False
        if not fm.bricks and (start + fm.depth * size > units[1] or end > units[0]):
            return False
    return True


def _locate(fm: FeatureMap, job: Box, origin: int, units: Size) -> list[Box]:
    steps = fm.strides[0] // units[0], fm.strides[1] // units[1]
    (row, column, channel), (rows, columns, channels) = job
    boxes = []
    for tile in fm.tiles:
        low = max(row, tile.y), max(column, tile.x)
        high = min(rows, tile.y + tile.height), min(columns, tile.x + tile.width)
        if low[0] < high[0] and low[1] < high[1]:
            y, x, c = _position(fm, tile.base - origin, units)
            y, x = y - tile.y * steps[0], x - tile.x * steps[1]
            start = y + low[0] * steps[0], x + low[1] * steps[1], c + channel
            boxes.append((start, (y + (high[0] - 1) * steps[0] + 1, x + (high[1] - 1) * steps[1] + 1, c + channels)))
    return boxes


def _position(fm: FeatureMap, offset: int, units: Size) -> Size:
    step_y, step_x, step_c = units
    rows, rest = divmod(offset, step_y)
    bricks, rest = divmod(rest, step_c) if fm.bricks else (0, rest)
    columns, rest = divmod(rest, step_x)
    return rows, columns, BRICK * bricks + rest // fm.dtype.itemsize


def _ifm_job(facts: Facts) -> Size:
    height, width, depth = shram.block_size(facts)
    window = getattr(facts.prepared.form, "window", None) if facts.prepared else None
    if isinstance(window, Window):
        height = (height - 1) * window.stride[0] + window.extent[0]
        width = (width - 1) * window.stride[1] + window.extent[1]
    if facts.name == "NPU_OP_CONV" or facts.mode == "REDUCE_SUM":
        rules = blocks_u85 if facts.npu.family == U85 else shram
        depth = rules.ifm_block_depth(facts)
    return height, width, depth


def list_jobs(size: Size, job: Size, most: int, from_end: bool = False) -> list[Box]:
    """Return up to ``most`` blocks of size ``job`` at the start or end of a feature map, sorted by row, column and channel."""
    rows, columns, slices = (ceil_div(n, step) for n, step in zip(size, job, strict=True))
    count = rows * columns * slices
    numbers = range(max(0, count - most), count) if from_end else range(min(count, most))
    jobs = []
    for number in numbers:
        low = (
            number // (slices * columns) * job[0],
            number // slices % columns * job[1],
            number % slices * job[2],
        )
        high = (min(low[0] + job[0], size[0]), min(low[1] + job[1], size[1]), min(low[2] + job[2], size[2]))
        jobs.append((low, high))
    return jobs


def _intersect(first: list[Box], second: list[Box]) -> bool:
    return any(all(max(a[0][axis], b[0][axis]) < min(a[1][axis], b[1][axis]) for axis in range(3)) for a in first for b in second)
