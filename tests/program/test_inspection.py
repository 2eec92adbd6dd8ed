"""ExecuTorch's Inspector of a program, with estimated cycles as columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ethorch
from ethorch.program.program import Program, record_of
from ethorch.support.errors import HostError, SpecError
from tests.testing.networks import Topk, image


@pytest.fixture(scope="module")
def program() -> Program:
    return ethorch.compile(Topk(), image(), "ethos-u55-128")


def test_npu_operators_have_vela_s_cycles(program: Program) -> None:
    found = program.profile()
    table = found.to_dataframe(include_units=False)
    rows = table[table["is_delegated_op"] == True]  # noqa: E712 (a column)
    assert len(rows) >= 2 and rows["estimated_cycles"].notna().all()
    npu = {str(s): s.op_cycles for sources in (record_of(program).command_sources or {}).values() for s in sources.all()}
    assert dict(zip(rows["event_name"], rows["estimated_cycles"], strict=True)) == npu
    assert sum(npu.values()) == sum(layer.cycles or 0 for layer in record_of(program).layers if layer.where == "NPU")
    assert rows["estimated_us"].tolist() == [cycles / 500 for cycles in rows["estimated_cycles"]]
    assert (rows["avg"] > 0).all() and any("aten.conv2d.default at stem" in name for name in rows["event_name"])


def test_cpu_kernels_have_the_estimate_of_their_layer(program: Program) -> None:
    table = program.profile(*image(), runs=2).to_dataframe()
    names = [name for name in table["event_name"] if name.startswith("native_call_")]
    if not names:
        pytest.skip("the wheel of ExecuTorch 1.4 records no operators of its own")
    cpu = [layer.cycles for layer in record_of(program).layers if layer.where == "CPU"]
    assert table[table["event_name"].isin(names)]["estimated_cycles"].tolist() == cpu
    assert len(table["raw"].iloc[-1]) == 2, "two runs"


def test_times_of_cpu_kernels_are_at_the_cpus_clock() -> None:
    board = ethorch.compile(Topk(), image(), board="renesas-ra8p1")
    record = record_of(board)
    assert record.core_clock_hz != record.cpu_clock_hz
    table = board.profile().to_dataframe(include_units=False)
    known = table[table["estimated_cycles"].notna()]
    for delegated, clock in ((True, record.core_clock_hz), (False, record.cpu_clock_hz)):
        rows = known[known["is_delegated_op"] == delegated]
        assert rows["estimated_us"].tolist() == [1e6 * cycles / clock for cycles in rows["estimated_cycles"]]
        assert len(rows) or not delegated


def test_it_prints_and_a_file_has_as_much_as_it_tells(program: Program, tmp_path: Path) -> None:
    text = str(program.profile())
    assert "estimated_cycles" in text.splitlines()[0] and "aten.conv2d.default at stem" in text
    saved = ethorch.load(program.save(tmp_path / "saved"))
    with pytest.raises(HostError, match="has no example inputs"):
        saved.profile()
    known = saved.profile(*image()).to_dataframe()
    assert known["estimated_cycles"].dropna().sum() == program.profile(*image()).to_dataframe()["estimated_cycles"].dropna().sum()
    bare = ethorch.load(program.pte).profile(*image()).to_dataframe()
    delegated = bare[bare["is_delegated_op"] == True]  # noqa: E712 (a column)
    assert len(delegated) and delegated["estimated_cycles"].isna().all()


def test_wrong_inputs_are_refused(program: Program) -> None:
    with pytest.raises(HostError, match="for other shapes"):
        program.profile(torch.rand(1, 3, 9, 9))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"files": ["uart.log"], "runs": 2}, "expected files without runs, got both"),
        ({"files": ["uart.log"], "etrecord": "etrecord.bin"}, "expected files without etrecord, got both"),
        ({"runs": 0}, "expected runs to be a positive number, got 0"),
    ],
)
def test_arguments_without_an_effect_are_refused(program: Program, options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        program.profile(**options)
    with pytest.raises(SpecError, match="expected files without inputs, got both"):
        program.profile(*image(), files=["uart.log"])


def test_an_etrecord_maps_npu_and_cpu_events_to_operators_and_modules(tmp_path: Path) -> None:
    found = ethorch.compile(Topk(), image(), "ethos-u55-128", settings=ethorch.Settings(etrecord=True))
    rows = (
        found.profile(*image(), etrecord=found.save(tmp_path / "topk") / "etrecord.bin")
        .to_dataframe(include_units=False)
        .set_index("event_name")
    )
    on_npu = rows[rows["is_delegated_op"] == True]  # noqa: E712 (a column)
    conv = on_npu[on_npu.index.str.contains("aten.conv2d.default at stem")]
    assert len(conv) >= 1
    for operators, modules in zip(conv["op_types"], conv["module_hierarchy"], strict=True):
        assert "aten.conv2d.default" in operators
        assert any("stem" in path for names in modules.values() for path in names)
    again = ethorch.compile(Topk(), image(), "ethos-u55-128", settings=ethorch.Settings(etrecord=True))
    assert found.pte == again.pte
