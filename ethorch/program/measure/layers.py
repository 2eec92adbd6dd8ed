"""Float, fake-quantized and NPU for each operator: where the noise comes from, and where the NPU leaves what PyTorch computes."""

from __future__ import annotations

import math
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


@dataclass
class Ratio:
    """Sums of signal and noise over samples."""

    signal: float = 0.0
    noise: float = 0.0

    def add(self, reference: Tensor, other: Tensor) -> None:
        a, b = reference.double(), other.double()
        self.signal += float((a**2).sum())
        self.noise += float(((a - b) ** 2).sum())

    @property
    def db(self) -> float:
        """10 log10 of signal over noise; inf without noise, -inf where there is noise and no signal."""
        if self.noise == 0:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf


@dataclass
class _Layer:
    """What is added up for one result. ``node`` quantizes it, or makes the integers."""

    node: Node
    source: Node
    q: QParams | None
    float_fake: Ratio = field(default_factory=Ratio)
    fake_npu: Ratio = field(default_factory=Ratio)
    float_npu: Ratio = field(default_factory=Ratio)
    own: Ratio = field(default_factory=Ratio)
    steps: float = 0.0
    own_steps: float = 0.0
    elements: int = 0
    total: int = 0
    clipped: int = 0
    low: int = 0
    high: int = 0

    def real(self, codes: Tensor) -> Tensor:
        """The numbers that codes stand for."""
        return codes if self.q is None else (codes.double() - self.q.zp) * self.q.step

    def add_codes(self, before: Any, fake: Tensor, npu: Tensor) -> None:
        """Fake-quantized: the numbers and their codes; and the NPU's codes."""
        if self.q is not None and npu.numel():
            codes = torch.round(before.double() / self.q.step) + self.q.zp
            self.clipped += int(((codes < self.q.qmin) | (codes > self.q.qmax)).sum())
            low, high = int(npu.min()), int(npu.max())
            self.low, self.high = (min(self.low, low), max(self.high, high)) if self.total else (low, high)
        self.elements = npu.numel()
        self.total += npu.numel()
        self.fake_npu.add(self.real(fake), self.real(npu))
        self.steps = max(self.steps, _largest(fake, npu))


def _largest(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max()) if a.numel() else 0.0


class CompareLayers:
    """Adds up samples.

    Args:
        quantized: what ``convert_pt2e`` returned.
        prepared: what ``prepare_pt2e`` makes of the float model, or None. Its operators have the names of those of ``quantized``,
            since both come from the same decompositions; where they have not, there are no float figures.
        on_npu: the same graph as the program runs it.
    """

    def __init__(self, quantized: GraphModule, prepared: GraphModule | None, on_npu: NodesOnNpu):
        self.quantized, self.on_npu = quantized, on_npu
        self._layers = {layer.node.name: layer for layer in self._found()}
        self._writes = any(is_in_place(node) for node in quantized.graph.nodes)
        self.prepared = prepared if prepared is not None and self._same_operators(prepared) else None

    def _found(self) -> list[_Layer]:
        """The results in execution order; a tensor that is quantized twice alike counts once."""
        found: dict[Any, _Layer] = {}
        for node in self.on_npu.module.graph.nodes:
            if node not in self.on_npu.computed and node not in self.on_npu.given:
                continue
            q = self.on_npu.qparams(node) if op_name(node.target) in QUANTIZE else None
            source = node if q is None else node.all_input_nodes[0]
            if node.op == "call_function":
                found.setdefault((source, q), _Layer(node, source, q))
        return list(found.values())

    def _same_operators(self, prepared: GraphModule) -> bool:
        theirs = {node.name: node for node in prepared.graph.nodes}
        for layer in self._layers.values():
            twin = theirs.get(layer.source.name)
            if op_name(layer.source.target) not in DEQUANTIZE and (twin is None or not _alike(twin, layer.source)):
                return False
        return True

    def add(self, inputs: Sequence[Any], recorded: Mapping[str, Array]) -> list[Any] | None:
        """Add a sample.

        Args:
            inputs: Its flat inputs.
            recorded: The bytes that its run passed to the delegates.

        Returns:
            The flat outputs of the quantized model; None if it changes buffers, of which each read is a copy here.
        """
        fake: dict[str, tuple[Any, Tensor]] = {}  # of each quantize node what it reads, and its codes

        def keep(node: Node, args: tuple[Any, ...], result: Any) -> None:
            if node.name in self._layers:
                fake[node.name] = (args[0] if args else None, self._kept(result))

        outputs = _run(self.quantized, inputs, keep)
        floats = self._floats(inputs)

        def seen(node: Node, wanted: Any, found: Tensor) -> None:
            if (layer := self._layers.get(node.name)) is not None:
                layer.own_steps = max(layer.own_steps, _largest(wanted, found))

        npu = self.on_npu.run(inputs, recorded, seen)
        for name, layer in self._layers.items():
            before, codes = fake[name]
            layer.add_codes(before, codes, npu[layer.node])
            if (reference := floats.get(layer.source.name)) is not None:
                layer.float_fake.add(reference, layer.real(codes))
                layer.float_npu.add(reference, layer.real(npu[layer.node]))
        self._add_own(inputs, floats)
        return None if self._writes else pytree.tree_leaves(outputs)

    def _kept(self, result: Tensor) -> Tensor:
        return result.clone() if self._writes else result

    def _floats(self, inputs: Sequence[Any]) -> dict[str, Tensor]:
        """Of the float model, by the name of the operator."""
        floats: dict[str, Tensor] = {}
        if self.prepared is not None:
            sources = {layer.source.name for layer in self._layers.values()}

            def keep(node: Node, args: tuple[Any, ...], result: Any) -> None:
                if node.name in sources:
                    floats[node.name] = self._kept(result)

            _run(self.prepared, inputs, keep)
        return floats

    def _add_own(self, inputs: Sequence[Any], floats: Mapping[str, Tensor]) -> None:
        """Run each operator of the quantized graph on the float model's operands."""
        if not floats:
            return

        def given(node: Node) -> Tensor | None:
            layer = self._layers.get(node.all_input_nodes[0].name) if op_name(node.target) in DEQUANTIZE else None
            found = None if layer is None else floats.get(layer.source.name)
            return None if found is None else found.clone()

        def keep(node: Node, args: tuple[Any, ...], result: Any) -> None:
            layer = self._layers.get(node.name)
            if layer is not None and not self._moves_codes(layer) and (reference := floats.get(layer.source.name)) is not None:
                layer.own.add(reference, layer.real(result))

        _run(self.quantized, inputs, keep, given)

    def _moves_codes(self, layer: _Layer) -> bool:
        """Are the codes those of the operator's operand, at other places?"""
        spec = OPS.get(op_name(layer.source.target)) if layer.source.op == "call_function" else None
        if spec is None or layer.q is None or spec.rule(layer.source).output != "same":
            return False
        operand = layer.source.all_input_nodes[0]
        if op_name(operand.target) not in DEQUANTIZE or op_name(operand.all_input_nodes[0].target) not in QUANTIZE:
            return False
        return self.on_npu.qparams(operand) == layer.q

    def rows(self) -> tuple[LayerComparison, ...]:
        """The layers, in execution order."""
        return tuple(self._row(layer) for layer in self._layers.values())

    def _row(self, layer: _Layer) -> LayerComparison:
        q, source = layer.q, layer.source
        computed = layer.node in self.on_npu.computed
        name, fused = _operators(source, {*self.on_npu.computed, *self.on_npu.given} - {source})
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
            own_db=layer.own.db if has_float else None,
            steps=layer.steps,
            own_steps=layer.own_steps,
            allowed_steps=_allowed((*fused, name), dtype) if computed else 0,
            saturated=None if q is None else layer.clipped / max(layer.total, 1),
            range_used=None if q is None else (layer.high - layer.low + 1) / codes if layer.total else 0.0,
        )


def _alike(a: Node, b: Node) -> bool:
    return a.op == b.op and (a.op == "placeholder" or op_name(a.target) == op_name(b.target))


def _operators(source: Node, ends: Container[Node]) -> tuple[str, tuple[str, ...]]:
    """Name of the operator, and of those before it that no quantize node and none of ``ends`` parts from it, in order."""
    if source.op == "placeholder":
        return "input", ()
    if op_name(source.target) in DEQUANTIZE:
        return "requantize", ()
    if source.target is operator.getitem:  # one of several results
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


def _allowed(operators: Sequence[str], dtype: torch.dtype) -> int:
    """1, and what the bound of each of the operators is beyond that."""
    allowed = 1
    for name in operators:
        if (spec := OPS.get(name)) is not None:
            allowed += (spec.bound16 if dtype == torch.int16 else spec.bound) - 1
    return allowed


class _Runner(Interpreter):
    """The graph in PyTorch: observers do nothing, buffers are copies, and hooks see each node."""

    def __init__(
        self,
        module: GraphModule,
        keep: Callable[[Node, tuple[Any, ...], Any], None],
        given: Callable[[Node], Tensor | None],
    ):
        super().__init__(module)
        self._keep, self._given = keep, given

    def run_node(self, n: Node) -> Any:
        if n.op == "call_function" and (result := self._given(n)) is not None:
            return result
        args = self.fetch_args_kwargs_from_env(n)[0]
        result = super().run_node(n)
        self._keep(n, args, result)
        return result

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0]

    def get_attr(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = super().get_attr(target, args, kwargs)
        return found.clone() if isinstance(found, Tensor) and not isinstance(found, torch.nn.Parameter) else found


def _run(
    module: GraphModule,
    inputs: Sequence[Any],
    keep: Callable[[Node, tuple[Any, ...], Any], None],
    given: Callable[[Node], Tensor | None] = lambda node: None,
) -> Any:
    with torch.no_grad():
        return _Runner(module, keep, given).run(*inputs, enable_io_processing=False)
