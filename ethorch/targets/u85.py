"""Limits and tuning of Ethos-U85."""

from __future__ import annotations

from ethorch.targets.family import Family
from ethorch.targets.tuning import FoldColumns, FoldSquares, ReadPlanes, RowCost, SplitWeights, TileCost, TransposeCost, Tuning
from ethorch.targets.u55 import CHANNELS, NONE, PICTURES, POOL
from ethorch.tosa.limits import Limits, upto

LIMITS = {
    "CONV2D": Limits({**CHANNELS, **PICTURES}),
    "DEPTHWISE_CONV2D": Limits({**CHANNELS, **PICTURES}),
    "MATMUL": Limits(PICTURES),  # Vela emits one operation per pair of matrices
    "MAX_POOL2D": Limits({**POOL, "padding_of_wide_stride": NONE}),  # vela.padded-pool-of-wide-stride
    "AVG_POOL2D": Limits(POOL),
    "REDUCE_SUM": Limits({"extent": upto(65536)}),  # vela.long-sum
}

TUNING = Tuning(
    most_reciprocal_tables=2,
    transpose="whole",
    transpose_conv="phases",
    crop="kernel",
    mean="AVG_POOL2D",
    largest_max_pool_in_turn_bytes=100_000,
    fewest_results_of_wide_stride=4096,
    turns_stored_transposes=True,
    fold_strides=FoldSquares(channels=16, least_places_int8=2048, least_places_int16=20_000),
    read_planes=ReadPlanes(most=4, fold=FoldColumns(channels=16, taps=1, least_products=0)),
    split_weights=SplitWeights(fewest_weights=32_000, most_slices=8, most_places=16),
    largest_selection=1024,
    repeats_channels=True,
    shuffles_by_nhwc=True,
    transpose_steps=TransposeCost(
        cycles_per_byte=0.77,
        step_cycles=2000,
        vela_cycles_per_byte=3.0,
        row=RowCost(cycles=10, narrow_cycles=2200, tall_cycles=3.2, wide_cycles=0.7, short_bytes=64),
    ),
    tile_steps=TileCost(cycles_per_copy=800, cycles_per_byte=1),
    smallest_rescale_by_depthwise=2048,
    tables_by_depthwise=True,
)

U85 = Family("u85", "EthosU85", "Ethos_U85_SYS_DRAM_Mid", "Sram_Only", 40, 16, LIMITS, TUNING, ("int16", "int4", "cf"))
