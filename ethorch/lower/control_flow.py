"""Lowering of ``torch.cond`` to COND_IF and of ``while_loop`` to WHILE_LOOP.

Each subgraph becomes a TOSA region. Tensors from outside become inputs of the region. Constants are copied into the region.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.fx import GraphModule, Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QParams, QTensor
from ethorch.lower.chains import OnCpu, PointwiseChain
from ethorch.lower.frame import Constants, Frame, constant_tensor
from ethorch.lower.fx.control_flow import Subgraph, subgraphs_of
from ethorch.lower.fx.node import QUANTIZE, TOSA_DTYPE, as_array, attribute, is_int64, op_name, origin_of
from ethorch.lower.reasons import DIFFERENT_SCALES, FLOAT_LOOP, INT64_INPUT, NOT_OUTPUT_QUANTIZED, holds_refused, no_condition
from ethorch.support.errors import Unsupported
from ethorch.tosa.ir import REGIONS, Value
from ethorch.tosa.layout import contiguous


class Regions:
    """The lowering of a graph's control-flow operators."""

    def __init__(self, frame: Frame):
        self.frame = frame
        self.b = frame.b

    def lower(self, node: Node) -> list[QTensor]:
        name = "COND_IF" if node.target is torch.ops.higher_order.cond else "WHILE_LOOP"
        refusal = self.b.limits[name].refuse(name, "BOOL", {}, self.b.target) if name in self.b.limits else None
        if refusal:
            raise Unsupported(refusal)
        with self.b.attempt():
            frames, operands, results = self.cond(node) if name == "COND_IF" else self.loop(node)
        regions = {key: inner.b.graph for key, inner in zip(REGIONS[name], frames, strict=True)}
        self.b.emit(name, *operands, **regions)
        for inner in frames:
            self.frame.inside |= inner.inside | inner.supported
        self.frame.supported.update(part.attribute for part in subgraphs_of(node))
        return [QTensor(value, x.dims, x.q) for value, x in zip(self.b.graph.ops[-1].results, results, strict=False)]

    def cond(self, node: Node) -> tuple[list[Frame], list[Value], list[QTensor]]:
        """Lower the branches. Return the Frame of each branch, the operands, and the results of the first branch."""
        args: Any = node.args
        parts = subgraphs_of(node)
        condition, operands = self.condition(args[0]), self.operands(args[3], parts, 0)
        frames = [self.lower_subgraph(part, operands, 0) for part in parts]
        readers = {user.args[1]: user for user in node.users}
        pairs: list[list[QTensor]] = []
        for index, pair in enumerate(zip(*map(_output_nodes, frames), strict=True)):
            q = self.frame.output_qparams(readers[index]) if index in readers else None
            pairs.append(_unify(frames, [_result(inner, x, q) for inner, x in zip(frames, pair, strict=True)]))
        for number, inner in enumerate(frames):
            _finish(inner.b, [pair[number].value for pair in pairs])
        return frames, [condition, *_tensors(operands)], [pair[0] for pair in pairs]

    def loop(self, node: Node) -> tuple[list[Frame], list[Value], list[QTensor]]:
        """Lower the condition and the body. Return the Frame of each, the operands, and the loop variables' initial values."""
        args: Any = node.args
        parts = subgraphs_of(node)
        body = _placeholders(parts[1].of(self.module))
        carried = [self.start(arg, inside) for arg, inside in zip(args[2], body, strict=False)]
        operands = [*carried, *self.operands(args[3], parts, len(carried))]
        frames = [self.lower_subgraph(part, operands, len(carried)) for part in parts]
        condition, inner = frames
        (condition_node,) = _output_nodes(condition)
        _finish(condition.b, [_result(condition, condition_node, None).value])
        results = [_result(inner, x, start.q) for x, start in zip(_output_nodes(inner), carried, strict=True)]
        values = [_match_layout(inner.b, x, start) for x, start in zip(results, carried, strict=True)]
        _finish(inner.b, [*values, *inner.b.graph.inputs[len(carried) :]])
        return frames, [*(x.value for x in carried), *_tensors(operands[len(carried) :])], carried

    # --- operands -----------------------------------------------------------------------------------------------------

    @property
    def module(self) -> GraphModule:
        module = self.frame.graph.owning_module
        assert module is not None
        return module

    def condition(self, arg: Any) -> Value:
        """Return the BOOL tensor that selects a branch."""
        x = self.operand(arg)
        x = self.b.plain_tensor(x.astype(np.bool_)) if isinstance(x, np.ndarray) else x
        if not isinstance(x, QTensor) or x.value.dtype != "BOOL":
            raise Unsupported(no_condition(arg))
        return x.value

    def operands(self, args: Sequence[Any], parts: Sequence[Subgraph], first: int) -> list[Any]:
        """Return the operands for the placeholders from index ``first`` on. Operands that no subgraph reads become OnCpu."""
        places = zip(*(_placeholders(part.of(self.module))[first:] for part in parts), strict=True)
        reads = [any(place.users for place in group) for group in places]
        return [self.operand(arg) if is_read else OnCpu(arg) for arg, is_read in zip(args, reads, strict=True)]

    def operand(self, arg: Any) -> Any:
        x = self.frame.plain(self.frame.env[arg]) if isinstance(arg, Node) else np.asarray(arg)
        if isinstance(x, PointwiseChain):
            return self.frame.as_floats(x) if self.b.floats else OnCpu(x.end)
        return x

    def start(self, arg: Any, inside: Node) -> QTensor:
        """Convert the initial value of a loop variable to the quantization parameters that the body uses."""
        x, readers = self.operand(arg), [op_name(user.target) in QUANTIZE for user in inside.users]
        qparams = {self.frame.qparams_of(user) for user in inside.users if op_name(user.target) in QUANTIZE}
        q = qparams.pop() if len(qparams) == 1 and all(readers) else None
        if isinstance(x, OnCpu):
            raise Unsupported(INT64_INPUT if is_int64(x.node) else FLOAT_LOOP)
        if isinstance(x, np.ndarray):
            x = _constant(self.b, x, q, inside)
        assert isinstance(x, QTensor)
        if q is not None and not x.is_integer:
            x = self.b.to_qparams(x, q)
        elif not x.is_integer and self.b.floats:
            x = self.frame.as_floats(x)
        return x if _is_plain(x) else QTensor(self.b.logical(x), contiguous(x.shape), x.q)

    # --- subgraphs ----------------------------------------------------------------------------------------------------

    def lower_subgraph(self, part: Subgraph, operands: Sequence[Any], carried: int) -> Frame:
        """Lower a subgraph. The first ``carried`` operands are loop variables, which become inputs even if constant."""
        module = part.of(self.module)
        inner_b = self.b.region(f"{part.node.name}_{part.role}")
        env: dict[Node, Any] = {}
        for index, (place, x) in enumerate(zip(_placeholders(module), operands, strict=True)):
            inner_b.origin = origin_of(place)
            env[place] = OnCpu(place) if isinstance(x, OnCpu) else x
            if isinstance(x, QTensor) and (index < carried or not x.value.is_const):
                env[place] = QTensor(inner_b.input(place.name, x.value.shape, x.value.dtype), x.dims, x.q)
        try:
            return self.frame.lower_nested(module.graph, _constants(module, env), inner_b, env)
        except Unsupported as refusal:
            raise Unsupported(holds_refused(part, inner_b.origin, refusal.reason)) from refusal


def _placeholders(module: GraphModule) -> list[Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _constants(module: GraphModule, env: Mapping[Node, Any]) -> Constants:
    def lookup(node: Node) -> npt.NDArray[Any] | None:
        if node.op == "get_attr":
            value = attribute(module, node)
            return as_array(value) if isinstance(value, torch.Tensor) else None
        operand = env.get(node)
        return operand if isinstance(operand, np.ndarray) else None

    return lookup


def _tensors(operands: Sequence[Any]) -> list[Value]:
    return [x.value for x in operands if isinstance(x, QTensor) and not x.value.is_const]


# --- outputs ----------------------------------------------------------------------------------------------------------------


def _output_nodes(frame: Frame) -> list[Node]:
    results: Any = frame.graph.output_node().args[0]
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _result(frame: Frame, node: Node, q: QParams | None) -> QTensor:
    x = frame.plain(frame.env[node])
    frame.b.origin = origin_of(node)
    if isinstance(x, np.ndarray):
        x = _constant(frame.b, x, q, node)
    if frame.b.floats and (q is None or isinstance(x, PointwiseChain)) and node.meta["val"].dtype.is_floating_point:
        x = frame.as_floats(x)
    if not isinstance(x, QTensor):
        raise Unsupported(NOT_OUTPUT_QUANTIZED)
    return frame.b.to_qparams(x, q) if q is not None and not x.is_integer else x


def _constant(b: Builder, array: npt.NDArray[Any], q: QParams | None, node: Node) -> QTensor:
    if array.dtype.kind in "iub":
        return b.plain_tensor(array, TOSA_DTYPE.get(node.meta["val"].dtype, "INT32"))
    if q is not None and not q.is_float:
        return QTensor(b.const(q.quantize(array), q.dtype), contiguous(array.shape), q)
    if b.floats:
        return constant_tensor(b, array)
    raise Unsupported(NOT_OUTPUT_QUANTIZED)


def _unify(frames: Sequence[Frame], pair: list[QTensor]) -> list[QTensor]:
    first, second = pair
    if first.q != second.q:
        raise Unsupported(DIFFERENT_SCALES)
    if first.value.dtype != second.value.dtype:
        first, second = (QTensor(w.b.widen(x.value), x.dims, x.q) for w, x in zip(frames, pair, strict=True))
    if (first.dims, first.value.shape) != (second.dims, second.value.shape):
        if not _is_plain(first):
            first = QTensor(frames[0].b.logical(first), contiguous(first.shape), first.q)
        second = QTensor(_match_layout(frames[1].b, second, first), first.dims, second.q)
    return [first, second]


def _is_plain(x: QTensor) -> bool:
    return x.rank == x.value.rank and all(len(axes) == 1 for axes in x.dims)


def _match_layout(b: Builder, x: QTensor, like: QTensor) -> Value:
    if (x.dims, x.value.shape) == (like.dims, like.value.shape):
        return x.value
    return b.store_as(x, [(dim,) for dim in sorted(range(x.rank), key=lambda dim: like.dims[dim])])


def _finish(b: Builder, values: Sequence[Value]) -> None:
    for value in values:
        if value.is_const or value in b.graph.inputs or value in b.graph.outputs:
            value = b.emit("IDENTITY", value)
        b.graph.outputs.append(value)
