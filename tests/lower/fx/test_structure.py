"""Inputs and outputs whose structure PyTorch cannot serialize."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import ethorch
from ethorch.lower.fx.structure import serializable
from ethorch.support.errors import QuantizationError, UserCodeError
from tests.helpers.quantized import Function


class Pair(NamedTuple):
    one: Tensor
    other: Tensor


@dataclass
class Registered:
    one: Tensor
    other: Tensor


@dataclass
class Unregistered:
    one: Tensor
    other: Tensor


torch.export.register_dataclass(Registered)


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "delegated": lambda x: torch.max(x, 1),
    "on the CPU": lambda x: torch.sort(x, 1),
    "named tuple": lambda x: Pair(x.sin(), x.cos()),
    "dataclass": lambda x: Registered(x.sin(), x.cos()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators_with_several_outputs_can_be_returned(name: str) -> None:
    inputs = (torch.linspace(-3, 3, 20).reshape(2, 10),)
    result = ethorch.compile(Function(FUNCTIONS[name]), inputs, target="ethos-u55-128")(*inputs)
    assert type(result) is tuple
    for value, expected in zip(result, pytree.tree_leaves(FUNCTIONS[name](*inputs)), strict=True):
        torch.testing.assert_close(value, expected, atol=0.03, rtol=0)


def test_nests_of_other_types_are_kept() -> None:
    inputs = (torch.linspace(-3, 3, 20).reshape(2, 10),)
    program = ethorch.compile(Function(lambda x: {"a": [torch.max(x, 1), x.sin()]}), inputs, target="ethos-u55-128")
    result = program(*inputs)
    assert type(result["a"]) is list and type(result["a"][0]) is tuple and result["a"][0][1].tolist() == [9, 9]


INPUTS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[[Any], Any]]] = {
    "named tuple": (Pair, lambda x: x.one - 2 * x.other),
    "dataclass": (Registered, lambda x: x.one - 2 * x.other),
    "on the CPU": (Pair, lambda x: torch.sort(x.one - 2 * x.other, 1)[0]),
    "in a dict": (lambda a, b: {"y": Pair(a, b), "x": b}, lambda x: x["y"].one - x["x"] - x["y"].other),
    "default dict": (lambda a, b: defaultdict(lambda: a, x=a, y=b), lambda x: x["x"] - 2 * x["y"]),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_of_other_types_can_be_passed(name: str, tmp_path: Path) -> None:
    make, function = INPUTS[name]
    torch.manual_seed(0)
    samples = [(make(torch.rand(2, 10), torch.rand(2, 10)),) for _ in range(4)]
    program = ethorch.compile(Function(function), samples[0], target="ethos-u55-128", calibration=samples)
    loaded = ethorch.load(program.save(tmp_path / "m.pte"))
    for call in (program, loaded, lambda x: program(x=x)):
        torch.testing.assert_close(call(*samples[1]), function(*samples[1]), atol=0.05, rtol=0)
    assert program.compare(*samples[1]).bit_exact and program.accuracy.sqnr_db > 30  # type: ignore[union-attr]


@pytest.mark.parametrize("factory", [None, [].copy, torch.rand, lambda: 0], ids=["none", "method", "imported", "lambda"])
def test_default_dicts_whose_factory_cannot_be_loaded_become_dicts(factory: Any) -> None:
    spec = pytree.tree_structure([defaultdict(factory, x=0), defaultdict(list, y=0)])
    assert serializable(spec) == pytree.tree_structure([{"x": 0}, defaultdict(list, y=0)])


@pytest.mark.parametrize("key", [torch.float32, (1, 2)])
def test_keys_that_cannot_be_serialized_are_refused(key: Any) -> None:
    x = torch.rand(2, 10)
    for function, inputs in ((lambda x: {key: x.sin()}, (x,)), (lambda x: x[key].sin(), ({key: x},))):
        with pytest.raises(QuantizationError) as error:
            ethorch.compile(Function(function), inputs, target="ethos-u55-128")
        assert error.value.id == "quantize.key" and repr(key) in str(error.value)


def test_unregistered_dataclasses_are_refused() -> None:
    x = torch.rand(2, 10)
    for function, inputs in ((lambda x: x.one.sin(), (Unregistered(x, x),)), (lambda x: Unregistered(x.sin(), x), (x,))):
        with pytest.raises(UserCodeError, match=r"torch\.export\.register_dataclass"):
            ethorch.compile(Function(function), inputs, target="ethos-u55-128")
