"""What a machine needs of this desk's memory: at most four times its regions."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from bench.simulate import memory
from ethorch.errors import MachineFault
from ethorch.npu import Machine, Program
from ethorch.npu.machine import MOST_ARRAY, MOST_REGION_BYTES
from ethorch.payload import DelegatePayload, IoTensor
from tests.npu.fuzzing import STOP, payload
from tests.npu.graphs import Graph, compile_graph


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("target", ["u55-128", "u85-1024"])
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


def test_no_file_makes_a_machine_large():
    """Region sizes come from files; so does what is allowed in proportion to them."""
    program = Program(payload(STOP))
    with pytest.raises(MachineFault, match="region 1 of 4294967295 bytes"):
        Machine(program, 2**32 - 1)
    with pytest.raises(MachineFault, match="region 2"):
        Machine(program, 16, MOST_REGION_BYTES + 1)
    machine = Machine(program, MOST_REGION_BYTES)
    assert machine.largest_array <= MOST_ARRAY and machine.budget <= 1 << 41
    assert Machine(program, regions={1: np.zeros(MOST_REGION_BYTES + 16, np.uint8)}).region(1).size > MOST_REGION_BYTES
