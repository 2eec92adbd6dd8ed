"""TOSA as the output: specification, partitioner, flatbuffers that run in the reference model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import ethorch.tosa
from ethorch import TosaCompileSpec, TOSAPartitioner, TOSAQuantizer, TosaSpecification, get_symmetric_quantization_config
from ethorch.errors import EthorchError, SpecError


@pytest.mark.parametrize("text", ["TOSA-1.0+INT", "TOSA-1.0+INT+int16", "TOSA-1.0+FP+bf16", "TOSA-1.1+INT+FP", "TOSA-1.0+INT+u55"])
def test_specification_text_goes_both_ways(text: str) -> None:
    spec = TosaSpecification.create_from_string(text)
    assert str(spec) == text
    assert spec.support_integer() == ("INT" in text)
    assert spec.support_float() == ("FP" in text)
    assert TosaCompileSpec.from_list(TosaCompileSpec(spec).to_list()) == TosaCompileSpec(text)


@pytest.mark.parametrize(
    ("text", "named"),
    [("TOSA-9.0+INT", "1.0, 1.1"), ("TOSA-1.0", "INT, FP"), ("TOSA-1.0+INT+int61", "int16"), ("tosa 1.0", "TOSA-1.0+INT"),
     ("TOSA-1.0+FP+int16", "bf16")],
)  # fmt: skip
def test_what_is_no_specification_is_refused_with_what_is(text: str, named: str) -> None:
    with pytest.raises(SpecError) as error:
        TosaSpecification.create_from_string(text)
    assert named in str(error.value)


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
    assert partitioner.report.summary() == "5 of 5 operators on TOSA-1.0+INT in 1 delegate"
    (delegate,) = [module for _, module in edge.exported_program().graph_module.named_children()]
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
