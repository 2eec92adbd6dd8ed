"""``ethorch report``: of a model, of what --json printed, of a saved folder, of a .pte, and beside an earlier build."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ethorch import cli
from tests.cli.commands import MODEL


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's file, and two builds of it."""
    folder = tmp_path_factory.mktemp("reports")
    (folder / "net.py").write_text(MODEL)
    for name, options in (("int8", []), ("wide", ["--scheme", "a16w8"])):
        assert cli.main(["compile", f"{folder}/net.py:small", "-o", f"{folder}/{name}", *options]) == 0
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    capsys.readouterr()
    assert cli.main([*map(str, arguments)]) == status
    return capsys.readouterr().out


def test_report_of_a_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "small.html"
    said = run(capsys, "report", f"{folder}/net.py:small", "-o", out, "--set", "ram=1K", "--set", "samples.max_samples=3")
    assert "MORE than the limit of 1.0 KiB" in said and "dB relative to the float model" in said and said.endswith(f"Saved {out}\n")
    text = out.read_text()
    assert "<title>net.py:small on ethos-u55-128: ethorch report</title>" in text and str(folder) not in text
    command = (
        r"<pre>ethorch compile net\.py:small -o model\.pte --target ethos-u55-128 --scheme int8 --ram 1024 --set arena=\d+</pre>"
    )
    assert re.search(command, text)
    assert "<code>--min-sqnr-db</code>" in text, "an option is not broken behind its dashes"


def test_report_with_inputs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(1, 3, 16, 16)).astype(np.float32))
    run(capsys, "report", f"{folder}/net.py:small", "-o", folder / "small.html", "--inputs", folder / "x.npy")
    assert "1 sample. " in (folder / "small.html").read_text()


def test_report_of_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = folder / "printed.json"
    printed.write_text(run(capsys, "compile", f"{folder}/net.py:small", "-o", folder / "again.pte", "--json"))
    pages = {}
    for source in (printed, folder / "int8", folder / "int8" / "model.pte", folder / "int8" / "program.json"):
        out = folder / "page.html"
        found = json.loads(run(capsys, "report", source, "-o", out, "--json"))
        assert found["output"] == str(out) and found["layers"] and found["advice"]
        pages[source.name] = out.read_text()
    assert "Cycles are unknown" in pages["model.pte"] and "Cycles are unknown" not in pages["int8"]
    assert pages["int8"] == pages["program.json"].replace("<title>program.json", "<title>int8").replace(
        "<h1>program.json", "<h1>int8"
    )


def test_explain_of_a_saved_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_folder, of_file = (
        json.loads(run(capsys, "explain", source, "--json")) for source in (folder / "int8", folder / "int8" / "model.pte")
    )
    assert [row["where"] for row in of_folder["operators"]] == [row["where"] for row in of_file["operators"]]
    assert any(row["cycles"] for row in of_folder["operators"] if row["where"] == "NPU"), "the folder knows Vela's cycles"


def test_formats(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    assert "Does it fit?" in run(capsys, "report", folder / "int8")
    said = run(capsys, "report", folder / "int8", "-o", "-")
    assert said.startswith("## int8\n") and "| RAM |" in said and "Saved" not in said
    assert json.loads(run(capsys, "report", folder / "int8", "--format", "json", "-o", "-"))["layers"]
    assert sorted(folder.iterdir()) == before, "no file was asked for"
    run(capsys, "report", folder / "int8", "-o", "page.md")
    assert (folder / "page.md").read_text().startswith("## int8\n")


def test_trace(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = []
    for source in (f"{folder}/net.py:small", folder / "int8"):
        run(capsys, "report", source, "-o", folder / "net.trace.json")
        traces.append(json.loads((folder / "net.trace.json").read_text()))
    assert traces[0] == traces[1]
    assert {event["cat"] for event in traces[0]["traceEvents"] if event["ph"] == "X"} == {"NPU", "DMA", "CPU"}
    capsys.readouterr()
    assert cli.main(["report", f"{folder}/int8/model.pte", "-o", f"{folder}/none.trace.json"]) == 1
    assert "cycles of layer" in capsys.readouterr().err and not (folder / "none.trace.json").exists()


def test_times_of_cpu_operators_are_at_the_cpus_clock(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "compile", f"{folder}/net.py:small", "-o", folder / "board", "--board", "renesas-ra8p1")
    data = json.loads((folder / "board" / "program.json").read_text())
    assert data["cpu_clock_hz"] == 2 * data["core_clock_hz"]
    run(capsys, "report", folder / "board", "-o", folder / "board.trace.json")
    events = json.loads((folder / "board.trace.json").read_text())["traceEvents"]
    on_cpu = [event for event in events if event.get("cat") == "CPU"]
    wanted = [layer["op_cycles"] / data["cpu_clock_hz"] * 1e6 for layer in data["layers"] if layer["where"] == "CPU"]
    assert [event["dur"] for event in on_cpu] == pytest.approx(wanted, abs=0.01)


def test_an_earlier_build(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = run(capsys, "report", folder / "int8", "--baseline", folder / "int8", "--fail-on-regression", 0)
    assert "0 of" in same
    arguments = ["report", folder / "wide" / "program.json", "--baseline", folder / "int8"]
    said = run(capsys, *arguments)
    assert "total_cycles" in said and "a16w8" in said and "WORSE" not in said
    assert "WORSE: ram_bytes" in run(capsys, *arguments, "--fail-on-regression", 1, status=3)
    run(capsys, *arguments, "--fail-on-regression", 100_000)
    found: dict[str, Any] = json.loads(run(capsys, *arguments, "--fail-on-regression", 1, "--json", status=3))
    assert found["settings"]["scheme"] == ["int8", "a16w8"] and any(line.startswith("ram_bytes") for line in found["regressions"])
    assert f"\nSaved {folder}/diff.md" in run(capsys, *arguments, "-o", folder / "diff.md")
    (folder / "diff.md").unlink()
    said = run(capsys, *arguments, "-o", "-")
    assert said.startswith("## What changed\n") and "| scheme | int8 | a16w8 |" in said and "total_cycles  " not in said


def test_an_earlier_build_of_several_methods(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads((folder / "int8" / "program.json").read_text())
    slower = {"total_cycles": 3 * data["total_cycles"]}
    for name, decode in (("before", {}), ("after", slower)):
        others = {"decode": {"method": "decode", **decode}}
        methods = {**data, "method": "prefill", "methods": ["prefill", "decode"], "other_methods": others}
        (folder / f"{name}.json").write_text(json.dumps(methods))
    arguments = ["report", folder / "after.json", "--baseline", folder / "before.json", "--fail-on-regression", 50]
    said = run(capsys, *arguments, status=3)
    assert "Method prefill:" in said and "Method decode:" in said and "WORSE: decode: total_cycles" in said
    assert "Method" not in run(capsys, *arguments, "--method", "prefill")
    assert "WORSE: total_cycles" in run(capsys, *arguments, "--method", "decode", status=3)
    found = json.loads(run(capsys, *arguments, "--json", status=3))
    assert found["method"] == "prefill" and list(found["other_methods"]) == ["decode"]


@pytest.mark.parametrize(
    ("arguments", "words", "status"),
    [
        (["report", "{}/int8", "--baseline", "{}/net.py"], "expected JSON printed by --json", 2),
        (["report", "{}/int8", "--baseline", "{}/none.json"], "cannot read", 1),
        (["report", "{}/int8", "--fail-on-regression", "1"], "Use --baseline PROGRAM", 2),
        (["report", "{}/int8", "-o", "{}/x.pdf"], "expected one of the suffixes .trace.json, .html", 2),
        (["report", "{}/int8", "--format", "pdf"], "expected one of trace, html, md, json", 2),
        (["report", "{}/int8", "-o", "{}/missing/x.html"], "cannot write", 1),
        (["report", "{}/int8", "--inputs", "{}/net.py"], "Pass the model", 2),
        (["report", "{}/int8/settings.toml"], "FILE.py:NAME", 2),
        (["report", "{}/none.pte", "-o", "{}/x.trace.json"], "cannot read", 1),
    ],
)
def test_wrong_input_is_one_clear_line(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str, status: int
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    capsys.readouterr()
    assert cli.main([argument.format(folder) for argument in arguments]) == status
    assert words in capsys.readouterr().err
    assert sorted(folder.iterdir()) == before
