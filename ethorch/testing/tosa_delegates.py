"""Run an edge program's delegates in the TOSA reference model, and all other operators in PyTorch."""

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
    """Return the outputs of an edge program, structured like the model's outputs.

    Args:
        program: Program from an edge program manager, partitioned by ``TOSAPartitioner``.

    Raises:
        EthorchError: A delegate is inside control flow, or the reference model rejects a delegate.
    """
    module = program.module(check_guards=False)
    _check_branches(module)
    with torch.no_grad():
        return _WithReferenceModel(module).run(*torch.utils._pytree.tree_leaves(tuple(inputs)), enable_io_processing=True)


def _check_branches(module: GraphModule) -> None:
    for name, part in module.named_modules():
        if part is not module and isinstance(part, GraphModule) and any(map(calls_delegate, part.graph.nodes)):
            raise EthorchError(
                f"the TOSA reference model does not support the delegate inside the control-flow branch {name}. Compile the "
                "model for an Ethos-U target to run it in the simulator."
            )


def calls_delegate(node: Node) -> bool:
    return node.op == "call_function" and CALL_DELEGATE in str(node.target)


class _WithReferenceModel(Interpreter):
    def run_node(self, n: Node) -> Any:
        if not calls_delegate(n):
            return super().run_node(n)
        (delegate, *inputs), _ = self.fetch_args_kwargs_from_env(n)
        arrays = [_to_stored_array(x) for x in inputs]
        results = run(delegate.processed_bytes, arrays)
        expected = n.meta["val"]
        has_several = isinstance(expected, (tuple, list))
        outputs = [
            _to_tensor_like(array, value) for array, value in zip(results, expected if has_several else [expected], strict=True)
        ]
        return outputs if has_several else outputs[0]


def _to_stored_array(tensor: Tensor) -> npt.NDArray[Any]:
    return as_array(tensor.permute(storage_order(tensor)).contiguous())


def _to_tensor_like(array: npt.NDArray[Any], expected: Tensor) -> Tensor:
    order = storage_order(expected)
    stored = as_tensor(array.reshape([expected.shape[dim] for dim in order])).to(expected.dtype)
    return stored.permute([order.index(dim) for dim in range(len(order))])
