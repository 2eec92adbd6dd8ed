"""Execute a converted graph. The TOSA reference model runs graphs without rewrites, which contain each operator's result."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ethorch.backend.emit.checks import set_values
from ethorch.backend.tagging import constant_nodes, is_plumbing
from ethorch.lower.builder.qparams import QParams, QTensor
from ethorch.lower.fx.node import (
    ASSERTIONS,
    DEQUANTIZE,
    QUANTIZE,
    Converted,
    attribute,
    constants_of,
    is_integer,
    op_name,
    storage_order,
)
from ethorch.lower.walk import Walk
from ethorch.support.errors import Reason, Unsupported
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.tosa.ir import DTYPES, Graph, Value
from ethorch.tosa.reference_model import run as run_tosa
from ethorch.tosa.serialize import serialize
from ethorch.vela.delegate import builder_for

Array = npt.NDArray[Any]
_ON_CPU = Reason(
    "compare.on_cpu", "the program runs the operator on the CPU", "`Program.explain` returns the reason and the remedy."
)


def nodes_on_npu(quantized: GraphModule, spec: EthosUCompileSpec, delegated: Collection[str]) -> NodesOnNpu | Reason:
    """Return an executor for a graph from ``convert_pt2e``, or the reason why its nodes cannot be run separately."""
    module = GraphModule(quantized, copy.deepcopy(quantized.graph))
    return set_values(module) or NodesOnNpu(module, spec, delegated)


class NodesOnNpu:
    """A converted graph that is executed like the program but returns the result of each node. CPU operators run in PyTorch.

    Args:
        module: Graph returned by ``convert_pt2e``.
        delegated: Names of the operators on the NPU, from the PartitionReport. If these names do not occur in ``module``
            (ExecuTorch partitioned a graph with different names), a dry run determines the NPU operators.

    Attributes:
        computed: TOSA tensor of each NPU operator with integer or Boolean results, including quantize operators.
        from_cpu: TOSA graph input for each node that the CPU computes and the NPU reads.
    """

    def __init__(self, module: GraphModule, spec: EthosUCompileSpec, delegated: Collection[str]):
        self.module = module
        graph = self.module.graph
        program = Converted(self.module)
        names = {node.name for node in graph.nodes}
        refused: dict[Node, Reason] = {}
        if not names.isdisjoint(delegated):
            folded = constant_nodes(program, set(graph.nodes))
            calls = (n for n in graph.nodes if n.op == "call_function" and n not in folded and not is_plumbing(n))
            refused = {n: _ON_CPU for n in calls if n.name not in delegated and op_name(n.target) not in ASSERTIONS}
        self._builder = builder_for(spec.target)
        self._walk = Walk(graph, constants_of(program), self._builder, strict=False, refused=refused).run()
        self.computed: dict[Node, QTensor] = {}
        self.from_cpu: dict[Node, Value] = {}
        self._read_walk()

    def _read_walk(self) -> None:
        for node in self.module.graph.nodes:
            x = self._npu_tensor(node)
            if x is None or op_name(node.target) in DEQUANTIZE:
                continue
            if node in self._walk.inputs:
                self.from_cpu[node] = self._walk.inputs[node]
            elif op_name(node.target) in QUANTIZE or (node.op == "call_function" and is_integer(node)):
                self.computed[node] = x

    def _npu_tensor(self, node: Node) -> QTensor | None:
        x = self._walk.env.get(node)
        if node.op == "call_function" and is_integer(node):
            try:
                x = self._walk.plain(x)
            except Unsupported:
                return None
        return x if isinstance(x, QTensor) and not x.value.is_const else None

    def qparams(self, node: Node) -> QParams | None:
        """Return the quantization parameters of a quantize or dequantize node, or None if they are per channel or not constant."""
        q = self._walk.qparams_of(node)
        if q is None or q.per_channel:
            return None
        is_codes = op_name(node.target) in QUANTIZE
        codes = (node if is_codes else node.all_input_nodes[0]).meta["val"]
        if codes.dtype != torch.uint8:
            return q
        return replace(q, zero_point=(q.zp + 128,), qmin=q.qmin + 128, qmax=q.qmax + 128)

    def run(
        self, inputs: Sequence[Any], recorded: Mapping[str, Array], on_result: Callable[[Node, Any, Any], None] = lambda *_: None
    ) -> dict[Node, Any]:
        """Run the graph and return the result of each node.

        Args:
            recorded: Input bytes of the delegates in a run of the program, by node name. They replace PyTorch's results.
            on_result: Called as ``on_result(node, torch_result, npu_result)`` for each node in ``computed``. The two results are
                computed from the same operands.
        """
        env: dict[Node, Any] = {}
        arrays: dict[int, Array] = {}  # contents of each TOSA value, by id()
        arguments = iter(inputs)
        waiting = list(self.module.graph.nodes)
        while waiting:
            before, waiting = waiting, []
            for node in before:
                x = self.computed.get(node)
                if any(arg not in env for arg in node.all_input_nodes) or (x is not None and id(x.value) not in arrays):
                    waiting.append(node)
                    continue
                result = next(arguments) if node.op == "placeholder" else self._call(node, env)
                if x is not None:
                    npu_result = _as_tensor(arrays[id(x.value)], x, node)
                    on_result(node, result, npu_result)
                    result = npu_result
                elif node in self.from_cpu:
                    result = self._pass_to_npu(node, result, recorded, arrays)
                env[node] = result
            if waiting:
                arrays.update(self._compute(arrays))
        return env

    def _call(self, node: Node, env: Mapping[Node, Any]) -> Any:
        # Run the node in PyTorch, with copies of mutable arguments so that no buffer changes.
        if node.op == "get_attr":
            constant = attribute(self.module, node)
            return constant.detach().clone() if isinstance(constant, Tensor) else constant
        args, keywords = torch.fx.map_arg((node.args, node.kwargs), env.__getitem__)
        if node.op == "output":
            return args
        target: Any = self.module.get_submodule(str(node.target)) if node.op == "call_module" else node.target
        if isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable:
            args = tuple(arg.clone() if isinstance(arg, Tensor) else arg for arg in args)
        with torch.no_grad():
            return target(*args, **keywords)

    def _pass_to_npu(self, node: Node, result: Tensor, recorded: Mapping[str, Array], arrays: dict[int, Array]) -> Tensor:
        """Store the NPU input in ``arrays`` and return it as a tensor. Recorded bytes, if any, replace ``result``."""
        value = self.from_cpu[node]
        order = storage_order(node.meta["val"])
        codes = result.view(torch.int8) if result.dtype == torch.uint8 else result
        stored = codes.permute(order).contiguous().numpy().astype(DTYPES[value.dtype])
        run_bytes = recorded.get(node.name)
        if run_bytes is not None and run_bytes.nbytes == stored.nbytes:
            stored = run_bytes.view(stored.dtype).reshape(stored.shape)
        arrays[id(value)] = np.ascontiguousarray(stored)
        inverse = [order.index(dim) for dim in range(len(order))]
        tensor = torch.from_numpy(stored.copy())
        tensor = tensor.view(torch.uint8) if result.dtype == torch.uint8 else tensor.to(result.dtype)
        return tensor.permute(inverse)

    def _compute(self, arrays: Mapping[int, Array]) -> dict[int, Array]:
        missing = {id(x.value): x.value for x in self.computed.values() if id(x.value) not in arrays}
        ready, producers = set(arrays), {}
        for op in self._builder.graph.ops:
            if all(id(value) in ready or value.is_const for value in op.operands):
                ready.update(id(result) for result in op.results)
                producers.update({id(result): op for result in op.results})
        outputs = [value for key, value in missing.items() if key in ready]
        assert outputs, "missing values depend on unknown values"
        needed, inputs, stack = set[int](), dict[int, Value](), list[Value](outputs)
        while stack:
            value = stack.pop()
            if value.is_const or id(value) in needed or id(value) in inputs:
                continue
            if id(value) in arrays:
                inputs[id(value)] = value
                continue
            op = producers[id(value)]
            needed.update(id(result) for result in op.results)
            stack.extend(op.operands)
        ops = [op for op in self._builder.graph.ops if id(op.result) in needed]
        graph = Graph("main", list(inputs.values()), outputs, ops)
        results = run_tosa(serialize(graph), [arrays[key] for key in inputs])
        return {id(value): result for value, result in zip(outputs, results, strict=True)}


def _as_tensor(stored: Array, x: QTensor, node: Node) -> Tensor:
    order = [axis for axes in x.dims for axis in axes]
    rest = [axis for axis in range(stored.ndim) if axis not in order]  # axes of size 1
    logical = np.ascontiguousarray(stored.reshape(x.value.shape).transpose(order + rest).reshape(x.shape))
    dtype = node.meta["val"].dtype
    if dtype == torch.uint8:
        return torch.from_numpy(logical.astype(np.int16) + 128).to(dtype)
    return torch.from_numpy(logical != 0 if dtype == torch.bool else logical).to(dtype)
