"""Choose recipes greedily by savings per added noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from ethorch.tuning.compress.recipe import AS_IS, Recipe


@dataclass(frozen=True)
class Option:
    """A weight compressed by a recipe.

    Attributes:
        cycles: Cycles of the layers that read the weight.
        bytes: Encoded bytes of the values and scales.
        noise: Relative error energy of the program's outputs.
    """

    recipe: Recipe
    cycles: int
    bytes: int
    noise: float


@dataclass(frozen=True)
class Price:
    """The prices of a cycle and a byte. The more a resource exceeds its budget, the higher its price.

    Attributes:
        wanted: ``cycles`` or ``bytes`` if only one resource matters. Options that use more of it than the unchanged weight
            are rejected, and the other resource's price breaks ties.
    """

    per_cycle: float
    per_byte: float
    wanted: Literal["cycles", "bytes"] | None = None

    def of(self, option: Option) -> float:
        return self.per_cycle * option.cycles + self.per_byte * option.bytes

    def serves(self, option: Option, as_is: Option) -> bool:
        """Return True if the option uses no more of the ``wanted`` resource than ``as_is``."""
        return self.wanted is None or getattr(option, self.wanted) <= getattr(as_is, self.wanted)


def front(options: Sequence[Sequence[Option]], price: Price) -> list[dict[int, Recipe]]:
    """Return choices with decreasing total price and increasing noise, starting with the unchanged program.

    From one choice to the next, the recipe of one weight changes. The change with the largest savings per added noise comes first.
    Prices and noise are additive, so the noise of each choice is close to the minimum for its price.

    Args:
        options: Options for each weight, starting with ``AS_IS``.

    Returns:
        Mappings from weight indices to recipes, without unchanged weights.
    """
    steps = []
    for number, mine in enumerate(options):
        hull = _hull([option for option in mine if price.serves(option, mine[0])], price)
        for before, after in pairwise(hull):
            saved, added = price.of(before) - price.of(after), after.noise - before.noise
            steps.append((saved / added if added > 0 else float("inf"), saved, number, after.recipe))
    steps.sort(key=lambda step: (-step[0], -step[1]))
    choices: list[dict[int, Recipe]] = [{}]
    for _, _, number, recipe in steps:
        choices.append({**choices[-1], number: recipe})
    return choices


def _hull(options: Sequence[Option], price: Price) -> list[Option]:
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
    return {names[number]: str(recipe) for number, recipe in sorted(chosen.items()) if recipe != AS_IS}
