"""Small random networks of truth values, int32 and int64, with some floats between them."""

from __future__ import annotations

import random
import warnings

import torch
from torch import Tensor

from tests.helpers.random_networks.network import NAMESPACE, Line, Network, names_in

#: Expressions of operands x, y and z, an axis d and the rank r of x.
EXPRESSIONS = {
    4: (  # how often the row is drawn
        "{x} + {y}", "{x} - {y}", "{x} * {y}", "torch.maximum({x}, {y})", "torch.minimum({x}, {y})", "{x} & {y}", "{x} | {y}",
        "{x} ^ {y}", "{x} // ({y} * {y} + 1)", "{x} % ({y} * {y} + 1)", "{x}.int() << ({y}.int() & 7)",
        "{x}.int() >> ({y}.int() & 7)", "{x} == {y}", "{x} != {y}", "{x} > {y}", "{x} <= {y}", "torch.logical_and({x}, {y})",
        "torch.logical_or({x}, {y})", "torch.logical_xor({x}, {y})",
    ),
    3: (
        "-{x}", "{x}.abs()", "{x}.sign()", "~{x}", "torch.logical_not({x})", "torch.square({x})", "torch.relu({x})",
        "{x}.clamp(-2, 3)", "{x} + 3", "{x} * 2", "{x} > 1", "{x} == 0", "{x} & 3", "{x} | 1", "{x} ^ 2", "{x} % 3", "{x} // 2",
        "{x}.int() >> 1", "{x}.int() << 1", "2 - {x}", "{x}.float()", "{x}.float() * 0.3", "{x}.int()", "{x}.long()", "{x}.bool()",
        "{x}.to(torch.int8)", "{x}.to(torch.int16)", "torch.zeros_like({x})", "torch.ones_like({x}) + {x}",
    ),
    5: (
        "{x}.sum({d})", "{x}.sum({d}, keepdim=True)", "{x}.any({d})", "{x}.all({d}, keepdim=True)", "{x}.amax({d})",
        "{x}.amin({d}, keepdim=True)", "{x}.argmax({d})", "{x}.argmin({d}, keepdim=True)", "{x}.cumsum({d})", "{x}.flip({d})",
        "{x}.roll(1, {d})", "{x}.narrow({d}, 0, 1)", "{x}.transpose({d}, 0)", "{x}.transpose({d}, -1)",
        "torch.cat([{x}, {x}], {d})", "torch.stack([{x}, {x}], {d})", "{x}.index_select({d}, torch.tensor([0, 0]))",
        "{x}.unsqueeze({d})", "{x}.repeat_interleave(2, {d})", "{x}.select({d}, 0)", "{x}.prod({d})", "{x}.count_nonzero({d})",
        "{x}.max({d})[0]", "{x}.index_copy({d}, torch.tensor([0]), {x}.narrow({d}, -1, 1))", "torch.diff({x}, dim={d})",
    ),
    2: (
        "{x}.reshape(-1)", "{x}.expand(2, *{x}.shape)", "{x}.repeat(2, *[1] * ({r} - 1))", "F.pad({x}, (1, 2))",
        "F.pad({x}, (0, 1), value=1)", "{x}.tril()", "{x}.triu(1)", "{x}.masked_fill({x} > 1, 0)", "torch.where({x} > 0, {x}, 0)",
        "{x}[..., ::2]", "{x}.any()", "{x}.sum()", "{x}.permute(*reversed(range({r})))", "F.one_hot({x}.long().clamp(0, 3), 4)",
    ),
    1: ("torch.where({x}, {y}, {z})",) * 14,
}  # fmt: skip
_INPUTS = {
    "bool": "torch.randn({}) > 0", "int32": "torch.randint(-9, 10, ({},), dtype=torch.int32)",
    "int64": "torch.randint(-9, 10, ({},))", "float": "torch.randn({})",
}  # fmt: skip
_MOST_ELEMENTS = 2000


def integer_network(seed: int) -> Network:
    """Return the network of a seed. It runs, and its results are finite."""
    draw = random.Random(seed)
    shape = [draw.choice((1, 2, 3, 4, 5, 8, 17)) for _ in range(draw.choice((1, 2, 2, 3, 3, 4)))]
    inputs: list[Line] = []
    for number in range(draw.choice((1, 2, 2, 3))):
        own = ", ".join(str(draw.choice((extent, extent, extent, 1))) for extent in shape)
        kind = draw.choice(("bool", "bool", "int32", "int32", "int64", "float"))
        inputs.append((f"x{number}", _INPUTS[kind].format(own)))
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        values = {name: eval(expression, NAMESPACE) for name, expression in inputs}
    rows, weights = list(EXPRESSIONS.values()), list(EXPRESSIONS)
    lines: list[Line] = []
    steps = draw.choice((1, 2, 3, 4, 6))
    while len(lines) < steps:
        names = list(values)
        x, y, z = (names[max(draw.randrange(len(names)), draw.randrange(len(names)))] for _ in range(3))  # late ones more often
        (row,) = draw.choices(rows, weights)
        rank = values[x].dim()
        expression = draw.choice(row).format(x=x, y=y, z=z, d=draw.randrange(max(rank, 1)), r=rank)
        result = _evaluated(expression, values)
        if result is not None:
            name = f"v{len(lines)}"
            values[name] = result
            lines.append((name, expression))
    read = {name for _, expression in lines for name in names_in(expression)}
    ends = tuple(name for name, _ in lines if name not in read)
    return Network(seed, tuple(inputs), (), tuple(lines), ends)


def _evaluated(expression: str, values: dict[str, Tensor]) -> Tensor | None:
    """Return the value of an expression; None if PyTorch refuses it, or it is empty, large or not finite."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result: Tensor = eval(expression, {**NAMESPACE, **values})
    except (RuntimeError, IndexError, ZeroDivisionError, NotImplementedError, TypeError):
        return None
    fits = 0 < result.numel() <= _MOST_ELEMENTS and result.dim() <= 5
    return result if fits and bool(torch.isfinite(result.float()).all()) else None


def has_floats(drawn: Network) -> bool:
    """Return True if a network computes with floats, which quantization rounds."""
    return any("randn" in line and ">" not in line for _, line in drawn.inputs) or any("float" in line for _, line in drawn.lines)
