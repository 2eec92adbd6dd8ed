"""Replace complex tensors with pairs of real tensors, and Fourier transforms with multiplications by constant matrices.

The NPU does not support complex numbers, and ExecuTorch has few CPU kernels for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.fx import GraphModule, Node

from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.fx.node import arguments, first_value, flat, op_name, tensor_of
from ethorch.lower.ops.spec import find
from ethorch.quantization.passes.context import PassContext

aten = torch.ops.aten
Matrix = npt.NDArray[np.float64]


class Pair(NamedTuple):
    """The real and imaginary parts of a complex tensor, or a real tensor and None."""

    real: Node
    imaginary: Node | None


#: Lowering of an operator whose complex arguments are Pairs.
Rule = Callable[..., Any]


def lower_complex(graph_module: GraphModule, context: PassContext) -> None:
    """Replace all complex tensors, unless an operator that uses them is excluded or has no lowering rule.

    Run ``functionalize`` and ``fold_constants`` first.
    """
    graph_module.graph.eliminate_dead_code()
    touched = [node for node in graph_module.graph.nodes if is_complex(node) or any(map(is_complex, node.all_input_nodes))]
    if not touched or any(rule_of(node) is None or context.is_excluded(node) for node in touched):
        return
    pairs: dict[Node, Pair] = {}
    for node in touched:
        s = AtenBuilder(graph_module, node)
        if node.op == "get_attr":
            pairs[node] = Pair(*(s.parameter(node, part) for part in (lambda z: z.real.clone(), lambda z: z.imag.clone())))
            continue
        args, kwargs = arguments(node)
        rule = rule_of(node)
        assert rule is not None
        replacement = rule(
            s, *torch.fx.map_arg(args, lambda n: pairs.get(n, n)), **torch.fx.map_arg(kwargs, lambda n: pairs.get(n, n))
        )
        if isinstance(replacement, Pair):
            pairs[node] = replacement
        else:
            node.replace_all_uses_with(replacement)
    for node in reversed(touched):
        graph_module.graph.erase_node(node)
    graph_module.graph.eliminate_dead_code()


def is_complex(node: Node) -> bool:
    value = first_value(node)
    return value is not None and value.is_complex()


def rule_of(node: Node) -> Rule | None:
    """Return the lowering rule of a node that computes or reads complex tensors, or None."""
    if node.op == "get_attr":
        return _move
    name = op_name(node.target) if node.op == "call_function" else ""
    if any(isinstance(value, complex) for value in flat([*node.args, *node.kwargs.values()])):
        return None
    if name in _RULES:
        return _RULES[name]
    spec = find(node.target) if node.op == "call_function" else None
    moves = spec is not None and (spec.moves or name in _ALIKE)
    return (
        _move
        if moves and node.all_input_nodes[:1] == [node.args[0]] and not any(map(is_complex, node.all_input_nodes[1:]))
        else None
    )


#: Operators that move elements although ``moves`` is not set in their OpSpec.
_ALIKE = frozenset(
    f"aten.{name}"
    for name in ("clone.default", "contiguous.default", "alias.default", "slice.Tensor", "select.int", "narrow.default",
                 "index_select.default", "flip.default", "roll.default", "repeat.default", "expand.default")
)  # fmt: skip


def _move(s: AtenBuilder, x: Pair, *args: Any, **kwargs: Any) -> Pair:
    assert x.imaginary is not None
    return Pair(*(s(s.node.target, part, *args, **kwargs) for part in x))


def _join(s: AtenBuilder, tensors: Sequence[Pair], dim: int = 0) -> Pair:
    return Pair(*(s(s.node.target, [x[k] for x in tensors], dim) for k in range(2)))


def _product(s: AtenBuilder, x: Any, y: Any) -> Pair:
    if not isinstance(x, Pair):
        x, y = y, x
    a, b = x
    assert b is not None
    if not isinstance(y, Pair):
        return Pair(s(aten.mul.Tensor, a, y), s(aten.mul.Tensor, b, y))
    c, d = y
    assert d is not None

    def combine(join: Any, first: tuple[Node, Node], second: tuple[Node, Node]) -> Node:
        return s(join, s(aten.mul.Tensor, *first), s(aten.mul.Tensor, *second))

    return Pair(combine(aten.sub.Tensor, (a, c), (b, d)), combine(aten.add.Tensor, (a, d), (b, c)))


def _quotient(s: AtenBuilder, x: Pair, y: Any) -> Pair:
    assert x.imaginary is not None
    return Pair(*(s(aten.div.Tensor, part, y) for part in x))


def _sum(s: AtenBuilder, x: Any, y: Any, *, alpha: float = 1) -> Pair:
    (a, b), (c, d) = (v if isinstance(v, Pair) else Pair(v, None) for v in (x, y))
    target = s.node.target
    real = s(target, a, c, alpha=alpha)
    if d is None:
        return Pair(real, b)
    if b is None:
        factor = alpha if target is aten.add.Tensor else -alpha
        return Pair(real, d if factor == 1 else s(aten.mul.Tensor, d, factor))
    return Pair(real, s(target, b, d, alpha=alpha))


def _negative(s: AtenBuilder, x: Pair) -> Pair:
    return Pair(*(s(aten.neg.default, part) for part in x))


def _conjugate(s: AtenBuilder, x: Pair) -> Pair:
    return Pair(x.real, s(aten.neg.default, x.imaginary))


def _magnitude(s: AtenBuilder, x: Pair) -> Node:
    squares = [s(aten.mul.Tensor, part, part) for part in x]
    return s(aten.sqrt.default, s(aten.add.Tensor, *squares))


def _polar(s: AtenBuilder, size: Node, angle: Node) -> Pair:
    return Pair(*(s(aten.mul.Tensor, size, s(function, angle)) for function in (aten.cos.default, aten.sin.default)))


def _from_real(s: AtenBuilder, x: Node) -> Pair:
    return Pair(s(aten.select.int, x, -1, 0), s(aten.select.int, x, -1, 1))


def _as_real(s: AtenBuilder, x: Pair) -> Node:
    return s(aten.stack.default, list(x), -1)


def _dft(size: int, n: int, outputs: int, inverse: bool, norm: str | None) -> tuple[Matrix, Matrix]:
    """Return the [``outputs``, ``size``] cosine and sine matrices of a DFT of length ``n``."""
    # Columns from n on are 0. ``norm`` is the argument of torch.fft.
    turns = np.outer(np.arange(outputs), np.arange(size)) % n * (2 * math.pi / n)
    share = {"ortho": 0.5, "forward": float(not inverse)}.get(norm or "backward", float(inverse))
    factor = np.where(np.arange(size) < n, float(n) ** -share, 0.0)
    return np.cos(turns) * factor, np.sin(turns) * factor * (1 if inverse else -1)


def _times(s: AtenBuilder, parts: Sequence[Node], matrices: Sequence[Matrix]) -> Node:
    joined = parts[0] if len(parts) == 1 else s(aten.cat.default, list(parts), -1)
    weight = torch.from_numpy(np.concatenate(matrices, axis=1).astype(np.float32))
    return s(aten.linear.default, joined, s.constant(weight))


def _along(s: AtenBuilder, x: Pair, dim: int, n: int | None, norm: str | None, kind: str) -> Pair:
    rank = len(shape_of(x.real))
    parts = [s(aten.transpose.int, part, dim, -1) if dim % rank != rank - 1 else part for part in x if part is not None]
    size = shape_of(parts[0])[-1]
    if kind == "irfft":
        n = n or 2 * (size - 1)
        nonzero = np.arange(size) <= n // 2
        twice = np.where((np.arange(size) == 0) | (2 * np.arange(size) == n), 1.0, 2.0) * nonzero
        cosines, sines = (matrix * twice for matrix in _dft(size, n, n, True, norm))
        results = [_times(s, parts, [cosines, -sines][: len(parts)])]
    else:
        n = n or size
        cosines, sines = _dft(size, n, n // 2 + 1 if kind == "rfft" else n, kind == "ifft", norm)
        results = [_times(s, parts, rows[: len(parts)]) for rows in ([cosines, -sines], [sines, cosines])]
    results = [s(aten.transpose.int, part, dim, -1) if dim % rank != rank - 1 else part for part in results]
    return Pair(results[0], results[1] if len(results) > 1 else None)


def _transform(kind: str, dims: Sequence[int] | None) -> Rule:

    def rule(s: AtenBuilder, x: Any, n: Any = None, dim: Any = dims, norm: str | None = None) -> Any:
        pair = x if isinstance(x, Pair) else Pair(x, None)
        rank = len(shape_of(pair.real))
        lengths = None if n is None else list(flat([n]))
        over = list(range(rank))[-len(lengths) :] if dim is None and lengths else list(range(rank)) if dim is None else flat([dim])
        steps = list(zip(over, lengths or [None] * len(over), strict=True))
        last = steps[-1]
        if kind == "irfft":  # the last dim contains half of the elements and must be transformed last
            for axis, length in steps[:-1]:
                pair = _along(s, pair, axis, length, norm, "ifft")
            return _along(s, pair, *last, norm, kind).real
        for axis, length in reversed(steps):
            pair = _along(s, pair, axis, length, norm, kind if (axis, length) == last else kind.removeprefix("r"))
        return pair

    return rule


def _stft(
    s: AtenBuilder, x: Node, n_fft: int, hop: int | None = None, win: int | None = None, window: Node | None = None,
    normalized: bool = False, onesided: bool | None = None, return_complex: bool | None = None, align_to_window: bool | None = None,
) -> Any:  # fmt: skip
    width = win or n_fft
    shape = torch.ones(width) if window is None else tensor_of(s.model, window)
    assert shape is not None
    before = (n_fft - width) // 2
    weights = np.pad(shape.detach().double().numpy(), (before, n_fft - width - before))
    outputs = n_fft if onesided is False else n_fft // 2 + 1
    matrices = [part * weights for part in _dft(n_fft, n_fft, outputs, False, "ortho" if normalized else None)]
    rank = len(shape_of(x))
    signal = s(aten.unsqueeze.default, x, -2) if rank == 2 else s(aten.view.default, x, [1, 1, -1])
    parts = []
    for matrix in matrices:
        kernel = s.constant(torch.from_numpy(matrix.astype(np.float32))[:, None])
        frames = s(aten.conv1d.default, signal, kernel, None, [hop or n_fft // 4])
        parts.append(frames if rank == 2 else s(aten.squeeze.dim, frames, 0))
    return Pair(*parts) if return_complex else _as_real(s, Pair(*parts))


_RULES: dict[str, Rule] = {
    "aten.mul.Tensor": _product,
    "aten.div.Tensor": _quotient,
    "aten.add.Tensor": _sum,
    "aten.sub.Tensor": _sum,
    "aten.neg.default": _negative,
    "aten.conj.default": _conjugate,
    "aten._conj.default": _conjugate,
    "aten.conj_physical.default": _conjugate,
    "aten.resolve_conj.default": lambda s, x: x,
    "aten.abs.default": _magnitude,
    "aten.real.default": lambda s, x: x.real,
    "aten.imag.default": lambda s, x: x.imaginary,
    "aten.complex.default": lambda s, real, imaginary: Pair(real, imaginary),
    "aten.polar.default": _polar,
    "aten.view_as_complex.default": _from_real,
    "aten.view_as_real.default": _as_real,
    "aten.cat.default": _join,
    "aten.stack.default": _join,
    "aten.stft.default": _stft,
    **{f"aten.fft_{kind}.default": _transform(kind, [-1]) for kind in ("fft", "ifft", "rfft", "irfft")},
    **{f"aten.fft_{kind}2.default": _transform(kind, [-2, -1]) for kind in ("fft", "ifft", "rfft", "irfft")},
    **{f"aten.fft_{kind}n.default": _transform(kind, None) for kind in ("fft", "ifft", "rfft", "irfft")},
}
