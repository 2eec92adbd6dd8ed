"""Compare the float, fake-quantized and NPU results of each operator."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from ethorch.backend.tagging import is_plumbing
from ethorch.lower.builder.qparams import QParams
from ethorch.lower.fx.node import DEQUANTIZE, QUANTIZE, is_in_place, op_name, origin_of
from ethorch.lower.ops.spec import OPS
from ethorch.program.comparison import LayerComparison
from ethorch.program.measure.nodes_on_npu import Array, NodesOnNpu
from ethorch.support.metrics import Ratio


@dataclass
class _Layer:
    node: Node  # node that quantizes the operator's result, or ``source`` if the result is an integer tensor
    source: Node  # node that computes the result
    q: QParams | None
    float_fake: Ratio = field(default_factory=Ratio)
    fake_npu: Ratio = field(default_factory=Ratio)
    float_npu: Ratio = field(default_factory=Ratio)
    own_ratio: Ratio = field(default_factory=Ratio)
    steps: float = 0.0
    own_steps: float = 0.0
    elements: int = 0
    total: int = 0
    clipped: int = 0
    low: int = 0
    high: int = 0

    def dequantize(self, codes: Tensor) -> Tensor:
        return codes if self.q is None else (codes.double() - self.q.zp) * self.q.step

    def add_codes(self, before: Any, fake: Tensor, npu: Tensor) -> None:
        """Add the results of one sample: the float result before quantization, and the integer values from PyTorch and the NPU."""
        if self.q is not None and npu.numel():
            codes = torch.round(before.double() / self.q.step) + self.q.zp
            self.clipped += int(((codes < self.q.qmin) | (codes > self.q.qmax)).sum())
            low, high = int(npu.min()), int(npu.max())
            self.low, self.high = (min(self.low, low), max(self.high, high)) if self.total else (low, high)
        self.elements = npu.numel()
        self.total += npu.numel()
        self.fake_npu.add(self.dequantize(fake), self.dequantize(npu))
        self.steps = max(self.steps, _largest_difference(fake, npu))


def _largest_difference(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max()) if a.numel() else 0.0


class CompareLayers:
    """A comparison of all operators in a graph, accumulated over samples.

    Args:
        quantized: Model returned by ``convert_pt2e``.
        prepared: The float model after ``prepare_pt2e``, or None. It is not compared if its operators differ from those of
            ``quantized``.
        on_npu: Executor of ``quantized`` with the same NPU operators as the program.
    """

    def __init__(self, quantized: GraphModule, prepared: GraphModule | None, on_npu: NodesOnNpu):
        self.quantized, self.on_npu = quantized, on_npu
        self._layers = {layer.node.name: layer for layer in self._find_layers()}
        self._writes = any(is_in_place(node) for node in quantized.graph.nodes)
        self.prepared = prepared if prepared is not None and self._has_same_operators(prepared) else None

    def _find_layers(self) -> list[_Layer]:
        layers: dict[Any, _Layer] = {}
        for node in self.on_npu.module.graph.nodes:
            if node not in self.on_npu.computed and node not in self.on_npu.from_cpu:
                continue
            q = self.on_npu.qparams(node) if op_name(node.target) in QUANTIZE else None
            source = node if q is None else node.all_input_nodes[0]
            if node.op == "call_function":
                layers.setdefault((source, q), _Layer(node, source, q))
        return list(layers.values())

    def _has_same_operators(self, prepared: GraphModule) -> bool:
        prepared_nodes = {node.name: node for node in prepared.graph.nodes}
        for layer in self._layers.values():
            twin = prepared_nodes.get(layer.source.name)
            if op_name(layer.source.target) not in DEQUANTIZE and (twin is None or not _is_same_call(twin, layer.source)):
                return False
        return True

    def add(self, inputs: Sequence[Any], recorded: Mapping[str, Array]) -> list[Any] | None:
        """Run the models on a sample and add the comparison.

        Args:
            recorded: Input bytes of the delegates in a run of the program, by node name.

        Returns:
            The flattened outputs of the quantized model. None if the model writes to buffers, because this method discards writes.
        """
        fake: dict[str, tuple[Any, Tensor]] = {}  # operand and integer values of each quantize node

        def store_fake(node: Node, args: tuple[Any, ...], result: Any) -> None:
            if node.name in self._layers:
                fake[node.name] = (args[0] if args else None, self._protect(result))

        outputs = _run(self.quantized, inputs, store_fake)
        floats = self._run_prepared(inputs)

        def add_own_steps(node: Node, torch_result: Any, npu_result: Tensor) -> None:
            if (layer := self._layers.get(node.name)) is not None:
                layer.own_steps = max(layer.own_steps, _largest_difference(torch_result, npu_result))

        npu = self.on_npu.run(inputs, recorded, add_own_steps)
        for name, layer in self._layers.items():
            before, codes = fake[name]
            layer.add_codes(before, codes, npu[layer.node])
            if (reference := floats.get(layer.source.name)) is not None:
                layer.float_fake.add(reference, layer.dequantize(codes))
                layer.float_npu.add(reference, layer.dequantize(npu[layer.node]))
        self._add_own_noise(inputs, floats)
        return None if self._writes else pytree.tree_leaves(outputs)

    def _protect(self, result: Tensor) -> Tensor:
        return result.clone() if self._writes else result

    def _run_prepared(self, inputs: Sequence[Any]) -> dict[str, Tensor]:
        floats: dict[str, Tensor] = {}
        if self.prepared is not None:
            sources = {layer.source.name for layer in self._layers.values()}

            def store_float(node: Node, args: tuple[Any, ...], result: Any) -> None:
                if node.name in sources:
                    floats[node.name] = self._protect(result)

            _run(self.prepared, inputs, store_float)
        return floats

    def _add_own_noise(self, inputs: Sequence[Any], floats: Mapping[str, Tensor]) -> None:
        if not floats:
            return

        def float_operand(node: Node) -> Tensor | None:
            layer = self._layers.get(node.all_input_nodes[0].name) if op_name(node.target) in DEQUANTIZE else None
            operand = None if layer is None else floats.get(layer.source.name)
            return None if operand is None else operand.clone()

        def add_noise(node: Node, args: tuple[Any, ...], result: Any) -> None:
            layer = self._layers.get(node.name)
            if layer is not None and not self._moves_codes(layer) and (reference := floats.get(layer.source.name)) is not None:
                layer.own_ratio.add(reference, layer.dequantize(result))

        _run(self.quantized, inputs, add_noise, float_operand)

    def _moves_codes(self, layer: _Layer) -> bool:
        spec = OPS.get(op_name(layer.source.target)) if layer.source.op == "call_function" else None
        if spec is None or layer.q is None or spec.rule(layer.source).output != "same":
            return False
        operand = layer.source.all_input_nodes[0]
        if op_name(operand.target) not in DEQUANTIZE or op_name(operand.all_input_nodes[0].target) not in QUANTIZE:
            return False
        return self.on_npu.qparams(operand) == layer.q

    def rows(self) -> tuple[LayerComparison, ...]:
        """Return the comparison of each operator, in execution order."""
        return tuple(self._row(layer) for layer in self._layers.values())

    def _row(self, layer: _Layer) -> LayerComparison:
        q, source = layer.q, layer.source
        computed = layer.node in self.on_npu.computed
        name, fused = _operators(source, {*self.on_npu.computed, *self.on_npu.from_cpu} - {source})
        fused = fused if computed else ()
        has_float = self.prepared is not None and op_name(source.target) not in DEQUANTIZE
        origin = origin_of(source)
        codes = 1 if q is None else q.code_count
        dtype = layer.node.meta["val"].dtype
        return LayerComparison(
            node=source.name,
            operator=name,
            fused=fused,
            module=origin.module,
            source=origin.source,
            on_npu=computed,
            dtype=str(dtype).removeprefix("torch."),
            scale=None if q is None else q.step,
            elements=layer.elements,
            float_fake_db=layer.float_fake.db if has_float else None,
            fake_npu_db=layer.fake_npu.db,
            float_npu_db=layer.float_npu.db if has_float else None,
            own_db=layer.own_ratio.db if has_float else None,
            steps=layer.steps,
            own_steps=layer.own_steps,
            allowed_steps=_sum_bounds((*fused, name), dtype) if computed else 0,
            saturated=None if q is None else layer.clipped / max(layer.total, 1),
            range_used=None if q is None else (layer.high - layer.low + 1) / codes if layer.total else 0.0,
        )


def _is_same_call(a: Node, b: Node) -> bool:
    return a.op == b.op and (a.op == "placeholder" or op_name(a.target) == op_name(b.target))


def _operators(source: Node, ends: Container[Node]) -> tuple[str, tuple[str, ...]]:
    """Return the name of an operator, and the names of its producers up to (but not including) ``ends`` and quantize nodes."""
    if source.op == "placeholder":
        return "input", ()
    if op_name(source.target) in DEQUANTIZE:
        return "requantize", ()
    if source.target is operator.getitem:  # an output of a multi-output operator
        source = source.all_input_nodes[0]
    before: dict[Node, None] = {}
    stack = [source]
    while stack:
        for node in stack.pop().all_input_nodes:
            if node.op == "call_function" and not is_plumbing(node) and node not in ends and node not in before:
                before[node] = None
                stack.append(node)
    fused = [node.target for node in reversed(before) if isinstance(node.target, torch._ops.OpOverload)]
    return op_name(source.target), tuple(op_name(target) for target in fused)


def _sum_bounds(operators: Sequence[str], dtype: torch.dtype) -> int:
    """Return the permitted difference in steps: 1, plus the sum of ``bound - 1`` over all operators."""
    steps = 1
    for name in operators:
        if (spec := OPS.get(name)) is not None:
            steps += (spec.bound16 if dtype == torch.int16 else spec.bound) - 1
    return steps


class _Runner(Interpreter):
    # on_result: Called with each node, its operands and its result.
    # replace: Called with each operator. If the result is not None, it replaces the operator's result.

    def __init__(
        self,
        module: GraphModule,
        on_result: Callable[[Node, tuple[Any, ...], Any], None],
        replace: Callable[[Node], Tensor | None],
    ):
        super().__init__(module)
        self._on_result, self._replace = on_result, replace

    def run_node(self, n: Node) -> Any:
        if n.op == "call_function" and (result := self._replace(n)) is not None:
            return result
        args = self.fetch_args_kwargs_from_env(n)[0]
        result = super().run_node(n)
        self._on_result(n, args, result)
        return result

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0]

    def get_attr(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        attribute = super().get_attr(target, args, kwargs)
        is_buffer = isinstance(attribute, Tensor) and not isinstance(attribute, torch.nn.Parameter)
        return attribute.clone() if is_buffer else attribute


def _run(
    module: GraphModule,
    inputs: Sequence[Any],
    on_result: Callable[[Node, tuple[Any, ...], Any], None],
    replace: Callable[[Node], Tensor | None] = lambda node: None,
) -> Any:
    with torch.no_grad():
        return _Runner(module, on_result, replace).run(*inputs, enable_io_processing=False)
