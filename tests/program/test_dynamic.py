"""Programs with open sizes (torch.export.Dim): they stay open, and what has them stays on the CPU."""

from __future__ import annotations

import logging

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from torch import nn
from torch.export import Dim, ExportedProgram, export
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import ethorch
from ethorch.backend.partitioner import EthosUPartitioner
from ethorch.models.layouts import to_nhwc
from ethorch.models.open_sizes import dynamic_shapes_of
from ethorch.program.program import record_of
from ethorch.quantization.config import get_symmetric_quantization_config
from ethorch.quantization.quantizer import EthosUQuantizer
from ethorch.support.errors import EthorchError, HostError


class Frames(nn.Module):
    """One branch of open length, one of fixed shapes."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 4)
        self.fixed = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = self.norm(torch.tanh(self.embed(x)))
        z = torch.softmax(z @ z.transpose(1, 2), -1) @ z
        return self.head(z.mean(1)), torch.softmax(self.fixed(y), -1), z.reshape(z.shape[0], -1)


class Maps(nn.Module):
    """Maps of open batch and height, pooled; a branch of fixed shapes."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head, self.fixed = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3))), torch.relu(self.fixed(y))


def frames_program() -> tuple[Frames, ExportedProgram]:
    torch.manual_seed(0)
    model = Frames().eval()
    return model, export(model, (torch.randn(1, 64, 16), torch.randn(2, 8)), dynamic_shapes=({1: Dim("L", min=8, max=128)}, None))


@pytest.fixture(scope="module")
def frames() -> tuple[Frames, ethorch.Program]:
    model, exported = frames_program()
    samples = [(torch.randn(1, length, 16), torch.randn(2, 8)) for length in (9, 64, 100)]
    return model, ethorch.compile(exported, calibration=samples)


def test_a_compiled_program_takes_every_size_of_its_range(frames):
    model, program = frames
    torch.manual_seed(1)
    for length in (8, 64, 77, 128):
        inputs = torch.randn(1, length, 16), torch.randn(2, 8)
        found, wanted = program(*inputs), model(*inputs)
        assert [x.shape for x in found] == [x.shape for x in wanted]
        assert torch.allclose(found[2], wanted[2], atol=1e-5)  # float on the CPU
        assert ethorch.sqnr_db(wanted[:2], found[:2]) > 25
    with pytest.raises(HostError, match="at most"):
        program(torch.randn(1, 129, 16), torch.randn(2, 8))


def test_operators_of_fixed_shapes_are_delegated_and_the_others_have_a_reason(frames):
    _, program = frames
    partition = record_of(program).build.partition
    names = {name.rpartition("aten_")[2] for group in partition.delegated.values() for name in group}
    assert names == {"linear_default", "softmax_int", "linear_default_1"}  # the head follows the mean over the open length
    reasons = {refusal.reason.id for refusal in partition.refusals if "permute" not in refusal.node}
    assert reasons == {"graph.dynamic_shape"}
    text = str(program.explain())
    assert "8..128" in text and "shapes=[...]" in text


def test_firmware_of_open_sizes_is_refused_with_the_remedy(frames, tmp_path):
    with pytest.raises(EthorchError, match=r"shapes=\[...\]"):
        ethorch.firmware(frames[1], tmp_path / "project")


@pytest.mark.long
def test_the_range_survives_quantizer_and_partitioner():
    _, exported = frames_program()
    spec = ethorch.EthosUCompileSpec("ethos-u55-128")
    prepared = prepare_pt2e(exported.module(), EthosUQuantizer(spec).set_global(get_symmetric_quantization_config()))
    for length in (8, 64, 128):
        prepared(torch.randn(1, length, 16), torch.randn(2, 8))
    converted = convert_pt2e(prepared)
    again = export(converted, (torch.randn(1, 64, 16), torch.randn(2, 8)), dynamic_shapes=({1: Dim("L", min=8, max=128)}, None))
    partitioner = EthosUPartitioner(spec)
    edge = to_edge_transform_and_lower(again, partitioner=[partitioner])
    ranges = [(bounds.lower, bounds.upper) for bounds in edge.exported_program().range_constraints.values()]
    assert ranges == [(8, 128)] and len(partitioner.report.delegated) == 1
    program = ethorch.load(edge.to_executorch().buffer)
    for length in (8, 50, 128):
        inputs = torch.randn(1, length, 16), torch.randn(2, 8)
        for found, fake_quantized in zip(program(*inputs), converted(*inputs), strict=True):
            assert found.shape == fake_quantized.shape and ethorch.sqnr_db(fake_quantized, found) > 25


@pytest.mark.parametrize("io_layout", [pytest.param("nchw", marks=pytest.mark.long), "nhwc"])
def test_batch_and_a_multiple_of_a_height_stay_open(io_layout):
    torch.manual_seed(0)
    model, heights = Maps().eval(), Dim("H", min=2, max=12)
    dims = ({0: Dim("B", min=1, max=4), 2: 2 * heights}, None)
    exported = export(model, (torch.randn(2, 3, 16, 8), torch.randn(2, 8)), dynamic_shapes=dims)
    program = ethorch.compile(exported, settings=ethorch.Settings(io_layout=io_layout))
    laid = to_nhwc if io_layout == "nhwc" else lambda x: x
    for shape in ((1, 3, 4, 8), (3, 3, 16, 8), (4, 3, 24, 8)):
        inputs = torch.randn(shape), torch.randn(2, 8)
        found, wanted = program(laid(inputs[0]), inputs[1]), model(*inputs)
        assert torch.allclose(found[0], wanted[0], atol=1e-5)
        assert ethorch.sqnr_db(record_of(program).quantized(laid(inputs[0]), inputs[1])[1], found[1]) > 30
    assert len(record_of(program).build.delegates) == 1


def test_a_saved_program_and_keyword_inputs(tmp_path):
    model = nn.Linear(16, 4).eval()
    exported = export(model, (), {"input": torch.randn(1, 16, 16)}, dynamic_shapes={"input": {1: Dim("L", min=2, max=20)}})
    torch.export.save(exported, tmp_path / "linear.pt2")
    program = ethorch.compile(str(tmp_path / "linear.pt2"))
    assert torch.allclose(program(input=torch.ones(1, 5, 16)), model(torch.ones(1, 5, 16)), atol=1e-5)


def test_a_size_without_a_maximum_is_a_warning(caplog):
    model = nn.Linear(8, 4).eval()
    exported = export(model, (torch.randn(3, 8),), dynamic_shapes=({0: Dim("B")},))
    assert dynamic_shapes_of(exported)[0][0].min == 0
    with caplog.at_level(logging.WARNING):
        program = ethorch.compile(exported)
    assert "dynamic.no_maximum" in caplog.text
    assert program(torch.ones(2, 8)).shape == (2, 4)


def test_calibration_of_other_sizes_than_the_open_ones_is_refused():
    _, exported = frames_program()
    with pytest.raises(EthorchError, match=r"\[1, 64, 17\]"):
        ethorch.compile(exported, calibration=[(torch.randn(1, 64, 17), torch.randn(2, 8))])
