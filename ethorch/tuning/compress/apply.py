"""Recipes applied to a quantized graph in one shot: from the samples alone, nothing is trained."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ethorch.lower.fx.node import tensor_of
from ethorch.support.errors import QuantizationError, unknown_name
from ethorch.support.exclusive import exclusive
from ethorch.support.progress import stage
from ethorch.tuning.bias_and_rounding import significant
from ethorch.tuning.compress.candidates import concerns, problem_of
from ethorch.tuning.compress.compensation import solved
from ethorch.tuning.compress.recipe import Recipe, parse
from ethorch.tuning.compress.runs import forward, moments_of
from ethorch.tuning.compress.weights import Use, Weight, weights_of
from ethorch.tuning.sample_runs import Inputs


@exclusive()
def apply(quantized: GraphModule, recipes: Mapping[str, str], samples: Sequence[Inputs], *, bias: bool = True) -> GraphModule:
    """A copy of a quantized model whose weights obey the recipes: what ``ethorch.compile`` takes.

    Layer by layer, in the order in which they run: each sees what the compressed layers before it give, and what its output's mean
    is off by goes into its bias. Activations keep their scales, and so do weights, but for ``bits`` and ``one-scale``.

    Args:
        quantized: from ``ethorch.quantize``, ``ethorch.tuning.convert_qat`` or ``convert_pt2e``.
        recipes: name of a weight, as ``weights`` lists them -> recipe, e.g. ``"16-values"``; ``Plan.recipes`` is such a mapping.
        samples: input tuples, some tens; all are held in memory at once.
        bias: correct biases.

    Raises:
        QuantizationError: the model has no quantized weights, a recipe is none or does not concern its weight, or there are no
            samples.
        EthorchError: there is no weight of a name.
    """
    if not samples:
        raise QuantizationError("quantize.no_samples", "no samples were given: errors are made up for by what layers read in them")
    made = copy.deepcopy(quantized)
    found = weights_of(made)
    chosen = _chosen(found, recipes)
    exact = forward(quantized, samples)
    with stage("compress", len(chosen)) as step:
        layers = {use.node: (weight, use) for weight in chosen for use in weight.uses}
        pending = {weight: len(weight.uses) for weight in chosen}
        shared: dict[Weight, Tensor | None] = {}
        for (node, env), (twin, right) in zip(forward(made, samples), exact, strict=True):
            assert node.name == twin.name
            if node not in layers:
                continue
            weight, use = layers[node]
            if len(weight.uses) > 1 and weight not in shared:
                shared[weight] = _moments_of_all(quantized, weight, samples)
            if pending[weight] == len(weight.uses):
                known = shared[weight] if weight in shared else moments_of(weight, use, env[use.source])
                weight.write(*solved(problem_of(weight, known), chosen[weight]))
                _refresh(made, weight, env, len(samples))
                step()
            pending[weight] -= 1
            if bias and len(weight.uses) == 1:
                _correct(made, use, env, right, len(samples))
    return made


def weights(quantized: GraphModule) -> dict[str, tuple[int, ...]]:
    """The weights of a quantized model by name, with their shapes: what recipes are given for.

    Raises:
        QuantizationError: it has none.
    """
    return {weight.name: weight.shape for weight in weights_of(quantized)}


def everywhere(quantized: GraphModule, recipe: str) -> dict[str, str]:
    """The recipe for all weights of a quantized model that it concerns, for ``apply``.

    Raises:
        QuantizationError: the model has no quantized weights, or the recipe is none.
    """
    parsed = parse(recipe)
    return {weight.name: recipe for weight in weights_of(quantized) if concerns(parsed, weight)}


def _chosen(found: Sequence[Weight], recipes: Mapping[str, str]) -> dict[Weight, Recipe]:
    by_name = {weight.name: weight for weight in found}
    chosen = {}
    for name, text in recipes.items():
        if name not in by_name:
            raise unknown_name("weight", name, by_name)
        recipe = parse(text)
        if str(recipe) == "as-is":
            continue
        if not concerns(recipe, by_name[name]):
            raise QuantizationError(
                "compress.does_not_concern",
                f"{name}: {text} cannot change its {list(by_name[name].shape)} weights. 2:4 wants more than two input channels, "
                "one-scale wants a scale for each output channel.",
            )
        chosen[by_name[name]] = recipe
    return chosen


def _refresh(graph: GraphModule, weight: Weight, env: dict[Node, list[Any]], count: int) -> None:
    """Let the values of the weight's dequantize nodes be those of its new codes."""
    for use in weight.uses:
        node = use.dequantize
        arguments = torch.fx.map_arg(node.args, lambda arg: tensor_of(graph, arg))
        assert callable(node.target)
        env[node] = [node.target(*arguments)] * count


def _moments_of_all(graph: GraphModule, weight: Weight, samples: Sequence[Inputs]) -> Tensor | None:
    """Second moments of the inputs of all layers that read the weight, none of them compressed."""
    uses = {use.node.name: use for use in weight.uses}
    total: Tensor | None = None
    for node, env in forward(graph, samples):
        if node.name in uses:
            source = node.args[0]
            assert isinstance(source, Node)
            found = moments_of(weight, Use(node, uses[node.name].layer, uses[node.name].dequantize), env[source])
            if found is None:
                return None
            total = found if total is None else total + found
    return total


def _correct(graph: GraphModule, use: Use, env: dict[Node, list[Any]], right: dict[Node, list[Any]], count: int) -> None:
    """Add to the layer's bias, where it has one of its own, what the mean of each output channel is off by."""
    node, position, axis = use.node, use.layer.bias, use.layer.output_axis
    bias = node.args[position] if position < len(node.args) else None
    tensor = tensor_of(graph, bias) if isinstance(bias, Node) else None
    if not isinstance(bias, Node) or tensor is None or len(bias.users) > 1:
        return
    twins = {arg.name: arg for arg in right}
    assert callable(node.target)
    differences = []
    for index in range(count):

        def mine(arg: Node, index: int = index) -> Any:
            return env[arg][index]

        def other(arg: Node, index: int = index) -> Any:
            return right[twins[arg.name]][index]

        with torch.no_grad():
            a = node.target(*torch.fx.map_arg(node.args, other), **node.kwargs)
            b = node.target(*torch.fx.map_arg(node.args, mine), **node.kwargs)
        differences.append((a - b).transpose(0, axis).reshape(a.shape[axis], -1).mean(1))
    off = significant(torch.stack(differences))
    with torch.no_grad():
        tensor.add_(off)
    env[bias] = [tensor] * count
