"""Choose the columns, kernel taps and block of the convolutions that compute a matrix product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ethorch.npu.arithmetic import ceil_div, round_up
from ethorch.npu.feature_map import BRICK
from ethorch.npu.ir import Op, Stream
from ethorch.npu.passes.attention.blocks import MOST_DEPTH, Block, list_blocks
from ethorch.npu.passes.attention.kernels import Constants, Emitter
from ethorch.npu.passes.attention.match import Product
from ethorch.npu.passes.attention.replacement import Form, Writer, count_buffers, split_columns
from ethorch.npu.passes.attention.tables import SLOTS, Slots
from ethorch.npu.passes.attention.weights import IFM_BLOCK, MOST_TAPS, MOST_WEIGHTS
from ethorch.npu.passes.context import Context
from ethorch.npu.registers import Npu

_MORE_PIECES = 3  # than the fewest
_EXTENTS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128)  # of blocks that are compared


@dataclass
class Chooser:
    """A cache that contains the fastest ``Form`` for each shape of a product, according to the cycle model."""

    stream: Stream
    context: Context

    def __post_init__(self) -> None:
        self._forms: dict[tuple[object, ...], Form | None] = {}

    def choose(self, product: Product) -> Form | None:
        """Return the fastest form of a product, or None if Vela's operations are faster."""
        key = _describe(product)
        if key not in self._forms:
            self._forms[key] = self._search(product)
        return self._forms[key]

    def rate(self, ops: Sequence[Op]) -> int:
        return self.context.rate(replace(self.stream, ops=list(ops)))

    def _search(self, product: Product) -> Form | None:
        best, least = None, self.rate([self.stream.ops[position] for position in product.positions])
        for piece, has_taps in list_splits(self.stream.npu, product):
            form = self._choose_block(product, piece, has_taps)
            if form is None:
                continue
            cycles = self.rate(self._write(product, form))
            if cycles < least:
                best, least = form, cycles
        return best

    def _write(self, product: Product, form: Form) -> list[Op]:
        emitter, constants = Emitter(self.stream.npu, -1), Constants(self.stream.image.constants)
        Writer(emitter, constants, Slots(emitter.npu), product, form).write(range(SLOTS))
        return emitter.ops

    def _choose_block(self, product: Product, piece: int, has_taps: bool) -> Form | None:
        single = replace(product, batches=1, columns=min(piece, product.columns))
        blocks = list(_list_blocks(self.stream.npu, single, piece, has_taps))
        if not blocks:
            return None
        convolution = self._write(single, Form(piece, has_taps, blocks[0]))[-1]
        fastest = min(blocks, key=lambda block: self.rate([convolution.copy(**block.registers)]))
        return Form(piece, has_taps, fastest)


def _describe(product: Product) -> tuple[object, ...]:
    _, low, high = product.scratch
    regions = product.a.region, product.b.region, product.ofm.region, product.scratch[0]
    sizes = product.batches, product.rows, product.columns, product.depth, high - low, low % 16
    strides = product.a.row_stride, product.b.row_stride, product.ofm.row_stride, product.ofm.item_bytes
    return (*regions, *sizes, *strides)


def list_splits(npu: Npu, product: Product) -> Iterator[tuple[int, bool]]:
    """Yield candidate pairs: columns per convolution, and whether groups of input channels become kernel taps."""
    unit = npu.ofm_units[0] * npu.cores
    depth = round_up(product.depth, IFM_BLOCK)
    for has_taps in (False, True):
        taps = depth // IFM_BLOCK
        if has_taps and (depth != product.depth or not 1 < taps <= MOST_TAPS):
            continue
        most = MOST_WEIGHTS // (depth * npu.ofm_units[0]) * unit
        if not has_taps:
            most = min(most, MOST_DEPTH)
        if most < unit:
            continue
        fewest = ceil_div(product.columns, most)
        sizes = {round_up(ceil_div(product.columns, count), unit) for count in range(fewest, fewest + 1 + _MORE_PIECES)}
        while not any(_fits(npu, product, size, has_taps) for size in sizes) and max(sizes) > unit:
            sizes = {round_up(max(sizes) // 2, unit)}
        yield from ((size, has_taps) for size in sorted(sizes) if size <= most and _fits(npu, product, size, has_taps))


def _fits(npu: Npu, product: Product, piece: int, has_taps: bool) -> bool:
    return count_buffers(product, split_columns(npu, product, piece, has_taps)) >= 2


def _list_blocks(npu: Npu, product: Product, piece: int, has_taps: bool) -> Iterator[Block]:
    unit = npu.ofm_units[0] * npu.cores
    depth = min(round_up(min(piece, product.columns), unit), MOST_DEPTH)
    depths: tuple[int, ...] = (depth,)
    if has_taps:
        depths = tuple(sorted({depth, *(size for size in _EXTENTS if size % unit == size % BRICK == 0 and size <= depth)}))
    taps = product.depth // IFM_BLOCK if has_taps else 1
    for block in list_blocks(npu, product.rows, depths, taps, min(product.depth, IFM_BLOCK)):
        if block.size[1] in _EXTENTS or block.size[1] >= product.rows:
            yield block
