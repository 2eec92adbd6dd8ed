"""Where observers sit: what the NPU does in one step is observed once, moved data shares qparams, known ranges are fixed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import HistogramObserver, MinMaxObserver, PerChannelMinMaxObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e
from torchao.quantization.pt2e.quantizer import QuantizationSpec

from ethorch import sqnr_db
from ethorch.arm.quantizer import get_symmetric_a16w8_quantization_config, get_symmetric_quantization_config
from ethorch.quantization.activation_observer import ActivationObserver
from ethorch.quantization.config import QuantizationConfig
from tests.helpers.ladder import refusal_ids
from tests.helpers.quantized import Inputs, prepared, quantized, quantizer, samples

INT8 = get_symmetric_quantization_config()
INT16 = get_symmetric_a16w8_quantization_config()


class Model(nn.Module):
    """The function, with layers it may use."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.conv, self.up, self.linear = nn.Conv2d(4, 4, 3, padding=1), nn.ConvTranspose2d(4, 4, 2, 2), nn.Linear(8, 8)
        self.layer_norm, self.group_norm, self.batch_norm = nn.LayerNorm(8), nn.GroupNorm(2, 4), nn.BatchNorm2d(4)
        for norm in (self.layer_norm, self.group_norm, self.batch_norm):
            nn.init.normal_(norm.weight, 1.0, 0.2)
            nn.init.normal_(norm.bias)
        self.rms_norm = nn.RMSNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.gru, self.lstm = nn.GRU(8, 6, batch_first=True), nn.LSTM(8, 6, batch_first=True)

    def forward(self, *args: Tensor) -> Any:
        return self.function(self, *args)


MAP = (1, 4, 8, 8)
Function = Callable[..., Any]


def calibrated(function: Function, shapes: Sequence[Sequence[int]] = (MAP,), config: QuantizationConfig = INT8) -> GraphModule:
    return prepared(Model(function).eval(), samples(*shapes), quantizer(config))


def observed(graph: GraphModule) -> list[Node]:
    """Values that an observer with a range of its own watches, in the order of the graph."""
    nodes = [n for n in graph.graph.nodes if n.op == "call_module"]
    watched = [n.args[0] for n in nodes if isinstance(graph.get_submodule(n.target), ActivationObserver)]
    return [n.args[0] if n.target is operator.getitem else n for n in watched]


def results_observed(graph: GraphModule) -> list[str]:
    """Names of the operators among them: ``conv2d``, ``relu``."""
    return [str(n.target).split(".")[1] for n in observed(graph) if n.op == "call_function"]


FUSED: dict[str, tuple[Function, int]] = {
    "conv2d": (lambda m, x: m.conv(x), 1), "conv_transpose2d": (lambda m, x: m.up(x), 1), "linear": (lambda m, x: m.linear(x), 1),
    "matmul": (lambda m, x, y: x @ y, 2), "add": (lambda m, x, y: x + y, 2), "sub": (lambda m, x, y: x - y, 2),
    "mul": (lambda m, x, y: x * y, 2), "mean": (lambda m, x: x.mean((2, 3), keepdim=True), 1),
    "layer_norm": (lambda m, x: m.layer_norm(x), 1), "group_norm": (lambda m, x: m.group_norm(x), 1),
    "batch_norm": (lambda m, x: m.batch_norm(x), 1),
}  # fmt: skip
CLAMPS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "relu": (torch.relu, "relu"), "relu6": (F.relu6, "relu6"), "clamp": (lambda x: x.clamp(-0.5, 1.0), "clamp"),
    "relu_": (torch.relu_, "relu"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "clamp", "config"),
    [
        pytest.param(name, clamp, config, marks=[pytest.mark.long] * (i > 0 and name not in ("conv2d", "layer_norm")))
        for name in FUSED
        for i, (clamp, config) in enumerate([*((clamp, INT8) for clamp in CLAMPS), ("relu", INT16)])
    ],
)
def test_a_clamp_behind_what_requantizes_is_observed_in_its_place(name: str, clamp: str, config: QuantizationConfig) -> None:
    function, inputs = FUSED[name]
    apply, target = CLAMPS[clamp]
    found = results_observed(calibrated(lambda m, *args: apply(function(m, *args)), [MAP] * inputs, config))
    assert found[-1] == target and len(found) == (2 if "_norm" in name and name != "batch_norm" else 1), found


def test_a_sum_behind_relu_uses_the_whole_range() -> None:
    graph = quantized(Model(lambda m, x, y: (x + y).relu()).eval(), samples(MAP, MAP), quantizer()).module
    last = [n for n in graph.graph.nodes if "quantize_per_tensor" in str(n.target)][-1]
    assert last.args[2] == -128, "no code is spent on negative sums"


def test_what_a_relu_leaves_of_quantized_values_is_not_rounded_again() -> None:
    def steps(function: Callable[..., Tensor]) -> set[float]:
        graph = quantized(Model(function).eval(), samples(MAP), quantizer()).module
        return {node.args[1] for node in graph.graph.nodes if "quantize_per_tensor" in str(node.target)}

    for rectified in (torch.relu, lambda x: x.clamp(min=0), lambda x: x.clamp(max=0.0), lambda x: torch.relu(F.max_pool2d(x, 2))):
        assert len(steps(lambda m, x, f=rectified: f(x))) == 1
    assert len(steps(lambda m, x: x.clamp(max=0.5))) == 2, "a bound other than zero is exact in steps of its own"
    assert len(steps(lambda m, x: torch.relu(torch.sin(x)))) == 2, "a relu that costs nothing uses all codes"


@pytest.mark.parametrize("activation", [torch.sigmoid, torch.tanh, F.gelu, F.silu, F.hardswish, torch.exp])
def test_a_table_behind_a_convolution_adds_one_observer_at_most(activation: Callable[[Tensor], Tensor]) -> None:
    graph = calibrated(lambda m, x: activation(m.conv(x)))
    found = results_observed(graph)
    assert found[0] == "conv2d" and len(found) <= 2


def test_a_chain_of_elementwise_operators_on_one_tensor_is_one_table() -> None:
    def chain(m: Model, x: Tensor) -> Tensor:
        y = m.conv(x)
        return (torch.tanh(y * 0.5 + 0.25) * y).clamp(min=-0.3).exp() / 3

    assert results_observed(calibrated(chain)) == ["conv2d", "div"]


def test_a_reader_of_a_chains_input_and_of_its_observed_result_is_no_table() -> None:
    def variance(m: Model, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.tanh(x) * 0.5
        return y, (x - y).square() * 0.25

    assert results_observed(calibrated(variance)) == ["mul", "sub", "mul"]
    assert refusal_ids(quantized(Model(variance).eval(), samples(MAP), quantizer()).converted, "ethos-u55-128") == set()


MOVES: dict[str, Function] = {
    "view": lambda m, x: x.view(1, 4, 64), "permute": lambda m, x: x.permute(0, 2, 3, 1), "slice": lambda m, x: x[:, 1:3],
    "pad": lambda m, x: F.pad(x, (1, 1)), "expand": lambda m, x: x[:, :1].expand(-1, 4, -1, -1), "flip": lambda m, x: x.flip(3),
    "max_pool2d": lambda m, x: F.max_pool2d(x, 2), "nearest": lambda m, x: F.interpolate(x, scale_factor=2.0),
    "select": lambda m, x: x[:, 2], "index_select": lambda m, x: x.index_select(1, torch.tensor([2, 0])),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_moved_data_shares_qparams(name: str) -> None:
    graph = quantized(Model(lambda m, x: MOVES[name](m, m.conv(x))).eval(), samples(MAP), quantizer()).module
    scales = [n.args[1:3] for n in graph.graph.nodes if "quantize_per_tensor" in str(n.target)]
    assert len(set(scales)) == 2, "the input's, and the convolution's"


@pytest.mark.parametrize("config", [INT8, INT16], ids=["int8", "int16"])
@pytest.mark.parametrize("number", [-1.0, 3.0, 100.0, -6000.0, 6000.0])
def test_a_padding_value_beyond_the_range_is_kept(number: float, config: QuantizationConfig) -> None:
    model = Model(lambda m, x: F.pad(m.conv(x).relu(), (1, 1), value=number)).eval()
    calibration = samples(MAP)
    found = quantized(model, calibration, quantizer(config)).module(*calibration[0])
    assert torch.allclose(found[..., 0], torch.tensor(number), rtol=0.01)
    assert sqnr_db(model(*calibration[0]), found) > 35


MAXIMA: dict[str, Callable[[Tensor, float], Tensor]] = {
    "2d": lambda x, number: F.max_pool2d(F.pad(x, (1, 1, 1, 1), value=number), 2),
    "1d": lambda x, number: F.max_pool1d(F.pad(x[:, 0], (1, 1), value=number), 2),
    "permuted": lambda x, number: F.max_pool2d(F.pad(x, (0, 0, 1, 1), value=number).transpose(2, 3), 2),
}


@pytest.mark.parametrize("name", MAXIMA)
@pytest.mark.parametrize("number", [-100.0, -1e9, float("-inf")])
def test_a_padding_value_that_only_a_maximum_reads_takes_no_part_of_the_range(name: str, number: float) -> None:
    model = Model(lambda m, x: MAXIMA[name](m.conv(x), number)).eval()
    calibration = samples(MAP)
    assert sqnr_db(model(*calibration[0]), quantized(model, calibration, quantizer()).module(*calibration[0])) > 30


@pytest.mark.parametrize(("number", "amount"), [(5.0, 1), (-1.0, 2)], ids=["largest", "only padding"])
def test_a_padding_value_that_a_maximum_returns_is_kept(number: float, amount: int) -> None:
    model = Model(lambda m, x: F.max_pool2d(F.pad(m.conv(x).relu(), (amount,) * 4, value=number), 2)).eval()
    calibration = samples(MAP)
    assert sqnr_db(model(*calibration[0]), quantized(model, calibration, quantizer()).module(*calibration[0])) > 30


def test_an_operator_with_a_buffer_for_gradients_is_quantized() -> None:
    model = Model(lambda m, x, y: F.binary_cross_entropy_with_logits(m.linear(x), y.sigmoid())).eval()
    calibration = samples((4, 8), (4, 8))
    graph = quantized(model, calibration, quantizer()).converted
    assert refusal_ids(graph, "ethos-u55-128") == set()


JOINS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cat": lambda a, b: torch.cat([a, b], 1), "stack": lambda a, b: torch.stack([a, b], 1), "minimum": torch.minimum,
    "where": lambda a, b: torch.where(a > 0, a, b), "maximum": torch.maximum,
}  # fmt: skip


@pytest.mark.parametrize("name", JOINS)
def test_joins_force_no_scale_on_their_producers(name: str) -> None:
    """One tensor is a hundred times the other, which a third operator reads as well: there it keeps its precision."""
    join = JOINS[name]

    def forward(m: Model, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        small, large = x * 0.01, m.conv(y) * x * 3
        return join(small, large), small * x

    calibration = samples(MAP, MAP)
    graph = quantized(Model(forward).eval(), calibration, quantizer()).module
    with torch.no_grad():
        wanted, found = Model(forward).eval()(*calibration[0]), graph(*calibration[0])
    assert sqnr_db(wanted[1], found[1]) > 30
    assert sqnr_db(wanted[0], found[0]) > 22


def test_biases_have_no_quantize_node() -> None:
    graph = quantized(Model(lambda m, x: m.linear(F.avg_pool2d(m.up(m.conv(x)), 2))).eval(), samples(MAP), quantizer()).module
    layers = [n for n in graph.graph.nodes if n.op == "call_function" and any(k in str(n.target) for k in ("conv", "linear"))]
    assert len(layers) == 3 and all(n.args[2].op == "get_attr" for n in layers)


@pytest.mark.parametrize(
    ("function", "scale", "zero"),
    [
        (lambda x: x.softmax(-1), 1 / 255, -128),
        (torch.sigmoid, 1 / 255, -128),
        (torch.tanh, 2 / 255, 0),
        (F.hardsigmoid, 1 / 255, -128),
    ],
    ids=["softmax", "sigmoid", "tanh", "hardsigmoid"],
)
def test_known_ranges_that_are_filled_are_fixed(function: Callable[[Tensor], Tensor], scale: float, zero: int) -> None:
    for factor in (6.0, 9.0):
        calibration = [(x * factor,) for (x,) in samples(MAP)]
        found_scale, found_zero = last_qparams(quantized(Model(lambda m, x: function(x)).eval(), calibration, quantizer()).module)
        assert found_scale == pytest.approx(scale, rel=0.01) and abs(found_zero - zero) <= 1


@pytest.mark.parametrize(
    ("function", "factor"),
    [(lambda x: x.flatten(1).softmax(-1), 0.02), (torch.tanh, 0.02), (torch.tanh, 0.12)],
    ids=["softmax", "tanh", "half of tanh"],
)
def test_known_ranges_that_would_leave_bits_idle_are_not_kept(function: Callable[[Tensor], Tensor], factor: float) -> None:
    """Probabilities over hundreds of places are a few percent each: a step of 1/256 would leave them two or three codes."""
    calibration = [(x * factor,) for (x,) in samples(MAP)]
    graph = quantized(Model(lambda m, x: function(x)).eval(), calibration, quantizer()).module
    largest = max(float(function(x).detach().abs().max()) for (x,) in calibration)
    scale, _ = last_qparams(graph)
    assert 0.5 * largest / 255 < scale < 3.2 * largest / 255
    (x,) = calibration[0]
    assert sqnr_db(function(x), graph(x)) > 30


def last_qparams(graph: torch.fx.GraphModule) -> tuple[float, int]:
    """(scale, zero point) of the last quantize node."""
    last = [n for n in graph.graph.nodes if "quantize_per_tensor" in str(n.target)][-1]
    return last.args[1], last.args[2]


SEQUENCE = (2, 5, 8)
COMPOSITES: dict[str, tuple[Function, Sequence[Sequence[int]], float]] = {
    "softmax": (lambda m, x: x.softmax(-1), [MAP], 25), "layer_norm": (lambda m, x: m.layer_norm(x), [MAP], 30),
    "group_norm": (lambda m, x: m.group_norm(x), [MAP], 30), "rms_norm": (lambda m, x: m.rms_norm(x), [MAP], 30),
    "attention": (lambda m, x: m.attention(x, x, x, need_weights=False)[0], [SEQUENCE], 25),
    "sdpa": (F.scaled_dot_product_attention, [SEQUENCE] * 3, 25), "gru": (lambda m, x: m.gru(x)[0], [SEQUENCE], 20),
    "lstm": (lambda m, x: m.lstm(x)[0], [SEQUENCE], 20),
    "einsum": (lambda m, x, y: torch.einsum("bij,bkj->bik", x, y), [SEQUENCE] * 2, 30),
    "scalars": (lambda m, x: (2 * x + 1) / 3 - x.new_tensor(0.5), [MAP], 30),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPOSITES)
def test_composites_are_calibrated_inside(name: str) -> None:
    """Every operator inside reads dequantized values, and the result is right."""
    function, shapes, decibels = COMPOSITES[name]
    if name == "sdpa":
        function = lambda m, *args: F.scaled_dot_product_attention(*args)  # noqa: E731
    calibration = samples(*shapes, count=8)
    graph = quantized(Model(function).eval(), calibration, quantizer()).module
    inner = [n for n in graph.graph.nodes if n.op == "call_function" and "quantized_decomposed" not in str(n.target)]
    with torch.no_grad():
        assert sqnr_db(Model(function).eval()(*calibration[0]), graph(*calibration[0])) > decibels
    readers = [n for n in inner if any("dequantize" in str(arg.target) for arg in n.all_input_nodes)]
    assert len(readers) >= {"scalars": 1, "rms_norm": 1, "einsum": 1, "softmax": 1, "layer_norm": 2, "group_norm": 2}.get(name, 4)


@pytest.mark.parametrize("form", ["module", "edge"])
def test_a_batch_norm_that_stays_costs_no_export_of_patterns(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """convert_pt2e takes a batch norm for training and exports 96 patterns: 10 s for a model with one layer norm."""

    def exported(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a pattern was exported")

    def function(m: Model, x: Tensor) -> Tensor:
        n, settled = m.batch_norm, torch.ops.aten._native_batch_norm_legit_no_training
        y = n(x.relu()) if form == "module" else settled(x.relu(), n.weight, n.bias, n.running_mean, n.running_var, 0.1, n.eps)[0]
        return m.layer_norm(y.relu())

    calibration: list[Inputs] = samples(MAP)
    graph = prepared(Model(function).eval(), calibration, quantizer())
    monkeypatch.setattr("torchao.quantization.pt2e.qat_utils._get_aten_graph_module_for_pattern", exported)
    converted = convert_pt2e(graph)
    with torch.no_grad():
        assert sqnr_db(Model(function).eval()(*calibration[0]), converted(*calibration[0])) > 18


def test_training_leaves_the_affine_part_of_a_layer_norm_alone() -> None:
    """It is a batch norm of fixed statistics; train() would make it normalize by the batch."""
    from torchao.quantization.pt2e import allow_exported_model_train_eval
    from torchao.quantization.pt2e.quantize_pt2e import prepare_qat_pt2e

    (x,) = samples(MAP, count=1)[0]
    model = Model(lambda m, x: m.layer_norm(x))
    config = get_symmetric_quantization_config(is_qat=True)
    graph = prepare_qat_pt2e(torch.export.export(model.train(), (x,)).module(check_guards=False), quantizer(config))
    allow_exported_model_train_eval(graph)
    graph.train()
    for _ in range(3):
        found = graph(x)
    assert sqnr_db(model(x), found) > 25
    found.sum().backward()
    assert all(p.grad is not None for name, p in graph.named_parameters() if name.startswith("layer_norm"))


# --- specs that users write --------------------------------------------------------------------------------------------


def spec_of(dtype: torch.dtype, observer: Any, **bounds: int) -> QuantizationConfig:
    """Activations as torchao's tutorials write them, weights as ethorch does."""
    scheme = torch.per_tensor_affine if dtype != torch.int16 else torch.per_tensor_symmetric
    act = QuantizationSpec(dtype=dtype, observer_or_fake_quant_ctr=observer, qscheme=scheme, **bounds)
    return QuantizationConfig(act, act, get_symmetric_quantization_config().weight)


@pytest.mark.parametrize("observer", [MinMaxObserver, HistogramObserver.with_args(eps=2**-12), ActivationObserver], ids=str)
@pytest.mark.parametrize(
    ("dtype", "bounds"),
    [
        (torch.int8, {}),
        pytest.param(torch.int8, {"quant_min": -128, "quant_max": 127}, marks=pytest.mark.long),
        (torch.int16, {}),
    ],
)
@pytest.mark.parametrize(
    "function",
    [torch.tanh, *(pytest.param(x, marks=pytest.mark.long) for x in (torch.sigmoid, lambda x: x.softmax(-1)))],
    ids=["tanh", "sigmoid", "softmax"],
)
def test_known_ranges_with_any_spec_of_torchao(
    function: Callable[[Tensor], Tensor], dtype: torch.dtype, bounds: dict[str, int], observer: Any
) -> None:
    data = samples((4, 8))
    config = spec_of(dtype, observer, **bounds)
    graph = quantized(Model(lambda m, x: function(x)), data, config).module
    (last,) = graph.graph.output_node().all_input_nodes
    info = torch.iinfo(dtype)
    assert last.args[3:6] == (info.min, info.max, dtype)
    assert sqnr_db(function(*data[0]), graph(*data[0])) > (35 if dtype == torch.int8 else 65)


def test_tanh_in_uint8_keeps_what_is_negative() -> None:
    data = samples((4, 8))
    graph = quantized(Model(lambda m, x: torch.tanh(x)), data, spec_of(torch.uint8, MinMaxObserver)).module
    assert sqnr_db(torch.tanh(*data[0]), graph(*data[0])) > 35


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions_with_a_plain_observer_of_weights(groups: int) -> None:
    """Their output channels lie on the weight's second axis, or on two: the spec's axis is changed for them."""
    weight = QuantizationSpec(
        torch.int8, PerChannelMinMaxObserver, quant_min=-127, quant_max=127, qscheme=torch.per_channel_symmetric, ch_axis=0
    )
    act = get_symmetric_quantization_config().input_activation
    layer = nn.ConvTranspose2d(4, 6, 3, groups=groups)
    data = samples((1, 4, 6, 6))
    graph = quantized(layer, data, QuantizationConfig(act, act, weight)).module
    assert sqnr_db(layer(*data[0]), graph(*data[0])) > 25
    per_channel = [n for n in graph.graph.nodes if "dequantize_per_channel" in str(n.target)]
    assert [n.args[3] for n in per_channel] == ([1] if groups == 1 else [])
