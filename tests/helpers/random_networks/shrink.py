"""Reduce a failing network to a small one that fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.helpers.random_networks.draw import MOST_ELEMENTS_OF_LARGE
from tests.helpers.random_networks.network import NAMESPACE, Line, Network

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")


def shrunk(
    network: Network,
    fails: Callable[[Network], bool],
    most_tries: int = 400,
    runs: Callable[[Network], bool] | None = None,
) -> Network:
    """Return the smallest network found for which ``fails`` is True, after at most ``most_tries`` calls.

    Outputs are dropped, values are replaced by inputs and by other values of their shape, and sizes decrease, in all places and one
    at a time.

    Args:
        runs: Calls ``runs_in_bounds``, in a process that may run out of memory.
    """
    if not (runs or runs_in_bounds)(network):
        return network
    tries = 0
    seen = {network}

    def better(candidates: Callable[[Network], Iterator[Network]], network: Network) -> Network | None:
        nonlocal tries
        for candidate in candidates(network):
            candidate = candidate.pruned()
            if candidate in seen or not candidate.outputs:
                continue
            seen.add(candidate)
            if not (runs or runs_in_bounds)(candidate):
                continue
            tries += 1
            if tries > most_tries:
                return None
            if fails(candidate):
                return candidate
        return None

    passes = (_fewer_outputs, _inputs_for_values, _other_values, _smaller_everywhere, _smaller_once, _plainer_inputs)
    changed = True
    while changed and tries <= most_tries:
        changed = False
        for candidates in passes:
            while (found := better(candidates, network)) is not None:
                network, changed = found, True
    return network


def runs_in_bounds(network: Network) -> bool:
    """Return True if the network runs and no value is empty, or far larger than in drawn networks.

    With a smaller size, two values may broadcast to a far larger one.
    """
    try:
        return all(0 < value.numel() <= 4 * MOST_ELEMENTS_OF_LARGE for value in _values(network).values())
    except Exception:
        return False


def _values(network: Network) -> dict[str, Tensor]:
    """Return all values of a run by name."""
    module, samples = network.build()
    names: dict[str, Any] = {**NAMESPACE, "self": module}
    names.update(zip((name for name, _ in network.inputs), samples[0], strict=True))
    with torch.no_grad():
        for targets, expression in network.lines:
            exec(f"{targets} = {expression}", names)
    return {name: value for name, value in names.items() if isinstance(value, Tensor)}


def _fewer_outputs(network: Network) -> Iterator[Network]:
    if len(network.outputs) > 1:
        for name in network.outputs:
            yield replace(network, outputs=(name,))
        for name in network.outputs:
            yield replace(network, outputs=tuple(other for other in network.outputs if other != name))


def _inputs_for_values(network: Network) -> Iterator[Network]:
    """Replace a line by inputs with the shapes of its results, last lines first."""
    values = _values(network)
    for place in reversed(range(len(network.lines))):
        names = [name.strip() for name in network.lines[place][0].split(",") if name.strip()]
        added = []
        for name in names:
            value = values[name]
            sizes = ", ".join(map(str, value.shape))
            if value.dtype == torch.bool:
                added.append((name, f"torch.randn({sizes}) > 0"))
            elif value.dtype.is_floating_point:
                added.append((name, f"torch.randn({sizes})"))
            else:
                added.append((name, f"torch.randint({int(value.min())}, {int(value.max()) + 1}, ({sizes},))"))
        lines = network.lines[:place] + network.lines[place + 1 :]
        left = tuple(name for name in network.outputs if name not in names)
        yield replace(network, inputs=(*network.inputs, *added), lines=lines, outputs=left)


def _other_values(network: Network) -> Iterator[Network]:
    """Replace a value by an earlier one with its shape and dtype."""
    values = _values(network)
    order = [name for name, _ in network.inputs]
    for place, (targets, _) in enumerate(network.lines):
        for target in (name.strip() for name in targets.split(",") if name.strip()):
            for other in order:
                if values[other].shape == values[target].shape and values[other].dtype == values[target].dtype:
                    later = tuple((names, _renamed(text, target, other)) for names, text in network.lines[place + 1 :])
                    outputs = dict.fromkeys(other if name == target else name for name in network.outputs)
                    if not all(name in [input for input, _ in network.inputs] for name in outputs):
                        yield replace(network, lines=network.lines[: place + 1] + later, outputs=tuple(outputs))
        order += [name.strip() for name in targets.split(",") if name.strip()]


def _renamed(text: str, name: str, other: str) -> str:
    return re.sub(rf"\b{name}\b", other, text)


def _smaller(number: int) -> list[int]:
    return sorted({1, 2, number // 4, number // 2, number - 1} & set(range(1, number)))


def _sections(network: Network) -> list[tuple[str, tuple[Line, ...]]]:
    return [("inputs", network.inputs), ("layers", network.layers), ("lines", network.lines)]


def _smaller_everywhere(network: Network) -> Iterator[Network]:
    """Replace a number in all places by a smaller one, largest number first."""
    numbers = {int(found) for _, lines in _sections(network) for _, text in lines for found in _NUMBER.findall(text)}
    for number in sorted(numbers, reverse=True):
        for smaller in _smaller(number):
            changed: dict[str, Any] = {
                section: tuple((name, re.sub(rf"(?<![\w.]){number}(?![\w.])", str(smaller), text)) for name, text in lines)
                for section, lines in _sections(network)
            }
            yield replace(network, **changed)


def _smaller_once(network: Network) -> Iterator[Network]:
    """Replace one number by a smaller one."""
    for section, lines in _sections(network):
        for place, (name, text) in enumerate(lines):
            for found in _NUMBER.finditer(text):
                for smaller in _smaller(int(found.group())) + ([0] if int(found.group()) == 1 else []):
                    new = text[: found.start()] + str(smaller) + text[found.end() :]
                    changed: dict[str, Any] = {section: (*lines[:place], (name, new), *lines[place + 1 :])}
                    yield replace(network, **changed)


def _plainer_inputs(network: Network) -> Iterator[Network]:
    for place, (name, text) in enumerate(network.inputs):
        found = re.search(r"torch\.rand\w*\([^()]*\)", text)
        if found and found.group() != text and ">" not in text:
            yield replace(network, inputs=(*network.inputs[:place], (name, found.group()), *network.inputs[place + 1 :]))
