"""Where observers sit: one scan of the graph writes torchao's annotations; an operator's rule comes from its OpSpec.

What the NPU does in one step is observed once: a clamp behind an operator that requantizes anyway shares its observer,
and pointwise operators that depend on one tensor are a single table with one observer at their end. Biases are left in
float (the lowering knows their scale: input x weight).
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import (
    FixedQParamsQuantizationSpec,
    QuantizationAnnotation,
    QuantizationSpec,
    QuantizationSpecBase,
    SharedQuantizationSpec,
)

from ethorch.branches import is_control_flow
from ethorch.errors import QuantizationError
from ethorch.masks import is_mask_fill
from ethorch.ops.quant_rules import QuantRule
from ethorch.ops.spec import OpSpec, find, op_name
from ethorch.quantization_config import QuantizationConfig
from ethorch.quantize.observers import known_qparams

ANNOTATION = "quantization_annotation"
#: Key of ``GraphModule.meta``: the graphs that its control flow holds are quantized with it.
BRANCHES = "ethorch_branches"


class Scan:
    """One pass over the graph that writes the annotations."""

    def __init__(self, model: GraphModule, config_of: Callable[[Node], QuantizationConfig | None], io: QuantizationConfig | None):
        self.model = model
        self.config_of = config_of
        self.io = io
        self.sources: dict[Node, tuple[Node, QuantizationConfig] | None] = {}

    def run(self) -> None:
        nodes = list(self.model.graph.nodes)
        for node in nodes:
            self.sources[node] = self.source(node)
        for node in nodes:
            if is_control_flow(node):
                self.annotate_flow(node)
            elif node.op == "call_function":
                self.annotate(node)
            elif node.op == "placeholder" and self.io and self.io.input_activation and _is_float(node) and node.users:
                node.meta[ANNOTATION] = QuantizationAnnotation(output_qspec=self.io.input_activation, _annotated=True)
        self.join(nodes)
        if self.io and self.io.output_activation:
            output = self.model.graph.output_node()
            inputs = {arg: self.edge(arg, self.io.output_activation) for arg in output.all_input_nodes if _is_float(arg)}
            output.meta[ANNOTATION] = QuantizationAnnotation(input_qspec_map=inputs, _annotated=True)

    def source(self, node: Node) -> tuple[Node, QuantizationConfig] | None:
        """For a pointwise node: the one tensor it depends on, seen through pointwise nodes before it, and the config."""
        spec, config = self.spec(node), self.config_of(node)
        if spec is None or config is None or not spec.pointwise or not _tables(config, spec):
            return None
        if not _is_float(node) and not _is_truth(node):
            return None
        roots: set[Node] = set()
        for arg in node.all_input_nodes:
            if _is_scalar_constant(arg, self.model):
                continue
            before = self.sources.get(arg)
            if _is_truth(arg) and before is None:
                return None
            if not _is_truth(arg) and (not _is_float(arg) or arg.op == "get_attr" or arg.meta["val"].dtype != torch.float32):
                return None
            inside = before is not None and before[1] == config and not self.stands_alone(arg)
            roots.add(before[0] if inside and before is not None else arg)
        if len(roots) != 1:
            return None
        (root,) = roots
        return (root, config) if root.meta["val"].shape == node.meta["val"].shape else None

    def stands_alone(self, node: Node) -> bool:
        """A clamp absorbed by what is before it: its result is observed, so a chain starts after it."""
        return self.absorbed_by(node) is not None

    def absorbed_by(self, node: Node) -> Node | None:
        """The value before ``node`` whose operator's requantization makes this clamp or no-op free, if any."""
        spec = self.spec(node)
        if spec is None or not node.args or not isinstance(node.args[0], Node):
            return None
        before = node.args[0]
        maker = _maker(before)
        producer, config = self.spec(maker), self.config_of(maker)
        if producer is None or config is None or config != self.config_of(node) or len(before.users) != 1:
            return None
        if config.is_qat and op_name(node.target) == "aten.batch_norm.default" and producer.rule(maker).weight >= 0:
            return before  # prepare_qat_pt2e folds it into the convolution's weights
        if not spec.absorbs or not _static(config):
            return None
        if self.sources.get(before) is not None and not self.stands_alone(before):
            return None
        return before if producer.rule(maker).fusable else None

    def inside_chain(self, node: Node) -> bool:
        """Is the result of this pointwise node only read by pointwise nodes on the same tensor?"""
        own = self.sources[node]
        return (
            own is not None
            and bool(node.users)
            and all(self.sources.get(user) == own and not self.stands_alone(user) for user in node.users)
        )

    @staticmethod
    def spec(node: Node) -> OpSpec | None:
        return find(node.target) if node.op == "call_function" else None

    def annotate(self, node: Node) -> None:
        spec, config = self.spec(node), self.config_of(node)
        if spec is None or config is None or ANNOTATION in node.meta or _writes(node):
            return
        if not _has_float(node) and not _is_float(node):
            return
        rule = spec.rule(node)
        if not rule.inputs and rule.output == "none":
            return
        if (config.weight is None) if rule.weight >= 0 else not _static(config):
            return  # no scheme for the weight; or ranges found at run time, of which only weighted operators can make use
        absorbed = self.absorbed_by(node)
        inputs: dict[Node, QuantizationSpecBase] = {}
        own = self.sources[node]
        for index, arg in enumerate(_tensor_arguments(node, rule)):
            if arg is None or absorbed is arg or (own and _is_scalar_constant(arg, self.model)):
                continue
            if own and arg is not own[0]:
                continue  # the inside of a chain
            qspec = self.weight(node, arg, config) if index == rule.weight else self.edge(arg, config.input_activation)
            if qspec is not None:
                inputs[arg] = qspec
        output = None
        if _is_float(node) and not self.inside_chain(node) and not self.is_absorbed(node):
            output = self.output(node, rule, config, inputs)
        if not inputs and output is None:
            return
        first = next((user for user in node.users if user.target is operator.getitem and user.args[1] == 0), None)
        if output is not None and first is not None:  # several results: the first is observed where it is taken out
            first.meta[ANNOTATION] = QuantizationAnnotation(output_qspec=output, _annotated=True)
            output = None
        node.meta[ANNOTATION] = QuantizationAnnotation(input_qspec_map=inputs, output_qspec=output, _annotated=True)

    def annotate_flow(self, node: Node) -> None:
        """What goes into control flow and what comes out, if what it holds is quantized too (quantize_with_submodules)."""
        config = self.config_of(node)
        if config is None or not _static(config) or BRANCHES not in self.model.meta or ANNOTATION in node.meta:
            return
        tensors = [arg for arg in node.all_input_nodes if _is_float(arg)]
        inputs = {arg: qspec for arg in tensors if (qspec := self.edge(arg, config.input_activation)) is not None}
        node.meta[ANNOTATION] = QuantizationAnnotation(input_qspec_map=inputs, _annotated=True)
        for user in node.users:
            if user.target is operator.getitem and _is_float(user):
                user.meta[ANNOTATION] = QuantizationAnnotation(output_qspec=config.output_activation, _annotated=True)

    def join(self, nodes: list[Node]) -> None:
        """Let what only a concatenation reads have the concatenation's qparams: to round once is better than twice, and free.

        A group shares the observer of its first node: torchao knows no other direction.
        """
        groups: list[set[Node]] = []
        for node in nodes:
            spec, annotation = self.spec(node), node.meta.get(ANNOTATION)
            if spec is None or annotation is None or not spec.rule(node).joins:
                continue
            whole = node
            while self.is_absorbed(whole):
                (whole,) = whole.users
            qspec = whole.meta[ANNOTATION].output_qspec if ANNOTATION in whole.meta else None
            if type(qspec) is not QuantizationSpec:
                continue
            found = [self.observed(arg) for arg in annotation.input_qspec_map]
            alike = len({part for part, _ in found}) == 1  # one tensor and what was moved or pooled of it
            parts = {part for part, alone in found if part and (alone or alike)}
            group = {whole} | {part for part in parts if part.meta[ANNOTATION].output_qspec == qspec}
            for other in [other for other in groups if other & group]:
                group |= other
                groups.remove(other)
            groups.append(group)
        place = {node: number for number, node in enumerate(nodes)}
        for group in groups:
            first, *rest = sorted(group, key=place.__getitem__)
            for node in rest:
                node.meta[ANNOTATION].output_qspec = SharedQuantizationSpec(first)

    def observed(self, value: Node) -> tuple[Node | None, bool]:
        """The node whose observer gives ``value`` its qparams, seen through data movement; does nobody else read it?"""
        alone = True
        while ANNOTATION in value.meta:
            alone = alone and len(value.users) == 1
            qspec = value.meta[ANNOTATION].output_qspec
            if not isinstance(qspec, SharedQuantizationSpec):
                return (value if qspec is not None else None), alone
            shared = qspec.edge_or_node
            if not isinstance(shared, tuple) or shared[1] is not value:
                break
            value = shared[0]
        return None, False

    def is_absorbed(self, node: Node) -> bool:
        """Is the node's result observed one node later, behind the clamp it absorbs?"""
        value = next((user for user in node.users if _maker(user) is node), node)
        users = list(value.users)
        return len(users) == 1 and self.absorbed_by(users[0]) is value

    def edge(self, arg: Node, qspec: QuantizationSpec | None) -> QuantizationSpecBase | None:
        """The spec of an input: the producer's where it is quantized to the same dtype, else one of its own."""
        annotation = arg.meta.get(ANNOTATION)
        produced = annotation.output_qspec if annotation else None
        if produced is not None and qspec is not None and _root_dtype(produced) == qspec.dtype:
            return SharedQuantizationSpec(arg)
        return qspec

    def weight(self, node: Node, arg: Node, config: QuantizationConfig) -> QuantizationSpecBase | None:
        """The weight's spec: per output channel where it is a constant, wherever the operator keeps its output channels."""
        spec = config.weight
        if spec is None or spec.qscheme not in (torch.per_channel_symmetric, torch.per_channel_affine):
            return spec
        if arg.op != "get_attr":
            return self.edge(arg, config.input_activation)
        axis = _output_axis(node)
        for other in arg.users:  # a recurrent layer's weight, read at every step, is observed and stored once
            annotation = other.meta.get(ANNOTATION)
            if annotation and arg in annotation.input_qspec_map and other.target is node.target and self.config_of(other) == config:
                return SharedQuantizationSpec((arg, other))
        if axis is None:
            return dataclasses.replace(
                spec, qscheme=torch.per_tensor_symmetric, ch_axis=None, observer_or_fake_quant_ctr=config.per_tensor_weight
            )
        if axis == spec.ch_axis:
            return spec
        maker: Any = spec.observer_or_fake_quant_ctr
        # torchao reads the name of maker.p.func, which with_args would hide
        same = functools.partial(maker.p.func, *maker.p.args, **{**maker.p.keywords, "ch_axis": axis})
        return dataclasses.replace(spec, ch_axis=axis, observer_or_fake_quant_ctr=type(maker)(same))

    def output(
        self, node: Node, rule: QuantRule, config: QuantizationConfig, inputs: dict[Node, QuantizationSpecBase]
    ) -> QuantizationSpecBase | None:
        qspec = config.output_activation
        if qspec is None or rule.output == "none":
            return None
        if rule.output == "same" and not (config.is_qat and is_mask_fill(node)):  # torchao's fake-quantize would see the mask
            first = next(iter(inputs), None)
            return SharedQuantizationSpec((first, node)) if first is not None else None
        if rule.output == "fixed" and not qspec.is_dynamic:
            return fixed_spec(rule, qspec, config.is_qat)
        return qspec


@dataclass(frozen=True)
class KnownRange(QuantizationSpec):
    """A spec whose range mathematics knows; the observer is told. See ``ActivationObserver.known``."""

    known: tuple[float, float] = (0.0, 1.0)


def fixed_spec(rule: QuantRule, like: QuantizationSpec, is_qat: bool) -> QuantizationSpecBase:
    """The spec of a result whose range is known; where it trains, qparams that nothing moves."""
    assert rule.fixed_range is not None and like.quant_min is not None and like.quant_max is not None
    if not is_qat:
        return KnownRange(**{f.name: getattr(like, f.name) for f in dataclasses.fields(like)}, known=rule.fixed_range)
    scale, zero = known_qparams(rule.fixed_range, like.dtype, like.quant_min, like.quant_max)
    return FixedQParamsQuantizationSpec(
        dtype=like.dtype,
        scale=scale,
        zero_point=zero,
        quant_min=like.quant_min,
        quant_max=like.quant_max,
        qscheme=torch.per_tensor_affine,
    )


def _root_dtype(qspec: QuantizationSpecBase) -> torch.dtype | None:
    """dtype a spec ends up with, seen through sharing."""
    for _ in range(10_000):
        if not isinstance(qspec, SharedQuantizationSpec):
            return getattr(qspec, "dtype", None)
        shared = qspec.edge_or_node
        if isinstance(shared, tuple):
            qspec = shared[1].meta[ANNOTATION].input_qspec_map[shared[0]] if ANNOTATION in shared[1].meta else None  # type: ignore[assignment]
        else:
            qspec = shared.meta[ANNOTATION].output_qspec
        if qspec is None:
            return None
    raise QuantizationError("quantize.shared_circle", "annotations share in a circle")


def _static(config: QuantizationConfig) -> bool:
    """Are activation ranges known before the model runs?"""
    spec = config.input_activation
    return spec is not None and not spec.is_dynamic and config.output_activation is not None


def _tables(config: QuantizationConfig, op: OpSpec) -> bool:
    """Are activations static and of a dtype for which a chain of the operator on one of them is a table?"""
    spec = config.input_activation
    return _static(config) and spec is not None and {torch.int8: "INT8", torch.int16: "INT16"}.get(spec.dtype) in op.table_dtypes


def _maker(value: Node) -> Node:
    """The operator that computes ``value``: itself, or the one of several results of which it is the first."""
    source = value.args[0] if value.target is operator.getitem and value.args[1] == 0 else value
    return source if isinstance(source, Node) else value


def _writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _output_axis(node: Node) -> int | None:
    """The axis of a weight that holds output channels; None where they are spread over two (grouped transposed convolution)."""
    name = op_name(node.target)
    groups = node.args[8] if name == "aten.convolution.default" else 1
    transposed = name.startswith("aten.conv_transpose") or (name == "aten.convolution.default" and bool(node.args[6]))
    if name.startswith("aten.conv_transpose"):
        groups = node.args[6] if len(node.args) > 6 else node.kwargs.get("groups", 1)
    if transposed:
        return 1 if groups == 1 else None
    return 1 if name in ("aten.addmm.default", "aten.mm.default") else 0


def _is_float(node: Node) -> bool:
    value = node.meta.get("val")
    value = value[0] if isinstance(value, (tuple, list)) and value else value
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def _is_truth(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.bool


def _has_float(node: Node) -> bool:
    return any(_is_float(arg) for arg in node.all_input_nodes)


def _is_scalar_constant(node: Node, model: GraphModule) -> bool:
    return node.op == "get_attr" and isinstance(node.meta.get("val"), torch.Tensor) and node.meta["val"].numel() == 1


def _tensor_arguments(node: Node, rule: QuantRule) -> list[Node | None]:
    """The arguments that are quantized, by position; None for others. Lists (cat) are flattened."""
    if rule.weight >= 0:
        positions = [0, rule.weight]
        chosen = {i: node.args[i] for i in positions if i < len(node.args)}
        return [_float_node(chosen.get(i)) for i in range(max(positions) + 1)]
    flat: list[Node | None] = []
    for arg in node.args:
        flat += [_float_node(x) for x in arg] if isinstance(arg, (list, tuple)) else [_float_node(arg)]
    return flat[:1] if rule.only_first or rule.output == "same" else flat


def _float_node(arg: Any) -> Node | None:
    return arg if isinstance(arg, Node) and _is_float(arg) else None
