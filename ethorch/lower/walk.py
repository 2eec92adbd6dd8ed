"""The single walk: a quantized FX graph, read once, becomes a tosa.Graph.

The same walk serves ``EthosUBackend.preprocess`` (strict: a refusal is raised) and the partitioner (a dry run over the
whole program: refusals are collected, and a refused operator's result is simply not there for its users). It reads the
edge dialect or the ATen graph as exported alike, and rewrites neither.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch.fx import Graph as FxGraph
from torch.fx import Node

from ethorch.branches import is_control_flow
from ethorch.errors import Reason, Unsupported
from ethorch.layout import contiguous
from ethorch.nodes import (
    ASSERTIONS,
    DEQUANTIZE,
    INT64_INPUT,
    INT64_OUTPUT,
    INTEGERS,
    NOT_OUTPUT_QUANTIZED,
    QUANTIZE,
    TOSA_DTYPE,
    WRITTEN_BACK,
    as_array,
    as_tensor,
    aten_call,
    constants_of,
    flat,
    is_int64,
    mapped,
    no_table,
    not_decomposed,
    origin_of,
    storage_order,
    unknown_operator,
    writes_back,
)
from ethorch.ops.logic import widened
from ethorch.ops.rounding import TOO_MANY_STEPS
from ethorch.ops.spec import OpSpec, find, op_name, overload_of
from ethorch.qparams import QParams, QTensor, real
from ethorch.tosa.builder import Builder
from ethorch.tosa.ir import Graph


@dataclass(frozen=True)
class Missing:
    """A float tensor that the NPU does not have: computed on the CPU, for the reason given where it is used."""

    node: Node


@dataclass(frozen=True)
class Chain:
    """Pointwise operators on one quantized tensor, not yet computed: a quantize node turns them into one TABLE.

    ``steps``: what they compute jumps.
    """

    source: QTensor
    end: Node
    steps: bool = False


class Walk:
    """One pass over ``graph``.

    Args:
        constants: FX node -> array of a parameter, buffer or constant; None for any other node. Arrays are views.
        builder: receives the TOSA.
        strict: raise Unsupported instead of collecting it.
        given: of a graph that control flow holds: what its placeholders stand for. Nothing else comes from outside.
        refused: nodes not to try (a previous pass of the dry run refused them), with their reasons.
    """

    def __init__(
        self, graph: FxGraph, constants: Callable[[Node], np.ndarray | None], builder: Builder, *, strict: bool = True,
        refused: Mapping[Node, Reason] | None = None, given: Mapping[Node, Any] | None = None,
    ):  # fmt: skip
        from ethorch.lower_floats import Floats
        from ethorch.lower_regions import Regions

        self.graph = graph
        self.constants = constants
        self.b = builder
        self.strict = strict
        self.refusals: dict[Node, Reason] = dict(refused or {})
        self.supported: set[Node] = set()
        self.env: dict[Node, Any] = {}
        self.looked_up: dict[Node, QTensor] = {}
        self.given = given
        self.inside: set[Node] = set()  # supported nodes of graphs that control flow holds
        self.floats = Floats(self)
        self.regions = Regions(self)

    def run(self) -> Walk:
        for node in self.graph.nodes:
            self.b.origin = origin_of(node)
            if node.op == "placeholder" or node.op == "get_attr":
                self.env[node] = self.leaf(node)
            elif node.op == "call_function":
                self.call(node)
            elif node.op == "output" and self.strict and self.given is None:
                self.outputs(node)
            elif node.op == "call_module":
                self.env[node] = Missing(node)
        return self

    # --- leaves -----------------------------------------------------------------------------------------------------

    def leaf(self, node: Node) -> Any:
        array = self.constants(node)
        if array is not None:
            return array
        return self.given[node] if self.given is not None and node in self.given else self.boundary(node)

    def boundary(self, node: Node) -> Any:
        """A tensor that comes from outside: an input of the TOSA graph if it holds integers, else Missing."""
        if self.given is not None:
            return Missing(node)
        tensor = node.meta.get("val")
        if not isinstance(tensor, torch.Tensor) or TOSA_DTYPE.get(tensor.dtype) not in INTEGERS | self.b.floats:
            return Missing(node)
        order = storage_order(tensor)
        dtype = self.b.truth if tensor.dtype == torch.bool else TOSA_DTYPE[tensor.dtype]
        value = self.b.input(node.name, [int(tensor.shape[dim]) for dim in order], dtype)
        q = real(dtype) if dtype in self.b.floats else None
        return QTensor(value, tuple((order.index(dim),) for dim in range(tensor.dim())), q)

    def outputs(self, node: Node) -> None:
        seen: set[int] = set()
        flat: list[Node] = []
        torch.fx.map_arg(node.args, flat.append)
        for result in flat:
            x = self.plain(self.env[result])
            if self.b.floats and not isinstance(x, Missing):
                x = self.floats.output(result, x)
            if not isinstance(x, QTensor):
                raise Unsupported(NOT_OUTPUT_QUANTIZED)
            if result.meta["val"].dtype == torch.int64:
                raise Unsupported(INT64_OUTPUT)
            self.b.origin = origin_of(result)
            value = self.b.stored_as(x, [(dim,) for dim in storage_order(result.meta["val"])])
            if value.is_const or value in self.b.graph.inputs or id(value) in seen:
                value = self.b.emit("IDENTITY", value)
            seen.add(id(value))
            self.b.graph.outputs.append(value)
        self.read_all_inputs()

    def read_all_inputs(self) -> None:
        """Inputs that no output depends on (a softmax of one number is 1) are added to one, times 0: Vela drops unread ones."""
        b, outputs = self.b, self.b.graph.outputs
        read = {id(value) for value in outputs}
        for op in reversed(b.graph.ops):
            if any(id(result) in read for result in op.results):
                read.update(id(operand) for operand in op.operands)
        place = next((k for k, value in enumerate(outputs) if value.dtype in ("INT8", "INT16", "INT32")), None)
        for value in b.graph.inputs:
            if id(value) in read or place is None or value.dtype not in INTEGERS:
                continue
            total, dtype = outputs[place], outputs[place].dtype
            first = value if set(value.shape) <= {1} else b.emit("SLICE", value, start=(0,) * value.rank, size=(1,) * value.rank)
            first = widened(b, b.reshape(first, (1,) * total.rank))
            nothing = b.emit("MUL", first, b.const(np.zeros((1,) * total.rank, np.int32)), shift=0)
            total = b.emit("ADD", widened(b, total), nothing)
            outputs[place] = total if dtype == "INT32" else b.rescale(total, 1.0, dtype=dtype)

    # --- operators --------------------------------------------------------------------------------------------------

    def call(self, node: Node) -> None:
        if node in self.refusals:
            if self.given is not None:
                raise Unsupported(self.refusals[node])
            self.env[node] = self.boundary(node)
            return
        try:
            self.env[node] = self.result(node)
            if not isinstance(self.env[node], Missing):
                self.supported.add(node)
        except Unsupported as refusal:
            if self.strict:
                raise
            self.refuse(node, refusal.reason)

    def refuse(self, node: Node, reason: Reason) -> None:
        """Not on the NPU. The integers a quantize node makes are still at hand: the CPU computes them."""
        if op_name(node.target) not in QUANTIZE:
            self.refusals[node] = reason
        self.env[node] = self.boundary(node)

    def result(self, node: Node) -> Any:
        name = op_name(node.target)
        if name in QUANTIZE:
            return self.quantize(node)
        if name in DEQUANTIZE:
            return self.dequantize(node)
        if node.target is operator.getitem:
            return self.item(node)
        if name in ASSERTIONS:
            return None
        if is_control_flow(node):
            return self.regions.lower(node)
        spec = find(node.target)
        if (self.b.floats or self.given is not None) and self.floats.makes_constant(node):
            return self.folded(node)
        if spec is None:
            raise Unsupported(unknown_operator(node))
        if self.b.floats:
            return self.floats.lower(node, spec)
        if spec.composite:
            raise Unsupported(WRITTEN_BACK if writes_back(node) else not_decomposed(node))
        return self.of_integers(node, spec)

    def begin(self, node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The node's arguments; the builder knows from here on what its result shall be."""
        result = node.meta.get("val")
        result = result[0] if isinstance(result, (tuple, list)) and result else result
        if isinstance(result, torch.Tensor):
            self.b.result_shape = tuple(int(extent) for extent in result.shape)
            self.b.result_dtype = TOSA_DTYPE.get(result.dtype, "")
        return self.arguments(node)

    def of_integers(self, node: Node, spec: OpSpec) -> Any:
        """An operator of quantized tensors, plain integers and truth values."""
        name = op_name(node.target)
        args, kwargs = self.begin(node)
        if self.constant(args, kwargs):
            return self.folded(node)
        source = self.single_source(node, spec)
        if source is not None and not (self.ends_here(args) and spec.lower and spec.absorbs and self.output_qparams(node)):
            chain = Chain(source, node, spec.steps or any(isinstance(arg, Chain) and arg.steps for arg in args))
            if source.qparams.dtype == "INT16" and chain.steps:
                self.require_few_steps(chain)
            return chain
        args, kwargs = mapped(args, self.plain), mapped(kwargs, self.plain)
        self.require_present(node, spec, args)
        args, kwargs = spec.canonical(name, args, kwargs)
        for check in spec.checks:
            reason = check(*args, **kwargs)
            if reason:
                raise Unsupported(reason)
        if spec.lower is None:
            raise Unsupported(no_table(name, spec, args))
        return self.lower(node, spec, args, kwargs)

    def lower(self, node: Node, spec: OpSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert spec.lower is not None
        out = self.output_qparams(node)
        quantized = [arg.q for arg in flat(args) if isinstance(arg, QTensor) and arg.q is not None]
        if out is None and spec.rule(node).output == "same" and quantized:
            out = None if quantized[0].per_channel else quantized[0]          # what moves data needs no quantize node behind it
        elif out is None and spec.rule(node).output in ("own", "fixed") and quantized:
            raise Unsupported(NOT_OUTPUT_QUANTIZED)
        before = len(self.b.graph.ops)
        try:
            result = spec.lower(self.b, *args, **kwargs, out=out)
        except Unsupported:
            del self.b.graph.ops[before:]
            raise
        wanted = self.b.result_shape
        if isinstance(result, QTensor) and result.q is None:
            result = self.b.wrapped(result)
        if isinstance(result, QTensor):
            assert result.shape == wanted, f"{node.format_node()}: lowered to {result.shape}, PyTorch says {wanted}"
            assert result.q == out or out is None, f"{node.format_node()}: result in {result.q}, wanted {out}"
        return result

    def item(self, node: Node) -> Any:
        """One of several results. Operators whose other results nobody may read (indices, statistics) lower to the first."""
        source, index = self.env[node.all_input_nodes[0]], cast(int, node.args[1])
        if isinstance(source, (list, tuple)):
            return source[index]
        return source if index == 0 else Missing(node)

    def arguments(self, node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The node's arguments as values, defaults filled in; keyword-only ones as keywords."""
        overload = overload_of(node.target)
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        for index, argument in enumerate(overload._schema.arguments):
            if index < len(node.args):
                value: Any = node.args[index]
            elif argument.name in node.kwargs:
                value = node.kwargs[argument.name]
            elif argument.kwarg_only and argument.default_value is None:
                continue
            else:
                value = argument.default_value
            value = torch.fx.map_arg(value, lambda n: self.env[n])
            if argument.kwarg_only:
                keywords[argument.name] = value
            else:
                positional.append(value)
        return tuple(positional), keywords

    @staticmethod
    def constant(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Are all the tensors among the arguments float constants?"""
        values = [value for value in flat([*args, *kwargs.values()]) if isinstance(value, (QTensor, Chain, Missing, np.ndarray))]
        return bool(values) and all(isinstance(value, np.ndarray) for value in values)

    def folded(self, node: Node) -> np.ndarray | list[np.ndarray]:
        """An operator of constants, computed now: as a decomposed ``x * 2`` has its 2."""

        def tensor(argument: Node) -> torch.Tensor:
            return as_tensor(self.env[argument])

        target, kwargs = aten_call(node)
        if node.all_input_nodes and not all(isinstance(self.env[n], np.ndarray) for n in node.all_input_nodes):  # full_like(x)
            like = node.meta["val"]
            return as_array(target(torch.empty(like.shape, dtype=like.dtype), *node.args[1:], **kwargs))
        with torch.no_grad():
            result = target(*torch.fx.map_arg(node.args, tensor), **torch.fx.map_arg(kwargs, tensor))
        if isinstance(result, (tuple, list)) and all(isinstance(part, torch.Tensor) for part in result):
            return [as_array(part) for part in result]
        if not isinstance(result, torch.Tensor):
            raise Unsupported(Reason("graph.constants", f"{op_name(node.target)} of constants is no tensor"))
        return as_array(result)

    def require_present(self, node: Node, spec: OpSpec, args: tuple[Any, ...]) -> None:
        """Refuse where a tensor argument is not on the NPU; finish chains that end here would need a quantize node."""
        for value in flat(args):
            if isinstance(value, Missing) and is_int64(value.node):
                lacking = self.b.limits.get(spec.needs)
                absent = lacking.refuse(spec.needs, "INT8", {}, self.b.target) if lacking and not lacking.present else None
                raise Unsupported(absent or INT64_INPUT)
            if isinstance(value, (Missing, Chain)):
                raise Unsupported(
                    Reason(
                        "graph.input_not_quantized",
                        f"its input {value.node if isinstance(value, Missing) else value.end} is float",
                        "Quantize the module it is in, and calibrate.",
                    )
                )

    # --- quantize, dequantize, tables ---------------------------------------------------------------------------------

    def output_qparams(self, node: Node) -> QParams | None:
        """QParams of the quantize nodes that read ``node``, looked up through operators that cost nothing."""
        found: QParams | None = None
        users, carrier = list(node.users), node
        if isinstance(node.meta.get("val"), (tuple, list)):  # only the first result is ever quantized
            carrier = next((user for user in users if user.target is operator.getitem and user.args[1] == 0), node)
            users = [] if carrier is node else list(carrier.users)
        if len(users) == 1 and op_name(users[0].target) not in QUANTIZE:
            spec = find(users[0].target) if users[0].op == "call_function" else None
            if spec is not None and spec.absorbs and users[0] not in self.refusals and users[0].args[0] is carrier:
                return self.output_qparams(users[0])
            return None
        for user in users:
            q = self.qparams_of(user) if op_name(user.target) in QUANTIZE else None
            if q is None or found not in (None, q):
                return None
            found = q
        return found

    def qparams_of(self, node: Node) -> QParams | None:
        """QParams of a quantize or dequantize node; None where a parameter is not known at compile time."""
        name = op_name(node.target)
        args: list[Any] = [self.constants(arg) if isinstance(arg, Node) and index else arg for index, arg in enumerate(node.args)]
        if any(arg is None for arg in args[1:]):
            return None
        if "per_channel" in name:
            scales, zeros, axis, low, high, dtype = np.asarray(args[1]), np.asarray(args[2]), *args[3:7]
        else:
            scales, zeros, axis, low, high, dtype = np.atleast_1d(args[1]), np.atleast_1d(args[2]), None, *args[3:6]
        if dtype not in TOSA_DTYPE:
            return None
        zero_points = tuple(int(zero) for zero in zeros) if zeros.any() else (0,) * scales.size
        return QParams(tuple(scales.astype(np.float64).tolist()), zero_points, int(low), int(high), TOSA_DTYPE[dtype], axis)

    def quantize(self, node: Node) -> Any:
        x, q = self.env[node.all_input_nodes[0]], self.qparams_of(node)
        inside = bool(self.b.floats) or self.given is not None
        if isinstance(x, np.ndarray) and q is not None and not q.per_channel and inside:
            return QTensor(self.b.const(q.quantize(x), q.dtype, node.name), contiguous(x.shape), q)
        if isinstance(x, (Missing, np.ndarray)) or q is None or q.per_channel:
            return self.boundary(node)
        if isinstance(x, Chain) and not self.b.integers:
            x = self.floats.operand(x)
        if isinstance(x, Chain):
            return self.table(x, q)
        assert isinstance(x, QTensor)
        return self.b.requantized(x, q)

    def dequantize(self, node: Node) -> Any:
        source = node.all_input_nodes[0]
        x, q = self.env[source], self.qparams_of(node)
        if isinstance(x, np.ndarray) and q is not None:
            value = self.b.const(x, q.dtype, source.name)
            return QTensor(value, contiguous(x.shape), q)
        if not isinstance(x, QTensor) or q is None or q.per_channel:
            return Missing(node)
        return QTensor(x.value, x.dims, q)

    @staticmethod
    def ends_here(args: tuple[Any, ...]) -> bool:
        """Is every argument at hand, none still a chain?"""
        return not any(isinstance(value, Chain) for value in flat(args))

    def single_source(self, node: Node, spec: OpSpec) -> QTensor | None:
        """The one quantized tensor a pointwise operator depends on, directly or through a chain; None otherwise."""
        if not spec.pointwise:
            return None
        source: QTensor | None = None
        for arg in (*node.args, *node.kwargs.values()):
            x = self.env[arg] if isinstance(arg, Node) else arg
            if isinstance(x, np.ndarray) and x.size == 1:
                continue
            if isinstance(x, QTensor) and x.value.is_const and x.value.data is not None and x.value.data.size == 1:
                continue
            if isinstance(x, Chain):
                x = x.source
            if isinstance(x, QTensor):
                if x.q is None or x.q.is_real or (source is not None and source != x):
                    return None
                if x.q.dtype not in spec.table_dtypes and (spec.lower is not None or self.output_qparams(node) is None):
                    return None
                source = x
            elif isinstance(arg, Node):
                return None
        if source is None or source.value.is_const or source.shape != self.b.result_shape:
            return None
        return source

    def plain(self, x: Any) -> Any:
        """A chain that ends in truth values or integers, as those; anything else as it is."""
        if not isinstance(x, Chain) or x.end.meta["val"].dtype.is_floating_point:
            return x
        if x.end not in self.looked_up:
            real, dtype = self.entries(x), x.end.meta["val"].dtype
            looked_up = self.b.truth_table(x.source, real) if dtype == torch.bool else self.b.integer_table(x.source, real)
            self.looked_up[x.end] = looked_up
        return self.looked_up[x.end]

    def table(self, chain: Chain, out: QParams) -> QTensor:
        """The chain as one TABLE, or a sum of several."""
        return self.b.table(chain.source, self.entries(chain), out, exact=chain.steps)

    def require_few_steps(self, chain: Chain) -> None:
        """Refuse a function of int16 that jumps in more places than tables can follow."""
        out = self.output_qparams(chain.end)
        if out is not None and not self.b.follows_steps(self.entries(chain), out):
            raise Unsupported(TOO_MANY_STEPS)

    def entries(self, chain: Chain) -> np.ndarray:
        """The chain's results: its operators, run on the reals of its source that a table has entries for."""
        codes = torch.from_numpy(chain.source.qparams.table_inputs)
        results: dict[Node, Any] = {}

        def run(node: Node) -> Any:
            if node not in results:
                inside = node is chain.end or isinstance(self.env[node], Chain)
                results[node] = call(node) if inside else self.leaf_codes(self.env[node], codes)
            return results[node]

        def call(node: Node) -> Any:
            target, keywords = aten_call(node)
            fresh = target._schema.is_mutable  # an in-place form must not write into what others still read

            def value(arg: Any) -> Any:
                result = run(arg) if isinstance(arg, Node) else arg
                return result.clone() if fresh and isinstance(result, torch.Tensor) else result

            with torch.no_grad():
                return target(*map(value, node.args), **{key: value(arg) for key, arg in keywords.items()})

        return run(chain.end).expand(codes.shape).to(torch.float32).numpy()

    @staticmethod
    def leaf_codes(x: Any, codes: torch.Tensor) -> torch.Tensor:
        """What a chain's leaf is when the chain runs over its source's codes: the codes, or a constant."""
        if isinstance(x, np.ndarray):
            return as_tensor(x).reshape(())
        if x.value.is_const:
            return torch.from_numpy(x.qparams.dequantize(x.value.data.astype(np.int32))).reshape(())
        return codes


def lower_program(program: Any, builder: Builder) -> Graph:
    """The whole ExportedProgram (one delegate's, as ExecuTorch hands it to ``preprocess``) as a verified TOSA graph.

    Raises:
        Unsupported: an operator cannot run on the builder's target.
    """
    Walk(program.graph, constants_of(program), builder).run()
    builder.graph.verify()
    return builder.graph
