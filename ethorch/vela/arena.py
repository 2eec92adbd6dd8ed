"""How large the arena has to be: Vela takes all the memory it may, and often needs half of it for the same cycles.

``--arena-cache-size`` is a wish, and neither bytes nor cycles fall steadily with it, so the sizes are tried.
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

#: A wish for the arena in bytes, or None for Vela's smallest schedule (--optimise=Size) -> what Vela makes of it.
Compile = Callable[[int | None], CompiledModel]

#: More cycles than the fastest schedule that a smaller arena may cost and still be called free.
TOLERANCE = 0.005
#: Of the largest arena: what is gained by a smaller one has to be more.
_WORTH = 0.04
_STEPS = 5
_FORMAT = 2  # of what the cache keeps: another number where the search changes
_SMALLEST = 16 * 1024  # an arena that nobody has to save on
_WISHES = (1.0, 0.9, 0.75)


def arena_bytes(model: CompiledModel) -> int:
    """What the limit is for: the staging memory where there is one, otherwise the scratch region."""
    return model.scratch_fast_bytes or model.scratch_bytes


def total_bytes(model: CompiledModel) -> int:
    """RAM of both: what leaves the staging memory may come back in the scratch region, one for one or worse."""
    return model.scratch_fast_bytes + model.scratch_bytes


def without_waste(first: CompiledModel, again: Compile, tolerance: float = TOLERANCE) -> tuple[CompiledModel, int | None]:
    """The schedule with the smallest arena found that takes hardly more cycles than ``first``, and the wish it came from.

    Vela's smallest schedule says what is needed at least. From there upwards the first size is taken whose cycles are free. A
    smaller staging memory is taken only where staging memory and scratch region together do not grow.

    Args:
        first: what Vela makes without a wish.
        again: what it makes with one.
        tolerance: how many more cycles are free, of those of ``first``.

    Returns:
        the model, and the wish in bytes; None where ``first`` is kept, 0 for Vela's smallest schedule.
    """
    most, largest = first.performance.total_cycles * (1 + tolerance), arena_bytes(first)

    def free(model: CompiledModel) -> bool:
        return model.performance.total_cycles <= most and total_bytes(model) <= total_bytes(first)

    smallest = None if largest <= _SMALLEST else _tried(again, None)
    if smallest is None or arena_bytes(smallest) >= largest * (1 - _WORTH):
        return first, None
    if free(smallest):
        return smallest, 0
    least = arena_bytes(smallest)
    for step in range(_STEPS):
        wish = int(least * (largest / least) ** (step / _STEPS))
        found = _tried(again, wish)
        if found is not None and free(found) and arena_bytes(found) < largest * (1 - _WORTH):
            return found, wish
    return first, None


def within(limit: int, first: CompiledModel, again: Compile) -> tuple[CompiledModel, int | None]:
    """The fastest schedule found whose arena holds in ``limit`` bytes; the one with the smallest arena where none does.

    Returns:
        the model, and the wish in bytes it came from; None for ``first``, 0 for Vela's smallest schedule.
    """
    if arena_bytes(first) <= limit:
        return first, None
    tries: list[tuple[CompiledModel, int | None]] = [(first, None)]
    if (smallest := _tried(again, None)) is not None:
        tries.append((smallest, 0))
    most = max(limit, min(arena_bytes(model) for model, _ in tries))
    for share in _WISHES:
        wish = int(most * share)
        if (found := _tried(again, wish)) is not None:
            tries.append((found, wish))
    most = max(limit, min(arena_bytes(model) for model, _ in tries))
    holding = [entry for entry in tries if arena_bytes(entry[0]) <= most]
    return min(holding, key=lambda entry: (entry[0].performance.total_cycles, arena_bytes(entry[0])))


def _tried(again: Compile, wish: int | None) -> CompiledModel | None:
    """None where Vela finds no schedule."""
    try:
        return again(wish)
    except VelaError:
        return None


class Known:
    """What earlier searches ended with (a wish, or which of two ways), in the user's cache: the same graph is compiled once then.

    Args:
        parts: all that the result depends on.
    """

    def __init__(self, *parts: bytes | str):
        digest = hashlib.sha256()
        for part in parts:
            data = part if isinstance(part, bytes) else part.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
        self._path: Path = cache_folder() / "arenas" / f"{digest.hexdigest()[:40]}.json"

    def get(self) -> tuple[bool, int | None]:
        """(is it known, the wish)."""
        try:
            wish = json.loads(self._path.read_text(encoding="utf-8"))["wish"]
        except (OSError, ValueError, TypeError, KeyError):
            return False, None
        good = wish is None or (isinstance(wish, int) and not isinstance(wish, bool) and 0 <= wish < 1 << 40)
        return good, wish if good else None

    def put(self, wish: int | None) -> None:
        """Keep it; a cache that cannot be written to is none."""
        try:
            os.makedirs(self._path.parent, exist_ok=True)
            write_whole(self._path, json.dumps({"wish": wish}).encode())
        except OSError:
            return


def keys(spec: EthosUCompileSpec) -> tuple[str, ...]:
    """All besides a graph that the cache's answers depend on."""
    return system_text(spec), options_text(spec), version("ethos-u-vela"), str(spec.arena), str(_FORMAT)


def searched(tosa: bytes, spec: EthosUCompileSpec) -> CompiledModel:
    """What Vela makes of a TOSA flatbuffer with the arena that ``spec.arena`` asks for.

    Raises:
        VelaError: Vela refused the graph.
    """
    if spec.arena == FAST or not {"--arena-cache-size", "--optimise"}.isdisjoint(spec.flags):
        return compile(tosa, spec)

    def again(wish: int | None) -> CompiledModel:
        other = copy.copy(spec)
        other.flags = {**spec.flags, **({"--optimise": "Size"} if wish is None else {"--arena-cache-size": wish})}
        return compile(tosa, other)

    known = Known(tosa, *keys(spec))
    found, wish = known.get()
    if found:
        return compile(tosa, spec) if wish is None else again(wish or None)
    first = compile(tosa, spec)
    model, wish = without_waste(first, again) if spec.arena == FREE else within(int(spec.arena), first, again)
    known.put(wish)
    return model
