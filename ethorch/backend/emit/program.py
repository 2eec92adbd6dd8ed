"""The program around one delegate: inputs quantized, the delegate called, outputs dequantized, and a plan of its memory."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from ethorch.backend.emit.values import Values, aligned, plan
from ethorch.backend.emit.whole import Whole
from ethorch.formats.payload import BACKEND_ID
from ethorch.formats.pte_types import Call, Chain, Delegate, Instruction, Method, Program, Value
from ethorch.lower.fx.node import CASTS, DEQUANTIZE, QUANTIZE, op_name
from ethorch.targets.compile_spec import EthosUCompileSpec

QUANTIZE_KERNEL = "quantized_decomposed::quantize_per_tensor.out"
DEQUANTIZE_KERNEL = "quantized_decomposed::dequantize_per_tensor.out"
CAST_KERNEL = "dim_order_ops::_to_dim_order_copy.out"
COPY_KERNEL = "aten::copy_"
PUT_KERNEL = "aten::index_put_"


def program_of(whole: Whole, spec: EthosUCompileSpec) -> Program:
    """The program whose one method, ``forward``, is the whole.

    A buffer of codes is a tensor in a memory of its own, ``SHARED_MEMORY``, that begins with contents of the file; equal ones, as
    of caches, are stored once. The delegate takes it and gives it. Of a buffer that is written in parts, it gives these, which lie
    in the buffer or are put there by an operator on the CPU.
    """
    contents: dict[bytes, int] = {}
    method = method_of(whole, spec, "forward", contents)
    return Program({"forward": method}, mutable=((b"", *contents),) if contents else ())


def method_of(whole: Whole, spec: EthosUCompileSpec, name: str, contents: dict[bytes, int]) -> Method:
    """The whole as a method of that name.

    Args:
        contents: first contents of buffers -> their index among the program's ``mutable``; those of the whole are added.
    """
    table = Values()
    places: dict[Node, int] = {}
    wholes: dict[str, int] = {}
    at = 0
    for buffer, state in whole.states.items():
        number = contents.setdefault(state.initial.contiguous().numpy().tobytes(), len(contents) + 1)
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
    delegate = Delegate(BACKEND_ID, whole.lowered.payload.pack(), tuple(spec.publish().to_pairs()))
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
