"""EthosUTester: its stages, its checks and what they say when they fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from executorch.backends.test.harness import stages as harness
from executorch.backends.test.harness.stages import StageType

from ethorch import EthosUCompileSpec, EthosUQuantizer
from ethorch.arm import TosaCompileSpec
from ethorch.arm.quantizer import get_symmetric_a16w8_quantization_config
from ethorch.support.errors import EthorchError, SpecError
from ethorch.testing import EthosUTester
from tests.testing.networks import Counts, Net, TopkTwice, image, images

DELEGATE = "torch.ops.higher_order.executorch_call_delegate"


def lowered(target: str = "ethos-u55-128", module: type[Net] = Net) -> EthosUTester:
    return EthosUTester(module(), image(), target, calibration=images()).quantize().export().to_edge_transform_and_lower()


@pytest.mark.parametrize("target", [pytest.param("ethos-u55-128", marks=pytest.mark.long), "ethos-u85-256", "TOSA-1.0+INT"])
def test_all_stages_compute_what_the_quantized_module_does(target: str) -> None:
    tester = lowered(target).check_count({DELEGATE: 1}).run_method_and_compare_outputs(qtol=1)
    tester.to_executorch().run_method_and_compare_outputs(qtol=1, num_runs=2)
    tester.serialize().run_method_and_compare_outputs(image(), qtol=1, min_sqnr_db=25)
    assert tester.get_artifact()[4:8] == b"ET12"
    assert tester.report is not None and not tester.report.refusals


def test_floats_go_to_tosa_without_quantization() -> None:
    tester = EthosUTester(Net(), image(), TosaCompileSpec("TOSA-1.0+FP")).export().to_edge_transform_and_lower()
    tester.check_count({DELEGATE: 1}).to_executorch().run_method_and_compare_outputs()


def test_to_edge_and_partition_one_by_one() -> None:
    tester = EthosUTester(Net(), image()).quantize().export().to_edge().partition()
    tester.check_count({DELEGATE: 1}).run_method_and_compare_outputs(qtol=1)
    tester.to_executorch().serialize().run_method_and_compare_outputs(qtol=1)


def test_int16_by_a_config_and_by_a_quantizer() -> None:
    config = get_symmetric_a16w8_quantization_config(is_per_channel=True)
    by_config = EthosUTester(Net(), image(), calibration=images(), config=config)
    quantizer = EthosUQuantizer(EthosUCompileSpec("ethos-u55-128")).set_global(config)
    by_quantizer = EthosUTester(Net(), image()).quantize(quantizer, calibration=images())
    codes = [t.export().to_edge_transform_and_lower().to_executorch().serialize() for t in (by_config.quantize(), by_quantizer)]
    assert codes[0].get_artifact() == codes[1].get_artifact()
    codes[0].run_method_and_compare_outputs(image(), qtol=3, min_sqnr_db=30)


def test_stages_of_executorchs_harness_are_taken() -> None:
    quantizer = EthosUQuantizer(EthosUCompileSpec("ethos-u55-128"))
    config = get_symmetric_a16w8_quantization_config(is_per_channel=True)
    tester = EthosUTester(Net(), image()).quantize(harness.Quantize(quantizer, config)).export(harness.Export())
    tester.to_edge_transform_and_lower().check_count({DELEGATE: 1}).to_executorch(harness.ToExecutorch()).serialize()
    tester.run_method_and_compare_outputs(qtol=3)


def test_a_state_is_the_tests_own() -> None:
    """Running must not change what the next run starts with."""
    tester = EthosUTester(Counts(), (torch.rand(1, 4),)).quantize().export().to_edge_transform_and_lower().to_executorch()
    tester.run_method_and_compare_outputs(qtol=1, num_runs=2).serialize().run_method_and_compare_outputs(qtol=1)


# --- checks that fail -------------------------------------------------------------------------------------------------------


def test_a_count_that_is_wrong_names_what_is_on_the_cpu_and_why() -> None:
    tester = lowered(module=TopkTwice)
    with pytest.raises(AssertionError) as error:
        tester.check_count({DELEGATE: 1})
    text = str(error.value)
    assert "EthosUTester(TopkTwice, ethos-u55-128), after to_edge_transform_and_lower" in text
    assert "in the graph, got 2" in text and "aten.topk" in text
    assert "networks.py:" in text and text.count("[operator.unknown]") == 1 and ") and 1 more: " in text
    tester.check_count({DELEGATE: 2})


def test_check_and_check_not() -> None:
    tester = EthosUTester(Net(), image()).quantize().export()
    tester.check(["torch.ops.aten.conv2d.default"]).check_not(["torch.ops.aten.sub"])
    with pytest.raises(AssertionError, match=r"after export: expected 'torch.ops.aten.sub' in the graph, got no occurrence"):
        tester.check(["torch.ops.aten.sub"])
    with pytest.raises(AssertionError, match=r"expected no occurrence of 'torch.ops.aten.conv2d.default' in the graph, got 1"):
        tester.check_not(["torch.ops.aten.conv2d.default"])


def test_a_composite_operator_is_found_though_it_was_taken_apart() -> None:
    tester = EthosUTester(torch.nn.PReLU(), (torch.randn(2, 5),)).quantize().export()
    assert "prelu" not in tester.graph_module().code
    tester.check(["torch.ops.aten.prelu.default"])


def test_check_node_count() -> None:
    tester = EthosUTester(Net(), image()).export().check_node_count({torch.ops.aten.conv2d.default: 1})
    with pytest.raises(AssertionError, match=r"expected 2 calls of .*aten\.linear\.default, got 1"):
        tester.check_node_count({torch.ops.aten.linear.default: 2})


def test_outputs_that_are_apart_are_described() -> None:
    tester = lowered().to_executorch()
    with torch.no_grad():
        tester.get_artifact(StageType.QUANTIZE).get_parameter("head_bias_rounded").add_(1)
    with pytest.raises(AssertionError) as error:
        tester.run_method_and_compare_outputs(image(), qtol=1)
    text = str(error.value)
    assert "outputs of to_executorch" in text and "output 0 of aten.linear.default at head (networks.py:" in text
    assert "elements differ from the reference by more than atol=0.001, rtol=0.001, qtol=1" in text
    assert "The largest difference is " in text and " steps of " in text and "SQNR" in text


def test_a_wrong_shape_and_a_wrong_number_of_outputs_are_said() -> None:
    tester = lowered().to_executorch()
    tester.stages[StageType.QUANTIZE].converted_graph = torch.nn.Flatten(0)
    with pytest.raises(AssertionError, match=r"expected shape \[192\], got \[1, 4\]"):
        tester.run_method_and_compare_outputs(image())
    tester.stages[StageType.QUANTIZE].converted_graph = Pair()
    with pytest.raises(AssertionError, match="expected 2 outputs, got 1"):
        tester.run_method_and_compare_outputs(image())


class Pair(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


def test_decibels_norm_and_cosine_have_bounds() -> None:
    tester = lowered().to_executorch()
    with pytest.raises(AssertionError, match=r"SQNR against the float module: expected at least 90 dB, got \d+\.\d dB"):
        tester.run_method_and_compare_outputs(image(), qtol=1, min_sqnr_db=90)
    initial = {"inputs": image(), "reference_stage_type": StageType.INITIAL_MODEL}
    tester.run_method_and_compare_outputs(**initial, frobenius_threshold=0.1, cosine_threshold=0.99)
    with pytest.raises(
        AssertionError, match=r"norm of the error: expected at most 1e-06, got .*\n.*cosine similarity .*: expected at least 1, got"
    ):
        tester.run_method_and_compare_outputs(**initial, frobenius_threshold=1e-6, cosine_threshold=1)
    tester.run_method_and_compare_outputs(image(), atol=0, rtol=0, compare_outputs=False)


def test_statistics_are_handed_over() -> None:
    found: list[float] = []
    lowered().to_executorch().run_method_and_compare_outputs(qtol=1, statistics_callback=lambda s: found.append(s.sqnr))
    assert len(found) == 1 and found[0] > 20


# --- wrong use --------------------------------------------------------------------------------------------------------------


def test_stages_out_of_order_are_errors_that_name_what_can_come() -> None:
    with pytest.raises(EthorchError, match="expected quantize or export as the first stage, got to_edge"):
        EthosUTester(Net(), image()).to_edge()
    with pytest.raises(EthorchError, match=r"expected .*to_edge_transform_and_lower.* after export, got serialize"):
        EthosUTester(Net(), image()).export().serialize()
    with pytest.raises(EthorchError, match="the stage export has already run"):
        EthosUTester(Net(), image()).export().export()
    with pytest.raises(EthorchError, match="no stage has run yet"):
        EthosUTester(Net(), image()).get_artifact()
    with pytest.raises(EthorchError, match="the stage serialize has no graph"):
        lowered().to_executorch().serialize().check([DELEGATE])
    with pytest.raises(SpecError, match="ethos-u55-128"):
        EthosUTester(Net(), image(), "ethos-u77-128")


# --- what is printed --------------------------------------------------------------------------------------------------------


def test_the_distribution_of_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tester = lowered().dump_operator_distribution()
    printed = capsys.readouterr().out
    assert "TOSA operators:" in printed and "CONV2D" in printed and "4 of 4 PyTorch operators" in printed
    tester.dump_operator_distribution(tmp_path / "found.json", print_table=False, include_dtypes=False)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["stage"] == "to_edge_transform_and_lower"
    assert {"operator": "executorch_call_delegate", "count": 1} in found["operators"]
    assert {"operator": "CONV2D", "count": 2} in found["tosa_operators"]
    of_tosa = lowered("TOSA-1.0+INT").graph_module()
    assert of_tosa is not None


def test_the_distribution_of_dtypes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tester = lowered("TOSA-1.0+INT").dump_dtype_distribution()
    assert "Dtypes after to_edge_transform_and_lower:" in capsys.readouterr().out
    tester.dump_dtype_distribution(tmp_path / "found.json", print_table=False)
    found = {row["dtype"]: row for row in json.loads((tmp_path / "found.json").read_text())["dtypes"]}
    assert found["float32"]["placeholders"] == 1 and found["int8"]["results"] >= 1


def test_dtypes_of_tosa_operators_are_counted() -> None:
    tester = lowered("TOSA-1.0+INT").check_dtype_count({"CONV2D": {"INT32": 2, "INT8": 0}})
    with pytest.raises(AssertionError, match="expected 1 CONV2D operator with INT32 results, got 2"):
        tester.check_dtype_count({"CONV2D": {"INT32": 1}})


def test_delegates_are_collected_by_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOSA_TESTCASES_BASE_PATH", str(tmp_path))
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "test_net.py::test_net_INT[a b] (call)")
    lowered("TOSA-1.0+INT", TopkTwice)
    names = ["delegate_0_TOSA-1.0+INT.tosa", "delegate_1_TOSA-1.0+INT.tosa"]
    assert sorted(path.name for path in (tmp_path / "tosa-int" / "test_net_INT[a b]").iterdir()) == names


def test_the_float_module_and_the_exported_program_are_run_in_pytorch() -> None:
    tester = EthosUTester(Net(), image()).quantize().export()
    tester.run_method_and_compare_outputs(StageType.INITIAL_MODEL, atol=0.5)
    with pytest.raises(AssertionError, match="outputs of initial_model"):
        tester.run_method_and_compare_outputs(StageType.INITIAL_MODEL, image(), atol=0, rtol=0)
    tester.to_edge_transform_and_lower().run_method_and_compare_outputs(run_eager_mode=True, atol=0, rtol=0)


def test_artifacts_are_dumped(tmp_path: Path) -> None:
    tester = lowered().dump_artifact(tmp_path / "lowered.txt").to_executorch().serialize().dump_artifact(tmp_path / "net.pte")
    text = (tmp_path / "lowered.txt").read_text()
    assert "executorch_call_delegate" in text and "TOSA of delegate 0" in text and "'op': 'CONV2D'" in text
    assert (tmp_path / "net.pte").read_bytes() == tester.get_artifact()
