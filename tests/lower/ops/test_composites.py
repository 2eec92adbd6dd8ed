"""Modules that become many operators: close to their float selves, and the same bits from reference model and NPU machine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ethorch import EthosUCompileSpec, sqnr_db
from ethorch.arm.quantizer import get_symmetric_quantization_config
from ethorch.lower.fx.aten_builder import MADE_FOR
from ethorch.lower.fx.node import op_name, storage_order
from ethorch.lower.ops import OPS
from ethorch.quantization.passes.context import PassContext
from ethorch.quantization.passes.pipeline import run_passes
from ethorch.tosa.serialize import serialize
from tests.helpers import ladder

Make = Callable[[], nn.Module]


class Call(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


class First(nn.Module):
    """The first result of a module."""

    def __init__(self, inner: nn.Module, **options: bool):
        super().__init__()
        self.inner, self.options = inner, options

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.inner(*inputs, **self.options)[0]


class ComputedWeights(nn.Module):
    """A recurrent layer whose weights depend on the input."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.inner, self.function = kind(8, 6), torch.rnn_tanh if kind is nn.RNN else getattr(torch, kind.__name__.lower())

    def forward(self, x: Tensor) -> Tensor:
        weights = [weight * (1 + x.mean()) for weight in self.inner._flat_weights]
        zero = x.new_zeros(1, x.shape[1], 6)
        state = (zero, zero) if isinstance(self.inner, nn.LSTM) else zero
        return self.function(x, state, weights, True, 1, 0.0, False, False, False)[0]


class LearnedPositions(nn.Module):
    """Token vectors plus a table of positions read by arange, under a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(12, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.positions(torch.arange(x.shape[1]))
        mask = torch.triu(torch.full((x.shape[1], x.shape[1]), -12.0), 1)
        return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


CASES: dict[str, tuple[Make, list[tuple[int, ...]], float]] = {
    "lstm": (lambda: First(nn.LSTM(12, 16, batch_first=True)), [(1, 8, 12)], 28),
    "lstm_two_layers_both_ways": (lambda: First(nn.LSTM(8, 12, 2, bidirectional=True)), [(5, 2, 8)], 24),
    "gru": (lambda: First(nn.GRU(12, 16, batch_first=True)), [(2, 8, 12)], 26),
    "rnn": (lambda: First(nn.RNN(12, 16, batch_first=True, nonlinearity="relu")), [(1, 6, 12)], 28),
    "multihead": (lambda: First(nn.MultiheadAttention(16, 4, batch_first=True), need_weights=False), [(2, 9, 16)] * 3, 24),
    "attention_weights": (lambda: First(nn.MultiheadAttention(16, 4, batch_first=True)), [(2, 9, 16)] * 3, 24),
    "positions_and_causal_mask": (LearnedPositions, [(1, 10, 16)], 22),
    "encoder_layer": (lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), [(1, 8, 16)], 24),
    "group_norm": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.SiLU()), [(1, 3, 9, 9)], 28),
    "instance_norm": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True)), [(2, 3, 9, 9)], 28),
    "rms_norm": (lambda: nn.Sequential(nn.Linear(12, 24), nn.RMSNorm(24), nn.Linear(24, 8)), [(1, 7, 12)], 28),
    "einsum": (lambda: Call(lambda x: torch.einsum("nkctv,kvw->nctw", x, torch.ones(2, 3, 3))), [(1, 2, 2, 5, 3)], 28),
    "pixel_shuffle": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.PixelShuffle(2), nn.Conv2d(2, 4, 3)), [(1, 3, 8, 8)], 28),
    "logistic_pieces": (lambda: Call(lambda x: F.glu(x, 1) + F.cosine_similarity(x[:, :4], x[:, 4:], 1)[:, None]), [(2, 8, 6)], 24),
    "shift_and_flip": (lambda: Call(lambda x: torch.cat([x.roll(1, -1), x.flip(2)], 1).unfold(-1, 3, 2)), [(1, 3, 5, 9)], 28),
    "upsampled": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(6, 4, 3)),
        [(1, 3, 8, 8)], 26,
    ),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(2, 6, 3, padding=1), nn.ReLU(), nn.AvgPool3d(2)), [(1, 2, 4, 6, 6)], 26),
    "reflected": (lambda: nn.Sequential(nn.ReflectionPad2d(2), nn.Conv2d(3, 6, 5), nn.AdaptiveMaxPool2d(3)), [(1, 3, 8, 8)], 26),
}  # fmt: skip


def inputs_for(shapes: list[tuple[int, ...]], seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


#: On U85 by default: a recurrence, attention, a norm, three dimensions, a resize. The others are on U55.
ON_U85 = ("gru", "encoder_layer", "group_norm", "conv3d", "upsampled")


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(name, target, marks=[pytest.mark.long] * ((name in ON_U85) != ("u85" in target)))
        for name in CASES
        for target in ("ethos-u55-128", "ethos-u85-256")
    ],
)
def test_composite(name: str, target: str) -> None:
    make, shapes, wanted_sqnr = CASES[name]
    torch.manual_seed(3)
    module = make().eval()
    calibration = [inputs_for(shapes, seed) for seed in range(4)]
    q = ladder.quantized(module, calibration, get_symmetric_quantization_config(), target)
    assert not ladder.refusal_ids(q.converted, target)
    tosa = serialize(ladder.lowered(q.converted, target))
    codes = q.input_codes(calibration[0])
    (found,) = ladder.reference(tosa, codes)
    for machine in ladder.machine(tosa, codes, EthosUCompileSpec(target)):
        np.testing.assert_array_equal(machine.ravel(), found.ravel())
    dequantize = q.converted.graph.output_node().args[0][0]  # type: ignore[index]
    scale, zero = dequantize.args[1:3]
    with torch.no_grad():
        expected = module(*calibration[0])
    order = storage_order(dequantize.meta["val"])
    real = torch.from_numpy((found.astype(np.float32) - zero) * scale).reshape([expected.shape[d] for d in order])
    assert sqnr_db(expected.permute(order), real) > wanted_sqnr


@pytest.mark.parametrize(("layer", "tables"), [(nn.LSTM(8, 6), 15), (nn.GRU(8, 6), 11), (nn.RNN(8, 6), 5)], ids=str)
def test_gates_with_equal_activations_are_computed_together(layer: nn.Module, tables: int) -> None:
    calibration = [inputs_for([(5, 1, 8)], seed) for seed in range(2)]
    q = ladder.quantized(First(layer), calibration, get_symmetric_quantization_config())
    assert sum(op.name == "TABLE" for op in ladder.lowered(q.converted, "ethos-u55-128").ops) == tables


@pytest.mark.parametrize("rows", [slice(0, 4), slice(3, 7)])
@pytest.mark.parametrize("function", [lambda x: F.rms_norm(x, [6]), lambda x: F.layer_norm(x, [6]), lambda x: x.log_softmax(-1)])
def test_slices_before_unfused_rescales(function: Callable[[Tensor], Tensor], rows: slice) -> None:
    """Vela's bug vela.lone-rescale-of-move."""
    calibration = [inputs_for([(2, 8, 6)], seed) for seed in range(2)]
    q = ladder.quantized(Call(lambda x: function(x[:, rows])), calibration, get_symmetric_quantization_config())
    ladder.climb(q, calibration[0])


@pytest.mark.parametrize(
    "function",
    [
        lambda m, a, b, p: (m, torch.where(m | p, a, b)),
        lambda m, a, b, p: (m, torch.where(m & p, a, b), m ^ p),
        lambda m, a, b, p: (m | p, torch.where(~(m | p), a, b)),
        lambda m, a, b, p: (m.reshape(8, 8), torch.where(m.reshape(8, 8) ^ p.reshape(8, 8), a.reshape(8, 8), b.reshape(8, 8)), m),
    ],
)
def test_truths_that_are_read_and_returned(function: Callable[..., tuple[Tensor, ...]]) -> None:
    """Vela's bug vela.bool-output-that-is-read."""

    class Compare(nn.Module):
        def forward(self, a: Tensor, b: Tensor, p: Tensor) -> tuple[Tensor, ...]:
            return function(a > b, a, b, p)

    torch.manual_seed(5)
    calibration = [(torch.randn(1, 4, 4, 4), torch.randn(1, 4, 4, 4), torch.rand(1, 4, 4, 4) > 0.5) for _ in range(2)]
    q = ladder.quantized(Compare(), calibration, get_symmetric_quantization_config(), "ethos-u85-256")
    ladder.climb(q, calibration[0], "ethos-u85-256", tolerance=256)  # one step of an input is another choice


def decomposed(module: nn.Module, *inputs: Tensor) -> torch.fx.GraphModule:
    return run_passes(torch.export.export(module.eval(), inputs).module(check_guards=False), PassContext())


class Each(nn.Module):
    """Calls side by side, each of its own inputs: one export for all of them."""

    def __init__(self, *calls: nn.Module):
        super().__init__()
        self.calls = nn.ModuleList(calls)

    def forward(self, *inputs: tuple[Tensor, ...]) -> list[Tensor | tuple[Tensor, ...]]:
        return [call(*own) for call, own in zip(self.calls, inputs, strict=True)]


@pytest.mark.parametrize("samples", [1, pytest.param(None, marks=pytest.mark.long)], ids=["first", "all"])
def test_every_decomposition_computes_the_same(samples: int | None) -> None:
    for spec in {spec.name: spec for spec in OPS.values()}.values():
        if spec.decompose is None:
            continue
        module = Each(*(ladder.Call(spec.name, sample) for sample in spec.samples[:samples]))
        inputs = [ladder.inputs_for(sample, 0) for sample in spec.samples[:samples]]
        torch.testing.assert_close(decomposed(module, *inputs)(*inputs), module(*inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.group_norm(x[:, 2:], 2),
        lambda x: F.instance_norm(x[:, 1:]),
        lambda x: F.group_norm(x.transpose(1, 2), 4),
        lambda x: F.pixel_shuffle(x[:, 2:], 2),
        lambda x: F.channel_shuffle(x[:, 2:], 2),
        lambda x: F.avg_pool3d(x[:, 2:], 2),
        lambda x: F.layer_norm(x.transpose(1, 3), [8, 6]),
    ],
)
def test_of_what_is_not_contiguous(function: Callable[[Tensor], Tensor]) -> None:
    """A slice, a transpose: PyTorch has no view of some of them."""
    x = torch.randn(2, 6, 8, 8, generator=torch.Generator().manual_seed(1))
    module = Call(function)
    torch.testing.assert_close(decomposed(module, x)(x), module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_with_computed_weights(kind: type[nn.RNNBase]) -> None:
    x, module = torch.randn(3, 1, 8, generator=torch.Generator().manual_seed(1)), ComputedWeights(kind)
    torch.testing.assert_close(decomposed(module, x)(x), module(x), rtol=1e-4, atol=1e-5)


def test_constants_never_become_operators() -> None:
    graph = decomposed(LearnedPositions(), torch.randn(1, 10, 16)).graph
    names = {op_name(node.target) for node in graph.nodes if node.op == "call_function"}
    assert not names & {"aten.arange.default", "aten.full.default", "aten.triu.default", "aten.ones.default"}


def test_drawn_nodes_say_where_they_come_from() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x)

    module = decomposed(Block(), torch.randn(2, 8))
    drawn = [node for node in module.graph.nodes if node.op == "call_function"]
    assert {node.meta[MADE_FOR][1] for node in drawn} == {torch.ops.aten.layer_norm.default}
    assert all("norm" in str(node.meta["nn_module_stack"]) and node.meta["stack_trace"] for node in drawn)
    assert {"norm.weight", "norm.bias"} <= set(dict(module.named_parameters()))


def test_what_nobody_quantizes_stays_whole() -> None:
    graph = torch.export.export(nn.Softmax(-1), (torch.randn(2, 8),)).module(check_guards=False)
    run_passes(graph, PassContext(is_excluded=lambda node: True))
    assert [op_name(node.target) for node in graph.graph.nodes if node.op == "call_function"] == ["aten.softmax.int"]


def test_matmul_with_a_parameter_is_a_linear_layer() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(8, 5))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.w

    x = torch.randn(3, 8)
    module = Product()
    made = decomposed(module, x)
    assert "aten.linear.default" in {op_name(node.target) for node in made.graph.nodes}
    torch.testing.assert_close(made(x), module(x))
    assert [p.shape for p in made.parameters()] and (5, 8) in [tuple(p.shape) for p in made.parameters()]


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_dividing_by_a_code_of_zero_gives_the_end_of_the_range(target: str) -> None:
    """Small divisors become the code 0, and fake quantization makes infinity of x / 0."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(3, 900, generator=generator) * 2000 - 1000 for _ in range(2))
    q = ladder.quantized(Call(torch.floor_divide), [(x, y)], target=target)
    codes = q.input_codes((x, y))
    tosa = serialize(ladder.lowered(q.converted, target))
    (want,), (found,) = q.output_codes((x, y)), ladder.reference(tosa, codes)
    assert (want >= 127).any() and (want <= -128).any()
    known = (codes[1] != 0) | (np.abs(want) > 100)  # 0 / 0 is no number
    assert np.abs(want - found)[known].max() <= 1
    np.testing.assert_array_equal(ladder.machine(tosa, codes, EthosUCompileSpec(target))[0].ravel(), found.ravel())
