"""Two builds against each other, advice, verdict, Markdown, and the page on JSON."""

from __future__ import annotations

import copy
import json
import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch.cli import options
from ethorch.report.advice import advice
from ethorch.report.builds import compare_builds, compare_programs
from ethorch.report.markdown import markdown
from ethorch.report.program_data import is_program_data, read_program_data
from ethorch.report.reproduce import options as words_of
from ethorch.report.summary import largest_saving
from ethorch.report.verdict import verdicts
from ethorch.support.errors import EthorchError, FormatError
from ethorch.targets.settings import Settings

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_a_build_against_itself(data: dict[str, Any]) -> None:
    found = compare_builds(data, copy.deepcopy(data))
    assert {layer.state for layer in found.layers} == {"same"} and not found.settings and not found.versions
    assert all(change.percent == 0 for change in found.totals) and found.regressions() == []
    assert len(found.layers) == len(data["layers"]) and f"0 of {len(data['layers'])} layers differ." in str(found)


def test_a_file_against_its_own_folder_is_no_regression(program: ethorch.Program, data: dict[str, Any], tmp_path: Path) -> None:
    loaded = ethorch.load(program.save(tmp_path / "net.pte")).to_json()
    loaded["mac_count"] *= 2  # the layers of a file can include padding
    for before, after in ((data, loaded), (loaded, data)):
        found = compare_builds(before, after)
        assert found.regressions() == [] and "mac_count" not in found.to_json()["totals"]


def test_each_method_is_compared_with_the_same_method(data: dict[str, Any]) -> None:
    slow = copy.deepcopy(data)
    slow["total_cycles"] *= 2
    found = compare_programs({"prefill": data, "decode": data, "old": data}, {"prefill": data, "decode": slow, "new": data})
    assert list(found.methods) == ["prefill", "decode"] and (found.added, found.removed) == (("new",), ("old",))
    (worse,) = found.regressions(50)
    assert worse.startswith("decode: total_cycles")
    assert "Method decode:" in str(found) and "Added methods: new." in str(found) and "Removed methods: old." in str(found)
    text = found.to_markdown([worse])
    assert text.startswith("## What changed in prefill\n") and "\n\n## What changed in decode\n" in text
    assert re.search(r"\n- ❌ decode: total.*\Z", text)
    described = found.to_json()
    assert described["method"] == "prefill" and described["other_methods"]["decode"]["totals"]["total_cycles"]["percent"] == 100
    assert (described["methods_added"], described["methods_removed"]) == (["new"], ["old"])

    renamed = compare_programs({"forward": data}, {"forward_2": slow})
    assert list(renamed.methods) == ["forward_2"] and "Method" not in str(renamed)
    with pytest.raises(FormatError, match=r"no common method: expected one of a, b, got c"):
        compare_programs({"a": data, "b": data}, {"c": data})


def test_what_changed_is_found_per_layer(data: dict[str, Any]) -> None:
    after = copy.deepcopy(data)
    grown = next(layer for layer in after["layers"] if layer["module"] == "head" and layer["where"] == "NPU")
    grown["op_cycles"] += 1000
    after["total_cycles"] += 1000
    gone = next(layer for layer in after["layers"] if layer["operators"] == ["aten.topk.default"])
    after["layers"].remove(gone)
    after["versions"]["torch"] = "3.0"
    after["settings"]["io"] = "int8"
    found = compare_builds(data, after)
    states = {(layer.module, layer.operator, layer.state): layer for layer in found.layers if layer.state != "same"}
    assert len(states) == 2
    assert states["head", "aten.conv2d.default", "changed"].difference == 1000
    assert states[gone["module"], "aten.topk.default", "removed"].cycles_after is None
    assert found.settings == {"io": ("float32", "int8")} and found.versions["torch"][1] == "3.0"
    percent = 100 * 1000 / data["total_cycles"]
    assert found.regressions(percent * 1.01) == []
    (worse,) = found.regressions(percent * 0.99)
    assert worse.startswith("total_cycles")
    assert "| head | aten.conv2d.default | changed |" in found.to_markdown()
    assert json.loads(json.dumps(found.to_json()))["totals"]["total_cycles"]["percent"] == pytest.approx(percent)


def test_less_accuracy_and_a_lost_budget_are_regressions(data: dict[str, Any]) -> None:
    after = copy.deepcopy(data)
    after["accuracy"]["sqnr_db"] *= 0.8
    next(row for row in after["budgets"] if row["name"] == "ram")["holds"] = False
    found = compare_builds(data, after)
    assert [line.split()[0] for line in found.regressions(15)] == ["accuracy.sqnr_db", "budget"]
    assert found.regressions(25) == ["budget ram is now exceeded"]
    assert compare_builds(after, data).regressions() == []


@pytest.mark.parametrize(
    ("before", "after", "is_worse"), [(-2.0, -8.0, True), (-8.0, -2.0, False), (2.0, -8.0, True), (-2.0, 8.0, False)]
)
def test_a_lower_sqnr_below_zero_is_a_regression(data: dict[str, Any], before: float, after: float, is_worse: bool) -> None:
    later = copy.deepcopy(data)
    data["accuracy"]["sqnr_db"], later["accuracy"]["sqnr_db"] = before, after
    assert bool(compare_builds(data, later).regressions(5)) == is_worse


@pytest.mark.parametrize(
    "broken", [{}, {"layers": 3}, {"layers": [{}]}, {"total_cycles": "many"}, {"operators": 5}, {"budgets": [7]}]
)
def test_other_data_is_refused(data: dict[str, Any], broken: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match=r"^expected two results of Program\.to_json, got "):
        compare_builds(data, {**data, **broken} if broken else {})


def test_from_nothing_is_a_regression_of_any_percent(data: dict[str, Any]) -> None:
    after = copy.deepcopy(data)
    data["operators"]["cpu"] = 0
    found = compare_builds(data, after)
    assert found.regressions(1e9) == ["operators.cpu 0 -> 1 (from 0)"]
    assert found.to_json()["totals"]["operators.cpu"] == {"before": 0, "after": 1, "percent": None}


def test_a_file_is_compared_as_far_as_it_tells(data: dict[str, Any], program: ethorch.Program) -> None:
    found = compare_builds(data, ethorch.load(program.pte).to_json())
    assert found.regressions() == []
    unknown = {change.name for change in found.totals if change.after is None}
    assert unknown >= {"total_cycles", "milliseconds", "operators.cpu"} and "ram_bytes" not in unknown


def test_advice_has_figures_of_the_data(data: dict[str, Any]) -> None:
    found = {one.id: one for one in advice(data)}
    assert {"float-io", "cpu.operator.unknown"} <= found.keys()
    size = sum(4 * 3 * 16 * 16 for _ in range(1)) + 4 * 4 * 16 * 8
    assert found["float-io"].figure.startswith(f"{size / 1024:,.1f} KiB") and "--io int8" in found["float-io"].text
    spent = sum(layer["op_cycles"] for layer in data["layers"] if layer["operators"] == ["aten.topk.default"])
    assert f"{spent:,} CPU cycles" in found["cpu.operator.unknown"].figure
    assert data["cpu"][0]["remedy"] in found["cpu.operator.unknown"].text
    assert [one.weight for one in advice(data)] == sorted((one.weight for one in advice(data)), reverse=True)


def test_advice_on_the_peak_is_no_larger_than_the_region_and_no_saving(data: dict[str, Any]) -> None:
    (peak,) = [one for one in advice(data) if one.id.startswith("peak.")]
    region = peak.id.removeprefix("peak.")
    copies = [copy.deepcopy(tensor) for tensor in data["memory"]["tensors"] if tensor["region"] == region]
    data["memory"]["tensors"] += copies
    (peak,) = [one for one in advice(data) if one.id.startswith("peak.")]
    held = float(peak.text.split(", with ")[1].split(" KiB")[0])
    assert held <= data["memory"]["regions"][region] / 1024 + 0.05 and not peak.is_saving
    assert not any(tensor["name"] in peak.text for tensor in copies if tensor["delegate"] is not None)
    data["settings"]["io"] = "int8"
    saving = largest_saving(data)
    assert not saving.startswith("Largest saving") or peak.figure not in saving


def test_advice_goes_when_its_reason_goes(data: dict[str, Any]) -> None:
    data["settings"]["io"] = "int8"
    data["cpu"] = []
    assert not {"float-io", "cpu.operator.unknown"} & {one.id for one in advice(data)}


def test_advice_on_memories_and_multipliers(data: dict[str, Any]) -> None:
    npu = [layer for layer in data["layers"] if layer["where"] == "NPU"]
    for layer in npu:
        layer |= {"bound": "OffChipFlash", "op_cycles": 1_000_000, "npu_cycles": 1000}
    (waits,) = [one for one in advice(data) if one.id == "waits.off_chip_flash"]
    assert f"{999_000 * len(npu):,} cycles" in waits.figure and "Shared_Sram" in waits.text and "constants=sram" in waits.text
    for layer in npu:
        layer |= {"bound": "compute", "npu_cycles": 1_000_000, "mac_count": 1_280_000, "util_mac_percentage": 1.0}
    (idle,) = [one for one in advice(data) if one.id == "idle-macs"]
    convolutions = [layer for layer in npu if "Conv" in layer["operator"]]
    assert f"{990_000 * len(convolutions):,} cycles" in idle.figure and "128 multipliers" in idle.text
    assert not idle.is_saving and "a multiple of 16." in idle.text and "epthwise" not in idle.text
    for layer in npu:
        layer |= {"ifm_shapes": [[1, 1, 1, 64]], "ofm_shape": [1, 1, 1, 256]}
    (idle,) = [one for one in advice(data) if one.id == "idle-macs"]
    assert "few positions" in idle.text and "16 channels" not in idle.text
    for layer in npu:
        layer |= {"ifm_shapes": [[1, 32, 32, 64]], "ofm_shape": [1, 32, 32, 64]}
    assert "idle-macs" not in {one.id for one in advice(data)}
    for layer in npu:
        layer |= {"bound": "transposes"}
    (ends,) = [one for one in advice(data) if one.id == "transposes.io"]
    assert "io_layout" in ends.text
    data["settings"]["io_layout"] = "nhwc"
    assert [one.id for one in advice(data) if one.id.startswith("transposes")] == ["transposes"]


def test_verdict_follows_the_budgets(data: dict[str, Any]) -> None:
    fits, fast, accurate = verdicts(data)
    assert (fits.state, fast.state, accurate.state) == ("yes", "no", "yes")
    assert "less than the limit of 64.0 KiB" in fits.answer and "The limit is 0.001 ms." in fast.answer
    data["budgets"] = []
    assert {one.state for one in verdicts(data)} == {"open"}
    data |= {"milliseconds": None, "budgets": [{"name": "latency_ms", "limit": 1.0, "found": None, "holds": None}]}
    assert verdicts(data)[1].state == "unknown"


def test_outputs_that_are_equal_have_no_figure() -> None:
    class Same(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(1, -1)

    program = ethorch.compile(Same().eval(), (torch.arange(8, dtype=torch.int32).reshape(2, 4),), "ethos-u55-128", min_sqnr_db=10)
    assert program.accuracy is not None and math.isinf(program.accuracy.sqnr_db)
    data = json.loads(json.dumps(program.to_json(), allow_nan=False))
    assert (
        data["accuracy"] == {"sqnr_db": None, "samples": 1} and data["budgets"][0]["found"] is None and data["budgets"][0]["holds"]
    )
    assert verdicts(data)[2].state == "yes" and "equal to the outputs of the float model" in verdicts(data)[2].answer
    assert "equal" in str(program) and "equal" in markdown(data)


def test_markdown_is_escaped_and_complete(data: dict[str, Any]) -> None:
    data["layers"][1] |= {"module": "a|b<script>`\n# x", "op_cycles": 10**9}
    text = markdown(data, "both")
    assert text.startswith("## both\n") and "\\|b&lt;script&gt;\\` \\# x" in text and "<script" not in text
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1, block
    assert "topk" in text and data["cpu"][0]["id"].replace("_", "\\_") in text
    assert "--min-sqnr-db 10" in text


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(
            "ethos-u85-256",
            "a16w8",
            {"head": "float", "stem": "int8"},
            "int16",
            "nhwc",
            memory_mode="Sram_Only",
            vela_flags=("--optimise=Size",),
            ram=65536,
            flash=2**20,
            latency_ms=2.5,
            min_sqnr_db=30,
        ),
    ],
)
def test_the_options_give_the_settings_back(settings: Settings) -> None:
    words = iter(words_of(settings.to_json()))
    given: dict[str, Any] = {"module": [], "set": []}
    for word in words:
        name = word.removeprefix("--").replace("-", "_")
        if name in ("module", "set"):
            given[name].append(next(words))
        else:
            given[name] = float(next(words)) if name == "min_sqnr_db" else next(words)

    def bundle(kind: type) -> Any:
        return kind(**{one.name: given.pop(one.name) for one in fields(kind) if one.name in given})

    choices, quantization, budget = (bundle(kind) for kind in (options.Choices, options.Quantization, options.Budget))
    assert options.settings_of(choices, quantization=quantization, budget=budget) == settings and not given


def test_files(data: dict[str, Any], program: ethorch.Program, tmp_path: Path) -> None:
    program.save(tmp_path / "both")
    assert is_program_data(tmp_path / "both") and read_program_data(tmp_path / "both") == data
    assert not is_program_data(tmp_path / "both" / "model.pte")
    with pytest.raises(EthorchError, match="cannot read"):
        read_program_data(tmp_path / "none.json")
    for text in ("[" * 100_000, "{", "3", '{"layers": []}'):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(FormatError, match=r"other\.json ?(contains 3|is not |cannot be read|: expected the result)"):
            read_program_data(tmp_path / "other.json")


def test_every_key_is_documented(data: dict[str, Any]) -> None:
    text = (DOCS / "json.md").read_text()
    sections = dict(re.findall(r"^## (\S.*?)\n(.*?)(?=^## |\Z)", text, re.M | re.S))

    def keys(section: str) -> set[str]:
        first_cells = re.findall(r"^\| (`.*?) \|", sections[section], re.M)
        return {key for cell in first_cells for key in re.findall(r"`([\w.]+)`", cell)}

    operators = {f"operators.{name}" for name in data["operators"]}
    assert keys("The program") == (data.keys() - {"operators"}) | operators
    assert keys("memory_system") == data["memory_system"].keys()
    assert keys("layers") == data["layers"][0].keys()
    assert keys("memory") == data["memory"].keys()
    assert keys("report --baseline") == {*compare_programs({"forward": data}, {"forward": data}).to_json(), "regressions"}
    for row, words in (
        (data["memory"]["tensors"][0], sections["memory"]),
        (data["memory"]["components"][0], sections["memory"]),
        (data["cpu"][0], sections["The program"]),
        (data["accuracy"], sections["The program"]),
        (data["budgets"][0], sections["The program"]),
        (data["inputs"][0], sections["The program"]),
        (advice(data)[0].to_json(), sections["report --baseline"]),
        (compare_builds(data, data).to_json()["layers"][0], sections["report --baseline"]),
    ):
        assert [key for key in row if f"`{key}`" not in words] == []


def test_the_utilization_follows_from_the_printed_macs_and_cycles(data: dict[str, Any]) -> None:
    capacity = data["total_cycles"] * data["memory_system"]["macs_per_cycle"]
    on_cpu = sum(layer["mac_count"] for layer in data["layers"] if layer["where"] == "CPU")
    assert data["util_mac_percentage"] == pytest.approx(100 * (data["mac_count"] - on_cpu) / capacity)
