"""Runs an edge program whose delegates are TOSA flatbuffers: those in the TOSA reference model, the rest in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter, Node

from ethorch.lower.fx.node import as_array, as_tensor, storage_order
from ethorch.support.errors import EthorchError
from ethorch.tosa.reference_model import run

CALL_DELEGATE = "executorch_call_delegate"


def run_program(program: ExportedProgram, inputs: Sequence[Any]) -> Any:
    """The program's outputs, nested as the model returns them.

    Args:
        program: of an edge program manager behind ``TOSAPartitioner``.
        inputs: as the model takes them.

    Raises:
        EthorchError: a delegate lies inside of control flow, or the reference model refuses one.
    """
    module = program.module(check_guards=False)
    _check_branches(module)
    with torch.no_grad():
        return _WithReferenceModel(module).run(*torch.utils._pytree.tree_leaves(tuple(inputs)), enable_io_processing=True)


def _check_branches(module: GraphModule) -> None:
    for name, part in module.named_modules():
        if part is not module and isinstance(part, GraphModule) and any(map(calls_delegate, part.graph.nodes)):
            raise EthorchError(
                f"a delegate is called inside of control flow ({name}), where it cannot be taken out to run in the TOSA reference "
                "model. Compile the model for an Ethos-U target: the simulator runs it."
            )


def calls_delegate(node: Node) -> bool:
    """Does the node call a delegate?"""
    return node.op == "call_function" and CALL_DELEGATE in str(node.target)


class _WithReferenceModel(Interpreter):
    """PyTorch's interpreter, which hands delegates to the reference model."""

    def run_node(self, n: Node) -> Any:
        if not calls_delegate(n):
            return super().run_node(n)
        (delegate, *inputs), _ = self.fetch_args_kwargs_from_env(n)
        arrays = [_stored(x) for x in inputs]
        found = run(delegate.processed_bytes, arrays)
        wanted = n.meta["val"]
        several = isinstance(wanted, (tuple, list))
        outputs = [_like(array, value) for array, value in zip(found, wanted if several else [wanted], strict=True)]
        return outputs if several else outputs[0]


def _stored(tensor: Tensor) -> npt.NDArray[Any]:
    """A tensor as it lies in memory, its axes in that order."""
    return as_array(tensor.permute(storage_order(tensor)).contiguous())


def _like(array: npt.NDArray[Any], wanted: Tensor) -> Tensor:
    """The array as a tensor of the shape, dtype and order in memory of ``wanted``."""
    order = storage_order(wanted)
    stored = as_tensor(array.reshape([wanted.shape[dim] for dim in order])).to(wanted.dtype)
    return stored.permute([order.index(dim) for dim in range(len(order))])
