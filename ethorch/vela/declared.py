"""Read the inputs and outputs of a TOSA flatbuffer, and detect an INT32 SLICE, without the TOSA library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ethorch.formats.flatbuffer import Buffer, Table
from ethorch.support.errors import VelaError

Shape = tuple[int, ...]

# Enum values in tosa.fbs (TOSA 1.0).
_SLICE, _INT32 = 59, 5


@dataclass(frozen=True)
class Declared:
    """The inputs, outputs and properties that a TOSA flatbuffer declares.

    Attributes:
        inputs, outputs: Name and shape of each tensor.
        cuts_int32: Whether the graph contains an INT32 SLICE.
    """

    inputs: tuple[tuple[str, Shape], ...]
    outputs: tuple[tuple[str, Shape], ...]
    cuts_int32: bool

    @classmethod
    def of(cls, tosa: bytes) -> Declared:
        """Read a TOSA 1.0 flatbuffer. Raise VelaError if it is damaged."""
        reader = _Tosa(memoryview(tosa), 20_000_000)
        graph = Table(reader, reader.number("<I", 0, "graph"), "graph")
        blocks = [block for region in graph.tables(1, "region") for block in region.tables(1, "block")]
        if not blocks:
            raise reader.error("graph", "has no block")
        by_block = [{tensor.text(0, "tensor name"): tensor for tensor in block.tables(2, "tensor")} for block in blocks]
        tensors = by_block[0]

        def shapes(field: int, what: str) -> tuple[tuple[str, Shape], ...]:
            selected = [(name, tensors[name]) for name in blocks[0].texts(field, what) if name in tensors]
            return tuple((name, tuple(tensor.numbers(1, "i", "shape")) if tensor.has(1) else ()) for name, tensor in selected)

        return cls(shapes(3, "inputs"), shapes(4, "outputs"), any(map(_cuts_int32, blocks, by_block)))


class _Tosa(Buffer):
    def error(self, what: str, problem: str) -> VelaError:
        return VelaError(f"the TOSA flatbuffer is damaged: {what} {problem}.")


def _cuts_int32(block: Table, tensors: Mapping[str, Table]) -> bool:
    slices = (op for op in block.tables(1, "operator") if op.number(0, "<I") == _SLICE)
    return any(name in tensors and tensors[name].number(2, "<I") == _INT32 for op in slices for name in op.texts(3, "operands"))
