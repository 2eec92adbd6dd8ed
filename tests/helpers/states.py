"""Models with state, as users write them. Each call processes one frame or token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from ethorch import EthosUCompileSpec, QuantizationConfig
from ethorch.lower.fx.node import QUANTIZE, op_name
from ethorch.lower.fx.states import writes_of
from ethorch.models.load import UserModel
from ethorch.quantization.calibrate import quantize as quantize_model

Inputs = tuple[Any, ...]


class Denoiser(nn.Module):
    """A mask for the bands of one frame: a GRU cell between two layers."""

    h: Tensor

    def __init__(self, bands: int = 8, width: int = 16) -> None:
        super().__init__()
        self.into, self.cell, self.out = nn.Linear(bands, width), nn.GRUCell(width, width), nn.Linear(width, bands)
        self.register_buffer("h", torch.zeros(1, width))

    def forward(self, frame: Tensor) -> Tensor:
        self.h.copy_(self.cell(torch.relu(self.into(frame)), self.h))
        return frame * torch.sigmoid(self.out(self.h))


class Layered(nn.Module):
    """torch.nn.LSTM for one frame: two states per layer, which start as zeros because of their initial values."""

    h: Tensor
    c: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 10, batch_first=True)
        self.register_buffer("h", torch.zeros(1, 1, 10))
        self.register_buffer("c", torch.zeros(1, 1, 10))

    def forward(self, frame: Tensor) -> Tensor:
        y, (h, c) = self.lstm(frame, (self.h, self.c))
        self.h.copy_(h)
        self.c.copy_(c)
        out: Tensor = y
        return out


class Streaming(nn.Module):
    """Two depthwise convolutions over time, the second dilated, with previous frames as state."""

    first: Tensor
    second: Tensor

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.a, self.b = nn.Conv1d(channels, channels, 3, groups=channels), nn.Conv1d(channels, channels, 1)
        self.c, self.d = nn.Conv1d(channels, channels, 3, dilation=2, groups=channels), nn.Conv1d(channels, 4, 1)
        self.register_buffer("first", torch.zeros(1, channels, 2))
        self.register_buffer("second", torch.zeros(1, channels, 4))

    def forward(self, frame: Tensor) -> Tensor:
        x = torch.cat([self.first, frame], 2)
        self.first.copy_(x[:, :, 1:])
        x = torch.cat([self.second, torch.relu(self.b(self.a(x)))], 2)
        self.second = x[:, :, 1:]
        out: Tensor = self.d(self.c(x))
        return out


class Spotter(nn.Module):
    """A keyword spotter: a convolution over the last spectra, a depthwise block over its last features, and their mean."""

    spectra: Tensor
    features: Tensor
    scores: Tensor

    def __init__(self, bands: int = 10, channels: int = 8, looks_back: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, (4, bands))
        self.depthwise = nn.Conv2d(channels, channels, (3, 1), groups=channels)
        self.pointwise = nn.Conv2d(channels, channels, 1)
        self.classifier = nn.Linear(channels, 5)
        self.register_buffer("spectra", torch.zeros(1, 1, 3, bands))
        self.register_buffer("features", torch.zeros(1, channels, 2, 1))
        self.register_buffer("scores", torch.zeros(1, channels, looks_back, 1))

    def forward(self, spectrum: Tensor) -> Tensor:
        x = torch.cat([self.spectra, spectrum], 2)
        self.spectra.copy_(x[:, :, 1:])
        x = torch.cat([self.features, torch.relu(self.stem(x))], 2)
        self.features.copy_(x[:, :, 1:])
        x = torch.relu(self.pointwise(torch.relu(self.depthwise(x))))
        self.scores.copy_(torch.cat([self.scores[:, :, 1:], x], 2))
        out: Tensor = self.classifier(self.scores.mean((2, 3)))
        return out


class Attention(nn.Module):
    """One head over a cache of keys and values, written at a given position."""

    keys: Tensor
    values: Tensor
    places: Tensor

    def __init__(self, length: int = 60, width: int = 8) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.register_buffer("keys", torch.zeros(1, length, width))
        self.register_buffer("values", torch.zeros(1, length, width))
        self.register_buffer("places", torch.arange(length, dtype=torch.int32))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        self.keys.index_copy_(1, position, self.k(x))
        self.values.index_copy_(1, position, self.v(x))
        scores = self.q(x) @ self.keys.transpose(1, 2)
        weights = torch.softmax(scores.masked_fill(self.places > position.to(torch.int32), -100.0), -1)
        return weights @ self.values


class Slots(nn.Module):
    """Two table rows that each call overwrites at constant positions, and a third in the middle of a row."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("table", torch.linspace(-1, 1, 80).reshape(10, 8))

    def forward(self, x: Tensor) -> Tensor:
        self.table[2:3] = self.a(x)
        self.table[7] = self.b(x)[0]
        self.table[9, 2:5] = x[0, :3]
        return torch.tanh(self.table.sum(0, keepdim=True))


class Counted(nn.Module):
    """A cache that is written at an int32 counter, which is state as well."""

    keys: Tensor
    position: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.k = nn.Linear(8, 8)
        self.register_buffer("keys", torch.zeros(1, 60, 8))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        self.keys.index_copy_(1, self.position, self.k(x))
        self.position += 1
        return torch.softmax(x @ self.keys.transpose(1, 2), -1) @ self.keys


class Delayed(nn.Module):
    """A delay line: each buffer receives the previous one's value, the first the input. Another receives it if it is loud."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)
        for name in ("one", "two", "three", "loud"):
            self.register_buffer(name, torch.zeros(1, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.lin(x)) + self.one * 0.5 + self.two * 0.25 - self.three + self.loud
        self.three.copy_(self.two)
        self.two.copy_(self.one)
        self.one.copy_(x)
        self.loud.copy_(torch.where(x.sum(1, keepdim=True) > 0, torch.tanh(y), self.loud))
        return y


class Ring(nn.Module):
    """A cache that shifts by one position per step, without a position input."""

    keys: Tensor

    def __init__(self, length: int = 6, width: int = 8) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(width, width), nn.Linear(width, width)
        self.register_buffer("keys", torch.zeros(1, length, width))

    def forward(self, x: Tensor) -> Tensor:
        self.keys.copy_(torch.cat([self.keys[:, 1:], self.k(x)], 1))
        return torch.softmax(self.q(x) @ self.keys.transpose(1, 2), -1) @ self.keys


class Mean(nn.Module):
    """Subtract a running mean, with a nonzero initial value, from the input."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.linspace(-1, 1, 8).reshape(1, 8))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.75).add_(x, alpha=0.25)
        return torch.tanh(x - self.mean)


@dataclass(frozen=True)
class Case:
    """A model, an NPU that runs all of it, one step's inputs, and the names of its states."""

    model: Callable[[], nn.Module]
    target: str
    step: Callable[[int, torch.Generator], Inputs]
    states: tuple[str, ...]

    def steps(self, count: int, seed: int = 0) -> list[Inputs]:
        generator = torch.Generator().manual_seed(seed)
        return [self.step(number, generator) for number in range(count)]

    def quantized(self, config: QuantizationConfig | None = None, count: int = 12) -> tuple[Any, list[Inputs], EthosUCompileSpec]:
        """Return the converted graph, its calibration steps, and its target."""
        torch.manual_seed(1)
        spec, steps = EthosUCompileSpec(self.target), self.steps(count)
        return quantize_model(UserModel(self.model().eval(), steps[0], steps), spec, config), steps, spec


def _frames(*shape: int) -> Callable[[int, torch.Generator], Inputs]:
    return lambda number, generator: (torch.randn(*shape, generator=generator),)


CASES = {
    "denoiser": Case(Denoiser, "ethos-u55-128", _frames(1, 8), ("h",)),
    "lstm": Case(Layered, "ethos-u65-256", _frames(1, 1, 6), ("h", "c")),
    "streaming": Case(Streaming, "ethos-u55-128", _frames(1, 8, 1), ("first", "second")),
    "spotter": Case(Spotter, "ethos-u55-128", _frames(1, 1, 1, 10), ("spectra", "features", "scores")),
    "attention": Case(
        Attention,
        "ethos-u85-256",
        lambda number, generator: (torch.randn(1, 1, 8, generator=generator), torch.tensor([number % 60], dtype=torch.int32)),
        ("keys", "values"),
    ),
    "wide positions": Case(
        Attention,
        "ethos-u85-256",
        lambda number, generator: (torch.randn(1, 1, 8, generator=generator), torch.tensor([number % 60])),
        ("keys", "values"),
    ),
    "slots": Case(Slots, "ethos-u55-128", _frames(1, 8), ("table",)),
    "counted": Case(Counted, "ethos-u85-256", _frames(1, 1, 8), ("keys", "position")),
    "delayed": Case(Delayed, "ethos-u85-256", _frames(1, 8), ("one", "two", "three", "loud")),
    "ring": Case(Ring, "ethos-u55-128", _frames(1, 1, 8), ("keys",)),
    "mean": Case(Mean, "ethos-u55-128", _frames(1, 8), ("mean",)),
}


def run(module: Any, steps: Sequence[Inputs]) -> list[Tensor]:
    """Return the first output of each step."""
    outputs = []
    with torch.no_grad():
        for inputs in steps:
            given = module(*inputs)
            outputs.append((given[0] if isinstance(given, (list, tuple)) else given).clone())
    return outputs


def unrolled(module: GraphModule, count: int, axis: int) -> GraphModule:
    """Return ``count`` calls of a converted graph as one graph without state, with the same scales.

    Inputs and outputs of the calls are joined along ``axis`` of the input and of the first output.
    """
    graph, writes = Graph(), writes_of(module.graph)
    (given,) = (node for node in module.graph.nodes if node.op == "placeholder")
    (returned,) = module.graph.output_node().all_input_nodes
    quantize = next(user for user in given.users if op_name(user.target) in QUANTIZE)
    shape = list(given.meta["val"].shape)
    shape[axis] *= count

    def call(like: Node, args: tuple[Any, ...], value: Tensor) -> Node:
        node = graph.call_function(like.target, args)  # type: ignore[arg-type]
        node.meta["val"] = value
        return node

    def quantized(source: Node, like: Node) -> Node:
        """Quantize ``source`` with the scale of the quantize node ``like``, and dequantize it."""
        value = source.meta["val"]
        codes = graph.call_function(torch.ops.quantized_decomposed.quantize_per_tensor.default, (source, *like.args[1:6]))
        codes.meta["val"] = torch.empty(value.shape, dtype=like.args[5], device="meta")  # type: ignore[arg-type]
        floats = graph.call_function(torch.ops.quantized_decomposed.dequantize_per_tensor.default, (codes, *like.args[1:6]))
        floats.meta["val"] = value
        return floats

    all_frames = graph.placeholder("frames")
    all_frames.meta["val"] = torch.empty(shape, device="meta")
    frames = quantized(all_frames, quantize)
    state: dict[str, Node] = {}
    outputs = []
    for number in range(count):
        value = torch.empty(given.meta["val"].shape, device="meta")
        extent = value.shape[axis]
        frame = graph.call_function(torch.ops.aten.slice.Tensor, (frames, axis, number * extent, (number + 1) * extent))
        frame.meta["val"] = value
        copies: dict[Node, Node] = {given: frame}
        for node in module.graph.nodes:
            if node.op == "get_attr" and str(node.target) in state:
                copies[node] = state[str(node.target)]
            elif node.op in ("get_attr", "call_function") and node not in writes.values():
                copies[node] = graph.node_copy(node, copies.__getitem__)
        state = {name: copies[write.args[1]] for name, write in writes.items()}  # type: ignore[index]
        outputs.append(copies[returned])
    joined = graph.call_function(torch.ops.aten.cat.default, (outputs, 0))
    joined.meta["val"] = torch.empty((count, *run_shape(returned)[1:]), device="meta")
    graph.output((quantized(joined, returned),))
    return GraphModule(module, graph)


def run_shape(node: Node) -> tuple[int, ...]:
    """Return the shape of a node of a converted graph. Quantize and dequantize nodes have their input's shape."""
    while "val" not in node.meta:
        (node,) = node.all_input_nodes
    return tuple(node.meta["val"].shape)
