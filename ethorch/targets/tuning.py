"""Fastest forms of equivalent TOSA, per NPU family. Results differ in the last bit at most.

``docs/measurements.md`` has the measured cycles, which ``python -m bench.tuning`` repeats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class RowCost:
    """Cost of a contiguous row of bytes in a TRANSPOSE that moves rows individually."""

    #: Cycles of the shortest row.
    cycles: float
    #: Cycles times the square of the shorter exchanged extent, because blocks are narrow there.
    narrow_cycles: float
    #: Cycles of a row shorter than ``short_bytes``, times the second extent over the first,
    tall_cycles: float
    #: and times the first over the second.
    wide_cycles: float
    short_bytes: int

    def of(self, first: int, second: int, inner_bytes: int) -> float:
        """Return the least cycles of a row of [first, second, inner_bytes]."""
        narrow = self.narrow_cycles / min(first, second) ** 2
        short = inner_bytes < self.short_bytes
        uneven = max(self.tall_cycles * first / second, self.wide_cycles * second / first) if short else 0.0
        return max(self.cycles, narrow, uneven)


@dataclass(frozen=True, kw_only=True)
class TransposeCost:
    """Cost of a TRANSPOSE: as steps that exchange two adjacent blocks of axes, and as one operation of Vela."""

    #: Cycles per byte of a step.
    cycles_per_byte: float
    #: Cycles per step. Small tensors are therefore not split.
    step_cycles: float
    #: Least cycles per byte of Vela's own operation if it exchanges axes in pairs. Other orders take twice as many.
    vela_cycles_per_byte: float
    #: Cost of rows that are moved individually. None if all bytes cost the same.
    row: RowCost | None = None
    #: Whether rows of one element cost a step no more per byte.
    of_single_elements: bool = False
    #: Fewest elements of TRANSPOSEs with five or more axes that are split even so. None disables it.
    fewest_single_elements: int | None = None
    #: Whether Vela refuses a TRANSPOSE of an axis above 65,536 elements. It is then split at any cost.
    refuses_long_axes: bool = False

    def cycles(self, first: int, second: int, inner_bytes: int) -> float:
        """Estimate the cycles to transpose [first, second, inner_bytes] to [second, first, inner_bytes]."""
        if self.row is None:
            return self.cycles_per_byte * first * second * inner_bytes + self.step_cycles
        row = max(self.cycles_per_byte * inner_bytes, self.row.of(first, second, inner_bytes))
        return first * second * row + self.step_cycles


@dataclass(frozen=True, kw_only=True)
class TileCost:
    """Cost of a TILE. Each copy is a separate operation."""

    cycles_per_copy: float
    cycles_per_byte: float


@dataclass(frozen=True, kw_only=True)
class FoldColumns:
    """Fold columns that a strided CONV2D skips into channels by a RESHAPE: they are adjacent in memory."""

    #: Channels of a block that the multipliers process at once, a limit of the folded channels.
    channels: int
    #: Taps of a kernel that they process at once if there are few channels.
    taps: int
    #: Least product of taps per row and output channels, unless folding fills all ``channels``.
    least_products: int


@dataclass(frozen=True, kw_only=True)
class FoldSquares:
    """Fold rows and columns that a strided CONV2D skips into channels while converting NCHW to NHWC, by three TRANSPOSEs."""

    #: Channels of a brick in memory, a limit of the folded channels.
    channels: int
    #: Least height times width of an INT8 and of an INT16 input.
    least_places_int8: int
    least_places_int16: int


@dataclass(frozen=True, kw_only=True)
class ReadPlanes:
    """Convert planes to NHWC by a convolution (``lower.rewrite.planes``) if that saves cycles."""

    #: Most planes of an input. A convolution costs 16 multiply-adds per element and plane.
    most: int
    #: Folding of strided convolutions in that case, in place of ``fold_strides``.
    fold: FoldColumns


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Choices of lowerings and rewrites for one NPU family. ``Tuning()`` is plain TOSA for no particular NPU."""

    #: Dtype of truth values: BOOL, or INT8 with 0 and 1 on an NPU without BOOL.
    truth_dtype: Literal["BOOL", "INT8"] = "BOOL"

    #: Whether activations can be quantized to int32, besides int8 and int16.
    int32_activations: bool = True

    # --- operators that lowerings emit ----------------------------------------------------------------------------------

    #: ``folded`` joins adjacent axes of a TRANSPOSE. ``whole`` keeps up to four axes.
    transpose: Literal["folded", "whole"] = "folded"
    #: Most outputs of a DEPTHWISE_CONV2D with a channel multiplier, divided by the multiplier. Vela transposes them and refuses
    #: more ("Non-passthrough operation (Transpose) could not run on NPU", 5.2). None is unlimited.
    vela_largest_multiplied_depthwise: int | None = None
    #: Supported RESIZE: ``any``, or ``doubling`` for one image, nearest, by 2, 4 or 8 in both directions. Tiles, boxes and matrix
    #: products replace the others.
    resize: Literal["any", "doubling"] = "any"
    #: Form of a transposed convolution of stride 2. ``phases`` interleaves one CONV2D for each of the four output positions.
    transpose_conv: Literal["TRANSPOSE_CONV2D", "phases"] = "TRANSPOSE_CONV2D"
    #: Removal of rows and columns that windows do not read, after a TRANSPOSE: by a SLICE of the map, or by a kernel widened with
    #: zeros.
    crop: Literal["map", "kernel"] = "map"
    #: Mean of a small map with fine quantization: a sum, or AVG_POOL2D and RESCALE, which round twice.
    mean: Literal["sum", "AVG_POOL2D"] = "sum"
    #: Most elements before an axis that is summed while axes follow it. Above, the axis is moved to the front. None is unlimited.
    most_places_before_sum: int | None = None
    #: Fewest columns of a product that is computed transposed if it has 16 times fewer rows. None disables it.
    fewest_columns_turned: int | None = None
    #: Most rows whose maximum is pooled in place, in a map of one channel. Above, each row becomes a channel.
    most_rows_pooled: int = 0
    #: Whether a product with an operand stored transposed is computed transposed if it has 16 times fewer rows.
    turns_stored_transposes: bool = False
    #: Most bytes of a map whose maximum is computed over width and height in turn, if the kernel is large enough. Kernels of 49
    #: elements and more do so at any size. None disables it.
    largest_max_pool_in_turn_bytes: float | None = None

    # --- operators that are compiled in two forms, of which the faster is used ----------------------------------------

    #: Inputs that convolutions may read in planes. None converts all by TRANSPOSEs.
    read_planes: ReadPlanes | None = None

    # --- which rewrites run -------------------------------------------------------------------------------------------

    #: Fewest outputs of a pool of overlapping windows, or means of squares, with a stride above 3 that is rewritten
    #: (``lower.rewrite.fold_pools``), because Vela emits an operation per output. Others are never rewritten. None: no minimum.
    fewest_results_of_wide_stride: int | None = None
    #: Folding of strided convolutions with few channels (``lower.rewrite.fold_strides``). None disables it.
    fold_strides: FoldColumns | FoldSquares | None = None
    #: Most input channels of a convolution that selects channels by its weights (``lower.rewrite.select_channels``). None disables
    #: it.
    largest_selection: int | None = None
    #: Whether a pixel shuffle with an NCHW result produces NHWC first (``lower.rewrite.order_channels``).
    shuffles_by_nhwc: bool = False
    #: Costs that decide whether a TRANSPOSE is split (``lower.rewrite.split_transposes``). None disables it.
    transpose_steps: TransposeCost | None = None
    #: Costs that decide whether a TILE is split (``lower.rewrite.split_tiles``). None disables it.
    tile_steps: TileCost | None = None
    #: Whether a broadcast constant of an elementwise operator is copied first, so that flash is read once.
    copies_broadcast_constants: bool = False
    #: Fewest elements of an INT8 RESCALE that becomes a DEPTHWISE_CONV2D (``lower.rewrite.rescale_to_depthwise``). None: disabled.
    smallest_rescale_by_depthwise: int | None = None
    #: Fewest and most channels of that RESCALE, if others are slower as a DEPTHWISE_CONV2D. None is unlimited.
    channels_of_rescale_by_depthwise: tuple[int, int] | None = None

    # --- Vela bugs of this family (``lower.rewrite.vela_bugs``) ----------------------------------------------------------------

    #: Family whose bug table applies. Plain TOSA uses that of U85.
    vela_family: Literal["u55", "u65", "u85"] = "u85"
    #: True if the NPU has 16 KB of SHRAM, where Vela reserves no bytes for tables.
    vela_small_shram: bool = False


#: Plain TOSA.
UNTUNED = Tuning()
