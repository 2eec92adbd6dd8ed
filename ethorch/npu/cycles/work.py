"""Properties of a kernel that determine its cycles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ethorch.npu import registers
from ethorch.npu.arithmetic import ceil_div
from ethorch.npu.cycles.hardware import SUBKERNEL, U55_MICROBLOCK, U85_MICROBLOCK_AREA, Size, core_macs, ifm_unit
from ethorch.npu.cycles.memories import ARENA, CONSTANTS, MemoryRate, Regions
from ethorch.npu.ir import Op
from ethorch.npu.registers import Npu

CONV, DEPTHWISE, POOL, REDUCE_SUM, ELEMENTWISE, RESIZE = "conv", "depthwise", "pool", "reduce_sum", "elementwise", "resize"
_KINDS = {"NPU_OP_CONV": CONV, "NPU_OP_DEPTHWISE": DEPTHWISE, "NPU_OP_POOL": POOL, "NPU_OP_RESIZE": RESIZE}
_POOL_REDUCE_SUM = 2
_UNARY = frozenset({5, 6, 7, 36})  # LRELU, ABS, CLZ, NOT (npu-reference 2.2)
_CHAINED, _NO_STORAGE = 2, 3  # PRECISION.storage of U85
_SCALAR = 8  # BROADCAST of U85
_U55_TABLES = frozenset({3, 4, *range(16, 24)})  # ACTIVATION.function: TANH, SIGMOID, TABLE_0 to TABLE_7
#: Axes of the OFM in memory by OFM_PRECISION.transpose of U85, e.g. WHC.
_AXES = {0: (0, 1, 2), 1: (1, 0, 2), 2: (0, 2, 1), 3: (1, 2, 0), 6: (2, 0, 1), 7: (2, 1, 0)}
_HALF_RATE_AXES = ((1, 0, 2), (1, 2, 0), (2, 1, 0))
_REVERSE_WIDTH = 2
_NEAREST = 1
_FROM_IFM2 = 2  # ACC_FORMAT.input of U85
_POOL_NONE = 4  # of U85: copies the accumulators
_ELEMENT_BITS = (8, 16, 32, 64)

State = Mapping[str, int]


@dataclass(frozen=True)
class Map:
    size: Size
    bits: int
    bricks: bool
    memory: MemoryRate
    chained: bool = False  # a chain buffer of U85

    @property
    def elements(self) -> int:
        return volume(self.size)

    @property
    def stored_elements(self) -> int:
        """The number of elements in memory, including the padding of bricks."""
        return round_depth(self.size, self.bricks)


@dataclass(frozen=True)
class Window:
    size: tuple[int, int] = (1, 1)  # height, width
    extent: tuple[int, int] = (1, 1)  # dilated height, width
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)  # top, left, bottom, right
    upscale: int = 1
    nearest: bool = False  # upscaling repeats elements

    def input_area(self, out: Size) -> tuple[int, int]:
        extents = (
            (out[axis] - 1) * self.stride[axis] + self.extent[axis] - self.pads[axis] - self.pads[axis + 2] for axis in (0, 1)
        )
        height, width = (ceil_div(max(extent, 1), self.upscale) for extent in extents)
        return height, width


@dataclass(frozen=True)
class Work:
    """The properties of a kernel that the cycle formulas use."""

    npu: Npu = field(hash=False)
    kind: str
    mode: int  # bits 16 to 31 of the command
    ifms: tuple[Map, ...]
    ofm: Map
    out: Size  # size of the OFM before transposition
    axes: Size  # of ``out`` in memory
    window: Window
    ifm_block: Size
    block: Size
    microblock: Size
    part_kernel: bool
    sparse: bool
    fast_weights: bool
    wide: bool  # accumulators have 40 or 48 bits
    table: bool
    half_rate: bool  # U85 swaps height and width, or reverses the width
    weight_bytes: int  # of all cores
    scale_bytes: int
    weights: MemoryRate | None
    scales: MemoryRate | None

    @property
    def is_array_work(self) -> bool:
        return self.kind not in (ELEMENTWISE, RESIZE)

    def resize(self, out: Size, pads: tuple[int, int, int, int] | None = None) -> Work:
        """Return a copy with an OFM of size ``out`` and a matching IFM."""
        window = self.window if pads is None else replace(self.window, pads=pads)
        first, ofm = self.ifms[0], replace(self.ofm, size=permute(out, self.axes))
        if self.is_array_work:
            first = replace(first, size=(*window.input_area(out), first.size[2] if self.kind in (CONV, REDUCE_SUM) else out[2]))
        return replace(self, ofm=ofm, out=out, window=window, ifms=(first, *self.ifms[1:]))

    def change_block(self, block: Size) -> Work:
        """Return a copy with OFM blocks of size ``block``."""
        ifm_block = _ifm_block(
            self.npu, self.kind, self.ifms[0], block, self.window, self.microblock, self.part_kernel, self.sparse
        )
        return replace(self, block=block, ifm_block=ifm_block)

    def move_maps(self, memory: MemoryRate) -> Work:
        return replace(self, ofm=replace(self.ofm, memory=memory), ifms=tuple(replace(fm, memory=memory) for fm in self.ifms))


def permute(size: Size, axes: Size) -> Size:
    return size[axes[0]], size[axes[1]], size[axes[2]]


def volume(size: Size) -> int:
    return size[0] * size[1] * size[2]


def clip(size: Size, limit: Size) -> Size:
    return min(size[0], limit[0]), min(size[1], limit[1]), min(size[2], limit[2])


def divide_up(size: Size, unit: Size) -> Size:
    return ceil_div(size[0], unit[0]), ceil_div(size[1], unit[1]), ceil_div(size[2], unit[2])


def round_up(value: int, unit: int) -> int:
    return ceil_div(value, unit) * unit


def round_depth(size: Size, bricks: bool) -> int:
    height, width, depth = size
    return height * width * (round_up(depth, 16) if bricks else depth)


def read_work(op: Op, regions: Regions) -> Work:
    npu, state = op.npu, op.values
    is_u85 = npu.family == registers.U85
    kind = _KINDS.get(op.name, ELEMENTWISE)
    if kind == POOL and op.parameter == _POOL_REDUCE_SUM:
        kind = REDUCE_SUM
    block = (state["OFM_BLK_HEIGHT"], state["OFM_BLK_WIDTH"], state["OFM_BLK_DEPTH"])
    out = (state["OFM_HEIGHT"], state["OFM_WIDTH"], state["OFM_DEPTH"])
    window = Window() if kind in (ELEMENTWISE, RESIZE) else _read_window(state)
    part_kernel = kind == CONV and state["KERNEL_STRIDE.weight_order"] == 1
    sparse = is_u85 and kind == CONV and state["WEIGHT_FORMAT.sparsity"] == 1
    ifms = _read_ifms(op, state, kind, out, window, regions)
    if is_u85:
        area = U85_MICROBLOCK_AREA[state["ACC_FORMAT.microblock"]]
        microblock = (*area, npu.macs // 8 // (area[0] * area[1]))
    else:
        microblock = U55_MICROBLOCK[core_macs(npu)]
    axes = _AXES[state["OFM_PRECISION.transpose"]] if is_u85 else _AXES[0]
    function = state["ACTIVATION.function"]
    has_weights = kind in (CONV, DEPTHWISE) and not multiplies_maps(op)
    return Work(
        npu=npu,
        kind=kind,
        mode=op.parameter,
        ifms=ifms,
        ofm=_read_map(state, "OFM", permute(out, axes), regions, is_u85),
        out=out,
        axes=axes,
        window=window,
        ifm_block=_ifm_block(npu, kind, ifms[0], block, window, microblock, part_kernel, sparse),
        block=block,
        microblock=microblock,
        part_kernel=part_kernel,
        sparse=sparse,
        fast_weights=is_u85 and kind == CONV and state["WEIGHT_FORMAT.decoder"] == 1,
        wide=state["ACC_FORMAT.format"] == 1,
        table=function != 0 if is_u85 else function in _U55_TABLES,
        half_rate=is_u85 and (axes in _HALF_RATE_AXES or state["OFM_PRECISION.reverse"] == _REVERSE_WIDTH),
        weight_bytes=sum(state[key] for key in _lengths(npu, "WEIGHT")) if has_weights else 0,
        scale_bytes=sum(state[key] for key in _lengths(npu, "SCALE")) if has_weights else 0,
        weights=regions[state["WEIGHT_REGION"]] if has_weights else None,
        scales=regions[state["SCALE_REGION"]] if has_weights else None,
    )


def multiplies_maps(op: Op) -> bool:
    """Return True if IFM2 contains the weights, as in matrix products on U85."""
    return op.name == "NPU_OP_CONV" and op.npu.family == registers.U85 and op.parameter & 1 == 1


def reads_accumulators(op: Op) -> bool:
    """Return True if IFM2 contains the initial accumulators."""
    if op.npu.family != registers.U85 or op.name not in ("NPU_OP_CONV", "NPU_OP_DEPTHWISE", "NPU_OP_POOL"):
        return False
    return op.values["ACC_FORMAT.input"] == _FROM_IFM2


def _lengths(npu: Npu, prefix: str) -> tuple[str, ...]:
    count = npu.cores if prefix == "WEIGHT" or npu.family == registers.U65 else 1
    return tuple(f"{prefix}{core or ''}_LENGTH" for core in range(count))


def _read_window(state: State) -> Window:
    extent = (state["KERNEL_HEIGHT"], state["KERNEL_WIDTH"])
    dilation = (state["KERNEL_STRIDE.dilation_y"], state["KERNEL_STRIDE.dilation_x"])
    height, width = ((extent[axis] - 1) // dilation[axis] + 1 for axis in (0, 1))
    stride = tuple(1 + state[f"KERNEL_STRIDE.{axis}0"] + 2 * state[f"KERNEL_STRIDE.{axis}1"] for axis in "yx")
    pads = tuple(state[f"IFM_PAD_{side}"] for side in ("TOP", "LEFT", "BOTTOM", "RIGHT"))
    upscaling = state["IFM_UPSCALE"]
    return Window(
        size=(height, width),
        extent=extent,
        stride=(stride[0], stride[1]),
        pads=(pads[0], pads[1], pads[2], pads[3]),
        upscale=2 if upscaling else 1,
        nearest=upscaling == _NEAREST,
    )


def _read_map(state: State, prefix: str, size: Size, regions: Regions, is_u85: bool) -> Map:
    storage = state[f"{prefix}_PRECISION.storage"] if is_u85 else 0
    chained = storage == _CHAINED
    memory = regions[ARENA if chained or storage == _NO_STORAGE else state[f"{prefix}_REGION"]]
    bits = _ELEMENT_BITS[state[f"{prefix}_PRECISION.precision"]]
    return Map(size, bits, state[f"{prefix}_PRECISION.format"] == 1, memory, chained)


def _read_ifms(op: Op, state: State, kind: str, out: Size, window: Window, regions: Regions) -> tuple[Map, ...]:
    is_u85 = op.npu.family == registers.U85
    if kind == ELEMENTWISE:
        return _read_u85_operands(op, state, out, regions) if is_u85 else _read_u55_operands(op, state, out, regions)
    height, width = window.input_area(out)
    if kind == RESIZE:
        height, width = state["KERNEL_HEIGHT"], state["KERNEL_WIDTH"]
    if kind == POOL and op.parameter == _POOL_NONE and reads_accumulators(op):
        return (_read_map(state, "IFM2", (height, width, out[2]), regions, is_u85),)
    first = _read_map(state, "IFM", (height, width, state["IFM_DEPTH"]), regions, is_u85)
    if not multiplies_maps(op):
        return (first,)
    # The second operand has one row for each output channel.
    return first, _read_map(state, "IFM2", (1, out[2], state["IFM_DEPTH"]), regions, is_u85)


def _read_u55_operands(op: Op, state: State, out: Size, regions: Regions) -> tuple[Map, ...]:
    first = _read_map(state, "IFM", out, regions, is_u85=False)
    if op.parameter in _UNARY:
        return (first,)
    if state["IFM2_BROADCAST.constant"]:
        second = replace(_read_map(state, "IFM2", (1, 1, 1), regions, is_u85=False), memory=regions[CONSTANTS])
    else:
        height, width, depth = (1 if state[f"IFM2_BROADCAST.{axis}"] else out[n] for n, axis in enumerate("hwc"))
        second = _read_map(state, "IFM2", (height, width, depth), regions, is_u85=False)
    return first, second


def _read_u85_operands(op: Op, state: State, out: Size, regions: Regions) -> tuple[Map, ...]:
    def read(prefix: str) -> Map:
        broadcast = state[f"{prefix}_BROADCAST"]
        if broadcast == _SCALAR or state[f"{prefix}_PRECISION.storage"] == _NO_STORAGE:
            return replace(_read_map(state, prefix, (1, 1, 1), regions, is_u85=True), memory=regions[CONSTANTS])
        height, width, depth = (1 if broadcast >> axis & 1 else out[axis] for axis in (0, 1, 2))
        return _read_map(state, prefix, (height, width, depth), regions, is_u85=True)

    return (read("IFM"),) if op.parameter in _UNARY else (read("IFM"), read("IFM2"))


def _ifm_block(
    npu: Npu, kind: str, ifm: Map, block: Size, window: Window, microblock: Size, part_kernel: bool, sparse: bool
) -> Size:
    # GetArchIFMBlockSize, FindBlockConfig
    is_u85 = npu.family == registers.U85
    if kind == ELEMENTWISE:
        return block
    depth = block[2]
    if kind in (CONV, REDUCE_SUM):
        if not is_u85 and ifm.bits == 16:
            depth = round_up(min(ifm.size[2], 16), 4)
        elif not is_u85:
            depth = round_up(min(ifm.size[2], 16 if part_kernel else 32), 8)
        elif part_kernel:
            depth = 16
        elif ifm.bits == 32 or (npu.macs <= 256 and microblock[2] == 16 and not sparse):
            depth = 32
        else:
            depth = 128 if sparse and ifm.bits == 8 else 64
    unit = ifm_unit(npu, microblock, depth, ifm.bits) if is_u85 else U55_MICROBLOCK[core_macs(npu)]
    extents = ((block[axis] - 1) * window.stride[axis] + min(window.extent[axis], SUBKERNEL) + window.nearest for axis in (0, 1))
    height, width = (round_up(ceil_div(extent, window.upscale), unit[axis]) for axis, extent in enumerate(extents))
    return height, width, depth
