"""Facts about an operator stand where the operator is defined: what uses them spells no operator's name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Node

import ethorch
from ethorch.lower.builder.window import Window
from ethorch.lower.ops.quant_rules import Layer
from ethorch.lower.ops.spec import OPS, find
from tests.helpers.quantized import exported

PACKAGE = Path(ethorch.__file__).parent
FOLDERS = ("quantization", "tuning", "backend")
#: What writes and reads a .pte knows ExecuTorch's operators.
FILES = sorted(path for name in FOLDERS for path in (PACKAGE / name).rglob("*.py") if "emit" not in path.parts)
BARE = {name.split(".")[1] for name in OPS}

#: (file, name, or * for any) -> why it is spelled there.
ALLOWED = {
    (
        "quantization/passes/view_steps.py",
        "*",
    ): "views as PyTorch names them: how a write through each is undone; most are not in OPS",
    ("quantization/passes/decompose.py", "aten._native_batch_norm_legit_no_training.default"): "convert_pt2e takes it for training",
    ("quantization/passes/decompose.py", "aten.batch_norm.default"): "convert_pt2e takes it for training",
    ("quantization/passes/decompose.py", "aten.native_batch_norm.default"): "it may use statistics of the batch",
    (
        "quantization/passes/complex_tensors.py",
        "*",
    ): "what each operator of complex tensors is in real ones; none of those is in OPS",
    **{
        ("quantization/passes/constants.py", f"aten.{name}.default"): "what reads the shape of a tensor alone"
        for name in ("expand_as", "view_as")
    },
    ("quantization/weight_observer.py", "max"): "a calibration method",
    ("quantization/passes/experts.py", "*"): "a mixture as transformers spells it, and what takes its place",
    (
        "tuning/smoothing_sites.py",
        "*",
    ): "what leaves each channel of the last axis at its place, in float: flips and pools do not",
    ("tuning/residual_stream.py", "*"): "what orthogonal matrices commute with: no fact about codes",
    ("quantization/passes/cleanup.py", "aten._to_copy.default"): "casts, some of which do nothing",
    ("backend/products_on_cpu.py", "*"): "products that ExecuTorch's cortex_m kernel computes, and where their operands stand",
    ("quantization/trained_batch_norms.py", "*"): "what prepare_qat_pt2e draws around a convolution, and what it becomes",
    ("quantization/passes/batch_norms.py", "*"): "the spellings whose statistics are parameters; a layer's own are none",
    ("backend/cpu_kernels.py", "*"): "kernels of ExecuTorch, which know nothing of OPS",
    (
        "quantization/passes/top_k.py",
        "aten.gather.default",
    ): "what reads at places along a dim, beside scatter, which is no operator here",
    (
        "quantization/passes/decompose.py",
        "aten.view.default",
    ): "the one reshape that PyTorch refuses for how its operand lies in memory",
    ("backend/codes_on_cpu.py", "aten.gather.default"): "the operator whose CPU kernel requires int64 indices",
    ("quantization/integer_io.py", "aten.to.dtype"): "the cast that the program returns, as the exported call says it",
    ("quantization/passes/index_inputs.py", "aten.select.int"): "an element at a computed place, which becomes an index",
    ("quantization/passes/index_inputs.py", "aten.select_scatter.default"): "as above, for a copy with a changed element",
    ("tuning/qat.py", "aten.batch_norm.default"): "the spelling that a frozen batch norm has",
    ("quantization/annotate.py", "aten.batch_norm.default"): "the one spelling that prepare_qat_pt2e folds into a convolution",
}


def spelled(tree: ast.Module) -> Iterator[str]:
    """Names of operators in OPS that the code compares with: strings, and overloads in a comparison."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs and node.value in OPS:
            yield node.value
        if isinstance(node, (ast.Set, ast.Dict, ast.Tuple, ast.List, ast.Compare)):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.Constant) and child.value in BARE:
                    yield child.value
                name = ast.unparse(child).removeprefix("torch.ops.") if isinstance(child, ast.Attribute) else ""
                if name in OPS and not isinstance(node, ast.List):
                    yield name


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_operator_is_spelled_out(path: Path) -> None:
    file = str(path.relative_to(PACKAGE))
    allowed = {name for place, name in ALLOWED if place == file}
    found = set(spelled(ast.parse(path.read_text())))
    assert "*" in allowed or found == allowed


def layer_of(function: object, weight: tuple[int, ...], x: tuple[int, ...]) -> Layer:
    """The layer that the rule of the exported call says."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(weight))

        def forward(self, x: Tensor) -> Tensor:
            return function(x, self.weight)  # type: ignore[operator, no-any-return]

    graph: GraphModule = exported(Model(), (torch.randn(x),))
    node: Node = next(node for node in graph.graph.nodes if node.op == "call_function")
    spec = find(node.target)
    assert spec is not None
    layer = spec.rule(node).layer
    assert layer is not None
    return layer


@pytest.mark.parametrize(
    ("function", "weight", "x", "weight_axis", "output_axis", "groups"),
    [
        (F.linear, (5, 4), (2, 4), 0, -1, 1),
        (F.conv1d, (6, 4, 3), (1, 4, 9), 0, -2, 1),
        (lambda x, w: F.conv2d(x, w, groups=2), (6, 2, 3, 3), (1, 4, 9, 9), 0, -3, 2),
        (F.conv3d, (6, 4, 2, 2, 2), (1, 4, 5, 5, 5), 0, -4, 1),
        (lambda x, w: F.conv2d(x, w, padding="same"), (6, 4, 2, 3), (1, 4, 9, 9), 0, -3, 1),
        (F.conv_transpose2d, (4, 6, 3, 3), (1, 4, 9, 9), 1, -3, 1),
        (lambda x, w: F.conv_transpose1d(x, w, groups=2), (4, 3, 3), (1, 4, 9), None, -2, 2),
    ],
)
def test_where_a_layer_has_its_channels(
    function: object, weight: tuple[int, ...], x: tuple[int, ...], weight_axis: int | None, output_axis: int, groups: int
) -> None:
    layer = layer_of(function, weight, x)
    assert (layer.weight_axis, layer.output_axis, layer.groups) == (weight_axis, output_axis, groups)


def test_what_a_convolution_reads() -> None:
    layer = layer_of(lambda x, w: F.conv2d(x, w, None, (2, 1), (1, 0), (1, 2)), (6, 4, 3, 3), (1, 4, 9, 9))
    assert layer.window is not None
    assert layer.window == Window((3, 3), (2, 1), (1, 2), (1, 0), (1, 0))
    same = layer_of(lambda x, w: F.conv2d(x, w, padding="same"), (6, 4, 2, 3), (1, 4, 9, 9)).window
    assert same == Window((2, 3), (1, 1), (1, 1), (0, 1), (1, 1))
