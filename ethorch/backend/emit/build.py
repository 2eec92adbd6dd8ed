"""The result of a compilation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ethorch.lower.partition_report import PartitionReport
from ethorch.lower.state_buffer import StateBuffer
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.vela.lowered import Lowered


@dataclass(frozen=True)
class Build:
    """A program, its delegates and the placement of each operator.

    Attributes:
        pte: Contents of the ``.pte``.
        partition: The operators on the NPU, and the refused operators with their reasons.
        delegates: The delegates, in the order of the ``.pte``.
        spec: The compile spec, including paths of ini files.
        etrecord: ``executorch.devtools.etrecord.ETRecord``, or None.
        states: The mutable buffers.
    """

    pte: bytes = field(repr=False)
    partition: PartitionReport
    delegates: tuple[Lowered, ...]
    spec: EthosUCompileSpec | None = field(default=None, repr=False, compare=False)
    etrecord: Any = field(default=None, repr=False, compare=False)
    states: tuple[StateBuffer, ...] = field(default=(), compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "etrecord": None}  # its graphs cannot be pickled
