"""Outputs against what they should be: tolerances, and a message that says where they part and by how much."""

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
    """What is known of an output: the operator that makes it with its place, and its scale where it is quantized."""

    place: str = ""
    scale: float | None = None


def outputs_of(program: ExportedProgram) -> list[Output]:
    """Of each output that the user sees, in order."""
    shown = set(program.graph_signature.user_outputs)
    found = []
    for node in pytree.tree_leaves(program.graph.output_node().args[0]):
        if isinstance(node, Node) and node.name in shown:
            found.append(_output(node))
    return found


def _output(node: Node) -> Output:
    scale = None
    while node.op == "call_function" and "quantize_per" in op_name(node.target):
        if op_name(node.target) in DEQUANTIZE and scale is None and isinstance(node.args[1], float):
            scale = node.args[1]
        node = node.args[0]  # type: ignore[assignment]
    return Output(str(origin_of(node)), scale)


@dataclass(frozen=True)
class Tolerance:
    """How far two outputs may be apart: ``atol + rtol * |reference| + qtol * scale`` each element."""

    atol: float = 1e-3
    rtol: float = 1e-3
    qtol: float = 0


def tensors(outputs: Any) -> list[Tensor]:
    """The tensors of any nest of outputs; numbers as tensors."""
    return [leaf if isinstance(leaf, Tensor) else torch.tensor(leaf) for leaf in pytree.tree_leaves(outputs) if leaf is not None]


def differences(reference: Any, found: Any, tolerance: Tolerance, outputs: Sequence[Output] = ()) -> list[str]:
    """A sentence for each output that is not as the reference, and none where all are."""
    wanted, got = tensors(reference), tensors(found)
    if len(wanted) != len(got):
        return [f"it gives {count_noun(len(got), 'output')}, and {len(wanted)} in the reference."]
    known = [*outputs, *[Output()] * len(wanted)]
    lines = [_difference(*pair, tolerance, known[index]) for index, pair in enumerate(zip(wanted, got, strict=True))]
    return [f"output {index}{_of(known[index])}: {line}" for index, line in enumerate(lines) if line]


def _of(output: Output) -> str:
    return f", of {output.place}" if output.place else ""


def _difference(wanted: Tensor, got: Tensor, tolerance: Tolerance, output: Output) -> str:
    if wanted.shape != got.shape:
        return f"the shape is {list(got.shape)}, and {list(wanted.shape)} in the reference."
    if (wanted.dtype == torch.bool) != (got.dtype == torch.bool):
        return f"it is {_dtype(got)}, and {_dtype(wanted)} in the reference."
    a, b = wanted.double(), got.double()
    allowed = tolerance.atol + tolerance.rtol * a.abs() + tolerance.qtol * (output.scale or 0.0)
    apart = (a - b).abs()
    wrong = ~((apart <= allowed) | (a == b) | (a.isnan() & b.isnan()))
    if not bool(wrong.any()):
        return ""
    distance = torch.where(wrong, torch.nan_to_num(apart, nan=torch.inf), -1.0)
    index = tuple(int(i) for i in torch.unravel_index(distance.argmax(), distance.shape))
    largest = float(apart[index])
    steps = f", {largest / output.scale:.1f} steps of its scale {output.scale:.6g}" if output.scale else ""
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements are further from the reference than atol={tolerance.atol:g}, "
        f"rtol={tolerance.rtol:g}, qtol={tolerance.qtol:g} allow. The furthest is at {list(index)}: {b[index]:.6g}, and "
        f"{a[index]:.6g} in the reference: {largest:.4g} apart{steps}. SQNR {sqnr_db(wanted, got):.1f} dB."
    )


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def norms(reference: Any, found: Any) -> tuple[float, float]:
    """(Frobenius norm of the error by that of the reference, cosine similarity) over all outputs.

    Both norms zero: (0, 1). The reference's alone: (inf, 0).
    """
    a = torch.cat([x.double().flatten() for x in tensors(reference)])
    b = torch.cat([x.double().flatten() for x in tensors(found)])
    if not float(a.norm()) or not float(b.norm()):
        error = float((a - b).norm())
        return (0.0, 1.0) if not error else (error / float(a.norm()) if float(a.norm()) else float("inf"), 0.0)
    return float((a - b).norm() / a.norm()), float(a @ b / (a.norm() * b.norm()))
