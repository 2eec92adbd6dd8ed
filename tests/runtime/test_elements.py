"""Tensors and arrays at the runtime's boundary, and the schemas that calls are checked by without torch."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
import torch
from executorch.exir import to_edge

from ethorch import runtime
from ethorch.models import arrays
from ethorch.runtime.elements import Elements
from tools import kernel_schemas

pytestmark = pytest.mark.core

VALUES = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 0, 2, 1)])
def test_elements_keep_values_in_every_order_of_axes(order):
    for value in (VALUES, torch.from_numpy(VALUES), torch.from_numpy(VALUES).to(memory_format=torch.channels_last)):
        elements = Elements.of(value, order)
        assert elements.data.tobytes() == VALUES.transpose(order).tobytes()
        assert np.array_equal(elements.array(), VALUES) and torch.equal(elements.tensor(), torch.from_numpy(VALUES))


@pytest.mark.parametrize("value", [torch.tensor(3.5), torch.zeros(0, 3), torch.tensor([True, False]), torch.tensor([1 + 2j])])
def test_elements_of_numbers_nothing_flags_and_complex_numbers(value):
    elements = Elements.of(value, range(value.dim()))
    assert torch.equal(elements.tensor(), value) and np.array_equal(elements.array(), value.numpy())


def test_bfloat16_is_an_array_of_ml_dtypes(tmp_path):
    class Double(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x

    x = torch.randn(3, 4).to(torch.bfloat16)
    program = runtime.load(to_edge(torch.export.export(Double(), (x,))).to_executorch().buffer)
    assert torch.equal(program(x)[0], x + x)
    (made,) = arrays.random_inputs(program.description)
    (found,) = program.arrays(made)
    assert found.dtype == ml_dtypes.bfloat16 and np.array_equal(found, made + made)
    assert arrays.describe(found)["dtype"] == "bfloat16"
    arrays.save_outputs(str(tmp_path / "out.npz"), [found])
    assert np.array_equal(np.load(tmp_path / "out.npz")["output_0"], found.astype(np.float32))


def test_schemas_of_kernels_are_current():
    assert json.loads(kernel_schemas.PATH.read_text()) == kernel_schemas.schemas(), "run python -m tools.kernel_schemas"
