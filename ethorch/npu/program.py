"""Program: a command stream and its constants, prepared once and shared by every machine that runs it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ethorch.errors import MachineFault
from ethorch.npu import ops, stream
from ethorch.npu.kernel import PREPARE, Kernel
from ethorch.npu.registers import Npu
from ethorch.npu.stream import Command, Operation

assert ops  # importing it fills PREPARE


@dataclass(frozen=True, eq=False)
class Step:
    """An operation, the kernel it became, and the OFM blocks that hardware cuts it into."""

    op: Operation
    kernel: Kernel
    blocks: int = 0


@dataclass(eq=False)
class _Memo:
    """Values by key; each is made once, also when threads ask at the same time."""

    values: dict[Hashable, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        with self.lock:
            if key not in self.values:
                self.values[key] = make()
            return self.values[key]


class Program:
    """A driver payload (COP1 or COP2) with the bytes of region 0.

    Immutable to its users; decoded weights and prepared operations are kept, so threads may share one Program.
    Raises MachineFault where the payload is malformed or holds a command its NPU does not know.
    """

    def __init__(self, command_stream: bytes, constants: bytes | np.ndarray = b""):
        payload = bytes(command_stream)
        self.header = stream.parse_header(payload)
        self.commands = stream.commands(payload, self.header)
        if isinstance(constants, np.ndarray):
            self.constants = np.ascontiguousarray(constants).reshape(-1).view(np.uint8)
        else:
            self.constants = np.frombuffer(bytes(constants), np.uint8)
        self.constants = self.constants.view()
        self.constants.flags.writeable = False
        self.at_offset = {c.offset: c.index for c in self.commands}
        self.has_branches = any(c.row.name == "NPU_OP_BRANCH" for c in self.commands)
        self._weights = _Memo()
        self._steps = _Memo()

    @property
    def config(self) -> Npu:
        """The NPU the stream was made for; ``config.name`` is e.g. ``ethos-u55-128``."""
        return self.header.npu

    def operations(self) -> Iterator[Operation]:
        """Every operation in stored order, with its registers (branches not taken), which are quick to read until the
        next one is asked for.
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

    def step(self, command: Command, state: dict[str, int]) -> Step:
        """One operation under the given registers; for streams with branches."""
        key = command.index, tuple(state.values())
        return self._steps.get(key, lambda: self._prepare(stream.operation(self.config, command, dict(state))))

    def _prepare(self, op: Operation) -> Step:
        prepare = PREPARE.get((op.name, self.config.family))
        assert prepare is not None, op.name
        try:
            kernel = prepare(op)
            blocks = 0
            if kernel.is_kernel:
                axes = ("HEIGHT", "WIDTH", "DEPTH")
                blocks = math.prod(-(-op[f"OFM_{axis}"] // op[f"OFM_BLK_{axis}"]) for axis in axes)
            return Step(op, kernel, blocks)
        except MachineFault as fault:
            raise op.locate(fault) from fault

    def remember(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """A value derived from the stream and constants, made once per key."""
        return self._weights.get(key, make)
