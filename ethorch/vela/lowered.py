from __future__ import annotations

import bisect
from dataclasses import dataclass, field, replace
from functools import cached_property

from ethorch.formats.payload import DelegatePayload
from ethorch.npu import Sources
from ethorch.tosa.ir import NOWHERE, Graph, Value
from ethorch.tosa.text import to_text
from ethorch.vela.compiled_model import CompiledModel, Performance, Tables, with_offsets

_INSERTED_BYTES = 8  # size of a command that writes an address


@dataclass(frozen=True)
class Lowered:
    """A compiled delegate and its graphs.

    Attributes:
        graph: TOSA graph after the rewrites.
        source: TOSA graph before the rewrites. It defines the expected results.
        tosa: Flatbuffer of ``graph``.
        compiled: Vela's output after stream passes.
        repairs: Operators whose inputs or outputs are copied to avoid a Vela bug.
    """

    graph: Graph = field(repr=False)
    source: Graph = field(repr=False)
    tosa: bytes = field(repr=False)
    compiled: CompiledModel
    repairs: tuple[str, ...] = ()

    @cached_property
    def text(self) -> str:
        """The graph as text, with the source location of each operator."""
        return to_text(self.graph)

    @property
    def inputs(self) -> list[Value]:
        return self.graph.inputs

    @property
    def performance(self) -> Performance:
        return self.compiled.performance

    @property
    def payload(self) -> DelegatePayload:
        return self.compiled.payload

    def with_payload(self, payload: DelegatePayload, inserted: tuple[int, ...] = ()) -> Lowered:
        """Return a copy with the commands and constants of an equivalent payload.

        Args:
            inserted: Byte offsets of inserted commands. See ``npu.relocate.Relocated``.
        """
        before = self.compiled

        def tables() -> Tables:
            return with_offsets(before.tables, lambda offset: offset + _INSERTED_BYTES * bisect.bisect_right(inserted, offset))

        compiled = replace(before, command_stream=payload.commands, constants=payload.weights, load_tables=tables)
        return replace(self, compiled=compiled)

    @property
    def sources(self) -> Sources:
        """The operator of each command, with its source location."""
        ops = [op for region in self.graph.regions() for op in region.ops]
        origins = {op.result.name: str(op.result.origin) for op in ops if op.result.origin != NOWHERE}
        return Sources.from_schedule(self.compiled.rows(), origins)
