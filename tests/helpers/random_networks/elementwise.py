"""Elementwise operators, truth values and reductions."""

from __future__ import annotations

from tests.helpers.random_networks.draw import Draw, Unfit, Value, broadcasts
from tests.helpers.random_networks.registry import operator

# --- element by element -----------------------------------------------------------------------------------------------


@operator(5)
def unary(d: Draw) -> None:
    d.unary(d.value())


@operator(12)
def binary(d: Draw) -> None:
    x = d.value()
    y = d.operand(x)
    names = [value.name for value in d.values]
    ways = [(4, "{} + {}"), (4, "{} * {}"), (3, "{} - {}")]
    if y in names:
        ways += [(1, "torch.maximum({}, {})"), (1, "torch.minimum({}, {})"), (1, "{} / ({}.abs() + 1)")]
    first, second = (str(x), y) if y not in names or d.chance(0.6) else (y, str(x))
    d.emit(d.weighted(ways).format(first, second))


@operator(2)
def divide(d: Draw) -> None:
    """Divide by a previously computed value, as normalizations and gates do."""
    x = d.value()
    y = d.tensor_operand(x)
    below = d.emit(
        d.one(("{y}.abs() + 1", "{y} * {y} + 0.5", "torch.exp(-{y}.abs()) + 0.1", "torch.sigmoid({y}) + 0.2")).format(y=y)
    )
    d.emit(f"{x} / {below}")


@operator(2)
def gate(d: Draw) -> None:
    """Multiply x by f(y) of a related value."""
    x = d.value()
    y = d.unary(d.tensor_operand(x))
    d.emit(f"{x} * {y}")


# --- truth values and choices -----------------------------------------------------------------------------------------


def comparison(d: Draw, x: Value, y: str | None = None) -> Value:
    """Return a comparison of ``x`` with ``y``, by default a related operand or a number."""
    y = y or (d.operand(x) if d.chance(0.7) else str(d.number()))
    return d.emit(f"{x} {d.one(('>', '<', '>=', '<=', '==', '!=', '!='))} {y}")


def condition(d: Draw, x: Value, y: str | None = None) -> Value:
    """Return truth values that broadcast with ``x``, mostly of comparisons, the first of which uses ``y`` if given."""
    if y is None and d.chance(0.35):
        try:
            return d.value("bool", lambda value: broadcasts(value.shape, x.shape))
        except Unfit:
            pass
    if y is None and d.chance(0.1):
        return d.input(d.spread(x.shape), "bool")
    found = comparison(d, x, y)
    if d.chance(0.3):
        other = comparison(d, x)
        found = d.emit(
            d.one(("{} | {}", "{} & {}", "{} ^ {}", "torch.logical_or({}, {})", "torch.logical_and({}, ~{})")).format(found, other)
        )
    return found


@operator(4)
def choose(d: Draw) -> None:
    """Apply torch.where to a condition and related operands."""
    x = d.value()
    other = d.operand(x)
    mask = condition(d, x, other if d.chance(0.5) else None)
    first, second = [str(x), other][:: d.one((1, -1))]
    if d.chance(0.15):
        d.emit(f"{x}.masked_fill({mask}, {d.number()})")
    else:
        d.emit(f"torch.where({mask}, {first}, {second})")


@operator(2)
def truth(d: Draw) -> None:
    """Apply an operator to truth values."""
    x = d.value()
    mask = condition(d, x)
    d.emit(
        d.one(
            (
                "{mask}.float()",
                "{mask}.float() * {x}",
                "{x} * {mask}",
                "~{mask}",
                "{mask}.any({axis}, keepdim=True)",
                "{mask}.all({axis})",
                "{mask}.float().sum({axis}, keepdim=True)",
            )
        ).format(mask=mask, x=x, axis=d.axis(mask) if mask.rank else 0)
    )


# --- reductions -------------------------------------------------------------------------------------------------------


@operator(4)
def reduce(d: Draw) -> None:
    x = d.value()
    axes = d.axis_text(x, d.axis(x))
    name = d.one(("mean", "sum", "amax", "amin", "mean", "sum"))
    if x.rank > 1 and d.chance(0.25):
        axes = str(tuple(sorted(d.random.sample(range(x.rank), 2))))
    d.emit(f"{x}.{name}({axes}{', keepdim=True' if d.chance(0.5) else ''})")


@operator(1.5)
def reduce_otherwise(d: Draw) -> None:
    x = d.value()
    axis = d.axis_text(x, d.axis(x))
    d.emit(
        d.one(
            (
                "{x}.var({axis}, unbiased=False)",
                "{x}.norm(dim={axis})",
                "torch.cumsum({x}, {axis})",
                "torch.logsumexp({x}, {axis})",
                "{x}.max({axis})[0]",
                "{x}.min({axis}, keepdim=True)[0]",
                "{x}.std({axis}, unbiased=False, keepdim=True)",
                "F.normalize({x}, dim={axis})",
            )
        ).format(x=x, axis=axis)
    )


@operator(3)
def position(d: Draw) -> None:
    """Compute an argmax or argmin, as integers or floats."""
    x = d.value()
    axis = d.axis(x)
    keep = ", keepdim=True" if d.chance(0.3) else ""
    name = d.one(("argmax", "argmax", "argmax", "argmin"))
    where = d.axis_text(x, axis)
    if d.chance(0.15):
        found = d.emit(f"{x}.max({where}{keep})[1]", bound=x.shape[axis])
    else:
        found = d.emit(f"{x}.{name}({where}{keep})", bound=x.shape[axis])
    if d.chance(0.7):
        d.emit(d.one((f"{found}.float()", f"{found}.float() * 0.5", f"{found} + 1.5", f"{found} * 0.1")))


@operator(2)
def softmax(d: Draw) -> None:
    x = d.value()
    d.emit(f"{d.one(('torch.softmax', 'torch.softmax', 'F.log_softmax'))}({x}, {d.axis_text(x, d.axis(x))})")
