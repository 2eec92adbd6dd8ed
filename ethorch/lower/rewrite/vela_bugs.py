"""Known Vela bugs, and the rewrites that avoid them.

``tests/lower/rewrite/vela_bug_graphs.py`` contains graphs that reproduce each bug.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from ethorch.lower.rewrite import vela_patterns as patterns
from ethorch.lower.rewrite import vela_workarounds as do
from ethorch.lower.rewrite.insert_copies import ELEMENTWISE
from ethorch.lower.rewrite.peephole import run_before_moves
from ethorch.lower.rewrite.rewriter import Rewriter
from ethorch.targets.tuning import Tuning
from ethorch.tosa.ir import Op

Family = Literal["u55", "u65", "u85"]
U55_U65: tuple[Family, ...] = ("u55", "u65")
U85: tuple[Family, ...] = ("u85",)
ALL: tuple[Family, ...] = (*U55_U65, *U85)
SINCE_5_2 = ("5.2.0",)


@dataclass(frozen=True, kw_only=True)
class VelaBug:
    """A pattern of operators that Vela refuses or compiles incorrectly.

    Attributes:
        id: Stable identifier, also used by code that avoids the bug.
        wrong: Description of the bug.
        instead: Rewrite of each matching operator, or a description of the code elsewhere that avoids the bug.
        operators: Matching TOSA operators. Empty matches all operators.
        which: Predicate that the operator must satisfy.
        of: TOSA operators, one of which must compute the first operand.
        reads: Same as ``of``, allowing RESHAPEs in between.
        placement: Whether a CONCAT or PAD must read the result: ``anyhow`` (reshaped or not), ``reshaped``, or empty (not needed).
        families: NPU families on which a test graph reproduces the bug.
        assumed: NPU families on which the bug is avoided although no test graph reproduces it.
        small_shram: Whether the bug affects only NPUs with 16 KB of SHRAM.
        versions: Vela versions that have the bug.
    """

    id: str
    wrong: str
    instead: Callable[[Rewriter, Op], None] | str
    operators: tuple[str, ...] = ()
    which: Callable[[Rewriter, Op], bool] = patterns.any_of_them
    of: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    placement: Literal["", "anyhow", "reshaped"] = ""
    families: tuple[Family, ...] = ALL
    assumed: tuple[Family, ...] = ()
    small_shram: bool = False
    versions: tuple[str, ...] = ("5.1.0", "5.2.0")

    def concerns(self, family: str) -> bool:
        """Return True if the bug is avoided for an NPU family."""
        return family in (*self.families, *self.assumed)

    def finds(self, r: Rewriter, op: Op) -> bool:
        return (
            (not self.of or r.producer(op.operands[0], *self.of) is not None)
            and (not self.reads or patterns.reads(r, op.operands[0], *self.reads))
            and (not self.placement or patterns.is_placed(r, op.result, reshaped=self.placement == "reshaped"))
            and self.which(r, op)
        )


VELA_BUGS: tuple[VelaBug, ...] = (
    # --- offsets ignored when reading ---------------------------------------------------------------------------------
    VelaBug(
        id="vela.transposed-convolution-of-slice",
        wrong="Vela splits a TRANSPOSE_CONV2D into operations that ignore the offset of a SLICE.",
        operators=("TRANSPOSE_CONV2D",),
        reads=("SLICE",),
        instead=do.copy_operand,
    ),
    VelaBug(
        id="vela.dilated-convolution-of-slice",
        wrong="Vela splits a convolution with a dilation above 2 into operations that ignore the offset of a SLICE.",
        operators=("CONV2D", "DEPTHWISE_CONV2D"),
        which=patterns.is_dilated,
        reads=("SLICE",),
        instead=do.copy_operand,
    ),
    VelaBug(
        id="vela.padded-window-of-sliced-batch",
        wrong="A convolution or pool with padding over several images ignores the offset of a SLICE.",
        operators=("CONV2D", "DEPTHWISE_CONV2D", "MAX_POOL2D", "AVG_POOL2D"),
        which=patterns.is_padded_batch,
        reads=("SLICE",),
        instead=do.copy_operand,
    ),
    VelaBug(
        id="vela.tile-of-five-axes-of-slice",
        wrong="A TILE of more than four axes ignores the offset of a SLICE.",
        operators=("TILE",),
        which=patterns.is_wide,
        reads=("SLICE",),
        instead=do.copy_operand,
    ),
    VelaBug(
        id="vela.rescale-of-six-axes-of-slice",
        wrong="A RESCALE of more than five axes that is fused with a broadcasting operator ignores the offset of a SLICE.",
        operators=("RESCALE",),
        which=patterns.is_very_wide,
        reads=("SLICE",),
        instead=do.copy_operand,
    ),
    VelaBug(
        id="vela.maximum-of-slice",
        wrong="A REDUCE_MAX or REDUCE_MIN ignores the offset of a SLICE.",
        operators=("REDUCE_MAX", "REDUCE_MIN"),
        reads=("SLICE",),
        instead=do.copy_operand,
    ),
    VelaBug(
        id="vela.sum-along-channels-of-slice",
        wrong="A REDUCE_SUM along the last axis ignores the offset of a SLICE.",
        operators=("REDUCE_SUM", "RESCALE"),
        which=patterns.is_summed_along_channels,
        reads=("SLICE",),
        instead=do.copy_operand,
    ),
    VelaBug(
        id="vela.turned-slice",
        wrong="If the TRANSPOSE that Vela inserts for a MATMUL or REDUCE_SUM undoes the TRANSPOSE of a shared SLICE, Vela emits a "
        "transfer that ignores the offset of the SLICE.",
        operators=("MATMUL", "REDUCE_SUM"),
        which=patterns.is_of_transposed_slice,
        instead=do.copy_transposed_slice,
        families=U55_U65,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.matmul-of-slice",
        wrong="A MATMUL ignores the offset of a SLICE.",
        operators=("MATMUL",),
        reads=("SLICE",),
        instead=do.copy_operand,
        families=U55_U65,
    ),
    VelaBug(
        id="vela.broadcast-slice-in-chain",
        wrong="An elementwise operator that is chained to the preceding operator ignores the offset of a SLICE of a tensor with "
        "as many elements as the result, e.g. in x[n, 16] * e[:, 32:48] if e has the shape [1, 16 * n].",
        operators=patterns.TAKING_TWO,
        which=patterns.is_of_broadcast_slice_of_as_many,
        instead=do.copy_slices_of_as_many,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.lone-rescale-of-move",
        wrong="A separate RESCALE from or to INT32 becomes a multiplication, which ignores the offset in a SLICE, CONCAT or "
        "PAD, and computes only the first copy of a TILE. RESCALEs with certain scales are fused with a sum instead.",
        operators=("RESCALE",),
        which=patterns.is_lone,
        reads=("SLICE", "CONCAT", "PAD", "TILE"),
        instead=do.copy_operand,
        families=U55_U65,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.lone-rescale-in-slices",
        wrong="A separate RESCALE from or to INT32 becomes a multiplication. If a SLICE reads the RESCALE, and the RESCALE or the "
        "SLICE has several readers, each reader computes the RESCALE at the offset of the SLICE.",
        operators=("RESCALE",),
        which=patterns.is_lone_in_slices,
        instead=do.copy_result,
        families=U55_U65,
        versions=SINCE_5_2,
    ),
    # --- offsets ignored when writing ---------------------------------------------------------------------------------
    VelaBug(
        id="vela.lone-rescale-placed",
        wrong="A separate RESCALE from or to INT32 becomes a multiplication, which ignores the offset in a CONCAT or PAD. "
        "For example, in cat([x, y * constant]) the second operand overwrites the first.",
        operators=("RESCALE",),
        which=patterns.is_lone,
        placement="anyhow",
        instead=do.copy_result,
        families=U55_U65,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.rescale-between-placements",
        wrong="A RESCALE of a CONCAT, PAD or TILE ignores its offset in a CONCAT or PAD.",
        operators=("RESCALE",),
        which=patterns.is_of_codes,
        reads=("CONCAT", "PAD", "TILE"),
        placement="anyhow",
        instead=do.copy_result,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.maximum-placed",
        wrong="A REDUCE_MAX or REDUCE_MIN along the last axis ignores its offset in a CONCAT or PAD.",
        operators=("REDUCE_MAX", "REDUCE_MIN"),
        placement="anyhow",
        instead=do.copy_result,
    ),
    VelaBug(
        id="vela.clamp-of-transpose-placed",
        wrong="A CLAMP of a TRANSPOSE ignores its offset in a CONCAT or PAD.",
        operators=("CLAMP",),
        reads=("TRANSPOSE",),
        placement="anyhow",
        instead=do.copy_result,
        families=U55_U65,
    ),
    VelaBug(
        id="vela.resize-in-steps-of-batch",
        wrong="Vela splits a RESIZE by 4 or 8 into several RESIZEs by 2, and refuses them if a CONCAT makes the result part "
        "of a batch.",
        operators=("RESIZE",),
        which=patterns.is_resized_to_batch,
        instead=do.copy_result,
        families=U55_U65,
    ),
    VelaBug(
        id="vela.transposed-convolution-placed",
        wrong="A TRANSPOSE_CONV2D ignores its offset in a CONCAT or PAD.",
        operators=("RESCALE",),
        of=("TRANSPOSE_CONV2D",),
        placement="anyhow",
        instead=do.copy_result,
        families=U55_U65,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.reshaped-matmul-placed",
        wrong="A reshaped MATMUL ignores its offset in a CONCAT or PAD.",
        operators=("RESCALE",),
        of=("MATMUL",),
        placement="reshaped",
        instead=do.copy_result,
        families=U55_U65,
    ),
    # --- copies of INT32 ----------------------------------------------------------------------------------------------
    VelaBug(
        id="vela.wide-int32-move",
        wrong="Vela moves INT32 as INT16 with a last axis of twice the length, and truncates this axis to 65,536 elements.",
        operators=("CONCAT", "PAD", "SLICE", "TILE"),
        which=patterns.is_wide_int32,
        instead=do.move_with_last_axis,
        families=U55_U65,
    ),
    VelaBug(
        id="vela.wide-int32-identity",
        wrong="An IDENTITY of INT32 is copied as in vela.wide-int32-move.",
        operators=("IDENTITY",),
        which=patterns.is_wide_int32,
        instead=do.copy_instead,
        families=U55_U65,
    ),
    VelaBug(
        id="vela.wide-int32-input",
        wrong="A RESHAPE or TRANSPOSE of an INT32 input is copied as in vela.wide-int32-move, in the shape of the input.",
        operators=("RESHAPE", "TRANSPOSE"),
        which=patterns.is_wide_int32_input,
        instead=do.copy_operand,
        families=U55_U65,
    ),
    VelaBug(
        id="vela.wide-int32-in-shapes",
        wrong="If an INT32 value is read in two shapes and a last axis is longer than 32,768, all readers are wrong.",
        operators=("RESHAPE",),
        which=patterns.is_wide_int32_read_in_shapes,
        instead=do.copy_operand,
        families=U55_U65,
    ),
    # --- shared shapes and memory -------------------------------------------------------------------------------------
    VelaBug(
        id="vela.square-of-reshaped",
        wrong="In x * x, if x is rescaled and reshaped, one operand has the shape before the RESHAPE, and the result overwrites x.",
        operators=ELEMENTWISE,
        which=patterns.is_square_of_reshaped,
        instead=do.reshape_twice,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.rescale-in-shapes",
        wrong="A separate RESCALE that is reshaped and read several times, entirely or in SLICEs, is computed in the "
        "shape before the RESHAPE for some readers, e.g. in view(x)[:8] + view(x)[8:].",
        operators=("RESHAPE",),
        which=patterns.is_rescale_in_one_shape_of_several,
        instead=do.rescale_after,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.table-of-reshaped-slice",
        wrong="A TABLE or CLAMP of a reshaped SLICE that is chained to its reader is stored in the shape of the SLICE, in bricks "
        "of 16 channels, but memory is allocated for the new shape.",
        operators=("TABLE", "CLAMP"),
        which=patterns.is_of_reshaped_slice,
        instead=do.reshape_result,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.five-axes-of-slice",
        wrong="An elementwise operator of more than four axes reads a reshaped SLICE, such as [1, 1, n, h, c], at a wrong offset.",
        operators=(*patterns.POINTWISE, "TABLE"),
        which=patterns.is_of_slice_with_leading_ones,
        instead=do.run_in_four_axes,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.five-axes-of-slice-for-several",
        wrong="If a SLICE is reshaped to [1, 1, n, h, c] and has several readers, Vela inserts a copy with a wrong offset "
        "after the first [h, c].",
        operators=("RESHAPE",),
        which=patterns.is_of_slice_with_leading_ones_for_several,
        instead=do.copy_operand,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.spread-in-other-shape",
        wrong="To broadcast x[n, 1, c] for y[n, m, 1], Vela inserts an addition that reads x in the shape of its last "
        "RESHAPE or of the operand of its RESCALE, e.g. for the differences of all pairs of rows.",
        operators=ELEMENTWISE,
        which=patterns.is_spread_in_other_shape,
        instead=do.give_first_operand_one_shape,
        families=U55_U65,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.axis-of-column",
        wrong="Vela runs a reduction or REVERSE along the last axis as if it were the middle of three axes. For a "
        "sum along rows, or a value that was reshaped from a last axis of extent 1, Vela stores bricks of 16 "
        "channels, but allocates memory for one channel.",
        operators=("ARGMAX", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_ALL", "REDUCE_ANY", "REVERSE"),
        which=patterns.is_along_last_axis_of_column,
        instead=do.run_along_middle_axis,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.operator-of-two-sums",
        wrong="If one elementwise operator reads two REDUCE_SUMs, they are stored in bricks of 16 channels but allocated "
        "for one channel, so that each sum overwrites later values.",
        operators=patterns.TAKING_TWO,
        which=patterns.is_of_two_sums,
        instead=do.copy_first_operand,
        families=U85,
    ),
    VelaBug(
        id="vela.argmax-of-slice",
        wrong="An ARGMAX of a SLICE uses extents of the source, and runs along rows instead of columns, or beyond the end.",
        operators=("ARGMAX",),
        reads=("SLICE",),
        instead=do.copy_operand,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.bool-output-that-is-read",
        wrong="Truth values are 0 and -1, but 0 and 1 in outputs. An operator that reads an output misinterprets the values.",
        instead=do.copy_read_outputs,
        families=U85,
    ),
    VelaBug(
        id="vela.loop-in-operands",
        wrong="A WHILE_LOOP overwrites its operands, even if other operators read the operands.",
        operators=("WHILE_LOOP",),
        instead=do.copy_shared_operands,
        families=U85,
    ),
    # --- avoided by other steps ---------------------------------------------------------------------------------------
    VelaBug(
        id="vela.concat-of-five-axes",
        wrong="A CONCAT of more than four axes after a SLICE and a RESHAPE reads the wrong rows.",
        instead="The step ``fold wide moves`` converts the CONCAT to at most four axes.",
        operators=("CONCAT",),
    ),
    VelaBug(
        id="vela.slice-of-five-axes",
        wrong="A SLICE of more than four axes before RESHAPE and CONCAT crashes Vela on U55 and U65, and reads wrong rows on U85.",
        instead="The step ``fold wide moves`` converts the operator to several operators of three axes.",
        operators=("SLICE",),
    ),
    VelaBug(
        id="vela.pad-of-five-axes",
        wrong="A PAD of more than four axes after a SLICE and a RESHAPE reads the wrong rows.",
        instead="The step ``fold wide moves`` converts the operator to several operators of three axes.",
        operators=("PAD",),
    ),
    VelaBug(
        id="vela.one-element-of-five-axes",
        wrong="An elementwise operator of more than four axes does not broadcast a first operand of one element.",
        instead="The step ``fold broadcasts`` converts the operator to at most four axes.",
        operators=(*ELEMENTWISE, "ARITHMETIC_RIGHT_SHIFT", "LOGICAL_LEFT_SHIFT"),
        families=U55_U65,
    ),
    VelaBug(
        id="vela.table-between-transposes",
        wrong="In the INT8 sequence TABLE, TRANSPOSE, TABLE, TRANSPOSE, the second TABLE is lost.",
        instead="The step ``move tables before moves`` merges the sequence into one TABLE and one TRANSPOSE.",
        operators=("TABLE",),
        families=U85,
    ),
    # --- windows over long axes, constants ----------------------------------------------------------------------------
    VelaBug(
        id="vela.dilated-convolution-of-short-map",
        wrong="If the dilation exceeds 2 and the extent of the feature map, Vela emits convolutions that read only padding.",
        operators=("CONV2D", "DEPTHWISE_CONV2D"),
        which=patterns.is_dilated_beyond_map,
        instead=do.pad_before,
    ),
    VelaBug(
        id="vela.transpose-of-dilated-convolution",
        wrong="Vela splits a convolution with a dilation above 2 into several, and fuses a TRANSPOSE with each of them. If "
        "there are few rows, the convolutions write to wrong rows.",
        operators=("TRANSPOSE",),
        which=patterns.is_of_dilated_convolution,
        instead=do.copy_operand,
        families=U85,
    ),
    VelaBug(
        id="vela.dilated-convolution-along-long-axis",
        wrong="Vela splits an axis longer than 65,536 into several feature maps, but ignores a dilation of 2 in their extents, so "
        "that the last results of each feature map read padding.",
        operators=("CONV2D", "DEPTHWISE_CONV2D"),
        which=patterns.is_dilated_along_long_axis,
        instead=do.fill_kernel,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.dilated-convolution-of-long-map",
        wrong="Vela splits an axis longer than 65,536 into several feature maps. If the other axis has a dilation, or a dilation "
        "exceeds 2, the convolutions read wrong or missing rows and columns.",
        operators=("CONV2D", "DEPTHWISE_CONV2D"),
        which=patterns.is_dilated_on_long_map,
        instead=do.fill_kernel,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.padded-stride-along-long-axis",
        wrong="Vela splits a strided axis longer than 65,536 into several feature maps. If the last is short, the preceding one "
        "reads padding.",
        operators=("CONV2D", "DEPTHWISE_CONV2D"),
        which=patterns.is_padded_stride_along_long_axis,
        instead=do.pad_before,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.padded-stride-beside-long-axis",
        wrong="Vela splits an axis longer than 65,536 into several feature maps. If the other axis is strided and padded, some "
        "convolutions read padding instead of elements.",
        operators=("CONV2D", "DEPTHWISE_CONV2D"),
        which=patterns.is_padded_stride_beside_long_axis,
        instead=do.pad_before,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.wide-padding",
        wrong="Vela writes only the low 7 bits of the padding to the register, so that padding of 128 or more shifts the results.",
        operators=("CONV2D", "DEPTHWISE_CONV2D", "MAX_POOL2D"),
        which=patterns.is_widely_padded,
        instead=do.pad_before,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.gather-of-many-rows",
        wrong="A GATHER of 65,536 or more rows or batches becomes one transfer, whose counter has only 16 bits.",
        operators=("GATHER",),
        which=patterns.is_of_many_rows,
        instead=do.gather_in_parts,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.scatter-of-many-rows",
        wrong="A SCATTER of 65,536 or more rows or batches becomes one transfer, whose counter has only 16 bits.",
        operators=("SCATTER",),
        which=patterns.is_of_many_rows,
        instead=do.scatter_in_parts,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.equal-weights",
        wrong="Convolutions with equal weights and scales share one encoding, including the bias and the weight zero point.",
        operators=("CONV2D", "DEPTHWISE_CONV2D"),
        which=patterns.has_weights_of_another,
        instead=do.change_weights,
    ),
    VelaBug(
        id="vela.transpose-of-constant",
        wrong="A TRANSPOSE of a constant writes to the read-only memory of constants. The same happens for a TRANSPOSE that "
        "Vela inserts before a constant feature map if the weights are computed.",
        operators=("TRANSPOSE",),
        which=patterns.is_of_constant,
        instead=do.transpose_now,
        families=("u55", "u85"),
        assumed=("u65",),  # correct if constants have a separate memory
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.transpose-of-dropped-axis",
        wrong="Vela exchanges a TRANSPOSE with a preceding RESHAPE that removes axes of extent 1. The TRANSPOSE then has more "
        "axes, and Vela refuses it if the product of two axes exceeds 65,536.",
        operators=("TRANSPOSE",),
        which=patterns.drops_unit_axes_of_long_transpose,
        instead=do.copy_operand,
        families=U55_U65,
    ),
    VelaBug(
        id="vela.table-of-transpose",
        wrong="An INT8 TABLE that is fused with a TRANSPOSE is loaded beyond the end of a 16 KB SHRAM.",
        operators=("TABLE",),
        which=patterns.is_of_transposed,
        instead=run_before_moves,
        families=("u55",),
        small_shram=True,
        versions=SINCE_5_2,
    ),
    # --- saturation ---------------------------------------------------------------------------------------------------
    VelaBug(
        id="vela.narrowed-and-widened",
        wrong="Vela removes a RESCALE by 1 from INT32 to INT8 or INT16 together with the RESCALE back to INT32, so that values "
        "do not saturate.",
        operators=("RESCALE",),
        which=patterns.is_rescaled_back,
        instead=do.copy_operand,
    ),
    VelaBug(
        id="vela.rescale-of-wrapped",
        wrong="Vela fuses a RESCALE with a CAST to fewer bits, so that values saturate or are rescaled before they wrap.",
        operators=("RESCALE",),
        which=patterns.is_of_wrapped,
        instead=do.clamp_operand,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.widened-in-producer",
        wrong="Vela fuses a RESCALE without zero point to a wider dtype with the producer of its operand, and clamps to the "
        "narrow dtype, e.g. INT16 to -128..127.",
        operators=("RESCALE",),
        which=patterns.is_widened,
        reads=("MAX_POOL2D", "SELECT", "CAST", "BITWISE_AND", "BITWISE_OR", "BITWISE_XOR", "BITWISE_NOT"),
        instead=do.clamp_operand,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.widened-in-pool-of-wide-stride",
        wrong="Vela splits a pool with a stride above 3 into windows. If Vela fuses a RESCALE to INT32 with the pool, it loses the "
        "RESCALE.",
        operators=("RESCALE",),
        which=patterns.is_widened_pool_of_wide_stride,
        instead=do.copy_operand,
        families=U55_U65,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.clamp-of-shift",
        wrong="Vela fuses a CLAMP with a logical shift and loses the CLAMP.",
        operators=("CLAMP",),
        which=patterns.is_of_shifted,
        instead=do.copy_operand,
        families=U85,
    ),
    # --- avoided by lowerings -----------------------------------------------------------------------------------------
    VelaBug(
        id="vela.sum-of-whole-scales",
        wrong="For a sum of two INT16 values that are rescaled to INT32 by integers below 2**14, Vela emits the smaller scale, "
        "but the NPU uses a fixed shift in place of the larger scale.",
        instead="``lower.ops.arithmetic`` rescales by the NPU's fixed shift: 2**14 for INT16, 2**19 for INT8.",
        operators=("ADD", "SUB"),
        families=U55_U65,
    ),
    VelaBug(
        id="vela.rescale-in-comparison",
        wrong="Vela fuses RESCALEs of operands with a comparison, but the NPU scales only operands of ADD and SUB.",
        instead="``lower.ops.compare`` compares a difference with 0. The simulator does not reproduce the bug, because the "
        "simulator scales the operands.",
        operators=("EQUAL", "GREATER", "GREATER_EQUAL"),
        families=U85,
    ),
    VelaBug(
        id="vela.rescale-in-select",
        wrong="Vela fuses the RESCALE of an operand with the AND_NOT of a SELECT, but the NPU scales only operands of ADD and SUB.",
        instead="``lower.ops.selection`` adds the operand to itself before rescaling.",
        operators=("SELECT",),
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.rescale-of-product-per-channel",
        wrong="A per-channel RESCALE of a MATMUL, or of a convolution with computed weights, uses the first scale for all "
        "channels.",
        instead="Only constant weights are rescaled per channel.",
        operators=("MATMUL", "CONV2D"),
        families=U85,
    ),
    VelaBug(
        id="vela.transposed-convolution-of-long-result",
        wrong="Vela splits a TRANSPOSE_CONV2D with a stride of 2 and more than 65,536 rows or columns of results. The last "
        "operations do not read any row of the feature map.",
        instead="``lower.ops.conv_transpose`` computes the phases with convolutions of stride 1.",
        operators=("TRANSPOSE_CONV2D",),
        families=U55_U65,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.unread-input",
        wrong="Vela removes an input that no operator reads.",
        instead="``lower.walk`` adds the input, multiplied by 0, to an output. ``vela.compile`` reports a lost input.",
    ),
    # --- limits of targets --------------------------------------------------------------------------------------------
    VelaBug(
        id="vela.padded-pool-of-wide-stride",
        wrong="A MAX_POOL2D with padding and a stride above 3 reads wrong elements.",
        instead="The pool runs on the CPU because of a limit in ``targets.u85``.",
        operators=("MAX_POOL2D",),
        families=U85,
    ),
    VelaBug(
        id="vela.padded-pool-along-long-axis",
        wrong="A pool with a stride and padding over more than 65,536 rows or columns is split as in "
        "vela.padded-stride-along-long-axis.",
        instead="The pool runs on the CPU because of a limit in ``targets.u55``.",
        operators=("MAX_POOL2D", "AVG_POOL2D"),
        families=U55_U65,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.long-sum",
        wrong="Vela splits a REDUCE_SUM of more than 65,536 elements, and rescales each partial sum like the total.",
        instead="``lower.builder.reductions`` computes sums of partial sums because of a limit in ``targets.u85``.",
        operators=("REDUCE_SUM",),
        families=U85,
    ),
    # --- handled around the compilation -------------------------------------------------------------------------------
    VelaBug(
        id="vela.int32-slice-in-cascade",
        wrong="A SLICE of INT32 in a cascade ignores its offset.",
        instead="``vela.compile`` compiles such a graph again without cascading.",
        operators=("SLICE",),
        families=("u65",),
        assumed=("u55",),
    ),
    VelaBug(
        id="vela.undone-transpose-output",
        wrong="Vela removes an output that is a TRANSPOSE if another TRANSPOSE undoes it.",
        instead="``merge neighbours`` removes such pairs. If an output is lost, the outputs are copied.",
        operators=("TRANSPOSE",),
    ),
    VelaBug(
        id="vela.input-in-its-readers-shape",
        wrong="If a RESHAPE reads an input, Vela reports the input in the new shape.",
        instead="``vela.compile`` restores the shape. The bytes are the same.",
        operators=("RESHAPE",),
    ),
    # --- last, because it depends on shapes that earlier rows change --------------------------------------------------
    VelaBug(
        id="vela.select-of-reshaped",
        wrong="A SELECT of a value that is read in two shapes, by a RESHAPE before the SELECT or elsewhere, computes some "
        "of its steps in the other shape.",
        operators=("SELECT",),
        instead=do.copy_reshaped_operands,
        families=U85,
    ),
)
BY_ID: Mapping[str, VelaBug] = {bug.id: bug for bug in VELA_BUGS}


def work_around(r: Rewriter, tuning: Tuning) -> None:
    """Apply the rewrites in ``VELA_BUGS`` that concern the target of ``tuning``."""
    for bug in VELA_BUGS:
        concerned = bug.concerns(tuning.vela_family) and tuning.vela_small_shram >= bug.small_shram
        if concerned and not isinstance(bug.instead, str):
            for op in r.select(*bug.operators) if bug.operators else r:
                if bug.finds(r, op):
                    bug.instead(r, op)
