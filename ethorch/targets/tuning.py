"""Tuning: which of several exact ways to say the same in TOSA an NPU family runs fastest.

No choice changes a result beyond its last bit. The values stand in ``u55.py`` and ``u85.py``; the cycles behind each are in
docs/measurements.md under the field's name, and ``python -m bench.tuning`` measures them again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class RowCost:
    """What a row of bytes that lie together costs a TRANSPOSE that moves rows one by one."""

    #: Cycles that the shortest row takes.
    cycles: float
    #: A row takes this over the square of the shorter of the two exchanged extents: blocks are narrow there.
    narrow_cycles: float
    #: Of rows shorter than ``short_bytes``, one takes this times the first extent over the second,
    tall_cycles: float
    #: and this times the second over the first.
    wide_cycles: float
    short_bytes: int

    def of(self, first: int, second: int, inner_bytes: int) -> float:
        """The cycles a row takes at least, of [first, second, inner_bytes]."""
        narrow = self.narrow_cycles / min(first, second) ** 2
        short = inner_bytes < self.short_bytes
        uneven = max(self.tall_cycles * first / second, self.wide_cycles * second / first) if short else 0.0
        return max(self.cycles, narrow, uneven)


@dataclass(frozen=True, kw_only=True)
class TransposeCost:
    """What a TRANSPOSE costs in steps that exchange two neighbouring blocks of axes each, and as Vela does it at once."""

    #: Cycles a step takes for each byte that it moves,
    cycles_per_byte: float
    #: and for being there: a small tensor stays as it is.
    step_cycles: float
    #: Cycles a byte that Vela's own way takes at least if it exchanges axes in pairs; any other order takes twice that.
    vela_cycles_per_byte: float
    #: Rows that are moved one by one; None where all bytes cost the same.
    row: RowCost | None = None
    #: Rows of one element cost a step no more for each byte.
    of_single_elements: bool = False
    #: Where they do, they are still better for TRANSPOSEs of five axes and more with so many elements; None: for none.
    fewest_single_elements: int | None = None
    #: Vela refuses a TRANSPOSE of an axis with more than 65,536 elements: it runs in steps, whatever they cost.
    refuses_long_axes: bool = False

    def cycles(self, first: int, second: int, inner_bytes: int) -> float:
        """Estimated cycles to bring bytes [first, second, inner_bytes] to [second, first, inner_bytes]."""
        if self.row is None:
            return self.cycles_per_byte * first * second * inner_bytes + self.step_cycles
        row = max(self.cycles_per_byte * inner_bytes, self.row.of(first, second, inner_bytes))
        return first * second * row + self.step_cycles


@dataclass(frozen=True, kw_only=True)
class TileCost:
    """What a TILE costs: each copy is an operation of its own."""

    cycles_per_copy: float
    cycles_per_byte: float


@dataclass(frozen=True, kw_only=True)
class FoldColumns:
    """Columns that a strided CONV2D steps over become channels: they are neighbours in memory, and a RESHAPE does it."""

    #: Channels of a block that the multipliers take at once: there are no more after the fold.
    channels: int
    #: Taps of a kernel that they take at once, where channels are few.
    taps: int
    #: Taps of a row times channels of the result from which it pays, unless it fills all ``channels``.
    least_products: int


@dataclass(frozen=True, kw_only=True)
class FoldSquares:
    """Rows and columns that a strided CONV2D steps over become channels, on the way from NCHW to NHWC: three TRANSPOSEs for one."""

    #: Channels of a brick in memory: there are no more after the fold.
    channels: int
    #: Places (height times width) of an INT8 and of an INT16 input from which it pays.
    least_places_int8: int
    least_places_int16: int


@dataclass(frozen=True, kw_only=True)
class ReadPlanes:
    """A convolution reads an input in planes and turns it to NHWC (``lower.rewrite.planes``), where that takes fewer cycles."""

    #: Most planes of an input: a convolution costs 16 multiply-adds an element for each.
    most: int
    #: How strided convolutions fold then, instead of by ``fold_strides``.
    fold: FoldColumns


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How lowerings and rewrites say things to one family of NPUs. ``Tuning()`` is TOSA as such: no step for an NPU runs."""

    #: How truth values are held: BOOL, or INT8 with 0 and 1 on an NPU without BOOL.
    truth_dtype: Literal["BOOL", "INT8"] = "BOOL"

    #: Whether activations can be quantized to int32, beside int8 and int16.
    int32_activations: bool = True

    # --- what lowerings emit ------------------------------------------------------------------------------------------

    #: ``folded``: neighbouring axes of a TRANSPOSE are joined to as few as possible. ``whole``: one of up to four axes keeps them.
    transpose: Literal["folded", "whole"] = "folded"
    #: Most results of a DEPTHWISE_CONV2D with several for each channel, divided by how many these are: Vela transposes them, and
    #: refuses more ("Non-passthrough operation (Transpose) could not run on NPU", 5.2). None: any.
    vela_largest_multiplied_depthwise: int | None = None
    #: Which RESIZE is emitted: ``any``, or ``doubling`` alone: of one picture, nearest, by 2, 4 or 8 in both directions. Tiles,
    #: boxes and matrix products say the others.
    resize: Literal["any", "doubling"] = "any"
    #: A transposed convolution of stride 2: as such, or ``phases``: a CONV2D for each place of a result among four, interleaved.
    transpose_conv: Literal["TRANSPOSE_CONV2D", "phases"] = "TRANSPOSE_CONV2D"
    #: What leaves out rows and columns that no window reads, behind a TRANSPOSE: a SLICE of the map, or a kernel that is widened
    #: by zeros until it reads them.
    crop: Literal["map", "kernel"] = "map"
    #: The mean of a small map whose steps are fine: by a sum, or by an AVG_POOL2D and a RESCALE, which round twice.
    mean: Literal["sum", "AVG_POOL2D"] = "sum"
    #: Most places in front of an axis that is summed with others behind it; of more, the axis comes to the front before. None: any.
    most_places_before_sum: int | None = None
    #: Fewest columns of a product that is computed as its transpose where it has 16 times fewer rows. None: none is.
    fewest_columns_turned: int | None = None
    #: Rows of which the maximum is pooled as they lie, in a map of one channel. Of more, each row becomes a channel.
    most_rows_pooled: int = 0
    #: Is a product with what is stored as its transpose computed as its transpose, where it has 16 times fewer rows?
    turns_stored_transposes: bool = False
    #: Most bytes of a map over whose width and height in turn a maximum is taken, where the kernel is large enough for that to pay;
    #: kernels of 49 elements and more are taken in turn at any size. None: always at once.
    largest_max_pool_in_turn_bytes: float | None = None

    # --- what is compiled in two ways, of which the faster is taken ---------------------------------------------------

    #: Which inputs convolutions may read in planes. None: TRANSPOSEs turn all.
    read_planes: ReadPlanes | None = None

    # --- which rewrites run -------------------------------------------------------------------------------------------

    #: Fewest places with results of a pool of overlapping windows, or means of squares, with a stride above 3 that is not left to
    #: Vela, which makes an operation of each (``lower.rewrite.fold_pools``). Of other windows no pool is. None: all are.
    fewest_results_of_wide_stride: int | None = None
    #: Which strided convolutions of few channels fold places into channels (``lower.rewrite.fold_strides``). None: none.
    fold_strides: FoldColumns | FoldSquares | None = None
    #: Most channels that a convolution reads to pick some of them by its weights (``lower.rewrite.select_channels``). None: none
    #: picks.
    largest_selection: int | None = None
    #: A pixel shuffle whose result is wanted as NCHW makes NHWC first (``lower.rewrite.order_channels``).
    shuffles_by_nhwc: bool = False
    #: What decides between a TRANSPOSE of many axes and several of few (``lower.rewrite.split_transposes``). None: it stays one.
    transpose_steps: TransposeCost | None = None
    #: What decides between a TILE of many copies and several of few (``lower.rewrite.split_tiles``). None: it stays one.
    tile_steps: TileCost | None = None
    #: A constant that an elementwise operator broadcasts is copied first, so that flash is read once.
    copies_broadcast_constants: bool = False
    #: Fewest elements of an INT8 RESCALE that becomes a DEPTHWISE_CONV2D (``lower.rewrite.rescale_to_depthwise``). None: none does.
    smallest_rescale_by_depthwise: int | None = None
    #: Fewest and most channels of one, where others are slower than the RESCALE is. None: any.
    channels_of_rescale_by_depthwise: tuple[int, int] | None = None

    # --- what Vela gets wrong for this family (``lower.rewrite.vela_bugs``) -----------------------------------------------------

    #: The NPUs whose rows apply. TOSA as such is written for whoever compiles it; if by Vela, then for U85, which has all of it.
    vela_family: Literal["u55", "u65", "u85"] = "u85"
    #: True if the NPU has 16 KB of SHRAM, of which Vela reserves nothing for tables.
    vela_small_shram: bool = False


#: TOSA as such.
UNTUNED = Tuning()
