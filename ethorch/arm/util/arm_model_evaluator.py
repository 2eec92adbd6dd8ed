"""Drop-in replacement for ``executorch.backends.arm.util.arm_model_evaluator``."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, Subset

__all__ = ["Evaluator", "FileCompressionEvaluator", "ImageNetEvaluator", "NumericalModelEvaluator"]

Model = Callable[..., Any]


class Evaluator:
    """An evaluator that computes metrics."""

    def evaluate(self) -> dict[str, Any]:
        """Return the metrics, keyed by name."""
        raise NotImplementedError


class NumericalModelEvaluator(Evaluator):
    """An evaluator of the differences ``reference - evaluated`` between the outputs of two models.

    Args:
        eval_dtype: Dtype to which the inputs of ``eval_model`` are converted. Default: no conversion.
    """

    def __init__(
        self,
        model_name: str,
        ref_model: Model,
        eval_model: Model,
        example_inputs: tuple[Any, ...],
        eval_dtype: torch.dtype | None = None,
    ):
        self.model_name, self.ref_model, self.eval_model = model_name, ref_model, eval_model
        self.example_inputs, self.eval_dtype = example_inputs, eval_dtype

    def evaluate(self) -> dict[str, Any]:
        """Return ``max_error``, ``max_absolute_error``, ``max_percentage_error`` and ``mean_absolute_error`` over all outputs.

        Percentages are signed. Elements whose reference value is 0 have an error of 0%.

        Raises:
            ValueError: The models return different numbers of outputs.
        """
        inputs = self.example_inputs if self.eval_dtype is None else tuple(x.to(self.eval_dtype) for x in self.example_inputs)
        with torch.no_grad():
            reference, outputs = (pytree.tree_leaves(y) for y in (self.ref_model(*self.example_inputs), self.eval_model(*inputs)))
        expected = torch.cat([x.flatten().double() for x in reference])
        error = expected - torch.cat([x.flatten().double() for _, x in zip(reference, outputs, strict=True)])
        percentage = torch.where(expected != 0, error / expected * 100, 0.0)
        return {
            "max_error": float(error.max()),
            "max_absolute_error": float(error.abs().max()),
            "max_percentage_error": float(percentage.max()),
            "mean_absolute_error": float(error.abs().mean()),
        }


class ImageNetEvaluator(Evaluator):
    """An evaluator of the top-1 and top-5 accuracy of a classifier.

    Args:
        eval_model: Classifier that returns scores [batch, classes].
        batch_size: Number of images per model call.
        validation_dataset_path: Folder of images, with one subfolder per class.
        eval_dtype: Dtype to which the images are converted. Default: no conversion.
        max_samples: Maximum number of images. Default: all images.
        validation_dataset: Data set of (image, class) pairs to use instead of the folder.

    Raises:
        ValueError: ``max_samples`` is less than 1.
    """

    def __init__(
        self,
        model_name: str,
        eval_model: Model,
        batch_size: int,
        validation_dataset_path: str | os.PathLike[str],
        eval_dtype: torch.dtype | None = None,
        max_samples: int | None = None,
        validation_dataset: Dataset[Any] | None = None,
    ):
        if max_samples is not None and max_samples < 1:
            raise ValueError(f"expected max_samples of at least 1, got {max_samples}")
        self.model_name, self.eval_model, self.batch_size = model_name, eval_model, batch_size
        self.validation_dataset_path, self.eval_dtype = validation_dataset_path, eval_dtype
        self.max_samples, self.validation_dataset = max_samples, validation_dataset

    def evaluate(self) -> dict[str, Any]:
        """Return a dict with ``num_samples`` and ``accuracy``, which contains the fractions ``top-1`` and ``top-5``.

        Raises:
            FileNotFoundError: The folder does not exist.
            TypeError: The data set has no length.
            ValueError: The data set is empty.
        """
        data = (
            self.load_imagenet_folder(self.validation_dataset_path) if self.validation_dataset is None else self.validation_dataset
        )
        if not isinstance(data, Sized):
            raise TypeError(f"expected a data set with __len__, got {type(data).__name__}")
        count = len(data) if self.max_samples is None else min(self.max_samples, len(data))
        if not count:
            raise ValueError("expected at least one image, got an empty data set")
        if isinstance(self.eval_model, nn.Module) and not isinstance(
            self.eval_model, GraphModule
        ):  # exported modules have no modes
            self.eval_model.eval()
        ranks = {"top-1": 1, "top-5": 5}
        correct = dict.fromkeys(ranks, 0)
        with torch.inference_mode():
            for images, labels in DataLoader(Subset(data, range(count)), self.batch_size):
                scores = self.eval_model(images if self.eval_dtype is None else images.to(self.eval_dtype))
                for name, rank in ranks.items():
                    correct[name] += _hits(scores, labels, rank)
        return {"num_samples": count, "accuracy": {name: number / count for name, number in correct.items()}}

    @staticmethod
    def load_imagenet_folder(directory: str | os.PathLike[str]) -> Dataset[Any]:
        """Return a data set of a folder's images, resized, cropped to 224x224, and normalized with ImageNet's statistics.

        Raises:
            FileNotFoundError: The folder does not exist.
        """
        from torchvision import datasets, transforms  # torchvision is optional

        if not Path(directory).is_dir():
            raise FileNotFoundError(f"folder {os.fspath(directory)} does not exist")
        mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        sizes = [transforms.Resize(256), transforms.CenterCrop(224)]
        images = datasets.ImageFolder(
            directory, transforms.Compose([*sizes, transforms.ToTensor(), transforms.Normalize(mean, deviation)])
        )
        assert isinstance(images, Dataset)
        return images


def _hits(scores: Tensor, labels: Tensor, rank: int) -> int:
    best = scores.topk(min(rank, scores.shape[1]), dim=1).indices
    return int((best == labels.view(-1, 1)).sum())


class FileCompressionEvaluator(Evaluator):
    """An evaluator of the compressibility of a file, such as a TOSA flatbuffer."""

    def __init__(self, model_name: str, tosa_output_path: str | os.PathLike[str]):
        self.model_name, self.tosa_output_path = model_name, tosa_output_path

    def evaluate(self) -> dict[str, Any]:
        """Return ``compression_ratio``, the size of the file divided by its size after DEFLATE compression."""
        content = Path(self.tosa_output_path).read_bytes()
        return {"compression_ratio": len(content) / len(zlib.compress(content))}
