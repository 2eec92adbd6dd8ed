"""How float tensors are lowered, on targets that have them: TOSA with the profile FP.

Quantized operators stay integer arithmetic where the target has that too. All others compute with floats: what is quantized
is dequantized for them, an operator that is only ever decomposed is decomposed here and now, and what depends on no input is
a constant.
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
from ethorch.lower.frame import Frame, constant_tensor, dequantized_constant, result_of
from ethorch.lower.fx.aten_builder import AtenBuilder
from ethorch.lower.fx.node import (
    arguments,
    as_array,
    as_tensor,
    attribute,
    flat,
    is_integer,
    mapped,
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
    """Lowers what ``frame`` meets on a target with floats."""

    def __init__(self, frame: Frame):
        self.frame = frame
        self.b = frame.b

    def lower(self, node: Node, spec: OpSpec) -> Any:
        """Integer arithmetic where operands and result are quantized or plain integers, else floats.

        Raises:
            Unsupported: neither can be had.
        """
        operands = [self.frame.env[argument] for argument in node.all_input_nodes]
        if operands and all(isinstance(x, np.ndarray) for x in operands):
            return self.frame.folded(node)
        floats = any(isinstance(x, QTensor) and x.is_float for x in operands)
        quantized = any(isinstance(x, PointwiseChain) or (isinstance(x, QTensor) and not x.is_integer) for x in operands)
        wanted = self.b.integers if quantized else is_integer(node) or self.frame.output_qparams(node) is not None
        if floats or not wanted or spec.composite:
            return self.of_floats(node, spec)
        try:
            with self.b.attempt():
                return self.frame.of_integers(node, spec)
        except Unsupported:
            if not quantized:
                raise
        return self.of_floats(node, spec)

    def of_floats(self, node: Node, spec: OpSpec) -> Any:
        """An operator of float tensors: ``spec.floats``, or the integers' own lowering, whose codes are the floats themselves.

        Raises:
            Unsupported: it has no such lowering, or reads or returns a dtype that the target lacks.
        """
        name = op_name(node.target)
        args, kwargs = self.frame.arguments(node)
        out = result_of(node)
        if not is_integer(node) and out.dtype not in self.b.floats:
            raise Unsupported(no_dtype(self.b, "its result", node))
        if out.dtype in FLOATS:
            out = replace(out, q=float_qparams(out.dtype))
        args, kwargs = mapped(args, self.operand), mapped(kwargs, self.operand)
        lower = spec.floats or spec.lower
        if lower is None:
            if spec.decompose is None:
                has_float = any(isinstance(x, QTensor) and x.is_float for x in flat(args))
                raise Unsupported(no_float_form(name) if has_float else no_table(name, spec, args))
            return self.decomposed(node, spec)
        args, kwargs = spec.canonical(name, args, kwargs)
        args = self.with_constants(node, spec, args)
        reason = spec.check(*args, **kwargs) if spec.check and not spec.floats else None
        if reason and spec.decompose:
            return self.decomposed(node, spec)
        if reason:
            raise Unsupported(reason)
        with self.b.attempt():
            made = lower(self.b, *args, **kwargs, out=out)
        made = made.t if isinstance(made, FloatTensor) else made
        if isinstance(made, QTensor):
            assert made.shape == out.shape, f"{node.format_node()}: lowered to {made.shape}, PyTorch says {out.shape}"
            made = made if out.q is None else self.b.requantized(made, out.q)
        return made

    # --- operands -----------------------------------------------------------------------------------------------------

    def operand(self, x: Any) -> Any:
        """A tensor as floats, if it is quantized; plain integers, constants and numbers as they are.

        Raises:
            Unsupported: ``x`` is on the CPU.
        """
        x = self.frame.plain(x)
        if isinstance(x, OnCpu):
            raise Unsupported(no_dtype(self.b, f"its input {x.node}", x.node))
        if isinstance(x, PointwiseChain):
            return self.end_of(x)
        if isinstance(x, QTensor) and x.is_quantized:
            stored = x.dims if x.value.is_const else None  # a constant is written anew, in its logical order
            value = self.b.once(("dequantized", x.value, stored, x.q), lambda: self._dequantized(x))
            return QTensor(value, contiguous(x.shape) if x.value.is_const else x.dims, _FP32)
        return x

    def _dequantized(self, x: QTensor) -> Value:
        """Floats of a quantized tensor; of a constant, in its logical order."""
        return (constant_tensor(self.b, dequantized_constant(x)) if x.value.is_const else self.b.requantized(x, _FP32)).value

    def end_of(self, chain: PointwiseChain) -> QTensor:
        """The last of a chain of pointwise operators, each computed of floats."""
        return self.b.once(("floats", chain.end), lambda: self._end_of(chain.end))

    def _end_of(self, node: Node) -> QTensor:
        origin, self.b.origin = self.b.origin, origin_of(node)
        spec = find(node.target)
        assert spec is not None
        made: QTensor = self.of_floats(node, spec)
        self.b.origin = origin
        return made

    def with_constants(self, node: Node, spec: OpSpec, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """``args`` with tensors in place of the constants that a quantizer would have quantized."""
        rule = spec.rule(node)

        def tensor(x: Any) -> Any:
            return constant_tensor(self.b, x) if isinstance(x, np.ndarray) and x.dtype.kind not in "iub" else x

        def wanted(index: int) -> bool:
            return index == 0 if rule.only_first else rule.layer is None or index in (0, rule.layer.weight)

        return tuple(mapped(arg, tensor) if wanted(index) else arg for index, arg in enumerate(args))

    # --- decompositions -----------------------------------------------------------------------------------------------

    def decomposed(self, node: Node, spec: OpSpec) -> Any:
        """The decomposition of ``node``, drawn on a graph of its own, and each of its operators lowered.

        Raises:
            Unsupported: this call of the operator is not decomposed, or one of the operators cannot run.
        """
        module = GraphModule({}, Graph())
        copy = self._copied(node, module)
        start = copy.prev
        args, keywords = spec.canonical(op_name(copy.target), *arguments(copy))
        assert spec.decompose is not None
        made = spec.decompose(AtenBuilder(module, copy, self.b.limits, calibrated=False), *args, **keywords)
        if made is None:
            raise Unsupported(not_decomposed(node))
        env, drawn = self.frame.env, start.next
        while drawn is not copy:
            if drawn.op == "get_attr":
                env[drawn] = as_array(attribute(module, drawn))
            elif drawn.op == "call_function":
                env[drawn] = self.frame.result(drawn)
            drawn = drawn.next
        return mapped(made, lambda part: env[part] if isinstance(part, Node) else part)

    def _copied(self, node: Node, module: GraphModule) -> Node:
        """``node`` copied into ``module``, with stand-ins for what it reads and the same readers of several results."""
        env, graph = self.frame.env, module.graph
        inner: dict[Node, Node] = {}

        def stand_in(argument: Node) -> Node:
            if argument not in inner:
                if isinstance(env[argument], np.ndarray):
                    module.register_buffer(f"operand_{len(inner)}", as_tensor(env[argument]))
                    inner[argument] = graph.get_attr(f"operand_{len(inner)}")
                else:
                    inner[argument] = graph.placeholder(argument.name)
                inner[argument].meta = argument.meta
                env[inner[argument]] = env[argument]
            return inner[argument]

        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), stand_in)
        copy = graph.call_function(overload_of(node.target), args, kwargs)
        copy.meta = node.meta
        for user in node.users:
            if user.target is operator.getitem:
                item = graph.call_function(operator.getitem, (copy, user.args[1]))
                if user.users:
                    graph.call_function(aten.alias.default, (item,))
        return copy
