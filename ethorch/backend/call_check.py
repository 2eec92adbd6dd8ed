"""Is a delegate called with the tensors that its payload takes? Said while compiling: a runtime could only refuse the file."""

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


def check_call(program: ExportedProgram, payload: DelegatePayload) -> None:
    """Compare the inputs and outputs of a partition with its payload's: their number, dtypes, and shapes as they lie in memory.

    Raises:
        EthorchError: they differ, so that a call of the delegate could only fail.
    """
    given = set(program.graph_signature.user_inputs)
    inputs = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in given]
    outputs: list[Node] = []
    torch.fx.map_arg(program.graph.output_node().args, outputs.append)
    _compare("input", inputs, payload.inputs)
    _compare("output", outputs, payload.outputs)


def _compare(kind: str, nodes: Sequence[Node], tensors: Sequence[IoTensor]) -> None:
    bug = "Please report it with the model: this is a bug of ethorch or of Vela."
    if len(nodes) != len(tensors):
        raise EthorchError(f"the delegate is called with {count_noun(len(nodes), kind)}, but its payload has {len(tensors)}. {bug}")
    for number, (node, tensor) in enumerate(zip(nodes, tensors, strict=True)):
        value = node.meta.get("val")
        if not _fits(value, tensor):
            raise EthorchError(
                f"{kind} {number} of the delegate is {node.name}, {_described(value)}, but its payload has elements of "
                f"{tensor.element_size} bytes in the shape {list(tensor.shape)}. {bug}"
            )


def _fits(value: Any, tensor: IoTensor) -> bool:
    if not isinstance(value, torch.Tensor) or value.dtype.is_floating_point or value.dtype.itemsize != tensor.element_size:
        return False
    return _without_ones(int(value.shape[dim]) for dim in storage_order(value)) == _without_ones(tensor.shape)


def _without_ones(shape: Iterable[int]) -> list[int]:
    return [size for size in shape if size != 1]


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{[int(size) for size in value.shape]}"
    return type(value).__name__
