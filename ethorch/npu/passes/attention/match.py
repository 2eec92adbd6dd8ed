"""Find the matrix products in a stream for U55 or U65.

Source: InsertMatMulCommand in ethos_u55_register_cs_generator.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.ir import Op
from ethorch.npu.passes.attention.blocks import shares_tables

_MUL, _REDUCE_SUM = 0, 2
_BROADCAST_WIDTH = 2  # IFM2_BROADCAST: one column of the second operand for all columns of the first
_SIGNED_BYTES = 1  # PRECISION: int8, NHWC, no scale
_NO_SCALE = 1  # OFM_SCALE: multiplier 1, shift 0
_RESULTS = (np.dtype("i1"), np.dtype("<i2"), np.dtype("<i4"))
#: Registers in which the columns of a product differ.
_OF_COLUMNS = ("IFM2_BASE0", "BLOCKDEP"), ("OFM_BASE0", "BLOCKDEP")


@dataclass(frozen=True)
class Matrix:
    """The location of an operand or result, which has one matrix per batch. Strides are in bytes."""

    region: int
    base: int
    batch_stride: int
    row_stride: int
    zero_point: int
    item_bytes: int = 1


@dataclass(frozen=True)
class Product:
    """The product ``ofm[b, m, n] = sum over k of a[b, m, k] * b[b, n, k]``."""

    positions: tuple[int, ...]  # of the kernels in the stream
    batches: int
    rows: int
    columns: int
    depth: int
    a: Matrix
    b: Matrix
    ofm: Matrix
    output: Op  # first sum, with the scale and activation of the result
    scratch: tuple[int, int, int]  # region, first and end address of the terms of the sum

    @property
    def first(self) -> int:
        return self.positions[0]

    @property
    def last(self) -> int:
        return self.positions[-1]


def find_products(ops: Sequence[Op]) -> Iterator[Product]:
    kernels = [position for position, op in enumerate(ops) if not op.is_dma]
    at = 0
    while at + 1 < len(kernels):
        product = _read_column(ops, kernels[at], kernels[at + 1])
        at += 1 if product is None else 2
        while product is not None and at + 1 < len(kernels):
            longer = _append_column(ops, product, kernels[at], kernels[at + 1])
            if longer is None:
                break
            product, at = longer, at + 2
        if product is not None and product.columns > 1:
            yield product


def _read_column(ops: Sequence[Op], mul_position: int, sum_position: int) -> Product | None:
    mul, total = ops[mul_position], ops[sum_position]
    if (mul.name, mul.parameter, total.name, total.parameter) != ("NPU_OP_ELEMENTWISE", _MUL, "NPU_OP_POOL", _REDUCE_SUM):
        return None
    if mul.registers["IFM2_BROADCAST"] != _BROADCAST_WIDTH or mul.registers["OFM_SCALE"] != _NO_SCALE:
        return None
    if any(mul.registers[f"{name}_PRECISION"] != _SIGNED_BYTES for name in ("IFM", "IFM2")):
        return None
    maps = [{fm.name: fm for fm in op.prepared.maps} for op in (mul, total)]
    a, b, products = (maps[0][name] for name in ("IFM", "IFM2", "OFM"))
    summed, ofm = (maps[1][name] for name in ("IFM", "OFM"))
    is_plain = all(len(fm.tiles) == 1 and not fm.bricks for fm in (a, b, products, summed, ofm))
    is_linked = _describe(summed) == _describe(products)
    if not is_plain or not is_linked or products.dtype != np.dtype("<i4") or ofm.dtype not in _RESULTS:
        return None
    if shares_tables(mul.npu) and total.registers["ACTIVATION"]:
        return None  # kernels before the convolution would overwrite its table
    if products.zero_point or total.registers["ACC_FORMAT"] or not total.values["OFM_PRECISION.scale_mode"]:
        return None
    ((low, high),) = products.extents()
    batches, rows, depth = a.shape
    return Product(
        positions=(mul_position, sum_position),
        batches=batches,
        rows=rows,
        columns=1,
        depth=depth,
        a=_read_matrix(a, a.strides[1]),
        b=_read_matrix(b, 0),
        ofm=_read_matrix(ofm, ofm.strides[1]),
        output=total,
        scratch=(products.region, low, high),
    )


def _describe(fm: FeatureMap) -> tuple[object, ...]:
    return fm.region, fm.dtype, fm.shape, fm.bases[0], fm.strides, fm.zero_point


def _read_matrix(fm: FeatureMap, row_stride: int) -> Matrix:
    return Matrix(fm.region, fm.bases[0], fm.strides[0], row_stride, fm.zero_point, fm.dtype.itemsize)


def _append_column(ops: Sequence[Op], product: Product, mul_position: int, sum_position: int) -> Product | None:
    mul, total = ops[mul_position], ops[sum_position]
    for op, earlier, different in zip((mul, total), (ops[product.first], product.output), _OF_COLUMNS, strict=True):
        if (op.name, op.parameter) != (earlier.name, earlier.parameter):
            return None
        if any(raw != earlier.registers[name] for name, raw in op.registers.items() if name not in different):
            return None
    step = mul.registers["IFM2_BASE0"] - product.b.base
    row_stride = product.b.row_stride if product.columns > 1 else step
    is_next = step > 0 and step == product.columns * row_stride
    if not is_next or total.registers["OFM_BASE0"] != product.ofm.base + product.columns * product.ofm.item_bytes:
        return None
    b = replace(product.b, row_stride=row_stride)
    return replace(product, positions=(*product.positions, mul_position, sum_position), columns=product.columns + 1, b=b)
