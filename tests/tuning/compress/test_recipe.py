"""Recipes as text."""

from __future__ import annotations

import pytest

from ethorch.support.errors import QuantizationError
from ethorch.tuning.compress.recipe import AS_IS, Recipe, parse, usual


@pytest.mark.parametrize(
    ("text", "recipe"),
    [
        ("as-is", AS_IS),
        ("16-values", Recipe(values=16)),
        ("2:4+16-values", Recipe(values=16, pattern=True)),
        ("37.5%-zeros+4-bits", Recipe(zeros=0.375, bits=4)),
        ("one-scale", Recipe(one_scale=True)),
    ],
)
def test_text_and_back(text: str, recipe: Recipe) -> None:
    assert parse(text) == recipe and str(recipe) == text


@pytest.mark.parametrize(
    "text",
    ["", "16", "1-values", "300-values", "8-bits", "0%-zeros", "100%-zeros", "2:4+50%-zeros", "4-bits+16-values", "2:4+2:4", "3:4"],
)
def test_what_is_no_recipe_is_refused(text: str) -> None:
    with pytest.raises(QuantizationError, match=r"compress\.recipe"):
        parse(text)


def test_two_of_four_is_for_u85() -> None:
    assert not any(recipe.pattern for recipe in usual("u55")) and any(recipe.pattern for recipe in usual("u85"))
    assert all(parse(str(recipe)) == recipe for recipe in usual("u85"))
