"""Checks of the calibration method and the calibration samples."""

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

#: Maximum correlation of neighboring elements in noise, and minimum correlation in a signal.
_NOISE, _SIGNAL = 0.1, 0.3
_ENOUGH = 256  # minimum number of elements for a significant correlation
_LEAST_EXTENT = 8  # of an axis whose neighbors are compared
_FEW_STEPS = 16


_MUTED: ContextVar[bool] = ContextVar("muted", default=False)


@contextmanager
def mute_sample_warnings() -> Iterator[None]:
    """Mute warnings about samples that have already been checked."""
    token = _MUTED.set(True)
    try:
        yield
    finally:
        _MUTED.reset(token)


def check_method(method: str, methods: Sequence[str]) -> None:
    """Raise QuantizationError if ``methods`` does not contain ``method``."""
    if method not in methods:
        raise QuantizationError("calibration.method", f"calibration method: expected one of {', '.join(methods)}, got {method!r}")


@dataclass(frozen=True)
class InputStatistics:
    """The rank and batch size of a tensor, and the strongest correlation between neighboring elements.

    The correlation is None if the tensor is small or constant.
    """

    rank: int
    batch: int
    correlation: float | None

    @staticmethod
    def of(x: Tensor) -> InputStatistics:
        values = x.detach().float()
        axes = [axis for axis in range(1 if x.dim() > 1 else 0, x.dim()) if x.shape[axis] >= _LEAST_EXTENT]
        # at distance 1, a tone with a period of 4 elements does not correlate; at distance 2, it does
        pairs = [(axis, distance) for axis in axes for distance in (1, 2)] if x.numel() >= _ENOUGH else []
        correlations = [_correlate(values.movedim(axis, -1), distance) for axis, distance in pairs]
        return InputStatistics(
            x.dim(), int(x.shape[0]) if x.dim() > 1 else 1, max(filter(None, correlations), key=abs, default=None)
        )


def _correlate(x: Tensor, distance: int) -> float | None:
    left, right = x[..., :-distance].flatten(), x[..., distance:].flatten()
    left, right = left - left.mean(), right - right.mean()
    power = float(left.norm() * right.norm())
    return float(torch.dot(left, right)) / power if power > 0 else None


def warn_about(name: str, statistics: Sequence[InputStatistics]) -> None:
    """Warn about unsuitable calibration tensors of the program input ``name``."""
    if _MUTED.get():
        return
    if sum(each.batch for each in statistics) == 1:
        logger.warning(
            "the ranges come from a single sample of input %s, so larger values will be clipped. Calibrate with a few dozen "
            "representative inputs. [calibration.single_sample]",
            name,
        )
    noise = [i for i, each in enumerate(statistics) if each.correlation is not None and abs(each.correlation) < _NOISE]
    signal = [each for each in statistics if each.correlation is not None and each.correlation > _SIGNAL]
    if noise and signal:
        logger.warning(
            "calibration tensors %s of input %s look like noise compared with the other tensors, because neighboring elements "
            "do not correlate. Remove them, because ranges from random tensors do not fit real inputs. [calibration.noise]",
            noise[:8],
            name,
        )
    elif noise and len(noise) == len(statistics) and statistics[0].rank >= 4:
        logger.warning(
            "all calibration tensors of input %s look like noise, because neighboring elements do not correlate. Calibrate with "
            "real inputs, because ranges from random tensors do not fit real inputs. [calibration.noise]",
            name,
        )


def warn_about_mask(name: str, small: float, large: float, scale: float) -> None:
    """Warn that large magnitudes leave fewer than 16 steps for the others."""
    if 0 < small < _FEW_STEPS * scale and not _MUTED.get():
        logger.warning(
            "%s contains magnitudes of at least %.4g and others of at most %.4g, for which a step of %.4g is too large. If the "
            "large values mask elements, use -inf before a maximum and +inf before a minimum. [calibration.mask]",
            name or "a tensor",
            large,
            small,
            scale,
        )


class ShapeCheck(nn.Module):
    """A module that checks the shapes of calibration samples.

    Args:
        expected: Name and shape of each input. None represents a dynamic dim.
    """

    def __init__(self, expected: Sequence[tuple[str, tuple[int | None, ...]]]):
        super().__init__()
        self.expected = list(expected)

    def forward(self, *tensors: Tensor) -> None:
        for (name, sizes), x in zip(self.expected, tensors, strict=True):
            if len(sizes) != x.dim() or any(size not in (None, extent) for size, extent in zip(sizes, x.shape, strict=True)):
                shape = ", ".join("any" if size is None else str(size) for size in sizes)
                raise QuantizationError(
                    "calibration.shape",
                    f"input {name} of a calibration sample: expected shape [{shape}], got {list(x.shape)}. Use samples "
                    "of the expected shape, or export the model with dynamic_shapes.",
                )


def check_shapes(model: GraphModule) -> None:
    """Insert a ``ShapeCheck`` for the tensor inputs of a graph. ``convert_pt2e`` removes the check as dead code."""
    places: list[Node] = model.graph.find_nodes(op="placeholder")
    inputs = [node for node in places if isinstance(node.meta.get("val"), Tensor)]
    if not inputs:
        return
    expected = [(node.name, tuple(size if isinstance(size, int) else None for size in node.meta["val"].shape)) for node in inputs]
    model.add_submodule("_shape_check", ShapeCheck(expected))
    with model.graph.inserting_after(places[-1]):
        model.graph.call_module("_shape_check", tuple(inputs))
