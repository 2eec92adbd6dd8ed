"""What the NPU computes for each node of a converted graph: the walk's TOSA, every result of it an output, in the reference model.

A delegate gives its outputs only. The graph that the walk makes of a program has a value for each operator, and the rewrites
behind the walk keep every bit of what they keep at all. So the reference model, which the simulator equals, says what stands
between two operators on the NPU. The CPU's operators run in PyTorch on what the NPU gives them.
"""

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
_ON_CPU = Reason("compare.on_cpu", "the program runs it on the CPU", "`Program.explain` says why, and what to do.")


def nodes_on_npu(quantized: GraphModule, spec: EthosUCompileSpec, delegated: Collection[str]) -> NodesOnNpu | Reason:
    """Return the nodes of a graph that ``convert_pt2e`` returned, or the reason if they cannot be run one by one.

    Args:
        quantized: The graph, which is not changed.
        spec, delegated: See ``NodesOnNpu``.
    """
    module = GraphModule(quantized, copy.deepcopy(quantized.graph))
    return set_values(module) or NodesOnNpu(module, spec, delegated)


class NodesOnNpu:
    """A converted graph, run as the program runs it, with the result of each node.

    Args:
        module: A copy of the graph that ``convert_pt2e`` returned, with values.
        spec: what it was compiled for.
        delegated: names of the operators on the NPU, as a PartitionReport has them. Where none of them is a node of the graph
            (ExecuTorch partitions a graph of its own, with other names), a dry run decides.

    Attributes:
        module: the graph.
        computed: the nodes whose results come from the NPU: quantize nodes, and operators that give integers or truth values.
        given: the nodes whose results the NPU gets from the CPU.
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
        self.given: dict[Node, Value] = {}
        self._read_walk()

    def _read_walk(self) -> None:
        for node in self.module.graph.nodes:
            x = self._stands_for(node)
            if x is None or op_name(node.target) in DEQUANTIZE:
                continue
            if node in self._walk.inputs:
                self.given[node] = self._walk.inputs[node]
            elif op_name(node.target) in QUANTIZE or (node.op == "call_function" and is_integer(node)):
                self.computed[node] = x

    def _stands_for(self, node: Node) -> QTensor | None:
        """The tensor on the NPU that the node is; None for what is on the CPU, constant, several, or not computed yet."""
        x = self._walk.env.get(node)
        if node.op == "call_function" and is_integer(node):
            try:
                x = self._walk.plain(x)
            except Unsupported:
                return None
        return x if isinstance(x, QTensor) and not x.value.is_const else None

    def qparams(self, node: Node) -> QParams | None:
        """What the codes of a quantize or dequantize node mean; None where that is not known before it runs."""
        q = self._walk.qparams_of(node)
        if q is None or q.per_channel:
            return None
        is_codes = op_name(node.target) in QUANTIZE
        codes = (node if is_codes else node.all_input_nodes[0]).meta["val"]
        if codes.dtype != torch.uint8:
            return q
        return replace(q, zero_point=(q.zp + 128,), qmin=q.qmin + 128, qmax=q.qmax + 128)

    def run(
        self, inputs: Sequence[Any], recorded: Mapping[str, Array], seen: Callable[[Node, Any, Any], None] = lambda *_: None
    ) -> dict[Node, Any]:
        """Run the graph; the result of each node.

        Args:
            inputs: the program's, flat.
            recorded: node -> bytes that the program's run gave a delegate for it; taken instead of what PyTorch computes.
            seen: called as ``seen(node, wanted, found)`` for each of ``computed``: what PyTorch makes of the operands that the NPU
                had, and what the NPU made of them.
        """
        env: dict[Node, Any] = {}
        known: dict[int, Array] = {}
        arguments = iter(inputs)
        waiting = list(self.module.graph.nodes)
        while waiting:
            before, waiting = waiting, []
            for node in before:
                x = self.computed.get(node)
                if any(arg not in env for arg in node.all_input_nodes) or (x is not None and id(x.value) not in known):
                    waiting.append(node)
                    continue
                result = next(arguments) if node.op == "placeholder" else self._call(node, env)
                if x is not None:
                    found = _as_tensor(known[id(x.value)], x, node)
                    seen(node, result, found)
                    result = found
                elif node in self.given:
                    result = self._handed_over(node, result, recorded, known)
                env[node] = result
            if waiting:
                known.update(self._compute(known))
        return env

    def _call(self, node: Node, env: Mapping[Node, Any]) -> Any:
        """The node in PyTorch. What is written to is a copy: a run changes no state."""
        if node.op == "get_attr":
            found = attribute(self.module, node)
            return found.detach().clone() if isinstance(found, Tensor) else found
        args, keywords = torch.fx.map_arg((node.args, node.kwargs), env.__getitem__)
        if node.op == "output":
            return args
        target: Any = self.module.get_submodule(str(node.target)) if node.op == "call_module" else node.target
        if isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable:
            args = tuple(arg.clone() if isinstance(arg, Tensor) else arg for arg in args)
        with torch.no_grad():
            return target(*args, **keywords)

    def _handed_over(self, node: Node, result: Tensor, recorded: Mapping[str, Array], known: dict[int, Array]) -> Tensor:
        """What the CPU computes, on its way to the NPU."""
        value = self.given[node]
        order = storage_order(node.meta["val"])
        codes = result.view(torch.int8) if result.dtype == torch.uint8 else result
        stored = codes.permute(order).contiguous().numpy().astype(DTYPES[value.dtype])
        found = recorded.get(node.name)
        if found is not None and found.nbytes == stored.nbytes:
            stored = found.view(stored.dtype).reshape(stored.shape)
        known[id(value)] = np.ascontiguousarray(stored)
        inverse = [order.index(dim) for dim in range(len(order))]
        handed = torch.from_numpy(stored.copy())
        handed = handed.view(torch.uint8) if result.dtype == torch.uint8 else handed.to(result.dtype)
        return handed.permute(inverse)

    def _compute(self, known: Mapping[int, Array]) -> dict[int, Array]:
        """All that the NPU can compute of what is known."""
        wanted = {id(x.value): x.value for x in self.computed.values() if id(x.value) not in known}
        ready, makers = set(known), {}
        for op in self._builder.graph.ops:
            if all(id(value) in ready or value.is_const for value in op.operands):
                ready.update(id(result) for result in op.results)
                makers.update({id(result): op for result in op.results})
        outputs = [value for key, value in wanted.items() if key in ready]
        assert outputs, "nothing that is left can be computed"
        needed, inputs, stack = set[int](), dict[int, Value](), list[Value](outputs)
        while stack:
            value = stack.pop()
            if value.is_const or id(value) in needed or id(value) in inputs:
                continue
            if id(value) in known:
                inputs[id(value)] = value
                continue
            op = makers[id(value)]
            needed.update(id(result) for result in op.results)
            stack.extend(op.operands)
        ops = [op for op in self._builder.graph.ops if id(op.result) in needed]
        graph = Graph("main", list(inputs.values()), outputs, ops)
        results = run_tosa(serialize(graph), [known[key] for key in inputs])
        return {id(value): result for value, result in zip(outputs, results, strict=True)}


def _as_tensor(stored: Array, x: QTensor, node: Node) -> Tensor:
    """What the NPU stores, as the tensor that PyTorch has there."""
    order = [axis for axes in x.dims for axis in axes]
    rest = [axis for axis in range(stored.ndim) if axis not in order]  # of extent 1
    logical = np.ascontiguousarray(stored.reshape(x.value.shape).transpose(order + rest).reshape(x.shape))
    dtype = node.meta["val"].dtype
    if dtype == torch.uint8:
        return torch.from_numpy(logical.astype(np.int16) + 128).to(dtype)
    return torch.from_numpy(logical != 0 if dtype == torch.bool else logical).to(dtype)
