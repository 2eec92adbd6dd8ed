"""Warnings about calibration data: one sample, or noise where images are meant."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

#: Correlation of neighbouring elements below which a tensor looks like noise, and above which it looks like a signal.
_NOISE, _SIGNAL = 0.1, 0.3
_ENOUGH = 256  # elements, for a correlation that means something


@dataclass(frozen=True)
class Look:
    """What one calibration tensor looks like: rank, batch, and how neighbours along the last axis correlate (-1..1)."""

    rank: int
    batch: int
    correlation: float | None


def look_at(x: Tensor) -> Look:
    """The statistics of one program input."""
    rows = x.detach().float().flatten(0, -2) if x.dim() > 1 else x.detach().float()[None]
    batch = int(x.shape[0]) if x.dim() > 1 else 1
    if x.numel() < _ENOUGH or x.shape[-1] < 8:
        return Look(x.dim(), batch, None)
    left, right = rows[:, :-1].flatten(), rows[:, 1:].flatten()
    left, right = left - left.mean(), right - right.mean()
    power = float(left.norm() * right.norm())
    return Look(x.dim(), batch, float(torch.dot(left, right)) / power if power > 0 else None)


def warn_about(name: str, looks: Sequence[Look]) -> None:
    """Log what is wrong with the calibration tensors of the program input ``name``."""
    if sum(look.batch for look in looks) == 1:
        logger.warning(
            "the ranges come from a single sample of input %s: what other inputs bring beyond it will be clipped. Run some tens of "
            "representative inputs through the prepared model. [calibration.single_sample]", name,
        )  # fmt: skip
    noise = [i for i, look in enumerate(looks) if look.correlation is not None and abs(look.correlation) < _NOISE]
    signal = [look for look in looks if look.correlation is not None and look.correlation > _SIGNAL]
    if noise and signal:
        logger.warning(
            "calibration tensors %s of input %s look like noise next to the others (neighbouring elements do not correlate); "
            "ranges from random tensors fit no real input. Leave them out. [calibration.noise]", noise[:8], name,
        )  # fmt: skip
    elif noise and len(noise) == len(looks) and looks[0].rank >= 4:
        logger.warning(
            "all calibration tensors of input %s look like noise: neighbouring elements do not correlate, as they do in images and "
            "spectrograms. Ranges from random tensors fit no real input; calibrate with real ones. [calibration.noise]", name,
        )  # fmt: skip
