"""Operators that move, copy and join elements."""

from __future__ import annotations

from tests.helpers.random_networks.draw import Draw, Value
from tests.helpers.random_networks.registry import operator


@operator(5)
def cut(d: Draw) -> None:
    """Cut a slice, chunk, select or strided slice along any axis."""
    x = d.value(where=lambda value: max(value.shape) > 1)
    axis = d.axis(x, 2)
    size = x.shape[axis]
    where = d.axis_text(x, axis)
    count = d.several()
    if size % count == 0 and d.chance(0.45):
        d.cut(x, axis, size // count, count)
        return
    start = d.between(0, size - 1)
    length = d.between(1, size - start)
    d.emit(
        d.one(
            (
                f"{x}.narrow({where}, {start}, {length})",
                f"{x}[{':, ' * axis}{start}:{start + length}]",
                f"{x}[{':, ' * axis}{start - size}:]",
                f"{x}[{':, ' * axis}:{start + 1}]",
                f"{x}.select({where}, {start})",
                f"{x}[{':, ' * axis}{start}:{start + length}:2]",
            )
        )
    )


@operator(2.5)
def split(d: Draw) -> None:
    """Split a value into several parts."""
    x = d.value(where=lambda value: max(value.shape) > 1)
    axis = d.axis(x, 2)
    where = d.axis_text(x, axis)
    count = d.several()
    if x.shape[axis] <= 6 and d.chance(0.4):
        d.emit_all(f"torch.unbind({x}, {where})")
    elif x.shape[axis] % count == 0:
        d.emit_all(f"{x}.chunk({count}, {where})")
    else:
        first = d.between(1, x.shape[axis] - 1)
        d.emit_all(f"torch.split({x}, [{first}, {x.shape[axis] - first}], {where})")


@operator(4)
def join(d: Draw) -> None:
    """Concatenate or stack related values."""
    x = d.value()
    axis = d.axis(x)
    where = d.axis_text(x, axis)

    def joins(value: Value) -> bool:
        return value.rank == x.rank and all(
            a == b for place, (a, b) in enumerate(zip(value.shape, x.shape, strict=True)) if place != axis
        )

    others = []
    for _ in range(d.between(1, 3)):
        other = d.value(where=joins) if d.chance(0.5) else d.tensor_operand(x)
        others.append(str(other))
    parts = [str(x), *others]
    d.random.shuffle(parts)
    if d.chance(0.25) and all(value.shape == x.shape for value in d.values if value.name in parts):
        d.emit(f"torch.stack([{', '.join(parts)}], {d.between(0, x.rank)})")
    else:
        d.emit(f"torch.cat([{', '.join(parts)}], {where})")


@operator(5)
def view(d: Draw) -> None:
    """View a value in another shape, with joined, split, exchanged, added or dropped axes."""
    x = d.value()
    way = d.between(0, 7)
    if way == 0 and x.rank > 1:
        first = d.between(0, x.rank - 2)
        d.emit(f"{x}.flatten({first}, {d.between(first + 1, x.rank - 1)})")
    elif way == 1:
        axis = d.axis(x, 2)
        divisors = [n for n in range(1, x.shape[axis] + 1) if x.shape[axis] % n == 0] if x.shape[axis] < 1000 else [1, 2, 4]
        known = [n for n in divisors if n in d.sizes] or divisors
        part = d.one(known)
        d.emit(f"{x}.unflatten({axis}, ({part}, {x.shape[axis] // part}))" if x.shape[axis] % part == 0 else f"{x}.unsqueeze(0)")
    elif way == 2:
        d.emit(f"{x}.unsqueeze({d.between(0, x.rank)})")
    elif way == 3 and 1 in x.shape and x.rank > 1:
        d.emit(f"{x}.squeeze({d.one([axis for axis, size in enumerate(x.shape) if size == 1])})")
    elif way == 4 and x.rank > 1:
        sizes = list(x.shape)
        d.random.shuffle(sizes)
        d.emit(f"{x}.reshape({', '.join(map(str, sizes))})")
    elif x.rank > 1:
        transpose(d)


@operator(4)
def transpose(d: Draw) -> None:
    x = d.value(where=lambda value: value.rank > 1)
    order = list(range(x.rank))
    if d.chance(0.6):
        first, second = sorted(d.random.sample(order, 2))
        if d.chance(0.5):
            first, second = first - x.rank, second - x.rank
        d.emit(f"{x}.transpose({first}, {second})")
    else:
        d.random.shuffle(order)
        d.emit(f"{x}.permute({', '.join(map(str, order))})")


@operator(2.5)
def repeat(d: Draw) -> None:
    """Copy a value: expand, repeat, roll, flip, pad."""
    x = d.value()
    axis = d.axis(x)
    where = d.axis_text(x, axis)
    times = d.several()
    ways = [
        f"torch.roll({x}, {d.between(1, 5)}, {where})",
        f"torch.flip({x}, [{where}])",
        f"{x}.repeat_interleave({times}, {where})",
        f"{x}.repeat({', '.join(str(times if place == axis else 1) for place in range(x.rank))})",
        f"{x}.expand({times}, {', '.join(map(str, x.shape))})",
        f"F.pad({x}, ({d.between(0, 2)}, {d.between(0, 2)}))",
        f"F.pad({x}, ({d.between(0, 2)}, {d.between(0, 2)}, {d.between(0, 1)}, {d.between(0, 2)}), value={d.number()})",
        f"torch.tril({x})" if x.rank > 1 else f"{x}.clone()",
        f"{x}.diagonal(dim1=-2, dim2=-1)" if x.rank > 1 else f"{x}.clone()",
    ]
    units = [place for place, size in enumerate(x.shape) if size == 1]
    if units:
        chosen = d.one(units)
        ways += [f"{x}.expand({', '.join(str(d.size() if place == chosen else -1) for place in range(x.rank))})"] * 4
    d.emit(d.one(ways))


@operator(1.2)
def pad_picture(d: Draw) -> None:
    x = d.of_rank(3, 4)
    d.emit(
        f"F.pad({x}, (1, {d.between(0, 2)}{', 1, 1' if x.rank == 4 else ''}), mode='{d.one(('reflect', 'replicate', 'circular'))}')"
    )


@operator(1.2)
def rearrange_picture(d: Draw) -> None:
    x = d.of_rank(4)
    factor = d.one((2, 2, 3, 4))
    d.emit(
        d.one(
            (
                f"F.pixel_shuffle({x}, {factor})",
                f"F.pixel_unshuffle({x}, {factor})",
                f"F.unfold({x}, {d.one((2, 3))}, padding={d.between(0, 1)}, stride={d.between(1, 2)})",
                f"F.channel_shuffle({x}, {factor})",
                f"F.interpolate({x}, scale_factor={factor}, mode='nearest')",
                f"F.interpolate({x}, scale_factor=2, mode='bilinear', align_corners={d.chance(0.5)})",
            )
        )
    )


@operator(1.5)
def overwrite(d: Draw) -> None:
    """Replace a part of a value by a related value."""
    x = d.value(where=lambda value: max(value.shape) > 1)
    axis = d.axis(x, 2)
    start = d.between(0, x.shape[axis] - 1)
    length = d.between(1, x.shape[axis] - start)
    part = d.emit(f"{x}.narrow({axis}, {start}, {length})")
    new = d.unary(d.tensor_operand(part))
    other = d.between(0, x.shape[axis] - length)
    d.emit(f"torch.slice_scatter({d.tensor_operand(x)}, {new}, {axis}, {other}, {other + length})")
