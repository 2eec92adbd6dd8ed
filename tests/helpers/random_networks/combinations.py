"""Combinations of operators that often trigger bugs of Vela and that other operators rarely produce."""

from __future__ import annotations

from tests.helpers.random_networks.draw import Draw, Unfit, Value
from tests.helpers.random_networks.registry import fits, operator

_BINARY = ("{} + {}", "{} - {}", "{} * {}", "torch.maximum({}, {})", "torch.minimum({}, {})", "({} > {}).float()", "{}.abs() - {}")
_REDUCE = ("mean", "sum", "amax", "amin")


def sliced(d: Draw, shape: tuple[int, ...]) -> Value:
    """Return one element, along some axis, of a new input that broadcasts to ``shape`` afterwards."""
    sizes = [size if d.chance(0.6) else 1 for size in shape]
    axis = d.between(0, len(sizes) - 1)
    length = sizes[axis]
    sizes[axis] = length + d.between(1, 3)
    whole = d.input(sizes)
    return d.emit(f"{whole}.narrow({axis}, {d.between(0, sizes[axis] - length)}, {length})")


@operator(1)
def spread_slices(d: Draw) -> None:
    """Two tensors of four to six axes, both broadcast, one or both of them slices."""
    rank = d.weighted(((1, 4), (2, 5), (1, 6)))
    shape = tuple(d.one((1, 2, 3, 3, 4, 5)) for _ in range(rank))
    x = sliced(d, shape)
    y = sliced(d, shape) if d.chance(0.4) else d.input(d.spread(shape))
    if d.chance(0.5):
        x, y = y, x
    made = d.emit(d.one(_BINARY).format(x, y))
    if d.chance(0.3):
        d.emit(f"{made}.{d.one(_REDUCE)}({d.axis(made)}, keepdim={d.chance(0.5)})")


@operator(0.7)
def dilated_convolution(d: Draw) -> None:
    """A convolution with a dilation of 2 to 5, of a map that is at times shorter than its windows without padding."""
    channels, outputs = d.one((1, 2, 3, 8, 16)), d.one((1, 2, 4, 8))
    groups = channels if d.chance(0.3) else 1
    outputs = channels * d.one((1, 1, 2)) if groups > 1 else outputs
    kernel, dilation, stride = d.one((2, 3, 3, 5)), d.between(2, 5), d.one((1, 1, 2, 3))
    padding = d.between(0, dilation * (kernel - 1) // 2 + 1)
    height, width = (d.one((1, 2, 3, 5, 9, 16)) for _ in range(2))
    fits(d, channels // groups, outputs, kernel, kernel, height, width)
    if min(height, width) + 2 * padding <= dilation * (kernel - 1):
        raise Unfit("no window fits")
    x = d.input((d.one((1, 1, 1, 2)), channels, height, width))
    options = f"stride={stride}, padding={padding}, dilation={dilation}, groups={groups}"
    made = d.emit(f"{d.layer(f'nn.Conv2d({channels}, {outputs}, {kernel}, {options})')}({x})")
    if d.chance(0.3):
        d.unary(made)


@operator(1)
def reductions(d: Draw) -> None:
    """A reduction of a reduction, or two reductions that one operator reads."""
    x = d.value(where=lambda value: value.rank >= 2)
    axis = d.axis(x)
    first = d.emit(f"{x}.{d.one(_REDUCE)}({d.axis_text(x, axis)}, keepdim={d.chance(0.5)})")
    if d.chance(0.4) and first.rank:
        d.emit(f"{first}.{d.one(_REDUCE)}({d.axis(first)}, keepdim={d.chance(0.5)})")
        return
    other = x if d.chance(0.3) else d.tensor_operand(x)
    second = d.emit(f"{other}.{d.one(_REDUCE)}({axis})")
    d.emit(d.one(_BINARY).format(first, second))
