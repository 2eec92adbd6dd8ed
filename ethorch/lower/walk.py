"""The single walk: a quantized FX graph, read once, becomes a tosa.Graph.

The same walk serves ``EthosUBackend.preprocess`` (strict: a refusal is raised) and the partitioner (a dry run over the
whole program: refusals are collected, and a refused operator's result is simply not there for its users). It reads the
edge dialect or the ATen graph as exported alike, and rewrites neither.
"""

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
from ethorch.lower.frame import Constants, Frame, constant_tensor, is_constant, result_of, signed
from ethorch.lower.fx.control_flow import is_control_flow
from ethorch.lower.fx.node import (
    ASSERTIONS,
    DEQUANTIZE,
    INTEGERS,
    QUANTIZE,
    arguments,
    as_array,
    constants_of,
    flat,
    has_scalar_dim,
    is_int64,
    is_integer,
    is_left_out,
    makes_constant,
    mapped,
    op_name,
    origin_of_codes,
    shape_of_values,
    storage_order,
    writes_back,
)
from ethorch.lower.ops.rounding import TOO_MANY_STEPS
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
    unknown_operator,
)
from ethorch.models.open_sizes import is_dynamic, is_size
from ethorch.support.errors import Reason, Unsupported
from ethorch.tosa import ir as tosa
from ethorch.tosa.verify import verify


class Walk(Frame):
    """One pass over a graph.

    Args:
        graph, constants, builder, refused, given: see Frame.
        strict: raise Unsupported instead of collecting it, and give the TOSA graph its outputs.
    """

    def __init__(
        self,
        graph: Graph,
        constants: Constants,
        builder: Builder,
        *,
        strict: bool = True,
        refused: Mapping[Node, Reason] | None = None,
        given: Mapping[Node, Any] | None = None,
    ):
        super().__init__(graph, constants, builder, refused=refused, given=given)
        self.strict = strict
        self._late = frozenset[Node]() if strict else _returned_late(graph)
        self._floats = Floats(self)
        self._regions = Regions(self)

    def run(self) -> Walk:
        """Lower every node of the graph, in its order.

        Raises:
            Unsupported: a node cannot run, and the walk is strict.
        """
        for node in self.graph.nodes:
            self.b.origin = origin_of_codes(node)
            if node.op in ("placeholder", "get_attr"):
                self.env[node] = self.leaf(node)
            elif node.op == "call_function":
                self.call(node)
            elif node.op == "call_module":
                self.env[node] = OnCpu(node)
            elif node.op == "output" and self.strict and self.given is None:
                self.outputs(node)
        return self

    def nested(self, graph: Graph, constants: Constants, builder: Builder, given: Mapping[Node, Any]) -> Walk:
        """See Frame; always strict."""
        return Walk(graph, constants, builder, refused=self.refusals, given=given).run()

    def as_floats(self, x: Any) -> Any:
        """See Frame."""
        return self._floats.operand(x)

    # --- operators ----------------------------------------------------------------------------------------------------

    def call(self, node: Node) -> None:
        """Lower one node, or write down why it cannot run."""
        if node in self.refusals:
            if self.given is not None:
                raise Unsupported(self.refusals[node])
            self.env[node] = self.boundary(node)
            return
        if node.target is operator.getitem and isinstance(self.env[node.all_input_nodes[0]], OnCpu):
            there = self.boundary(node)  # one of several results of the CPU, at hand where the target has its dtype
            if not isinstance(there, OnCpu):
                self.env[node] = there
                return
        try:
            self.env[node] = self.result(node)
            if not isinstance(self.env[node], OnCpu):
                self.supported.add(node)
        except Unsupported as refusal:
            if self.strict:
                refusal.place = refusal.place or origin_of_codes(node)
                raise
            if op_name(node.target) not in QUANTIZE:  # the integers it makes are at hand all the same: the CPU computes them
                self.refusals[node] = refusal.reason
            self.env[node] = self.boundary(node)

    def result(self, node: Node) -> Any:
        """See Frame."""
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
        if (self.b.floats or self.given is not None) and makes_constant(node):
            return self.folded(node)
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
        """A result without elements (a slice of nothing), which is a constant whatever computes it; None for any other.

        Raises:
            Unsupported: the program gives it back, and TOSA has no such tensor.
        """
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.numel() or is_control_flow(node):
            return None
        if any(user.op == "output" for user in node.users):
            raise Unsupported(EMPTY_OUTPUT)
        return as_array(torch.empty(value.shape, dtype=value.dtype))

    def item(self, node: Node) -> Any:
        """One of several results. Operators whose other results nobody may read (indices, statistics) lower to the first."""
        source, index = self.env[node.all_input_nodes[0]], cast(int, node.args[1])
        if isinstance(source, (list, tuple)):
            return source[index]
        return source if index == 0 else OnCpu(node)

    def of_integers(self, node: Node, spec: OpSpec) -> Any:
        """See Frame. A pointwise operator on one quantized tensor becomes a chain, which is not computed yet."""
        name = op_name(node.target)
        args, kwargs = self.arguments(node)
        tensors = [x for x in flat([*args, *kwargs.values()]) if isinstance(x, (QTensor, PointwiseChain, OnCpu, np.ndarray))]
        if tensors and all(isinstance(x, np.ndarray) or (spec.pointwise and is_constant(x)) for x in tensors):
            return self.folded(node)
        if is_left_out(node):
            raise Unsupported(LEFT_OUT)
        out = result_of(node, self.output_qparams(node))
        self.check_int32(spec, args, out)
        source = chain_source(node, spec, self.env, out.shape, quantized=out.q is not None)
        absorbed = spec.lower is not None and spec.absorbs and out.q is not None and not has_chain(args)
        if source is not None and not absorbed:
            steps = spec.steps or any(isinstance(arg, PointwiseChain) and arg.steps for arg in args)
            return self.chained(PointwiseChain(source, node, steps), out)
        if out.q is not None and out.q.dtype == "INT32" and not (spec.moves or spec.int32):
            raise Unsupported(INT32_OPERAND)
        args, kwargs = mapped(args, self.plain), mapped(kwargs, self.plain)
        self.require_present(spec, args)
        if spec.truths:
            args = tuple(self.integers_apart(arg, x) for arg, x in zip(arguments(node)[0], args, strict=True))
        args, kwargs = spec.canonical(name, args, kwargs)
        args = tuple(mapped(arg, self.tensor) if k in spec.tensors else arg for k, arg in enumerate(args))
        reason = spec.check(*args, **kwargs) if spec.check else None
        if reason:
            computed = any(isinstance(x, QTensor) and x.is_integer and not x.value.is_const for x in flat(args))
            raise Unsupported((self.absent(spec) if computed else None) or reason)
        if spec.lower is None:
            raise Unsupported(no_table(name, spec, args))
        return self.lower(node, spec, args, kwargs, out)

    def tensor(self, x: Any) -> Any:
        """A constant among what a lowering takes as tensors: integers that others are joined to, written into, picked from.

        Raises:
            Unsupported: it is float, as the weights of a module that is left out of quantization, on a target of integers.
        """
        if isinstance(x, np.ndarray) and x.size and np.issubdtype(x.dtype, np.floating) and not self.b.floats:
            raise Unsupported(FLOAT_CONSTANT)
        return constant_tensor(self.b, x) if isinstance(x, np.ndarray) else x

    def integers_apart(self, arg: Any, x: Any) -> Any:
        """Return ``x`` widened to INT32 if ``arg`` holds 8-bit integers of PyTorch, which TOSA would take for truth values."""
        value = arg.meta.get("val") if isinstance(arg, Node) else None
        if not isinstance(x, QTensor) or not x.is_integer or not isinstance(value, torch.Tensor) or value.dtype != torch.int8:
            return x
        return QTensor(self.b.widened(x.value), x.dims, None)

    def chained(self, chain: PointwiseChain, out: Result) -> PointwiseChain:
        """The chain itself.

        Raises:
            Unsupported: it is a function of int16 that jumps in more places than tables can follow, or TOSA lacks its dtype.
        """
        if out.q is None and not out.dtype and not is_int64(chain.end) and is_integer(chain.end):
            raise Unsupported(no_integer_dtype(chain.end))
        jumps = chain.steps and chain.source.qparams.dtype == "INT16"
        if jumps and out.q is not None and not self.b.follows_steps(entries(chain, self.env), out.q):
            raise Unsupported(TOO_MANY_STEPS)
        return chain

    def lower(self, node: Node, spec: OpSpec, args: tuple[Any, ...], kwargs: dict[str, Any], out: Result) -> Any:
        """Call the operator's lowering, and hold its result against ``out``."""
        assert spec.lower is not None
        if out.q is None and not out.dtype and not is_int64(node) and is_integer(node):
            raise Unsupported(no_integer_dtype(node))
        quantized = [x.qparams for x in flat(args) if isinstance(x, QTensor) and not x.is_integer]
        if out.q is None and quantized:
            rule = spec.rule(node).output
            if rule in ("own", "fixed"):
                raise Unsupported(NOT_OUTPUT_QUANTIZED)
            if rule == "same" and not quantized[0].per_channel:  # what moves data needs no quantize node behind it
                out = replace(out, q=quantized[0])
        if node in self._late:
            raise Unsupported(RETURNED_LATE)
        with self.b.attempt():
            result = spec.lower(self.b, *args, **kwargs, out=out)
        if isinstance(result, QTensor) and result.is_integer:
            result = self.b.wrapped(result, out.dtype)
        if isinstance(result, QTensor):
            assert result.shape == out.shape, f"{node.format_node()}: lowered to {result.shape}, PyTorch says {out.shape}"
            assert result.q == out.q or out.q is None, f"{node.format_node()}: result in {result.q}, wanted {out.q}"
        return result

    def require_present(self, spec: OpSpec, args: tuple[Any, ...]) -> None:
        """Every tensor among the arguments is on the NPU.

        Raises:
            Unsupported: one is not. A chain that ends here would need a quantize node.
        """
        for x in flat(args):
            if isinstance(x, OnCpu) and is_int64(x.node):
                raise Unsupported(self.absent(spec) or INT64_INPUT)
            if isinstance(x, (OnCpu, PointwiseChain)):
                raise Unsupported(not_quantized(x.node if isinstance(x, OnCpu) else x.end))

    def check_int32(self, spec: OpSpec, args: tuple[Any, ...], out: Result) -> None:
        """Raise Unsupported if the operator reads or returns int32 activations that the target, or the operator, has not."""
        reads = [x for x in flat(args) if isinstance(x, QTensor) and x.is_quantized and x.qparams.dtype == "INT32"]
        returns = out.q is not None and out.q.dtype == "INT32"
        if (reads or returns) and not self.b.tuning.int32_activations:
            raise Unsupported(NO_INT32_ACTIVATIONS)
        if reads and not (spec.moves or spec.int32):
            raise Unsupported(INT32_OPERAND)

    def absent(self, spec: OpSpec) -> Reason | None:
        """Why the target cannot read a computed index, where it has no operator that does so."""
        row = self.b.limits.get(spec.needs)
        return row.refuse(spec.needs, "INT8", {}, self.b.target) if row and not row.present else None

    # --- outputs ------------------------------------------------------------------------------------------------------

    def outputs(self, node: Node) -> None:
        """Make what the graph returns the outputs of the TOSA graph, each computed by an operator of its own.

        Raises:
            Unsupported: a float result on a target without floats, or an int64 one.
        """
        results: list[Node] = []
        torch.fx.map_arg(node.args, results.append)
        self.give([(result, storage_order(result.meta["val"])) for result in results])

    def give(self, results: Sequence[tuple[Node, tuple[int, ...]]]) -> None:
        """Make these the outputs of the TOSA graph, in the order in memory that stands beside each.

        Raises:
            Unsupported: as of ``outputs``.
        """
        seen: set[int] = set()
        for result, order in results:
            x = self.plain(self.env[result])
            if isinstance(x, np.ndarray) and (self.b.floats or not np.issubdtype(x.dtype, np.floating)):
                x = constant_tensor(self.b, signed(x))
            elif self.b.floats and not isinstance(x, OnCpu) and result.meta["val"].dtype.is_floating_point:
                x = self.as_floats(x)
            if not isinstance(x, QTensor):
                raise Unsupported(NOT_OUTPUT_QUANTIZED)
            if result.meta["val"].dtype == torch.int64:
                raise Unsupported(INT64_OUTPUT)
            self.b.origin = origin_of_codes(result)
            value = self.b.stored_as(x, [(dim,) for dim in order])
            if result.meta["val"].dtype == torch.uint8:
                value = self.b.to_unsigned(value)
            if value.is_const or value in self.b.graph.inputs or id(value) in seen:
                value = self.b.emit("IDENTITY", value)
            seen.add(id(value))
            self.b.graph.outputs.append(value)
        _read_all_inputs(self.b)


def lower_program(program: ExportedProgram, builder: Builder) -> tosa.Graph:
    """The whole program (one delegate's, as ExecuTorch hands it to ``preprocess``) as a verified TOSA graph.

    Raises:
        Unsupported: an operator cannot run on the builder's target.
    """
    Walk(program.graph, constants_of(program), builder).run()
    verify(builder.graph)
    return builder.graph


def _returned_late(graph: Graph) -> frozenset[Node]:
    """The operators whose results the graph returns behind as many others as Vela finds places for."""
    results: list[Node] = []
    for node in graph.nodes:
        if node.op == "output":
            torch.fx.map_arg(node.args, results.append)
    found = set()
    for result in results[MOST_RETURNED:]:
        while result.target is operator.getitem or op_name(result.target) in QUANTIZE | DEQUANTIZE:
            result = result.all_input_nodes[0]
        found.add(result)
    return frozenset(found)


def _read_all_inputs(b: Builder) -> None:
    """Add inputs that no output depends on (a softmax of one number is 1) to an output, times 0: ``vela.unread-input``."""
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
        first = b.widened(b.reshape(b.cropped(value, (1,) * value.rank), (1,) * total.rank))
        nothing = b.emit("MUL", first, b.const(np.zeros((1,) * total.rank, np.int32)), shift=0)
        total = b.emit("ADD", b.widened(total), nothing)
        outputs[place] = total if dtype == "INT32" else b.rescale(total, 1.0, dtype=dtype)
