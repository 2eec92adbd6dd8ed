"""Program: a command stream and its constants, prepared once and shared by every Machine that runs it."""

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
    """Region 0 as bytes that nobody writes."""
    if isinstance(constants, np.ndarray):
        found = np.ascontiguousarray(constants).reshape(-1).view(np.uint8).view()
    else:
        found = np.frombuffer(bytes(constants), np.uint8)
    found.flags.writeable = False
    return found


class Program:
    """A driver payload (COP1 or COP2) with the bytes of region 0.

    Immutable to its users. It keeps decoded weights (``decoded``), prepared operations and what ``plan`` makes of them
    (``plans``), and threads may share it.

    Raises:
        MachineFault: the payload is malformed, or holds a command that its NPU does not know.
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
        """The NPU the stream was made for; ``config.name`` is e.g. ``ethos-u55-128``."""
        return self.header.npu

    def with_constants(self, constants: bytes | Array) -> Program:
        """The same commands over other constants. What was prepared of the commands is shared, what was decoded is not."""
        other = copy(self)
        other.constants = _read_only(constants)
        other.decoded, other.plans = Memo(), Memo()
        return other

    def operations(self) -> Iterator[Operation]:
        """Every operation in stored order, as if no branch were taken. Its registers are quick to read until the next one
        is asked for.
        """
        return stream.operations(self.config, self.commands)

    def steps(self) -> list[Step]:
        """The whole stream, prepared, up to its NPU_OP_STOP; for streams without branches."""

        def make() -> list[Step]:
            result: list[Step] = []
            for op in stream.operations(self.config, self.commands):
                if op.name == "NPU_OP_STOP":
                    return result
                result.append(self._prepare(op))
            raise MachineFault("the stream ends without NPU_OP_STOP")

        return self._steps.get("all", make)

    @cached_property
    def work(self) -> int:
        """Work units of a run; for streams without branches."""
        return sum(step.prepared.work for step in self.steps())

    def step(self, command: Command, state: dict[str, int]) -> Step:
        """One operation under the given registers; for streams with branches."""
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
