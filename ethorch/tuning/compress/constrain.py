"""Recipes kept through training: parametrizations of weights, by the rules of torch.nn.utils.parametrize.

A constrained weight is what the NPU will read, in float: few values, zeros, or both; its gradient goes to the weight behind it.
``ethorch.quantization.constrained_weights`` says how the codes come out the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ethorch.quantization.constrained_weights import Rule
from ethorch.support.errors import QuantizationError, unknown_name
from ethorch.tuning.compress import levels
from ethorch.tuning.compress.compensation import Problem, solve
from ethorch.tuning.compress.recipe import AS_IS, Recipe, parse


class Constraint(nn.Module):
    """A parametrization: the weight by a recipe. Zeros stay where they are chosen once, and so do the levels.

    Args:
        weight: as it is at the beginning.
        recipe: what it has to obey; ``one_scale`` is left to the quantizer.
        axis: of the output channels.
    """

    kept: Tensor
    table: Tensor

    def __init__(self, weight: Tensor, recipe: Recipe, axis: int):
        super().__init__()
        self.recipe, self.axis = recipe, axis
        kept, table = _fix_pattern(weight.detach(), recipe, axis)
        self.register_buffer("kept", kept)
        self.register_buffer("table", table)

    def forward(self, weight: Tensor) -> Tensor:
        """The constrained weight."""
        return Rule(self.kept, self.table, self.axis).of(weight)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """What is behind a weight that is assigned: itself."""
        return weight

    def extra_repr(self) -> str:
        return f"{self.recipe}, axis={self.axis}"


def constrain(model: nn.Module, recipes: Mapping[str, str]) -> nn.Module:
    """Let weights of a float model obey recipes from now on, in training too; the model itself, changed.

    Train it, or give it to ``ethorch.tuning.prepare_qat``; ``ethorch.compile`` and ``ethorch.quantize`` take it as any other model,
    and the codes obey the recipes. ``torch.nn.utils.parametrize.remove_parametrizations(module, "weight")`` makes plain weights of
    them. ``one-scale`` is not trained with: ``apply`` does it afterwards, and leaves codes that obey already as they are.

    Args:
        model: its weights are those that the constraints start from.
        recipes: name of a module, or of one of its weights (``encoder.weight``) -> recipe; ``Plan.recipes`` is such a mapping.

    Raises:
        QuantizationError: a recipe is none, or cannot be trained with: recurrent layers of PyTorch take no parametrizations.
        EthorchError: there is no such module or weight.
    """
    chosen = [(_place(model, name), parse(text)) for name, text in recipes.items()]
    for (module, name), recipe in chosen:
        if replace(recipe, one_scale=False) == AS_IS:
            continue
        weight = getattr(module, name)
        axis = 1 if isinstance(module, nn.modules.conv._ConvTransposeNd) else 0
        parametrize.register_parametrization(module, name, Constraint(weight, recipe, axis))
    return model


def _place(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module and its parameter that a name stands for.

    ``head`` and ``head.weight`` are the same. Of a module without a ``weight`` of its own, such as an attention, ``attention`` is
    the first of its parameters with rows and columns, those of modules in it included, and ``attention#2`` the second.
    """
    modules = dict(model.named_modules())
    path, _, number = name.partition("#")
    if path in modules and isinstance(modules[path], nn.RNNBase):
        raise QuantizationError(
            "compress.recurrent_in_training",
            f"{name}: PyTorch's {type(modules[path]).__name__} keeps lists of its weights, which parametrizations do not reach. "
            "Train it without, and give the recipe to ethorch.tuning.compress.apply afterwards.",
        )
    if path in modules and not number and isinstance(weight := getattr(modules[path], "weight", None), Tensor) and weight.dim() > 1:
        return modules[path], "weight"
    if path in modules:
        mine = [key for key, value in modules[path].named_parameters() if value.dim() > 1]
        position = int(number or 1) - 1
        path = f"{path}.{mine[position]}" if 0 <= position < len(mine) else path
    module, _, parameter = path.rpartition(".")
    if module in modules and parameter in modules[module]._parameters:
        return modules[module], parameter
    weights = {key.removesuffix(".weight") for key, value in model.named_parameters() if value.dim() > 1}
    raise unknown_name("weight", name, weights)


def _fix_pattern(weight: Tensor, recipe: Recipe, axis: int) -> tuple[Tensor, Tensor]:
    """(kept, table) for a weight as it is: its largest stay, and its levels are the nearest to what stays."""
    rows = weight.transpose(0, axis)
    flat = rows.flatten(1)
    scale = torch.clamp(flat.abs().amax(1, keepdim=True) / levels.MOST, min=2.0**-24)
    codes = torch.clamp(torch.round(flat / scale), -levels.MOST, levels.MOST).long()
    kept = torch.ones(flat.shape, dtype=torch.bool)
    if recipe.sparse:
        zeros = Recipe(zeros=recipe.zeros, pattern=recipe.pattern)
        left, _ = solve(Problem(codes[None], scale[None], None, rows.shape[1]), zeros)
        kept = left[0] != 0
    table = torch.empty(0, dtype=torch.int64)
    if recipe.few:
        found = levels.even(recipe.bits) if recipe.bits else _symmetric(codes, torch.where(kept, scale**2, 0.0), recipe.values)
        table = torch.from_numpy(levels.nearest(found))
    return kept.reshape(rows.shape).transpose(0, axis).contiguous(), table


def _symmetric(codes: Tensor, importance: Tensor, count: int) -> levels.Levels:
    """At most ``count`` levels with zero in the middle and -127 and 127 at the ends."""
    half = levels.cluster(codes.abs().numpy(), importance.numpy(), (count - 1) // 2 + 1, zero=True)
    half[-1] = levels.MOST
    found: levels.Levels = np.unique(np.concatenate([-half, half, [0]]))
    return found
