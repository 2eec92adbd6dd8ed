"""Methods of a .pte that are one model at several input shapes, as a constant method of it records them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ethorch.formats.pte_types import Chain, Method, Program, Value
from ethorch.support.errors import HostError
from ethorch.targets.settings import Shapes
from ethorch.tosa.layout import nhwc_axis

#: Name of the constant method that records the shapes: a JSON text, see ``Selection``.
SHAPES = "ethorch_shapes"

#: (number of the tensor, axis, elements of it for each step of the size)
Places = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Padding:
    """An axis that inputs can be padded along, because no result element depends on later elements of the axis.

    Attributes:
        inputs: where it is among the inputs' axes.
        outputs: where it is among those of the outputs, which are cropped to the size of the input.
    """

    inputs: Places
    outputs: Places


@dataclass(frozen=True)
class Selection:
    """Methods that are one model at several input shapes.

    Attributes:
        shapes: name of a method -> the shapes of its inputs; the smallest first.
        paddings: axes that may be filled up.
    """

    shapes: dict[str, Shapes]
    paddings: tuple[Padding, ...] = ()

    @classmethod
    def of(cls, program: Program) -> Selection | None:
        """Read the record of a program; None if its methods are not such."""
        record = program.methods.get(SHAPES)
        if record is None or len(record.outputs) != 1 or record.values[record.outputs[0]].kind != "string":
            return None
        data = json.loads(record.values[record.outputs[0]].text)
        names = [name for name in data["methods"] if name in program.methods]
        shapes = {name: input_shapes(program.methods[name]) for name in names}
        paddings = tuple(
            Padding(*(tuple((t, a, n) for t, a, n in places) for places in (one["inputs"], one["outputs"]))) for one in data["pad"]
        )
        return cls(shapes, paddings)

    def method(self) -> Method:
        """The constant method that records it."""
        data = {
            "methods": list(self.shapes),
            "pad": [{"inputs": list(one.inputs), "outputs": list(one.outputs)} for one in self.paddings],
        }
        return Method(SHAPES, (Value("string", text=json.dumps(data)),), (), (0,), (), (), (Chain(()),))

    def nhwc(self, ranks: tuple[Sequence[int], Sequence[int]]) -> Selection:
        """The same with channels last.

        Args:
            ranks: of the inputs and outputs.
        """

        def moved(places: Places, ranks: Sequence[int]) -> Places:
            return tuple((number, nhwc_axis(axis, ranks[number]), step) for number, axis, step in places)

        return replace(self, paddings=tuple(Padding(moved(p.inputs, ranks[0]), moved(p.outputs, ranks[1])) for p in self.paddings))

    def find(self, shapes: Sequence[tuple[int, ...]]) -> str | None:
        """Return the smallest method that inputs of these shapes fit, filled up where that is possible; None if there is none."""
        return next((name for name, wanted in self.shapes.items() if self._fits(shapes, wanted)), None)

    def _fits(self, shapes: Sequence[tuple[int, ...]], wanted: Shapes) -> bool:
        if len(shapes) != len(wanted) or any(len(a) != len(b) for a, b in zip(shapes, wanted, strict=True)):
            return False
        free = {(number, axis) for padding in self.paddings for number, axis, _ in padding.inputs}
        for number, (found, there) in enumerate(zip(shapes, wanted, strict=True)):
            for axis, (size, most) in enumerate(zip(found, there, strict=True)):
                if size != most and not ((number, axis) in free and 0 < size <= most):
                    return False
        return all(len(self._sizes(padding, shapes)) == 1 for padding in self.paddings)

    @staticmethod
    def _sizes(padding: Padding, shapes: Sequence[tuple[int, ...]]) -> set[float]:
        return {shapes[number][axis] / step for number, axis, step in padding.inputs}

    def filled(self, inputs: Sequence[Any], method: str) -> list[Any]:
        """The inputs filled up with zeros to the shapes of the method."""
        found = []
        for x, wanted in zip(inputs, self.shapes[method], strict=True):
            if hasattr(x, "shape") and tuple(x.shape) != wanted:
                whole = x.new_empty(wanted) if hasattr(x, "new_empty") else type(x)(wanted, x.dtype)  # a tensor or an array
                whole[...] = 0
                whole[tuple(map(slice, x.shape))] = x
                x = whole
            found.append(x)
        return found

    def cropped(self, outputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
        """The outputs without what inputs of these shapes were filled up to."""
        found = list(outputs)
        for padding in self.paddings:
            size = math.ceil(next(iter(self._sizes(padding, shapes))))
            for number, axis, step in padding.outputs:
                if found[number].shape[axis] > size * step:
                    found[number] = found[number][(*[slice(None)] * axis, slice(size * step))]
        return found

    def refusal(self, shapes: Sequence[tuple[int, ...]]) -> HostError:
        """The error for inputs of these shapes, which no method fits."""
        axes = sorted({(number, axis) for padding in self.paddings for number, axis, _ in padding.inputs})
        words = "; ".join(", ".join(map(_text, one)) for one in self.shapes.values())
        free = f" Filled up are {', '.join(f'axis {axis} of input {number}' for number, axis in axes)}." if axes else ""
        return HostError(
            f"the inputs are {', '.join(map(_text, shapes)) or 'none'}; the program has methods for {words}.{free} "
            "Compile another shape (shapes=[...], --shape), or bring the input to one of these."
        )


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a number"


def shapes_of(inputs: Sequence[Any]) -> list[tuple[int, ...]]:
    """The shapes of flat inputs; () of a number."""
    return [tuple(getattr(x, "shape", ())) for x in inputs]


def input_shapes(method: Method) -> Shapes:
    """The shapes of a method's inputs."""
    return tuple(method.values[index].shape for index in method.inputs)
