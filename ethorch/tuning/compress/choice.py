"""Which recipe for which weight: the most saved for the noise it makes, step by step, as a front to choose from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from ethorch.tuning.compress.recipe import AS_IS, Recipe


@dataclass(frozen=True)
class Option:
    """One weight by one recipe.

    Attributes:
        recipe: of the weight.
        cycles, bytes: of the layers that read it; of its weights and scales, encoded.
        noise: energy of the error of the program's outputs, of their own.
    """

    recipe: Recipe
    cycles: int
    bytes: int
    noise: float


@dataclass(frozen=True)
class Price:
    """What a cycle and a byte are worth, in any unit: a budget that is far away makes its unit dear.

    Attributes:
        per_cycle, per_byte: of one.
        wanted: ``cycles`` or ``bytes`` where that alone is to be saved; the other's price then decides between options that save
            the same, and buys none that takes more of what is wanted. None where both are.
    """

    per_cycle: float
    per_byte: float
    wanted: Literal["cycles", "bytes"] | None = None

    def of(self, option: Option) -> float:
        """Of one option."""
        return self.per_cycle * option.cycles + self.per_byte * option.bytes

    def serves(self, option: Option, as_is: Option) -> bool:
        """Return True if the option costs at most as much as ``as_is``, in the wanted resource."""
        return self.wanted is None or getattr(option, self.wanted) <= getattr(as_is, self.wanted)


def front(options: Sequence[Sequence[Option]], price: Price) -> list[dict[int, Recipe]]:
    """Choices in the order of falling price and growing noise; the first leaves all as it is.

    Each step changes the recipe of one weight: the one that saves most for the noise it adds. Prices and noise of different weights
    add up, so each choice is the best at its price, up to one step.

    Args:
        options: of each weight; the first is ``AS_IS``.
        price: of an option.

    Returns:
        weight -> recipe, of those that are not left as they are.
    """
    steps = []
    for number, mine in enumerate(options):
        hull = _hull([option for option in mine if price.serves(option, mine[0])], price)
        for before, after in pairwise(hull):
            saved, added = price.of(before) - price.of(after), after.noise - before.noise
            steps.append((saved / added if added > 0 else float("inf"), saved, number, after.recipe))
    steps.sort(key=lambda step: (-step[0], -step[1]))
    found: list[dict[int, Recipe]] = [{}]
    for _, _, number, recipe in steps:
        found.append({**found[-1], number: recipe})
    return found


def _hull(options: Sequence[Option], price: Price) -> list[Option]:
    """From the first option on, those below which no line between two others passes: ever cheaper, at ever worse rates."""
    rest = sorted(options[1:], key=lambda option: (price.of(option), option.noise))
    hull = [options[0]]
    while True:
        last = hull[-1]
        better = [option for option in rest if price.of(option) < price.of(last) and option.noise >= last.noise]
        if not better:
            return hull
        hull.append(max(better, key=lambda option: (_rate(last, option, price), -option.noise)))


def _rate(before: Option, after: Option, price: Price) -> float:
    added = after.noise - before.noise
    return (price.of(before) - price.of(after)) / added if added > 0 else float("inf")


def texts(chosen: Mapping[int, Recipe], names: Sequence[str]) -> dict[str, str]:
    """The choice by the names of the weights, those left as they are not among them."""
    return {names[number]: str(recipe) for number, recipe in sorted(chosen.items()) if recipe != AS_IS}
