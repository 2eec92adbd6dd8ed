"""Operators whose commands the rarer passes over command streams change."""

from __future__ import annotations

from tests.helpers.random_networks.draw import Draw
from tests.helpers.random_networks.registry import following


@following(1, "streams")
def attention_over_many_tokens(d: Draw) -> None:
    """Attention with one projection per operand, over 24 to 48 tokens."""
    heads, width = d.one((1, 2, 3, 4)), d.one((8, 16, 16, 32))
    queries, keys = (d.one((24, 32, 40, 48)) for _ in range(2))
    x = d.input((1, queries, heads * width))
    y = x if d.chance(0.7) else d.input((1, keys, heads * width))
    parts = []
    for source in (x, y, y):
        projected = d.emit(f"{d.layer(f'nn.Linear({heads * width}, {heads * width})')}({source})")
        parts.append(d.emit(f"{projected}.unflatten(-1, ({heads}, {width})).transpose(1, 2)"))
    q, k, v = parts
    if d.chance(0.5):
        result = d.emit(f"F.scaled_dot_product_attention({q}, {k}, {v})")
    else:
        result = d.emit(f"torch.softmax({q} @ {k}.transpose(-1, -2) * {width**-0.5:.4f}, -1) @ {v}")
    d.emit(f"{result}.transpose(1, 2).flatten(2)")


@following(1.5, "streams")
def repeated_layer(d: Draw) -> None:
    """A recurrent layer, or a linear layer that is applied to its own result three to five times."""
    width, steps = d.one((32, 48, 64, 96)), d.between(3, 5)
    if d.chance(0.15):
        kind = d.one(("LSTM", "GRU", "RNN"))
        x = d.input((1, steps, width))
        d.emit(f"{d.layer(f'nn.{kind}({width}, {width}, batch_first=True)')}({x})[0]")
        return
    value = d.input((d.one((1, 1, 2, 5)), width))
    layer = d.layer(f"nn.Linear({width}, {width})")
    function = d.one(("torch.relu({})", "torch.tanh({})", "torch.sigmoid({})", "{} * 0.5"))
    for _ in range(steps):
        value = d.emit(function.format(f"{layer}({value})"))
