"""What stands for each node of a graph while it is lowered: leaves, arguments, constants, quantize and dequantize nodes.

Nothing here lowers an operator: ``Walk`` does, with ``Floats`` and ``Regions``, which see the Frame that they work in.
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
from ethorch.lower.builder.qparams import QParams, QTensor, Result, float_qparams
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
from ethorch.lower.ops.spec import OpSpec, find
from ethorch.lower.ops.weights import weight_array
from ethorch.lower.reasons import no_tensor
from ethorch.models.open_sizes import has_open_size
from ethorch.support.errors import Reason, Unsupported
from ethorch.tosa.ir import DTYPES, FLOATS, Value
from ethorch.tosa.layout import contiguous

#: FX node -> array of a parameter, buffer or constant; None for any other node. Arrays are views.
Constants = Callable[[Node], npt.NDArray[Any] | None]


def result_of(node: Node, q: QParams | None = None) -> Result:
    """What PyTorch says of the (first) result of ``node``, in the qparams ``q``."""
    value = first_value(node)
    if value is None:
        return Result((), "", q)
    return Result(tuple(int(extent) for extent in value.shape), TOSA_DTYPE.get(value.dtype, ""), q)


def dequantized_constant(x: QTensor) -> npt.NDArray[np.float32]:
    """Return the real numbers of a quantized constant, in its logical order."""
    q, codes = x.qparams, weight_array(x).astype(np.int32)
    shape = [-1 if axis == q.axis else 1 for axis in range(x.rank)] if q.per_channel else []
    zero_points, scales = np.reshape(q.zero_point, shape), np.reshape(np.asarray(q.scale, np.float32), shape)
    reals: npt.NDArray[np.float32] = ((codes - zero_points) * scales).astype(np.float32)
    return reals


def is_constant(x: Any) -> bool:
    """Return True for an array and for a constant tensor with quantization parameters."""
    return isinstance(x, np.ndarray) or (isinstance(x, QTensor) and x.is_quantized and x.value.is_const)


def constant_tensor(b: Builder, array: npt.NDArray[Any]) -> QTensor:
    """Return a constant tensor: floats (64-bit ones as FP32), integers (64-bit ones saturated at 32) or the NPU's truth values."""
    if array.dtype == np.bool_:
        return b.plain_tensor(array)
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    if array.dtype == np.int64:
        array = np.clip(array, -(2**31), 2**31 - 1).astype(np.int32)
    dtype = next(name for name, kind in DTYPES.items() if array.dtype == kind and name != "INT4")
    return QTensor(b.const(array, dtype), contiguous(array.shape), float_qparams(dtype) if dtype in FLOATS else None)


def signed(codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the int8 codes that stand for uint8 ones; arrays of any other dtype as they are."""
    return (codes.astype(np.int16) - 128).astype(np.int8) if codes.dtype == np.uint8 else codes


def _only_dequantized(node: Node) -> bool:
    """Are its numbers codes, and nothing but that?"""
    return bool(node.users) and all(op_name(user.target) in DEQUANTIZE for user in node.users)


class Frame(ABC):
    """One graph on its way to TOSA.

    Args:
        graph: the FX graph, which is read and not changed.
        constants: its parameters, buffers and constants.
        builder: receives the TOSA.
        refused: nodes not to try, with their reasons: a previous pass of the dry run refused them.
        given: of a graph that control flow holds, what its placeholders stand for. Nothing else comes from outside.

    Attributes:
        inputs: the nodes that are inputs of the TOSA graph.
        env: what stands for each node so far. A QTensor is a tensor on the NPU, a PointwiseChain one that is not yet computed,
            an array a constant, OnCpu a tensor that the NPU does not have; a list of them, what has several results.
        refusals: why each node that is refused cannot run.
        supported: the nodes that can run.
        inside: those of the graphs that control flow holds.
    """

    def __init__(
        self,
        graph: Graph,
        constants: Constants,
        builder: Builder,
        *,
        refused: Mapping[Node, Reason] | None = None,
        given: Mapping[Node, Any] | None = None,
    ):
        self.graph = graph
        self.constants = constants
        self.b = builder
        self.given = given
        self.inputs: dict[Node, Value] = {}
        self.env: dict[Node, Any] = {}
        self.refusals: dict[Node, Reason] = dict(refused or {})
        self.supported: set[Node] = set()
        self.inside: set[Node] = set()

    # --- what a walk adds ---------------------------------------------------------------------------------------------

    @abstractmethod
    def result(self, node: Node) -> Any:
        """Lower one node and return what stands for it.

        Raises:
            Unsupported: it cannot run on the builder's target.
        """

    @abstractmethod
    def of_integers(self, node: Node, spec: OpSpec) -> Any:
        """The same for an operator of quantized tensors, plain integers and truth values."""

    @abstractmethod
    def as_floats(self, x: Any) -> Any:
        """``x`` as a float tensor where it is quantized or a chain; plain integers, constants and numbers as they are.

        For targets with floats.

        Raises:
            Unsupported: ``x`` is on the CPU.
        """

    @abstractmethod
    def nested(self, graph: Graph, constants: Constants, builder: Builder, given: Mapping[Node, Any]) -> Frame:
        """A graph that control flow holds, lowered but for its outputs.

        Raises:
            Unsupported: one of its operators cannot run.
        """

    # --- leaves -------------------------------------------------------------------------------------------------------

    def leaf(self, node: Node) -> Any:
        """What a placeholder or get_attr node stands for."""
        array = self.constants(node)
        if array is not None:
            return array
        return self.given[node] if self.given is not None and node in self.given else self.boundary(node)

    def boundary(self, node: Node) -> QTensor | OnCpu:
        """A tensor that comes from outside: an input of the TOSA graph if the target has its dtype, else OnCpu.

        Quantized tensors of uint8 are those of int8 with everything less by 128, but for the graph's inputs and outputs.
        """
        if self.given is not None:
            return OnCpu(node)
        tensor = node.meta.get("val")
        if not isinstance(tensor, torch.Tensor) or shape_of_values(node) or has_open_size(tensor):
            return OnCpu(node)
        unsigned = tensor.dtype == torch.uint8 and self.b.integers and _only_dequantized(node)
        if not unsigned and TOSA_DTYPE.get(tensor.dtype) not in INTEGERS | self.b.floats:
            return OnCpu(node)
        order = storage_order(tensor)
        dtype = "INT8" if unsigned else self.b.tuning.truth_dtype if tensor.dtype == torch.bool else TOSA_DTYPE[tensor.dtype]
        value = self.b.input(node.name, [int(tensor.shape[dim]) for dim in order], dtype)
        self.inputs[node] = value
        if unsigned:
            value = self.b.from_unsigned(value)
        q = float_qparams(dtype) if dtype in self.b.floats else None
        return QTensor(value, tuple((order.index(dim),) for dim in range(tensor.dim())), q)

    # --- arguments and constants --------------------------------------------------------------------------------------

    def arguments(self, node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What stands for the node's arguments, defaults filled in; keyword-only ones as keywords."""
        args, keywords = arguments(node)
        positional: tuple[Any, ...] = torch.fx.map_arg(args, self.env.__getitem__)
        return positional, {name: torch.fx.map_arg(value, self.env.__getitem__) for name, value in keywords.items()}

    def folded(self, node: Node) -> npt.NDArray[Any] | list[npt.NDArray[Any]]:
        """An operator of constants, computed now; an array, or a list of them for several results."""

        def tensor(argument: Node) -> torch.Tensor:
            value = self.env[argument]
            return as_tensor(dequantized_constant(value) if isinstance(value, QTensor) else value)

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
        """QParams of the quantize nodes that read ``node``, looked up through operators that cost nothing.

        None where something else reads it too, or where two quantize nodes differ.
        """
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
        if dtype == torch.uint8:
            return QParams(
                tuple(scales.astype(np.float64).tolist()), tuple(int(z) - 128 for z in zeros), low - 128, high - 128, "INT8", axis
            )
        if dtype not in TOSA_DTYPE:
            return None
        zero_points = tuple(int(zero) for zero in zeros) if zeros.any() else (0,) * scales.size
        return QParams(tuple(scales.astype(np.float64).tolist()), zero_points, int(low), int(high), TOSA_DTYPE[dtype], axis)

    def quantize(self, node: Node) -> Any:
        """What a quantize node stands for: a chain becomes a TABLE here, and a tensor in other QParams is requantized.

        The codes of constants are constants.
        """
        if all(isinstance(self.env[arg], np.ndarray) for arg in node.all_input_nodes):
            return self.folded(node)
        x, q = self.env[node.all_input_nodes[0]], self.qparams_of(node)
        if isinstance(x, (OnCpu, np.ndarray)) or q is None or q.per_channel:
            return self.boundary(node)
        if isinstance(x, PointwiseChain) and not self.b.integers:
            x = self.as_floats(x)
        if isinstance(x, PointwiseChain):
            return self.b.table(x.source, entries(x, self.env), q, exact=x.steps)
        assert isinstance(x, QTensor)
        return self.b.requantized(x, q)

    def dequantize(self, node: Node) -> QTensor | OnCpu:
        """What a dequantize node stands for: the codes it reads, with their QParams."""
        source = node.all_input_nodes[0]
        x, q = self.env[source], self.qparams_of(node)
        if isinstance(x, np.ndarray) and q is not None:
            return QTensor(self.b.const(signed(x), q.dtype, source.name), contiguous(x.shape), q)
        if not isinstance(x, QTensor) or q is None or q.per_channel:
            return OnCpu(node)
        return QTensor(x.value, x.dims, q)

    # --- chains -------------------------------------------------------------------------------------------------------

    def plain(self, x: Any) -> Any:
        """A chain that ends in truth values or integers, as those; anything else as it is."""
        if not isinstance(x, PointwiseChain) or x.end.meta["val"].dtype.is_floating_point:
            return x
        return self.b.once(("plain", x.end), lambda: self._looked_up(x))

    def _looked_up(self, chain: PointwiseChain) -> QTensor:
        real = entries(chain, self.env)
        if chain.end.meta["val"].dtype == torch.bool:
            return self.b.truth_table(chain.source, real)
        return self.b.wrapped(self.b.integer_table(chain.source, real), TOSA_DTYPE.get(chain.end.meta["val"].dtype, ""))
