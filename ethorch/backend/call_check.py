"""Check at compile time that delegate calls match their payloads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ethorch.formats.payload import DelegatePayload, IoTensor
from ethorch.lower.fx.node import storage_order
from ethorch.support.errors import EthorchError
from ethorch.support.wording import count_noun
from ethorch.tosa.layout import merge_axes


def check_call(program: ExportedProgram, payload: DelegatePayload) -> None:
    """Raise EthorchError if a payload and its partition differ in the number, element sizes or shapes of inputs or outputs."""
    names = set(program.graph_signature.user_inputs)
    inputs = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    outputs: list[Node] = []
    torch.fx.map_arg(program.graph.output_node().args, outputs.append)
    _compare("input", inputs, payload.inputs)
    _compare("output", outputs, payload.outputs)


def _compare(kind: str, nodes: Sequence[Node], tensors: Sequence[IoTensor]) -> None:
    bug = "This is a bug in ethorch or in Vela. Please report it, and attach the model."
    if len(nodes) != len(tensors):
        raise EthorchError(f"expected {count_noun(len(tensors), kind)} in the call to the delegate, got {len(nodes)}. {bug}")
    for number, (node, tensor) in enumerate(zip(nodes, tensors, strict=True)):
        value = node.meta.get("val")
        if not _fits(value, tensor):
            raise EthorchError(
                f"expected {kind} {number} of the delegate to have elements of {tensor.element_size} bytes and shape "
                f"{list(tensor.shape)}, got {node.name}: {_describe(value)}. {bug}"
            )


def _fits(value: Any, tensor: IoTensor) -> bool:
    if not isinstance(value, torch.Tensor) or value.dtype.is_floating_point or value.dtype.itemsize != tensor.element_size:
        return False
    stored = [int(value.shape[dim]) for dim in storage_order(value)]
    return _without_ones(tensor.shape) in (_without_ones(stored), _without_ones(merge_axes(stored)))


def _without_ones(shape: Iterable[int]) -> list[int]:
    return [size for size in shape if size != 1]


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{[int(size) for size in value.shape]}"
    return type(value).__name__
