"""The largest BLOCKDEP, compared with the bytes that the blocks access."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.ir import Op, decode, encode
from ethorch.npu.ir.encode import has_conflict
from ethorch.npu.verify import blocks_u85, shram, verify
from ethorch.npu.verify.blockdep import MOST_BLOCKDEP, Box, _ifm_job, largest_blockdep, list_jobs
from ethorch.npu.verify.instruction import describe
from tests.npu.verify.streams import compile_case

Layout = tuple[int, int, int, int, int, int]  # height, width, depth, row stride, column stride, base


def list_bytes(fm: FeatureMap, job: Box) -> set[int]:
    (y0, x0, c0), (y1, x1, c1) = job
    rows, columns, channels = np.arange(y0, min(y1, fm.height)), np.arange(x0, min(x1, fm.width)), np.arange(c0, min(c1, fm.depth))
    return set(np.add.outer(np.add.outer(rows * fm.strides[0], columns * fm.strides[1]), channels).ravel() + fm.bases[0])


def find_largest_by_bytes(first: Op, second: Op) -> int:
    a, b = describe(first), describe(second)
    most = MOST_BLOCKDEP[first.npu.family]
    (ofm,), (ifm,) = first.prepared.writes, [access for access in second.prepared.reads if isinstance(access, FeatureMap)]
    assert isinstance(ofm, FeatureMap)
    last = list_jobs(ofm.shape, shram.block_size(a), most, from_end=True)
    start = list_jobs(ifm.shape, _ifm_job(b), most)
    written, needed = [list_bytes(ofm, job) for job in reversed(last)], [list_bytes(ifm, job) for job in start]
    conflicts = [i + j for i, reads in enumerate(needed) for j, writes in enumerate(written) if reads & writes]
    return min([len(last), len(start), *conflicts]) if conflicts else most


def with_layouts(op: Op, ifm: Layout, ofm: Layout) -> Op:
    registers = {"OFM_HEIGHT_M1": ofm[0] - 1, "OFM_WIDTH_M1": ofm[1] - 1, "OFM_DEPTH_M1": ofm[2] - 1, "IFM_DEPTH_M1": ifm[2] - 1}
    registers |= {"OFM_BLK_HEIGHT_M1": 1, "OFM_BLK_WIDTH_M1": 3, "OFM_BLK_DEPTH_M1": 7, "KERNEL_STRIDE": 0, "IFM_UPSCALE": 0}
    registers |= dict.fromkeys(("KERNEL_HEIGHT_M1", "KERNEL_WIDTH_M1"), 0)
    registers |= dict.fromkeys(("IFM_PAD_TOP", "IFM_PAD_LEFT", "IFM_PAD_BOTTOM", "IFM_PAD_RIGHT"), 0)
    for name, (height, width, _, row, column, base) in (("IFM", ifm), ("OFM", ofm)):
        registers |= {f"{name}_HEIGHT0_M1": height - 1, f"{name}_HEIGHT1_M1": height - 1, f"{name}_WIDTH0_M1": width - 1}
        registers |= {f"{name}_STRIDE_Y": row, f"{name}_STRIDE_X": column, f"{name}_STRIDE_C": 1, f"{name}_BASE0": base}
        registers |= {f"{name}_PRECISION": op.registers[f"{name}_PRECISION"] & ~(1 << 6)}
    return op.copy(**registers)


def draw_layouts(seed: int) -> Iterator[tuple[Layout, Layout]]:
    """Yield pairs of a written map and a map that is read: slices, strided slices, reshapes and transposes of a tensor."""
    numbers = random.Random(seed)
    for _ in range(150):
        height, width, depth = numbers.choice((2, 8)), numbers.choice((4, 8, 32)), 8
        row, column = width * depth, depth
        whole = height, width, depth, row, column, 0
        maps = [
            whole,
            (height, width, depth // 2, row, column, numbers.choice((0, 4))),
            (height // 2, width, depth, row, column, row * numbers.randrange(height // 2 + 1)),
            (height // 2, width, depth, 2 * row, column, 0),
            (height, width // 2, depth, row, 2 * column, 0),
            (width, height, depth, column, row, 0),
            (height * width // 4, 4, depth, 4 * depth, depth, numbers.choice((0, row // 2))),
        ]
        yield numbers.choice(maps), numbers.choice(maps)


@pytest.mark.parametrize("seed", range(4))
def test_no_block_reads_bytes_of_an_unfinished_one(seed: int) -> None:
    ops = decode(compile_case("blocks", "ethos-u55-128").payload).ops
    pool = next(op for op in ops if op.name == "NPU_OP_POOL" and isinstance(op.prepared.writes[0], FeatureMap))
    accepted = 0
    for written, read in draw_layouts(seed):
        first = with_layouts(pool, (*written[:3], written[1] * written[2], written[2], 1 << 16), written)
        second = with_layouts(pool, read, (*read[:3], read[1] * read[2], read[2], 1 << 17))
        largest = largest_blockdep(describe(first), describe(second))
        assert largest <= find_largest_by_bytes(first, second), (written, read)
        accepted += largest > 0
    assert accepted > 20


def test_a_strided_slice_can_start_early() -> None:
    ops = decode(compile_case("blocks", "ethos-u55-128").payload).ops
    pool = next(op for op in ops if op.name == "NPU_OP_POOL" and isinstance(op.prepared.writes[0], FeatureMap))
    written, read = (16, 32, 8, 256, 8, 0), (8, 16, 8, 512, 16, 0)
    first = with_layouts(pool, (16, 32, 8, 256, 8, 1 << 16), written)
    second = with_layouts(pool, read, (8, 16, 8, 128, 8, 1 << 17))
    assert largest_blockdep(describe(first), describe(second)) == find_largest_by_bytes(first, second) == 3


def test_unused_channels_of_bricks_are_not_read() -> None:
    ops = decode(compile_case("blocks", "ethos-u55-128").payload).ops
    pool = next(op for op in ops if op.name == "NPU_OP_POOL" and isinstance(op.prepared.writes[0], FeatureMap))
    first = with_layouts(pool, (1, 4, 5, 20, 5, 1 << 16), (1, 4, 5, 64, 16, 0))
    first = first.copy(OFM_PRECISION=first.registers["OFM_PRECISION"] | 1 << 6, OFM_STRIDE_C=64)  # bytes 0 to 52
    for base, largest in ((48, 0), (56, 3)):
        second = with_layouts(pool, (1, 8, 4, 40, 5, base), (1, 8, 4, 32, 4, 1 << 17))
        assert largest_blockdep(describe(first), describe(second)) == largest


@pytest.mark.parametrize(("target", "largest"), [("ethos-u55-32", 0), ("ethos-u55-128", 3)])
def test_a_kernel_without_a_table_may_overwrite_tables(target: str, largest: int) -> None:
    kernels = [op for op in decode(compile_case("blocks", target).payload).ops if not op.is_dma]
    first = next(op for op in kernels if describe(op).table is not None)
    second = next(op for op in kernels if op.name == "NPU_OP_CONV" and describe(op).table is None)
    apart = second.copy(IFM_BASE0=1 << 20)
    assert largest_blockdep(describe(first), describe(apart)) == largest


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_blocks_start_at_bricks(target: str) -> None:
    kernels = [op for op in decode(compile_case("blocks", target).payload).ops if not op.is_dma]
    kernel = next(op for op in kernels if describe(op).values["OFM_DEPTH"] > 16 and op.name != "NPU_OP_RESIZE")
    rules = blocks_u85 if target == "ethos-u85-256" else shram
    for depth, is_legal in ((8, False), (16, True), (24, False)):
        facts = describe(kernel.copy(OFM_BLK_DEPTH_M1=depth - 1))
        found = [each for each in rules.check_block(facts, 0) if each.rule == "block"]
        assert not found if is_legal else found


def test_a_chain_waits_for_what_its_later_kernels_read() -> None:
    """The last kernel of a chain reads the result of the kernel before the chain."""
    case = compile_case("steps", "ethos-u85-256")
    stream = decode(case.payload, case.image)
    kernels = [op for op in stream.ops if not op.is_dma]
    _, *chain = next(
        group for group in zip(kernels, kernels[1:], kernels[2:], strict=False)
        if "OFM" not in {access.name for access in group[1].prepared.writes if isinstance(access, FeatureMap) and access.in_memory}
        and has_conflict(group[0], group[2]) and not has_conflict(group[0], group[1])
    )  # fmt: skip
    assert [op.registers["BLOCKDEP"] for op in chain] == [0, 0]
    raised = [op.copy(BLOCKDEP=7) if op.key in {chain[0].key, chain[1].key} else op for op in stream.ops]
    rejection = next(iter(verify(encode(replace(stream, ops=raised)), case.image)))
    assert (rejection.rule, rejection.index, rejection.found) == ("blockdep", stream.ops.index(chain[1]), 7)
    new = [replace(op, before=None) if op.key == chain[0].key else op for op in raised]
    assert verify(encode(replace(stream, ops=new)), case.image) == []
