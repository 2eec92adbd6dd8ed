"""Constants of a stream put elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import ethorch
from ethorch import npu
from ethorch.formats.payload import DelegatePayload
from ethorch.npu.relocate import constants_of, relocate
from ethorch.program.program import record_of
from ethorch.support.errors import MachineFault


class Net(nn.Module):
    """Weights, scales, a table of an activation, a table that is looked up, a constant that is added."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.words = nn.Linear(96, 200), nn.Linear(200, 96), nn.Embedding(50, 96)
        self.register_buffer("shift", torch.randn(4, 96))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return self.b(torch.sigmoid(self.a(x))) + self.words(at) + self.shift


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 96), torch.randint(0, 50, (4,), dtype=torch.int32)


@pytest.fixture(scope="module", params=["ethos-u55-128", "ethos-u65-512", "ethos-u85-256", "ethos-u85-1024"])
def payload(request: pytest.FixtureRequest) -> DelegatePayload:
    torch.manual_seed(0)
    program = ethorch.compile(Net().eval(), inputs(), request.param, calibration=[inputs() for _ in range(4)])
    return record_of(program).payloads[0]


def outputs(payload: DelegatePayload) -> list[bytes]:
    """Of inputs that are the same each time."""
    program = npu.Program(payload.commands, payload.weights)
    machine = npu.Machine(program, payload.scratch_bytes, npu.staging_bytes(program))
    scratch = machine.region(1)
    for tensor in payload.inputs:
        data = np.arange(tensor.nbytes) % 50 if tensor.element_size == 1 else np.arange(tensor.nbytes // 4, dtype=np.int32) * 7 % 50
        scratch[tensor.offset : tensor.offset + tensor.nbytes] = data.astype(
            np.uint8 if tensor.element_size == 1 else np.int32
        ).view(np.uint8)
    machine.run()
    return [scratch[t.offset : t.offset + t.nbytes].tobytes() for t in payload.outputs]


def test_the_pieces_are_all_that_is_read(payload: DelegatePayload) -> None:
    """Bytes between the pieces may be anything."""
    found = constants_of(payload.commands)
    assert found
    weights = bytearray(b"\xa5" * len(payload.weights))
    for start, stop in found:
        weights[start:stop] = payload.weights[start:stop]
    assert outputs(replace(payload, weights=bytes(weights))) == outputs(payload)


def test_the_same_bits_from_other_places(payload: DelegatePayload) -> None:
    """In turned order, and far behind each other."""
    weights, moves = bytearray(b"\x5a" * 4096), {}
    for start, stop in reversed(constants_of(payload.commands)):
        moves[start, stop] = len(weights)
        weights += payload.weights[start:stop]
        weights += bytes(-len(weights) % 16 + 1024)
    moved = replace(payload, commands=relocate(payload.commands, moves).payload, weights=bytes(weights))
    assert moved.commands != payload.commands
    assert outputs(moved) == outputs(payload)


def test_places_behind_four_gigabytes(payload: DelegatePayload) -> None:
    """Addresses have 40 bits, of which eight are in the command's first word."""
    far = 3 << 32
    moves = {piece: piece[0] + far for piece in constants_of(payload.commands)}
    moved = relocate(payload.commands, moves).payload
    assert {start for start, _ in constants_of(moved)} == set(moves.values())
    back = {piece: piece[0] - far for piece in constants_of(moved)}
    returned = relocate(moved, back).payload  # which may still contain the register writes that far addresses need
    assert constants_of(returned) == constants_of(payload.commands)
    assert outputs(replace(payload, commands=returned)) == outputs(payload)


def test_what_is_no_stream_is_refused() -> None:
    with pytest.raises(MachineFault, match="starts with COP1 or COP2"):
        constants_of(b"COPY")
