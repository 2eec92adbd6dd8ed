"""The benchmark networks: reproducible, and lively enough that a wrong result would show."""

from __future__ import annotations

import pytest
import torch

from bench.implementation import flat
from bench.models import ALL_MODELS, MODELS

FEW = ("ds_cnn", "resnet8", "autoencoder", "gru")


@pytest.mark.parametrize("name", [name if name in FEW else pytest.param(name, marks=pytest.mark.long) for name in ALL_MODELS])
def test_outputs_differ_within_and_across_inputs(name: str) -> None:
    case = ALL_MODELS[name]
    model = case.build()
    with torch.no_grad():
        outputs = torch.stack([flat(model(*inputs)) for inputs in case.calibration(4, seed=5)])
    assert torch.isfinite(outputs).all()
    assert all(len(row.unique()) > 0.8 * outputs.shape[1] for row in outputs)  # squeezenet's end in a ReLU
    spread = outputs.std(dim=0).mean() / outputs.std()
    assert spread > 0.02, f"{name} answers nearly the same for every input: {spread:.4f} of its own spread"


def test_builds_and_inputs_are_reproducible() -> None:
    case = MODELS["ds_cnn"]
    with torch.no_grad():
        first, second = (case.build()(*case.example_inputs(3)) for _ in range(2))
    assert torch.equal(first, second)
    a, b = case.example_inputs(0)[0], case.example_inputs(1)[0]
    assert not torch.equal(a, b)
