"""What can be wrong with a calibration: its method, its samples (only one, or noise where images are meant), their shapes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from ethorch.support.errors import QuantizationError

logger = logging.getLogger(__name__)

#: Correlation of neighbouring elements below which a tensor looks like noise, and above which it looks like a signal.
_NOISE, _SIGNAL = 0.1, 0.3
_ENOUGH = 256  # elements, for a correlation that means something


_SAID: ContextVar[bool] = ContextVar("said", default=False)


@contextmanager
def said_already() -> Iterator[None]:
    """Inside, nothing is logged about samples: the same ones were calibrated with before, and that was said then."""
    token = _SAID.set(True)
    try:
        yield
    finally:
        _SAID.reset(token)


def check_method(method: str, known: Sequence[str]) -> None:
    """Raise QuantizationError for a calibration method that is not ``known``."""
    if method not in known:
        raise QuantizationError("calibration.method", f"unknown calibration method {method!r}; known: {', '.join(known)}")


@dataclass(frozen=True)
class InputStatistics:
    """One calibration tensor's rank, batch, and how neighbours along its last axis correlate (-1..1; None for a small one)."""

    rank: int
    batch: int
    correlation: float | None

    @staticmethod
    def of(x: Tensor) -> InputStatistics:
        """Of one tensor; a small one has no correlation that means something."""
        rows = x.detach().float().flatten(0, -2) if x.dim() > 1 else x.detach().float()[None]
        batch = int(x.shape[0]) if x.dim() > 1 else 1
        if x.numel() < _ENOUGH or x.shape[-1] < 8:
            return InputStatistics(x.dim(), batch, None)
        left, right = rows[:, :-1].flatten(), rows[:, 1:].flatten()
        left, right = left - left.mean(), right - right.mean()
        power = float(left.norm() * right.norm())
        return InputStatistics(x.dim(), batch, float(torch.dot(left, right)) / power if power > 0 else None)


def warn_about(name: str, statistics: Sequence[InputStatistics]) -> None:
    """Log what is wrong with the calibration tensors of the program input ``name``."""
    if _SAID.get():
        return
    if sum(each.batch for each in statistics) == 1:
        logger.warning(
            "the ranges come from a single sample of input %s: what other inputs bring beyond it will be clipped. Calibrate with "
            "some tens of representative inputs. [calibration.single_sample]",
            name,
        )
    noise = [i for i, each in enumerate(statistics) if each.correlation is not None and abs(each.correlation) < _NOISE]
    signal = [each for each in statistics if each.correlation is not None and each.correlation > _SIGNAL]
    if noise and signal:
        logger.warning(
            "calibration tensors %s of input %s look like noise next to the others (neighbouring elements do not correlate); "
            "ranges from random tensors fit no real input. Leave them out. [calibration.noise]",
            noise[:8],
            name,
        )
    elif noise and len(noise) == len(statistics) and statistics[0].rank >= 4:
        logger.warning(
            "all calibration tensors of input %s look like noise: neighbouring elements do not correlate, as they do in images and "
            "spectrograms. Ranges from random tensors fit no real input; calibrate with real ones. [calibration.noise]",
            name,
        )


class ShapeCheck(nn.Module):
    """Raises if a sample's tensors do not have the shapes of the example that the model was exported with.

    Args:
        expected: for each tensor the input's name and its shape; None for a dim that the export left dynamic.
    """

    def __init__(self, expected: Sequence[tuple[str, tuple[int | None, ...]]]):
        super().__init__()
        self.expected = list(expected)

    def forward(self, *tensors: Tensor) -> None:
        """Compare the shapes.

        Raises:
            QuantizationError: one differs.
        """
        for (name, wanted), x in zip(self.expected, tensors, strict=True):
            if len(wanted) != x.dim() or any(size not in (None, found) for size, found in zip(wanted, x.shape, strict=True)):
                shown = ", ".join("any" if size is None else str(size) for size in wanted)
                raise QuantizationError(
                    "calibration.shape",
                    f"input {name} of a calibration sample has the shape {list(x.shape)}, the example that the model was exported "
                    f"with has [{shown}]. Give samples of that shape, or export the model with dynamic_shapes.",
                )


def check_shapes(model: GraphModule) -> None:
    """Let the graph begin with a ``ShapeCheck`` of its tensor inputs; ``convert_pt2e`` removes it, since nothing reads it."""
    places: list[Node] = model.graph.find_nodes(op="placeholder")
    inputs = [node for node in places if isinstance(node.meta.get("val"), Tensor)]
    if not inputs:
        return
    expected = [(node.name, tuple(size if isinstance(size, int) else None for size in node.meta["val"].shape)) for node in inputs]
    model.add_submodule("_shape_check", ShapeCheck(expected))
    with model.graph.inserting_after(places[-1]):
        model.graph.call_module("_shape_check", tuple(inputs))
