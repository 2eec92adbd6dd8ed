"""The program around one delegate: inputs quantized, the delegate called, outputs dequantized, and a plan of its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from ethorch.direct.whole import Whole
from ethorch.formats.payload import BACKEND_ID
from ethorch.formats.pte_types import DTYPES, Call, Chain, Delegate, Instruction, Method, Program, Value
from ethorch.formats.pte_writer import TENSOR_ALIGNMENT
from ethorch.fx.node import DEQUANTIZE, QUANTIZE, op_name
from ethorch.target.compile_spec import EthosUCompileSpec

QUANTIZE_KERNEL = "quantized_decomposed::quantize_per_tensor.out"
DEQUANTIZE_KERNEL = "quantized_decomposed::dequantize_per_tensor.out"
_CODES = {name: code for code, (name, _) in DTYPES.items()}


def program_of(whole: Whole, spec: EthosUCompileSpec) -> Program:
    """The program whose one method, ``forward``, is the whole."""
    tensors = list(dict.fromkeys((*whole.inputs, *whole.taken, *whole.given, *whole.outputs)))
    table = _Values()
    places = {node: table.tensor(node) for node in tensors}
    steps: list[Instruction] = []
    live = dict.fromkeys(whole.inputs, (0, 0))  # node -> the instructions it is written and last read by

    def step(instruction: Instruction, reads: Sequence[Node], writes: Sequence[Node]) -> None:
        for node in reads:
            live[node] = (live[node][0], len(steps))
        for node in writes:  # what the delegate takes and gives lives since it was quantized
            live[node] = (live.get(node, (len(steps), 0))[0], len(steps))
        steps.append(instruction)

    for node in whole.taken:
        if op_name(node.target) in QUANTIZE:
            source: Node = node.args[0]  # type: ignore[assignment]
            args = (places[source], *table.parameters(node), places[node], places[node])
            step(Call(QUANTIZE_KERNEL, None, args), [source], [node])
    step(Call("", 0, tuple(places[node] for node in (*whole.taken, *whole.given))), whole.taken, whole.given)
    for node in dict.fromkeys(whole.outputs):
        if op_name(node.target) in DEQUANTIZE:
            codes: Node = node.args[0]  # type: ignore[assignment]
            args = (places[codes], *table.parameters(node), table.none(), places[node], places[node])
            step(Call(DEQUANTIZE_KERNEL, None, args), [codes], [node])
    for node in whole.outputs:
        live[node] = (live[node][0], len(steps))
    offsets, size = plan({places[node]: (table.values[places[node]].nbytes, *live[node]) for node in tensors})
    values = tuple(table.placed(number, offsets) for number in range(len(table.values)))
    delegate = Delegate(BACKEND_ID, whole.lowered.payload.pack(), tuple(spec.published().to_pairs()))
    kernels = tuple(dict.fromkeys(call.operator for call in steps if isinstance(call, Call) and call.operator))
    method = Method(
        "forward",
        values,
        tuple(places[node] for node in whole.inputs),
        tuple(places[node] for node in whole.outputs),
        kernels,
        (delegate,),
        (Chain(tuple(steps)),),
        (0, size),
        whole.structure,
    )
    return Program({"forward": method})


def plan(tensors: dict[int, tuple[int, int, int]]) -> tuple[dict[int, int], int]:
    """Where each tensor lies and how many bytes all take: the largest first, each as low as those alive with it leave room.

    Args:
        tensors: number -> (bytes, instruction that writes it, last one that reads it).
    """
    placed: dict[int, int] = {}
    total = 0
    for number, (size, first, last) in sorted(tensors.items(), key=lambda item: (-item[1][0], item[0])):
        others = sorted((placed[k], tensors[k][0]) for k in placed if tensors[k][1] <= last and first <= tensors[k][2])
        at = 0
        for start, length in others:
            if at + size <= start:
                break
            at = max(at, -(-(start + length) // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT)
        placed[number] = at
        total = max(total, at + size)
    return placed, -(-total // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT


class _Values:
    """A method's table of values; equal numbers share an entry."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._numbers: dict[Value, int] = {}

    def tensor(self, node: Node) -> int:
        tensor = node.meta["val"]
        shape = tuple(int(extent) for extent in tensor.shape)
        self.values.append(Value("tensor", _name(tensor.dtype), shape, tuple(range(len(shape)))))
        return len(self.values) - 1

    def simple(self, value: Value) -> int:
        if value not in self._numbers:
            self._numbers[value] = len(self.values)
            self.values.append(value)
        return self._numbers[value]

    def none(self) -> int:
        return self.simple(Value("none"))

    def parameters(self, node: Node) -> tuple[int, ...]:
        """Scale, zero point, lowest and highest code, and the codes' dtype, of a quantize or dequantize node."""
        scale, zero, low, high, dtype = node.args[1:6]
        kinds: list[tuple[str, Callable[[Any], float], Any]] = [
            ("double", float, scale),
            *(("int", int, x) for x in (zero, low, high)),
        ]
        numbers = [self.simple(Value(kind, number=convert(x))) for kind, convert, x in kinds]
        return (*numbers, self.simple(Value("int", number=_CODES[_name(dtype)])))

    def placed(self, number: int, offsets: dict[int, int]) -> Value:
        value = self.values[number]
        return replace(value, place=(1, offsets[number])) if number in offsets else value


def _name(dtype: Any) -> str:
    assert isinstance(dtype, torch.dtype)
    return str(dtype).removeprefix("torch.")
