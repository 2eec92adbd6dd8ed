"""Accumulate metrics over a data set."""

from __future__ import annotations

import copy
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from ethorch.models.user_code import convert_user_errors
from ethorch.models.zoos import torchvision_models
from ethorch.support.errors import EthorchError, SpecError

_TOP = (1, 5)
MAP = "map"
#: Packages that match boxes for torchmetrics, fastest first.
_COCO = ("faster_coco_eval", "pycocotools")


class Meter(Protocol):
    """An accumulator of metrics over samples."""

    def add(self, outputs: Any, label: Any) -> None:
        """Add the label of a sample, and its flattened outputs (after ``postprocess``, if set)."""

    def figures(self) -> dict[str, float]:
        """Return the value of each metric, by name."""

    def confusion(self) -> list[list[int]]:
        """Return the confusion matrix with labels as rows, or an empty list if the task is not classification."""


def meter(metric: Any) -> Meter:
    """Create a meter.

    Args:
        metric: None for classification, ``"map"`` for detection, a function of (outputs, labels), or an object with methods
            ``update`` and ``compute``.

    Raises:
        SpecError: ``metric`` has an unsupported type.
        EthorchError: A package that ``"map"`` requires is not installed.
    """
    if metric is None:
        return Classification()
    if metric == MAP:
        return Updated(mean_average_precision())
    if hasattr(metric, "update") and hasattr(metric, "compute"):
        return Updated(copy.deepcopy(metric))
    if callable(metric):
        return Collected(metric)
    raise SpecError(f"metric: expected None, {MAP!r}, a function of (outputs, labels) or a torchmetrics object, got {metric!r}.")


class Classification:
    """A meter for top-1 accuracy, top-5 accuracy and the confusion matrix.

    The last axis of the first output contains the scores. Samples without a label are ignored.
    """

    def __init__(self) -> None:
        self._count = 0
        self._hits = dict.fromkeys(_TOP, 0)
        self._pairs: dict[tuple[int, int], int] = {}
        self._classes = 0

    def add(self, outputs: Any, label: Any) -> None:
        scores = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
        if label is None or not isinstance(scores, torch.Tensor):
            return
        flat = scores.reshape(-1, scores.shape[-1]) if scores.dim() else scores.reshape(1, 1)
        labels = torch.as_tensor(label).reshape(-1)
        if len(labels) != len(flat):
            return
        self._classes = flat.shape[-1]
        order = flat.argsort(-1, descending=True)
        for row, class_index in zip(order.tolist(), labels.tolist(), strict=True):
            self._count += 1
            for k in _TOP:
                self._hits[k] += class_index in row[:k]
            pair = (int(class_index), int(row[0]))
            self._pairs[pair] = self._pairs.get(pair, 0) + 1

    def figures(self) -> dict[str, float]:
        if not self._count:
            return {}
        return {f"top{k}": self._hits[k] / self._count for k in _TOP if k == 1 or self._classes > k}

    def confusion(self) -> list[list[int]]:
        size = max((max(pair) + 1 for pair in self._pairs), default=0)
        matrix = [[0] * size for _ in range(size)]
        for (row, column), count in self._pairs.items():
            matrix[row][column] = count
        return matrix


class Collected:
    """A meter that calls a user's function with all outputs and all labels."""

    def __init__(self, metric: Callable[[Sequence[Any], Sequence[Any]], Any]):
        self._metric = metric
        self._outputs: list[Any] = []
        self._labels: list[Any] = []

    def add(self, outputs: Any, label: Any) -> None:
        self._outputs.append(outputs)
        self._labels.append(label)

    def figures(self) -> dict[str, float]:
        name = getattr(self._metric, "__name__", "metric")
        with convert_user_errors(f"the metric {name} failed"):
            return _figures(self._metric(self._outputs, self._labels), name)

    def confusion(self) -> list[list[int]]:
        return []


class Updated:
    """A meter for an object with methods ``update`` and ``compute``, such as a torchmetrics metric."""

    def __init__(self, metric: Any):
        self._metric = metric

    def add(self, outputs: Any, label: Any) -> None:
        prediction = outputs[0] if isinstance(outputs, list) and len(outputs) == 1 else outputs
        target = torch.as_tensor(label).reshape(-1) if isinstance(label, (int, float)) else label
        if isinstance(prediction, Mapping):  # detection metrics accept a list with one dict for each image
            prediction, target = [prediction], [target]
        with convert_user_errors(f"the metric {type(self._metric).__name__} does not accept the outputs and labels"):
            self._metric.update(prediction, target)

    def figures(self) -> dict[str, float]:
        name = type(self._metric).__name__
        with convert_user_errors(f"the metric {name} failed"):
            return _figures(self._metric.compute(), name)

    def confusion(self) -> list[list[int]]:
        return []


def _figures(metrics: Any, name: str) -> dict[str, float]:
    pairs = metrics.items() if isinstance(metrics, Mapping) else [(name, metrics)]
    return {str(key): float(x) for key, x in pairs if not isinstance(x, torch.Tensor) or x.numel() == 1}


def mean_average_precision() -> Any:
    """Create a ``torchmetrics.detection.MeanAveragePrecision`` that matches boxes as COCO does.

    Raises:
        EthorchError: torchmetrics, torchvision or a COCO package is not installed.
    """
    backend = next((name for name in _COCO if importlib.util.find_spec(name)), None)
    if backend is None or importlib.util.find_spec("torchmetrics") is None:
        raise EthorchError('metric="map" requires torchmetrics and faster-coco-eval. Run pip install "ethorch[metrics]".')
    torchvision_models()  # check that torchvision, which torchmetrics imports, is installed
    return importlib.import_module("torchmetrics.detection").MeanAveragePrecision(backend=backend)
