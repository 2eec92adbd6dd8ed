"""Enforce compression recipes during training with torch.nn.utils.parametrize.

A constrained weight has the float values that the NPU will use. The gradient is applied to the unconstrained weight.
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
    """A parametrization that applies a recipe to a weight. The levels and the positions of zeros are chosen once.

    Args:
        recipe: Recipe to apply. ``one_scale`` is ignored.
        axis: Output channel axis.
    """

    kept: Tensor
    table: Tensor

    def __init__(self, weight: Tensor, recipe: Recipe, axis: int):
        super().__init__()
        self.recipe, self.axis = recipe, axis
        is_kept, table = _fix_pattern(weight.detach(), recipe, axis)
        self.register_buffer("kept", is_kept)
        self.register_buffer("table", table)

    def forward(self, weight: Tensor) -> Tensor:
        return Rule(self.kept, self.table, self.axis).of(weight)

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight

    def extra_repr(self) -> str:
        return f"{self.recipe}, axis={self.axis}"


def constrain(model: nn.Module, recipes: Mapping[str, str]) -> nn.Module:
    """Constrain weights of a float model to follow recipes, even during training. Return the modified model.

    Train the model, or pass it to ``ethorch.tuning.prepare_qat``, ``ethorch.compile`` or ``ethorch.quantize``. The quantized
    weights follow the recipes. To remove a constraint, call ``torch.nn.utils.parametrize.remove_parametrizations(module,
    "weight")``. After quantization, ``compress.apply`` also enforces ``one-scale``. It preserves weights that already follow
    their recipes.

    Args:
        model: Model with the initial weights.
        recipes: Mapping from module names or weight names (``encoder.weight``) to recipes. See ``Plan.recipes``.

    Raises:
        QuantizationError: A recipe is invalid, or a module is a recurrent layer.
        EthorchError: A module or weight in ``recipes`` does not exist.
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
    """Return the module and the parameter name for a name such as ``head`` or ``head.weight``."""
    # If the module ``attention`` has no ``weight``, ``attention`` is its first parameter with at least two dims, including the
    # parameters of submodules, and ``attention#2`` is the second.
    modules = dict(model.named_modules())
    path, _, number = name.partition("#")
    if path in modules and not number and isinstance(weight := getattr(modules[path], "weight", None), Tensor) and weight.dim() > 1:
        return modules[path], "weight"
    if path in modules:
        mine = [key for key, value in modules[path].named_parameters() if value.dim() > 1]
        position = int(number or 1) - 1
        path = f"{path}.{mine[position]}" if 0 <= position < len(mine) else path
    module, _, parameter = path.rpartition(".")
    if module in modules and parameter in modules[module]._parameters:
        if isinstance(modules[module], nn.RNNBase):
            raise QuantizationError(
                "compress.recurrent_in_training",
                f"{name}: PyTorch's {type(modules[module]).__name__} stores its weights in lists, which parametrizations do not "
                "support. Train the layer without a recipe, and pass the recipe to ethorch.tuning.compress.apply afterwards.",
            )
        return modules[module], parameter
    weights = {key.removesuffix(".weight") for key, value in model.named_parameters() if value.dim() > 1}
    raise unknown_name("weight", name, weights)


def _fix_pattern(weight: Tensor, recipe: Recipe, axis: int) -> tuple[Tensor, Tensor]:
    rows = weight.transpose(0, axis)
    flat = rows.flatten(1)
    scale = torch.clamp(flat.abs().amax(1, keepdim=True) / levels.MOST, min=2.0**-24)
    codes = torch.clamp(torch.round(flat / scale), -levels.MOST, levels.MOST).long()
    is_kept = torch.ones(flat.shape, dtype=torch.bool)
    if recipe.sparse:
        zeros = Recipe(zeros=recipe.zeros, pattern=recipe.pattern)
        left, _ = solve(Problem(codes[None], scale[None], None, rows.shape[1]), zeros)
        is_kept = left[0] != 0
    table = torch.empty(0, dtype=torch.int64)
    if recipe.few:
        table_levels = (
            levels.even(recipe.bits) if recipe.bits else _symmetric(codes, torch.where(is_kept, scale**2, 0.0), recipe.values)
        )
        table = torch.from_numpy(levels.nearest(table_levels))
    return is_kept.reshape(rows.shape).transpose(0, axis).contiguous(), table


def _symmetric(codes: Tensor, importance: Tensor, count: int) -> levels.Levels:
    half = levels.cluster(codes.abs().numpy(), importance.numpy(), (count - 1) // 2 + 1, zero=True)
    half[-1] = levels.MOST
    symmetric_levels: levels.Levels = np.unique(np.concatenate([-half, half, [0]]))
    return symmetric_levels
