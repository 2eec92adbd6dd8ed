"""as_strided reads the memory of PyTorch's tensors, whose strides differ from those of a program."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import ethorch
from ethorch.support.errors import QuantizationError
from tests.helpers.quantized import Function

STRIDED: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: torch.as_strided(torch.relu(x), (3, 4), (1, 3)) * 2,
    "permuted": lambda x: torch.as_strided(torch.relu(x.permute(0, 2, 1)), (2, 3, 4), (12, 4, 1)) * 2,
    "expanded": lambda x: torch.as_strided(torch.relu(x[:1]).expand(2, 3, 4), (2, 3, 4), (0, 4, 1)) * 2,
    "slice with an offset": lambda x: torch.as_strided(torch.relu(x)[1:], (3, 4), (4, 1), 2) + 1,
    "slice with gaps": lambda x: torch.as_strided(torch.relu(x)[:, 1:3].permute(0, 2, 1), (2, 4, 2), (12, 1, 4)) * 2,
    "two": lambda x: torch.as_strided(torch.as_strided(torch.relu(x), (2, 3, 2), (12, 4, 1)), (2, 2, 2, 2), (12, 4, 2, 1)) * 2,
}


@pytest.mark.parametrize("name", STRIDED)
@pytest.mark.parametrize("runs_on_npu", [True, False])
def test_strides_are_those_of_pytorch(name: str, runs_on_npu: bool) -> None:
    torch.manual_seed(0)
    model, x = Function(STRIDED[name]).eval(), torch.randn(2, 3, 4)
    floats = {} if runs_on_npu else dict.fromkeys(["as_strided", "as_strided_1"][: 2 if name == "two" else 1], "float")
    program = ethorch.compile(model, x, "ethos-u55-128", modules=floats)
    assert ethorch.sqnr_db(model(x), program(x)) > 38
    assert ("aten.as_strided" in str(program.explain(cpu_only=True))) != runs_on_npu


def test_elements_outside_of_a_tensor_are_an_error() -> None:
    with pytest.raises(QuantizationError, match=r"elements 0 to 24 of the memory of relu.*quantize.strides"):
        ethorch.compile(Function(lambda x: torch.as_strided(torch.relu(x), (2, 24), (1, 1))), torch.randn(2, 3, 4), "ethos-u55-128")
