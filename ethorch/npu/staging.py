"""Compute the size of a command stream's staging memory (region 2), which payloads do not record."""

from __future__ import annotations

from collections.abc import Iterator

from ethorch.npu.program import Program
from ethorch.npu.stream import Operation

MAX_STAGING_BYTES = 64 << 20  # region 2 is SRAM near the NPU, usually a few MiB
STAGING_REGION = 2


def staging_bytes(program: Program) -> int:
    """Return the required size of region 2, rounded up to a multiple of 16 bytes, but at most MAX_STAGING_BYTES."""
    highest = 0
    for op in program.operations():
        for _, end in reaches(op, STAGING_REGION):
            highest = max(highest, end)
    return min(-(-highest // 16) * 16, MAX_STAGING_BYTES)


def reaches(op: Operation, region: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield the region and an upper bound on the end address of each tensor that an operation accesses.

    Args:
        region: Region to include. Default: all regions.
    """
    state = op.state
    if op.name == "NPU_OP_DMA_START":
        mode = state["DMA0_SRC_REGION.stride_mode"]
        for end in ("SRC", "DST"):
            if state[f"DMA0_{end}_REGION.internal"]:
                continue
            size = state["DMA0_LEN"]
            for loop in (0, 1):
                step = abs(state.get(f"DMA0_{end}_STRIDE{loop}", size + abs(state.get(f"DMA0_SKIP{loop}", 0))))
                last = max(state[f"DMA0_SIZE{loop}"], 1) - 1 if mode > loop else 0
                if loop == 0 and state.get(f"DMA0_{end}_REGION.indexed"):
                    last = state["DMA0_IDX_MAX"]
                size += last * step
            if region in (None, state[f"DMA0_{end}_REGION.region"]):
                yield state[f"DMA0_{end}_REGION.region"], state[f"DMA0_{end}"] + size
        if "DMA0_IDX" in state and region in (None, state["DMA0_IDX_REGION"]):
            yield state["DMA0_IDX_REGION"], state["DMA0_IDX"] + 4 * max(state["DMA0_SIZE0"], 1)
        return
    if op.name not in (
        "NPU_OP_CONV",
        "NPU_OP_DEPTHWISE",
        "NPU_OP_POOL",
        "NPU_OP_ELEMENTWISE",
        "NPU_OP_RESIZE",
    ):
        return
    for tensor in ("IFM", "IFM2", "OFM"):
        if region not in (None, state[f"{tensor}_REGION"]):
            continue
        # No tile exceeds this height and width, and no element exceeds 8 bytes.
        depth = state["OFM_DEPTH"] if tensor == "OFM" else max(state["IFM_DEPTH"], state["OFM_DEPTH"])
        rows = max(state[f"{tensor}_HEIGHT0"], state[f"{tensor}_HEIGHT1"])
        extent = (
            (rows - 1) * abs(state[f"{tensor}_STRIDE_Y"])
            + (state[f"{tensor}_WIDTH0"] - 1) * abs(state[f"{tensor}_STRIDE_X"])
            + (depth - 1) // 16 * abs(state[f"{tensor}_STRIDE_C"])
            + depth * 8
        )
        yield state[f"{tensor}_REGION"], max(state[f"{tensor}_BASE{tile}"] for tile in range(4)) + extent
    for kind in ("WEIGHT", "SCALE"):
        if region not in (None, state[f"{kind}_REGION"]):
            continue
        for core in ("", "1", "2", "3"):
            if f"{kind}{core}_BASE" in state:
                yield state[f"{kind}_REGION"], state[f"{kind}{core}_BASE"] + state[f"{kind}{core}_LENGTH"]
