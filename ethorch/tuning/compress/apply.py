"""Apply recipes to a quantized graph without training."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ethorch.lower.fx.node import tensor_of
from ethorch.support.errors import QuantizationError, unknown_name
from ethorch.support.exclusive import exclusive
from ethorch.support.progress import stage
from ethorch.tuning.bias_and_rounding import mean_error
from ethorch.tuning.compress.candidates import concerns, make_problem
from ethorch.tuning.compress.compensation import solve
from ethorch.tuning.compress.moments import compute_moments, sum_moments
from ethorch.tuning.compress.recipe import Recipe, parse
from ethorch.tuning.compress.weights import Use, Weight, find_weights
from ethorch.tuning.node_runner import NodeRunner
from ethorch.tuning.sample_runs import Inputs


@exclusive()
def apply(quantized: GraphModule, recipes: Mapping[str, str], samples: Sequence[Inputs], *, bias: bool = True) -> GraphModule:
    """Return a copy of a quantized model for ``ethorch.compile``, with weights changed to follow the recipes.

    Layers are processed in execution order, with the outputs of compressed layers as inputs. Scales do not change, except
    weight scales if the recipe contains ``bits`` or ``one-scale``.

    Args:
        quantized: Model from ``ethorch.quantize``, ``ethorch.tuning.convert_qat`` or ``convert_pt2e``.
        recipes: Mapping from names in ``weights(quantized)`` to recipes, e.g. ``"16-values"``. See ``Plan.recipes``.
        samples: A few dozen input tuples, all held in memory.
        bias: Whether to correct each layer's bias by the mean error of the layer's output.

    Raises:
        QuantizationError: The model has no quantized weights, a recipe is invalid or not applicable, or ``samples`` is empty.
        EthorchError: A weight in ``recipes`` does not exist.
    """
    if not samples:
        raise QuantizationError("quantize.no_samples", "expected samples, got none. Pass a few dozen representative inputs.")
    compressed = copy.deepcopy(quantized)
    graph_weights = find_weights(compressed)
    chosen = _parse_recipes(graph_weights, recipes)
    shared = _moments_of_shared(quantized, chosen, samples)
    runner, exact = NodeRunner(compressed, samples), NodeRunner(quantized, samples)
    with stage("compress", len(chosen)) as step:
        layers = {use.node: (weight, use) for weight in chosen for use in weight.uses}
        written: set[Weight] = set()
        for node, right in zip(runner, exact, strict=True):
            assert node.name == right.name
            if node not in layers:
                continue
            weight, use = layers[node]
            if weight not in written:
                is_shared = weight.name in shared
                moments = shared[weight.name] if is_shared else compute_moments(weight, use, runner.values[use.source])
                weight.write(*solve(make_problem(weight, moments), chosen[weight]))
                _refresh(runner, weight)
                written.add(weight)
                step()
            if bias and len(weight.uses) == 1:
                _correct(use, right, exact, runner)
    return compressed


def weights(quantized: GraphModule) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of a quantized model's weights.

    Raises:
        QuantizationError: The model has no quantized weights.
    """
    return {weight.name: weight.shape for weight in find_weights(quantized)}


def everywhere(quantized: GraphModule, recipe: str) -> dict[str, str]:
    """Return an argument for ``apply``: ``{name: recipe}`` for all weights that ``recipe`` can change.

    Raises:
        QuantizationError: The model has no quantized weights, or the recipe is invalid.
    """
    parsed = parse(recipe)
    return {weight.name: recipe for weight in find_weights(quantized) if concerns(parsed, weight)}


def _parse_recipes(graph_weights: Sequence[Weight], recipes: Mapping[str, str]) -> dict[Weight, Recipe]:
    by_name = {weight.name: weight for weight in graph_weights}
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
                f"recipe {text} cannot change {name} of shape {list(by_name[name].shape)}. 2:4 requires more than two "
                "input channels, and one-scale requires one scale per output channel.",
            )
        chosen[by_name[name]] = recipe
    return chosen


def _moments_of_shared(graph: GraphModule, chosen: Iterable[Weight], samples: Sequence[Inputs]) -> dict[str, Tensor | None]:
    names = {weight.name for weight in chosen if len(weight.uses) > 1}
    if not names:
        return {}
    weights = [weight for weight in find_weights(graph) if weight.name in names]
    return dict(zip((weight.name for weight in weights), sum_moments(graph, weights, samples), strict=True))


def _refresh(runner: NodeRunner, weight: Weight) -> None:
    for use in weight.uses:
        node = use.dequantize
        arguments = torch.fx.map_arg(node.args, lambda arg: tensor_of(runner.graph, arg))
        assert callable(node.target)
        runner.values[node] = [node.target(*arguments)] * runner.count


def _correct(use: Use, right: Node, exact: NodeRunner, runner: NodeRunner) -> None:
    node, position = use.node, use.layer.bias
    bias = node.args[position] if position < len(node.args) else None
    tensor = tensor_of(runner.graph, bias) if isinstance(bias, Node) else None
    if not isinstance(bias, Node) or tensor is None or len(bias.users) > 1:
        return
    error = mean_error(exact.run_node(right), runner.run_node(node), use.layer.output_axis)
    with torch.no_grad():
        tensor.add_(error)
    runner.values[bias] = [tensor] * runner.count
    del runner.values[node]  # to be computed again with the corrected bias
