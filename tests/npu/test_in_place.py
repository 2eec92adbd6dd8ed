"""Inputs that a command stream reads where they lie."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import ethorch
from ethorch import npu
from ethorch.formats.payload import DelegatePayload
from ethorch.npu.in_place import Inputs, Window
from ethorch.npu.stream_writer import DMA_REGISTERS, operation, with_commands, write_register
from ethorch.program.program import record_of
from ethorch.support.errors import MachineFault

TARGETS = ["ethos-u55-128", "ethos-u85-256"]


class Net(nn.Module):
    """Reads ``past`` as it is, joined to something, and by a matrix product; U85 picks rows of it, too."""

    def __init__(self, gathers: bool) -> None:
        super().__init__()
        self.gathers, self.a, self.b = gathers, nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, past: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(self.a(x) @ past.transpose(1, 2), -1) @ past
        z = self.b(torch.cat([past[:, 1:], x], 1)).mean(1, keepdim=True) + torch.relu(past[:, 3:4]) + y
        return z + past[:, at] if self.gathers else z


@cache
def payload(target: str) -> DelegatePayload:
    torch.manual_seed(0)
    gathers = "u85" in target

    def sample() -> tuple[torch.Tensor, ...]:
        return torch.randn(1, 1, 16), torch.randn(1, 24, 16), torch.randint(0, 24, (1,), dtype=torch.int32)

    net, keep = Net(gathers).eval(), slice(None) if gathers else slice(2)
    if not gathers:
        net.forward = lambda x, past: Net.forward(net, x, past, None)  # type: ignore[arg-type, assignment]
    samples = [sample()[keep] for _ in range(4)]
    (found,) = record_of(ethorch.compile(net, samples[0], target, calibration=samples, progress=False)).payloads
    return found


def windows(found: DelegatePayload) -> list[Window]:
    return [Window(tensor.offset, tensor.offset + tensor.nbytes) for tensor in found.inputs]


def outputs(found: DelegatePayload, commands: bytes, elsewhere: Sequence[int] = (), places: Sequence[int] = ()) -> list[bytes]:
    """Of inputs that are the same each time; some of them lie in region 3, and in their windows lie other bytes."""
    program = npu.Program(commands, found.weights)
    machine = npu.Machine(program, found.scratch_bytes, npu.staging_bytes(program), regions={3: np.zeros(4096, np.uint8)})
    machine.region(1)[...] = 0x55
    for number, tensor in enumerate(found.inputs):
        data = np.arange(tensor.nbytes, dtype=np.uint8) * 7 % 120 if tensor.element_size == 1 else np.array([5, 0, 0, 0], np.uint8)
        there = number in elsewhere
        start = places[list(elsewhere).index(number)] if there else tensor.offset
        machine.region(3 if there else 1)[start : start + tensor.nbytes] = data
    machine.run()
    return [machine.region(1)[t.offset : t.offset + t.nbytes].tobytes() for t in found.outputs]


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_bits_with_inputs_elsewhere(target: str) -> None:
    found = payload(target)
    inputs = Inputs(found.commands, found.scratch_bytes, windows(found))
    numbers = range(len(found.inputs))
    assert inputs.readable == (True,) * len(numbers)
    usual = outputs(found, found.commands)
    for elsewhere in ([1], list(numbers)):
        places = [(64 + 1024 * k) + windows(found)[n].start % 16 for k, n in enumerate(elsewhere)]
        commands, _ = inputs.elsewhere({n: (3, place) for n, place in zip(elsewhere, places, strict=True)})
        assert commands != found.commands and outputs(found, commands, elsewhere, places) == usual
        if len(elsewhere) == 1:
            assert outputs(found, found.commands, elsewhere, places) != usual  # the old stream does not look there
    assert inputs.scratch_end([]) <= found.scratch_bytes and inputs.scratch_end(numbers) <= inputs.scratch_end([])
    for region, place in ((2, 64), (3, 72)):
        with pytest.raises(MachineFault, match=r"cannot move input 1 to byte .*; expected an odd region"):
            inputs.elsewhere({1: (region, place + windows(found)[1].start % 16)})


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_partly_written_over_is_no_input_to_be_read_in_place(target: str) -> None:
    found = payload(target)
    program, past = npu.Program(found.commands), windows(found)[1]

    def overwritten(start: int, size: int) -> tuple[bool, ...]:
        """With a transfer in front of all that writes there."""
        npu_, words = program.config, list[int]()
        for name, value in zip(DMA_REGISTERS, (1, 1, past.stop, start, size), strict=True):
            words += write_register(npu_, name, value)
        words += operation(npu_, "NPU_OP_DMA_START") + operation(npu_, "NPU_OP_DMA_WAIT")
        for name in DMA_REGISTERS:
            words += write_register(npu_, name, 0)
        header = program.header
        words += struct.unpack_from(f"<{(header.stop - header.start) // 4}I", found.commands, header.start)
        commands = with_commands(found.commands, words)
        return Inputs(commands, found.scratch_bytes + 512, windows(found)).readable

    assert overwritten(found.scratch_bytes + 16, 256)[1]
    assert not overwritten(past.start + 64, 16)[1]  # a row of it
    assert overwritten(past.start, past.stop - past.start)[1]  # nothing of the input is left, and nothing reads it
    with pytest.raises(MachineFault, match="scratch region"):
        overwritten(found.scratch_bytes + 500, 256)


def test_windows_that_are_none_are_not_read_in_place() -> None:
    found = payload(TARGETS[0])
    past = windows(found)[1]
    for wrong in (Window(-16, 0), Window(past.start, found.scratch_bytes + 16), Window(past.stop, past.start)):
        assert Inputs(found.commands, found.scratch_bytes, [wrong]).readable == (False,)
    assert True not in Inputs(found.commands, found.scratch_bytes, [past, Window(past.start + 16, past.stop)]).readable[1:]


class Step(nn.Module):
    """A state that is read, then written; one that the operation that writes it reads; and a result."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, past: torch.Tensor, sum: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(self.a(past)) + x
        return y, torch.tanh(self.b(y)), sum + x


@pytest.mark.parametrize("target", TARGETS)
def test_an_output_takes_the_place_of_an_input_that_has_been_read(target: str) -> None:
    torch.manual_seed(0)
    samples = [(torch.randn(1, 4, 16), torch.randn(1, 4, 16), torch.randn(1, 4, 16)) for _ in range(4)]
    (found,) = record_of(ethorch.compile(Step().eval(), samples[0], target, calibration=samples, progress=False)).payloads
    given = [Window(tensor.offset, tensor.offset + tensor.nbytes) for tensor in found.outputs]
    inputs = Inputs(found.commands, found.scratch_bytes, windows(found), outputs=given)
    assert inputs.readable == inputs.writable == (True,) * 3
    assert inputs.follows(1, 1) and not inputs.follows(2, 2)  # an operation reads ``sum`` while it writes it
    place = 512 + given[1].start % 16
    assert given[1].start % 16 == windows(found)[1].start % 16
    _, program = inputs.elsewhere({1: (3, place)}, {1: (3, place)})
    usual, memory = npu.Program(found.commands, found.weights), np.zeros(1024, np.uint8)
    machines = [
        npu.Machine(usual, found.scratch_bytes, npu.staging_bytes(usual)),
        npu.Machine(program.with_constants(found.weights), found.scratch_bytes, npu.staging_bytes(program), regions={3: memory}),
    ]
    data = [np.arange(tensor.nbytes, dtype=np.uint8) * 5 % 120 for tensor in found.inputs]
    memory[place : place + found.inputs[1].nbytes] = data[1]
    for _ in range(3):
        results = []
        for machine in machines:
            scratch = machine.region(1)
            for n, tensor in enumerate(found.inputs):
                scratch[tensor.offset : tensor.offset + tensor.nbytes] = 0x55 if machine is machines[1] and n == 1 else data[n]
            machine.run()
            results.append([scratch[t.offset : t.offset + t.nbytes].copy() for t in found.outputs])
        results[1][1] = memory[place : place + found.outputs[1].nbytes]
        assert all(np.array_equal(one, other) for one, other in zip(*results, strict=True))
        assert not np.array_equal(results[0][1], data[1])
        data[1] = results[0][1]
    with pytest.raises(MachineFault, match="cannot move output 1 to byte"):
        inputs.elsewhere({}, {1: (3, place + 8)})
