"""Recurrent layers, decomposed into linear layers and gates.

The input weights are read once, because their product with the inputs covers all time steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.fx.sequences import refuse_long_sequence
from ethorch.lower.ops.samples import I8, Sample, W
from ethorch.lower.ops.spec import composite

aten = torch.ops.aten

#: Function of (s, gates of the step's input, state or None if it is zero, weights) that returns the next state.
Cell = Callable[[AtenBuilder, list[Node], list[Node] | None, dict[str, Node]], list[Node]]


def _gates(s: AtenBuilder, x: Node, *counts: int) -> list[Node]:
    width, parts, start = shape_of(x)[-1] // sum(counts), [], 0
    for count in counts:
        parts.append(s(aten.slice.Tensor, x, -1, start, start + count * width))
        start += count * width
    return parts


def _lstm_cell(s: AtenBuilder, parts: list[Node], state: list[Node] | None, weights: dict[str, Node]) -> list[Node]:
    ifo, g = parts
    if state is not None:
        h_ifo, h_g = _gates(s, s(aten.linear.default, state[0], weights["hh"], None), 3, 1)
        ifo, g = s(aten.add.Tensor, ifo, h_ifo), s(aten.add.Tensor, g, h_g)
    i, f, o = _gates(s, s(aten.sigmoid.default, ifo), 1, 1, 1)
    cell = s(aten.mul.Tensor, i, s(aten.tanh.default, g))
    if state is not None:
        cell = s(aten.add.Tensor, s(aten.mul.Tensor, f, state[1]), cell)
    h = s(aten.mul.Tensor, o, s(aten.tanh.default, cell))
    return [s(aten.linear.default, h, weights["hr"], None) if "hr" in weights else h, cell]


def _gru_cell(s: AtenBuilder, parts: list[Node], state: list[Node] | None, weights: dict[str, Node]) -> list[Node]:
    rz, n = parts
    hn: Node | None
    if state is not None:
        h_rz, hn = _gates(s, s(aten.linear.default, state[0], weights["hh"], weights.get("b_n")), 2, 1)
        rz = s(aten.add.Tensor, rz, h_rz)
    else:
        hn = _gates(s, weights["b_n"], 2, 1)[1] if "b_n" in weights else None
    r, z = _gates(s, s(aten.sigmoid.default, rz), 1, 1)
    if hn is not None:
        n = s(aten.add.Tensor, n, s(aten.mul.Tensor, r, hn))
    n = s(aten.tanh.default, n)
    if state is None:
        return [s(aten.mul.Tensor, s(aten.rsub.Scalar, z, 1.0), n)]
    return [s(aten.add.Tensor, n, s(aten.mul.Tensor, z, s(aten.sub.Tensor, state[0], n)))]


def _simple_cell(function: Any) -> Cell:

    def cell(s: AtenBuilder, parts: list[Node], state: list[Node] | None, weights: dict[str, Node]) -> list[Node]:
        (gates,) = parts
        if state is not None:
            gates = s(aten.add.Tensor, gates, s(aten.linear.default, state[0], weights["hh"], None))
        return [s(function, gates)]

    return cell


def _project_inputs(s: AtenBuilder, x: Node, parameters: Sequence[Node], cell: Cell) -> tuple[list[Node], dict[str, Node]]:
    w_ih, w_hh, *biases = parameters
    groups = _GROUPS.get(cell, ((0,),))
    count = sum(map(len, groups))

    def rows(parameter: Node, gates: Sequence[int]) -> Node:
        return parameter if count == 1 else s.parameter(parameter, lambda data: torch.cat([data.chunk(count)[k] for k in gates]))

    weights, bias = {"hh": rows(w_hh, [gate for group in groups for gate in group])}, None
    if len(parameters) % 2:  # projection of the LSTM's output
        weights["hr"] = biases.pop()
    if biases and cell is _gru_cell:  # only the bias of h_n is multiplied by the reset gate
        start = 2 * shape_of(w_hh)[1]
        bias = s.combine(biases[0], biases[1], lambda a, b: a + torch.cat([b[:start], 0 * b[start:]]))
        weights["b_n"] = s.parameter(biases[1], lambda b: torch.cat([0 * b[:start], b[start:]]))
    elif biases:
        bias = s.combine(biases[0], biases[1], torch.add)
    # A common range for all gates would cost 1 dB of SQNR.
    return [s(aten.linear.default, x, rows(w_ih, group), bias and rows(bias, group)) for group in groups], weights


#: Gates of each cell. Those of a group have the same activation, so that the NPU computes them together.
_GROUPS: dict[Cell, tuple[tuple[int, ...], ...]] = {_lstm_cell: ((0, 1, 3), (2,)), _gru_cell: ((0, 1), (2,))}


def _direction(
    s: AtenBuilder,
    cell: Cell,
    x: Node,
    steps: int,
    time: int,
    start: list[Node] | None,
    parameters: Sequence[Node],
    reverse: bool,
) -> tuple[list[Node], list[Node]]:
    projected, weights = _project_inputs(s, x, parameters, cell)
    outputs: list[Node] = []
    state = start
    for step in reversed(range(steps)) if reverse else range(steps):
        state = cell(s, [s(aten.select.int, part, time, step) for part in projected], state, weights)
        outputs.append(state[0])
    assert state is not None
    return outputs[::-1] if reverse else outputs, state


def _layers(
    s: AtenBuilder,
    cell: Cell,
    x: Node,
    start: Sequence[Node],
    parameters: Sequence[Node],
    layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> list[Node]:
    time = 1 if batch_first and len(shape_of(x)) == 3 else 0
    steps, directions = shape_of(x)[time], 2 if bidirectional else 1
    refuse_long_sequence(steps)
    per = len(parameters) // (layers * directions)
    zero = all(s.is_zero(state) for state in start)
    last: list[list[Node]] = [[] for _ in start]
    for layer in range(layers):
        sides = []
        for direction in range(directions):
            index = layer * directions + direction
            first = None if zero else [s(aten.select.int, state, 0, index) for state in start]
            layer_parameters = parameters[index * per : (index + 1) * per]
            outputs, state = _direction(s, cell, x, steps, time, first, layer_parameters, bool(direction))
            sides.append(outputs)
            for states, final in zip(last, state, strict=True):
                states.append(final)
        rows = sides[0] if directions == 1 else [s(aten.cat.default, pair, -1) for pair in zip(*sides, strict=True)]
        x = s(aten.stack.default, list(rows), time)
    return [x, *(s(aten.stack.default, values, 0) for values in last)]


_LSTM_WEIGHTS = [W(24, 5), W(24, 6), W(24), W(24)]


@composite(
    "aten.lstm.input",
    bound16=6,
    samples=[
        Sample(I8(2, 4, 5), [W(1, 2, 6), W(1, 2, 6)], _LSTM_WEIGHTS, True, 1, 0.0, False, False, True),
        Sample(I8(3, 1, 5), [W(2, 1, 6), W(2, 1, 6)], [*_LSTM_WEIGHTS[:2]] * 2, False, 1, 0.0, False, True, False),
        Sample(
            I8(2, 3, 5), [W(1, 2, 3), W(1, 2, 6)], [W(24, 5), W(24, 3), W(24), W(24), W(3, 6)], True, 1, 0.0, False, False, True
        ),
    ],
)
def lstm(
    s: AtenBuilder,
    x: Node,
    hx: Sequence[Node],
    parameters: Sequence[Node],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """Return (output, h, c) of torch.nn.LSTM."""
    return _layers(s, _lstm_cell, x, hx, parameters, layers, bidirectional, batch_first)


@composite(
    "aten.gru.input",
    bound16=6,
    samples=[Sample(I8(2, 4, 5), W(1, 2, 6), [W(18, 5), W(18, 6), W(18), W(18)], True, 1, 0.0, False, False, True)],
)
def gru(
    s: AtenBuilder,
    x: Node,
    hx: Node,
    parameters: Sequence[Node],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """Return (output, h) of torch.nn.GRU."""
    return _layers(s, _gru_cell, x, [hx], parameters, layers, bidirectional, batch_first)


_RNN = [Sample(I8(2, 4, 5), W(1, 2, 6), [W(6, 5), W(6, 6), W(6), W(6)], True, 1, 0.0, False, False, True)]


@composite("aten.rnn_tanh.input", samples=_RNN, bound16=8)
def rnn_tanh(
    s: AtenBuilder,
    x: Node,
    hx: Node,
    parameters: Sequence[Node],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """Return (output, h) of torch.nn.RNN, where h' = tanh(W x + U h + b)."""
    return _layers(s, _simple_cell(aten.tanh.default), x, [hx], parameters, layers, bidirectional, batch_first)


@composite("aten.rnn_relu.input", samples=_RNN)
def rnn_relu(
    s: AtenBuilder,
    x: Node,
    hx: Node,
    parameters: Sequence[Node],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """Return (output, h) of torch.nn.RNN with relu, where h' = max(W x + U h + b, 0)."""
    return _layers(s, _simple_cell(aten.relu.default), x, [hx], parameters, layers, bidirectional, batch_first)


def _step(s: AtenBuilder, cell: Cell, x: Node, state: list[Node], parameters: Sequence[Node | None]) -> list[Node] | None:
    present = [parameter for parameter in parameters if parameter is not None]
    if len(present) == 3:
        return None
    gates, weights = _project_inputs(s, x, present, cell)
    return cell(s, gates, None if all(s.is_zero(part) for part in state) else state, weights)


@composite(
    "aten.lstm_cell.default",
    bound16=4,
    samples=[
        Sample(I8(2, 5), [I8(2, 6), I8(2, 6)], *_LSTM_WEIGHTS),
        Sample(I8(1, 5), [I8(1, 6), I8(1, 6)], *_LSTM_WEIGHTS[:2]),
    ],
)
def lstm_cell(
    s: AtenBuilder, x: Node, hx: Sequence[Node], w_ih: Node, w_hh: Node, b_ih: Node | None = None, b_hh: Node | None = None
) -> Any:
    """Return (h, c) of torch.nn.LSTMCell."""
    return _step(s, _lstm_cell, x, list(hx), [w_ih, w_hh, b_ih, b_hh])


@composite(
    "aten.gru_cell.default",
    bound16=6,
    samples=[
        Sample(I8(2, 5), I8(2, 6), W(18, 5), W(18, 6), W(18), W(18)),
        Sample(I8(1, 5), I8(1, 6), W(18, 5), W(18, 6)),
    ],
)
def gru_cell(s: AtenBuilder, x: Node, hx: Node, w_ih: Node, w_hh: Node, b_ih: Node | None = None, b_hh: Node | None = None) -> Any:
    """Return h of torch.nn.GRUCell."""
    states = _step(s, _gru_cell, x, [hx], [w_ih, w_hh, b_ih, b_hh])
    return states and states[0]


_RNN_CELL = [Sample(I8(2, 5), I8(2, 6), W(6, 5), W(6, 6), W(6), W(6))]


@composite("aten.rnn_tanh_cell.default", samples=_RNN_CELL, bound16=8)
def rnn_tanh_cell(
    s: AtenBuilder, x: Node, hx: Node, w_ih: Node, w_hh: Node, b_ih: Node | None = None, b_hh: Node | None = None
) -> Any:
    """Return h' = tanh(W x + U h + b) of torch.nn.RNNCell."""
    states = _step(s, _simple_cell(aten.tanh.default), x, [hx], [w_ih, w_hh, b_ih, b_hh])
    return states and states[0]


@composite("aten.rnn_relu_cell.default", samples=_RNN_CELL)
def rnn_relu_cell(
    s: AtenBuilder, x: Node, hx: Node, w_ih: Node, w_hh: Node, b_ih: Node | None = None, b_hh: Node | None = None
) -> Any:
    """Return h' = max(W x + U h + b, 0) of torch.nn.RNNCell with relu."""
    states = _step(s, _simple_cell(aten.relu.default), x, [hx], [w_ih, w_hh, b_ih, b_hh])
    return states and states[0]
