"""Measurements beside the estimate: logs, histograms and times as firmware prints them, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ethorch
from ethorch import cli
from ethorch.figures.commands import command_maps
from ethorch.figures.layer import NPU
from ethorch.figures.subject import subject
from ethorch.program.measure.profile import import_profile
from ethorch.program.program import record_of
from ethorch.support.errors import FormatError, SpecError

RUNNER = """\x1bI [executorch:arm_executor_runner.cpp:1] starting
I [executorch:arm_perf_monitor.cpp:190] NPU Inferences : 2
I [executorch:arm_perf_monitor.cpp:201] Inference runtime: 9000 CPU cycles total (4500.00 per inference)
I [executorch:arm_perf_monitor.cpp:236] ethosu_pmu_cycle_cntr :  40000 (20000.00 per inference)
I [executorch:arm_perf_monitor.cpp:240] ethosu_pmu_cntr0 : 600 (300.00 per inference)
I [executorch:arm_perf_monitor.cpp:240] ethosu_pmu_cntr1 : 20 (10.00 per inference)
I [executorch:arm_perf_monitor.cpp:250] Ethos-U delegate 0: 2 backend invocations, 2 NPU invocations
I [executorch:arm_perf_monitor.cpp:251] Ethos-U delegate 0 PMU cycles: 40000
I [executorch:arm_perf_monitor.cpp:260] Ethos-U PMU Events:[ETHOSU_PMU_AXI0_RD_DATA_BEAT_RECEIVED, ETHOSU_PMU_NPU_IDLE]
"""
KIT = "INFO - NPU AXI0_RD_DATA_BEAT_RECEIVED beats: 530\nINFO - NPU IDLE cycles: 643\nINFO - NPU TOTAL cycles: 104514\n"


def _file(folder: Path, text: str, name: str = "measured.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_runners_log(program: ethorch.Program, tmp_path: Path) -> None:
    found = import_profile(record_of(program), _file(tmp_path, RUNNER))
    figures = {figure.name: figure for figure in found.figures}
    npu = figures["NPU cycles"]
    assert (npu.measured, npu.estimated, npu.count) == (20000, program.estimate.npu_cycles, 1)
    assert npu.ratio == pytest.approx(20000 / (program.estimate.npu_cycles or 0))
    assert (
        figures["cycles of delegate 0"].measured == 20000
        and figures["cycles of delegate 0"].estimated == program.estimate.npu_cycles
    )
    assert figures["CPU cycles"].measured == 4500
    assert found.counters == {"AXI0_RD_DATA_BEAT_RECEIVED": 300, "NPU_IDLE": 10} and not found.layers
    assert "cycles of delegate 0" in str(found) and json.loads(json.dumps(found.to_json()))["figures"][0]["ratio"] == npu.ratio


@pytest.mark.parametrize(
    ("text", "cycles"),
    [(KIT, 104514), ("Ethos-U PMU report:\nethosu_pmu_cycle_cntr : 134869\n", 134869), ("run 0: 7 cycles of the NPU\n", 7)],
)
def test_logs_of_others(program: ethorch.Program, tmp_path: Path, text: str, cycles: int) -> None:
    found = import_profile(record_of(program), _file(tmp_path, text))
    assert [figure.measured for figure in found.figures] == [cycles]
    assert found.counters == ({"AXI0_RD_DATA_BEAT_RECEIVED": 530, "IDLE": 643} if text == KIT else {})


def test_times_of_calls_are_their_median(program: ethorch.Program, tmp_path: Path) -> None:
    found = import_profile(record_of(program), _file(tmp_path, "call,milliseconds\n0,2\n1,2.5\n\n2,9\n", "times.csv"))
    (figure,) = found.figures
    assert (figure.measured, figure.least, figure.most, figure.count) == (
        2.5,
        2,
        9,
        3,
    ) and figure.estimated == program.estimate.milliseconds


def test_samples_of_qread_belong_to_layers(program: ethorch.Program, tmp_path: Path) -> None:
    (commands,) = command_maps(
        subject(record_of(program).build), record_of(program).layers, record_of(program).command_sources
    ).values()
    npu = [layer for layer in record_of(program).layers if layer.where == NPU and layer.fused_into is None]
    assert set(commands.layers) == {layer.index for layer in npu} and list(commands.layers) == sorted(commands.layers)
    first, last = commands.offsets[0], commands.offsets[-1]
    assert commands.at(0) == commands.at(first + 4) == commands.layers[0] and commands.at(last) == commands.layers[-2]
    assert commands.at(last + 4) == commands.at(commands.stream_bytes) == commands.layers[-1]

    rows = f"stream_id,qread_bytes,samples\n7,{first + 4},30\n7,{last + 4},10\n"
    table = _file(tmp_path, rows, "qread.csv")
    found = import_profile(record_of(program), table, _file(tmp_path, RUNNER))
    by_index = {row.index: row for row in found.layers}
    slow = by_index[commands.layers[0]]
    assert (slow.samples, slow.measured_share, slow.measured_cycles) == (30, 0.75, 15000)
    assert slow.ratio == pytest.approx(15000 / (slow.estimated_cycles or 0)) and slow.estimated_share is not None
    assert by_index[commands.layers[-1]].samples == 10 and sum(row.samples for row in found.layers) == 40
    assert slow.name in str(found)

    alone = import_profile(record_of(program), _file(tmp_path, json.dumps({hex(first + 4): 3}), "qread.json"))
    assert {row.measured_cycles for row in alone.layers} == {None}
    assert next(row for row in alone.layers if row.samples).ratio == pytest.approx(1 / slow.estimated_share)

    file = import_profile(record_of(ethorch.load(program.pte)), table)
    assert sum(row.samples for row in file.layers) == 40 and {row.ratio for row in file.layers} == {None}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a log"),
        ("hello\n", "expected a log"),
        ("ok\nethosu_pmu_cycle_cntr : many\n", "line 2, ethosu_pmu_cycle_cntr: expected a decimal"),
        (
            "ethosu_pmu_cycle_cntr : -5\n",
            "line 1, ethosu_pmu_cycle_cntr: expected a decimal or 0x-prefixed hexadecimal integer, got '-5'",
        ),
        ("ethosu_pmu_cycle_cntr : 9999999999999999\n", "expected at most 9007199254740992"),
        (
            "ethosu_pmu_cycle_cntr : 5 (. per inference)\n",
            "line 1, count per inference: expected a number greater than -1, got '.'",
        ),
        ("Ethos-U delegate 5 PMU cycles: 40\n", "expected counters of the program's delegates, got counters of delegate 5"),
        ("qread_bytes,samples\n", "expected rows after the header qread_bytes, samples"),
        ("qread_bytes,samples\n4,1\n8\n", "line 3: expected 2 columns"),
        ("qread_bytes,samples\n\n6,1\n", "line 3: expected an offset that is a multiple of 4, got 6"),
        ("qread_bytes,samples\n4,-1\n", "line 2, count: expected a decimal or 0x-prefixed hexadecimal integer, got '-1'"),
        ("qread_bytes,samples\n4,0\n", "got only zeros"),
        (
            "qread_bytes,samples\n4000000,1\n",
            r"line 2: expected an offset within the \d+ bytes of commands for delegate 0, got 4000000",
        ),
        ("delegate,qread_bytes,samples\n3,4,1\n", r"line 2: expected an NPU delegate of the program \(0\), got delegate 3"),
        ("stream_id,qread_bytes,samples\na,4,1\nb,4,1\n", "got 2 stream_ids \(a, b\)"),
        ("milliseconds\nnan\n", "line 2, milliseconds: expected a number greater than 0"),
        ("milliseconds\n0\n", "line 2, milliseconds: expected a number greater than 0, got '0'"),
        ('{"4": 1.5}', "entry '4', count: expected a decimal or 0x-prefixed hexadecimal integer, got '1.5'"),
        ('{"4": true}', "entry '4', count: expected a decimal or 0x-prefixed hexadecimal integer, got 'True'"),
        ("{", "Expecting property name"),
        ("[" * 9 + "\n{", "expected a log"),
        ("{" + '"a":{' * 5000, "recursion|Expecting"),
        ('qread_bytes,samples\n4,"' + "9" * 200_000, "line 2: (field larger|.*count: expected)"),
    ],
)
def test_wrong_files_are_refused(program: ethorch.Program, tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        import_profile(record_of(program), _file(tmp_path, text))


def test_files_that_are_not_there(program: ethorch.Program, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"cannot read .*: No such file"):
        import_profile(record_of(program), tmp_path / "none.log")
    with pytest.raises(SpecError, match="expected at least one file"):
        import_profile(record_of(program))


def test_a_profile_on_the_command_line(program: ethorch.Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program.save(tmp_path / "net")
    command = ["report", str(tmp_path / "net"), "--profile", str(_file(tmp_path, RUNNER))]
    assert cli.main([*command, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["figures"][0]["measured"] == 20000 and data["counters"]["NPU_IDLE"] == 10
    assert cli.main(command) == 0 and "NPU cycles" in capsys.readouterr().out
    assert cli.main(["report", str(tmp_path / "net"), "--profile", str(_file(tmp_path, "nothing"))]) == 1
