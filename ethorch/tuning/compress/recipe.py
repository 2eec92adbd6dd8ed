"""Recipes: what is done to the codes of one weight so that they take fewer bytes or fewer cycles."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ethorch.support.errors import QuantizationError

#: Values that a palette of Vela's weight encoder can hold (npu-reference 4.1): beyond them a weight costs its plain bits.
PALETTE = 32
_MOST = 254  # one fewer than the codes -127..127
_PART = re.compile(
    r"(?P<values>\d+)-values|(?P<bits>[2-7])-bits|(?P<zeros>\d+(?:\.\d+)?)%-zeros|(?P<pattern>2:4)|(?P<one_scale>one-scale)"
)


@dataclass(frozen=True)
class Recipe:
    """What becomes of a weight's codes; the fields go together.

    Attributes:
        values: at most so many different codes; 0: as many as there are.
        bits: codes evenly spaced, as many as a symmetric integer of so many bits has; 0: all.
        zeros: share of the codes that are zero, 0 to 1, wherever they stand.
        pattern: of each four input channels in a row, counted from the first, two are zero ("2:4").
        one_scale: all output channels share the largest scale.
    """

    values: int = 0
    bits: int = 0
    zeros: float = 0.0
    pattern: bool = False
    one_scale: bool = False

    def __str__(self) -> str:
        """As ``parse`` reads it."""
        parts = [
            "2:4" if self.pattern else "",
            f"{100 * self.zeros:g}%-zeros" if self.zeros else "",
            f"{self.values}-values" if self.values else "",
            f"{self.bits}-bits" if self.bits else "",
            "one-scale" if self.one_scale else "",
        ]
        return "+".join(part for part in parts if part) or "as-is"

    @property
    def sparse(self) -> bool:
        """True if the recipe makes zeros."""
        return self.pattern or self.zeros > 0

    @property
    def few(self) -> bool:
        """True if the recipe leaves few different codes."""
        return bool(self.values or self.bits)


#: The weight stays as it is.
AS_IS = Recipe()


def parse(text: str) -> Recipe:
    """``as-is``, or parts with + between: ``16-values``, ``4-bits``, ``50%-zeros``, ``2:4``, ``one-scale``.

    Raises:
        QuantizationError: it is something else, or two parts exclude each other.
    """
    if text == str(AS_IS):
        return AS_IS
    found: dict[str, str] = {}
    for part in text.split("+"):
        match = _PART.fullmatch(part.strip())
        named = {} if match is None else {name: value for name, value in match.groupdict().items() if value is not None}
        if not named or not found.keys().isdisjoint(named):
            raise QuantizationError(
                "compress.recipe",
                f"recipe {text!r}: {part.strip()!r} is not a part of one, or is there twice. Allowed are as-is, or 16-values, "
                "4-bits (2 to 7), 50%-zeros, 2:4 and one-scale with + between.",
            )
        found |= named
    recipe = Recipe(
        values=int(found.get("values", 0)),
        bits=int(found.get("bits", 0)),
        zeros=float(found.get("zeros", 0)) / 100,
        pattern="pattern" in found,
        one_scale="one_scale" in found,
    )
    if "values" in found and not 2 <= recipe.values <= _MOST:
        raise QuantizationError("compress.recipe", f"recipe {text!r}: 2 to {_MOST} values are allowed")
    if "zeros" in found and not 0 < recipe.zeros < 1:
        raise QuantizationError("compress.recipe", f"recipe {text!r}: more than 0 and less than 100 % of zeros are allowed")
    if recipe.values and recipe.bits:
        raise QuantizationError("compress.recipe", f"recipe {text!r}: values and bits both say which codes there are; give one")
    if recipe.pattern and recipe.zeros:
        raise QuantizationError("compress.recipe", f"recipe {text!r}: 2:4 and zeros both say where zeros are; give one")
    return recipe


def usual(family: str) -> tuple[Recipe, ...]:
    """The recipes that are tried where the user names none.

    2:4 is for U85, whose multipliers skip those zeros; U55 and U65 gain no more by it than by as many zeros anywhere. U85's fast
    decoder has a form of four bits, of at most 15 values (Vela 5.2, by trying).
    """
    names = ["32-values", "15-values" if family == "u85" else "16-values", "8-values"]
    names += ["50%-zeros", "50%-zeros+16-values", "75%-zeros", "one-scale"]
    if family == "u85":
        names += ["2:4", "2:4+15-values"]
    return tuple(parse(name) for name in names)
