"""The quantizer's documented interface, a test per sentence."""

from __future__ import annotations

import copy
import inspect
import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

import ethorch
from ethorch import EthosUCompileSpec, EthosUQuantizer, QuantizationConfig, sqnr_db
from ethorch.arm import ArmCompileSpecBuilder, TOSAQuantizer
from ethorch.arm.quantizer import (
    get_symmetric_a8w4_quantization_config,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
    get_uint8_io_quantization_config,
)
from ethorch.quantization.activation_observer import ActivationObserver
from ethorch.quantization.specs import is_annotated
from ethorch.support.errors import QuantizationError
from tests.helpers.quantized import IMAGE, Small, dtypes, exported, is_quantized, prepared, quantized, quantizer, samples

INT8 = get_symmetric_quantization_config()
INT16 = get_symmetric_a16w8_quantization_config()
aten = torch.ops.aten


def by() -> EthosUQuantizer:
    return EthosUQuantizer(EthosUCompileSpec("ethos-u55-128"))


def small(quantizer: EthosUQuantizer) -> torch.fx.GraphModule:
    return quantized(Small(), samples(IMAGE), quantizer).module


CONVS = ("conv2d", "conv2d_1", "conv2d_2")


def which(graph: torch.fx.GraphModule) -> list[str]:
    return [name for name in (*CONVS, "linear") if is_quantized(graph, name)]


class Gate(nn.Module):
    """Only the sigmoid has a module."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Sigmoid()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.gate(x + y) * x


#: Setters and the operators that are quantized then. ExecuTorch's Arm backend delegates the same ones.
GATES: dict[str, tuple[list[tuple[Any, ...]], list[str]]] = {
    "all": ([("set_global", INT8)], ["add", "sigmoid", "mul"]),
    "a type in float": ([("set_global", INT8), ("set_module_type", nn.Sigmoid, None)], ["add", "mul"]),
    "a name in float": ([("set_global", INT8), ("set_module_name", "gate", None)], ["add", "mul"]),
    "only a type": ([("set_module_type", nn.Sigmoid, INT8)], ["sigmoid"]),
    "only a name": ([("set_global", None), ("set_module_name", "gate", INT8)], ["sigmoid"]),
    "a type in 16 bits": ([("set_global", INT8), ("set_module_type", nn.Sigmoid, INT16)], ["add", "sigmoid", "mul"]),
    "operators by the list": ([("set_node_name", ["add", "mul"], INT8)], ["add", "mul"]),
    "no config of inputs and outputs": ([("set_global", INT8), ("set_io", None)], ["add", "sigmoid", "mul"]),
    "only inputs and outputs": ([("set_io", INT8)], []),
}


@pytest.mark.parametrize(("settings", "expected"), GATES.values(), ids=GATES)
def test_an_operator_never_follows_a_neighbor_into_float(settings: list[tuple[Any, ...]], expected: list[str]) -> None:
    q = by()
    for name, *args in settings:
        getattr(q, name)(*args)
    graph = prepared(Gate(), samples((2, 4), (2, 4)), q)
    assert [node.name for node in graph.graph.nodes if node.op == "call_function" and is_annotated(node)] == expected


def test_the_list_form_of_a_compile_spec_is_accepted() -> None:
    compile_spec = ArmCompileSpecBuilder().ethosu_compile_spec("ethos-u85-256", memory_mode="Shared_Sram").build()
    for q in (EthosUQuantizer(compile_spec), TOSAQuantizer(compile_spec, use_composable_quantizer=False)):
        assert q.compile_spec == EthosUCompileSpec("ethos-u85-256", memory_mode="Shared_Sram")
        assert str(q.tosa_spec) == "TOSA-1.0+INT+int16+int4+cf" and not q.tosa_spec.is_U55_subset
        assert q.set_global(INT8).global_config is INT8
    assert EthosUCompileSpec("ethos-u65-256").tosa_spec.is_U55_subset
    tosa = ArmCompileSpecBuilder().tosa_compile_spec("TOSA-1.0+INT").build()
    assert str(TOSAQuantizer(tosa).tosa_spec) == "TOSA-1.0+INT"


class FloatInputsOfMul(QuantizationConfig):
    """A config that chooses a spec for each operator."""

    def get_input_act_qspec(self, node: Node | None = None, input_node: Node | None = None) -> Any:
        if node is not None and node.target is aten.mul.Tensor:
            return None
        return super().get_input_act_qspec(node, input_node)


def test_a_config_can_choose_a_spec_for_each_operator() -> None:
    config = FloatInputsOfMul(INT8.input_activation, INT8.output_activation, INT8.weight, None, "a label")
    graph = prepared(Gate(), samples((2, 4), (2, 4)), by().set_global(config))
    specs = {node.name: node.meta["quantization_annotation"] for node in graph.graph.nodes if is_annotated(node)}
    assert specs["add"].input_qspec_map and not specs["mul"].input_qspec_map
    assert config.get_bias_qspec() is None and config.get_weight_qspec(None) is INT8.weight


def test_operators_of_several_devices_are_refused() -> None:
    graph = torch.fx.symbolic_trace(Gate())
    for node, device in zip(graph.graph.nodes, ("cpu", "meta"), strict=False):
        node.meta["val"] = torch.empty(1, device=device)
    with pytest.raises(ValueError, match=r"Quantizer detected operator add .* cpu, meta"):
        by().validate(graph)


def test_setters_chain() -> None:
    q = by()
    for setter, args in (
        ("set_global", (INT8,)),
        ("set_io", (INT8,)),
        ("set_module_name", ("a", INT8)),
        ("set_module_type", (nn.Conv2d, INT8)),
        ("set_node_name", ("add", INT8)),
        ("set_node_target", (aten.add.Tensor, INT8)),
        ("set_node_finder", (INT8, lambda m: [])),
    ):
        assert getattr(q, setter)(*args) is q


def test_global_quantizes_everything() -> None:
    graph = small(by().set_global(INT8))
    assert which(graph) == [*CONVS, "linear"]
    assert sqnr_db(Small().eval()(*samples(IMAGE)[0]), graph(*samples(IMAGE)[0])) > 25


def test_without_a_setting_nothing_is_quantized_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        graph = small(by())
    assert which(graph) == [] and "[quantize.nothing]" in caplog.text


def test_module_name_quantizes_what_lies_under_it() -> None:
    assert which(small(by().set_module_name("blocks.1", INT8))) == ["conv2d_2"]
    assert which(small(by().set_module_name("blocks", INT8))) == ["conv2d_1", "conv2d_2"]


def test_module_name_none_leaves_float() -> None:
    assert which(small(by().set_global(INT8).set_module_name("blocks", None))) == ["conv2d", "linear"]


def test_module_type_by_class_and_by_name() -> None:
    assert which(small(by().set_module_type(Small.Block, INT8))) == ["conv2d_1", "conv2d_2"]
    assert which(small(by().set_module_type("Linear", INT8))) == ["linear"]
    assert which(small(by().set_global(INT8).set_module_type(nn.Conv2d, None))) == ["linear"]


def test_node_name_node_target_node_finder() -> None:
    assert which(small(by().set_node_name("conv2d_1", INT8))) == ["conv2d_1"]
    assert which(small(by().set_node_target(aten.linear.default, INT8))) == ["linear"]
    assert which(small(by().set_node_finder(INT8, lambda m: [n for n in m.graph.nodes if n.name == "conv2d"]))) == ["conv2d"]

    class Finder:
        def find_nodes(self, model: torch.fx.GraphModule) -> Any:
            return (n for n in model.graph.nodes if n.target is aten.conv2d.default)

    assert which(small(by().set_global(INT8).set_node_finder(None, Finder()))) == ["linear"]


def find_conv2d_1(model: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [n for n in model.graph.nodes if n.name == "conv2d_1"]


#: Narrowest first: each setting quantizes conv2d_1 (blocks.0.conv).
ORDER: list[tuple[str, tuple[Any, ...]]] = [
    ("set_node_name", ("conv2d_1",)),
    ("set_node_finder", (find_conv2d_1,)),
    ("set_node_target", (aten.conv2d.default,)),
    ("set_module_name", ("blocks.0.conv",)),
    ("set_module_name", ("blocks",)),
    ("set_module_type", (nn.Conv2d,)),
    ("set_module_type", (Small.Block,)),
    ("set_global", ()),
]


@pytest.fixture(scope="module")
def graph() -> torch.fx.GraphModule:
    return exported(Small(), samples(IMAGE)[0])


@pytest.mark.parametrize("index", range(len(ORDER) - 1))
@pytest.mark.parametrize("narrow_is_none", [True, False])
def test_narrower_wins_whatever_the_order_of_calls(index: int, narrow_is_none: bool, graph: torch.fx.GraphModule) -> None:
    (narrow, narrow_args), (wide, wide_args) = ORDER[index], ORDER[index + 1]

    def call(q: EthosUQuantizer, setter: str, args: tuple[Any, ...], config: Any) -> None:
        getattr(q, setter)(*((config, *args) if setter == "set_node_finder" else (*args, config)))

    configs = {narrow + str(narrow_args): None if narrow_is_none else INT8, wide + str(wide_args): INT8 if narrow_is_none else None}
    for settings in (ORDER[index : index + 2], ORDER[index : index + 2][::-1]):
        q = by()
        for setter, args in settings:
            call(q, setter, args, configs[setter + str(args)])
        model = q.transform_for_annotation(copy.deepcopy(graph))
        node = next(n for n in model.graph.nodes if n.name == "conv2d_1")
        assert q.settings.of(model)(node) is (None if narrow_is_none else INT8)


def test_the_last_finder_wins() -> None:
    q = by().set_node_finder(INT8, find_conv2d_1).set_node_finder(None, find_conv2d_1)
    model = exported(Small(), samples(IMAGE)[0])
    assert q.settings.of(model)(find_conv2d_1(model)[0]) is None


@pytest.mark.parametrize(
    ("setter", "args", "near"),
    [
        ("set_module_name", ("block.0",), "blocks.0"),
        ("set_module_name", ("sequential.conv",), "blocks.0.conv"),
        ("set_module_type", (nn.Conv1d,), "torch.nn.modules.conv.Conv2d"),
        ("set_node_name", ("conv2d_9",), "conv2d_1"),
        ("set_node_target", (aten.conv1d.default,), "aten.conv2d.default"),
    ],
)
def test_what_matches_nothing_is_a_warning_with_near_misses(
    setter: str, args: tuple[Any, ...], near: str, caplog: pytest.LogCaptureFixture
) -> None:
    q = by().set_global(INT8)
    getattr(q, setter)(*args, None)
    with caplog.at_level(logging.WARNING):
        prepare_pt2e(exported(Small(), samples(IMAGE)[0]), q)
    messages = [r.getMessage() for r in caplog.records if r.getMessage().startswith(setter)]
    assert (
        len(messages) == 1 and messages[0].endswith("[selection.no_match]") and near in messages[0].partition("Similar names:")[2]
    )


def test_a_finder_that_finds_nothing_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        prepare_pt2e(exported(Small(), samples(IMAGE)[0]), by().set_global(INT8).set_node_finder(None, lambda model: []))
    (message,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("set_node_finder")]
    assert message.endswith("[selection.no_match]")


def test_io_of_another_dtype() -> None:
    graph = small(by().set_global(INT8).set_io(get_uint8_io_quantization_config()))
    nodes = list(graph.graph.nodes)
    first = next(n for n in nodes if "quantize_per_tensor" in str(n.target))
    (last,) = graph.graph.output_node().all_input_nodes
    assert first.args[0].op == "placeholder" and first.args[3:6] == (0, 255, torch.uint8)
    assert last.args[3:6] == (0, 255, torch.uint8)
    assert dtypes(graph) == {torch.uint8, torch.int8}
    x = samples(IMAGE)[0]
    assert sqnr_db(Small().eval()(*x), graph(*x)) > 25


def test_io_none_leaves_it_to_the_operators() -> None:
    assert dtypes(small(by().set_global(INT8).set_io(None))) == {torch.int8}


def test_io_int16_around_int8() -> None:
    assert dtypes(small(by().set_global(INT8).set_io(INT16))) == {torch.int16, torch.int8}


def test_a_module_with_guards() -> None:
    q = by().set_global(INT8)
    graph = quantized(Small(), samples(IMAGE), q, guards=True).module
    assert which(graph) == [*CONVS, "linear"]
    torch.export.export(graph, samples(IMAGE)[0])


def test_tosa_quantizer_takes_specifications_and_compile_specs() -> None:
    for spec in ("TOSA-1.0+INT", "TOSA-1.0+INT+int16+int4", EthosUCompileSpec("ethos-u55-128")):
        q = TOSAQuantizer(spec).set_global(INT8)
        assert which(quantized(Small(), samples(IMAGE), q).module) == [*CONVS, "linear"]  # type: ignore[arg-type]
    assert issubclass(EthosUQuantizer, TOSAQuantizer)


# --- configs ---------------------------------------------------------------------------------------------------------


def test_per_channel_or_per_tensor_weights() -> None:
    per_channel = small(by().set_global(get_symmetric_quantization_config(is_per_channel=True)))
    per_tensor = small(by().set_global(get_symmetric_quantization_config(is_per_channel=False)))
    assert any("per_channel" in str(n.target) for n in per_channel.graph.nodes)
    assert not any("per_channel" in str(n.target) for n in per_tensor.graph.nodes)


@pytest.mark.parametrize("make", [get_symmetric_a16w8_quantization_config, get_symmetric_a8w4_quantization_config])
def test_the_other_schemes_take_the_same_arguments(make: Any) -> None:
    per_tensor = small(by().set_global(make(is_per_channel=False, is_qat=False)))
    assert not any("per_channel" in str(n.target) for n in per_tensor.graph.nodes)
    if make is get_symmetric_a16w8_quantization_config:
        with pytest.raises(QuantizationError, match=r"\[config\.dynamic_int16\]"):
            make(is_dynamic=True)
    else:
        dynamic = small(by().set_global(make(is_qat=False, is_dynamic=True)))
        assert any("choose_qparams" in str(n.target) for n in dynamic.graph.nodes)
    assert make(is_qat=True).is_qat and not make(is_qat=False).is_qat
    observers = prepared(
        Small(), samples(IMAGE), by().set_global(make(is_qat=False, calibration="minmax", weight_calibration="max"))
    )
    assert {m.method for m in observers.modules() if hasattr(m, "method")} == {"minmax", "max"}


def test_a16w8_weight_codes_are_kept() -> None:
    graph = small(by().set_global(get_symmetric_a16w8_quantization_config(weight_qmin=-15, weight_qmax=15, eps=2.0**-20)))
    assert {int(b.abs().max()) for name, b in graph.named_buffers() if "frozen" in name} == {15}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_uint8_int8_and_int16_programs(dtype: torch.dtype) -> None:
    config = {torch.uint8: get_uint8_io_quantization_config(), torch.int8: INT8, torch.int16: INT16}[dtype]
    graph = small(by().set_global(INT8).set_io(config))
    first = next(n for n in graph.graph.nodes if "quantize_per_tensor" in str(n.target))
    (last,) = graph.graph.output_node().all_input_nodes
    assert first.args[-1] == dtype and last.args[5] == dtype


def test_is_qat_makes_modules_that_train() -> None:
    from torchao.quantization.pt2e.fake_quantize import FakeQuantizeBase
    from torchao.quantization.pt2e.quantize_pt2e import prepare_qat_pt2e

    for config in (get_symmetric_quantization_config(is_qat=True), get_symmetric_a16w8_quantization_config(is_qat=True)):
        graph = prepare_qat_pt2e(exported(Small(), samples(IMAGE)[0]), by().set_global(config))
        found = [m for m in graph.modules() if isinstance(m, FakeQuantizeBase)]
        assert found and not any(isinstance(m, ActivationObserver) for m in graph.modules())
        graph(*samples(IMAGE)[0]).sum().backward()
        assert all(p.grad is not None for p in graph.parameters())


@pytest.mark.parametrize("is_per_channel", [True, False])
def test_a_trained_weight_has_the_scale_of_what_it_is_now(is_per_channel: bool) -> None:
    spec = get_symmetric_quantization_config(is_per_channel, is_qat=True).weight
    assert spec is not None
    fake = spec.observer_or_fake_quant_ctr(**({"ch_axis": 0} if is_per_channel else {}))
    for size in (8.0, 2.0):
        fake(torch.full((3, 4), size))
    torch.testing.assert_close(fake.scale * 127, torch.full_like(fake.scale, 2.0))


def test_code_ranges_are_kept() -> None:
    config = get_symmetric_quantization_config(act_qmin=-100, act_qmax=90, weight_qmin=-31, weight_qmax=31)
    graph = small(by().set_global(config))
    bounds = {n.args[3:5] for n in graph.graph.nodes if "quantize_per_tensor" in str(n.target)}
    assert bounds == {(-100, 90)}
    weights = [b for name, b in graph.named_buffers() if "frozen" in name]
    assert weights and all(int(w.min()) >= -31 and int(w.max()) <= 31 for w in weights)
    assert max(int(w.abs().max()) for w in weights) == 31


@pytest.mark.parametrize("wrong", [{"act_qmin": -129}, {"act_qmax": 128}, {"weight_qmin": 5}, {"weight_qmax": -1}, {"act_qmin": 3}])
def test_code_ranges_outside_int8_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(QuantizationError, match=r"within -128\.\.127.*\[config\.range\]"):
        get_symmetric_quantization_config(**wrong)  # type: ignore[arg-type]


def test_eps_is_the_least_scale() -> None:
    graph = small(by().set_global(get_symmetric_quantization_config(eps=0.5)))
    assert all(n.args[1] >= 0.5 for n in graph.graph.nodes if "quantize_per_tensor" in str(n.target))


def test_dynamic_ranges_are_found_at_run_time() -> None:
    graph = small(by().set_global(get_symmetric_quantization_config(is_dynamic=True)))
    assert any("choose_qparams" in str(n.target) for n in graph.graph.nodes)
    x = samples(IMAGE)[0]
    assert sqnr_db(Small().eval()(*x), graph(*x)) > 25


def test_a16w8_is_int16_and_far_more_accurate() -> None:
    x = samples(IMAGE)[0]
    wanted = Small().eval()(*x)
    graph = small(by().set_global(get_symmetric_a16w8_quantization_config()))
    assert dtypes(graph) == {torch.int16}
    assert {n.args[2:5] for n in graph.graph.nodes if "quantize_per_tensor" in str(n.target)} == {(0, -32767, 32767)}
    assert sqnr_db(wanted, graph(*x)) > sqnr_db(wanted, small(quantizer())(*x)) + 6


def test_epsilon_is_eps_in_the_arm_backends_words() -> None:
    make = get_symmetric_a16w8_quantization_config
    for config in (make(epsilon=0.25), make(eps=0.25), make(eps=0.25, epsilon=0.25), make(True, False, False, -127, 127, 0.25)):
        graph = small(by().set_global(config))
        assert all(n.args[1] >= 0.25 for n in graph.graph.nodes if "quantize_per_tensor" in str(n.target))
    with pytest.raises(QuantizationError, match=r"\[config\.epsilon\]"):
        make(eps=0.5, epsilon=0.25)


def test_a8w4_has_fifteen_weight_codes() -> None:
    graph = small(by().set_global(get_symmetric_a8w4_quantization_config(is_qat=False)))
    weights = [b for name, b in graph.named_buffers() if "frozen" in name]
    assert {int(w.abs().max()) for w in weights} == {7}


def test_a8w4_trains_by_default() -> None:
    assert inspect.signature(get_symmetric_a8w4_quantization_config).parameters["is_qat"].default is True
    assert get_symmetric_a8w4_quantization_config().is_qat


def test_schemes_mix_with_a_cast_where_they_meet() -> None:
    graph = small(by().set_global(INT8).set_module_name("blocks.0", INT16))
    assert dtypes(graph) == {torch.int8, torch.int16}
    x = samples(IMAGE)[0]
    assert sqnr_db(Small().eval()(*x), graph(*x)) > 25


@pytest.mark.parametrize("method", ["mse", "minmax", "moving_average", "percentile"])
def test_every_calibration_method_reaches_the_observers(method: str) -> None:
    config = get_symmetric_quantization_config(calibration=method, percentile=99.0, averaging_constant=0.5)
    graph = prepared(Small(), samples(IMAGE), by().set_global(config))
    found = [m for m in graph.modules() if isinstance(m, ActivationObserver)]
    assert found and {(m.method, m.percentile, m.averaging_constant) for m in found} == {(method, 99.0, 0.5)}


@pytest.mark.parametrize(("argument", "value"), [("calibration", "entropy"), ("weight_calibration", "min"), ("percentile", 101.0)])
def test_unknown_calibration_is_refused(argument: str, value: Any) -> None:
    with pytest.raises(
        QuantizationError,
        match=r"expected one of .*\[calibration\.method\]|more than 50 and at most 100.*\[calibration\.percentile\]",
    ):
        get_symmetric_quantization_config(**{argument: value})


def test_every_public_name_has_documentation() -> None:
    for name in ethorch.__all__:
        thing = getattr(ethorch, name)
        assert inspect.getdoc(thing), name
        if inspect.isclass(thing) and issubclass(thing, TOSAQuantizer):
            for member, value in vars(TOSAQuantizer).items():
                if not member.startswith("_") and callable(value):
                    assert inspect.getdoc(value), member


# --- models users write ----------------------------------------------------------------------------------------------


class Everything(nn.Module):
    """Several inputs, one unused, a shared layer, a constant, dict output."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.shared = nn.Linear(6, 6)
        self.register_buffer("offset", torch.linspace(-1, 1, 6))

    def forward(self, x: Tensor, pair: dict[str, Tensor], unused: Tensor) -> dict[str, Any]:
        a = self.shared(x).relu()
        b = self.shared(pair["left"] + self.offset)
        return {"sum": a + b, "parts": (a, b * torch.tensor(0.5)), "number": 3}


def test_several_inputs_dict_output_shared_weight_constant_unused_input() -> None:
    generator = torch.Generator().manual_seed(0)
    calibration = [
        (torch.randn(2, 6, generator=generator), {"left": torch.randn(2, 6, generator=generator)}, torch.randn(3)) for _ in range(6)
    ]
    graph = quantized(Everything(), calibration).module
    found, wanted = graph(*calibration[0]), Everything()(*calibration[0])
    assert set(found) == {"sum", "parts", "number"} and found["number"] == 3 and isinstance(found["parts"], tuple)
    tensors = [{k: v for k, v in y.items() if k != "number"} for y in (wanted, found)]
    assert sqnr_db(*tensors) > 30
    assert len({id(b) for name, b in graph.named_buffers() if "frozen" in name and b.dim() == 2}) == 1
    torch.export.export(graph, calibration[0])


def test_in_place_operators_cost_nothing() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            y[:, :4] += 1
            y.relu_()
            y[:, 2:5].clamp_(max=0.7)
            return y * 2

    calibration = samples(IMAGE)
    graph = quantized(InPlace(), calibration).module
    assert sqnr_db(InPlace()(*calibration[0]), graph(*calibration[0])) > 30


def test_uncalibrated_is_an_error() -> None:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

    graph = prepare_pt2e(exported(Small(), samples(IMAGE)[0]), quantizer())
    with pytest.raises(
        QuantizationError, match=r"(observed no calibration input|was not observed).*before convert_pt2e.*\[calibration\.none\]"
    ):
        convert_pt2e(graph)


def test_nan_while_calibrating_is_an_error_that_names_the_value() -> None:
    graph = prepare_pt2e(exported(Small(), samples(IMAGE)[0]), quantizer())
    with pytest.raises(QuantizationError, match=r"x contains NaN for a calibration input.*\[calibration\.nan\]"):
        graph(torch.full(IMAGE, float("nan")))


def test_values_that_are_infinite_in_all_samples_are_named(caplog: pytest.LogCaptureFixture) -> None:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

    graph = prepare_pt2e(exported(nn.ReLU(), (torch.zeros(IMAGE),)), quantizer())
    graph(torch.full(IMAGE, float("inf")))
    convert_pt2e(graph)
    assert "input_1 is infinite for all calibration inputs" in caplog.text and "[calibration.infinite]" in caplog.text


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("name", ["0.weight", "0.bias"])
def test_parameters_that_are_not_finite_are_refused(name: str, number: float) -> None:
    model = nn.Sequential(nn.Linear(8, 4))
    model.get_parameter(name).data.view(-1)[1] = number
    with pytest.raises(QuantizationError, match=rf"^{name}: expected finite .*, got {number} \(1 of .*quantize\.parameter"):
        prepare_pt2e(exported(model, (torch.zeros(2, 8),)), quantizer())


@pytest.mark.parametrize("training", [False, True])
def test_configs_that_were_made_alike_are_equal(training: bool) -> None:
    made = get_symmetric_quantization_config(is_qat=training), get_symmetric_quantization_config(is_qat=training)
    assert made[0] == made[1] != get_symmetric_quantization_config(is_qat=training, act_qmin=-127)
