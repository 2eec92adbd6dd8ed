"""Lowering of graph inputs, constants and arguments, and of quantize and dequantize nodes.

``Walk``, ``Floats`` and ``Regions`` lower the operators.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.fx import Graph, Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QParams, QTensor, Result, dtype_range, float_qparams
from ethorch.lower.chains import OnCpu, PointwiseChain, entries
from ethorch.lower.fx.node import (
    DEQUANTIZE,
    INTEGERS,
    QUANTIZE,
    TOSA_DTYPE,
    arguments,
    as_array,
    as_tensor,
    aten_call,
    first_value,
    op_name,
    shape_of_values,
    storage_order,
)
from ethorch.lower.ops.arithmetic import absolute, neg
from ethorch.lower.ops.spec import OpSpec, find
from ethorch.lower.ops.weights import weight_array
from ethorch.lower.reasons import NOT_OUTPUT_QUANTIZED, no_tensor
from ethorch.models.open_sizes import has_open_size
from ethorch.support.errors import Reason, Unsupported
from ethorch.tosa.ir import DTYPES, FLOATS, Value
from ethorch.tosa.layout import contiguous, merge_axes

#: Function that returns a view of a constant node's array, or None for any other node.
Constants = Callable[[Node], npt.NDArray[Any] | None]


def result_of(node: Node, q: QParams | None = None) -> Result:
    """Return the shape and dtype of the node's first result, with quantization parameters ``q``."""
    value = first_value(node)
    if value is None:
        return Result((), "", q)
    return Result(tuple(int(extent) for extent in value.shape), TOSA_DTYPE.get(value.dtype, ""), q)


def dequantize_constant(x: QTensor) -> npt.NDArray[np.float32]:
    """Dequantize a constant. The dimensions of the result are in PyTorch's order."""
    q, codes = x.qparams, weight_array(x).astype(np.int32)
    shape = [-1 if axis == q.axis else 1 for axis in range(x.rank)] if q.per_channel else []
    zero_points, scales = np.reshape(q.zero_point, shape), np.reshape(np.asarray(q.scale, np.float32), shape)
    reals: npt.NDArray[np.float32] = ((codes - zero_points) * scales).astype(np.float32)
    return reals


def is_constant(x: Any) -> bool:
    return isinstance(x, np.ndarray) or (isinstance(x, QTensor) and x.is_quantized and x.value.is_const)


def constant_tensor(b: Builder, array: npt.NDArray[Any]) -> QTensor:
    """Convert an array to a constant tensor. float64 becomes FP32, and int64 is saturated to INT32."""
    if array.dtype == np.bool_:
        return b.plain_tensor(array)
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    if array.dtype == np.int64:
        array = np.clip(array, -(2**31), 2**31 - 1).astype(np.int32)
    dtype = next(name for name, kind in DTYPES.items() if array.dtype == kind and name != "INT4")
    return QTensor(b.const(array, dtype), contiguous(array.shape), float_qparams(dtype) if dtype in FLOATS else None)


def to_signed(codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert uint8 values to int8 by subtracting 128."""
    return (codes.astype(np.int16) - 128).astype(np.int8) if codes.dtype == np.uint8 else codes


def _is_quantized_input(node: Node) -> bool:
    return bool(node.users) and all(op_name(user.target) in DEQUANTIZE for user in node.users)


class Frame(ABC):
    """A graph being lowered to TOSA.

    Methods raise Unsupported if the target cannot run a node.

    Args:
        graph: FX graph, not modified.
        constants: Function that returns the array of a parameter, buffer or constant.
        refused: Nodes that were refused earlier, with the reasons.
        operands: Lowered values of a subgraph's placeholders.

    Attributes:
        inputs: The TOSA input for each node computed outside the TOSA graph.
        env: Lowered value of each node: a QTensor on the NPU, a PointwiseChain, a constant array, OnCpu, or, for a
            multi-output operator, a list of these.
        supported: Nodes of ``graph`` that can run on the NPU.
        inside: Supported nodes of control-flow subgraphs.
    """

    def __init__(
        self,
        graph: Graph,
        constants: Constants,
        builder: Builder,
        *,
        refused: Mapping[Node, Reason] | None = None,
        operands: Mapping[Node, Any] | None = None,
    ):
        self.graph = graph
        self.constants = constants
        self.b = builder
        self.operands = operands
        self.inputs: dict[Node, Value] = {}
        self.env: dict[Node, Any] = {}
        self.refusals: dict[Node, Reason] = dict(refused or {})
        self.supported: set[Node] = set()
        self.inside: set[Node] = set()

    # --- abstract methods ---------------------------------------------------------------------------------------------

    @abstractmethod
    def result(self, node: Node) -> Any:
        """Lower one node."""

    @abstractmethod
    def of_integers(self, node: Node, spec: OpSpec) -> Any:
        """Lower an operator on quantized, integer or bool tensors."""

    @abstractmethod
    def as_floats(self, x: Any) -> Any:
        """Dequantize a quantized tensor, or lower a PointwiseChain to floats. The target must support floats."""

    @abstractmethod
    def lower_nested(self, graph: Graph, constants: Constants, builder: Builder, operands: Mapping[Node, Any]) -> Frame:
        """Lower the nodes of a control-flow subgraph, except the output node."""

    # --- leaves -------------------------------------------------------------------------------------------------------

    def leaf(self, node: Node) -> Any:
        array = self.constants(node)
        if array is not None:
            return array
        return self.operands[node] if self.operands is not None and node in self.operands else self.boundary(node)

    def boundary(self, node: Node) -> QTensor | OnCpu:
        """Return a TOSA input for ``node``, or OnCpu if ``node`` is in a subgraph or TOSA cannot represent the tensor.

        Quantized uint8 is converted to int8.
        """
        if self.operands is not None:
            return OnCpu(node)
        tensor = node.meta.get("val")
        if not isinstance(tensor, torch.Tensor) or shape_of_values(node) or has_open_size(tensor):
            return OnCpu(node)
        unsigned = tensor.dtype == torch.uint8 and self.b.integers and _is_quantized_input(node)
        if not unsigned and TOSA_DTYPE.get(tensor.dtype) not in INTEGERS | self.b.floats:
            return OnCpu(node)
        order = storage_order(tensor)
        dtype = "INT8" if unsigned else self.b.tuning.truth_dtype if tensor.dtype == torch.bool else TOSA_DTYPE[tensor.dtype]
        shape = [int(tensor.shape[dim]) for dim in order]
        stored = merge_axes(shape)
        value = self.b.input(node.name, stored, dtype)
        self.inputs[node] = value
        if unsigned:
            value = self.b.from_unsigned(value)
        q = float_qparams(dtype) if dtype in self.b.floats else None
        axes = [order.index(dim) for dim in range(tensor.dim())]
        if len(stored) < len(shape):
            return self.b.permute(self.b.view(QTensor(value, contiguous(stored), q), shape), axes)
        return QTensor(value, tuple((axis,) for axis in axes), q)

    # --- arguments and constants --------------------------------------------------------------------------------------

    def arguments(self, node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, keywords = arguments(node)
        positional: tuple[Any, ...] = torch.fx.map_arg(args, self.env.__getitem__)
        return positional, {name: torch.fx.map_arg(value, self.env.__getitem__) for name, value in keywords.items()}

    def fold(self, node: Node) -> npt.NDArray[Any] | list[npt.NDArray[Any]]:
        """Evaluate an operator that depends only on constants or shapes."""

        def tensor(argument: Node) -> torch.Tensor:
            value = self.env[argument]
            return as_tensor(dequantize_constant(value) if isinstance(value, QTensor) else value)

        target, keywords = aten_call(node)
        if node.all_input_nodes and not all(map(is_constant, (self.env[n] for n in node.all_input_nodes))):  # full_like(x)
            like = node.meta["val"]
            return as_array(target(torch.empty(like.shape, dtype=like.dtype), *node.args[1:], **keywords))
        with torch.no_grad():
            result = target(*torch.fx.map_arg(node.args, tensor), **torch.fx.map_arg(keywords, tensor))
        if isinstance(result, (tuple, list)) and all(isinstance(part, torch.Tensor) for part in result):
            return [as_array(part) for part in result]
        if not isinstance(result, torch.Tensor):
            raise Unsupported(no_tensor(node))
        return as_array(result)

    # --- quantize and dequantize --------------------------------------------------------------------------------------

    def output_qparams(self, node: Node) -> QParams | None:
        """Return the quantization parameters of the quantize nodes that read the first result of ``node``.

        Return None if the parameters differ or if any other node reads the result. If the only reader is an operator
        whose spec sets ``absorbs``, such as ReLU, return that operator's output parameters.
        """
        qparams: QParams | None = None
        users, carrier = list(node.users), node
        if isinstance(node.meta.get("val"), (tuple, list)):  # only the first result can be quantized
            carrier = next((user for user in users if user.target is operator.getitem and user.args[1] == 0), node)
            users = [] if carrier is node else list(carrier.users)
        if len(users) == 1 and op_name(users[0].target) not in QUANTIZE:
            spec = find(users[0].target) if users[0].op == "call_function" else None
            if spec is not None and spec.absorbs and users[0] not in self.refusals and users[0].args[0] is carrier:
                return self.output_qparams(users[0])
            return None
        for user in users:
            q = self.qparams_of(user) if op_name(user.target) in QUANTIZE else None
            if q is None or qparams not in (None, q):
                return None
            qparams = q
        return qparams

    def qparams_of(self, node: Node) -> QParams | None:
        """Return the parameters of a quantize or dequantize node, or None if they are not constant or TOSA does not have the dtype.

        Parameters for uint8 are converted to INT8.
        """
        name = op_name(node.target)
        args: list[Any] = [self.constants(arg) if isinstance(arg, Node) and index else arg for index, arg in enumerate(node.args)]
        if any(arg is None for arg in args[1:]):
            return None
        if "per_channel" in name:
            scales, zeros, axis, low, high, dtype = np.asarray(args[1]), np.asarray(args[2]), *args[3:7]
            axis = axis % node.all_input_nodes[0].meta["val"].dim() if scales.size > 1 else None
        else:
            scales, zeros, axis, low, high, dtype = np.atleast_1d(args[1]), np.atleast_1d(args[2]), None, *args[3:6]
        if dtype == torch.uint8:
            return QParams(
                tuple(scales.astype(np.float64).tolist()), tuple(int(z) - 128 for z in zeros), low - 128, high - 128, "INT8", axis
            )
        if dtype not in TOSA_DTYPE:
            return None
        zero_points = tuple(int(zero) for zero in zeros) if zeros.any() else (0,) * scales.size
        return QParams(tuple(scales.astype(np.float64).tolist()), zero_points, int(low), int(high), TOSA_DTYPE[dtype], axis)

    def quantize(self, node: Node) -> Any:
        """Lower a quantize node: evaluate a PointwiseChain, requantize a tensor, fold a constant, or return a TOSA input."""
        if all(isinstance(self.env[arg], np.ndarray) for arg in node.all_input_nodes):
            return self.fold(node)
        x, q = self.env[node.all_input_nodes[0]], self.qparams_of(node)
        if isinstance(x, (OnCpu, np.ndarray)):
            return self.boundary(node)
        if q is None or q.per_channel:
            raise Unsupported(NOT_OUTPUT_QUANTIZED)
        if isinstance(x, PointwiseChain) and not self.b.integers:
            x = self.as_floats(x)
        if isinstance(x, PointwiseChain):
            return self._change_sign(x, q) or self.b.table(x.source, entries(x, self.env), q, exact=x.steps)
        assert isinstance(x, QTensor)
        if x.is_quantized and x.qparams.per_channel:  # a constant
            return QTensor(self.b.const(q.quantize(dequantize_constant(x)), q.dtype, node.name), contiguous(x.shape), q)
        return self.b.to_qparams(x, q)

    def _change_sign(self, chain: PointwiseChain, q: QParams) -> QTensor | None:
        # A table costs a transfer, unless the operator that computes its input applies it.
        spec, x = find(chain.end.target), chain.source
        source = self.env.get(chain.end.args[0])  # type: ignore[arg-type]
        if spec not in (absolute, neg) or not isinstance(source, QTensor) or x.value not in self.b.graph.inputs:
            return None
        value = self.b.rescale(x.value, 1.0, input_zp=x.qparams.zp, dtype="INT32")
        value = self.b.emit("ABS", value) if spec is absolute else self.b.emit("NEGATE", value, input_zp=0, output_zp=0)
        return self.b.to_qparams(QTensor(value, x.dims, QParams((x.qparams.step,), (0,), *dtype_range("INT32"), "INT32")), q)

    def dequantize(self, node: Node) -> QTensor | OnCpu:
        """Return the quantized tensor that a dequantize node reads, or OnCpu if the tensor is not on the NPU."""
        source = node.all_input_nodes[0]
        x, q = self.env[source], self.qparams_of(node)
        if isinstance(x, np.ndarray) and q is not None:
            return QTensor(self.b.const(to_signed(x), q.dtype, source.name), contiguous(x.shape), q)
        if not isinstance(x, QTensor) or q is None or q.per_channel:
            return OnCpu(node)
        return QTensor(x.value, x.dims, q)

    # --- chains -------------------------------------------------------------------------------------------------------

    def plain(self, x: Any) -> Any:
        """Lower a PointwiseChain with an integer or bool result; return any other value unchanged."""
        if not isinstance(x, PointwiseChain) or x.end.meta["val"].dtype.is_floating_point:
            return x
        return self.b.once(("plain", x.end), lambda: self._look_up(x))

    def _look_up(self, chain: PointwiseChain) -> QTensor:
        real = entries(chain, self.env)
        if chain.end.meta["val"].dtype == torch.bool:
            return self.b.truth_table(chain.source, real)
        return self.b.wrap(self.b.integer_table(chain.source, real), TOSA_DTYPE.get(chain.end.meta["val"].dtype, ""))
