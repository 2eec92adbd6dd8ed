"""Execution of listings by the simulator, in stream order and in the orders that missing waits allow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ethorch.npu.arrays import Bytes
from ethorch.npu.ir.image import Image
from ethorch.npu.memo import Memo
from ethorch.npu.memory import INTERNAL, Memory
from ethorch.npu.verify.instruction import Facts, Listing
from ethorch.npu.verify.waits import Unfinished
from ethorch.support.errors import MachineFault


def run(
    listing: Listing, image: Image, seed: int, order: Sequence[int] | None = None, as_indices: bool = False
) -> list[bytes] | None:
    """Return the outputs for random memory, or None if the simulator stops with a fault.

    The inputs depend only on the seed, not on their addresses.

    Args:
        as_indices: True for inputs that contain small integers of 32 bits, such as tokens.
    """
    facts = listing.facts()
    rng = np.random.default_rng(seed)
    regions: dict[int, Bytes] = {0: np.ascontiguousarray(image.constants)}
    for number, size in image.sizes.items():
        if size:
            regions[number] = rng.integers(0, 256, size, np.uint8)
    regions[INTERNAL] = rng.integers(0, 256, listing.npu.internal_bytes, np.uint8)
    rng = np.random.default_rng(seed + 1)
    for region, low, high in image.inputs:
        indices = rng.integers(0, 8, (high - low) // 4 + 1, np.int32).view(np.uint8)
        regions[region][low:high] = np.resize(indices, high - low) if as_indices else rng.integers(0, 256, high - low, np.uint8)
    memory = Memory(regions, regions[0], Memo())
    try:
        for index in range(len(facts)) if order is None else order:
            prepared = facts[index].prepared
            if prepared is None:
                return None
            prepared.run(memory)
    except (MachineFault, IndexError, ValueError):
        return None
    return [regions[region][low:high].tobytes() for region, low, high in image.outputs]


def extreme_orders(listing: Listing) -> list[list[int]]:
    """Return the orders that run each transfer as early, and as late, as the waits allow."""
    facts = listing.facts()
    return [_run_early(listing, facts), _run_late(listing, facts)]


def _run_early(listing: Listing, facts: list[Facts]) -> list[int]:
    """Move each transfer before the kernels that may be unfinished when it starts."""
    order: list[int] = []
    unfinished = Unfinished()
    for index, instruction in enumerate(listing.instructions):
        unfinished.wait(instruction)
        if facts[index].is_dma and unfinished.kernels:
            order.insert(order.index(unfinished.kernels[0]), index)
        else:
            order.append(index)
        unfinished.start(facts[index], index)
    return order


def _run_late(listing: Listing, facts: list[Facts]) -> list[int]:
    """Run each transfer when a wait or the limit of transfers requires it."""
    order: list[int] = []
    unfinished = Unfinished()
    for index, instruction in enumerate(listing.instructions):
        before = list(unfinished.transfers)
        unfinished.wait(instruction)
        order += [transfer for transfer in before if transfer not in unfinished.transfers]
        before = list(unfinished.transfers)
        unfinished.start(facts[index], index)
        order += [transfer for transfer in before if transfer not in unfinished.transfers]
        if not facts[index].is_dma:
            order.append(index)
    return order + unfinished.transfers


def is_harmless(
    original: Listing, mutated: Listing, image: Image, seeds: Sequence[int] = (0, 1, 2), same_operations: bool = False
) -> bool:
    """Return True if no output byte of a mutated stream differs, for random memory and for all extreme orders.

    Args:
        same_operations: True if only waits differ. The stream order then gives the outputs of the original.
    """
    plain = list(range(len(mutated.instructions)))
    orders = [order for order in extreme_orders(mutated) if order != plain]
    if not same_operations:
        orders.append(plain)
    for seed in seeds:
        as_indices = run(original, image, seed) is None
        expected = run(original, image, seed, as_indices=as_indices)
        if expected is None or any(run(mutated, image, seed, order, as_indices) != expected for order in orders):
            return False
    return True
