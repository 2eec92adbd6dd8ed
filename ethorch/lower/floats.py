"""The walk's way with float tensors, on targets that have them: TOSA with the profile FP.

Quantized operators stay integer arithmetic where the target has that too. All others compute with floats: what is quantized
is dequantized for them, an operator that is only ever decomposed is decomposed here and now, and what depends on no input is
a constant.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node

from ethorch import decompose
from ethorch.errors import Reason, Unsupported
from ethorch.layout import contiguous
from ethorch.lower import Chain, Missing
from ethorch.nodes import as_array, as_tensor, flat, mapped, no_table, not_decomposed, origin_of
from ethorch.ops.conv import weight_array
from ethorch.ops.spec import OpSpec, find, op_name, overload_of
from ethorch.qparams import QParams, QTensor, real
from ethorch.real import Real
from ethorch.sketch import Sketch, attribute
from ethorch.tosa.ir import DTYPES, FLOATS

if TYPE_CHECKING:
    from ethorch.lower import Walk

aten = torch.ops.aten


class Floats:
    """Lowers what ``walk`` meets on a target with floats."""

    def __init__(self, walk: Walk):
        self.walk = walk
        self.b = walk.b
        self.made: dict[Node, Any] = {}  # float forms of a chain's operators
        self.dequantized: dict[tuple[int, QParams], QTensor] = {}

    def lower(self, node: Node, spec: OpSpec) -> Any:
        """Integer arithmetic where operands and result are quantized or plain integers, else floats."""
        operands = [self.walk.env[argument] for argument in node.all_input_nodes]
        if operands and all(isinstance(x, np.ndarray) for x in operands):
            self.walk.begin(node)
            return self.walk.folded(node)
        floats = any(isinstance(x, QTensor) and x.q is not None and x.q.is_real for x in operands)
        quantized = any(isinstance(x, Chain) or (isinstance(x, QTensor) and x.q is not None) for x in operands)
        wanted = self.b.integers if quantized else _is_integer(node) or self.walk.output_qparams(node) is not None
        if floats or not wanted or spec.composite:
            return self.of_floats(node, spec)
        before = len(self.b.graph.ops)
        try:
            return self.walk.of_integers(node, spec)
        except Unsupported:
            del self.b.graph.ops[before:]
            if not quantized:
                raise
        return self.of_floats(node, spec)

    def of_floats(self, node: Node, spec: OpSpec) -> Any:
        """An operator of float tensors: ``spec.real``, or the integers' own lowering, whose codes are the floats themselves."""
        name = op_name(node.target)
        args, kwargs = self.walk.begin(node)
        if not _is_integer(node) and self.b.result_dtype not in self.b.floats:
            raise Unsupported(self.no_dtype("its result", node))
        out = real(self.b.result_dtype) if self.b.result_dtype in FLOATS else None
        args, kwargs = mapped(args, self.operand), mapped(kwargs, self.operand)
        if spec.real is None and spec.lower is None:
            if spec.decompose is None:
                raise Unsupported(_no_form(name) if _has_float(args) else no_table(name, spec, args))
            return self.inlined(node, spec)
        args, kwargs = spec.canonical(name, args, kwargs)
        args = self.with_constants(node, spec, args)
        if spec.real is None:
            reason = next(filter(None, (check(*args, **kwargs) for check in spec.checks)), None)
            if reason and spec.decompose:
                return self.inlined(node, spec)
            if reason:
                raise Unsupported(reason)
        before = len(self.b.graph.ops)
        try:
            made = spec.real(self.b, *args, **kwargs) if spec.real else spec.lower(self.b, *args, **kwargs, out=out)  # type: ignore[misc]
        except Unsupported:
            del self.b.graph.ops[before:]
            raise
        made = made.t if isinstance(made, Real) else made
        if isinstance(made, QTensor):
            assert made.shape == self.b.result_shape, f"{node.format_node()}: lowered to {made.shape}, not {self.b.result_shape}"
            made = made if out is None else self.b.requantized(made, out)
        return made

    # --- operands -----------------------------------------------------------------------------------------------------

    def operand(self, x: Any) -> Any:
        """A tensor as floats, if it is quantized; plain integers, constants and numbers as they are."""
        x = self.walk.plain(x)
        if isinstance(x, Missing):
            raise Unsupported(self.no_dtype(f"its input {x.node}", x.node))
        if isinstance(x, Chain):
            return self.end_of(x)
        if isinstance(x, QTensor) and x.q is not None and not x.q.is_real:
            key = (id(x.value), x.q)
            if key not in self.dequantized:
                self.dequantized[key] = self.b.requantized(x, real("FP32")) if not x.value.is_const else self.constant(_reals(x))
            return QTensor(self.dequantized[key].value, x.dims if not x.value.is_const else contiguous(x.shape), real("FP32"))
        return x

    def end_of(self, chain: Chain) -> QTensor:
        """The last of a chain of pointwise operators, each computed of floats."""
        if chain.end not in self.made:
            state = self.b.result_shape, self.b.result_dtype, self.b.origin
            self.b.origin = origin_of(chain.end)
            spec = find(chain.end.target)
            assert spec is not None
            self.made[chain.end] = self.of_floats(chain.end, spec)
            self.b.result_shape, self.b.result_dtype, self.b.origin = state
        return self.made[chain.end]

    def constant(self, array: np.ndarray) -> QTensor:
        """A constant tensor: floats, integers (64-bit ones saturated at 32) or truth values."""
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        if array.dtype == np.int64:
            array = np.clip(array, -(2**31), 2**31 - 1).astype(np.int32)
        dtype = next(name for name, kind in DTYPES.items() if array.dtype == kind and name != "INT4")
        return QTensor(self.b.const(array, dtype), contiguous(array.shape), real(dtype) if dtype in FLOATS else None)

    def with_constants(self, node: Node, spec: OpSpec, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """``args`` with tensors in place of the constants that a quantizer would have quantized."""
        rule = spec.rule(node)

        def tensor(x: Any) -> Any:
            return self.constant(x) if isinstance(x, np.ndarray) and x.dtype.kind not in "iub" else x

        def wanted(index: int) -> bool:
            return index == 0 if rule.only_first else index in (0, rule.weight) if rule.weight >= 0 else True

        return tuple(mapped(arg, tensor) if wanted(index) else arg for index, arg in enumerate(args))

    def output(self, node: Node, x: Any) -> Any:
        """What a program's output ``node`` is as a tensor."""
        if isinstance(x, np.ndarray):
            return self.constant(x)
        return self.operand(x) if node.meta["val"].dtype.is_floating_point else x

    @staticmethod
    def makes_constant(node: Node) -> bool:
        """Does nothing but its own arguments decide what the operator gives (arange, full, eye, zeros_like)?"""
        target: Any = overload_of(node.target)
        if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
            return False
        single = isinstance(node.meta.get("val"), torch.Tensor)
        return single and (op_name(target) in decompose.LIKE or (target.namespace == "aten" and not node.all_input_nodes))

    # --- decompositions -----------------------------------------------------------------------------------------------

    def inlined(self, node: Node, spec: OpSpec) -> Any:
        """The decomposition of ``node``, drawn on a graph of its own, and each of its operators lowered."""
        module = GraphModule({}, FxGraph())
        inner: dict[Node, Node] = {}
        env = self.walk.env

        def stand_in(argument: Node) -> Node:
            if argument not in inner:
                if isinstance(env[argument], np.ndarray):
                    module.register_buffer(f"operand_{len(inner)}", as_tensor(env[argument]))
                    inner[argument] = module.graph.get_attr(f"operand_{len(inner)}")
                else:
                    inner[argument] = module.graph.placeholder(argument.name)
                inner[argument].meta = argument.meta
                env[inner[argument]] = env[argument]
            return inner[argument]

        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), stand_in)
        copy = module.graph.call_function(overload_of(node.target), args, kwargs)
        copy.meta = node.meta
        for user in node.users:
            if user.target is operator.getitem:
                item = module.graph.call_function(operator.getitem, (copy, user.args[1]))
                if user.users:
                    module.graph.call_function(aten.alias.default, (item,))
        start = copy.prev
        arguments, keywords = decompose.arguments(copy, spec)
        assert spec.decompose is not None
        made = spec.decompose(Sketch(module, copy, self.b.limits, calibrated=False), *arguments, **keywords)
        if made is None:
            raise Unsupported(not_decomposed(node))
        drawn = start.next
        while drawn is not copy:
            if drawn.op == "get_attr":
                env[drawn] = as_array(attribute(module, drawn))
            elif drawn.op == "call_function":
                env[drawn] = self.walk.result(drawn)
            drawn = drawn.next
        return mapped(made, lambda part: env[part] if isinstance(part, Node) else part)

    def no_dtype(self, what: str, node: Node) -> Reason:
        dtype = getattr(node.meta.get("val"), "dtype", "no tensor")
        allowed = ", ".join(name for name in FLOATS if name in self.b.floats)
        return Reason(
            "graph.dtype", f"{what} is {str(dtype).removeprefix('torch.')} or is computed on the CPU; the target has {allowed}",
            "Convert it in the model, or ask for the TOSA extension that has its dtype.",
        )  # fmt: skip


def _no_form(name: str) -> Reason:
    return Reason("operator.no_float", f"{name} has no lowering of float tensors", "Quantized, it is a table.")


def _has_float(args: Any) -> bool:
    return any(isinstance(x, QTensor) and x.q is not None and x.q.is_real for x in flat(args))


def _is_integer(node: Node) -> bool:
    """Is its (first) result integers or truth values?"""
    value = node.meta.get("val")
    value = value[0] if isinstance(value, (tuple, list)) and value else value
    return isinstance(value, torch.Tensor) and not value.dtype.is_floating_point


def _reals(x: QTensor) -> np.ndarray:
    """A quantized constant's real numbers, in its logical order."""
    q, codes = x.qparams, weight_array(x).astype(np.int32)
    shape = [-1 if axis == q.axis else 1 for axis in range(x.rank)] if q.per_channel else []
    zero_points, scales = np.reshape(q.zero_point, shape), np.reshape(np.asarray(q.scale, np.float32), shape)
    return ((codes - zero_points) * scales).astype(np.float32)
