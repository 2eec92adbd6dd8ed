"""A finished program with what became of each operator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ethorch.lower.partition_report import PartitionReport
from ethorch.lower.state_buffer import StateBuffer
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.vela.lowered import Lowered


@dataclass(frozen=True)
class Build:
    """A finished program and what became of each operator.

    Attributes:
        pte: the ExecuTorch program.
        partition: which operators are on the NPU, and why the others are not.
        delegates: the parts on the NPU, in the order of the file.
        spec: what it was made for, with paths of ini files, which a file does not keep.
        etrecord: ``executorch.devtools.etrecord.ETRecord`` of it; None where none was asked for.
        states: the buffers that the program changes, and what became of each.
    """

    pte: bytes = field(repr=False)
    partition: PartitionReport
    delegates: tuple[Lowered, ...]
    spec: EthosUCompileSpec | None = field(default=None, repr=False, compare=False)
    etrecord: Any = field(default=None, repr=False, compare=False)
    states: tuple[StateBuffer, ...] = field(default=(), compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Without ExecuTorch's record, whose graphs cannot be pickled."""
        return {**self.__dict__, "etrecord": None}
