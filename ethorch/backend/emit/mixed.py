"""The program of a graph of delegates and operators on the CPU."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch.fx import GraphModule, Node

from ethorch.backend.emit.buffers import Buffers, is_kept
from ethorch.backend.emit.cpu_operators import CASTS, CLONES, PLAIN, PROMOTED, REWRITTEN, VIEWS
from ethorch.backend.emit.kernels import CAST_KERNEL, CLONE_KERNEL, VIEW_KERNEL, argument, kernel_of
from ethorch.backend.emit.program import COPY_KERNEL, PUT_KERNEL
from ethorch.backend.emit.values import Values, aligned, plan
from ethorch.backend.emit.whole import NotWhole
from ethorch.formats.payload import BACKEND_ID
from ethorch.formats.pte_types import Call, Chain, Delegate, Instruction, Method, Program, Value
from ethorch.lower.fx.node import (
    ASSERTIONS,
    DEQUANTIZE,
    QUANTIZE,
    changes_in_place,
    flat,
    op_name,
    overload_of,
    target_buffer,
    tensor_of,
)
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.vela.lowered import Lowered

#: The call that stands for a delegate: ``ethorch::delegate(Tensor[] inputs, int number) -> Tensor[]``.
DELEGATE = "ethorch.delegate.default"


def program_of_calls(
    module: GraphModule, delegates: Mapping[int, Lowered], spec: EthosUCompileSpec, structure: tuple[str, str]
) -> Program:
    """The program that ExecuTorch would make of ``module``: the same kernels in another order, and the same results.

    Args:
        module: operators, and calls of ``ethorch.delegate`` that stand for delegates.
        delegates: number of such a call -> what is called.
        structure: how the program's inputs and outputs nest.

    Raises:
        NotWhole: ExecuTorch would change an operator of it before it writes it, or it is not known what it does.
    """
    return _Mixed(module, delegates, spec).program(structure)


class _Mixed:
    """One program in the making."""

    def __init__(self, module: GraphModule, delegates: Mapping[int, Lowered], spec: EthosUCompileSpec):
        self.module, self.lowered, self.spec = module, delegates, spec
        self.values = Values()
        self.places: dict[Node, int] = {}
        self.base: dict[int, int] = {}  # a tensor that is another one in another shape -> that one
        self.live: dict[int, tuple[int, int]] = {}  # tensor -> the instructions it is written and last read by
        self.steps: list[Instruction] = []
        self.delegates: list[Delegate] = []
        self.constants: dict[bytes, int] = {b"": 0}
        self.known: dict[tuple[Any, ...], int] = {}  # constants
        self.buffers = Buffers(module)
        self.states: dict[str, int] = {}  # name of a buffer -> its tensor
        self.contents: dict[bytes, int] = {}  # of buffers at first -> their number in the program, from 1 on
        self.kept_bytes = 0

    def program(self, structure: tuple[str, str]) -> Program:
        inputs = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        outputs: list[Any] = []
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                self.places[node] = self.values.tensor(node)
                self.live[self.places[node]] = (0, 0)
            elif node.op == "get_attr":
                tensor = tensor_of(self.module, node)
                if tensor is None:
                    raise NotWhole(f"{node.name} is no tensor")
                name = str(node.target)
                self.places[node] = self.state(node, tensor) if name in self.buffers.names else self.constant(tensor.detach())
            elif node.op == "output":
                outputs = torch.utils._pytree.tree_leaves(node.args)
            elif node.op == "call_function":
                self.call(node)
            else:
                raise NotWhole(f"{node.name} is a {node.op}")
        if not all(isinstance(node, Node) for node in outputs):
            raise NotWhole("it returns something that is no tensor")
        results = [self.places[node] for node in outputs]
        for number in map(self.root, results):
            if number not in self.live:
                raise NotWhole("it returns a constant, or a buffer")
            self.live[number] = (self.live[number][0], len(self.steps))
        offsets, size = plan({number: (self.values.values[number].nbytes, *span) for number, span in self.live.items()})
        offsets |= {number: offsets[self.root(number)] for number in self.base if self.root(number) in offsets}
        method = Method(
            "forward",
            tuple(self.values.placed(number, offsets) for number in range(len(self.values.values))),
            tuple(self.places[node] for node in inputs),
            tuple(results),
            tuple(dict.fromkeys(call.operator for call in self.steps if isinstance(call, Call) and call.operator)),
            tuple(self.delegates),
            (Chain(tuple(self.steps)),),
            (0, size, self.kept_bytes) if self.states else (0, size),
            structure,
        )
        mutable = ((b"", *self.contents),) if self.contents else ()
        return Program({"forward": method}, tuple(self.constants), mutable)

    # --- values -------------------------------------------------------------------------------------------------------

    def constant(self, tensor: torch.Tensor) -> int:
        """A tensor with its contents in the file; equal ones are stored once."""
        data = _bytes_of(tensor)
        if not data:
            raise NotWhole("a constant has no elements")
        where = self.constants.setdefault(data, len(self.constants))
        key = where, tensor.dtype, tensor.shape
        if key not in self.known:
            self.known[key] = self.values.like(tensor, where)
        return self.known[key]

    def state(self, node: Node, tensor: torch.Tensor) -> int:
        """A buffer that the program changes, in a memory of its own, with what it holds at first."""
        name = str(node.target)
        if name not in self.states:
            number = self.contents.setdefault(_bytes_of(tensor), len(self.contents) + 1)
            self.states[name] = self.values.state(node, name, number, self.kept_bytes)
            self.kept_bytes = aligned(self.kept_bytes + self.values.values[self.states[name]].nbytes)
        return self.states[name]

    def root(self, number: int) -> int:
        return self.base.get(number, number)

    def made(self, tensor: torch.Tensor) -> int:
        """A tensor that the next instruction writes."""
        number = self.values.like(tensor)
        self.live[number] = (len(self.steps), len(self.steps))
        return number

    def seen_as(self, number: int, tensor: torch.Tensor) -> int:
        """A tensor in the shape of another one, in the same place."""
        source = self.values.values[number]
        shape = tuple(tensor.shape)
        if source.shape == shape:
            return number
        if number in self.states.values():
            return self.values.seen_as(number, shape)
        self.values.values.append(replace(source, shape=shape, dim_order=tuple(range(len(shape)))))
        view = len(self.values.values) - 1
        self.base[view] = self.root(number)
        return view

    def step(self, instruction: Instruction, reads: Sequence[int]) -> None:
        for number in map(self.root, reads):
            if number in self.live:
                self.live[number] = (self.live[number][0], len(self.steps))
        self.steps.append(instruction)

    # --- operators ----------------------------------------------------------------------------------------------------

    def call(self, node: Node) -> None:
        name = op_name(node.target)
        if name in ASSERTIONS:
            return
        if node.target is operator.getitem:
            if node not in self.places:
                raise NotWhole(f"{node.name} is an item of something else than a tuple")
            return
        if changes_in_place(node):
            self.write(node)
            return
        if name == "aten.slice.Tensor" and any(changes_in_place(user) and user.args[0] is node for user in node.users):
            return  # of a buffer, to be written
        if name == DELEGATE:
            self.delegate(node)
            return
        self.check(node)
        if name in VIEWS:
            self.view(node)
        elif name in CASTS | CLONES:
            self.copy(node, name)
        elif name in PLAIN:
            if name in QUANTIZE and self.undoes(node):
                raise NotWhole(f"{node.name} gives the codes that were dequantized")
            given = {argument.name: x for argument, x in zip(overload_of(node.target)._schema.arguments, node.args, strict=False)}
            self.kernel(node, overload_of(node.target), given | node.kwargs)
        elif name in REWRITTEN:
            self.rewritten(node, REWRITTEN[name](node))
        else:
            raise NotWhole(f"{name} is not known here")

    def rewritten(self, node: Node, call: tuple[Any, tuple[Any, ...]] | None) -> None:
        if call is None:
            self.places[node] = self.places[node.all_input_nodes[0]]
            return
        op, args = call
        self.kernel(node, op, {argument.name: x for argument, x in zip(op._schema.arguments, args, strict=False)})

    def check(self, node: Node) -> None:
        """Everything is of a fixed shape and has elements; complex numbers have kernels for few operators."""
        for tensor in flat([one.meta.get("val") for one in (node, *node.all_input_nodes)]):
            if not isinstance(tensor, torch.Tensor) or not all(isinstance(extent, int) for extent in tensor.shape):
                raise NotWhole(f"{node.name} is not a tensor of a fixed shape")
            if not tensor.numel() or tensor.dtype.is_complex:
                raise NotWhole(f"{node.name} has complex numbers, or no elements")

    def delegate(self, node: Node) -> None:
        inputs: Any = node.args[0]
        number: Any = node.args[1]
        payload = self.lowered[number].payload
        items: dict[Any, Node] = {item.args[1]: item for item in node.users if item.users}
        if len(items) < len(payload.outputs):
            raise NotWhole("nothing reads a result of a delegate")
        reads = [self.places[source] for source in inputs]
        writes = [self.result(node, items[k]) for k in range(len(items))]
        self.places |= {items[k]: place for k, place in enumerate(writes)}
        self.step(Call("", len(self.delegates), (*reads, *writes)), reads)
        self.delegates.append(Delegate(BACKEND_ID, payload.pack(), tuple(self.spec.publish().to_pairs())))

    def result(self, call: Node, item: Node) -> int:
        """The tensor that a delegate writes a result to: a buffer, or a part of one, where nothing reads that any more."""
        (user, *others) = item.users
        buffer = (
            target_buffer(user) if not others and user.target is torch.ops.aten.copy_.default and user.args[1] is item else None
        )
        if buffer is None or not self.buffers.is_free_behind(str(buffer.target), call):
            return self.made(item.meta["val"])
        return self.part(user.args[0], item)

    def part(self, target: Any, like: Node) -> int:
        """The tensor that is a whole buffer, or a slice of one that lies behind its first elements.

        Raises:
            NotWhole: what is written has another dtype or shape.
        """
        buffer = target if target.op == "get_attr" else target_buffer(target)
        if buffer is None or any(getattr(target.meta["val"], key) != getattr(like.meta["val"], key) for key in ("shape", "dtype")):
            raise NotWhole(f"{target.name} is written as something else")
        tensor = tensor_of(self.module, buffer)
        assert tensor is not None
        whole = self.state(buffer, tensor)
        if target is buffer:
            return whole
        view, dim, first, *_ = target.args
        return self.values.inside(whole, like, first * math.prod(view.meta["val"].shape[dim + 1 :]))

    def write(self, node: Node) -> None:
        """What the program writes to a buffer: all of it, a slice, or rows at an index."""
        target: Any = node.args[0]
        if target_buffer(node) is None or node.kwargs or node.users:
            raise NotWhole(f"{node.name} changes a tensor")
        false = self.values.simple(Value("bool", number=False))
        if node.target is torch.ops.aten.index_put_.default:
            indices: Any = node.args[1]
            rows: Any = node.args[2]
            numbers = [-1 if index is None else self.read(index) for index in indices]
            reads = [self.read(rows), *(number for number in numbers if number >= 0)]
            place = self.places[target]
            args = (place, self.values.tensors(tuple(numbers)), reads[0], false, place)
            self.step(Call(PUT_KERNEL, None, args), reads)
            return
        given: Any = node.args[1]
        if node.target is not torch.ops.aten.copy_.default or len(node.args) > 2 or not isinstance(given, Node):
            raise NotWhole(f"{node.name} changes a tensor")
        place = self.part(target, given)
        if self.values.values[self.places[given]].place != self.values.values[place].place:
            self.step(Call(COPY_KERNEL, None, (place, self.read(given), false, place)), [self.read(given)])

    def read(self, node: Node) -> int:
        """What is written to a buffer.

        Raises:
            NotWhole: it is a buffer itself, which may have been written before.
        """
        number = self.places[node]
        if self.values.values[number].place is not None:
            raise NotWhole(f"{node.name} is a buffer, and written to another one")
        return number

    def view(self, node: Node) -> None:
        """The operand in another shape: without an instruction, unless the program returns it."""
        source = node.all_input_nodes[0]
        if not source.meta["val"].is_contiguous():
            raise NotWhole(f"{node.name} is a view of what PyTorch does not lay out row by row")
        if all(user.op != "output" for user in node.users):
            self.places[node] = self.seen_as(self.places[source], node.meta["val"])
            return
        self.places[node] = self.made(node.meta["val"])
        args = (self.places[source], self.values.integers(node.meta["val"].shape))
        self.step(Call(VIEW_KERNEL, None, (*args, *[self.places[node]] * 2)), [self.places[source]])

    def copy(self, node: Node, name: str) -> None:
        source, result = node.all_input_nodes[0], node.meta["val"]
        operand = source.meta["val"]
        if not operand.is_contiguous() or not result.is_contiguous():
            raise NotWhole(f"{node.name} copies what PyTorch does not lay out row by row")
        number = self.places[source]
        idle = name in CASTS and operand.dtype == result.dtype
        if idle or (number in self.states.values() and name in CLONES and not is_kept(node)):
            self.places[node] = number
        else:
            self.places[node] = self.converted(self.places[source], result, CAST_KERNEL if name in CASTS else CLONE_KERNEL)

    def converted(self, number: int, like: torch.Tensor, kernel: str) -> int:
        """A tensor in the dtype of another one."""
        blocking = self.values.simple(Value("bool", number=False))
        order = self.values.integers(range(like.dim()))
        made = self.made(like)
        self.step(Call(kernel, None, (number, blocking, order, made, made)), [number])
        return made

    def kernel(self, node: Node, op: Any, given: dict[str, Any]) -> None:
        """Call the kernel of an operator, which computes the node.

        Args:
            given: its arguments that are not left at their defaults.
        """
        kernel = kernel_of(op)
        if kernel is None:
            raise NotWhole(f"{op} has no out variant")
        given = {argument.name: argument.default_value for argument in op._schema.arguments} | given
        operands = {key: given[key] for key in kernel.arguments}
        if op_name(op) in PROMOTED:
            operands = self.promoted(operands, PROMOTED[op_name(op)])
        reads: list[int] = []

        def number_of(x: Any) -> int:
            if isinstance(x, _Place):
                reads.append(x.number)
            else:
                reads.append(self.places[x] if isinstance(x, Node) else self.constant(torch.tensor(x)))
            return reads[-1]

        args = [argument(self.values, operands[key], kind, number_of) for key, kind in kernel.arguments.items()]
        results = node.meta["val"]
        if isinstance(results, torch.Tensor):
            self.places[node] = self.made(results)
            args += [self.places[node]] * 2
        else:
            writes = [self.made(result) for result in results]
            self.places |= {item: writes[item.args[1]] for item in node.users}  # type: ignore[index]
            args += [*writes, self.values.simple(Value("tensor[]", items=tuple(writes)))]
        self.step(Call(kernel.name, None, tuple(args)), reads)

    def undoes(self, node: Node) -> bool:
        """Does a quantize node give the codes that a dequantize node got? ExecuTorch takes both out."""
        source = node.args[0]
        while isinstance(source, Node) and op_name(source.target) not in DEQUANTIZE:
            unchanged = source.op == "call_function" and source.all_input_nodes[:1]
            if not unchanged or (self.places.get(unchanged[0]) != self.places[source] and op_name(source.target) not in VIEWS):
                return False
            source = unchanged[0]
        return isinstance(source, Node) and source.args[1:] == node.args[1:]

    def promoted(self, operands: dict[str, Any], kind: ELEMENTWISE_TYPE_PROMOTION_KIND) -> dict[str, Any]:
        """The operands of an operator that ExecuTorch casts to one dtype before it."""
        tensors = {key: operands[key] for key in ("self", "other")}
        values = {key: x.meta["val"] if isinstance(x, Node) else torch.tensor(x) for key, x in tensors.items()}
        dtype = elementwise_dtypes(*values.values(), type_promotion_kind=kind)[1]
        for key, value in values.items():
            if value.dtype != dtype:
                x = tensors[key]
                number = self.places[x] if isinstance(x, Node) else self.constant(value)
                operands[key] = _Place(self.converted(number, torch.empty(value.shape, dtype=dtype, device="meta"), CAST_KERNEL))
        return operands


class _Place:
    """A value that no node stands for."""

    def __init__(self, number: int):
        self.number = number


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """Of a tensor, row by row."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
