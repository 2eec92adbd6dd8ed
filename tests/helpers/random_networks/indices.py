"""Operators with indices, and integer arithmetic."""

from __future__ import annotations

import math

from tests.helpers.random_networks.draw import PICTURE_SIZES, Draw, Unfit
from tests.helpers.random_networks.registry import fits, operator


def indices(d: Draw, count: int, shape: tuple[int, ...]) -> str:
    """Return integers of at least 0 and below ``count``: computed, an input, or constants."""
    if d.chance(0.25):
        try:
            return str(d.value("int", lambda value: value.shape == shape and value.bound is not None and value.bound <= count))
        except Unfit:
            pass
    if d.chance(0.5):
        return str(d.input(shape, "int", bound=count))
    return d.layer(f"nn.Buffer(torch.randint(0, {count}, ({', '.join(map(str, shape))},)))", "p")


def rows(d: Draw) -> int:
    """Return a number of indices, mostly above 65,535 in a large network."""
    return d.one((65_535, 65_536, 66_000, 70_000)) if d.large and d.chance(0.6) else d.size()


@operator(3)
def pick(d: Draw) -> None:
    """Select rows of a value by indices."""
    x = d.value()
    axis = d.axis(x)
    count = rows(d)
    fits(d, math.prod(x.shape) // x.shape[axis], count)
    if d.chance(0.6):
        index = indices(d, x.shape[axis], (count,))
        d.emit(
            d.one(
                (
                    f"torch.index_select({x}, {d.axis_text(x, axis)}, {index})",
                    f"{x}[{':, ' * axis}{index}]",
                    f"{x}[{':, ' * axis}{index}]",
                )
            )
        )
    else:
        shape = list(x.shape)
        if d.chance(0.6):
            shape[axis] = count
        index = indices(d, x.shape[axis], tuple(shape))
        if "int32" in next((text for name, text in d.inputs if name == index), ""):
            raise Unfit("gather takes int64")
        d.emit(f"torch.gather({x}, {d.axis_text(x, axis)}, {index})")


@operator(2)
def embedding(d: Draw) -> None:
    count, width = d.one((5, 10, 33, 100)), min(d.size(), 48)
    shape = (1, rows(d)) if d.chance(0.7) else d.shape(2)
    d.emit(f"{d.layer(f'nn.Embedding({count}, {width})')}({indices(d, count, shape)})")


@operator(1.5)
def sample_grid(d: Draw) -> None:
    x = d.of_rank(4)
    height, width = (d.one(PICTURE_SIZES), d.one(PICTURE_SIZES)) if d.large else (d.size(), d.size())
    grid = d.input((x.shape[0], height, width, 2))
    grid = d.emit(f"torch.tanh({grid})")
    d.emit(f"F.grid_sample({x}, {grid}, mode='{d.one(('bilinear', 'nearest'))}', align_corners={d.chance(0.5)})")


@operator(1.5)
def integers(d: Draw) -> None:
    """Compute with integers."""
    x = d.value("int", lambda value: True)
    other = d.one((f"{d.between(1, 9)}", f"{d.between(1, 9)}", str(x)))
    d.emit(
        d.one(
            (
                f"{x} + {other}",
                f"{x} * {d.between(1, 5)}",
                f"{x}.float()",
                f"{x}.float() * 0.1",
                f"{x} == {d.between(0, 4)}",
                f"{x} > {d.between(0, 9)}",
                f"torch.maximum({x}, {x} * 2 - 3)",
                f"({x} < {d.between(0, 9)}).float()",
                f"{x}.unsqueeze(-1) * 0.3",
            )
        )
    )


@operator(1)
def scatter(d: Draw) -> None:
    """Replace rows of a value at indices, or add to them."""
    x = d.value()
    axis = d.axis(x)
    count = min(d.size(), x.shape[axis])
    shape = list(x.shape)
    shape[axis] = count
    source = d.input(shape)
    order = ", ".join(map(str, sorted(d.random.sample(range(x.shape[axis]), count)))) if x.shape[axis] < 1000 else ""
    index = f"torch.tensor([{order}])" if order and d.chance(0.6) else d.layer(f"nn.Buffer(torch.arange({count}))", "p")
    d.emit(d.one((f"{x}.index_copy({axis}, {index}, {source})", f"{x}.index_add({axis}, {index}, {source})")))
