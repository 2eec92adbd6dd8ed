"""A record, stored in the .pte, of the methods compiled from one model for several input shapes."""

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

#: Name of the constant method that records the shapes as JSON. See ``Selection``.
SHAPES = "ethorch_shapes"

#: Tuples of tensor index, axis, and number of elements per unit of the padded size.
Places = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Padding:
    """An axis along which inputs can be padded, because earlier output elements do not depend on later input elements.

    Attributes:
        inputs: Axis of each padded input, as ``Places``.
        outputs: Axis along which each output is cropped to the unpadded size, as ``Places``.
    """

    inputs: Places
    outputs: Places


@dataclass(frozen=True)
class Selection:
    """Methods compiled from one model for several input shapes.

    Attributes:
        shapes: Input shapes, keyed by method, smallest first.
        paddings: Axes along which inputs can be padded.
    """

    shapes: dict[str, Shapes]
    paddings: tuple[Padding, ...] = ()

    @classmethod
    def of(cls, program: Program) -> Selection | None:
        """Return the selection recorded in a program, or None."""
        record = program.methods.get(SHAPES)
        if record is None or len(record.outputs) != 1 or record.values[record.outputs[0]].kind != "string":
            return None
        data = json.loads(record.values[record.outputs[0]].text)
        names = [name for name in data["methods"] if name in program.methods]
        shapes = {name: input_shapes(program.methods[name]) for name in names}
        paddings = tuple(
            Padding(*(tuple((t, a, n) for t, a, n in places) for places in (padding["inputs"], padding["outputs"])))
            for padding in data["pad"]
        )
        return cls(shapes, paddings)

    def method(self) -> Method:
        """Return the constant method that records the selection."""
        data = {
            "methods": list(self.shapes),
            "pad": [{"inputs": list(padding.inputs), "outputs": list(padding.outputs)} for padding in self.paddings],
        }
        return Method(SHAPES, (Value("string", text=json.dumps(data)),), (), (0,), (), (), (Chain(()),))

    def nhwc(self, ranks: tuple[Sequence[int], Sequence[int]]) -> Selection:
        """Return a copy for inputs and outputs in NHWC layout. ``ranks`` contains the input ranks and the output ranks."""

        def move_channels(places: Places, ranks: Sequence[int]) -> Places:
            return tuple((number, nhwc_axis(axis, ranks[number]), step) for number, axis, step in places)

        paddings = (Padding(move_channels(p.inputs, ranks[0]), move_channels(p.outputs, ranks[1])) for p in self.paddings)
        return replace(self, paddings=tuple(paddings))

    def find(self, shapes: Sequence[tuple[int, ...]]) -> str | None:
        """Return the name of the smallest method that accepts inputs of these shapes after padding, or None if no method does."""
        return next((name for name, limits in self.shapes.items() if self._fits(shapes, limits)), None)

    def _fits(self, shapes: Sequence[tuple[int, ...]], limits: Shapes) -> bool:
        if len(shapes) != len(limits) or any(len(a) != len(b) for a, b in zip(shapes, limits, strict=True)):
            return False
        free = {(number, axis) for padding in self.paddings for number, axis, _ in padding.inputs}
        for number, (sizes, largest) in enumerate(zip(shapes, limits, strict=True)):
            for axis, (size, most) in enumerate(zip(sizes, largest, strict=True)):
                if size != most and not ((number, axis) in free and 0 < size <= most):
                    return False
        return all(len(self._sizes(padding, shapes)) == 1 for padding in self.paddings)

    @staticmethod
    def _sizes(padding: Padding, shapes: Sequence[tuple[int, ...]]) -> set[float]:
        return {shapes[number][axis] / step for number, axis, step in padding.inputs}

    def fill(self, inputs: Sequence[Any], method: str) -> list[Any]:
        """Pad the inputs with zeros to the input shapes of a method."""
        padded_inputs = []
        for x, shape in zip(inputs, self.shapes[method], strict=True):
            if hasattr(x, "shape") and tuple(x.shape) != shape:
                padded = x.new_empty(shape) if hasattr(x, "new_empty") else type(x)(shape, x.dtype)  # a tensor or an array
                padded[...] = 0
                padded[tuple(map(slice, x.shape))] = x
                x = padded
            padded_inputs.append(x)
        return padded_inputs

    def crop(self, outputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
        """Crop the outputs to the sizes that correspond to unpadded inputs of these shapes."""
        cropped = list(outputs)
        for padding in self.paddings:
            size = math.ceil(next(iter(self._sizes(padding, shapes))))
            for number, axis, step in padding.outputs:
                if cropped[number].shape[axis] > size * step:
                    cropped[number] = cropped[number][(*[slice(None)] * axis, slice(size * step))]
        return cropped

    def refusal(self, shapes: Sequence[tuple[int, ...]]) -> HostError:
        """Create the error for inputs that no method accepts."""
        axes = sorted({(number, axis) for padding in self.paddings for number, axis, _ in padding.inputs})
        words = "; ".join(", ".join(map(_text, limits)) for limits in self.shapes.values())
        free = f" Inputs are padded along {', '.join(f'axis {axis} of input {number}' for number, axis in axes)}." if axes else ""
        return HostError(
            f"expected the input shapes {words}, got {', '.join(map(_text, shapes)) or 'none'}.{free} "
            "Pass inputs with the expected shapes, or compile the program for more shapes (shapes=[...], --shape)."
        )


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a number"


def shapes_of(inputs: Sequence[Any]) -> list[tuple[int, ...]]:
    """Return the shapes of flat inputs. The shape of a number is ``()``."""
    return [tuple(getattr(x, "shape", ())) for x in inputs]


def input_shapes(method: Method) -> Shapes:
    return tuple(method.values[index].shape for index in method.inputs)
