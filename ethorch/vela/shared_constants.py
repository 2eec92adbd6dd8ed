"""Deduplicate constants that several delegates read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from ethorch.formats.payload import DelegatePayload
from ethorch.npu.relocate import CONSTANTS_ALIGNMENT, constants_of, relocate
from ethorch.support.errors import MachineFault

logger = logging.getLogger(__name__)


def share_constants(payloads: Sequence[DelegatePayload]) -> list[tuple[DelegatePayload, tuple[int, ...]]] | None:
    """Return equivalent payloads with one common ``weights``, which stores identical constants once.

    Returns:
        Each payload and the offsets of its inserted commands, or None if no bytes are saved or the constants cannot be moved.
    """
    store, places = bytearray(), dict[bytes, int]()
    moves: list[dict[tuple[int, int], int]] = []
    for payload in payloads:
        try:
            ranges = constants_of(payload.commands)
        except MachineFault as fault:
            logger.debug("constants are not shared: %s", fault)
            return None
        moves.append({})
        for start, stop in ranges:
            data = payload.weights[start:stop]
            if start % CONSTANTS_ALIGNMENT or len(data) < stop - start:
                return None
            if data not in places:
                places[data] = len(store)
                store += data + bytes(-len(data) % CONSTANTS_ALIGNMENT)
            moves[-1][start, stop] = places[data]
    if len(store) >= sum(len(payload.weights) for payload in payloads):
        return None
    weights = bytes(store)
    shared = []
    for payload, places_of_payload in zip(payloads, moves, strict=True):
        try:
            moved = relocate(payload.commands, places_of_payload)
        except MachineFault as fault:
            logger.debug("constants are not shared: %s", fault)
            return None
        shared.append((replace(payload, commands=moved.payload, weights=weights), moved.inserted))
    return shared
