"""Every operator's every sample, of floats: TOSA of the profile FP in the reference model against PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from ethorch.arm import TosaCompileSpec
from ethorch.backend.compile import tosa_graph
from ethorch.lower.fx.node import as_array, storage_order
from ethorch.lower.ops import OPS
from ethorch.lower.ops.samples import I8, Sample, W
from ethorch.tosa.serialize import serialize
from tests.helpers import ladder
from tests.lower.ops.test_composites import Each

SPECS = {spec.name: spec for spec in OPS.values()}
#: What has no lowering of floats, and why.
WITHOUT = {
    "aten.lgamma.default": "no formula yet",
    "aten.digamma.default": "no formula yet",
    **dict.fromkeys(
        [
            "aten.polygamma.default",
            *(f"aten.special_{name}.default" for name in ("bessel_j0", "bessel_j1", "erfcx", "i0e", "i1", "i1e", "ndtri")),
            "aten.i0.default",
        ],
        "no formula yet",
    ),
}


def has_parameters(name: str, index: int) -> bool:
    return any(True for _ in ladder.leaves(SPECS[name].samples[index], W))


CASES = [(spec.name, index) for spec in SPECS.values() for index in range(len(spec.samples)) if spec.name not in WITHOUT]
#: The same, one program for all samples of an operator. Those with parameters have one each, because their parameters are equal.
TOGETHER = [
    (name, tuple(indices))
    for (name, *_), group in groupby(CASES, lambda case: case if has_parameters(*case) else case[:1])
    for indices in [[index for _, index in group]]
]
SPEC = TosaCompileSpec("TOSA-1.0+FP+bf16")
#: Steps of the dtype a result may be off, relative to the larger of itself and of one.
STEPS = {torch.float32: 32.0, torch.float16: 2.0, torch.bfloat16: 2.0}


def run(module: torch.nn.Module, inputs: tuple[Any, ...]) -> list[tuple[np.ndarray, torch.Tensor]]:
    """(what the reference model says, what PyTorch says) for each output of the module, lowered whole."""
    program = torch.export.export(module.eval(), inputs)
    graph = tosa_graph(program, SPEC)
    found = ladder.reference(serialize(graph), [as_array(x.contiguous()) for x in tree_leaves(inputs)])
    with torch.no_grad():
        expected = tree_leaves(module(*inputs))
    nodes = [node for node in program.graph.output_node().args[0] if hasattr(node, "meta")]  # type: ignore[union-attr]
    return [
        (got, want.permute(storage_order(node.meta["val"])) if want.dim() else want)
        for got, want, node in zip(found, expected, nodes, strict=True)
    ]


def compare(found: np.ndarray, wanted: torch.Tensor, steps: float) -> None:
    assert found.shape == tuple(wanted.shape)
    if not wanted.dtype.is_floating_point:
        np.testing.assert_array_equal(found.astype(np.int64), wanted.numpy().astype(np.int64))
        return
    step = float(torch.finfo(wanted.dtype).eps) * steps
    np.testing.assert_allclose(found.astype(np.float32), wanted.float().numpy(), rtol=step, atol=step)


def check(name: str, indices: Sequence[int], dtype: torch.dtype) -> None:
    samples = [SPECS[name].samples[index] for index in indices]
    module = Each(*(ladder.Call(name, sample) for sample in samples)).to(dtype)
    bound = min(torch.finfo(dtype).max, 1e6)
    inputs = tuple(
        tuple(x.clamp(-bound, bound).to(dtype) if x.is_floating_point() else x for x in ladder.inputs_for(sample, 0))
        for sample in samples
    )
    for found, wanted in run(module, inputs):
        compare(found, wanted, STEPS[dtype])


@pytest.mark.parametrize(("name", "indices"), TOGETHER, ids=[f"{name}-{indices[0]}" for name, indices in TOGETHER])
def test_fp32(name: str, indices: Sequence[int]) -> None:
    check(name, indices, torch.float32)


@pytest.mark.parametrize(
    "name",
    (
        "erfinv",
        "atanh",
        "acosh",
        "asinh",
        "asin",
        "acos",
        "sinh",
        "sqrt",
        "rsqrt",
        "log",
        "log1p",
        "logit",
        "exp2",
        "round",
        "threshold",
    ),
)
def test_poles(name: str) -> None:
    """Where a function is infinite or not defined, TOSA says what PyTorch does: the reference model calls nothing unpredictable."""
    spec = SPECS[f"aten.{name}.default"]
    inf = float("inf")
    x = torch.tensor([0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 1e30, -1e30, 1e38, inf, -inf])
    sample = Sample(I8(12), *spec.samples[0].args[1:], **spec.samples[0].kwargs)
    for found, wanted in run(ladder.Call(spec.name, sample), (x,)):
        np.testing.assert_allclose(found, wanted.numpy(), rtol=4e-6)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("name", "index"), CASES, ids=[f"{name}-{index}" for name, index in CASES])
def test_half(name: str, index: int, dtype: torch.dtype) -> None:
    if name == "aten.avg_pool3d.default":
        pytest.skip("PyTorch does not compute it on the CPU")
    check(name, [index], dtype)
