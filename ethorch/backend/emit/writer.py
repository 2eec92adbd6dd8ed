from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION
from torch._prims_common import elementwise_dtypes
from torch.fx import Node

from ethorch.backend.emit import reasons
from ethorch.backend.emit.buffers import Buffers, is_kept
from ethorch.backend.emit.cpu_operators import REPLACEMENTS, Replacement
from ethorch.backend.emit.kernels import CAST_KERNEL, CLONE_KERNEL, COPY_KERNEL, PUT_KERNEL, VIEW_KERNEL, add_argument, kernel_of
from ethorch.backend.emit.partitions import PartitionedGraph, call_delegate
from ethorch.backend.emit.values import Values, align, plan_memory
from ethorch.formats.pte_types import Call, Chain, Delegate, Instruction, Method, Program, Value
from ethorch.lower.fx.node import (
    ASSERTIONS,
    DEQUANTIZE,
    QUANTIZE,
    flat,
    is_in_place,
    op_name,
    overload_of,
    target_buffer,
    tensor_of,
)
from ethorch.support.errors import Reason
from ethorch.targets.cpu_operators import FORMS

#: Form of a binary operator -> type promotion of the operands.
_PROMOTIONS = {"promoted": PROMOTION.DEFAULT, "promoted_to_float": PROMOTION.INT_TO_FLOAT}


class Writer:
    """A builder of a program that calls the same kernels as a program from ExecuTorch's lowering.

    Before ``program``, call ``add_graph``, which detects unsupported graphs and requires no payloads.

    Mutable buffers are tensors in ``SHARED_MEMORY`` with initial values in the ``.pte``. A delegate writes its result directly into
    a buffer if no later operator reads the old value.

    Attributes:
        calls: Partition number of each delegate call.
    """

    def __init__(self, graph: PartitionedGraph):
        self.module = graph.module
        self.calls: list[int] = []
        self._values = Values()
        self._places: dict[Node, int] = {}
        self._base: dict[int, int] = {}  # index of the viewed tensor, keyed by view
        self._live: dict[int, tuple[int, int]] = {}  # first write and last read of each tensor
        self._steps: list[Instruction] = []
        self._inputs: list[Node] = []
        self._outputs: list[int] = []
        self._constants: dict[bytes, int] = {b"": 0}
        self._constant_numbers: dict[tuple[Any, ...], int] = {}
        self._buffers = Buffers(graph.module, graph.buffers)
        self._states: dict[str, int] = {}  # index of the tensor of each buffer, keyed by name
        self._in_buffers: set[int] = set()  # delegate results that are written directly into buffers
        self._contents: dict[bytes, int] = {}  # index of each initial value, starting at 1
        self._state_bytes = 0

    def add_graph(self) -> Reason | None:
        """Add the instructions of all nodes. Return the reason if an operator is not supported."""
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                self._places[node] = self._values.tensor(node)
                self._live[self._places[node]] = (0, 0)
                self._inputs.append(node)
            elif reason := self._add(node):
                return reason
        return None

    def program(self, delegates: Sequence[Delegate], structure: tuple[str, str]) -> Program:
        """Return the program.

        Args:
            delegates: The delegates, in the order of ``calls``.
            structure: Serialized pytree specs of inputs and outputs.
        """
        offsets, size = plan_memory({number: (self._values.values[number].nbytes, *span) for number, span in self._live.items()})
        offsets |= {number: offsets[self._root(number)] for number in self._base if self._root(number) in offsets}
        method = Method(
            "forward",
            tuple(self._values.with_offset(number, offsets) for number in range(len(self._values.values))),
            tuple(self._places[node] for node in self._inputs),
            tuple(self._outputs),
            tuple(dict.fromkeys(call.operator for call in self._steps if isinstance(call, Call) and call.operator)),
            tuple(delegates),
            (Chain(tuple(self._steps)),),
            (0, size, self._state_bytes) if self._states else (0, size),
            structure,
        )
        mutable = ((b"", *self._contents),) if self._contents else ()
        return Program({"forward": method}, tuple(self._constants), mutable)

    def _add(self, node: Node) -> Reason | None:
        if node.op == "get_attr":
            return self._add_attribute(node)
        if node.op == "output":
            return self._add_outputs(torch.utils._pytree.tree_leaves(node.args))
        return self._add_call(node) if node.op == "call_function" else reasons.module(node.name)

    def _add_attribute(self, node: Node) -> Reason | None:
        tensor, name = tensor_of(self.module, node), str(node.target)
        if tensor is None:
            return reasons.not_tensor(node.name)
        if name in self._buffers:
            self._places[node] = self._state(node, tensor)
        elif not tensor.numel():
            return reasons.elements(node.name)
        else:
            self._places[node] = self._constant(tensor.detach())
        return None

    def _add_outputs(self, outputs: Sequence[Any]) -> Reason | None:
        if not outputs or not all(isinstance(node, Node) for node in outputs):
            return reasons.not_tensor("an output")
        self._outputs = [self._places[node] for node in outputs]
        for number in map(self._root, self._outputs):
            if number in self._live:
                self._live[number] = (self._live[number][0], len(self._steps))
            elif number not in self._in_buffers:
                return reasons.output_buffer()
        return None

    # --- values -------------------------------------------------------------------------------------------------------

    def _constant(self, tensor: torch.Tensor) -> int:
        number = self._constants.setdefault(_bytes_of(tensor), len(self._constants))
        key = number, tensor.dtype, tensor.shape
        if key not in self._constant_numbers:
            self._constant_numbers[key] = self._values.like(tensor, number)
        return self._constant_numbers[key]

    def _state(self, node: Node, tensor: torch.Tensor) -> int:
        name = str(node.target)
        if name not in self._states:
            number = self._contents.setdefault(_bytes_of(tensor), len(self._contents) + 1)
            self._states[name] = self._values.state(node, name, number, self._state_bytes)
            self._state_bytes = align(self._state_bytes + self._values.values[self._states[name]].nbytes)
        return self._states[name]

    def _root(self, number: int) -> int:
        return self._base.get(number, number)

    def _new(self, tensor: torch.Tensor) -> int:
        number = self._values.like(tensor)
        self._live[number] = (len(self._steps), len(self._steps))
        return number

    def _reshape(self, number: int, tensor: torch.Tensor) -> int:
        source = self._values.values[number]
        shape = tuple(tensor.shape)
        if source.shape == shape:
            return number
        if number in self._states.values() or number in self._in_buffers:
            return self._values.view(number, shape)
        self._values.values.append(replace(source, shape=shape, dim_order=tuple(range(len(shape)))))
        view = len(self._values.values) - 1
        self._base[view] = self._root(number)
        return view

    def _step(self, instruction: Instruction, reads: Sequence[int]) -> None:
        for number in map(self._root, reads):
            if number in self._live:
                self._live[number] = (self._live[number][0], len(self._steps))
        self._steps.append(instruction)

    # --- operators ----------------------------------------------------------------------------------------------------

    def _add_call(self, node: Node) -> Reason | None:
        name = op_name(node.target)
        if name in ASSERTIONS:
            return None
        if node.target is operator.getitem:
            return None if node in self._places else reasons.not_tensor(f"the source of {node.name}")
        if is_in_place(node):
            return self._add_write(node)
        if name == "aten.slice.Tensor" and any(is_in_place(user) and user.args[0] is node for user in node.users):
            return None  # a slice of a buffer that is written but not read
        if node.target is call_delegate:
            return self._add_delegate(node)
        if reason := _check(node):
            return reason
        form = FORMS.get(name)
        if form is None:
            return reasons.unknown_operator(name)
        if form == "view":
            return self._add_view(node)
        if form in ("cast", "clone"):
            return self._add_copy(node, form)
        if form == "unchanged" or form in _PROMOTIONS:
            if name in QUANTIZE and self._undoes_dequantize(node):
                return reasons.undone_quantization(node.name)
            operands = {
                argument.name: x for argument, x in zip(overload_of(node.target)._schema.arguments, node.args, strict=False)
            }
            return self._add_kernel(node, overload_of(node.target), operands | node.kwargs)
        return self._add_replacement(node, REPLACEMENTS[form](node))

    def _add_replacement(self, node: Node, replacement: Replacement | None) -> Reason | None:
        if replacement is None:
            self._places[node] = self._places[node.all_input_nodes[0]]
            return None
        op, args = replacement
        return self._add_kernel(node, op, {argument.name: x for argument, x in zip(op._schema.arguments, args, strict=False)})

    def _add_delegate(self, node: Node) -> Reason | None:
        inputs: Any = node.args[0]
        number: Any = node.args[1]
        items: dict[Any, Node] = {item.args[1]: item for item in node.users if item.users}
        if len(items) < len(node.meta["val"]):
            return reasons.unread_result(node.name)
        reads = [self._places[source] for source in inputs]
        writes = []
        for k in range(len(items)):
            place = self._result(node, items[k])
            if isinstance(place, Reason):
                return place
            writes.append(place)
            self._places[items[k]] = place
        self._step(Call("", len(self.calls), (*reads, *writes)), reads)
        self.calls.append(number)
        return None

    def _result(self, call: Node, item: Node) -> int | Reason:
        writes = [user for user in item.users if is_in_place(user)]
        write = writes[0] if len(writes) == 1 else None
        buffer = target_buffer(write) if write and write.target is torch.ops.aten.copy_.default and write.args[1] is item else None
        if write is None or buffer is None or not self._buffers.is_free_after(str(buffer.target), call):
            return self._new(item.meta["val"])
        place = self._part(write.args[0], item)
        if isinstance(place, int):
            self._in_buffers.add(place)
        return place

    def _part(self, target: Any, like: Node) -> int | Reason:
        buffer = target if target.op == "get_attr" else target_buffer(target)
        if buffer is None or any(getattr(target.meta["val"], key) != getattr(like.meta["val"], key) for key in ("shape", "dtype")):
            return reasons.in_place(f"a write to {target.name}")
        tensor = tensor_of(self.module, buffer)
        assert tensor is not None
        state = self._state(buffer, tensor)
        if target is buffer:
            return state
        view, dim, first, *_ = target.args
        return self._values.inside(state, like, first * math.prod(view.meta["val"].shape[dim + 1 :]))

    def _add_write(self, node: Node) -> Reason | None:
        target: Any = node.args[0]
        if target_buffer(node) is None or node.kwargs or node.users:
            return reasons.in_place(node.name)
        false = self._values.simple(Value("bool", number=False))
        if node.target is torch.ops.aten.index_put_.default:
            indices: Any = node.args[1]
            sources: list[Any] = [node.args[2], *(index for index in indices if index is not None)]
            if reason := self._check_sources(sources):
                return reason
            reads = [self._places[source] for source in sources]
            numbers = tuple(-1 if index is None else self._places[index] for index in indices)
            place = self._places[target]
            self._step(Call(PUT_KERNEL, None, (place, self._values.tensors(numbers), reads[0], false, place)), reads)
            return None
        source: Any = node.args[1]
        if node.target is not torch.ops.aten.copy_.default or len(node.args) > 2 or not isinstance(source, Node):
            return reasons.in_place(node.name)
        part = self._part(target, source)
        if isinstance(part, Reason):
            return part
        number = self._places[source]
        if self._values.values[number].place == self._values.values[part].place:
            return None
        if reason := self._check_sources([source]):
            return reason
        self._step(Call(COPY_KERNEL, None, (part, number, false, part)), [number])
        return None

    def _check_sources(self, nodes: Sequence[Node]) -> Reason | None:
        buffers = (node for node in nodes if self._values.values[self._places[node]].place is not None)
        return next((reasons.other_buffer(node.name) for node in buffers), None)

    def _add_view(self, node: Node) -> Reason | None:
        source = node.all_input_nodes[0]
        if not source.meta["val"].is_contiguous():
            return reasons.layout(source.name)
        if all(user.op != "output" for user in node.users):
            self._places[node] = self._reshape(self._places[source], node.meta["val"])
            return None
        self._places[node] = self._new(node.meta["val"])
        args = (self._places[source], self._values.integers(node.meta["val"].shape))
        self._step(Call(VIEW_KERNEL, None, (*args, *[self._places[node]] * 2)), [self._places[source]])
        return None

    def _add_copy(self, node: Node, form: str) -> Reason | None:
        source, result = node.all_input_nodes[0], node.meta["val"]
        operand = source.meta["val"]
        if not operand.is_contiguous() or not result.is_contiguous():
            return reasons.layout(node.name)
        number = self._places[source]
        is_idle = form == "cast" and operand.dtype == result.dtype
        if is_idle or (number in self._states.values() and form == "clone" and not is_kept(node)):
            self._places[node] = number
        else:
            self._places[node] = self._convert(number, result, CAST_KERNEL if form == "cast" else CLONE_KERNEL)
        return None

    def _convert(self, number: int, like: torch.Tensor, kernel: str) -> int:
        blocking = self._values.simple(Value("bool", number=False))
        order = self._values.integers(range(like.dim()))
        result = self._new(like)
        self._step(Call(kernel, None, (number, blocking, order, result, result)), [number])
        return result

    def _add_kernel(self, node: Node, op: Any, operands: dict[str, Any]) -> Reason | None:
        kernel = kernel_of(op)
        if kernel is None:
            return reasons.unknown_operator(op_name(op))
        operands = {argument.name: argument.default_value for argument in op._schema.arguments} | operands
        operands = {key: operands[key] for key in kernel.arguments}
        if promotion := _PROMOTIONS.get(FORMS.get(op_name(op), "")):
            operands = self._promote(operands, promotion)
        reads: list[int] = []

        def number_of(x: Any) -> int:
            if isinstance(x, _Place):
                reads.append(x.number)
            else:
                reads.append(self._places[x] if isinstance(x, Node) else self._constant(torch.tensor(x)))
            return reads[-1]

        args = list[int]()
        for key, kind in kernel.arguments.items():
            number = add_argument(self._values, operands[key], kind, number_of)
            if number is None:
                return reasons.argument(op_name(op), key)
            args.append(number)
        results = node.meta["val"]
        if isinstance(results, torch.Tensor):
            self._places[node] = self._new(results)
            args += [self._places[node]] * 2
        else:
            writes = [self._new(result) for result in results]
            self._places |= {item: writes[item.args[1]] for item in node.users}  # type: ignore[index]
            args += [*writes, self._values.simple(Value("tensor[]", items=tuple(writes)))]
        self._step(Call(kernel.name, None, tuple(args)), reads)
        return None

    def _undoes_dequantize(self, node: Node) -> bool:
        source = node.args[0]
        while isinstance(source, Node) and op_name(source.target) not in DEQUANTIZE:
            if source.op != "call_function" or not source.all_input_nodes:
                return False
            operand = source.all_input_nodes[0]
            if self._places.get(operand) != self._places[source] and FORMS.get(op_name(source.target)) != "view":
                return False
            source = operand
        return isinstance(source, Node) and source.args[1:] == node.args[1:]

    def _promote(self, operands: dict[str, Any], kind: PROMOTION) -> dict[str, Any]:
        tensors = {key: operands[key] for key in ("self", "other")}
        values = {key: x.meta["val"] if isinstance(x, Node) else torch.tensor(x) for key, x in tensors.items()}
        dtype = elementwise_dtypes(*values.values(), type_promotion_kind=kind)[1]
        for key, value in values.items():
            if value.dtype != dtype:
                x = tensors[key]
                number = self._places[x] if isinstance(x, Node) else self._constant(value)
                operands[key] = _Place(self._convert(number, torch.empty(value.shape, dtype=dtype, device="meta"), CAST_KERNEL))
        return operands


class _Place:
    def __init__(self, number: int):
        self.number = number


def _check(node: Node) -> Reason | None:
    for tensor in flat([tensor_node.meta.get("val") for tensor_node in (node, *node.all_input_nodes)]):
        if not isinstance(tensor, torch.Tensor):
            return reasons.not_tensor(node.name)
        if not all(isinstance(extent, int) for extent in tensor.shape):
            return reasons.layout(node.name)
        if not tensor.numel() or tensor.dtype.is_complex:
            return reasons.elements(node.name)
    return None


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
