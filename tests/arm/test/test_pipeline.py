"""The Arm backend's pipelines by ethorch: what they run, and that each of their checks can fail."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from executorch.backends.test.harness.stages import StageType
from executorch.exir.backend.operator_support import DontPartition
from torch import Tensor, nn

from ethorch.arm.test.tester.test_pipeline import (
    BasePipeline,
    EthosU55PipelineINT,
    EthosU65PipelineINT,
    EthosU85PipelineINT,
    OpNotSupportedPipeline,
    TosaPipelineFP,
    TosaPipelineINT,
)
from ethorch.support.errors import EthorchError
from tests.testing.networks import Net, Topk, image

CONV, LINEAR = "torch.ops.aten.conv2d.default", "torch.ops.aten.linear.default"
EXIR_CONV = "executorch_exir_dialects_edge__ops_aten_convolution_default"
TOPK = "executorch_exir_dialects_edge__ops_aten_topk_default"
EVERY = (TosaPipelineFP, TosaPipelineINT, EthosU55PipelineINT, EthosU65PipelineINT, EthosU85PipelineINT)


def only(*pipelines: type[BasePipeline[Any]]) -> list[Any]:
    """Every pipeline, those not given as long cases."""
    return [each if each in pipelines else pytest.param(each, marks=pytest.mark.long) for each in EVERY]


class Add(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


def pair() -> tuple[Tensor, Tensor]:
    return torch.rand(1, 3, 5, 5), torch.rand(1, 3, 5, 5)


@pytest.mark.parametrize("pipeline", only(TosaPipelineFP, EthosU65PipelineINT))
def test_a_module_that_runs_passes(pipeline: type[BasePipeline[Any]]) -> None:
    made = pipeline(Add(), pair(), "torch.ops.aten.add.Tensor", "executorch_exir_dialects_edge__ops_aten_add_Tensor")
    made.run()
    assert made.tester.report is not None and made.tester.report.npu_operators == 1


@pytest.mark.parametrize("pipeline", [TosaPipelineFP, TosaPipelineINT, EthosU55PipelineINT])
def test_an_operator_that_is_not_there_fails(pipeline: type[BasePipeline[Any]]) -> None:
    with pytest.raises(AssertionError, match=r"expected 'torch.ops.aten.sub.Tensor' in the graph, got no occurrence"):
        pipeline(Add(), pair(), ["torch.ops.aten.sub.Tensor"]).run()


@pytest.mark.parametrize("pipeline", only(TosaPipelineFP, EthosU85PipelineINT))
def test_an_operator_on_the_cpu_fails_with_its_reason(pipeline: type[BasePipeline[Any]]) -> None:
    with pytest.raises(
        AssertionError, match=r"(?s)expected no occurrence of '\w*topk_default' in the graph, got 1.*topk.*\[operator.unknown\]"
    ):
        pipeline(Topk(), image(), CONV, TOPK).run()
    if pipeline is not TosaPipelineFP:  # of floats, what reads topk is on the CPU too
        with pytest.raises(AssertionError, match=r"(?s)expected 1 occurrence of .\S*executorch_call_delegate. in the graph, got 2"):
            pipeline(Topk(), image(), CONV).run()


@pytest.mark.parametrize("pipeline", [TosaPipelineINT, EthosU85PipelineINT])
def test_outputs_that_are_apart_fail(pipeline: type[BasePipeline[Any]], caplog: pytest.LogCaptureFixture) -> None:
    made = pipeline(Net(), image(), LINEAR, qtol=0, atol=0, rtol=0)
    made.add_stage(lambda: made.tester.get_artifact(StageType.QUANTIZE).get_parameter("head_bias_rounded").data.fill_(9), pos=-2)
    if made.has_stage("run_method_and_compare_outputs.original_model"):
        made.pop_stage("run_method_and_compare_outputs.original_model")
    with pytest.raises(AssertionError, match=r"output 0 of aten.linear.default at head"):
        made.run()
    assert "the stage run_method_and_compare_outputs failed" in caplog.text


def test_the_quantized_module_is_held_against_the_float_one() -> None:
    with pytest.raises(AssertionError, match="relative norm of the error: expected at most"):
        TosaPipelineINT(Net(), image(), CONV, frobenius_threshold=1e-9).run()
    TosaPipelineINT(Net(), image(), CONV, frobenius_threshold=None, cosine_threshold=None, run_on_tosa_ref_model=False).run()


def test_a_float_pipeline_runs_without_comparing() -> None:
    made = TosaPipelineFP(Net(), image(), CONV, atol=0, rtol=0, compare_tosa_ref_model_outputs=False)
    made.change_args("run_method_and_compare_outputs", reference_stage_type=StageType.SERIALIZE)  # not there
    made.run()


def test_int16_by_the_arm_backends_arguments() -> None:
    made = EthosU55PipelineINT(Net(), image(), CONV, a16w8_quantization=True, symmetric_io_quantization=True, qtol=2)
    made.run()
    TosaPipelineINT(Net(), image(), CONV, tosa_extensions=["int16"], per_channel_quantization=False, qtol=2).run()


def test_edge_and_partition_one_by_one() -> None:
    made = EthosU55PipelineINT(Net(), image(), CONV, EXIR_CONV, use_to_edge_transform_and_lower=False)
    assert [s for s in made.stages if "exir" in s or s in ("to_edge", "partition")] == [
        "to_edge",
        "check.exir",
        "partition",
        "check_not.exir",
        "check_count.exir",
    ]
    made.run()


def test_what_stays_on_the_cpu_is_expected() -> None:
    OpNotSupportedPipeline(Topk(), image(), {TOPK: 1}, n_expected_delegates=2, quantize=True, u55_subset=True).run()
    OpNotSupportedPipeline(Topk(), image(), {TOPK: 1}, n_expected_delegates=2).run()
    with pytest.raises(AssertionError, match=r"expected 2 occurrences of '\w*topk_default' in the graph, got 1"):
        OpNotSupportedPipeline(Topk(), image(), {TOPK: 2}, n_expected_delegates=2).run()


@pytest.mark.parametrize("pipeline", [TosaPipelineFP, EthosU55PipelineINT])
def test_checks_of_the_partitioner_keep_operators_on_the_cpu(
    pipeline: type[BasePipeline[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    check = DontPartition("aten.add.Tensor")
    test = pipeline(Add(), pair(), [], "executorch_exir_dialects_edge__ops_aten_add_Tensor")
    test.change_args("to_edge_transform_and_lower", additional_checks=[check])
    test.pop_stage("check_not.exir")
    test.change_args("check_count.exir", {"executorch_exir_dialects_edge__ops_aten_add_Tensor": 1})
    test.run()
    assert check.has_rejected_node()
    assert "Rejected by DontPartition: " in caplog.text


def test_tosa_operators_are_counted() -> None:
    TosaPipelineFP(Add(), pair(), []).count_tosa_ops({"ADD": 1, "SUB": 0}).run()
    EthosU55PipelineINT(Net(), image(), []).count_tosa_ops({"CONV2D": 2}).run()
    with pytest.raises(AssertionError, match=r"expected 2 TOSA ADD operators, got 1. All TOSA operators: 1 ADD"):
        TosaPipelineFP(Add(), pair(), []).count_tosa_ops({"ADD": 2}).run()


def test_stages_are_added_taken_out_and_changed() -> None:
    made = EthosU55PipelineINT(Add(), pair(), "nonsense", run_on_fvp=False)
    assert made.stages[-1] == "to_executorch"
    seen: list[str] = []
    made.add_stage_after("export", lambda: seen.append("after export"), suffix="look")
    made.add_stage(made.tester.check_not, ["aten.sub"], pos=3)
    assert made.stages[2:5] == ("export", "check_not.2", "<lambda>.look")
    made.change_args("check.aten", ["torch.ops.aten.add.Tensor"])
    assert made.pop_stage("check_not.exir").id == "check_not.exir" and not made.has_stage("check_not.exir")
    made.run()
    assert seen == ["after export"]
    with pytest.raises(EthorchError, match=r"expected a stage identifier in quantize, .*, got 'check_not\.exir'"):
        made.pop_stage("check_not.exir")
    with pytest.raises(EthorchError, match="expected a new stage identifier, got 'export'"):
        made.add_stage(made.tester.export)
    count = len(made.stages)
    for position in (count, -count - 1):
        with pytest.raises(EthorchError, match=f"expected a position from {-count} to {count - 1}, or .* got {position}"):
            made.pop_stage(position)
    with pytest.raises(EthorchError, match=r"expected pos .* got 99"):
        made.add_stage(made.tester.check, [], pos=99)


def test_what_a_stage_made_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    made = EthosU55PipelineINT(Add(), pair(), [], run_on_fvp=False)
    made.dump_operator_distribution("to_edge_transform_and_lower").dump_artifact("export").dump_artifact(
        "to_edge_transform_and_lower", str(tmp_path / "lowered.txt")
    )
    made.run()
    assert "TOSA operators:" in capsys.readouterr().out
    assert "executorch_call_delegate" in (tmp_path / "lowered.txt").read_text()


def test_more_is_set_on_the_quantizer() -> None:
    made = EthosU55PipelineINT(Net(), image(), [], run_on_fvp=False)
    made.quantizer.set_module_name("head", None)
    with pytest.raises(AssertionError, match=r"at head .*\[graph.output_not_quantized\]"):
        made.change_args("check_count.exir", {"torch.ops.higher_order.executorch_call_delegate": 0}).run()
