"""Command streams and constants, prepared once and shared by machines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np

from ethorch.npu import ops, stream
from ethorch.npu.arrays import Array, Bytes
from ethorch.npu.memo import Memo
from ethorch.npu.prepared import PREPARE, Step
from ethorch.npu.registers import Npu
from ethorch.npu.stream import Command, Operation
from ethorch.support.errors import MachineFault

assert ops  # importing it fills PREPARE


def _read_only(constants: bytes | Array) -> Bytes:
    if isinstance(constants, np.ndarray):
        array = np.ascontiguousarray(constants).reshape(-1).view(np.uint8).view()
    else:
        array = np.frombuffer(bytes(constants), np.uint8)
    array.flags.writeable = False
    return array


class Program:
    """A driver payload (COP1 or COP2) and the bytes of region 0.

    Instances are immutable and thread-safe. Decoded weights, prepared operations and plans are cached.

    Raises:
        MachineFault: The payload is malformed, or its NPU does not support a command.
    """

    def __init__(self, command_stream: bytes, constants: bytes | Array = b""):
        payload = bytes(command_stream)
        self.header = stream.parse_header(payload)
        self.commands = stream.commands(payload, self.header)
        self.constants = _read_only(constants)
        self.at_offset = {c.offset: c.index for c in self.commands}
        self.has_branches = any(c.row.name == "NPU_OP_BRANCH" for c in self.commands)
        self.decoded: Memo[Any] = Memo()
        self.plans: Memo[Any] = Memo()
        self._steps: Memo[list[Step]] = Memo()
        self._step: Memo[Step] = Memo()

    @property
    def config(self) -> Npu:
        """The NPU for which the stream was compiled. ``config.name`` is its name, e.g. ``ethos-u55-128``."""
        return self.header.npu

    def with_constants(self, constants: bytes | Array) -> Program:
        """Return a copy of the program with the given constants. The copy shares the prepared operations."""
        program = copy(self)
        program.constants = _read_only(constants)
        program.decoded, program.plans = Memo(), Memo()
        return program

    def operations(self) -> Iterator[Operation]:
        """Iterate over the operations in stored order, as if no branch were taken.

        Read an operation's registers before the next iteration, because later reads are slow.
        """
        return stream.operations(self.config, self.commands)

    def steps(self) -> list[Step]:
        """Return the prepared operations before NPU_OP_STOP. The stream must not have branches."""

        def make() -> list[Step]:
            steps: list[Step] = []
            for op in stream.operations(self.config, self.commands):
                if op.name == "NPU_OP_STOP":
                    return steps
                steps.append(self._prepare(op))
            raise MachineFault("the stream ends without NPU_OP_STOP")

        return self._steps.get("all", make)

    @cached_property
    def work(self) -> int:
        """The work units of one run. The stream must not have branches."""
        return sum(step.prepared.work for step in self.steps())

    def step(self, command: Command, state: dict[str, int]) -> Step:
        """Prepare one operation of a stream with branches, from the registers in ``state``."""
        key = command.index, tuple(state.values())
        return self._step.get(key, lambda: self._prepare(stream.operation(self.config, command, dict(state))))

    def _prepare(self, op: Operation) -> Step:
        prepare = PREPARE.get((op.name, self.config.family))
        assert prepare is not None, op.name
        try:
            prepared = prepare(op)
            blocks = 0
            if prepared.computes:
                axes = ("HEIGHT", "WIDTH", "DEPTH")
                blocks = math.prod(-(-op[f"OFM_{axis}"] // op[f"OFM_BLK_{axis}"]) for axis in axes)
            return Step(op, prepared, blocks)
        except MachineFault as fault:
            raise op.locate(fault) from fault
