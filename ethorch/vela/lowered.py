"""One delegate at each of its stages: lowered, rewritten, compiled by Vela, packed."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field, replace
from functools import cached_property

from ethorch.formats.payload import DelegatePayload
from ethorch.npu import Sources
from ethorch.tosa.ir import NOWHERE, Graph, Value
from ethorch.tosa.text import to_text
from ethorch.vela.compiled_model import CompiledModel, Performance, Tables, with_offsets

_INSERTED_BYTES = 8  # of a command that writes an address


@dataclass(frozen=True)
class Lowered:
    """One delegate at each of its stages.

    Attributes:
        graph: the TOSA graph, after the rewrites.
        source: The TOSA graph before the rewrites: the reference for what the delegate computes.
        tosa: the flatbuffer of it, which Vela compiled, but for how inputs in planes are read (``vela.planes``).
        compiled: what Vela made of that.
        repairs: Operators before which a copy was inserted because Vela's commands were wrong without.
    """

    graph: Graph = field(repr=False)
    source: Graph = field(repr=False)
    tosa: bytes = field(repr=False)
    compiled: CompiledModel
    repairs: tuple[str, ...] = ()

    @cached_property
    def text(self) -> str:
        """The graph to read, each operator with the place in the user's code it comes from."""
        return to_text(self.graph)

    @property
    def inputs(self) -> list[Value]:
        """The graph's inputs, in order; the payload's are the same ones."""
        return self.graph.inputs

    @property
    def performance(self) -> Performance:
        """Vela's estimate."""
        return self.compiled.performance

    @property
    def payload(self) -> DelegatePayload:
        """What firmware, or the simulator, gets."""
        return self.compiled.payload

    def with_payload(self, payload: DelegatePayload, inserted: tuple[int, ...] = ()) -> Lowered:
        """The same with other commands and constants that do the same.

        Args:
            inserted: where commands were inserted, as ``npu.relocate.Relocated`` has it.
        """
        before = self.compiled

        def tables() -> Tables:
            return with_offsets(before.tables, lambda offset: offset + _INSERTED_BYTES * bisect.bisect_right(inserted, offset))

        compiled = replace(before, command_stream=payload.commands, constants=payload.weights, load_tables=tables)
        return replace(self, compiled=compiled)

    @property
    def sources(self) -> Sources:
        """Which operator each command works for, with its place in the user's code."""
        ops = [op for region in self.graph.regions() for op in region.ops]
        origins = {op.result.name: str(op.result.origin) for op in ops if op.result.origin != NOWHERE}
        return Sources.from_schedule(self.compiled.rows(), origins)
