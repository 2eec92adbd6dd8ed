"""Limits and tuning of Ethos-U55 and Ethos-U65."""

from __future__ import annotations

import math
from dataclasses import replace

from ethorch.targets.family import Family
from ethorch.targets.tuning import FoldColumns, TileCost, TransposeCost, Tuning, WrittenWeights
from ethorch.tosa.limits import Limits, Range, upto

NONE, _ONE = Range(0, 0), Range(1, 1)
#: Vela splits kernels, maps, batches and strides, but not channels.
CHANNELS = {"ifm_c": upto(65536)}
#: Vela 5.2 emits one operation per image if the window slides. Its compile time is quadratic in the batch size, e.g. 0.1 s for
#: 1,000 images, 2 to 6 s for 16,000, and 24 s for 32,768. Each image needs about 20 to 30 bytes of commands.
PICTURES = {"pictures": upto(16384)}
_WINDOW = {**CHANNELS, **PICTURES}
#: On U55, Vela splits a convolution with a stride greater than 3 only if it has no padding or dilation (SUPPORTED_OPS: 1..3).
_PLAIN_STRIDES = {"padding_of_wide_stride": NONE, "dilation_of_wide_stride": _ONE}
POOL = {**_WINDOW, "kernel_w": upto(65536)}
#: The extent is that of Vela bug vela.padded-pool-along-long-axis.
_PADDED_POOL = {"padding_of_wide_stride": NONE, "extent_of_padded_stride": upto(65536)}

_ON_U85 = "Use an ethos-u85 target"
#: Unsupported TOSA operators (Vela 5.2 SUPPORTED_OPS, "Ethos-U55 and Ethos-U65 TOSA Not Supported Operators"), with alternatives.
_ABSENT_U55 = {
    **dict.fromkeys(
        ("BITWISE_AND", "BITWISE_OR", "BITWISE_XOR", "BITWISE_NOT", "LOGICAL_RIGHT_SHIFT"),
        f"{_ON_U85}; sums and products of int32 tensors run on every NPU.",
    ),
    **dict.fromkeys(
        ("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_XOR", "LOGICAL_NOT"),
        f"{_ON_U85}; products and sums of masks of 0.0 and 1.0 run on every NPU.",
    ),
    **dict.fromkeys(
        ("EQUAL", "GREATER", "GREATER_EQUAL"),
        f"{_ON_U85}; torch.clamp, minimum and maximum, or a mask from a hard sigmoid, run on every NPU.",
    ),
    **dict.fromkeys(("REDUCE_ALL", "REDUCE_ANY"), f"{_ON_U85}; amin and amax of masks of 0.0 and 1.0 run on every NPU."),
    **dict.fromkeys(
        ("GATHER", "SCATTER"),
        f"{_ON_U85}; an index with constant indices, or a matmul with rows of ones and zeros, runs on every NPU.",
    ),
    "INTDIV": f"{_ON_U85}; a quotient of quantized numbers runs on every NPU.",
    "SELECT": f"{_ON_U85}; mask * x + (1 - mask) * y, with a mask of 0.0 and 1.0, runs on every NPU.",
}

_NO_COND = f"{_ON_U85}; computing both branches, and selecting a result with torch.where, runs on every NPU."
#: ExecuTorch 1.4.1 fails with and without delegates: to_executorch reports "Unsupported control flow operator: while_loop".
NO_LOOP_ON_CPU = "to_executorch cannot write a while_loop for the CPU"
_NO_LOOP = f"{_ON_U85}, or unroll the loop in Python if the number of iterations is known; {NO_LOOP_ON_CPU}."

_INT8 = "Quantize the module to int8; ethos-u85 targets support int16 too."
_INT32 = "Cast the operand to int32 in the model; ethos-u85 targets support the other dtypes too."

LIMITS = {
    "CONV2D": Limits({**_WINDOW, **_PLAIN_STRIDES}),
    "DEPTHWISE_CONV2D": Limits({**_WINDOW, "stride": upto(3)}),
    "MAX_POOL2D": Limits({**POOL, **_PADDED_POOL}),
    "AVG_POOL2D": Limits({**POOL, **_PADDED_POOL, "padded_kernel": upto(8)}),
    "REDUCE_SUM": Limits({name: upto(65536) for name in ("extent", "outer", "inner")}),
    # Vela miscompiles larger extents. In int16, each pair of matrices needs eight operations, so simulating 32,767 takes a minute.
    "MATMUL": Limits({"longest_axis": upto(65536), **PICTURES}, dtypes=frozenset({"INT8"}), remedy=_INT8),
    "ARGMAX": Limits({"extent": upto(127), "others": upto(65536)}, dtypes=frozenset({"INT8"}), remedy=_INT8),
    "ARITHMETIC_RIGHT_SHIFT": Limits({"rounds": _ONE}, dtypes=frozenset({"INT32"}), remedy=_INT32),
    "LOGICAL_LEFT_SHIFT": Limits(dtypes=frozenset({"INT32"}), remedy=_INT32),
    **{name: Limits(present=False, remedy=remedy) for name, remedy in _ABSENT_U55.items()},
    "COND_IF": Limits(present=False, remedy=_NO_COND),
    "WHILE_LOOP": Limits(present=False, remedy=_NO_LOOP),
}

STEPS = TransposeCost(cycles_per_byte=0.4, step_cycles=100, vela_cycles_per_byte=1.5, refuses_long_axes=True)

#: Neither family supports BOOL. Both support RESIZE only for one image, nearest-neighbor, by 2, 4 or 8 in both directions.
TUNING = Tuning(
    truth_dtype="INT8",
    int32_activations=False,
    resize="doubling",
    transpose_conv="phases",
    # Vela emits two operations, 250 bytes of commands, per row. Its estimates on u55-128 in cycles, direct and transposed:
    # 64 rows of 1,024 columns 4.32e6 and 4.25e6; 1 row 230,400 and 90,278; 250 rows 13.6e6 and 16.5e6.
    fewest_columns_turned=1024,
    largest_max_pool_in_turn_bytes=math.inf,
    # Vela emits one operation, 20 bytes of commands, per element. Its estimates, without command costs, are lower by a fifth.
    most_places_before_sum=4096,
    written_weights=WrittenWeights(zero_point=-1, largest_step=1.25),
    fewest_results_of_wide_stride=4096,
    fold_strides=FoldColumns(channels=8, taps=4, least_products=192),
    largest_selection=512,
    repeats_channels=True,
    transpose_steps=replace(STEPS, of_single_elements=True),
    tile_steps=TileCost(cycles_per_copy=800, cycles_per_byte=1),
    copies_broadcast_constants=True,
    smallest_rescale_by_depthwise=1024,
    vela_family="u55",
)

U55 = Family("u55", "EthosU55", "Ethos_U55_High_End_Embedded", "Shared_Sram", 32, 8, LIMITS, TUNING, ("int16", "int4", "u55"))
U65 = replace(
    U55,
    name="u65",
    vela_arch="EthosU65",
    default_system_config="Ethos_U65_High_End",
    default_memory_mode="Dedicated_Sram_384KB",
    address_bits=40,
    port_bytes=16,
    # Memory limits the speed of convolutions with few channels and of operations that move single elements.
    tuning=replace(
        TUNING,
        fold_strides=FoldColumns(channels=8, taps=4, least_products=1024),
        shuffles_by_nhwc=True,
        # Vela emits up to one operation per eight elements. It refuses 7 of 36 random TRANSPOSEs of five axes with 70,000 to
        # 400,000 elements on u65-256. By its estimates, steps take 0.29 to 0.96 times the cycles for 20 others, and up to 2.15
        # times the cycles for 9. Steps need 0.5 KB of commands instead of 50 to 2,600 KB.
        transpose_steps=replace(STEPS, fewest_single_elements=65536),
        smallest_rescale_by_depthwise=8192,
        vela_family="u65",
    ),
)
