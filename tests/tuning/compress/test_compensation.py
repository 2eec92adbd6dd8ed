"""One weight made to obey a recipe, with what its other weights can take back."""

from __future__ import annotations

import pytest
import torch

from ethorch.tuning.compress.compensation import Problem, solve
from ethorch.tuning.compress.recipe import parse


def problem(groups: int = 1, outputs: int = 24, channels: int = 20, elements: int = 9, known: bool = True) -> Problem:
    """Weights whose inputs correlate."""
    size = channels * elements
    mixed = torch.randn(400, groups, size // 3) @ torch.randn(size // 3, size) + 0.3 * torch.randn(400, groups, size)
    moments = torch.einsum("ngi,ngj->gij", mixed, mixed) / 400
    codes = torch.clamp((torch.randn(groups, outputs, size) * 40).round(), -127, 127).long()
    return Problem(codes, torch.rand(groups, outputs, 1) + 0.1, moments if known else None, channels)


def two_of_four(codes: torch.Tensor, channels: int) -> bool:
    """By another way than the package's: at each element of the kernel, four channels in a row have at most two numbers."""
    taps = codes.reshape(*codes.shape[:2], channels, -1) != 0
    return all(int(taps[:, :, first : first + 4].sum(2).max()) <= 2 for first in range(0, channels, 4))


@pytest.mark.parametrize(
    ("groups", "known"), [(1, True), (3, False), *(pytest.param(*case, marks=pytest.mark.long) for case in [(1, False), (3, True)])]
)
@pytest.mark.parametrize("text", ["16-values", "4-bits", "50%-zeros", "50%-zeros+8-values", "2:4", "2:4+16-values", "2:4+4-bits"])
def test_the_codes_obey(text: str, groups: int, known: bool) -> None:
    given, recipe = problem(groups, known=known), parse(text)
    codes, scale = solve(given, recipe)
    assert codes.abs().max() <= 127 and scale.shape == given.scale.shape
    if recipe.values:
        assert len(codes.unique()) <= recipe.values
    if recipe.bits:
        assert len(codes.unique()) <= 15
    if recipe.zeros:
        assert float((codes == 0).float().mean()) == pytest.approx(recipe.zeros, abs=0.03)
    if recipe.pattern:
        assert two_of_four(codes, given.channels)
    assert given.loss(codes, scale) < 0.6 * given.loss(torch.zeros_like(codes), scale)


@pytest.mark.parametrize("text", ["8-values", "50%-zeros", "2:4", "4-bits"])
def test_others_make_up_for_what_is_lost(text: str) -> None:
    given = problem()
    blind = Problem(given.codes, given.scale, None, given.channels)
    assert given.loss(*solve(given, parse(text))) < 0.7 * given.loss(*solve(blind, parse(text)))


def test_channels_that_are_no_multiple_of_four() -> None:
    given = problem(channels=7, elements=4)
    codes, _ = solve(given, parse("2:4"))
    assert two_of_four(codes, 7) and float((codes != 0).float().mean()) > 0.5


def test_a_common_scale_is_the_largest() -> None:
    given = problem()
    codes, scale = solve(given, parse("one-scale"))
    assert scale.unique().tolist() == [float(given.scale.max())]
    assert given.loss(codes, scale) < 1e-3 * given.loss(torch.zeros_like(codes), scale)


def test_codes_that_obey_already_stay() -> None:
    given = problem()
    codes, scale = solve(given, parse("2:4+8-values"))
    again = Problem(codes, scale, given.moments, given.channels)
    assert torch.equal(solve(again, parse("2:4+8-values"))[0], codes)
