"""The program around one delegate: inputs quantized, the delegate called, outputs dequantized, and a plan of its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from ethorch.direct.whole import Whole
from ethorch.formats.payload import BACKEND_ID
from ethorch.formats.pte_merge import SHARED_MEMORY
from ethorch.formats.pte_types import DTYPES, ITEM_BYTES, Call, Chain, Delegate, Extra, Instruction, Method, Program, Value
from ethorch.formats.pte_writer import TENSOR_ALIGNMENT
from ethorch.fx.node import CASTS, DEQUANTIZE, QUANTIZE, op_name
from ethorch.target.compile_spec import EthosUCompileSpec

QUANTIZE_KERNEL = "quantized_decomposed::quantize_per_tensor.out"
DEQUANTIZE_KERNEL = "quantized_decomposed::dequantize_per_tensor.out"
CAST_KERNEL = "dim_order_ops::_to_dim_order_copy.out"
COPY_KERNEL = "aten::copy_"
PUT_KERNEL = "aten::index_put_"
_CODES = {name: code for code, (name, _) in DTYPES.items()}


def program_of(whole: Whole, spec: EthosUCompileSpec) -> Program:
    """The program whose one method, ``forward``, is the whole.

    A buffer of codes is a tensor in a memory of its own, ``SHARED_MEMORY``, that begins with contents of the file. The delegate
    takes it and gives it. Of a buffer that is written in parts, it gives these, which lie in the buffer or are put there by an
    operator on the CPU.
    """
    contents: dict[str, int] = {}
    method = method_of(whole, spec, "forward", contents)
    mutable = (b"", *(whole.states[name].initial.contiguous().numpy().tobytes() for name in contents))
    return Program({"forward": method}, mutable=(mutable,) if contents else ())


def method_of(whole: Whole, spec: EthosUCompileSpec, name: str, contents: dict[str, int]) -> Method:
    """The whole as a method of that name.

    Args:
        contents: name of a buffer -> the index of its first contents among the program's ``mutable``; those of the whole are added.
    """
    table = _Values()
    places: dict[Node, int] = {}
    wholes: dict[str, int] = {}
    at = 0
    for buffer, state in whole.states.items():
        number = contents.setdefault(buffer, len(contents) + 1)
        wholes[buffer] = places[state.read] = table.state(state.read, buffer, number, at)
        if state.written is not None:
            places[state.written] = places[state.read]
        for part in state.parts:
            if part.start is not None:
                places[part.rows] = table.inside(wholes[buffer], part.rows, part.start)
        at = aligned(at + table.values[wholes[buffer]].nbytes)
    states = set(places)
    tensors = [n for n in dict.fromkeys((*whole.inputs, *whole.taken, *whole.given, *whole.outputs)) if n not in states]
    places |= {node: table.tensor(node) for node in tensors}
    steps: list[Instruction] = []
    live = dict.fromkeys((*whole.inputs, *states), (0, 0))  # node -> the instructions it is written and last read by

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
        elif op_name(node.target) in CASTS:
            wide: Node = node.args[0]  # type: ignore[assignment]
            blocking = table.simple(Value("bool", number=False))
            args = (places[wide], blocking, table.order(node), places[node], places[node])
            step(Call(CAST_KERNEL, None, args), [wide], [node])
    step(Call("", 0, tuple(places[node] for node in (*whole.taken, *whole.given))), whole.taken, whole.given)
    for buffer, state in whole.states.items():
        if state.copied is not None:
            args = (wholes[buffer], places[state.copied], table.simple(Value("bool", number=False)), wholes[buffer])
            step(Call(COPY_KERNEL, None, args), [state.copied], [])
    for buffer, part in ((buffer, part) for buffer, state in whole.states.items() for part in state.parts):
        if part.index is not None:
            target = table.seen_as(wholes[buffer], part.shape)
            indices = table.tensors((*[-1] * part.dim, places[part.index]))
            args = (target, indices, places[part.rows], table.simple(Value("bool", number=False)), target)
            step(Call(PUT_KERNEL, None, args), [part.index, part.rows], [])
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
    return Method(
        name,
        values,
        tuple(places[node] for node in whole.inputs),
        tuple(places[node] for node in whole.outputs),
        kernels,
        (delegate,),
        (Chain(tuple(steps)),),
        (0, size, at) if at else (0, size),
        whole.structure,
    )


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
            at = max(at, aligned(start + length))
        placed[number] = at
        total = max(total, at + size)
    return placed, aligned(total)


def aligned(size: int) -> int:
    """``size``, or the next multiple of what tensors are aligned to."""
    return -(-size // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT


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

    def state(self, node: Node, name: str, contents: int, offset: int) -> int:
        """A buffer of codes: kept from run to run, and begun with those contents."""
        number = self.tensor(node)
        self.values[number] = replace(self.values[number], place=(SHARED_MEMORY, offset), data=contents, extra=Extra(name=name))
        return number

    def inside(self, whole: int, node: Node, start: int) -> int:
        """A tensor that is a part of another one, from its element ``start`` on."""
        number = self.tensor(node)
        memory, offset = self.values[whole].place or (SHARED_MEMORY, 0)
        place = memory, offset + start * ITEM_BYTES[self.values[number].dtype]
        self.values[number] = replace(self.values[number], place=place)
        return number

    def seen_as(self, whole: int, shape: tuple[int, ...]) -> int:
        """A tensor in another shape, in the same place."""
        value = self.values[whole]
        if value.shape == shape:
            return whole
        return self.simple(replace(value, shape=shape, dim_order=tuple(range(len(shape))), data=0, extra=None))

    def order(self, node: Node) -> int:
        """The dimensions of a tensor that lies row by row, as a list of ints."""
        dims = [self.simple(Value("int", number=dim)) for dim in range(node.meta["val"].dim())]
        return self.simple(Value("int[]", items=tuple(dims)))

    def tensors(self, items: tuple[int, ...]) -> int:
        """A list of tensors, -1 for none of them."""
        return self.simple(Value("tensor?[]", items=items))

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
