"""Constants that several delegates store once: what one stream reads and another one too lies in one place for both."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from ethorch.formats.payload import DelegatePayload
from ethorch.npu.relocate import CONSTANTS_ALIGNMENT, constants_of, relocate
from ethorch.support.errors import MachineFault

logger = logging.getLogger(__name__)


def sharing(payloads: Sequence[DelegatePayload]) -> list[tuple[DelegatePayload, tuple[int, ...]]] | None:
    """Payloads of the same results, all with the same ``weights``, in which equal pieces of theirs are there once.

    Encoded weights are equal where Vela chose blocks of one depth for both; biases and scales, where activations have equal scales.

    Returns:
        each with the result of ``relocate``; None where nothing would be saved, or a stream's addresses depend on data.
    """
    store, places = bytearray(), dict[bytes, int]()
    moves: list[dict[tuple[int, int], int]] = []
    for payload in payloads:
        try:
            found = constants_of(payload.commands)
        except MachineFault as fault:
            logger.debug("constants are not shared: %s", fault)
            return None
        moves.append({})
        for start, stop in found:
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
    result = []
    for payload, own in zip(payloads, moves, strict=True):
        try:
            there = relocate(payload.commands, own)
        except MachineFault as fault:
            logger.debug("constants are not shared: %s", fault)
            return None
        result.append((replace(payload, commands=there.payload, weights=weights), there.inserted))
    return result
