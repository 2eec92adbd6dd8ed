"""Lowering of a quantized FX graph (edge dialect or ATen) to a tosa.Graph."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QTensor, Result
from ethorch.lower.chains import OnCpu, PointwiseChain, chain_source, entries, has_chain
from ethorch.lower.control_flow import Regions
from ethorch.lower.floats import Floats
from ethorch.lower.frame import Constants, Frame, constant_tensor, is_constant, result_of, to_signed
from ethorch.lower.fx.control_flow import is_control_flow
from ethorch.lower.fx.node import (
    ASSERTIONS,
    DEQUANTIZE,
    INTEGERS,
    QUANTIZE,
    Converted,
    arguments,
    as_array,
    constants_of,
    flat,
    has_scalar_dim,
    is_int64,
    is_integer,
    is_left_out,
    makes_constant,
    map_leaves,
    op_name,
    origin_of_codes,
    shape_of_values,
    storage_order,
    writes_back,
)
from ethorch.lower.ops.rounding import TOO_MANY_STEPS
from ethorch.lower.ops.shape import permute
from ethorch.lower.ops.spec import OpSpec, find
from ethorch.lower.reasons import (
    EMPTY_OUTPUT,
    FLOAT_CONSTANT,
    INT32_OPERAND,
    INT64_INPUT,
    INT64_OUTPUT,
    LEFT_OUT,
    MOST_RETURNED,
    NO_INT32_ACTIVATIONS,
    NOT_OUTPUT_QUANTIZED,
    RETURNED_LATE,
    SCALAR_DIM,
    SHAPE_OF_VALUES,
    WRITTEN_BACK,
    dynamic_shape,
    no_integer_dtype,
    no_table,
    not_decomposed,
    not_quantized,
    per_channel,
    unknown_operator,
)
from ethorch.models.open_sizes import is_dynamic, is_size
from ethorch.support.errors import Reason, Unsupported
from ethorch.tosa import ir as tosa
from ethorch.tosa.layout import MAX_RANK, merge_axes
from ethorch.tosa.verify import verify


class Walk(Frame):
    """A single pass that lowers a graph to TOSA.

    Args:
        graph, constants, refused, operands: See Frame.
        strict: Whether to raise refusals and set the outputs of the TOSA graph. If False, collect refusals in ``refusals``.
    """

    def __init__(
        self,
        graph: Graph,
        constants: Constants,
        builder: Builder,
        *,
        strict: bool = True,
        refused: Mapping[Node, Reason] | None = None,
        operands: Mapping[Node, Any] | None = None,
    ):
        super().__init__(graph, constants, builder, refused=refused, operands=operands)
        self.strict = strict
        self._late = frozenset[Node]() if strict else _excess_outputs(graph)
        self._floats = Floats(self)
        self._regions = Regions(self)

    def run(self) -> Walk:
        for node in self.graph.nodes:
            self.b.origin = origin_of_codes(node)
            if node.op in ("placeholder", "get_attr"):
                self.env[node] = self.leaf(node)
            elif node.op == "call_function":
                self.call(node)
            elif node.op == "call_module":
                self.env[node] = OnCpu(node)
            elif node.op == "output" and self.strict and self.operands is None:
                self.outputs(node)
        return self

    def lower_nested(self, graph: Graph, constants: Constants, builder: Builder, operands: Mapping[Node, Any]) -> Walk:
        return Walk(graph, constants, builder, refused=self.refusals, operands=operands).run()

    def as_floats(self, x: Any) -> Any:
        return self._floats.operand(x)

    # --- operators ----------------------------------------------------------------------------------------------------

    def call(self, node: Node) -> None:
        """Lower one node. Record a refusal, or raise it if ``strict``."""
        if node in self.refusals:
            if self.operands is not None:
                raise Unsupported(self.refusals[node])
            self.env[node] = self.boundary(node)
            return
        if node.target is operator.getitem and isinstance(self.env[node.all_input_nodes[0]], OnCpu):
            boundary = self.boundary(node)  # a result of a multi-output operator on the CPU
            if not isinstance(boundary, OnCpu):
                self.env[node] = boundary
                return
        try:
            self.env[node] = self.result(node)
            if not isinstance(self.env[node], OnCpu):
                self.supported.add(node)
        except Unsupported as refusal:
            if self.strict:
                refusal.place = refusal.place or origin_of_codes(node)
                raise
            if op_name(node.target) not in QUANTIZE:  # the CPU quantizes inputs
                self.refusals[node] = refusal.reason
            self.env[node] = self.boundary(node)

    def result(self, node: Node) -> Any:
        if shape_of_values(node):
            raise Unsupported(SHAPE_OF_VALUES if find(node.target) else unknown_operator(node))
        name = op_name(node.target)
        if is_size(node):
            return OnCpu(node)
        if is_dynamic(node):
            if name in QUANTIZE | DEQUANTIZE or node.target is operator.getitem:
                return OnCpu(node)
            raise Unsupported(dynamic_shape(node))
        empty = self.empty(node)
        if empty is not None:
            return empty
        if name in QUANTIZE:
            return self.quantize(node)
        if name in DEQUANTIZE:
            return self.dequantize(node)
        if node.target is operator.getitem:
            return self.item(node)
        if name in ASSERTIONS:
            return None
        if is_control_flow(node):
            return self._regions.lower(node)
        spec = find(node.target)
        if (self.b.floats or self.operands is not None) and makes_constant(node):
            return self.fold(node)
        if spec is None:
            raise Unsupported(unknown_operator(node))
        if has_scalar_dim(node):
            raise Unsupported(SCALAR_DIM)
        if self.b.floats:
            return self._floats.lower(node, spec)
        if spec.composite:
            raise Unsupported(LEFT_OUT if is_left_out(node) else WRITTEN_BACK if writes_back(node) else not_decomposed(node))
        return self.of_integers(node, spec)

    def empty(self, node: Node) -> npt.NDArray[Any] | None:
        """Return an empty constant if the node's result is empty, or else None. Raise Unsupported for an empty output."""
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.numel() or is_control_flow(node):
            return None
        if any(user.op == "output" for user in node.users):
            raise Unsupported(EMPTY_OUTPUT)
        return as_array(torch.empty(value.shape, dtype=value.dtype))

    def item(self, node: Node) -> Any:
        source, index = self.env[node.all_input_nodes[0]], cast(int, node.args[1])
        if isinstance(source, (list, tuple)):
            return source[index]
        return source if index == 0 else OnCpu(node)

    def of_integers(self, node: Node, spec: OpSpec) -> Any:
        """Lower an operator on integers. A pointwise operator on one quantized tensor starts or continues a ``PointwiseChain``."""
        name = op_name(node.target)
        args, kwargs = self.arguments(node)
        tensors = [x for x in flat([*args, *kwargs.values()]) if isinstance(x, (QTensor, PointwiseChain, OnCpu, np.ndarray))]
        if tensors and all(isinstance(x, np.ndarray) or (spec.pointwise and is_constant(x)) for x in tensors):
            return self.fold(node)
        if is_left_out(node):
            raise Unsupported(LEFT_OUT)
        out = result_of(node, self.output_qparams(node))
        self.check_int32(spec, args, out)
        source = chain_source(node, spec, self.env, out.shape, quantized=out.q is not None)
        absorbed = spec.lower is not None and spec.absorbs and out.q is not None and not has_chain(args)
        if source is not None and not absorbed:
            steps = spec.steps or any(isinstance(arg, PointwiseChain) and arg.steps for arg in args)
            return self.check_chain(PointwiseChain(source, node, steps), out)
        if out.q is not None and out.q.dtype == "INT32" and not (spec.moves or spec.int32):
            raise Unsupported(INT32_OPERAND)
        args, kwargs = map_leaves(args, self.plain), map_leaves(kwargs, self.plain)
        self.require_present(spec, args)
        if spec.truths:
            args = tuple(self.widen_int8(arg, x) for arg, x in zip(arguments(node)[0], args, strict=True))
        args, kwargs = spec.canonical(name, args, kwargs)
        args = tuple(map_leaves(arg, self.tensor) if k in spec.tensors else arg for k, arg in enumerate(args))
        reason = spec.check(*args, **kwargs) if spec.check else None
        if reason:
            computed = any(isinstance(x, QTensor) and x.is_integer and not x.value.is_const for x in flat(args))
            raise Unsupported((self.absent(spec) if computed else None) or reason)
        if spec.lower is None:
            raise Unsupported(no_table(name, spec, args))
        return self.lower(node, spec, args, kwargs, out)

    def tensor(self, x: Any) -> Any:
        """Convert a constant to a tensor. Float constants require a target that supports floats."""
        if isinstance(x, np.ndarray) and x.size and np.issubdtype(x.dtype, np.floating) and not self.b.floats:
            raise Unsupported(FLOAT_CONSTANT)
        return constant_tensor(self.b, x) if isinstance(x, np.ndarray) else x

    def widen_int8(self, arg: Any, x: Any) -> Any:
        """Widen a PyTorch int8 tensor to INT32, because INT8 without quantization parameters denotes bools."""
        value = arg.meta.get("val") if isinstance(arg, Node) else None
        if not isinstance(x, QTensor) or not x.is_integer or not isinstance(value, torch.Tensor) or value.dtype != torch.int8:
            return x
        return QTensor(self.b.widen(x.value), x.dims, None)

    def check_chain(self, chain: PointwiseChain, out: Result) -> PointwiseChain:
        """Check that a table can represent the chain, and return the chain."""
        if out.q is None and not out.dtype and not is_int64(chain.end) and is_integer(chain.end):
            raise Unsupported(no_integer_dtype(chain.end))
        is_discontinuous = chain.steps and chain.source.qparams.dtype == "INT16"
        if is_discontinuous and out.q is not None and not self.b.follows_steps(entries(chain, self.env), out.q):
            raise Unsupported(TOO_MANY_STEPS)
        return chain

    def lower(self, node: Node, spec: OpSpec, args: tuple[Any, ...], kwargs: dict[str, Any], out: Result) -> Any:
        assert spec.lower is not None
        if out.q is None and not out.dtype and not is_int64(node) and is_integer(node):
            raise Unsupported(no_integer_dtype(node))
        quantized = [x.qparams for x in flat(args) if isinstance(x, QTensor) and not x.is_integer]
        if out.q is None and quantized:
            rule = spec.rule(node).output
            if rule in ("own", "fixed"):
                raise Unsupported(NOT_OUTPUT_QUANTIZED)
            if rule == "same" and not quantized[0].per_channel:  # data movement preserves the quantization parameters
                out = replace(out, q=quantized[0])
        self.check_channels(node, spec, args)
        if node in self._late:
            raise Unsupported(RETURNED_LATE)
        with self.b.attempt():
            result = spec.lower(self.b, *args, **kwargs, out=out)
        if isinstance(result, QTensor) and result.is_integer:
            result = self.b.wrap(result, out.dtype)
        if isinstance(result, QTensor):
            assert result.shape == out.shape, f"{node.format_node()}: lowered to {result.shape}, expected {out.shape}"
            assert result.q == out.q or out.q is None, f"{node.format_node()}: result in {result.q}, expected {out.q}"
        return result

    def require_present(self, spec: OpSpec, args: tuple[Any, ...]) -> None:
        """Check that no argument is an OnCpu or a PointwiseChain."""
        for x in flat(args):
            if isinstance(x, OnCpu) and is_int64(x.node):
                raise Unsupported(self.absent(spec) or INT64_INPUT)
            if isinstance(x, (OnCpu, PointwiseChain)):
                raise Unsupported(not_quantized(x.node if isinstance(x, OnCpu) else x.end))

    def check_int32(self, spec: OpSpec, args: tuple[Any, ...], out: Result) -> None:
        """Check that the target and the operator support the int32 activations that the operator reads or returns."""
        reads = [x for x in flat(args) if isinstance(x, QTensor) and x.is_quantized and x.qparams.dtype == "INT32"]
        returns = out.q is not None and out.q.dtype == "INT32"
        if (reads or returns) and not self.b.tuning.int32_activations:
            raise Unsupported(NO_INT32_ACTIVATIONS)
        if reads and not (spec.moves or spec.int32):
            raise Unsupported(INT32_OPERAND)

    def check_channels(self, node: Node, spec: OpSpec, args: tuple[Any, ...]) -> None:
        """Check that only output channels have separate scales."""
        if spec is permute:
            return
        layer = spec.rule(node).layer
        axes = {} if layer is None else {layer.weight: 1 if layer.weight_axis is None else layer.weight_axis, layer.bias: 0}
        for place, arg in enumerate(args):
            for x in flat(arg):
                axis = x.qparams.axis if isinstance(x, QTensor) and x.is_quantized else None
                if axis is not None and axis != axes.get(place):
                    raise Unsupported(per_channel(axis, axes.get(place)))

    def absent(self, spec: OpSpec) -> Reason | None:
        """Return the reason why the target does not support computed indices, or None if it does."""
        row = self.b.limits.get(spec.needs)
        return row.refuse(spec.needs, "INT8", {}, self.b.target) if row and not row.present else None

    # --- outputs ------------------------------------------------------------------------------------------------------

    def outputs(self, node: Node) -> None:
        """Set the outputs of the TOSA graph. An output must not be int64, and can be float only if the target supports floats."""
        results: list[Node] = []
        torch.fx.map_arg(node.args, results.append)
        self.give([(result, storage_order(result.meta["val"])) for result in results])

    def give(self, results: Sequence[tuple[Node, tuple[int, ...]]]) -> None:
        """Set the outputs of the TOSA graph. ``results`` contains the returned nodes and their storage orders."""
        output_ids: set[int] = set()
        for result, order in results:
            x = self.plain(self.env[result])
            if isinstance(x, np.ndarray) and (self.b.floats or not np.issubdtype(x.dtype, np.floating)):
                x = constant_tensor(self.b, to_signed(x))
            elif self.b.floats and not isinstance(x, OnCpu) and result.meta["val"].dtype.is_floating_point:
                x = self.as_floats(x)
            if not isinstance(x, QTensor):
                raise Unsupported(NOT_OUTPUT_QUANTIZED)
            if result.meta["val"].dtype == torch.int64:
                raise Unsupported(INT64_OUTPUT)
            self.b.origin = origin_of_codes(result)
            value = self.b.store_as(x, [(dim,) for dim in order])
            if value.rank > MAX_RANK:
                value = self.b.reshape(value, merge_axes(value.shape))
            if result.meta["val"].dtype == torch.uint8:
                value = self.b.to_unsigned(value)
            if value.is_const or value in self.b.graph.inputs or id(value) in output_ids:
                value = self.b.emit("IDENTITY", value)
            output_ids.add(id(value))
            self.b.graph.outputs.append(value)
        _read_all_inputs(self.b)


def lower_program(program: ExportedProgram | Converted, builder: Builder) -> tosa.Graph:
    """Lower a program to a verified TOSA graph.

    Raises:
        Unsupported: An operator cannot run on the builder's target.
    """
    Walk(program.graph, constants_of(program), builder).run()
    verify(builder.graph)
    return builder.graph


def _excess_outputs(graph: Graph) -> frozenset[Node]:
    results: list[Node] = []
    for node in graph.nodes:
        if node.op == "output":
            torch.fx.map_arg(node.args, results.append)
    excess = set()
    for result in results[MOST_RETURNED:]:
        while result.target is operator.getitem or op_name(result.target) in QUANTIZE | DEQUANTIZE:
            result = result.all_input_nodes[0]
        excess.add(result)
    return frozenset(excess)


def _read_all_inputs(b: Builder) -> None:
    """Add each unused input, multiplied by 0, to an output. See ``vela.unread-input``."""
    outputs = b.graph.outputs
    read = {id(value) for value in outputs}
    for op in reversed(b.graph.ops):
        if any(id(result) in read for result in op.results):
            read.update(id(operand) for operand in op.operands)
    place = next((k for k, value in enumerate(outputs) if value.dtype in ("INT8", "INT16", "INT32")), None)
    for value in b.graph.inputs:
        if id(value) in read or place is None or value.dtype not in INTEGERS:
            continue
        total, dtype = outputs[place], outputs[place].dtype
        first = b.widen(b.reshape(b.crop(value, (1,) * value.rank), (1,) * total.rank))
        zero = b.emit("MUL", first, b.const_like(total, 0), shift=0)
        total = b.emit("ADD", b.widen(total), zero)
        outputs[place] = total if dtype == "INT32" else b.rescale(total, 1.0, dtype=dtype)
