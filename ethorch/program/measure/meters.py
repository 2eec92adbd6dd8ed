"""Metrics over a data set, one sample after the other."""

from __future__ import annotations

import copy
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from ethorch.models.zoos import torchvision_models
from ethorch.support.errors import EthorchError, SpecError

_TOP = (1, 5)
MAP = "map"
#: Packages that count matches of boxes for torchmetrics, the quicker first.
_COCO = ("faster_coco_eval", "pycocotools")


class Meter(Protocol):
    """Adds samples up to figures."""

    def add(self, outputs: Any, label: Any) -> None:
        """One sample: flat outputs, or what ``postprocess`` made of them, and its label."""

    def figures(self) -> dict[str, float]:
        """Name -> value, of the samples so far."""

    def confusion(self) -> list[list[int]]:
        """Rows of labels, columns of answers; empty where this is no classification."""


def meter(metric: Any) -> Meter:
    """A fresh meter.

    Args:
        metric: None for classification; ``"map"`` for detection; a function of (outputs, labels); or an object with ``update`` and
            ``compute``.

    Raises:
        SpecError: it is something else.
        EthorchError: a package that ``"map"`` needs is not installed.
    """
    if metric is None:
        return Classification()
    if metric == MAP:
        return Updated(mean_average_precision())
    if hasattr(metric, "update") and hasattr(metric, "compute"):
        return Updated(copy.deepcopy(metric))
    if callable(metric):
        return Collected(metric)
    raise SpecError(f"metric is {metric!r}; it can be None, {MAP!r}, a function of (outputs, labels), or one of torchmetrics.")


class Classification:
    """top1 and top5 of the first output's last axis, and who was taken for whom; nothing without labels."""

    def __init__(self) -> None:
        self._count = 0
        self._right = dict.fromkeys(_TOP, 0)
        self._pairs: dict[tuple[int, int], int] = {}
        self._classes = 0

    def add(self, outputs: Any, label: Any) -> None:
        """See Meter."""
        scores = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
        if label is None or not isinstance(scores, torch.Tensor):
            return
        flat = scores.reshape(-1, scores.shape[-1]) if scores.dim() else scores.reshape(1, 1)
        wanted = torch.as_tensor(label).reshape(-1)
        if len(wanted) != len(flat):
            return
        self._classes = flat.shape[-1]
        order = flat.argsort(-1, descending=True)
        for row, right in zip(order.tolist(), wanted.tolist(), strict=True):
            self._count += 1
            for k in _TOP:
                self._right[k] += right in row[:k]
            pair = (int(right), int(row[0]))
            self._pairs[pair] = self._pairs.get(pair, 0) + 1

    def figures(self) -> dict[str, float]:
        """See Meter."""
        if not self._count:
            return {}
        return {f"top{k}": self._right[k] / self._count for k in _TOP if k == 1 or self._classes > k}

    def confusion(self) -> list[list[int]]:
        """See Meter."""
        size = max((max(pair) + 1 for pair in self._pairs), default=0)
        matrix = [[0] * size for _ in range(size)]
        for (row, column), count in self._pairs.items():
            matrix[row][column] = count
        return matrix


class Collected:
    """A user's function of all outputs and all labels."""

    def __init__(self, metric: Callable[[Sequence[Any], Sequence[Any]], Any]):
        self._metric = metric
        self._outputs: list[Any] = []
        self._labels: list[Any] = []

    def add(self, outputs: Any, label: Any) -> None:
        """See Meter."""
        self._outputs.append(outputs)
        self._labels.append(label)

    def figures(self) -> dict[str, float]:
        """See Meter."""
        return _named(self._metric(self._outputs, self._labels), getattr(self._metric, "__name__", "metric"))

    def confusion(self) -> list[list[int]]:
        """See Meter."""
        return []


class Updated:
    """A metric of torchmetrics, or one like it."""

    def __init__(self, metric: Any):
        self._metric = metric

    def add(self, outputs: Any, label: Any) -> None:
        """See Meter."""
        one = outputs[0] if isinstance(outputs, list) and len(outputs) == 1 else outputs
        target = torch.as_tensor(label).reshape(-1) if isinstance(label, (int, float)) else label
        if isinstance(one, Mapping):  # a detection; such metrics take a list of pictures
            one, target = [one], [target]
        self._metric.update(one, target)

    def figures(self) -> dict[str, float]:
        """See Meter."""
        return _named(self._metric.compute(), type(self._metric).__name__)

    def confusion(self) -> list[list[int]]:
        """See Meter."""
        return []


def _named(value: Any, name: str) -> dict[str, float]:
    """A number, or a dict of them, as figures; what is no single number is left out."""
    entries = value.items() if isinstance(value, Mapping) else [(name, value)]
    return {str(key): float(x) for key, x in entries if not isinstance(x, torch.Tensor) or x.numel() == 1}


def mean_average_precision() -> Any:
    """``torchmetrics.detection.MeanAveragePrecision``, of boxes as COCO counts them.

    Raises:
        EthorchError: torchmetrics, torchvision or a package that reads COCO is not installed.
    """
    backend = next((name for name in _COCO if importlib.util.find_spec(name)), None)
    if backend is None or importlib.util.find_spec("torchmetrics") is None:
        raise EthorchError('metric="map" needs torchmetrics and faster-coco-eval: pip install "ethorch[metrics]".')
    torchvision_models()  # torchmetrics imports it
    return importlib.import_module("torchmetrics.detection").MeanAveragePrecision(backend=backend)
