from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from ethorch.lower.fx.node import DEQUANTIZE, op_name, origin_of
from ethorch.support.metrics import sqnr_db
from ethorch.support.wording import count_noun


@dataclass(frozen=True)
class Output:
    """An output's operator with its location, and the output's scale if it is quantized."""

    place: str = ""
    scale: float | None = None


def outputs_of(program: ExportedProgram) -> list[Output]:
    """Return the outputs that the program returns to the user, in order."""
    user_outputs = set(program.graph_signature.user_outputs)
    outputs = []
    for node in pytree.tree_leaves(program.graph.output_node().args[0]):
        if isinstance(node, Node) and node.name in user_outputs:
            outputs.append(_describe_output(node))
    return outputs


def _describe_output(node: Node) -> Output:
    scale = None
    while node.op == "call_function" and "quantize_per" in op_name(node.target):
        if op_name(node.target) in DEQUANTIZE and scale is None and isinstance(node.args[1], float):
            scale = node.args[1]
        node = node.args[0]  # type: ignore[assignment]
    return Output(str(origin_of(node)), scale)


@dataclass(frozen=True)
class Tolerance:
    """The permitted difference of an element from the reference: ``atol + rtol * |reference| + qtol * scale``."""

    atol: float = 1e-3
    rtol: float = 1e-3
    qtol: float = 0


def tensors(outputs: Any) -> list[Tensor]:
    return [leaf if isinstance(leaf, Tensor) else torch.tensor(leaf) for leaf in pytree.tree_leaves(outputs) if leaf is not None]


def differences(reference: Any, actual: Any, tolerance: Tolerance, outputs: Sequence[Output] = ()) -> list[str]:
    """Return a message for each output that differs from the reference by more than the tolerance."""
    expected, got = tensors(reference), tensors(actual)
    if len(expected) != len(got):
        return [f"expected {count_noun(len(expected), 'output')}, got {len(got)}."]
    padded_outputs = [*outputs, *[Output()] * len(expected)]
    lines = [
        _describe_difference(*pair, tolerance, padded_outputs[index]) for index, pair in enumerate(zip(expected, got, strict=True))
    ]
    return [f"output {index}{_place_suffix(padded_outputs[index])}: {line}" for index, line in enumerate(lines) if line]


def _place_suffix(output: Output) -> str:
    return f" of {output.place}" if output.place else ""


def _describe_difference(expected: Tensor, got: Tensor, tolerance: Tolerance, output: Output) -> str:
    if expected.shape != got.shape:
        return f"expected shape {list(expected.shape)}, got {list(got.shape)}."
    if (expected.dtype == torch.bool) != (got.dtype == torch.bool):
        return f"expected {_dtype_name(expected)}, got {_dtype_name(got)}."
    a, b = expected.double(), got.double()
    allowed = tolerance.atol + tolerance.rtol * a.abs() + tolerance.qtol * (output.scale or 0.0)
    apart = (a - b).abs()
    wrong = ~((apart <= allowed) | (a == b) | (a.isnan() & b.isnan()))
    if not bool(wrong.any()):
        return ""
    distance = torch.where(wrong, torch.nan_to_num(apart, nan=torch.inf), -1.0)
    index = tuple(int(i) for i in torch.unravel_index(distance.argmax(), distance.shape))
    largest = float(apart[index])
    steps = f" ({largest / output.scale:.1f} steps of {output.scale:.6g})" if output.scale else ""
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements differ from the reference by more than atol={tolerance.atol:g}, "
        f"rtol={tolerance.rtol:g}, qtol={tolerance.qtol:g}. The largest difference is {largest:.4g}{steps} at {list(index)}: "
        f"expected {a[index]:.6g}, got {b[index]:.6g}. SQNR {sqnr_db(expected, got):.1f} dB."
    )


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def norms(reference: Any, actual: Any) -> tuple[float, float]:
    """Return the error's relative Frobenius norm and the cosine similarity, both over all outputs.

    Return (0, 1) if the outputs and the reference are all zero, and (inf, 0) if only the reference is zero.
    """
    a = torch.cat([x.double().flatten() for x in tensors(reference)])
    b = torch.cat([x.double().flatten() for x in tensors(actual)])
    if not float(a.norm()) or not float(b.norm()):
        error = float((a - b).norm())
        return (0.0, 1.0) if not error else (error / float(a.norm()) if float(a.norm()) else float("inf"), 0.0)
    return float((a - b).norm() / a.norm()), float(a @ b / (a.norm() * b.norm()))
