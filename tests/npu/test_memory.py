"""Memory: what operations see of it, and what a machine needs of the host's: at most four times its regions."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from bench.simulate import memory
from ethorch.formats.payload import DelegatePayload, IoTensor
from ethorch.npu import Machine, Program
from ethorch.npu.feature_map import STORAGE_CHAINED, STORAGE_NONE, STORAGE_TILE2X2, FeatureMap
from ethorch.npu.machine import MOST_ARRAY
from ethorch.npu.memo import Memo
from ethorch.npu.memory import MOST_REGION_BYTES, Memory, Span
from ethorch.support.errors import MachineFault
from tests.helpers.npu_graphs import Graph, compile_graph
from tests.npu.fuzzing import STOP, payload


def memory_of(size: int) -> Memory:
    constants = np.arange(64, dtype=np.uint8)
    return Memory({0: constants, 1: np.zeros(size, np.uint8)}, constants, Memo())


def box(shape: tuple[int, int, int], base: int = 0, storage: int = STORAGE_TILE2X2, region: int = 1) -> FeatureMap:
    """An int16 map in NHWC."""
    h, w, c = shape
    return FeatureMap(
        "IFM", region, np.dtype("<i2"), h, w, c, (base,) * 4, (2 * w * c, 2 * c, 2), (h, h, w), bricks=False, zero_point=0,
        storage=storage,
    )  # fmt: skip


def test_boxes_are_views_of_a_region():
    m = memory_of(256)
    values = np.arange(-12, 12, dtype=np.int16).reshape(2, 3, 4)
    m.write(box((2, 3, 4), 16), values)
    assert np.array_equal(m.region(1)[16:64].view(np.int16), values.ravel())
    assert np.array_equal(m.read(box((2, 3, 4), 16)), values)
    assert m.written is not None and m.written.bases[0] == 16
    row = np.empty((1, 3, 4))
    m.read_rows(box((2, 3, 4), 16), 1, row)
    assert np.array_equal(row, values[1:])
    assert m.overlap(box((2, 3, 4), 16), box((1, 1, 2), 60)) and not m.overlap(box((2, 3, 4), 16), box((1, 1, 2), 64))
    with pytest.raises(MachineFault, match=r"IFM covers bytes 0xd8\.\.0x108 of region 1"):
        m.read(box((2, 3, 4), 216))
    with pytest.raises(MachineFault, match="accesses IFM, which is not stored in memory"):
        m.read(box((2, 3, 4), storage=STORAGE_NONE))


def test_chain_buffers_hold_one_box_each():
    m = memory_of(16)
    values = np.ones((2, 3, 4), np.int16)
    m.write(box((2, 3, 4), storage=STORAGE_CHAINED, region=5), values)
    assert np.array_equal(m.read(box((2, 3, 4), storage=STORAGE_CHAINED, region=5)), values)
    with pytest.raises(MachineFault, match=r"IFM: expected an array of shape \(2, 3, 5\) in chain buffer 5, got shape \(2, 3, 4\)"):
        m.read(box((2, 3, 5), storage=STORAGE_CHAINED, region=5))
    with pytest.raises(MachineFault, match="in chain buffer 4, got nothing"):
        m.read(box((2, 3, 4), storage=STORAGE_CHAINED, region=4))


def test_runs_of_bytes():
    m = memory_of(16)
    m.writable(Span("DST", 1, 8, 8))[...] = m.span(Span("SRC", 0, 56, 8))
    assert m.region(1).tolist() == [0] * 8 + list(range(56, 64))
    seen: list[Span] = []
    m.watch = seen.append
    m.writable(Span("DST", 1, 0, 4))
    assert seen == [Span("DST", 1, 0, 4)]
    with pytest.raises(MachineFault, match="DST writes to region 0"):
        m.writable(Span("DST", 0, 0, 4))
    with pytest.raises(MachineFault, match=r"DST covers bytes 0xc\.\.0x14 of region 1, which has 0x10 bytes"):
        m.writable(Span("DST", 1, 12, 8))


def test_accumulators_are_kept_by_shape():
    m = memory_of(16)
    with pytest.raises(MachineFault, match="got none"):
        m.read_accumulator((1, 2, 3))
    m.accumulator = np.zeros((1, 2, 3), np.int64)
    assert m.read_accumulator((1, 2, 3)) is m.accumulator
    with pytest.raises(MachineFault, match=r"expected accumulators of shape \(3, 2, 1\), got \(1, 2, 3\)"):
        m.read_accumulator((3, 2, 1))


def test_decoded_values_are_cached():
    m = memory_of(16)
    assert m.is_constant(0) and not m.is_constant(1) and not m.is_constant(2)
    assert [m.decode("a", lambda: "one"), m.decode("a", lambda: pytest.fail("again"))] == ["one", "one"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("target", ["u55-128", pytest.param("u85-1024", marks=pytest.mark.long)])
def test_memory_of_a_network(target):
    """Like a small mobilenet's parts: wide feature maps first, the weights of a classifier last."""
    g = Graph(1)
    x = g.conv(g.input(1, 112, 112, 3), 32, pad=(0, 1, 0, 1), stride=(2, 2))
    x = g.conv(x, 1, pad=(1, 1, 1, 1), depthwise=True)
    x = g.conv(x, 64, kernel=(1, 1))
    x = g.conv(x, 160, kernel=(2, 2), stride=(2, 2))
    for depth in (192, 320):
        x = g.conv(x, depth, kernel=(2, 2), stride=(2, 2))
    x = g.conv(x, 256, pad=(0, 0, 0, 0))
    x = g.conv(x, 1280, kernel=(1, 1))
    for _ in range(3):
        x = g.conv(x, 1000, kernel=(1, 1))
    g.output(g.conv(x, 1000, kernel=(1, 1)))
    model = compile_graph(g.serialize(), target)
    inputs, outputs = (
        tuple(IoTensor(tuple(t.shape), t.element_size, t.address) for t in ts) for ts in (model.inputs, model.outputs)
    )
    constants = bytes(np.frombuffer(model.read_only.data, np.uint8))
    needs = memory([DelegatePayload(model.command_stream, constants, model.scratch.size, inputs, outputs)])
    assert needs["region_bytes"] > 4 << 20
    assert needs["memory_bytes"] <= 4 * needs["region_bytes"]
    assert needs["image_bytes"] <= min(model.scratch.size, 2 * needs["io_bytes"])  # of each further image of a batch


def test_no_file_makes_a_machine_large():
    """Region sizes come from files; so does what is allowed in proportion to them."""
    program = Program(payload(STOP))
    with pytest.raises(MachineFault, match="region 1 has 4294967295 bytes"):
        Machine(program, 2**32 - 1)
    with pytest.raises(MachineFault, match="region 2"):
        Machine(program, 16, MOST_REGION_BYTES + 1)
    machine = Machine(program, MOST_REGION_BYTES)
    assert machine.largest_array <= MOST_ARRAY and machine.budget <= 1 << 41
    assert Machine(program, regions={1: np.zeros(MOST_REGION_BYTES + 16, np.uint8)}).region(1).size > MOST_REGION_BYTES
