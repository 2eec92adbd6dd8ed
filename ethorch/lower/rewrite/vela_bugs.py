"""``VELA_BUGS``: what Vela gets wrong, a row for each bug, and what is done instead.

tests/lower/rewrite/vela_bug_graphs.py has small graphs for each row. The tests show that they are computed right with the row and
(among the long tests) that Vela gets them wrong without: a row goes when no Vela that is supported needs it. Code elsewhere that
avoids a bug names the id of its row. docs/vela-bugs.md is written from this table.
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
    """One thing that Vela refuses, or compiles to a stream that computes something else.

    Attributes:
        id: stable; names the row in tests and comments.
        wrong: what Vela does.
        instead: what is done to each operator that the row finds. Of a bug that is avoided elsewhere, where and how.
        operators: what the row is about; () is any.
        which: which of them, as its docstring says.
        of: they read the result of one of these;
        reads: and of one of these, seen through RESHAPEs.
        placed: a CONCAT or PAD places their result; ``reshaped``: behind one RESHAPE at least, ``anyhow``: perhaps behind some.
        families: those of which a graph shows it.
        assumed: families for which it is avoided though no graph shows it.
        small_shram: True if only NPUs with 16 KB of SHRAM have it.
        versions: of Vela, in which it was seen; the families are those of the last one.
    """

    id: str
    wrong: str
    instead: Callable[[Rewriter, Op], None] | str
    operators: tuple[str, ...] = ()
    which: Callable[[Rewriter, Op], bool] = patterns.any_of_them
    of: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    placed: Literal["", "anyhow", "reshaped"] = ""
    families: tuple[Family, ...] = ALL
    assumed: tuple[Family, ...] = ()
    small_shram: bool = False
    versions: tuple[str, ...] = ("5.1.0", "5.2.0")

    def concerns(self, family: str) -> bool:
        """Is it avoided for this family of NPUs?"""
        return family in (*self.families, *self.assumed)

    def finds(self, r: Rewriter, op: Op) -> bool:
        """Does the row concern ``op``, one of its operators?"""
        return (
            (not self.of or r.producer(op.operands[0], *self.of) is not None)
            and (not self.reads or patterns.reads(r, op.operands[0], *self.reads))
            and (not self.placed or patterns.is_placed(r, op.result, reshaped=self.placed == "reshaped"))
            and self.which(r, op)
        )


VELA_BUGS: tuple[VelaBug, ...] = (
    # --- offsets that are lost: reading -------------------------------------------------------------------------------
    VelaBug(
        id="vela.transposed-convolution-of-slice",
        wrong="A TRANSPOSE_CONV2D, which Vela splits, reads a SLICE from the beginning of the whole.",
        operators=("TRANSPOSE_CONV2D",),
        reads=("SLICE",),
        instead=do.copy_operand,
    ),
    VelaBug(
        id="vela.dilated-convolution-of-slice",
        wrong="A convolution with a dilation above 2, which Vela splits, reads a SLICE from the beginning of the whole.",
        operators=("CONV2D", "DEPTHWISE_CONV2D"),
        which=patterns.is_dilated,
        reads=("SLICE",),
        instead=do.copy_operand,
    ),
    VelaBug(
        id="vela.multiplied-depthwise-of-slice",
        wrong="A DEPTHWISE_CONV2D with several outputs per channel, which Vela splits, reads a SLICE from the beginning of the "
        "whole.",
        operators=("DEPTHWISE_CONV2D",),
        which=patterns.is_multiplied,
        reads=("SLICE",),
        instead=do.copy_operand,
    ),
    VelaBug(
        id="vela.padded-window-of-sliced-batch",
        wrong="A window with padding over several pictures reads a SLICE from the beginning of the whole.",
        operators=("CONV2D", "DEPTHWISE_CONV2D", "MAX_POOL2D", "AVG_POOL2D"),
        which=patterns.is_padded_batch,
        reads=("SLICE",),
        instead=do.copy_operand,
    ),
    VelaBug(
        id="vela.tile-of-five-axes-of-slice",
        wrong="A TILE of more than four axes reads a SLICE from the beginning of the whole.",
        operators=("TILE",),
        which=patterns.is_wide,
        reads=("SLICE",),
        instead=do.copy_operand,
    ),
    VelaBug(
        id="vela.rescale-of-six-axes-of-slice",
        wrong="A RESCALE of more than five axes, as part of an operator that broadcasts, reads a SLICE from the beginning of the "
        "whole.",
        operators=("RESCALE",),
        which=patterns.is_very_wide,
        reads=("SLICE",),
        instead=do.copy_operand,
    ),
    VelaBug(
        id="vela.maximum-of-slice",
        wrong="A REDUCE_MAX or REDUCE_MIN reads a SLICE from the beginning of the whole.",
        operators=("REDUCE_MAX", "REDUCE_MIN"),
        reads=("SLICE",),
        instead=do.copy_operand,
    ),
    VelaBug(
        id="vela.sum-along-channels-of-slice",
        wrong="A REDUCE_SUM along the last axis reads a SLICE from the beginning of the whole.",
        operators=("REDUCE_SUM", "RESCALE"),
        which=patterns.is_summed_along_channels,
        reads=("SLICE",),
        instead=do.copy_operand,
    ),
    VelaBug(
        id="vela.turned-slice",
        wrong="Of a SLICE that is read several times, a TRANSPOSE that Vela's own for a MATMUL's second operand or a REDUCE_SUM "
        "undoes becomes a transfer, from the beginning of the whole.",
        operators=("MATMUL", "REDUCE_SUM"),
        which=patterns.is_of_turned_slice,
        instead=do.copy_turned_slice,
        families=U55_U65,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.matmul-of-slice",
        wrong="A MATMUL reads a SLICE from the beginning of the whole.",
        operators=("MATMUL",),
        reads=("SLICE",),
        instead=do.copy_operand,
        families=U55_U65,
    ),
    VelaBug(
        id="vela.broadcast-slice-in-chain",
        wrong="An elementwise operator that is chained to the one before it takes a SLICE for the whole if the whole has as many "
        "elements as the result: x * e[:, 32:48], where e has as many chunks as x has rows.",
        operators=patterns.TAKING_TWO,
        which=patterns.is_of_broadcast_slice_of_as_many,
        instead=do.copy_slices_of_as_many,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.lone-rescale-of-move",
        wrong="A RESCALE from or to INT32 that is part of no other operator becomes a multiplication, which forgets where in a "
        "SLICE, CONCAT or PAD it reads, and computes the first copy only of a TILE. Few scales become part of a sum.",
        operators=("RESCALE",),
        which=patterns.is_lone,
        reads=("SLICE", "CONCAT", "PAD", "TILE"),
        instead=do.copy_operand,
        families=U55_U65,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.lone-rescale-in-slices",
        wrong="A RESCALE from or to INT32 that is part of no other operator becomes a multiplication; where a SLICE reads it, and "
        "it or the SLICE is read several times, that is done for each reader, at the SLICE's place in the whole.",
        operators=("RESCALE",),
        which=patterns.is_lone_in_slices,
        instead=do.copy_result,
        families=U55_U65,
        versions=SINCE_5_2,
    ),
    # --- offsets that are lost: writing -------------------------------------------------------------------------------
    VelaBug(
        id="vela.lone-rescale-placed",
        wrong="A RESCALE from or to INT32 that is part of no other operator becomes a multiplication, which a CONCAT or PAD does "
        "not move: in cat([x, y * constant]) the second part lies over the first.",
        operators=("RESCALE",),
        which=patterns.is_lone,
        placed="anyhow",
        instead=do.copy_result,
        families=U55_U65,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.multiplied-depthwise-placed",
        wrong="A DEPTHWISE_CONV2D with several outputs per channel that a CONCAT or PAD places is an error of Vela's.",
        operators=("RESCALE",),
        which=patterns.is_rescaled_multiplied,
        placed="anyhow",
        instead=do.copy_result,
    ),
    VelaBug(
        id="vela.rescale-between-placements",
        wrong="A RESCALE of a CONCAT, PAD or TILE that a CONCAT or PAD places is written over what is there.",
        operators=("RESCALE",),
        which=patterns.is_of_codes,
        reads=("CONCAT", "PAD", "TILE"),
        placed="anyhow",
        instead=do.copy_result,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.maximum-placed",
        wrong="A REDUCE_MAX or REDUCE_MIN along the last axis that a CONCAT or PAD places is written over what is there.",
        operators=("REDUCE_MAX", "REDUCE_MIN"),
        placed="anyhow",
        instead=do.copy_result,
    ),
    VelaBug(
        id="vela.clamp-of-transpose-placed",
        wrong="A CLAMP of a TRANSPOSE that a CONCAT or PAD places is written over what is there.",
        operators=("CLAMP",),
        reads=("TRANSPOSE",),
        placed="anyhow",
        instead=do.copy_result,
        families=U55_U65,
    ),
    VelaBug(
        id="vela.resize-in-steps-of-batch",
        wrong="A RESIZE by 4 or 8, which is done by 2 several times, is refused where a CONCAT makes its result part of a batch.",
        operators=("RESIZE",),
        which=patterns.is_resized_to_batch,
        instead=do.copy_result,
        families=U55_U65,
    ),
    VelaBug(
        id="vela.transposed-convolution-placed",
        wrong="A TRANSPOSE_CONV2D that a CONCAT or PAD places is written over what is there.",
        operators=("RESCALE",),
        of=("TRANSPOSE_CONV2D",),
        placed="anyhow",
        instead=do.copy_result,
        families=U55_U65,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.reshaped-matmul-placed",
        wrong="A MATMUL that is reshaped and that a CONCAT or PAD places is written over what is there.",
        operators=("RESCALE",),
        of=("MATMUL",),
        placed="reshaped",
        instead=do.copy_result,
        families=U55_U65,
    ),
    # --- copies of INT32 ----------------------------------------------------------------------------------------------
    VelaBug(
        id="vela.wide-int32-move",
        wrong="What moves INT32 is a copy of INT16 with twice as many places along the last axis; beyond 65,536 of those it is cut "
        "off.",
        operators=("CONCAT", "PAD", "SLICE", "TILE"),
        which=patterns.is_wide_int32,
        instead=do.move_along_an_axis_more,
        families=U55_U65,
    ),
    VelaBug(
        id="vela.wide-int32-identity",
        wrong="An IDENTITY of INT32 is a copy as in vela.wide-int32-move.",
        operators=("IDENTITY",),
        which=patterns.is_wide_int32,
        instead=do.copy_instead,
        families=U55_U65,
    ),
    VelaBug(
        id="vela.wide-int32-input",
        wrong="A RESHAPE or TRANSPOSE of an input of INT32 is a copy as in vela.wide-int32-move, in the shape of the input.",
        operators=("RESHAPE", "TRANSPOSE"),
        which=patterns.is_wide_int32_input,
        instead=do.copy_operand,
        families=U55_U65,
    ),
    VelaBug(
        id="vela.wide-int32-in-shapes",
        wrong="An INT32 that is read in two shapes, one of more than 32,768 places along its last axis, is wrong for all readers.",
        operators=("RESHAPE",),
        which=patterns.is_wide_int32_read_in_shapes,
        instead=do.copy_operand,
        families=U55_U65,
    ),
    # --- shapes and memory that are shared ----------------------------------------------------------------------------
    VelaBug(
        id="vela.square-of-reshaped",
        wrong="Of x * x, where x is rescaled and reshaped, one operand gets the shape before, and the result is written over it.",
        operators=ELEMENTWISE,
        which=patterns.is_square_of_reshaped,
        instead=do.reshape_twice,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.rescale-in-shapes",
        wrong="A RESCALE that is part of no other operator, reshaped and read several times, as a whole or in SLICEs, is done for "
        "some readers in the shape before: view(x)[:8] + view(x)[8:].",
        operators=("RESHAPE",),
        which=patterns.is_rescale_in_one_shape_of_several,
        instead=do.rescale_behind,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.table-of-reshaped-slice",
        wrong="A TABLE or CLAMP of a SLICE in another shape, chained to what reads it, is written in the shape of the SLICE, in "
        "bricks of 16 channels, to memory for the other.",
        operators=("TABLE", "CLAMP"),
        which=patterns.is_of_reshaped_slice,
        instead=do.reshape_result,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.five-axes-of-slice",
        wrong="An elementwise operator of more than four axes reads a reshaped SLICE, such as [1, 1, n, h, c], from a wrong place.",
        operators=(*patterns.POINTWISE, "TABLE"),
        which=patterns.is_of_slice_behind_ones,
        instead=do.run_in_four_axes,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.five-axes-of-slice-for-several",
        wrong="Of a SLICE that is reshaped to [1, 1, n, h, c] and read several times, a copy of Vela's own has the first [h, c] "
        "and what follows it.",
        operators=("RESHAPE",),
        which=patterns.is_of_slice_behind_ones_for_several,
        instead=do.copy_operand,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.spread-in-other-shape",
        wrong="Of x[n, 1, c] and y[n, m, 1], Vela spreads the first by an addition of its own, which reads it in the shape that "
        "the last RESHAPE gives it, or that it has before the RESCALE: all differences of the rows of one value, for example.",
        operators=ELEMENTWISE,
        which=patterns.is_spread_in_other_shape,
        instead=do.give_first_operand_one_shape,
        families=U55_U65,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.axis-of-column",
        wrong="A reduction or REVERSE along the last axis runs along the middle one of three. Of a value whose last axis has "
        "extent 1, reshaped to be without it, or of a sum along rows, Vela allocates too few bytes: bricks of 16 channels as if "
        "each held one.",
        operators=("ARGMAX", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_ALL", "REDUCE_ANY", "REVERSE"),
        which=patterns.is_along_last_axis_of_column,
        instead=do.run_along_middle_axis,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.operator-of-two-sums",
        wrong="Two REDUCE_SUMs that one elementwise operator reads are stored in bricks of 16 channels, of which one is allotted: "
        "each is written over what follows it.",
        operators=patterns.TAKING_TWO,
        which=patterns.is_of_two_sums,
        instead=do.copy_first_operand,
        families=U85,
    ),
    VelaBug(
        id="vela.argmax-of-slice",
        wrong="An ARGMAX of a SLICE takes extents of the whole: it runs along rows in place of columns, or along more places.",
        operators=("ARGMAX",),
        reads=("SLICE",),
        instead=do.copy_operand,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.bool-output-that-is-read",
        wrong="Truth values are 0 and -1, as outputs 0 and 1: what reads an output combines the two.",
        instead=do.copy_read_outputs,
        families=U85,
    ),
    VelaBug(
        id="vela.loop-in-operands",
        wrong="A WHILE_LOOP computes its rounds in the memory of its operands, which others read.",
        operators=("WHILE_LOOP",),
        instead=do.copy_shared_operands,
        families=U85,
    ),
    # --- what other steps of the pipeline avoid -----------------------------------------------------------------------
    VelaBug(
        id="vela.concat-of-five-axes",
        wrong="A CONCAT of more than four axes behind a SLICE and a RESHAPE reads the wrong rows.",
        instead="The step ``fold wide moves`` makes it one of at most four axes.",
        operators=("CONCAT",),
    ),
    VelaBug(
        id="vela.slice-of-five-axes",
        wrong="A SLICE of more than four axes, a RESHAPE and a CONCAT kill the process on U55 and U65; on U85 they read the wrong "
        "rows.",
        instead="The step ``fold wide moves`` makes it several of three axes.",
        operators=("SLICE",),
    ),
    VelaBug(
        id="vela.pad-of-five-axes",
        wrong="A PAD of more than four axes behind a SLICE and a RESHAPE reads the wrong rows.",
        instead="The step ``fold wide moves`` makes it several of three axes.",
        operators=("PAD",),
    ),
    VelaBug(
        id="vela.one-element-of-five-axes",
        wrong="Of an elementwise operator of more than four axes whose first operand is one element, it reads that operand as if "
        "it had all.",
        instead="The step ``fold broadcasts`` makes it one of at most four axes.",
        operators=(*ELEMENTWISE, "ARITHMETIC_RIGHT_SHIFT", "LOGICAL_LEFT_SHIFT"),
        families=U55_U65,
    ),
    VelaBug(
        id="vela.table-between-transposes",
        wrong="Of TABLE, TRANSPOSE, TABLE, TRANSPOSE, INT8, the second TABLE is lost.",
        instead="The step ``move tables before moves`` makes them one TABLE and one TRANSPOSE.",
        operators=("TABLE",),
        families=U85,
    ),
    # --- windows over long axes, constants ----------------------------------------------------------------------------
    VelaBug(
        id="vela.dilated-convolution-of-short-map",
        wrong="Of a map with fewer places than the dilation, which is above 2, it makes convolutions of nothing but padding.",
        operators=("CONV2D", "DEPTHWISE_CONV2D"),
        which=patterns.is_dilated_beyond_map,
        instead=do.pad_before,
    ),
    VelaBug(
        id="vela.transpose-of-dilated-convolution",
        wrong="A TRANSPOSE becomes part of each of the convolutions that one of a dilation above 2 is made of, which then write to "
        "wrong rows if there are few.",
        operators=("TRANSPOSE",),
        which=patterns.is_of_dilated_convolution,
        instead=do.copy_operand,
        families=U85,
    ),
    VelaBug(
        id="vela.dilated-convolution-along-long-axis",
        wrong="Of an axis of more than 65,536 places it makes several maps, each as long as a kernel without its dilation of 2 "
        "reads: the last results of each read padding.",
        operators=("CONV2D", "DEPTHWISE_CONV2D"),
        which=patterns.is_dilated_along_long_axis,
        instead=do.fill_kernel,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.dilated-convolution-of-long-map",
        wrong="Of an axis of more than 65,536 places it makes several maps; with a dilation along the other axis, or of more than "
        "2, they read other rows and columns, or more than there are.",
        operators=("CONV2D", "DEPTHWISE_CONV2D"),
        which=patterns.is_dilated_on_long_map,
        instead=do.fill_kernel,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.padded-stride-along-long-axis",
        wrong="Of an axis of more than 65,536 places, read with a stride, it makes several maps; where the last is short, the one "
        "before reads padding.",
        operators=("CONV2D", "DEPTHWISE_CONV2D"),
        which=patterns.is_padded_stride_along_long_axis,
        instead=do.pad_before,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.padded-stride-beside-long-axis",
        wrong="Of an axis of more than 65,536 places it makes several maps; with a stride and padding along the other axis, some "
        "read padding instead of the map.",
        operators=("CONV2D", "DEPTHWISE_CONV2D"),
        which=patterns.is_padded_stride_beside_long_axis,
        instead=do.pad_before,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.wide-padding",
        wrong="Of padding of 128 places or more at an edge it writes the low 7 bits, which is all that the register has: results "
        "are those of other columns.",
        operators=("CONV2D", "DEPTHWISE_CONV2D", "MAX_POOL2D"),
        which=patterns.is_widely_padded,
        instead=do.pad_before,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.gather-of-many-rows",
        wrong="A GATHER of 65,536 rows or more, or from as many batches, is one transfer, of which 16 bits count them.",
        operators=("GATHER",),
        which=patterns.is_of_many_rows,
        instead=do.gather_in_parts,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.scatter-of-many-rows",
        wrong="A SCATTER of 65,536 rows or more, or into as many batches, is one transfer, of which 16 bits count them.",
        operators=("SCATTER",),
        which=patterns.is_of_many_rows,
        instead=do.scatter_in_parts,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.equal-weights",
        wrong="Convolutions with equal weights and scales share what is encoded of one, with its bias and the zero point of its "
        "weights.",
        operators=("CONV2D", "DEPTHWISE_CONV2D"),
        which=patterns.has_weights_of_another,
        instead=do.part_weights,
    ),
    VelaBug(
        id="vela.transpose-of-constant",
        wrong="A TRANSPOSE of a constant writes its result into the constants' memory, which is read-only; so does one that Vela "
        "itself puts in front of a constant map, where the weights are computed.",
        operators=("TRANSPOSE",),
        which=patterns.is_of_constant,
        instead=do.transpose_now,
        families=("u55", "u85"),
        assumed=("u65",),  # where constants lie in memory of their own, it is right
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.table-of-transpose",
        wrong="An INT8 TABLE that becomes part of a TRANSPOSE is loaded behind the end of an SHRAM of 16 KB.",
        operators=("TABLE",),
        which=patterns.is_of_transposed,
        instead=run_before_moves,
        families=("u55",),
        small_shram=True,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.table-of-multiplied-depthwise",
        wrong="An INT8 TABLE of a DEPTHWISE_CONV2D with several outputs per channel, which Vela splits and puts together by "
        "copies, is loaded after the end of an SHRAM of 16 KB.",
        operators=("TABLE",),
        which=patterns.is_of_multiplied_depthwise,
        instead=do.copy_operand,
        families=("u55",),
        small_shram=True,
        versions=SINCE_5_2,
    ),
    # --- what saturates -----------------------------------------------------------------------------------------------
    VelaBug(
        id="vela.narrowed-and-widened",
        wrong="A RESCALE by 1 from INT32 to INT8 or INT16 and the one by 1 back go away together, and with them what saturates.",
        operators=("RESCALE",),
        which=patterns.is_rescaled_back,
        instead=do.copy_operand,
    ),
    VelaBug(
        id="vela.rescale-of-wrapped",
        wrong="A RESCALE of a CAST to fewer bits becomes part of it, and what would wrap saturates or is scaled whole.",
        operators=("RESCALE",),
        which=patterns.is_of_wrapped,
        instead=do.clamp_operand,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.widened-in-producer",
        wrong="A RESCALE without zero point to a wider dtype becomes part of what makes its operand, and its results are clamped "
        "to the narrow dtype: INT16 between -128 and 127.",
        operators=("RESCALE",),
        which=patterns.is_widened,
        reads=("MAX_POOL2D", "SELECT", "CAST", "BITWISE_AND", "BITWISE_OR", "BITWISE_XOR", "BITWISE_NOT"),
        instead=do.clamp_operand,
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.widened-in-pool-of-wide-stride",
        wrong="A RESCALE to INT32 becomes part of a pool with a stride above 3, which is done in windows, and is lost.",
        operators=("RESCALE",),
        which=patterns.is_widened_pool_of_wide_stride,
        instead=do.copy_operand,
        families=U55_U65,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.clamp-of-shift",
        wrong="A CLAMP of a logical shift becomes part of it and is not done.",
        operators=("CLAMP",),
        which=patterns.is_of_shifted,
        instead=do.copy_operand,
        families=U85,
    ),
    # --- what lowerings do not emit -----------------------------------------------------------------------------------
    VelaBug(
        id="vela.sum-of-whole-scales",
        wrong="Of a sum of two INT16 that are both rescaled to INT32 by whole numbers below 2**14 it emits the smaller scale; "
        "the NPU takes its own shift for the larger.",
        instead="``lower.ops.arithmetic`` rescales the larger by 2**14, of INT8 by 2**19: the shifts that are the NPU's own.",
        operators=("ADD", "SUB"),
        families=U55_U65,
    ),
    VelaBug(
        id="vela.rescale-in-comparison",
        wrong="RESCALEs of operands become part of a comparison, but the NPU scales operands of ADD and SUB only.",
        instead="``lower.ops.compare`` compares a difference with 0. The simulator cannot show it: it scales them.",
        operators=("EQUAL", "GREATER", "GREATER_EQUAL"),
        families=U85,
    ),
    VelaBug(
        id="vela.rescale-in-select",
        wrong="The RESCALE of an operand becomes part of the AND_NOT that a SELECT is made of, but the NPU scales operands of ADD "
        "and SUB only.",
        instead="``lower.ops.selection`` adds 0 before it rescales.",
        operators=("SELECT",),
        families=U85,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.rescale-of-product-per-channel",
        wrong="A RESCALE per channel of a MATMUL, or of a convolution with computed weights, takes the first scale for all.",
        instead="Only weights that are constant are rescaled per channel.",
        operators=("MATMUL", "CONV2D"),
        families=U85,
    ),
    VelaBug(
        id="vela.transposed-convolution-of-long-result",
        wrong="A TRANSPOSE_CONV2D with a stride of 2 whose result has more than 65,536 rows or columns ends in parts that read "
        "no row of the map.",
        instead="``lower.ops.conv_transpose`` takes phases, convolutions of stride 1.",
        operators=("TRANSPOSE_CONV2D",),
        families=U55_U65,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.unread-input",
        wrong="An input that nothing reads is not there any more.",
        instead="``lower.walk`` adds it to an output, times 0; ``vela.compile`` refuses a model that lost one.",
    ),
    # --- what targets forbid ------------------------------------------------------------------------------------------
    VelaBug(
        id="vela.padded-pool-of-wide-stride",
        wrong="A MAX_POOL2D with padding and a stride above 3 reads other places.",
        instead="A limit of ``targets.u85``: it stays on the CPU.",
        operators=("MAX_POOL2D",),
        families=U85,
    ),
    VelaBug(
        id="vela.padded-pool-along-long-axis",
        wrong="A pool with a stride and padding over more than 65,536 rows or columns is cut as in "
        "vela.padded-stride-along-long-axis.",
        instead="A limit of ``targets.u55``: it stays on the CPU.",
        operators=("MAX_POOL2D", "AVG_POOL2D"),
        families=U55_U65,
        versions=SINCE_5_2,
    ),
    VelaBug(
        id="vela.long-sum",
        wrong="A REDUCE_SUM of more than 65,536 numbers is done in parts, each of which is rescaled as if it were the whole.",
        instead="A limit of ``targets.u85``; ``lower.ops.sums`` takes sums of sums.",
        operators=("REDUCE_SUM",),
        families=U85,
    ),
    # --- what is seen around the compilation --------------------------------------------------------------------------
    VelaBug(
        id="vela.int32-slice-in-cascade",
        wrong="A SLICE of INT32 in a cascade reads from the beginning of the whole.",
        instead="``vela.compile`` compiles a graph that has both once more, without cascading.",
        operators=("SLICE",),
        families=("u65",),
        assumed=("u55",),
    ),
    VelaBug(
        id="vela.undone-transpose-output",
        wrong="An output that a TRANSPOSE writes and another TRANSPOSE undoes is not there any more.",
        instead="Neighbours that are merged do not leave any; a graph that lost one is compiled again with copies of its outputs.",
        operators=("TRANSPOSE",),
    ),
    VelaBug(
        id="vela.input-in-its-readers-shape",
        wrong="An input that a RESHAPE reads is reported in the shape of that RESHAPE.",
        instead="``vela.compile`` puts the shape back; the bytes are the same.",
        operators=("RESHAPE",),
    ),
    # --- last: the shapes that the rows before leave ------------------------------------------------------------------
    VelaBug(
        id="vela.select-of-reshaped",
        wrong="A SELECT of what others read in another shape, by a RESHAPE of theirs or of its own, takes some of its steps in "
        "that shape.",
        operators=("SELECT",),
        instead=do.copy_reshaped_operands,
        families=U85,
    ),
)
BY_ID: Mapping[str, VelaBug] = {bug.id: bug for bug in VELA_BUGS}


def work_around(r: Rewriter, tuning: Tuning) -> None:
    """Apply the rows that concern the NPUs of ``tuning``, one row after the other."""
    for bug in VELA_BUGS:
        concerned = bug.concerns(tuning.vela_family) and tuning.vela_small_shram >= bug.small_shram
        if concerned and not isinstance(bug.instead, str):
            for op in r.named(*bug.operators) if bug.operators else r:
                if bug.finds(r, op):
                    bug.instead(r, op)
