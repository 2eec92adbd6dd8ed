"""Truth values and integers between operators: what an NPU cannot do is a Reason of the dry run, never a refusal of Vela.

ETHORCH_INTEGERS is ``FIRST:COUNT``, the seeds of the long test's networks.
"""

from __future__ import annotations

import os
import warnings

import pytest
import torch

from ethorch import EthosUCompileSpec, runtime
from ethorch.backend.build import build_pte
from ethorch.models.load import UserModel
from ethorch.quantization.calibrate import quantize
from tests.helpers.integer_graphs import has_floats, integer_network
from tests.helpers.random_networks.network import Network

TARGETS = ("ethos-u55-128", "ethos-u65-256", "ethos-u85-256")


def check(drawn: Network, target: str) -> None:
    """Vela takes what the dry run accepted; a program of integers that the NPU computes gives PyTorch's numbers."""
    module, samples = drawn.build()
    inputs, spec = samples[0], EthosUCompileSpec(target)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        quantized = quantize(UserModel(module, inputs, samples), spec)
        built = build_pte(quantized, inputs, spec)
        wanted = module(*inputs)
    refused = [refusal for refusal in built.partition.refusals if refusal.reason.id.startswith("vela.")]
    assert not refused, f"{target}: {refused}\n{drawn}"
    if built.partition.without_kernel:
        return
    found = runtime.load(built.pte)(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for got, want in zip(found, wanted, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), f"{target}\n{drawn}"
        if not built.partition.refusals and not has_floats(drawn):  # ExecuTorch's remainder of int64 is fmod
            assert torch.equal(got, want), f"{target}: {got} instead of {want}\n{drawn}"


def one(inputs: str, *lines: str) -> Network:
    """Return a network of inputs x0, x1 and so on, and one output for each line."""
    named = tuple((f"x{k}", text.strip()) for k, text in enumerate(inputs.split(";")))
    return Network(0, named, (), tuple((f"v{k}", line) for k, line in enumerate(lines)), tuple(f"v{k}" for k in range(len(lines))))


_BYTES = "torch.randint(-4, 5, (2, 9), dtype=torch.int8)"
#: What once failed.
SEEN = {
    "truth values as floats in an edge program": one(
        "torch.randn(5, 1); torch.randn(5, 1) > 0", "x1 // (x0 * x0 + 1)", "x1 * x0", "x1.count_nonzero(1)"
    ),
    "the greatest index of the greatest": one("torch.randn(17, 3, 8)", "x0.argmax(0).max(0)[0]", "x0.argmax(0).min(0)[1]"),
    "extremes of truth values": one(
        "torch.randn(3, 4) > 0; torch.randn(3, 4) > 0", "torch.maximum(x0, x1)", "torch.minimum(x0, x1)", "x0.amax(1)", "x0.amin(0)"
    ),
    "a dim of a scalar": one(
        "torch.tensor(3, dtype=torch.int32)", "x0.amax(0)", "x0.sum(0)", "x0.cumsum(0)", "x0.flip(0)", "x0.argmax(-1)", "x0 + 1"
    ),
    "a negative start": one("torch.randint(9, (2, 5), dtype=torch.int32)", "x0.narrow(1, -2, 2) + 1"),
    "truth values of bytes": one(
        f"{_BYTES}; {_BYTES}", "torch.logical_and(x0, x1)", "torch.logical_xor(x0, x1)", "torch.logical_not(x0)", "x0.any(1)",
        "x0.all()", "x0.bool()",
    ),
    "narrow integers of floats": one("3 * torch.randn(4, 8)", "x0.to(torch.int16)", "x0.to(torch.int8)"),
    "an index of a maximum": one("torch.randint(9, (3, 5))", "x0.max(1)[0]", "x0.index_copy(1, torch.tensor([0]), x0[:, 4:])"),
    "a slice that is all": one(
        "torch.randint(-9, 9, (1, 1), dtype=torch.int32)", "x0.index_copy(0, torch.tensor([0]), x0.narrow(0, -1, 1))", "x0 + 1"
    ),
    "a view of a scalar": one(
        "torch.randint(-9, 9, (1,)); torch.randint(-9, 9, (1, 1), dtype=torch.int32); torch.randn(4)", "x0.sum(0).transpose(0, -1)",
        "x1.any().unsqueeze(0)", "x1.amax().transpose(0, -1).unsqueeze(-1)", "x2.prod(0).unsqueeze(0)", "x1.amax().max(0)[0] + 1",
        "x0.sum(0).t()", "x1.amax().flatten()",
    ),
    "arithmetic of a scalar": one("torch.randn(2) > 0", "x0 * 1 // (x0.amax(0) * x0.amax(0) + 1)"),
    "triangles of integers": one(
        "torch.randint(-9, 9, (4, 6), dtype=torch.int32)", "x0.tril()", "(x0 > 0).triu(1)", "x0.max(1)[0]"
    ),
    "truth values among integers": one(
        "torch.randn(4, 6) > 0; torch.randint(-9, 9, (4, 6), dtype=torch.int32)", "torch.where(x0, x0, x1)", "x0 & x1", "x1 | x0",
        "(x0 & x1).argmin(1)", "x0 ^ 3",
        "torch.where(x0, x1, x0)", "x0.masked_fill(x1 > 1, 0)", "torch.where(x0, x0, x1.to(torch.int8))", "torch.where(x0, 7, x1)",
    ),
    "remainders of truth values": one(
        "torch.randn(4, 6) > 0; torch.randint(1, 9, (4, 6), dtype=torch.int32); torch.ones(6, dtype=torch.bool)", "x0 % x1",
        "torch.fmod(x0, x1)", "x0 % 3", "x1 % x2", "x0 % x1.to(torch.int8)",
    ),
}  # fmt: skip


FEW = (
    ("the greatest index of the greatest", "ethos-u55-128"),
    ("a slice that is all", "ethos-u55-128"),
    ("a view of a scalar", "ethos-u55-128"),
    ("truth values as floats in an edge program", "ethos-u85-256"),
    ("truth values among integers", "ethos-u85-256"),
)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(name, target, marks=[pytest.mark.long] * ((name, target) not in FEW))
        for name in SEEN
        for target in (("ethos-u55-128", "ethos-u85-256") if "truth" in name else ("ethos-u55-128",))
    ],
)
def test_what_once_failed(name: str, target: str) -> None:
    check(SEEN[name], target)


@pytest.mark.parametrize("seed", [seed if seed < 3 else pytest.param(seed, marks=pytest.mark.long) for seed in range(6)])
def test_a_few(seed: int) -> None:
    check(integer_network(seed), TARGETS[seed % len(TARGETS)])


@pytest.mark.long
def test_many() -> None:
    """3,000 networks, each on one family in turn."""
    first, count = map(int, os.environ.get("ETHORCH_INTEGERS", "0:3000").split(":"))
    failures = []
    for seed in range(first, first + count):
        try:
            check(integer_network(seed), TARGETS[seed % len(TARGETS)])
        except Exception as error:
            failures.append(f"seed {seed}: {type(error).__name__}: {str(error)[:2000]}")
            print(failures[-1], flush=True)
    assert not failures, f"{len(failures)} of {count} networks\n\n" + "\n\n".join(failures[:20])
