"""Recipes: restrictions on quantized weights that reduce bytes or cycles."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ethorch.support.errors import QuantizationError

#: Maximum palette size of Vela's weight encoder (npu-reference 4.1); weights with more values are stored without a palette.
PALETTE = 32
_MOST = 254  # one fewer than the number of integers in -127..127
_PART = re.compile(
    r"(?P<values>\d+)-values|(?P<bits>[2-7])-bits|(?P<zeros>\d+(?:\.\d+)?)%-zeros|(?P<pattern>2:4)|(?P<one_scale>one-scale)"
)


@dataclass(frozen=True)
class Recipe:
    """A combination of restrictions on a quantized weight.

    Attributes:
        values: Maximum number of different integer values, or 0 for no limit.
        bits: Bit width of a symmetric integer whose evenly spaced levels are allowed, or 0 for no limit.
        zeros: Share of zeros (0 to 1), at any positions.
        pattern: Whether two of every four consecutive input channels are zero ("2:4").
        one_scale: Whether all output channels use the largest scale.
    """

    values: int = 0
    bits: int = 0
    zeros: float = 0.0
    pattern: bool = False
    one_scale: bool = False

    def __str__(self) -> str:
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
        return self.pattern or self.zeros > 0

    @property
    def few(self) -> bool:
        return bool(self.values or self.bits)


#: The recipe that leaves a weight unchanged.
AS_IS = Recipe()


def parse(text: str) -> Recipe:
    """Parse ``as-is``, or restrictions joined by +: ``16-values``, ``4-bits``, ``50%-zeros``, ``2:4``, ``one-scale``.

    Raises:
        QuantizationError: A restriction is invalid or repeated, or two restrictions are mutually exclusive.
    """
    if text == str(AS_IS):
        return AS_IS
    text_by_kind: dict[str, str] = {}
    for part in text.split("+"):
        match = _PART.fullmatch(part.strip())
        named = {} if match is None else {name: value for name, value in match.groupdict().items() if value is not None}
        if not named or not text_by_kind.keys().isdisjoint(named):
            raise QuantizationError(
                "compress.recipe",
                f"recipe {text!r}: {part.strip()!r} is {'repeated' if named else 'invalid'}. Use as-is, or join 16-values, "
                "4-bits (2 to 7), 50%-zeros, 2:4 and one-scale with +.",
            )
        text_by_kind |= named
    recipe = Recipe(
        values=int(text_by_kind.get("values", 0)),
        bits=int(text_by_kind.get("bits", 0)),
        zeros=float(text_by_kind.get("zeros", 0)) / 100,
        pattern="pattern" in text_by_kind,
        one_scale="one_scale" in text_by_kind,
    )
    if "values" in text_by_kind and not 2 <= recipe.values <= _MOST:
        raise QuantizationError("compress.recipe", f"recipe {text!r}: expected 2 to {_MOST} values, got {recipe.values}")
    if "zeros" in text_by_kind and not 0 < recipe.zeros < 1:
        raise QuantizationError(
            "compress.recipe",
            f"recipe {text!r}: expected more than 0% and less than 100% zeros, got {100 * recipe.zeros:g}%",
        )
    if recipe.values and recipe.bits:
        raise QuantizationError("compress.recipe", f"recipe {text!r}: expected either values or bits, got both")
    if recipe.pattern and recipe.zeros:
        raise QuantizationError("compress.recipe", f"recipe {text!r}: expected either 2:4 or zeros, got both")
    return recipe


def usual(family: str) -> tuple[Recipe, ...]:
    """Return the default recipes for an NPU family.

    The U85 skips multiplications by zero in 2:4 weights. On other NPUs, 2:4 saves no more than unstructured zeros. The
    U85's fast decoder has a four-bit format for at most 15 values.
    """
    names = ["32-values", "15-values" if family == "u85" else "16-values", "8-values"]
    names += ["50%-zeros", "50%-zeros+16-values", "75%-zeros", "one-scale"]
    if family == "u85":
        names += ["2:4", "2:4+15-values"]
    return tuple(parse(name) for name in names)
