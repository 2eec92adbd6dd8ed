"""Extend networks with equal sizes that other operators rarely produce."""

from __future__ import annotations

import math

from tests.helpers.random_networks.draw import Draw, Unfit, Value
from tests.helpers.random_networks.registry import fits, following

_BINARY = ("{} * {}", "{} + {}", "{} - {}", "torch.maximum({}, {})", "({} > {}).float()", "{} / ({}.abs() + 1)")
#: Reductions and other operators along one axis.
_ALONG = (
    "{x}.argmax({axis}) * 0.1", "{x}.argmax({axis}, keepdim=True) * 0.1", "{x}.argmin({axis}) * 0.1", "{x}.amax({axis})",
    "{x}.amin({axis}, keepdim=True)", "{x}.flip({axis})", "({x} > 0.1).any({axis}).float()", "({x} < 0.3).all({axis}).float()",
)  # fmt: skip


def computed(d: Draw) -> Value:
    """Return a computed value of at least two axes, to which Vela chains the next operator."""
    names = {name for name, _ in d.inputs}
    x = d.value(where=lambda value: value.rank >= 2 and 1 < math.prod(value.shape) <= 4096)
    if x.name not in names and d.chance(0.6):
        return x
    if d.chance(0.4) and x.shape[-1] <= 64:
        fits(d, *x.shape, x.shape[-1])
        return d.emit(f"{d.layer(f'nn.Linear({x.shape[-1]}, {x.shape[-1]})')}({x})")
    if d.chance(0.5):
        return d.emit(f"{x} {d.one('+-*')} {d.tensor_operand(x)}")
    return d.unary(x)


@following(2, "coincidences")
def slices_of_as_many(d: Draw) -> None:
    """Slice a tensor with as many elements as ``x`` and broadcast the slices along other axes of ``x``.

    Stable Diffusion 3 modulates tokens like this: shift, scale and gate are chunks of one tensor, with as many chunks as tokens.
    """
    x = computed(d)
    axis = x.rank - 1 if d.chance(0.6) else d.axis(x)
    size = x.shape[axis]
    count = math.prod(x.shape) // size
    if not 1 < count <= 256:
        raise Unfit("no broadcast")
    shape = [count * size if place == axis else 1 for place in range(x.rank)]
    dropped = [place for place in range(x.rank) if place != axis and d.chance(0.5)][: x.rank - 1]
    stored = [one for place, one in enumerate(shape) if place not in dropped]
    source = d.input(stored)
    if d.chance(0.3) and count * size <= 96 and stored[-1] == count * size:
        source = d.emit(f"{d.layer(f'nn.Linear({count * size}, {count * size})')}({source})")
    along = axis - sum(place < axis for place in dropped)
    for _ in range(d.weighted(((3, 1), (2, 2), (1, 3)))):
        part = d.cut(source, along, size, count)
        for place in dropped:
            part = d.emit(f"{part}.unsqueeze({place})")
        if d.chance(0.2):
            part = d.emit(f"{part} + 1") if d.chance(0.5) else d.unary(part)
        first, second = (x, part) if d.chance(0.8) else (part, x)
        x = d.emit(d.one(_BINARY).format(first, second))
    if d.chance(0.3):
        d.emit(f"{x} {d.one('+*')} {d.tensor_operand(x)}")


@following(2, "coincidences")
def along_columns(d: Draw) -> None:
    """Apply an operator along the last axis of reversed rows, of a sum of rows, or of a column with another reader."""
    way = d.weighted(((1, "reversed"), (2, "sum"), (2, "column")))
    if way == "column":
        x = column(d)
        if d.chance(0.7):
            d.unary(x)
        if d.chance(0.4):
            x = d.emit(f"{x}.squeeze(-1)")
            d.emit(d.one(_ALONG).format(x=x, axis=-1))
        else:
            d.emit(d.one(_ALONG).format(x=x, axis=-2))
        return
    x = d.value(where=lambda value: value.rank >= 2 and value.shape[-1] > 1)
    if way == "reversed":
        x = d.emit(f"{x}.flip(-1)")
    else:
        x = d.emit(f"{x}.{d.one(('sum', 'sum', 'mean'))}(-2, keepdim={d.chance(0.3)})")
        if d.chance(0.2) and x.rank > 2:
            x = d.emit(f"{x}.transpose(0, -2)")
    d.emit(d.one(_ALONG).format(x=x, axis=-1))


def column(d: Draw) -> Value:
    """Return a value with several rows of one element: an input, or the rest of other values."""
    if d.chance(0.4):
        return d.input((*d.shape(d.between(1, 3)), 1))
    x = d.value(where=lambda value: value.rank >= 2)
    if x.shape[-1] == 1:
        return x
    return d.emit(
        d.one(
            (
                f"{x}.unsqueeze(-1)",
                f"{x}[..., :1]",
                f"{x}.mean(-1, keepdim=True)",
                f"{d.layer(f'nn.Linear({x.shape[-1]}, 1)')}({x})",
            )
        )
    )
