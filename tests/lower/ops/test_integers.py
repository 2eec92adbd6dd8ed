"""Every operator on plain integers in place of quantized tensors: PyTorch's numbers, or a refusal with a reason."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree

import ethorch
from ethorch import EthosUCompileSpec
from ethorch.arm.quantizer import get_symmetric_quantization_config
from ethorch.lower.fx.node import storage_order
from ethorch.lower.ops import OPS
from ethorch.lower.ops.samples import I8, Ints, Sample
from ethorch.program.program import record_of
from ethorch.support.errors import QuantizationError, Unsupported
from ethorch.tosa.serialize import serialize
from tests.helpers import ladder

SPECS = {spec.name: spec for spec in OPS.values()}
CASES = [
    (spec.name, index)
    for spec in SPECS.values()
    for index, sample in enumerate(spec.samples)
    if any(True for _ in ladder.leaves(sample, I8))
]
#: Reason ids by which an operator says that it is not for integers.
REFUSALS = (
    "operator.composite", "graph.plain_integers", "graph.input_not_quantized", "integer.", "index", "div.", "to.", "BITWISE_",
    "GATHER", "SCATTER",
)  # fmt: skip


def of_integers(arg: Any, dtype: str) -> Any:
    if isinstance(arg, I8):
        return Ints(*arg.shape, low=-5, high=9, dtype=dtype)
    return [of_integers(a, dtype) for a in arg] if isinstance(arg, (list, tuple)) else arg


@dataclass(frozen=True)
class IntegerCall:
    """A call with plain integers in place of quantized tensors, and PyTorch's numbers."""

    module: ladder.Call
    inputs: tuple[torch.Tensor, ...]
    wanted: list[torch.Tensor]

    @staticmethod
    def of(name: str, given: Sample, dtype: str) -> IntegerCall | None:
        """None where PyTorch has no numbers for it."""
        sample = Sample(*[of_integers(arg, dtype) for arg in given.args], **given.kwargs)
        module = ladder.Call(name, sample.of(given.overload) if given.overload else sample).eval()
        inputs = ladder.inputs_for(sample, 0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wanted = _pytree.tree_leaves(module(*inputs))
        except (RuntimeError, NotImplementedError):
            return None  # there is no such function of integers
        if any(x.dtype.is_floating_point and not bool(torch.isfinite(x).all()) for x in wanted):
            return None  # division by zero, logarithm of zero and their like
        return IntegerCall(module, inputs, wanted)

    def quantized(self, target: str) -> ladder.Quantized:
        return ladder.quantized(self.module, [self.inputs], get_symmetric_quantization_config(), target)

    def climb(self, q: ladder.Quantized, target: str) -> None:
        """PyTorch's numbers in the reference model, and those in the simulator.

        Raises:
            Unsupported: the target refuses it.
        """
        graph = ladder.lowered(q.converted, target)
        tosa = serialize(graph)
        codes = [
            x.numpy().astype(np.int8) if value.dtype == "INT8" else x.numpy()
            for x, value in zip(self.inputs, graph.inputs, strict=True)
        ]
        found = ladder.reference(tosa, codes)
        nodes = q.converted.graph.output_node().args[0]
        for want, got, node in zip(self.wanted, found, nodes, strict=True):
            if not want.dtype.is_floating_point:  # of integers and a fraction PyTorch makes floats, which are quantized
                np.testing.assert_array_equal(got, want.permute(storage_order(node.meta["val"])).numpy())
        for got, want in zip(ladder.machine(tosa, codes, EthosUCompileSpec(target)), found, strict=True):
            np.testing.assert_array_equal(got.ravel(), want.ravel())


def check(name: str, given: Sample, dtype: str, target: str) -> None:
    """The call with plain integers of ``dtype`` in place of quantized tensors: PyTorch's numbers, or a refusal with a reason."""
    call = IntegerCall.of(name, given, dtype)
    if call is None:
        pytest.skip("PyTorch has no numbers for it")
    try:
        call.climb(call.quantized(target), target)
    except Unsupported as refusal:
        id = refusal.reason.id
        assert id.startswith(REFUSALS) or id.endswith((".dtype", ".operand", ".mixed", ".factors")), refusal
    except QuantizationError as error:
        assert error.id.startswith("calibration."), error


@pytest.mark.long
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("dtype", ["int32", "int16", "int8"])
@pytest.mark.parametrize(("name", "index"), CASES, ids=[f"{name}-{index}" for name, index in CASES])
def test_every_operator(name: str, index: int, dtype: str, target: str) -> None:
    check(name, SPECS[name].samples[index], dtype, target)


@pytest.mark.parametrize("name", ["aten.relu.default", "aten.max_pool2d.default", "aten.cumsum.default", "aten.stack.default"])
def test_a_few(name: str) -> None:
    check(name, SPECS[name].samples[0], "int32", "ethos-u55-128")


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_extremes_of_the_largest_numbers(target: str) -> None:
    """A RESCALE takes numbers below 2**29 alone; between INT32 and INT32 there is none."""
    module = ladder.Call("aten.amax.default", Sample(Ints(4, 31), [1]))
    x = torch.randint(-(2**31), 2**31, (4, 31), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = ladder.lowered(ladder.quantized(module, [(x,)], target=target).converted, target)
    tosa = serialize(graph)
    for found in (ladder.reference(tosa, [x.numpy()]), ladder.machine(tosa, [x.numpy()], EthosUCompileSpec(target))):
        np.testing.assert_array_equal(found[0].ravel(), x.amax(1).numpy())


ENDS = torch.tensor([-(2**31), 1 - 2**31, -(2**30) - 1, -(2**30), -5, -1, 0, 1, 7, 2**30 - 1, 2**30, 2**31 - 2, 2**31 - 1])


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("name", ["eq", "ne", "gt", "ge", "lt", "le"])
def test_numbers_that_lie_further_apart_than_int32_holds(name: str, target: str) -> None:
    """Two tensors with broadcasting, and a constant on either side."""
    column, row = ENDS.to(torch.int32).reshape(-1, 1), ENDS.to(torch.int32).reshape(1, -1)
    compared = getattr(torch, name)

    class Compared(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return compared(x, y), compared(x, row), compared(row, x), compared(x, -5)

    module = Compared()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = ladder.lowered(ladder.quantized(module, [(column, row)], target=target).converted, target)
    tosa, codes = serialize(graph), [column.numpy(), row.numpy()]
    for found in (ladder.reference(tosa, codes), ladder.machine(tosa, codes, EthosUCompileSpec(target))):
        for got, wanted in zip(found, module(column, row), strict=True):
            np.testing.assert_array_equal(got.ravel() != 0, wanted.numpy().ravel())


@pytest.mark.parametrize("number", [0.5, float("nan"), float("inf")])
def test_a_comparison_with_a_number_that_is_not_an_integer_is_refused(number: float) -> None:
    class Compared(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 < number

    module, x = Compared(), torch.arange(4, dtype=torch.int32)
    program = ethorch.compile(module, (x,), progress=False)
    (refusal,) = record_of(program).build.partition.refusals
    assert refusal.reason.id == "lt.mixed" and refusal.reason.text.endswith(f"got {number}")
    assert torch.equal(program(x), module(x))


def test_a_dtype_that_no_npu_has_is_refused() -> None:
    class ToBytes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1).to(torch.uint8)

    program = torch.export.export(ToBytes(), (torch.zeros(2, 3, dtype=torch.int32),))
    assert ladder.refusal_ids(program, "ethos-u55-128") == {"graph.integer_dtype"}


class Quotients(torch.nn.Module):
    """Quotients and remainders of integers, by a tensor and by numbers, of all signs."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        by_tensor = [x // y, torch.div(x, y, rounding_mode="trunc"), x % y, torch.fmod(x, y)]
        return (*by_tensor, x // 7, x % 5, torch.div(x, -3, rounding_mode="trunc"), torch.fmod(x, -4))


@pytest.mark.parametrize(
    ("dtype", "target"),
    [
        (torch.int8, "ethos-u55-128"),
        (torch.int32, "ethos-u85-256"),
        pytest.param(torch.int32, "ethos-u55-128", marks=pytest.mark.long),
        pytest.param(torch.int8, "ethos-u85-256", marks=pytest.mark.long),
    ],
)
def test_quotients_and_remainders_of_integers_are_those_of_pytorch(dtype: torch.dtype, target: str) -> None:
    x = torch.arange(-128, 128).repeat(2).to(dtype) * (1 if dtype == torch.int8 else 100_003)
    y = torch.cat([torch.arange(1, 129), torch.arange(-128, 0)]).repeat(2)[torch.randperm(512)].clamp(-127, 127).to(dtype)
    program = ethorch.compile(Quotients(), (x, y), target)
    for found, wanted in zip(program(x, y), Quotients()(x, y), strict=True):
        assert torch.equal(found, wanted)
    on_cpu = {refusal.reason.id for refusal in record_of(program).build.partition.refusals}
    assert on_cpu == (set() if "u85" in target else {"INTDIV.absent"})
