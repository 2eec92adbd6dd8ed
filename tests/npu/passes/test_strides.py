"""Layouts of maps whose elements have given addresses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ethorch.npu.feature_map import STORAGE_TILE2X2, FeatureMap
from ethorch.npu.ir import Op
from ethorch.npu.passes.strides import AddressTable, iterate_layouts
from ethorch.npu.registers import find_npu

NPU = find_npu("ethos-u85-256")
NHCWB16 = 1 << 6
SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 40))
Size = tuple[int, int, int]


def create_map(
    shape: tuple[int, int, int],
    strides: tuple[int, int, int],
    base: int = 0,
    bricks: bool = False,
    size: int = 1,
    name: str = "IFM",
) -> FeatureMap:
    dtype = np.dtype(f"<i{size}")
    return FeatureMap(name, 1, dtype, *shape, (base, 0, 0, 0), strides, (shape[0], shape[0], shape[1]), bricks, 0, STORAGE_TILE2X2)


def list_layouts(fm: FeatureMap, addresses: np.ndarray, place: FeatureMap) -> list[dict[str, int]]:
    registers = {f"{fm.name}_PRECISION": NHCWB16 * fm.bricks}
    return list(iterate_layouts(Op(NPU, "NPU_OP_POOL", 0, registers, 0), fm, addresses, place))


@given(SHAPES, st.integers(0, 9), st.booleans(), st.sampled_from((1, 2, 4)), st.permutations(range(3)), st.integers(0, 3))
def test_the_layout_of_a_map_is_found(shape: Size, base: int, bricks: bool, size: int, order: list[int], gap: int) -> None:
    """Layouts with the axes in any order, and gaps between rows, columns and bricks."""
    unit, extents = (16 * size, (shape[0], shape[1], -(-shape[2] // 16))) if bricks else (shape[2] * size, (*shape[:2], 1))
    strides, step = [0, 0, 0], unit
    for axis in order:
        strides[axis] = step + 16 * gap * size
        step = strides[axis] * extents[axis]
    fm = create_map(shape, (strides[0], strides[1], strides[2]), 16 * base * size, bricks, size)
    found = list_layouts(fm, fm.addresses(), fm)
    assert found
    for layout in found:
        steps = (layout["IFM_STRIDE_Y"], layout["IFM_STRIDE_X"], layout["IFM_STRIDE_C"])
        is_brick = bool(layout["IFM_PRECISION"] & NHCWB16)
        again = create_map(shape, steps, layout["IFM_BASE0"], is_brick, size)
        np.testing.assert_array_equal(again.addresses(), fm.addresses())


def test_addresses_that_no_strides_describe_have_no_layout() -> None:
    fm = create_map((2, 4, 8), (32, 8, 1))
    assert list_layouts(fm, fm.addresses()[:, ::-1], fm) == []
    assert list_layouts(fm, np.ascontiguousarray(fm.addresses().reshape(2, 8, 4).transpose(0, 2, 1)), fm) == []


@pytest.mark.parametrize(("name", "count"), [("IFM", 2), ("OFM", 1)])
def test_a_partial_brick_is_not_written_into_other_data(name: str, count: int) -> None:
    """The channels 24 to 31 of the target belong to another map."""
    fm = create_map((3, 5, 8), (40, 8, 1), name=name)
    target = create_map((3, 5, 24), (160, 32, 1))
    assert len(list_layouts(fm, target.addresses()[:, :, :8], target)) == count


def test_a_table_maps_the_elements_of_its_map() -> None:
    fm = create_map((2, 3, 4), (24, 8, 1), base=7)
    after = np.arange(24).reshape(2, 3, 4)
    table = AddressTable(fm, after)
    found = table.find(fm.addresses()[:, 1:])
    assert found is not None and np.array_equal(found, after[:, 1:])
    assert table.find(fm.addresses() + 4) is None and table.find(fm.addresses() - 8) is None
