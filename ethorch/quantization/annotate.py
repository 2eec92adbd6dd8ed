"""Annotate operators for torchao, with one observer for each group of operators that the NPU executes together.

A group is an operator and the clamp that it absorbs, or a chain of pointwise operators that becomes a lookup table.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import (
    QuantizationAnnotation,
    QuantizationSpec,
    QuantizationSpecBase,
    SharedQuantizationSpec,
)

from ethorch.lower.fx.control_flow import is_control_flow
from ethorch.lower.fx.node import is_float, is_in_place, is_left_out, op_name
from ethorch.lower.fx.states import writes_of
from ethorch.lower.ops.quant_rules import Layer, QuantRule
from ethorch.lower.ops.spec import OpSpec, find
from ethorch.quantization.bias_observer import BIAS
from ethorch.quantization.config import QuantizationConfig
from ethorch.quantization.joins import join
from ethorch.quantization.passes.mask_tensors import is_mask_fill
from ethorch.quantization.passes.top_k import TOPK
from ethorch.quantization.specs import ANNOTATION, check_int32, dtype_of, fixed_spec, on_axis, per_tensor
from ethorch.quantization.states import share_states

#: Key of ``GraphModule.meta``: whether control flow is quantized together with the graph.
BRANCHES = "ethorch_branches"


class Scan:
    def __init__(self, model: GraphModule, config_of: Callable[[Node], QuantizationConfig | None], io: QuantizationConfig | None):
        self.model = model
        self.config_of: Callable[[Node], QuantizationConfig | None] = lambda node: None if is_left_out(node) else config_of(node)
        self.io = io
        self.sources: dict[Node, tuple[Node, QuantizationConfig] | None] = {}
        self.written = writes_of(model.graph)
        self.ends: set[Node] = set()  # observed pointwise results, each of which starts a new chain

    def run(self) -> None:
        nodes = list(self.model.graph.nodes)
        self.find_chains(nodes)
        for node in nodes:
            if is_control_flow(node):
                self.annotate_flow(node)
            elif node.op == "call_function":
                self.annotate(node)
            elif node.op == "placeholder" and self.io and self.io.input_activation and is_float(node) and node.users:
                node.meta[ANNOTATION] = QuantizationAnnotation(output_qspec=self.io.input_activation, _annotated=True)
        join(nodes, self.is_absorbed)
        share_states(self.model, nodes)
        if self.io and self.io.output_activation:
            output = self.model.graph.output_node()
            casts = list(filter(is_left_out, output.all_input_nodes))  # to float64 or bfloat16
            for node in (*casts, output):
                args = [arg for arg in node.all_input_nodes if is_float(arg) and arg not in casts]
                inputs = {arg: self.edge(arg, self.io.output_activation) for arg in args}
                node.meta[ANNOTATION] = QuantizationAnnotation(input_qspec_map=inputs, _annotated=True)

    def find_chains(self, nodes: list[Node]) -> None:
        """Find the input tensor of each chain of pointwise operators that becomes a lookup table.

        A result also read outside its chain is observed and starts a new chain. If an operator then depends on two
        observed tensors, its result is observed as well. The search repeats until it finds no new chain.
        """
        while True:
            for node in nodes:
                self.sources[node] = self.source(node)
            ends = {node for node in nodes if self.sources[node] is not None and is_float(node) and not self.inside_chain(node)}
            if ends <= self.ends:
                return
            self.ends |= ends

    def source(self, node: Node) -> tuple[Node, QuantizationConfig] | None:
        """Return (input, config) of the chain of pointwise operators that ends with ``node``, or None if no chain ends there."""
        spec, config = self.spec(node), self.config_of(node)
        if spec is None or config is None or not spec.pointwise or not _has_table(config, spec):
            return None
        if not is_float(node) and not _is_bool(node):
            return None
        roots: set[Node] = set()
        for arg in node.all_input_nodes:
            if _is_scalar_constant(arg, self.model):
                continue
            before = self.sources.get(arg)
            if _is_bool(arg) and before is None:
                return None
            if not _is_bool(arg) and (not is_float(arg) or arg.op == "get_attr" or arg.meta["val"].dtype != torch.float32):
                return None
            inside = before is not None and before[1] == config and arg not in self.ends and not self.is_absorbed_clamp(arg)
            roots.add(before[0] if inside and before is not None else arg)
        if len(roots) != 1:
            return None
        (root,) = roots
        return (root, config) if root.meta["val"].shape == node.meta["val"].shape else None

    def is_absorbed_clamp(self, node: Node) -> bool:
        return self.find_absorbed(node) is not None

    def find_absorbed(self, node: Node) -> Node | None:
        """Return the input of a clamp if the operator that computes the input absorbs the clamp, or None otherwise."""
        spec = self.spec(node)
        if spec is None or not node.args or not isinstance(node.args[0], Node):
            return None
        before = node.args[0]
        maker = _maker(before)
        producer, config = self.spec(maker), self.config_of(maker)
        if producer is None or config is None or config != self.config_of(node) or len(before.users) != 1:
            return None
        if config.is_qat and node.target is torch.ops.aten.batch_norm.default and producer.rule(maker).layer is not None:
            return before  # prepare_qat_pt2e folds the batch norm into the convolution's weights
        if not spec.absorbs or not config.is_static or spec.rule(node).output == "same":  # a copy has the scale of its input
            return None
        if self.sources.get(before) is not None and not self.is_absorbed_clamp(before):
            return None
        return before if producer.rule(maker).fusable else None

    def inside_chain(self, node: Node) -> bool:
        source = self.sources[node]
        return (
            source is not None
            and bool(node.users)
            and all(self.sources.get(user) == source and not self.is_absorbed_clamp(user) for user in node.users)
        )

    @staticmethod
    def spec(node: Node) -> OpSpec | None:
        return find(node.target) if node.op == "call_function" else None

    def annotate(self, node: Node) -> None:
        spec, config = self.spec(node), self.config_of(node)
        if config is None or ANNOTATION in node.meta or is_in_place(node):
            return
        if any(isinstance(arg, Node) for arg in node.kwargs.values()):  # alpha=x.item(), which torchao does not support
            return
        if spec is None:
            if op_name(node.target) == TOPK and config.is_static:
                self.annotate_topk(node, config)
            return
        if not _has_float(node) and not is_float(node):
            return
        check_int32(config)
        rule = spec.rule(node)
        if not rule.inputs and rule.output == "none":
            return
        if (config.weight is None) if rule.layer is not None else not config.is_static:
            return  # only operators with weights support dynamic ranges
        absorbed = self.find_absorbed(node)
        inputs: dict[Node, QuantizationSpecBase] = {}
        source = self.sources[node]
        for index, arg in enumerate(_tensor_arguments(node, rule)):
            if arg is None or absorbed is arg or (source and _is_scalar_constant(arg, self.model)):
                continue
            if source and arg is not source[0]:
                continue  # the argument is inside a chain
            if rule.output == "none" and arg.op == "get_attr" and arg.target not in self.written:
                continue  # a comparison with an unquantized constant is exact
            if rule.layer is not None and index == rule.layer.weight:
                qspec = self.weight(node, arg, rule.layer.weight_axis, config)
            else:
                qspec = self.edge(arg, config.get_input_act_qspec(node, arg))
            if qspec is not None:
                inputs[arg] = qspec
        output = None
        if is_float(node) and not self.inside_chain(node) and not self.is_absorbed(node):
            output = self.output(node, rule, config, inputs)
        if rule.layer is not None:
            inputs |= self.bias(node, rule.layer, config)
        if not inputs and output is None:
            return
        first = next((user for user in node.users if user.target is operator.getitem and user.args[1] == 0), None)
        if output is not None and first is not None:  # multi-output: observe the node that selects the first output
            first.meta[ANNOTATION] = QuantizationAnnotation(output_qspec=output, _annotated=True)
            output = None
        node.meta[ANNOTATION] = QuantizationAnnotation(input_qspec_map=inputs, output_qspec=output, _annotated=True)

    def annotate_topk(self, node: Node, config: QuantizationConfig) -> None:
        """Share quantization parameters, so that comparisons find the largest elements."""
        source = node.args[0]
        values = next((user for user in node.users if user.target is operator.getitem and user.args[1] == 0), None)
        readers = [] if values is None else [user for user in values.users if self.spec(user) is not None]
        if not isinstance(source, Node) or not is_float(source) or values is None or not readers:
            return
        qspec = self.edge(source, config.get_input_act_qspec(node, source))
        is_quantized = isinstance(qspec, SharedQuantizationSpec) or any(self.spec(user) is not None for user in source.users)
        if qspec is not None and is_quantized:
            node.meta[ANNOTATION] = QuantizationAnnotation(input_qspec_map={source: qspec}, _annotated=True)
            shared = SharedQuantizationSpec((source, node))
            values.meta[ANNOTATION] = QuantizationAnnotation(output_qspec=shared, _annotated=True)

    def annotate_flow(self, node: Node) -> None:
        """Annotate the inputs and outputs of a control-flow operator whose subgraphs are also quantized."""
        config = self.config_of(node)
        if config is None or not config.is_static or BRANCHES not in self.model.meta or ANNOTATION in node.meta:
            return
        tensors = [arg for arg in node.all_input_nodes if is_float(arg)]
        inputs = {arg: qspec for arg in tensors if (qspec := self.edge(arg, config.get_input_act_qspec(node, arg))) is not None}
        node.meta[ANNOTATION] = QuantizationAnnotation(input_qspec_map=inputs, _annotated=True)
        for user in node.users:
            if user.target is operator.getitem and is_float(user):
                user.meta[ANNOTATION] = QuantizationAnnotation(output_qspec=config.get_output_act_qspec(user), _annotated=True)

    def is_absorbed(self, node: Node) -> bool:
        """Return True if a clamp is absorbed by ``node``, whose observer is then placed after the clamp."""
        value = next((user for user in node.users if _maker(user) is node), node)
        users = list(value.users)
        return len(users) == 1 and self.find_absorbed(users[0]) is value

    def is_joined(self, node: Node) -> bool:
        """Return True if the node is read by a concatenation that may share quantization parameters with its inputs."""
        return any(spec.rule(user).joins for user in node.users if (spec := self.spec(user)) is not None)

    def edge(self, arg: Node, qspec: QuantizationSpec | None) -> QuantizationSpecBase | None:
        """Return the spec of an input: the producer's spec if it has the dtype of ``qspec``, or ``qspec`` otherwise."""
        annotation = arg.meta.get(ANNOTATION)
        produced = annotation.output_qspec if annotation else None
        if produced is not None and qspec is not None and dtype_of(produced) == qspec.dtype:
            return SharedQuantizationSpec(arg)
        return qspec

    def weight(self, node: Node, arg: Node, axis: int | None, config: QuantizationConfig) -> QuantizationSpecBase | None:
        """Return the spec of a weight. If ``axis`` is set, a constant weight has one scale for each index of that axis."""
        spec = config.get_weight_qspec(node)
        if spec is None or spec.qscheme not in (torch.per_channel_symmetric, torch.per_channel_affine):
            return spec
        if arg.op != "get_attr":
            return self.edge(arg, config.get_input_act_qspec(node, arg))
        for reader in arg.users:  # the weight of a recurrent layer is observed and stored once for all time steps
            annotation = reader.meta.get(ANNOTATION)
            if (
                annotation
                and arg in annotation.input_qspec_map
                and reader.target is node.target
                and self.config_of(reader) == config
            ):
                shared = annotation.input_qspec_map[arg]  # without the isinstance check, torchao recurses endlessly on some chains
                return shared if isinstance(shared, SharedQuantizationSpec) else SharedQuantizationSpec((arg, reader))
        if axis is None:
            return per_tensor(spec, config.per_tensor_weight)
        return spec if axis == spec.ch_axis else on_axis(spec, axis)

    def bias(self, node: Node, layer: Layer, config: QuantizationConfig) -> dict[Node, QuantizationSpecBase]:
        operands = [node.args[index] if index < len(node.args) else None for index in (layer.weight, layer.bias)]
        are_constants = all(isinstance(arg, Node) and arg.op == "get_attr" for arg in operands)
        spec = config.input_activation
        if not are_constants or config.is_qat or not config.is_static or spec is None or spec.dtype != torch.int8:
            return {}
        return {operands[1]: BIAS}  # type: ignore[dict-item]  # checked above to be a Node

    def output(
        self, node: Node, rule: QuantRule, config: QuantizationConfig, inputs: dict[Node, QuantizationSpecBase]
    ) -> QuantizationSpecBase | None:
        qspec = config.get_output_act_qspec(node)
        if qspec is None or rule.output == "none":
            return None
        if rule.output == "same" and not (config.is_qat and is_mask_fill(node)):  # torchao's fake-quantize would observe the mask
            first = next(iter(inputs), None)
            return SharedQuantizationSpec((first, node)) if first is not None else None
        if rule.keeps_codes and not config.is_qat and list(inputs) == list(node.args[:1]) and not self.is_joined(node):
            return SharedQuantizationSpec((node.args[0], node))
        if rule.output == "fixed" and not qspec.is_dynamic:
            return fixed_spec(rule, qspec, config.is_qat)
        return qspec


def _has_table(config: QuantizationConfig, op: OpSpec) -> bool:
    spec = config.input_activation
    return config.is_static and spec is not None and {torch.int8: "INT8", torch.int16: "INT16"}.get(spec.dtype) in op.table_dtypes


def _maker(value: Node) -> Node:
    source = value.args[0] if value.target is operator.getitem and value.args[1] == 0 else value
    return source if isinstance(source, Node) else value


def _is_bool(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.bool


def _has_float(node: Node) -> bool:
    return any(is_float(arg) for arg in node.all_input_nodes)


def _is_scalar_constant(node: Node, model: GraphModule) -> bool:
    return node.op == "get_attr" and isinstance(node.meta.get("val"), torch.Tensor) and node.meta["val"].numel() == 1


def _tensor_arguments(node: Node, rule: QuantRule) -> list[Node | None]:
    if rule.layer is not None:
        positions = [0, rule.layer.weight]
        chosen = {i: node.args[i] for i in positions if i < len(node.args)}
        return [_float_node(chosen.get(i)) for i in range(max(positions) + 1)]
    flat: list[Node | None] = []
    for arg in node.args:
        flat += [_float_node(x) for x in arg] if isinstance(arg, (list, tuple)) else [_float_node(arg)]
    return flat[:1] if rule.only_first or rule.output == "same" else flat


def _float_node(arg: Any) -> Node | None:
    return arg if isinstance(arg, Node) and is_float(arg) else None
