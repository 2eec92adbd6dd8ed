"""A stream with branches: what it touches is known only within bounds, and it runs on the board as on the desk."""

from __future__ import annotations

import numpy as np
import torch

from ethorch import EthosUCompileSpec, EthosUPartitioner
from ethorch.deploy.virtual_board import npu_registers as regs
from ethorch.deploy.virtual_board.extents import reachable
from ethorch.deploy.virtual_board.guest import Guest
from ethorch.deploy.virtual_board.npu_device import NpuDevice
from ethorch.formats import pte
from ethorch.formats.payload import DelegatePayload
from ethorch.npu import Machine, Program
from ethorch.targets import boards
from tests.deploy.virtual_board import support as s
from tests.deploy.virtual_board.test_npu_device import Session
from tests.helpers.quantized import lower
from tests.lower.test_control_flow import Convolutions, paths, with_branches

TARGET = "ethos-u85-256"


def payload() -> DelegatePayload:
    spec = EthosUCompileSpec(TARGET)
    buffer = lower(with_branches(Convolutions, spec), paths(Convolutions)[0], EthosUPartitioner(spec))
    (method,) = pte.read(buffer).methods.values()
    return DelegatePayload.unpack(method.delegates[0].blob)


def test_both_ways_of_a_condition() -> None:
    torch.manual_seed(0)
    found = payload()
    program = Program(found.commands, found.weights)
    assert program.has_branches
    bounds = reachable(program)
    assert bounds[1].end <= found.scratch_bytes + 4096
    which = boards.load("corstone-320")
    session, guest, (slot, npu) = Session(), Guest(which), which.npu(TARGET)
    device = NpuDevice(session, npu, slot, guest)
    for address, content in ((s.STREAM, found.commands), (s.WEIGHTS, found.weights)):
        place = guest.bytes_at(address, len(content))
        assert place is not None
        place[:] = np.frombuffer(content, np.uint8)
    header = program.header
    results = []
    for condition in (0, 1):
        desk = Machine(program, found.scratch_bytes)
        arena = guest.bytes_at(s.ARENA, found.scratch_bytes)
        assert arena is not None
        for memory in (desk.region(1), arena):
            memory[:] = 0
            for number, entry in enumerate(found.inputs):
                values = np.random.default_rng(number).integers(0, 256, entry.nbytes).astype(np.uint8)
                memory[entry.offset : entry.offset + entry.nbytes] = condition if entry.nbytes == 1 else values
        desk.run()
        device.write(regs.RESET, 0)
        for offset, value in (
            (regs.QBASE, s.STREAM + header.start),
            (regs.QSIZE, header.stop - header.start),
            (regs.QCONFIG, 2),
            (regs.BASEP, s.WEIGHTS),
            (regs.BASEP + 8, s.ARENA),
            (regs.BASEP + 16, s.STAGING),
            (regs.REGIONCFG, 0x13),
            (regs.ATTRIBUTES + 8, 4),
            (regs.ATTRIBUTES + 12, 4),
            (regs.CMD, regs.CMD_RUN),
        ):
            device.write(offset, value)
        device.finish()
        assert session.reports == []
        out = found.outputs[0]
        part = slice(out.offset, out.offset + out.nbytes)
        assert arena[part].tobytes() == desk.region(1)[part].tobytes()
        results.append(arena[part].tobytes())
    assert results[0] != results[1]
    assert all(inference.cycles > 0 and inference.macs > 0 for inference in device.inferences)
