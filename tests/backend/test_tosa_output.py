"""TOSA as the output: specification, partitioner, flatbuffers that run in the reference model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import ethorch.tosa
from ethorch.arm import TosaCompileSpec, TOSAPartitioner, TOSAQuantizer, TosaSpecification
from ethorch.arm.quantizer import get_symmetric_quantization_config
from ethorch.support.errors import EthorchError, SpecError


@pytest.mark.parametrize("text", ["TOSA-1.0+INT", "TOSA-1.0+INT+int16", "TOSA-1.0+FP+bf16", "TOSA-1.1+INT+FP", "TOSA-1.0+INT+u55"])
def test_specification_text_goes_both_ways(text: str) -> None:
    spec = TosaSpecification.create_from_string(text)
    assert str(spec) == text
    assert spec.support_integer() == ("INT" in text)
    assert spec.support_float() == ("FP" in text)
    assert TosaCompileSpec.from_list(TosaCompileSpec(spec).to_list()) == TosaCompileSpec(text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("TOSA-9.0+INT", "1.0, 1.1"),
        ("TOSA-1.0", "INT, FP"),
        ("TOSA-1.0+INT+int61", "int16"),
        ("tosa 1.0", "TOSA-1.0+INT"),
        ("TOSA-1.0+FP+int16", "bf16"),
    ],
)
def test_what_is_no_specification_is_refused_with_what_is(text: str, named: str) -> None:
    with pytest.raises(SpecError) as error:
        TosaSpecification.create_from_string(text)
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("text", "named"), [("TOSA-1.0+FP+fft", "RFFT2D"), ("TOSA-1.0+FP+bf16+fp8e4m3", "FP8"), ("TOSA-1.1+FP+mxfp", "block")]
)
def test_an_extension_that_nothing_is_lowered_to_is_refused_by_name(text: str, named: str) -> None:
    """Else a user who asks for it waits for operators that never come."""
    extension = text.rpartition("+")[2]
    with pytest.raises(SpecError, match=rf"extension {extension} \(.*{named}.*\)\. Remove \+{extension}"):
        TosaSpecification.create_from_string(text)
    assert str(TosaSpecification.create_from_string(text.removesuffix(f"+{extension}"))) == text.removesuffix(f"+{extension}")
    with pytest.raises(SpecError) as error:
        TosaSpecification.create_from_string("TOSA-1.0+FP+bf61")
    assert "fft" not in str(error.value) and "bf16" in str(error.value)


def test_a_quantized_model_as_tosa(tmp_path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()
    inputs = (torch.randn(1, 3, 9, 9),)
    spec = TosaCompileSpec("TOSA-1.0+INT").dump_intermediate_artifacts_to(tmp_path)
    quantizer = TOSAQuantizer(spec).set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(torch.export.export(model, inputs).module(), quantizer)
    prepared(*inputs)
    converted = convert_pt2e(prepared)
    partitioner = TOSAPartitioner(spec)
    exported = torch.export.export(converted, inputs)
    edge = to_edge_transform_and_lower(
        exported, partitioner=[partitioner], compile_config=EdgeCompileConfig(_check_ir_validity=False)
    )
    assert partitioner.report.summary() == "5 of 5 PyTorch operators on TOSA-1.0+INT in 1 delegate"
    (delegate,) = [module for _, module in edge.exported_program().graph_module.named_children()]
    assert (tmp_path / "delegate_0.steps" / "00_as_lowered.txt").is_file()
    tosa = (tmp_path / "delegate_0.tosa").read_bytes()
    assert delegate.processed_bytes == tosa
    nodes = [node for node in converted.graph.nodes if "quantize_per_tensor" in str(node.target)]
    codes = nodes[0].target(inputs[0], *nodes[0].args[1:]).numpy()
    (found,) = ethorch.tosa.run(tmp_path / "delegate_0.tosa", [codes])
    scale, zero = nodes[-1].args[1:3]
    wanted = converted(*inputs).detach().numpy().ravel()
    np.testing.assert_allclose((found.ravel().astype(int) - zero) * scale, wanted, atol=1.01 * scale)


def test_running_what_is_no_tosa_is_an_error_and_no_abort() -> None:
    with pytest.raises(EthorchError, match="not a TOSA flatbuffer"):
        ethorch.tosa.run(b"12345678901234567890", [])
    with pytest.raises(EthorchError, match="reference model"):
        ethorch.tosa.run(b"\x10\0\0\0TOSA" + bytes(range(200)), [])


# --- floats -----------------------------------------------------------------------------------------------------------------


def lowered(model: nn.Module, inputs: tuple[torch.Tensor, ...], spec: TosaCompileSpec):
    """(partitioner, payloads of the delegates) of a model as it is."""
    partitioner = TOSAPartitioner(spec)
    edge = to_edge_transform_and_lower(
        torch.export.export(model, inputs),
        partitioner=[partitioner],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    children = edge.exported_program().graph_module.named_children()
    return partitioner, [module.processed_bytes for _, module in children]


class Recurrent(nn.Module):
    """Composites that ExecuTorch takes apart: an LSTM, attention, constants made in the graph, a cast."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 8, batch_first=True)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.lstm(x)[0])
        h = h + torch.arange(8) * 0.1
        return nn.functional.scaled_dot_product_attention(h, h, h, is_causal=True).half()


def test_a_float_model_is_one_delegate() -> None:
    torch.manual_seed(0)
    model, x = Recurrent().eval(), torch.randn(2, 4, 5)
    partitioner, (tosa,) = lowered(model, (x,), TosaCompileSpec("TOSA-1.0+FP"))
    assert not partitioner.report.refusals
    (found,) = ethorch.tosa.run(tosa, [x.numpy()])
    assert found.dtype == np.float16
    np.testing.assert_allclose(found.astype(np.float32), model(x).detach().float().numpy(), atol=2e-3)


class EqualWeights(nn.Module):
    """Two convolutions with equal weights and different biases."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.first(x), self.second(y)


def test_float_convolutions_can_have_equal_weights() -> None:
    model, inputs = EqualWeights().eval(), (torch.randn(1, 3, 6, 6), torch.randn(1, 3, 6, 6))
    _, (tosa,) = lowered(model, inputs, TosaCompileSpec("TOSA-1.0+FP"))
    results = ethorch.tosa.run(tosa, [x.numpy() for x in inputs])
    for found, expected in zip(results, model(*inputs), strict=True):
        np.testing.assert_allclose(found, expected.detach().numpy(), atol=1e-5)


class Greatest(nn.Module):
    """The CPU's topk, and what reads both of its results."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, places = torch.topk(x, 2, dim=1)
        return torch.relu(values) * 2 + values, places


def test_what_reads_one_of_several_results_of_the_cpu_is_delegated() -> None:
    model, x = Greatest(), torch.randn(3, 6)
    partitioner, (tosa,) = lowered(model, (x,), TosaCompileSpec("TOSA-1.0+FP"))
    assert {refusal.origin.target for refusal in partitioner.report.refusals} == {"aten.topk.default"}
    (found,) = ethorch.tosa.run(tosa, [torch.topk(x, 2, dim=1).values.numpy()])
    np.testing.assert_allclose(found, model(x)[0].numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "dtype", "reason"),
    [
        ("TOSA-1.0+FP", torch.bfloat16, "graph.dtype"),
        pytest.param("TOSA-1.0+FP+bf16", torch.float64, "graph.dtype", marks=pytest.mark.long),
        ("TOSA-1.0+INT", torch.float32, "graph.input_not_quantized"),
    ],
)
def test_floats_the_specification_lacks_keep_their_reason(text: str, dtype: torch.dtype, reason: str) -> None:
    partitioner, delegates = lowered(nn.Linear(4, 3).to(dtype), (torch.randn(2, 4, dtype=dtype),), TosaCompileSpec(text))
    assert not delegates
    assert reason in {refusal.reason.id for refusal in partitioner.report.refusals}


@pytest.mark.parametrize(
    ("function", "shape", "reason"),
    [
        (lambda x: torch.max(x, 1), (3, 7), "graph.int64_output"),
        pytest.param(lambda x: torch.min(x, 1)[1], (3, 7), "graph.int64_output", marks=pytest.mark.long),
        (lambda x: nn.functional.max_pool2d(x, 2, return_indices=True), (1, 3, 8, 8), "graph.other_result"),
        (lambda x: torch.ops.aten.native_layer_norm(x, [7], None, None, 1e-5), (3, 7), "graph.other_result"),
    ],
)
def test_an_operator_that_cannot_return_all_that_is_read_is_refused(function, shape: tuple[int, ...], reason: str) -> None:
    """Its float result alone could be computed, but a delegate returns all of an operator's results or none."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return function(x * 2)

    partitioner, delegates = lowered(Model(), (torch.randn(shape),), TosaCompileSpec("TOSA-1.0+FP"))
    assert len(delegates) == 1  # the product
    assert [refusal.reason.id for refusal in partitioner.report.refusals] == [reason]


def test_an_index_that_stays_inside_is_computed() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            value, index = torch.max(x, 1)
            return value + index.to(torch.float32)

    x = torch.randn(3, 7)
    partitioner, (tosa,) = lowered(Model(), (x,), TosaCompileSpec("TOSA-1.0+FP"))
    assert not partitioner.report.refusals
    np.testing.assert_array_equal(ethorch.tosa.run(tosa, [x.numpy()])[0], Model()(x).numpy())


def test_what_integers_tried_is_not_read_by_floats() -> None:
    """The comparison is a table of int8, but nothing quantizes the selection: both are computed of floats."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y, z = self.one(x), self.other(x)
            return torch.where(y > 0, z, y)

    torch.manual_seed(0)
    inputs = (torch.randn(1, 3, 4, 4),)
    spec = TosaCompileSpec("TOSA-1.0+INT+FP")
    config = get_symmetric_quantization_config()
    quantizer = TOSAQuantizer(spec).set_module_name("one", config).set_module_name("other", config)
    prepared = prepare_pt2e(torch.export.export(Model().eval(), inputs).module(), quantizer)
    prepared(*inputs)
    converted = convert_pt2e(prepared)
    partitioner, (tosa,) = lowered(converted, inputs, spec)
    assert not partitioner.report.refusals
    node = next(node for node in converted.graph.nodes if "quantize_per_tensor" in str(node.target))
    (found,) = ethorch.tosa.run(tosa, [node.target(inputs[0], *node.args[1:]).numpy()])
    steps = (found - converted(*inputs).detach().numpy()) / next(
        node.args[1] for node in reversed(converted.graph.nodes) if "dequantize_per_tensor" in str(node.target)
    )
    assert np.abs(steps).max() <= 1.01


@pytest.mark.parametrize("text", ["TOSA-1.0+INT+FP", "TOSA-1.0+FP"])
def test_a_partly_quantized_model(text: str, tmp_path) -> None:
    """The convolution is quantized, what follows is not: integers and floats in one delegate, or floats only."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 6, 3)
            self.head = nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = nn.functional.relu(self.conv(x)).mean((2, 3))
            return self.head(nn.functional.gelu(y)).softmax(-1)

    torch.manual_seed(0)
    inputs = (torch.randn(1, 3, 7, 7),)
    spec = TosaCompileSpec("TOSA-1.0+INT+FP")
    quantizer = TOSAQuantizer(spec).set_module_name("conv", get_symmetric_quantization_config())
    prepared = prepare_pt2e(torch.export.export(Model().eval(), inputs).module(), quantizer)
    prepared(*inputs)
    converted = convert_pt2e(prepared)
    partitioner, (tosa,) = lowered(converted, inputs, TosaCompileSpec(text).dump_intermediate_artifacts_to(tmp_path))
    assert not partitioner.report.refusals
    assert ("RESCALE" in (tmp_path / "delegate_0.txt").read_text()) == ("INT" in text)
    node = next(node for node in converted.graph.nodes if "quantize_per_tensor" in str(node.target))
    codes = node.target(inputs[0], *node.args[1:])
    (found,) = ethorch.tosa.run(tosa, [codes.numpy()])
    np.testing.assert_allclose(found, converted(*inputs).detach().numpy(), atol=4e-3)


class Tabulated(nn.Module):
    """Functions whose lowerings look up 16-bit codes: softmax, a layer norm, log_softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(12), nn.Linear(12, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(self.linear(self.norm(torch.softmax(x, -1))), 1)


def test_lookups_of_16_bits_need_no_int16_extension() -> None:
    """``TOSA-1.0+INT`` gets the same bytes from 8-bit tables."""
    torch.manual_seed(0)
    model, inputs = Tabulated().eval(), (torch.randn(3, 5, 12),)
    quantizer = TOSAQuantizer("TOSA-1.0+INT").set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(torch.export.export(model, inputs).module(), quantizer)
    prepared(*inputs)
    converted = convert_pt2e(prepared)
    codes = np.random.default_rng(0).integers(-128, 128, (3, 5, 12), np.int8)
    outputs = []
    for text in ("TOSA-1.0+INT", "TOSA-1.0+INT+int16"):
        partitioner, (tosa,) = lowered(converted, inputs, TosaCompileSpec(text))
        assert not partitioner.report.refusals
        outputs += ethorch.tosa.run(tosa, [codes])
    np.testing.assert_array_equal(*outputs)
    assert np.unique(outputs[0]).size > 30
