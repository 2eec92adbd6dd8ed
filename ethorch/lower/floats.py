"""Lowering of float tensors, on targets with TOSA's FP profile.

Quantized operators use integer arithmetic if the target supports it. Otherwise, their operands are dequantized.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.fx import Graph, GraphModule, Node

from ethorch.lower.builder.floats import FloatTensor
from ethorch.lower.builder.qparams import QTensor, float_qparams
from ethorch.lower.chains import OnCpu, PointwiseChain
from ethorch.lower.frame import Frame, constant_tensor, dequantize_constant, result_of
from ethorch.lower.fx.aten_builder import AtenBuilder
from ethorch.lower.fx.node import (
    arguments,
    as_array,
    as_tensor,
    attribute,
    flat,
    is_integer,
    map_leaves,
    op_name,
    origin_of,
    overload_of,
)
from ethorch.lower.ops.spec import OpSpec, find
from ethorch.lower.reasons import no_dtype, no_float_form, no_table, not_decomposed
from ethorch.support.errors import Unsupported
from ethorch.tosa.ir import FLOATS, Value
from ethorch.tosa.layout import contiguous

aten = torch.ops.aten
_FP32 = float_qparams("FP32")


class Floats:
    """The lowering of a graph's float operators."""

    def __init__(self, frame: Frame):
        self.frame = frame
        self.b = frame.b

    def lower(self, node: Node, spec: OpSpec) -> Any:
        """Lower ``node`` with integer arithmetic if possible, and with float arithmetic otherwise."""
        operands = [self.frame.env[argument] for argument in node.all_input_nodes]
        if operands and all(isinstance(x, np.ndarray) for x in operands):
            return self.frame.fold(node)
        has_floats = any(isinstance(x, QTensor) and x.is_float for x in operands)
        has_quantized = any(isinstance(x, PointwiseChain) or (isinstance(x, QTensor) and not x.is_integer) for x in operands)
        use_integers = self.b.integers if has_quantized else is_integer(node) or self.frame.output_qparams(node) is not None
        if has_floats or not use_integers or spec.composite:
            return self.of_floats(node, spec)
        try:
            with self.b.attempt():
                return self.frame.of_integers(node, spec)
        except Unsupported:
            if not has_quantized:
                raise
        return self.of_floats(node, spec)

    def of_floats(self, node: Node, spec: OpSpec) -> Any:
        """Lower ``node`` with ``spec.floats``, or with ``spec.lower`` on float operands. If neither applies, decompose ``node``."""
        name = op_name(node.target)
        args, kwargs = self.frame.arguments(node)
        out = result_of(node)
        if not is_integer(node) and out.dtype not in self.b.floats:
            raise Unsupported(no_dtype(self.b, "the result", node))
        if out.dtype in FLOATS:
            out = replace(out, q=float_qparams(out.dtype))
        args, kwargs = map_leaves(args, self.operand), map_leaves(kwargs, self.operand)
        lower = spec.floats or spec.lower
        if lower is None:
            if spec.decompose is None:
                has_float = any(isinstance(x, QTensor) and x.is_float for x in flat(args))
                raise Unsupported(no_float_form(name) if has_float else no_table(name, spec, args))
            return self.decompose(node, spec)
        args, kwargs = spec.canonical(name, args, kwargs)
        args = self.with_constants(node, spec, args)
        reason = spec.check(*args, **kwargs) if spec.check and not spec.floats else None
        if reason and spec.decompose:
            return self.decompose(node, spec)
        if reason:
            raise Unsupported(reason)
        with self.b.attempt():
            lowered = lower(self.b, *args, **kwargs, out=out)
        lowered = lowered.t if isinstance(lowered, FloatTensor) else lowered
        if isinstance(lowered, QTensor):
            assert lowered.shape == out.shape, f"{node.format_node()}: lowered to {lowered.shape}, expected {out.shape}"
            lowered = lowered if out.q is None else self.b.to_qparams(lowered, out.q)
        return lowered

    # --- operands -----------------------------------------------------------------------------------------------------

    def operand(self, x: Any) -> Any:
        """Dequantize a quantized tensor, or lower a PointwiseChain. Return other values unchanged. Raise Unsupported for OnCpu."""
        x = self.frame.plain(x)
        if isinstance(x, OnCpu):
            raise Unsupported(no_dtype(self.b, f"the input {x.node}", x.node))
        if isinstance(x, PointwiseChain):
            return self.end_of(x)
        if isinstance(x, QTensor) and x.is_quantized:
            stored = x.dims if x.value.is_const else None  # constants are converted in logical order
            value = self.b.once(("dequantized", x.value, stored, x.q), lambda: self._dequantize(x))
            return QTensor(value, contiguous(x.shape) if x.value.is_const else x.dims, _FP32)
        return x

    def _dequantize(self, x: QTensor) -> Value:
        return (constant_tensor(self.b, dequantize_constant(x)) if x.value.is_const else self.b.to_qparams(x, _FP32)).value

    def end_of(self, chain: PointwiseChain) -> QTensor:
        return self.b.once(("floats", chain.end), lambda: self._end_of(chain.end))

    def _end_of(self, node: Node) -> QTensor:
        origin, self.b.origin = self.b.origin, origin_of(node)
        spec = find(node.target)
        assert spec is not None
        end: QTensor = self.of_floats(node, spec)
        self.b.origin = origin
        return end

    def with_constants(self, node: Node, spec: OpSpec, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Create tensors for the float constants that a quantizer would quantize."""
        rule = spec.rule(node)

        def tensor(x: Any) -> Any:
            return constant_tensor(self.b, x) if isinstance(x, np.ndarray) and x.dtype.kind not in "iub" else x

        def is_quantizable(index: int) -> bool:
            return index == 0 if rule.only_first else rule.layer is None or index in (0, rule.layer.weight)

        return tuple(map_leaves(arg, tensor) if is_quantizable(index) else arg for index, arg in enumerate(args))

    # --- decompositions -----------------------------------------------------------------------------------------------

    def decompose(self, node: Node, spec: OpSpec) -> Any:
        module = GraphModule({}, Graph())
        copy = self._copy_node(node, module)
        start = copy.prev
        args, keywords = spec.canonical(op_name(copy.target), *arguments(copy))
        assert spec.decompose is not None
        decomposition = spec.decompose(AtenBuilder(module, copy, self.b.limits, calibrated=False), *args, **keywords)
        if decomposition is None:
            raise Unsupported(not_decomposed(node))
        env, inner = self.frame.env, start.next
        while inner is not copy:
            if inner.op == "get_attr":
                env[inner] = as_array(attribute(module, inner))
            elif inner.op == "call_function":
                env[inner] = self.frame.result(inner)
            inner = inner.next
        return map_leaves(decomposition, lambda part: env[part] if isinstance(part, Node) else part)

    def _copy_node(self, node: Node, module: GraphModule) -> Node:
        env, graph = self.frame.env, module.graph
        copies: dict[Node, Node] = {}

        def stand_in(argument: Node) -> Node:
            if argument not in copies:
                if isinstance(env[argument], np.ndarray):
                    module.register_buffer(f"operand_{len(copies)}", as_tensor(env[argument]))
                    copies[argument] = graph.get_attr(f"operand_{len(copies)}")
                else:
                    copies[argument] = graph.placeholder(argument.name)
                copies[argument].meta = argument.meta
                env[copies[argument]] = env[argument]
            return copies[argument]

        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), stand_in)
        copy = graph.call_function(overload_of(node.target), args, kwargs)
        copy.meta = node.meta
        for user in node.users:
            if user.target is operator.getitem:
                item = graph.call_function(operator.getitem, (copy, user.args[1]))
                if user.users:
                    graph.call_function(aten.alias.default, (item,))
        return copy
