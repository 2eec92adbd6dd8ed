"""Compute candidate values of each weight for each recipe, and their effect on accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from ethorch.support.progress import stage
from ethorch.tuning.compress.compensation import Problem, solve
from ethorch.tuning.compress.moments import remove_rounding, sum_moments
from ethorch.tuning.compress.recipe import AS_IS, Recipe
from ethorch.tuning.compress.weights import Weight, find_weights, state_beside
from ethorch.tuning.sample_runs import Inputs, compute_outputs

_PROBED = 4  # samples on which the effect of a layer's error on the outputs is measured


@dataclass(frozen=True)
class Candidate:
    """A weight compressed by a recipe.

    Attributes:
        codes: Quantized weight, int8[groups, outputs, K].
        scale: float[groups, outputs, 1].
        local: Error energy of the layer's output, per input row.
        noise: Predicted relative error energy of the program's outputs.
    """

    codes: Tensor = field(repr=False)
    scale: Tensor = field(repr=False)
    local: float
    noise: float = math.nan


#: The candidates of each weight, by recipe.
Candidates = list[dict[Recipe, Candidate]]


def candidates(graph: GraphModule, weights: Sequence[Weight], recipes: Sequence[Recipe], samples: Sequence[Inputs]) -> Candidates:
    """Return candidates with predicted noise for all weights and their applicable recipes. The graph is not modified.

    The error of a layer's output is computed from the second moments of the layer's inputs. The effect of this error on the
    program's outputs is measured for one recipe per weight, and scaled for the other recipes.
    """
    with stage("run the model"):
        moments = sum_moments(graph, weights, samples)
    candidates_by_weight: Candidates = []
    with stage("fit weights to recipes", len(weights)) as step:
        for weight, weight_moments in zip(weights, moments, strict=True):
            problem = make_problem(weight, weight_moments)
            candidates_by_weight.append({recipe: _candidate(problem, recipe) for recipe in recipes if concerns(recipe, weight)})
            step()
    return _with_noise(graph, candidates_by_weight, samples)


def make_problem(weight: Weight, moments: Tensor | None) -> Problem:
    return Problem(weight.rows(), weight.scale(), moments, weight.channels)


def concerns(recipe: Recipe, weight: Weight) -> bool:
    """Return True if the recipe can change the weight.

    2:4 requires more than two input channels, and ``one-scale`` requires a scale for each output channel.
    """
    if recipe == AS_IS:
        return False
    if recipe.pattern and (weight.layer.weight_axis is None or weight.channels <= 2):
        return False
    return not recipe.one_scale or weight.per_channel


def _candidate(problem: Problem, recipe: Recipe) -> Candidate:
    codes, scale = solve(problem, recipe)
    return Candidate(codes.to(torch.int8), scale, problem.loss(codes, scale))


def _with_noise(graph: GraphModule, candidates_by_weight: Candidates, samples: Sequence[Inputs]) -> Candidates:
    smooth = remove_rounding(graph)
    weights = find_weights(smooth)
    samples, state = samples[:_PROBED], state_beside(smooth, weights)
    reference = compute_outputs(smooth, samples, state)
    result: Candidates = []
    with stage("measure the effect of errors", len(candidates_by_weight)) as step:
        for weight, by_recipe in zip(weights, candidates_by_weight, strict=True):
            ranked = sorted(by_recipe.values(), key=lambda candidate: candidate.local)
            probe = ranked[len(ranked) // 2] if ranked else None
            gain = 0.0
            if probe is not None and probe.local > 0:
                before = weight.rows(), weight.scale()
                weight.write(probe.codes.long(), probe.scale)
                gain = noise(reference, compute_outputs(smooth, samples, state)) / probe.local
                weight.write(*before)
            result.append({recipe: _noisy(candidate, gain) for recipe, candidate in by_recipe.items()})
            step()
    return result


def _noisy(candidate: Candidate, gain: float) -> Candidate:
    return Candidate(candidate.codes, candidate.scale, candidate.local, gain * candidate.local)


def noise(reference: Any, changed: Any) -> float:
    """Return the error energy of all floating-point outputs, relative to the energy of the reference (1 / SQNR)."""
    tensors = [_floats(outputs) for outputs in (reference, changed)]
    signal = sum(float((a**2).sum()) for a in tensors[0])
    wrong = sum(float(((a - b) ** 2).sum()) for a, b in zip(*tensors, strict=True))
    return wrong / signal if signal else math.inf if wrong else 0.0


def _floats(outputs: Any) -> list[Tensor]:
    leaves = torch.utils._pytree.tree_leaves(outputs)
    return [leaf.double() for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def write(weights: Sequence[Weight], candidates_by_weight: Candidates, chosen: Mapping[int, Recipe]) -> None:
    for number, recipe in chosen.items():
        candidate = candidates_by_weight[number][recipe]
        weights[number].write(candidate.codes.long(), candidate.scale)
