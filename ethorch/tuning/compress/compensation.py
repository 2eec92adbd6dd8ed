"""Apply a recipe to one weight.

Later columns compensate for the rounding of earlier columns (GPTQ, Frantar et al. 2022; SparseGPT, Frantar and Alistarh 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ethorch.tuning.compress import levels
from ethorch.tuning.compress.recipe import Recipe

_BLOCK = 128  # columns per update of the remaining columns (GPTQ, section 3, lazy batch updates)
_DAMPING = 0.01  # relative to the mean diagonal (GPTQ, section 3)
_SCALES = 31  # number of candidate scales for evenly spaced levels
_GROUP, _KEPT = 4, 2  # 2:4 sparsity of Ethos-U85


@dataclass(frozen=True)
class Problem:
    """A weight and the moments of its inputs.

    Attributes:
        codes: Quantized weight, int64[groups, outputs, K], -127 to 127.
        scale: Scales, float[groups, outputs, 1].
        moments: float[groups, K, K], the mean of x x^T over inputs x, summed over the layers that share the weight. If None,
            elements are rounded independently.
        channels: Number of input channels. K is channels x kernel elements, with channels outermost.
    """

    codes: Tensor
    scale: Tensor
    moments: Tensor | None
    channels: int

    @cached_property
    def weight(self) -> Tensor:
        return self.codes * self.scale

    def importance(self, scale: Tensor) -> Tensor:
        """Return float[groups, outputs, K]: the error energy of the output if an element changes by one ``scale``."""
        square = (scale**2).expand(self.codes.shape)
        if self.moments is None:
            return square
        return square * torch.diagonal(self.moments, dim1=1, dim2=2)[:, None, :]

    @cached_property
    def by_column(self) -> Tensor:
        """The total importance of each column, float[K]."""
        return self.importance(self.scale).sum((0, 1))

    @cached_property
    def groups_of_four(self) -> list[Tensor]:
        """The column groups in order of decreasing importance. 2:4 preserves two columns of each group.

        For each kernel element, the groups are input channels 0 to 3, 4 to 7, and so on. The last group may be shorter,
        because Vela accepts two of three columns.
        """
        elements = self.codes.shape[2] // self.channels
        groups = [
            torch.arange(first, min(first + _GROUP, self.channels)) * elements + element
            for element in range(elements)
            for first in range(0, self.channels, _GROUP)
        ]
        return sorted(groups, key=lambda columns: -float(self.by_column[columns].mean()))

    def loss(self, codes: Tensor, scale: Tensor) -> float:
        """Return the error energy of the output: the sum of d^T M d over all outputs, for the weight error d and the moments M."""
        wrong = codes * scale - self.weight
        if self.moments is None:
            return float((wrong.double() ** 2).sum())
        return float(((wrong @ self.moments) * wrong).double().sum())

    def factor(self, order: Tensor) -> Tensor:
        """Return float[groups, K, K]: the upper Cholesky factor of the inverse moments, for columns in the order ``order``."""
        if self.moments is None:
            return torch.eye(len(order)).expand(len(self.codes), -1, -1)
        moments = self.moments[:, order][:, :, order]
        diagonal = torch.diagonal(moments, dim1=1, dim2=2)
        damping = diagonal.mean(1, keepdim=True) * _DAMPING + 1e-8
        moments = moments + torch.diag_embed(damping.expand_as(diagonal))
        upper: Tensor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(moments)), upper=True)
        return upper

    @cached_property
    def plain(self) -> tuple[Tensor, Tensor]:
        """The columns in order of decreasing importance, and the factor for this order."""
        order = torch.argsort(self.by_column, descending=True)
        return order, self.factor(order)

    @cached_property
    def by_fours(self) -> tuple[Tensor, Tensor]:
        """An order of columns that does not split groups of four, and the factor for this order."""
        order = torch.cat(self.groups_of_four)
        return order, self.factor(order)


def solve(problem: Problem, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Return integer weights int64[groups, outputs, K] that follow the recipe, and their scales float[groups, outputs, 1]."""
    scale = torch.full_like(problem.scale, float(problem.scale.max())) if recipe.one_scale else problem.scale
    table: Tensor | None = None
    if recipe.bits:
        table_levels = levels.even(recipe.bits)
        table = torch.from_numpy(levels.nearest(table_levels))
        scale = _fitting(problem, scale, table, recipe)
    elif recipe.values:
        table = torch.from_numpy(levels.nearest(_cluster(problem, scale, recipe)))
    order, factor = problem.by_fours if recipe.pattern else problem.plain
    codes = _compensate(problem.weight[:, :, order], factor, scale, table, recipe, _starts(problem) if recipe.pattern else {})
    return codes[:, :, torch.argsort(order)], scale


def _starts(problem: Problem) -> dict[int, int]:
    sizes = [len(columns) for columns in problem.groups_of_four]
    return dict(zip(np.cumsum([0, *sizes[:-1]]).tolist(), sizes, strict=True))


def _cluster(problem: Problem, scale: Tensor, recipe: Recipe) -> levels.Levels:
    codes = _round(problem.weight, scale)
    importance = problem.importance(scale)
    if recipe.sparse:
        importance = torch.where(_select_kept(problem, recipe), importance, 0.0)
    return levels.cluster(codes.numpy(), importance.numpy(), recipe.values, zero=recipe.sparse)


def _select_kept(problem: Problem, recipe: Recipe) -> Tensor:
    worth = problem.codes.float() ** 2 * problem.importance(problem.scale)
    if not recipe.pattern:
        return worth > torch.quantile(_sample(worth), recipe.zeros)
    keep = torch.zeros(worth.shape, dtype=torch.bool)
    for columns in problem.groups_of_four:
        keep[:, :, columns] = _most(worth[:, :, columns])
    return keep


def _sample(values: Tensor) -> Tensor:
    flat = values.flatten()
    return flat[:: max(1, flat.numel() // 1_000_000)]


def _most(worth: Tensor) -> Tensor:
    is_kept = torch.zeros(worth.shape, dtype=torch.bool)
    return is_kept.scatter(-1, worth.topk(min(_KEPT, worth.shape[-1]), dim=-1).indices, torch.tensor(True).expand(worth.shape))


def _fitting(problem: Problem, scale: Tensor, table: Tensor, recipe: Recipe) -> Tensor:
    importance = problem.importance(problem.scale)
    if recipe.sparse:
        importance = torch.where(_select_kept(problem, recipe), importance, 0.0)
    best, least = scale.clone(), torch.full_like(scale, torch.inf)
    for share in torch.linspace(0.4, 1.0, _SCALES).tolist():
        trial = scale * share
        wrong = (table[_round(problem.weight, trial) + levels.MOST] * trial - problem.weight) / problem.scale
        error = (wrong**2 * importance).sum(2, keepdim=True)
        best, least = torch.where(error < least, trial, best), torch.minimum(error, least)
    return best


def _round(weight: Tensor, scale: Tensor) -> Tensor:
    return torch.clamp(torch.round(weight / scale), -levels.MOST, levels.MOST).long()


def _compensate(
    weight: Tensor, factor: Tensor, scale: Tensor, table: Tensor | None, recipe: Recipe, fours: dict[int, int]
) -> Tensor:
    # table: int64[255], the level for each integer value, or None if all values are allowed.
    # fours: Mapping from the first column of each group of four to the size of the group. Empty unless the recipe is 2:4.
    left, size = weight.clone(), weight.shape[2]
    codes = torch.empty(weight.shape, dtype=torch.int64)
    is_kept = torch.ones(weight.shape, dtype=torch.bool)
    diagonal = torch.diagonal(factor, dim1=1, dim2=2)[:, None, :]  # [groups, 1, K]
    for first, last in _blocks(size, fours):
        if recipe.zeros:
            worth = (left[:, :, first:last] / diagonal[:, :, first:last]) ** 2
            is_kept[:, :, first:last] = worth > torch.quantile(_sample(worth), recipe.zeros)
        errors = torch.empty(weight.shape[0], weight.shape[1], last - first)
        for column in range(first, last):
            if column in fours:
                group = slice(column, column + fours[column])
                is_kept[:, :, group] = _most((left[:, :, group] / diagonal[:, :, group]) ** 2)
            value = left[:, :, column]
            code = _round(value, scale[:, :, 0])
            if table is not None:
                code = table[code + levels.MOST]
            code = torch.where(is_kept[:, :, column], code, 0)
            codes[:, :, column] = code
            error = (value - code * scale[:, :, 0]) / diagonal[:, :, column]
            left[:, :, column + 1 : last] -= error[:, :, None] * factor[:, None, column, column + 1 : last]
            errors[:, :, column - first] = error
        left[:, :, last:] -= errors @ factor[:, first:last, last:]
    return codes


def _blocks(size: int, fours: dict[int, int]) -> list[tuple[int, int]]:
    edges = [0]
    for column in range(1, size):
        if column - edges[-1] >= _BLOCK and (not fours or column in fours):
            edges.append(column)
    return list(zip(edges, [*edges[1:], size], strict=True))
