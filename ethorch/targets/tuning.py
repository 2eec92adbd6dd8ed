"""The fastest TOSA forms of operators for each NPU family. Results of other forms differ by at most the last bit.

``docs/measurements.md`` contains the cycles that ``python -m bench.tuning`` measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BRICK = 16  #: adjacent channels in the NPU's brick format, NHCWB16


@dataclass(frozen=True, kw_only=True)
class RowCost:
    """The cost of a contiguous row of bytes in a TRANSPOSE that moves rows individually."""

    #: Minimum cycles per row.
    cycles: float
    #: Minimum cycles per row, times the square of the smaller exchanged extent. Blocks are narrow if this extent is small.
    narrow_cycles: float
    #: Minimum cycles of a row shorter than ``short_bytes``, divided by the ratio of the first to the second exchanged extent.
    tall_cycles: float
    #: Minimum cycles of such a row, divided by the ratio of the second to the first exchanged extent.
    wide_cycles: float
    short_bytes: int

    def of(self, first: int, second: int, inner_bytes: int) -> float:
        """Return the minimum cycles per row of a TRANSPOSE from [first, second, inner_bytes] to [second, first, inner_bytes]."""
        narrow = self.narrow_cycles / min(first, second) ** 2
        short = inner_bytes < self.short_bytes
        uneven = max(self.tall_cycles * first / second, self.wide_cycles * second / first) if short else 0.0
        return max(self.cycles, narrow, uneven)


@dataclass(frozen=True, kw_only=True)
class TransposeCost:
    """The cost of a TRANSPOSE, either as one Vela operation or as steps that each exchange two adjacent blocks of axes."""

    #: Cycles per byte in a step.
    cycles_per_byte: float
    #: Constant cycles of each step. Because of these, small tensors are not split.
    step_cycles: float
    #: Minimum cycles per byte of a single Vela operation that exchanges axes in pairs. Other permutations need twice as many.
    vela_cycles_per_byte: float
    #: Cost of rows if they are moved individually, or None if all bytes cost the same.
    row: RowCost | None = None
    #: Whether steps with rows of one element need no additional cycles per byte.
    of_single_elements: bool = False
    #: Minimum number of elements for which a TRANSPOSE of five or more axes is split into steps with rows of one element if
    #: ``of_single_elements`` is False. None disables this.
    fewest_single_elements: int | None = None
    #: Whether Vela rejects a TRANSPOSE of an axis longer than 65,536. Such a TRANSPOSE is always split.
    refuses_long_axes: bool = False

    def cycles(self, first: int, second: int, inner_bytes: int) -> float:
        """Estimate the cycles to transpose [first, second, inner_bytes] to [second, first, inner_bytes]."""
        if self.row is None:
            return self.cycles_per_byte * first * second * inner_bytes + self.step_cycles
        row = max(self.cycles_per_byte * inner_bytes, self.row.of(first, second, inner_bytes))
        return first * second * row + self.step_cycles


@dataclass(frozen=True, kw_only=True)
class TileCost:
    """The cost of a TILE. Each copy is a separate operation."""

    cycles_per_copy: float
    cycles_per_byte: float


@dataclass(frozen=True, kw_only=True)
class FoldColumns:
    """A RESHAPE that folds adjacent columns of a strided CONV2D into channels."""

    #: Channels that the multipliers process in parallel. Limits the number of folded channels.
    channels: int
    #: Kernel taps that the multipliers process in parallel if there are few channels.
    taps: int
    #: Minimum product of taps per row and output channels, unless folding fills all ``channels``.
    least_products: int


@dataclass(frozen=True, kw_only=True)
class FoldSquares:
    """Three TRANSPOSEs that fold adjacent rows and columns of a strided CONV2D into channels, and convert NCHW to NHWC."""

    #: Channels of the brick format. Limits the number of folded channels.
    channels: int
    #: Minimum height times width of an INT8 and of an INT16 input.
    least_places_int8: int
    least_places_int16: int


@dataclass(frozen=True, kw_only=True)
class ReadPlanes:
    """The conversion of NCHW inputs to NHWC by a convolution (``lower.rewrite.planes``), if this saves cycles."""

    #: Maximum number of channels of an input. A convolution needs 16 multiply-adds per element and channel.
    most: int
    #: Replaces ``fold_strides`` if inputs are read in NCHW layout.
    fold: FoldColumns


@dataclass(frozen=True, kw_only=True)
class SplitWeights:
    """The division of a CONV2D into slices of output channels, so that slices can read weights from different memories."""

    #: Minimum number of weights of a slice.
    fewest_weights: int
    #: Maximum number of slices.
    most_slices: int
    #: Maximum batch size times height and width of the output. Above this number, weights are read several times.
    most_places: int


@dataclass(frozen=True, kw_only=True)
class WrittenWeights:
    """The quantization with which the NPU can convert an INT8 MATMUL operand to weights (``npu.passes.attention``)."""

    #: Zero point for which all 256 int8 values of the operand are valid weights.
    zero_point: int
    #: Maximum scale of the operand with this zero point, relative to its scale otherwise. Above it, the zero point is not used.
    largest_step: float


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The choices of lowerings and rewrites for one NPU family. ``Tuning()`` is for plain TOSA."""

    #: Dtype of truth values: BOOL, or INT8 with the values 0 and 1 if the NPU does not support BOOL.
    truth_dtype: Literal["BOOL", "INT8"] = "BOOL"

    #: Whether activations can be quantized to int32 in addition to int8 and int16.
    int32_activations: bool = True

    #: Maximum number of int8 TABLEs for the reciprocal of an int8 divisor, plus 1 if the divisor is broadcast. Otherwise, int16
    #: TABLEs are used.
    most_reciprocal_tables: int = 4

    # --- operators that lowerings emit ----------------------------------------------------------------------------------

    #: ``folded`` merges adjacent axes of a TRANSPOSE. ``whole`` merges them only if there are more than four.
    transpose: Literal["folded", "whole"] = "folded"
    #: Whether the input channels of a depthwise convolution with a channel multiplier above 1 are repeated by 1x1 convolutions.
    #: Vela computes such a convolution in parts, and interleaves the results with one operation per element.
    repeats_channels: bool = False
    #: Supported RESIZE: ``any``, or ``doubling`` for one image, nearest, by 2, 4 or 8 in both directions. Tiles, boxes and matrix
    #: products replace other resizes.
    resize: Literal["any", "doubling"] = "any"
    #: Form of a transposed convolution with stride 2. ``phases`` interleaves one CONV2D for each of the four output positions.
    transpose_conv: Literal["TRANSPOSE_CONV2D", "phases"] = "TRANSPOSE_CONV2D"
    #: Removal of rows and columns that windows do not read, after a TRANSPOSE: a SLICE of the feature map, or a kernel padded with
    #: zeros.
    crop: Literal["map", "kernel"] = "map"
    #: Mean of a small, finely quantized feature map: a sum, or AVG_POOL2D and RESCALE, which round twice.
    mean: Literal["sum", "AVG_POOL2D"] = "sum"
    #: Maximum number of elements before a summed axis that is not the last. Above this number, the axis is moved to the front. None
    #: sets no limit.
    most_places_before_sum: int | None = None
    #: Minimum number of columns for which a matrix product with 16 times fewer rows is computed transposed. None disables this.
    fewest_columns_turned: int | None = None
    #: Whether a matrix product with a transposed operand and 16 times fewer rows than columns is computed transposed.
    turns_stored_transposes: bool = False
    #: Maximum bytes of a feature map that is max-pooled first over width, then over height, if the kernel is large. Kernels of 49
    #: elements and more are always pooled this way. None disables this.
    largest_max_pool_in_turn_bytes: float | None = None

    #: Operands of MATMUL that the NPU converts to weights. None: it converts none.
    written_weights: WrittenWeights | None = None

    # --- operators that are compiled in two forms to use the faster one -----------------------------------------------

    #: Inputs that convolutions may read in NCHW layout. If None, TRANSPOSEs convert all inputs.
    read_planes: ReadPlanes | None = None

    # --- which rewrites run -------------------------------------------------------------------------------------------

    #: Minimum number of results for which a pool of overlapping windows or squares with a stride above 3 is rewritten
    #: (``lower.rewrite.fold_pools``), because Vela emits an operation per result. None disables this.
    fewest_results_of_wide_stride: int | None = None
    #: Folding of strided convolutions with few channels (``lower.rewrite.fold_strides``). None disables this.
    fold_strides: FoldColumns | FoldSquares | None = None
    #: Division of convolutions with many weights (``lower.rewrite.split_convolutions``). None disables this.
    split_weights: SplitWeights | None = None
    #: Maximum number of input channels of a convolution that selects channels (``lower.rewrite.select_channels``). None disables
    #: this.
    largest_selection: int | None = None
    #: Whether a pixel shuffle with an NCHW result is computed in NHWC (``lower.rewrite.order_channels``).
    shuffles_by_nhwc: bool = False
    #: Costs that decide whether a TRANSPOSE is split (``lower.rewrite.split_transposes``). None disables splitting.
    transpose_steps: TransposeCost | None = None
    #: Costs that decide whether a TILE is split (``lower.rewrite.split_tiles``). None disables splitting.
    tile_steps: TileCost | None = None
    #: Whether a broadcast constant of an elementwise operator is first copied, so that it is read from flash only once.
    copies_broadcast_constants: bool = False
    #: Minimum number of elements for which a RESCALE or CLAMP becomes a DEPTHWISE_CONV2D (``lower.rewrite.rescale_to_depthwise``).
    #: None disables this.
    smallest_rescale_by_depthwise: int | None = None
    #: Whether a TABLE becomes a DEPTHWISE_CONV2D, too.
    tables_by_depthwise: bool = False

    # --- Vela bugs of this family (``lower.rewrite.vela_bugs``) ----------------------------------------------------------------

    #: NPU family whose bug table applies. Plain TOSA uses the table of U85.
    vela_family: Literal["u55", "u65", "u85"] = "u85"
    #: True if the NPU has 16 KB of SHRAM. In this case, Vela reserves no bytes for tables.
    vela_small_shram: bool = False


#: Tuning of plain TOSA.
UNTUNED = Tuning()
