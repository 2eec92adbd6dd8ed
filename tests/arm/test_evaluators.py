"""The evaluators of the Arm backend's names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from ethorch.arm.util.arm_model_evaluator import FileCompressionEvaluator, ImageNetEvaluator, NumericalModelEvaluator


def test_errors_over_all_outputs() -> None:
    reference, found = (torch.tensor([2.0, 0.0]), torch.tensor([4.0])), (torch.tensor([1.0, 1.0]), torch.tensor([4.0]))
    metrics = NumericalModelEvaluator("net", lambda x: reference, lambda x: found, (torch.zeros(1),)).evaluate()
    assert metrics == {
        "max_error": 1.0,
        "max_absolute_error": 1.0,
        "max_percentage_error": 50.0,
        "mean_absolute_error": pytest.approx(2 / 3),
    }


def test_the_inputs_of_the_evaluated_model_have_its_dtype() -> None:
    found: list[torch.dtype] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        found.append(x.dtype)
        return x

    NumericalModelEvaluator("net", model, model, (torch.ones(2),), torch.bfloat16).evaluate()
    assert found == [torch.float32, torch.bfloat16]


def test_accuracy_of_some_samples() -> None:
    scores = torch.tensor([[6.0, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1]])
    data = TensorDataset(scores, torch.tensor([0, 1, 5]))
    metrics = ImageNetEvaluator("net", torch.nn.Identity(), 2, "", validation_dataset=data).evaluate()
    assert metrics == {"num_samples": 3, "accuracy": {"top-1": 1 / 3, "top-5": 2 / 3}}
    metrics = ImageNetEvaluator("net", torch.nn.Identity(), 2, "", max_samples=1, validation_dataset=data).evaluate()
    assert metrics == {"num_samples": 1, "accuracy": {"top-1": 1.0, "top-5": 1.0}}


def test_refusals() -> None:
    with pytest.raises(ValueError, match="max_samples of at least 1, got 0"):
        ImageNetEvaluator("net", torch.nn.Identity(), 1, "", max_samples=0)
    with pytest.raises(ValueError, match="empty"):
        ImageNetEvaluator("net", torch.nn.Identity(), 1, "", validation_dataset=TensorDataset(torch.zeros(0, 2))).evaluate()


def test_compression(tmp_path: Path) -> None:
    (tmp_path / "zeros").write_bytes(bytes(10000))
    assert FileCompressionEvaluator("net", tmp_path / "zeros").evaluate()["compression_ratio"] > 100
