"""Small random networks by number, compiled for every NPU and compared with the TOSA reference model.

``network(seed)`` is the same in every process. ``python -m tests.helpers.random_networks`` runs many.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from tests.helpers.random_networks.draw import Draw, Unfit
from tests.helpers.random_networks.indices import embedding, pick, sample_grid
from tests.helpers.random_networks.network import Network
from tests.helpers.random_networks.operators import FOLLOWING, OPERATORS

__all__ = ["Network", "network"]

_ATTEMPTS = 50
#: Operators that large networks contain more often, because they have many indices.
_INDEXING = [(weight, function) for weight, function in OPERATORS if function in (embedding, pick, sample_grid)]
#: Group of ``FOLLOWING`` -> salt of the draw, and share of networks that it extends.
_EXTENSIONS = {"coincidences": ("extended", 0.1), "streams": ("streams", 0.2)}


def network(seed: int, *, extended: bool = True) -> Network:
    """Return the network of a seed. It runs, its outputs are finite, and at least one of them is not constant.

    Args:
        extended: False returns the network before ``FOLLOWING`` existed.
    """
    groups = [
        group for group, (salt, share) in _EXTENSIONS.items() if extended and random.Random(f"{salt} {seed}").random() < share
    ]
    for attempt in range(_ATTEMPTS):
        drawn = _drawn(Draw(seed, attempt), groups)
        if drawn is not None and _is_useful(drawn):
            return drawn
    raise AssertionError(f"no network of number {seed} runs in {_ATTEMPTS} attempts")


def _drawn(d: Draw, groups: Sequence[str]) -> Network | None:
    try:
        for _ in range(d.weighted(((5, 1), (2, 2), (0.5, 3)))):
            d.input(d.shape())
        if d.chance(0.15):
            d.input(d.shape(), "int", bound=20)
    except Unfit:
        return None
    steps = d.between(1, 4) if d.large else d.weighted(((2, 2), (3, 3), (4, 4), (4, 5), (3, 6), (2, 8), (1, 10)))
    for _ in range(3 * steps):
        if len(d.lines) >= steps:
            break
        try:
            d.weighted(_INDEXING if d.large and d.chance(0.25) else OPERATORS)(d)
        except Unfit:
            continue
    for group in groups if not d.large else ():
        for _ in range(4):
            try:
                d.weighted(FOLLOWING[group])(d)
            except Unfit:
                continue
            break
    drawn = d.network()
    return drawn if drawn.outputs else None


def _is_useful(drawn: Network) -> bool:
    try:
        module, samples = drawn.build()
        with torch.no_grad():
            results = module(*samples[0])
    except Exception:
        return False
    results = results if isinstance(results, tuple) else (results,)
    floats = [result for result in results if result.dtype.is_floating_point]
    if not all(bool(torch.isfinite(result).all()) and float(result.abs().max()) < 1e4 for result in floats):
        return False
    return any(result.numel() == 1 or float(result.max()) > float(result.min()) for result in results)
