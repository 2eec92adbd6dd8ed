"""The operators of random networks: a function each, which adds a line or a few to a ``Draw``."""

from __future__ import annotations

import math
from collections.abc import Callable

from tests.support.random_networks.draw import Draw, Unfit, Value, broadcasts

Operator = Callable[[Draw], object]
#: (weight, operator)
OPERATORS: list[tuple[float, Operator]] = []


def operator(weight: float) -> Callable[[Operator], Operator]:
    def register(function: Operator) -> Operator:
        OPERATORS.append((weight, function))
        return function

    return register


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
    """Divide by a value that is computed before, as normalizations and gates do."""
    x = d.value()
    y = d.tensor_operand(x)
    below = d.emit(
        d.one(("{y}.abs() + 1", "{y} * {y} + 0.5", "torch.exp(-{y}.abs()) + 0.1", "torch.sigmoid({y}) + 0.2")).format(y=y)
    )
    d.emit(f"{x} / {below}")


@operator(2)
def gate(d: Draw) -> None:
    """x * f(y) of two related values."""
    x = d.value()
    y = d.unary(d.tensor_operand(x))
    d.emit(f"{x} * {y}")


# --- truth values and choices -----------------------------------------------------------------------------------------


def comparison(d: Draw, x: Value, y: str | None = None) -> Value:
    """Return a comparison of ``x`` with ``y``, or else with a related operand or a number."""
    y = y or (d.operand(x) if d.chance(0.7) else str(d.number()))
    return d.emit(f"{x} {d.one(('>', '<', '>=', '<=', '==', '!=', '!='))} {y}")


def condition(d: Draw, x: Value, y: str | None = None) -> Value:
    """Return truth values that broadcast with ``x``: mostly of comparisons, of which the first is with ``y`` if that is given."""
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
    """torch.where of a condition and related operands."""
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
    """Operators of truth values."""
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
    """An argmax or argmin, as integers or as floats."""
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


# --- movement ---------------------------------------------------------------------------------------------------------


@operator(5)
def cut(d: Draw) -> None:
    """A slice, chunk, select or strided slice along any axis."""
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
    """Several parts of a value."""
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
    """A concatenation or a stack of related values."""
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
    """Another shape of the same elements: axes joined, split, exchanged, added or dropped."""
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
    """Copies of a value: expanded, repeated, rolled, flipped, padded."""
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
    """A value with a part of it replaced by a related one."""
    x = d.value(where=lambda value: max(value.shape) > 1)
    axis = d.axis(x, 2)
    start = d.between(0, x.shape[axis] - 1)
    length = d.between(1, x.shape[axis] - start)
    part = d.emit(f"{x}.narrow({axis}, {start}, {length})")
    new = d.unary(d.tensor_operand(part))
    other = d.between(0, x.shape[axis] - length)
    d.emit(f"torch.slice_scatter({d.tensor_operand(x)}, {new}, {axis}, {other}, {other + length})")


# --- products ---------------------------------------------------------------------------------------------------------


def fits(d: Draw, *sizes: int, batch: int = 1) -> None:
    """Raise Unfit if a product has too many multiplications, or too many matrices, of which each is an operation of the NPU."""
    if math.prod(sizes) > (1 << 24) or batch > 2048:
        raise Unfit("too many multiplications")


@operator(5)
def product(d: Draw) -> None:
    """A matrix product of a value with a related one: itself, a piece, a transpose."""
    x = d.value(where=lambda value: value.rank >= 2)
    *batch, rows, inner = x.shape
    fits(d, *batch, rows, inner, rows, batch=math.prod(batch))
    way = d.random.random()
    if way < 0.3:
        y = x
    elif way < 0.6:
        y = d.tensor_operand(x)
    elif way < 0.75:
        try:
            y = d.value(where=lambda value: value.rank == x.rank and value.shape[:-2] == x.shape[:-2] and value.shape[-1] == inner)
        except Unfit:
            y = d.input((*batch, d.size(), inner))
    elif way < 0.9:
        columns = d.size()
        other = (
            d.parameter((inner, columns))
            if d.chance(0.5)
            else d.input((inner, columns) if d.chance(0.3) else (*batch, inner, columns))
        )
        d.emit(f"{x} @ {other}")
        return
    else:
        y = d.value(where=lambda value: value.rank >= 2 and value.shape[-1] == inner)
    if d.chance(0.2):
        d.emit(f"{x}.transpose(-1, -2) @ {y}")
    elif d.chance(0.3):
        turned = d.emit(f"{y}.transpose(-1, -2)")
        d.emit(f"{x} @ {turned}")
    else:
        d.emit(f"{x} @ {y}.transpose(-1, -2)")


@operator(3)
def einsum(d: Draw) -> None:
    """An einsum of two related values with random letters."""
    x = d.value()
    y = x if d.chance(0.35) else d.tensor_operand(x) if d.chance(0.5) else d.value()
    left = "abcdef"[: x.rank]
    free = list("uvwxyz")
    right = ""
    for place, size in enumerate(y.shape):
        same = [letter for letter, other in zip(left, x.shape, strict=True) if other == size and letter not in right]
        kept = left[place] if place < len(left) and left[place] in same and d.chance(0.7) else d.one(same) if same else ""
        right += kept if kept and d.chance(0.75) else free.pop(0)
    sizes = dict(zip(left + right, (*x.shape, *y.shape), strict=True))
    letters = sorted(sizes)
    result = [letter for letter in letters if d.chance(0.35 if letter in left and letter in right else 0.85)] or letters[:1]
    fits(d, *sizes.values(), batch=math.prod(sizes[letter] for letter in result if letter in left and letter in right))
    if d.chance(0.4):
        d.random.shuffle(result)
    d.emit(f"torch.einsum('{left},{right}->{''.join(result)}', {x}, {y})")


@operator(4)
def linear(d: Draw) -> None:
    x = d.value()
    outputs = d.size() * (d.several() if d.chance(0.3) else 1)
    fits(d, *x.shape, outputs)
    d.emit(f"{d.layer(f'nn.Linear({x.shape[-1]}, {outputs}' + d.one((')', ')', ', bias=False)')))}({x})")


@operator(2.5)
def attention(d: Draw) -> None:
    """Attention among the parts of one projection, or of a value with itself."""
    x = d.of_rank(3)
    batch, tokens, width = x.shape
    fits(d, *x.shape, tokens, batch=batch)
    way = d.random.random()
    heads = d.one([n for n in (1, 2, 3, 4) if width % n == 0])
    if way < 0.2 and width <= 48 and tokens <= 64:
        self_attention = d.layer(f"nn.MultiheadAttention({width}, {heads}, batch_first=True)")
        d.emit(f"{self_attention}({x}, {x}, {x}, need_weights=False)[0]")
        return
    if way < 0.6:
        wide = d.emit(f"{d.layer(f'nn.Linear({width}, {3 * width})')}({x})")
        q, k, v = d.emit_all(f"{wide}.chunk(3, -1)")
    else:
        q, k, v = x, d.tensor_operand(x), d.tensor_operand(x)
    if heads > 1 and d.chance(0.6):
        q, k, v = (d.emit(f"{part}.unflatten(-1, ({heads}, {width // heads})).transpose(1, 2)") for part in (q, k, v))
    if d.chance(0.4):
        d.emit(f"F.scaled_dot_product_attention({q}, {k}, {v}{d.one(('', ', is_causal=True'))})")
        return
    scores = d.emit(f"{q} @ {k}.transpose(-1, -2)")
    if d.chance(0.5):
        scores = d.emit(f"{scores} * 0.25")
    if d.chance(0.3):
        mask = (
            d.input((tokens, tokens))
            if d.chance(0.5)
            else d.layer(f"nn.Buffer(torch.full(({tokens}, {tokens}), -9.0).triu(1))", "p")
        )
        scores = d.emit(f"{scores} + {mask}")
    d.emit(f"torch.softmax({scores}, -1) @ {v}")


# --- windows ----------------------------------------------------------------------------------------------------------


@operator(6)
def convolution(d: Draw) -> None:
    """A convolution of one to three dimensions, grouped, depthwise, strided, dilated, or transposed."""
    dims = d.weighted(((3, 1), (6, 2), (1, 3)))
    x = d.of_rank(dims + 2)
    channels = x.shape[1]
    kernel = [min(d.one((1, 1, 2, 3, 3, 3, 5)), 3 if dims == 3 else 7) for _ in range(dims)]
    if d.chance(0.6):
        kernel = [kernel[0]] * dims
    outputs = d.size()
    groups = 1
    if d.chance(0.25):
        groups = d.one([n for n in (2, 3, 4, channels) if channels % n == 0] or [1])
        outputs = groups * d.one((1, 1, 2))
    fits(d, *x.shape, *kernel, outputs // groups or 1)
    stride, dilation = d.one((1, 1, 1, 2, 3)), d.one((1, 1, 1, 1, 2, 3))
    padding = d.one((0, 0, 1, 1, 2))
    text = f"{channels}, {outputs}, {tuple(kernel) if len(set(kernel)) > 1 else kernel[0]}"
    if stride > 1:
        text += f", stride={stride}"
    if padding:
        text += f", padding={padding}"
    if dilation > 1:
        text += f", dilation={dilation}"
    if groups > 1:
        text += f", groups={groups}"
    if d.chance(0.2):
        text += ", bias=False"
    transposed = "Transpose" if d.chance(0.15) else ""
    made = d.emit(f"{d.layer(f'nn.Conv{transposed}{dims}d({text})')}({x})")
    if d.chance(0.25):
        d.emit(f"torch.relu({made})")


@operator(2.5)
def pool(d: Draw) -> None:
    dims = d.weighted(((2, 1), (6, 2), (1, 3)))
    x = d.of_rank(dims + 2)
    kernel = d.one((1, 2, 2, 3, 3, 5))
    stride = d.one((1, 2, 2, 3))
    inside = ", count_include_pad=False" * d.chance(0.5)
    d.emit(
        d.one(
            (
                f"F.max_pool{dims}d({x}, {kernel}, {stride}, {d.one((0, 0, kernel // 2))})",
                f"F.avg_pool{dims}d({x}, {kernel}, {stride}, {d.one((0, 0, kernel // 2))}{inside})",
                f"F.adaptive_avg_pool{dims}d({x}, {d.one((1, 1, 2, 3))})",
                f"F.adaptive_max_pool{dims}d({x}, {d.one((1, 2))})",
            )
        )
    )


@operator(3)
def norm(d: Draw) -> None:
    way = d.between(0, 4)
    if way == 0:
        x = d.of_rank(2, 3, 4, 5)
        batch = d.layer(f"nn.BatchNorm{max(x.rank - 2, 1)}d({x.shape[1]})")
        d.emit(f"{batch}({x})")
    elif way == 1:
        x = d.of_rank(3, 4)
        groups = d.one([n for n in (1, 2, 3, 4) if x.shape[1] % n == 0])
        d.emit(f"{d.layer(f'nn.GroupNorm({groups}, {x.shape[1]})')}({x})")
    elif way == 2:
        x = d.of_rank(3, 4)
        d.emit(f"{d.layer(f'nn.InstanceNorm{x.rank - 2}d({x.shape[1]}, affine=True)')}({x})")
    else:
        x = d.value()
        axes = list(x.shape[-d.between(1, min(2, x.rank)) :])
        kind = d.one(("LayerNorm", "LayerNorm", "RMSNorm"))
        d.emit(f"{d.layer(f'nn.{kind}({axes})')}({x})")


@operator(1.5)
def recurrent(d: Draw) -> None:
    x = d.of_rank(3)
    first = d.chance(0.6)
    steps = x.shape[1] if first else x.shape[0]
    if steps > 10 or d.large:
        raise Unfit("too many steps")
    hidden = min(d.size(), 24)
    options = ", batch_first=True" * first + ", bidirectional=True" * d.chance(0.25) + ", num_layers=2" * d.chance(0.15)
    kind = d.one(("LSTM", "GRU", "RNN"))
    layer = d.layer(f"nn.{kind}({x.shape[2]}, {hidden}{options})")
    d.emit(f"{layer}({x}){d.one(('[0]', '[0]', '[0]', '[1][0]')) if kind == 'LSTM' else d.one(('[0]', '[0]', '[1]'))}")


# --- indices ----------------------------------------------------------------------------------------------------------


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
    """Return a number of indices: in a large network mostly above 65,535."""
    return d.one((65_535, 65_536, 66_000, 70_000)) if d.large and d.chance(0.6) else d.size()


@operator(3)
def pick(d: Draw) -> None:
    """Rows of a value by indices."""
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
    from tests.support.random_networks.draw import PICTURE_SIZES

    height, width = (d.one(PICTURE_SIZES), d.one(PICTURE_SIZES)) if d.large else (d.size(), d.size())
    grid = d.input((x.shape[0], height, width, 2))
    grid = d.emit(f"torch.tanh({grid})")
    d.emit(f"F.grid_sample({x}, {grid}, mode='{d.one(('bilinear', 'nearest'))}', align_corners={d.chance(0.5)})")


@operator(1.5)
def integers(d: Draw) -> None:
    """Arithmetic of integers."""
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
    """Rows of a value replaced by, or added to, others at indices."""
    x = d.value()
    axis = d.axis(x)
    count = min(d.size(), x.shape[axis])
    shape = list(x.shape)
    shape[axis] = count
    source = d.input(shape)
    order = ", ".join(map(str, sorted(d.random.sample(range(x.shape[axis]), count)))) if x.shape[axis] < 1000 else ""
    index = f"torch.tensor([{order}])" if order and d.chance(0.6) else d.layer(f"nn.Buffer(torch.arange({count}))", "p")
    d.emit(d.one((f"{x}.index_copy({axis}, {index}, {source})", f"{x}.index_add({axis}, {index}, {source})")))
