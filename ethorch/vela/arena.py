"""Search for a small arena. Many models need only half of Vela's default arena.

Neither arena size nor cycles are monotonic in ``--arena-cache-size``, so the search tries several values.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from ethorch.formats.files import write_whole
from ethorch.support.errors import VelaError
from ethorch.support.native import cache_folder
from ethorch.targets.compile_spec import FAST, FREE, EthosUCompileSpec
from ethorch.vela.compiled_model import CompiledModel
from ethorch.vela.compiler import compile, options_text, system_text

#: Function that compiles for an arena size in bytes. None requests Vela's smallest schedule (--optimise=Size).
Compile = Callable[[int | None], CompiledModel]

#: Maximum increase in cycles for a smaller arena, relative to the default arena.
TOLERANCE = 0.005
#: Minimum saving, relative to the default arena.
_WORTH = 0.04
_STEPS = 5
_FORMAT = 2  # version of the cache entries; increase it when the search changes
_SMALLEST = 16 * 1024  # arenas of at most this many bytes are not reduced
_WISHES = (1.0, 0.9, 0.75)


def arena_bytes(model: CompiledModel) -> int:
    """Return the size of the staging memory, or of the scratch region if the memory mode has no staging memory."""
    return model.scratch_fast_bytes or model.scratch_bytes


def total_bytes(model: CompiledModel) -> int:
    """Return the total size of the staging memory and the scratch region. Vela may move tensors between the two."""
    return model.scratch_fast_bytes + model.scratch_bytes


def minimize_arena(first: CompiledModel, again: Compile, tolerance: float = TOLERANCE) -> tuple[CompiledModel, int | None]:
    """Search for the smallest arena that increases cycles by at most ``tolerance``, starting with Vela's smallest schedule.

    The total size of the staging memory and the scratch region does not increase.

    Args:
        first: Model compiled without a requested arena size.
        tolerance: Maximum increase in cycles, relative to ``first``.

    Returns:
        The selected model and its requested arena size in bytes: 0 for Vela's smallest schedule, None for ``first``. ``first`` is
            selected if its arena has at most 16 KiB, or if no arena within the tolerance is at least 4 % smaller.
    """
    most, largest = first.performance.total_cycles * (1 + tolerance), arena_bytes(first)

    def is_free(model: CompiledModel) -> bool:
        return model.performance.total_cycles <= most and total_bytes(model) <= total_bytes(first)

    smallest = None if largest <= _SMALLEST else _try_compile(again, None)
    if smallest is None or arena_bytes(smallest) >= largest * (1 - _WORTH):
        return first, None
    if is_free(smallest):
        return smallest, 0
    least = arena_bytes(smallest)
    for step in range(_STEPS):
        wish = int(least * (largest / least) ** (step / _STEPS))
        model = _try_compile(again, wish)
        if model is not None and is_free(model) and arena_bytes(model) < largest * (1 - _WORTH):
            return model, wish
    return first, None


def fit_arena(limit: int, first: CompiledModel, again: Compile) -> tuple[CompiledModel, int | None]:
    """Find the fastest schedule that fits in ``limit`` bytes, or the smallest arena if none fits. See ``minimize_arena``."""
    if arena_bytes(first) <= limit:
        return first, None
    tries: list[tuple[CompiledModel, int | None]] = [(first, None)]
    if (smallest := _try_compile(again, None)) is not None:
        tries.append((smallest, 0))
    most = max(limit, min(arena_bytes(model) for model, _ in tries))
    for share in _WISHES:
        wish = int(most * share)
        if (model := _try_compile(again, wish)) is not None:
            tries.append((model, wish))
    most = max(limit, min(arena_bytes(model) for model, _ in tries))
    fitting = [attempt for attempt in tries if arena_bytes(attempt[0]) <= most]
    return min(fitting, key=lambda attempt: (attempt[0].performance.total_cycles, arena_bytes(attempt[0])))


def _try_compile(again: Compile, wish: int | None) -> CompiledModel | None:
    try:
        return again(wish)
    except VelaError:
        return None


class SearchCache:
    """A cache file for the result of an arena search. ``parts`` are the values that determine the result."""

    def __init__(self, *parts: bytes | str):
        digest = hashlib.sha256()
        for part in parts:
            data = part if isinstance(part, bytes) else part.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
        self._path: Path = cache_folder() / "arenas" / f"{digest.hexdigest()[:40]}.json"

    def get(self) -> tuple[bool, int | None]:
        try:
            wish = json.loads(self._path.read_text(encoding="utf-8"))["wish"]
        except (OSError, ValueError, TypeError, KeyError):
            return False, None
        good = wish is None or (isinstance(wish, int) and not isinstance(wish, bool) and 0 <= wish < 1 << 40)
        return good, wish if good else None

    def put(self, wish: int | None) -> None:
        try:
            os.makedirs(self._path.parent, exist_ok=True)
            write_whole(self._path, json.dumps({"wish": wish}).encode())
        except OSError:
            return


def cache_keys(spec: EthosUCompileSpec) -> tuple[str, ...]:
    """Return the values, other than the graph, that determine the result of an arena search."""
    return system_text(spec), options_text(spec), version("ethos-u-vela"), str(spec.arena), str(_FORMAT)


def compile_with_arena(tosa: bytes, spec: EthosUCompileSpec) -> CompiledModel:
    """Compile a TOSA flatbuffer, and search for an arena as ``spec.arena`` requires.

    ``--arena-cache-size`` and ``--optimise`` disable the search.

    Raises:
        VelaError: Vela rejected the graph.
    """
    if spec.arena == FAST or not {"--arena-cache-size", "--optimise"}.isdisjoint(spec.flags):
        return compile(tosa, spec)

    def again(wish: int | None) -> CompiledModel:
        spec_with_wish = copy.copy(spec)
        spec_with_wish.flags = {**spec.flags, **({"--optimise": "Size"} if wish is None else {"--arena-cache-size": wish})}
        return compile(tosa, spec_with_wish)

    cache = SearchCache(tosa, *cache_keys(spec))
    is_cached, wish = cache.get()
    if is_cached:
        return compile(tosa, spec) if wish is None else again(wish or None)
    first = compile(tosa, spec)
    model, wish = minimize_arena(first, again) if spec.arena == FREE else fit_arena(int(spec.arena), first, again)
    cache.put(wish)
    return model
