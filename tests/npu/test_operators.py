"""TOSA reference model == machine, bit for bit, for every case on every target that Vela compiles it for."""

from __future__ import annotations

import pytest

from tests.helpers.npu_graphs import TARGETS, Refused, check
from tests.npu.cases import CASES

# Always: on one configuration of each family one case of each handler, mode, data type and layout. The others, and other
# arenas, in the long run.
QUICK = ("u55-128", "u65-512", "u85-256")
REPRESENTATIVE = (
    "conv_1x1", "conv_3x3_stride2", "conv_5x5_dilated", "conv_9x10", "conv_1d_wide", "conv_stride4", "conv_deep", "conv_batch2",
    "conv_to_int16", "conv_to_int32", "fully_connected_batch", "conv16_3x3", "conv16_to_int32", "conv16_two_rescales",
    "conv_14_weights", "conv_few_weights", "conv_2_4_sparse", "conv_sparse_weights", "conv_clamp", "conv_dynamic_weights",
    "conv_dynamic_bias", "depthwise_3x3", "depthwise_7x9", "depthwise_multiplier", "depthwise16_3x3", "transpose_conv_stride2",
    "conv3d", "max_pool_3x3_padded", "max_pool_int16", "average_pool_3x3_padded", "average_pool_big", "average_pool_int16",
    "reduce_sum_c", "reduce_sum_h", "reduce_max_c", "reduce_min_w", "argmax_c", "argmax_h", "add_int8", "add_large",
    "add_int16_opa", "add_opa", "sub_opb", "add_broadcast_both", "add_constant", "add_int32", "sub_int32", "mul_int8",
    "mul_int16_to_int32", "mul_broadcast_hw_c", "mul_int32_shift", "maximum_int8", "minimum_int32", "abs_int32", "clz", "asr",
    "asr_round", "lsl", "lsr", "asr_large", "asr_round_large", "lsl_large", "lsr_large", "logical_xor", "logical_not",
    "bitwise_and", "bitwise_not", "greater", "equal", "greater_select", "select_int8", "intdiv",
    "table_int8", "table_fused", "tables_two", "tables_eight", "table_int16", "table_int16_to_int16",
    "clamp_int16",
    "negate_int16", "rescale_32_per_channel", "rescale_16_to_32", "rescale_32_to_8", "rescale_unsigned_in",
    "rescale_double_round", "cast_8_to_32", "cast_bool_to_8", "transpose_nhwc", "transpose_0213", "transpose_int32",
    "transpose_batch", "reverse_c", "reverse_w", "concat_c", "pad", "tile", "slice", "resize_nearest_x2", "resize_bilinear_x2",
    "resize_bilinear_x3_half", "gather_batch", "scatter", "matmul_batch", "matmul_deep", "matmul_int16", "residual_block",
)  # fmt: skip


def run(name: str, target: str, **options) -> None:
    try:
        check(CASES[name], target, **options)
    except Refused as refusal:
        pytest.skip(f"Vela: {refusal}"[:200])


@pytest.mark.parametrize("target", QUICK)
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_operator(name, target):
    run(name, target)


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_every_operator_everywhere(name, target):
    run(name, target, seed=5)


COMPILER = "[compiler]\noutput_format=Raw\ncop_format=COP1\n[scheduler]\n"
OPTIONS = {
    "size": "optimize=Size",
    "small_arena": "optimize=Performance\narena_size_limit=8192",
    "separate_io": "optimize=Performance\nseparate_io_regions=true",
    "plain": "optimize=Performance\ndisable_feature=Grouping|FWD|Cascading|WeightBuffering|ReuseIFM",
    "staged": "optimize=Performance\narena_size_limit=30000",
}
NETWORKS = ("residual_block", "cascade", "tables_two", "conv_many_weights")


@pytest.mark.parametrize(
    ("target", "options"), [(t, o) for i, t in enumerate(QUICK) for j, o in enumerate(OPTIONS) if (i + j) % 2 == 0]
)
@pytest.mark.parametrize("name", NETWORKS[:2])
def test_scheduling(name, options, target):
    """Stripes, rolling buffers, double buffered weights, staging memory, separate I/O regions: the same bytes."""
    memory_mode = "Dedicated_Sram" if options == "staged" else None
    run(name, target, options=COMPILER + OPTIONS[options], memory_mode=memory_mode)


@pytest.mark.parametrize("target", QUICK)
@pytest.mark.parametrize("memory_mode", ["Sram_Only", "Shared_Sram", "Dedicated_Sram", "Dedicated_Sram_512KB"])
def test_memory_modes(memory_mode, target):
    """Where constants, arena and staging memory lie changes addresses and transfers, not results."""
    run("residual_block", target, memory_mode=memory_mode)


@pytest.mark.long
@pytest.mark.parametrize("target", QUICK)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", CASES)
def test_scheduling_of_every_operator(name, options, target):
    memory_mode = "Dedicated_Sram" if options == "staged" else None
    run(name, target, options=COMPILER + OPTIONS[options], memory_mode=memory_mode)
