"""The ctypes structs of ``cpp/plan.h``. ``library`` compares their sizes with those of the compiled structs."""

from __future__ import annotations

from ctypes import Structure, c_int32, c_int64, c_void_p
from typing import Any

REGIONS = 10
INTERNAL_INDEX, OWN_INDEX = 8, 9  # internal memory, and memory of the plan that persists between steps

Fields = list[tuple[str, Any]]


def _ints(names: str) -> Fields:
    return [(name, c_int32) for name in names.split()]


def _longs(names: str) -> Fields:
    return [(name, c_int64) for name in names.split()]


def _pointers(names: str) -> Fields:
    return [(name, c_void_p) for name in names.split()]


class Tile(Structure):
    _fields_ = [*_ints("y x height width"), *_longs("base")]


class Map(Structure):
    _fields_ = [
        *_ints("region tiles bricks bytes is_signed height width depth"),
        *_longs("zero_point sy sx sc"),
        ("tile", Tile * 4),
    ]


class Scale(Structure):
    _fields_ = [*_pointers("multiplier shift above below"), *_ints("per_channel is_identity symmetric pad")]


class DoubleScale(Structure):
    _fields_ = [*_pointers("factor above below"), *_ints("per_channel symmetric")]


class Stage(Structure):
    _fields_ = [
        ("out", Map),
        ("ifm2", Map),
        *_ints("height width depth mode"),
        ("axis", c_int32 * 3),
        *_ints("reverse whole turned adds_kept adds_ifm2 keeps clamps table entry_bytes entry_signed pad"),
        *_longs("low high table_address table_bytes table_origin kept"),
        *_pointers("built_in offset bias"),
        ("scale", Scale),
        ("scaled", DoubleScale),
    ]


class Window(Structure):
    _fields_ = [("input", Map), *_ints("kh kw sy sx dy dx top left size_h size_w padded_w upscale")]


class Copy(Structure):
    _fields_ = [*_ints("from_region to_region"), *_longs("source target bytes")]


class Transfer(Structure):
    _fields_ = [
        *_ints("from_region to_region index_region by_source by_target pad"),
        *_longs("length inner outer source source_inner source_outer target target_inner target_outer"),
        *_longs("index index_outer limit source_size target_size index_size"),
    ]


class Conv(Structure):
    _fields_ = [
        ("window", Window),
        ("stage", Stage),
        *_pointers("weights start"),
        *_ints("element flip padded_depth chunk"),
    ]


class Depthwise(Structure):
    _fields_ = [("window", Window), ("stage", Stage), *_pointers("weights start"), *_ints("sum padded_depth")]


class Product(Structure):
    _fields_ = [("window", Window), ("weights", Map), ("stage", Stage), *_ints("wide element flip padded_depth")]


class Pool(Structure):
    _fields_ = [("window", Window), ("stage", Stage), *_ints("kind wide"), *_pointers("multiplier shift"), *_longs("fill")]


class Operand(Structure):
    _fields_ = [("map", Map), *_ints("is_constant spread"), *_longs("constant"), ("scale", Scale), ("scaled", DoubleScale)]


class Elementwise(Structure):
    _fields_ = [
        ("a", Operand),
        ("b", Operand),
        ("stage", Stage),
        *_pointers("pairs"),
        *_ints("what operands wide wraps rounds want"),
        *_longs("mask"),
    ]


class Resize(Structure):
    _fields_ = [
        ("input", Map),
        ("stage", Stage),
        *_ints("mode pad"),
        *_longs("row_n column_n"),
        *_pointers("row0 row1 row_part column0 column1 column_part"),
    ]


class Move(Structure):
    _fields_ = [("input", Map), ("stage", Stage)]


class Dot(Structure):
    _fields_ = [("a", Map), ("b", Map), ("stage", Stage), *_ints("spread depth add pad")]


class Nothing(Structure):
    """An operation that does nothing, because another operation does its work."""

    _fields_ = _ints("pad")


class Step(Structure):
    _fields_ = [*_ints("kind pad"), *_pointers("what")]


class Machine(Structure):
    _fields_ = [("region", c_void_p * REGIONS)]


class Place(Structure):
    _fields_ = [*_pointers("images"), *_longs("bytes offset"), *_ints("region pad")]


# In the order in which the library reports their sizes.
SIZED: tuple[type[Structure], ...] = (
    Map, Stage, Window, Copy, Transfer, Conv, Depthwise, Product, Pool, Elementwise, Resize, Move, Dot, Step, Machine, Place,
)  # fmt: skip

# Step.kind by struct type.
KINDS: dict[type[Structure], int] = {
    kind: number
    for number, kind in enumerate((Copy, Transfer, Conv, Depthwise, Product, Pool, Elementwise, Resize, Move, Dot, Nothing))
}

TABLE_NONE, TABLE_DIRECT, TABLE_16_16, TABLE_16_32, TABLE_TANH, TABLE_SIGMOID = range(6)
SCALE_INTEGER, SCALE_DOUBLE, SCALE_NOTHING, SCALE_LONG = range(4)
SUM_FLOAT, SUM_INT32, SUM_INT64 = range(3)
POOLS = ("SUM", "AVERAGE", "MAX", "MIN", "REDUCE_SUM", "NONE", "ARGMAX_Y", "ARGMAX_X")
FUNCTIONS = (
    "ADD", "SUB", "MUL", "MIN", "MAX", "LRELU", "ABS", "CLZ", "SHR", "SHL", "LSR", "DIV", "CMP_EQ", "CMP_NE", "CMP_GE", "CMP_GT",
    "AND", "OR", "XOR", "NOT", "AND_NOT",
)  # fmt: skip
WANT_NOTHING, WANT_SHIFT, WANT_DIVISOR = range(3)
