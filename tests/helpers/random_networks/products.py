"""Matrix products, linear layers and attention."""

from __future__ import annotations

import math

from tests.helpers.random_networks.draw import Draw, Unfit
from tests.helpers.random_networks.registry import fits, operator


@operator(5)
def product(d: Draw) -> None:
    """Multiply a value by a related one: itself, a piece, a transpose."""
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
    """Compute an einsum of two related values with random letters."""
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
    """Compute attention among the parts of one projection, or of a value with itself."""
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
