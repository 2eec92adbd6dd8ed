"""One model in many ways: the table's figures are those of the programs, an exploration that was stopped goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import joblib
import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch import cli
from ethorch.program import explore as module
from ethorch.program.explore import Exploration, Variant
from ethorch.program.facts import Accuracy
from ethorch.report.page.exploration import exploration_page
from ethorch.support.errors import FormatError, SpecError
from ethorch.targets.settings import Settings

TARGETS = ["ethos-u55-64", "ethos-u55-128"]


def explored(model: nn.Module, images: list[Tensor], **more: Any) -> Exploration:
    options = {name: more.pop(name) for name in ("settings", "resume", "calibration") if name in more}
    jobs = more.pop("jobs", 1)
    axes = {"target": TARGETS, "scheme": ["int8", "a16w8"], **more}
    vary = {name: values for name, values in axes.items() if values is not None}
    return ethorch.explore(model, images[0], vary=vary, jobs=jobs, **{"calibration": images, **options})


@pytest.fixture(scope="module")
def found(model: nn.Module, images: list[Tensor]) -> Exploration:
    return explored(model, images, settings=Settings(ram="1M", latency_ms=100.0))


def test_each_variant_is_a_program(found: Exploration, model: nn.Module, images: list[Tensor]) -> None:
    assert [tuple(one.settings.values()) for one in found.variants] == [(t, s) for t in TARGETS for s in ("int8", "a16w8")]
    for one in found.variants:
        target, scheme = one.settings.values()
        program = ethorch.compile(model, images[0], target, calibration=images, scheme=scheme)
        assert (one.milliseconds, one.ram_bytes, one.flash_bytes) == (
            program.estimate.milliseconds, program.memory.ram_bytes, program.memory.flash_bytes,
        )  # fmt: skip
        assert program.accuracy is not None and one.sqnr_db == program.accuracy.sqnr_db and one.fits


def test_the_smallest_npu_that_keeps_the_budgets_is_named(found: Exploration) -> None:
    assert found.cheapest is not None and found.cheapest.settings["target"] == "ethos-u55-64"
    assert "is the fastest variant on the smallest NPU that meets all" in str(found) and "*" in str(found)
    assert "Budgets: ram 1,024.0 KiB, latency_ms 100." in str(found)


def test_the_front_is_what_no_other_beats() -> None:
    def made(ms: float, ram: int, sqnr: float | None) -> Variant:
        return Variant({"io": f"{ms} {ram} {sqnr}"}, ms, 1, 1e9, ram, 10, sqnr, 0, True)

    rows = [made(1, 100, 30), made(2, 50, 30), made(2, 100, 30), made(3, 100, 40), made(4, 100, None), Variant({}, error="no")]
    assert [one.front for one in module._with_front(rows)] == [True, True, False, True, True, False]


def test_what_one_variant_cannot_do_is_said_in_its_row(model: nn.Module, images: list[Tensor]) -> None:
    found = explored(model, images, scheme=["int8"], memory_mode=["Shared_Sram", "No_Such_Mode"], target=["ethos-u55-128"])
    good, bad = found.variants
    assert not good.error and "No_Such_Mode" in bad.error and bad.milliseconds is None and "No_Such_Mode" in str(found)
    with pytest.raises(ethorch.EthorchError, match=r"cannot compile any variant. First error: .*No_Such_Mode"):
        explored(model, images, scheme=["int8"], memory_mode=["No_Such_Mode"])


@pytest.mark.parametrize("sqnr_db", [float("nan"), float("inf")])
def test_undefined_accuracies_are_omitted(
    model: nn.Module, images: list[Tensor], monkeypatch: pytest.MonkeyPatch, sqnr_db: float
) -> None:
    monkeypatch.setattr(module, "measure_accuracy", lambda record: Accuracy(sqnr_db, 1))
    exploration = explored(model, images, scheme=["int8"], target=["ethos-u55-128"])
    assert exploration.variants[0].sqnr_db is None
    json.dumps(exploration.to_json(), allow_nan=False)


def test_boards_bring_their_own_npu_and_memories(model: nn.Module, images: list[Tensor]) -> None:
    found = explored(model, images, target=None, scheme=None, board=["alif-e7-hp", "himax-we2"], calibration=None)
    assert [one.settings for one in found.variants] == [{"board": "alif-e7-hp"}, {"board": "himax-we2"}]
    assert all(one.fits for one in found.variants) and found.cheapest is found.variants[1], "an ethos-u55-64"
    assert "the memories of each board" in " ".join(str(found).split())


def test_wrong_axes_are_refused(model: nn.Module, images: list[Tensor]) -> None:
    with pytest.raises(SpecError, match="vary: expected values"):
        ethorch.explore(model, images[0], vary={})
    for wrong in ({"target": ["ethos-u55-129"]}, {"scheme": ["int8", "int9"]}, {"arena": ["-5"]}, {"board": ["nobody"]}):
        with pytest.raises(SpecError):
            ethorch.explore(model, images[0], vary=wrong)
    with pytest.raises(SpecError, match="axis 'colour'"):
        ethorch.explore(model, images[0], vary={"colour": ["red"]})


def test_an_exploration_goes_on_where_it_was_stopped(
    model: nn.Module, images: list[Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, made = tmp_path / "variants.jsonl", []
    variant = module._variant

    def stopped(user: Any, settings: Settings, point: Any, accuracy: bool) -> Variant:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(point)
        return variant(user, settings, point, accuracy)

    monkeypatch.setattr(module, "_variant", stopped)
    part = explored(model, images, resume=log)
    assert part.interrupted and len(part.variants) == 2 and "The exploration was interrupted." in str(part)
    log.write_bytes(log.read_bytes() + b'{"of": "cut')  # it was killed while it wrote
    monkeypatch.setattr(module, "_variant", lambda *args: made.append(args[2]) or variant(*args))
    whole = explored(model, images, resume=log)
    assert len(made) == 4 and len(whole.variants) == 4 and whole.variants[:2] == explored(model, images, resume=log).variants[:2]
    assert len(made) == 4, "nothing is made twice"
    other = nn.Sequential(*model).eval()
    with torch.no_grad():
        other[0].weight.mul_(2)
    explored(other, images, resume=log, target=TARGETS[:1], scheme=["int8"])
    assert len(made) == 5, "another model is another exploration"
    log.write_text("no variant\n" + log.read_text())
    with pytest.raises(ethorch.EthorchError, match="line 1: expected a variant"):
        explored(model, images, resume=log)


def test_it_is_saved_as_a_page_and_as_data(found: Exploration, tmp_path: Path) -> None:
    data = json.loads(found.save(tmp_path / "front.json").read_text())
    assert len(data["variants"]) == 4 and data["cheapest"]["settings"]["target"] == "ethos-u55-64"
    page = found.save(tmp_path / "front.html").read_text()
    assert page.count("<tr>") >= 5 and "Pareto front" in page and "ethos-u55-64" in page
    assert len(page) < 5_000_000 and "http://" not in page
    with pytest.raises(ethorch.EthorchError, match=r"ends in \.html or \.json"):
        found.save(tmp_path / "front.txt")
    with pytest.raises(FormatError, match=r"expected the result of Exploration\.to_json"):
        exploration_page({"variants": [{}]})
    nasty = {**data, "variants": [{**data["variants"][0], "settings": {"target": "<script>alert(1)</script>"}}]}
    assert "<script>alert" not in exploration_page(nasty)


def test_the_command_line_prints_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()\n"
        "example_inputs = (torch.rand(1, 3, 8, 8),)\n"
    )
    command = ["explore", "net.py:model", "--vary", "target=u55-128,u85-256", "--jobs", "1", "--ram", "1K"]
    assert cli.main([*command, "-o", "front.html", "--json"]) == 3  # nobody keeps 1 KiB
    data = json.loads(capsys.readouterr().out)
    assert [one["settings"] for one in data["variants"]] == [{"target": "u55-128"}, {"target": "u85-256"}]
    assert data["cheapest"] is None and data["variants"][0]["sqnr_db"] is None and (tmp_path / "front.html").exists()
    assert cli.main(command[:2]) == 2
    assert "--vary" in capsys.readouterr().err


def test_ends_of_another_type_are_quantized_for_it(model: nn.Module, images: list[Tensor]) -> None:
    """int8 ends of a model in 16 bits are no ends of the model that was quantized just before, for float ends."""
    found = explored(model, images, target=TARGETS[:1], scheme=["a16w8"], io=["float32", "int8"], calibration=None)
    assert [one.error for one in found.variants] == ["", ""]


def test_processes_start_when_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "cpu_count", lambda: 4)
    assert not module._spreads(12, 0, 0.0, None), "nothing is known yet"
    assert not module._spreads(12, 2, 0.5, None) and module._spreads(12, 2, 20.0, None)
    assert not module._spreads(4, 1, 100.0, None) and not module._spreads(12, 2, 20.0, 1)
    assert module._spreads(12, 0, 0.0, 2), "the user says so"
    with joblib.parallel_config(backend="threading"):
        assert module._spreads(12, 0, 0.0, None), "the user has chosen a backend"


@pytest.mark.long
def test_workers_know_the_users_file(tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text("import torch\n\nclass Layer(torch.nn.Conv2d):\n    pass\n")
    (tmp_path / "net.py").write_text(
        "import torch\nfrom layers import Layer\n\nclass Net(torch.nn.Sequential):\n    pass\n\n"
        "model = Net(Layer(3, 8, 3), torch.nn.ReLU()).eval()\n"
        "example_inputs = (torch.rand(1, 3, 8, 8),)\n"
    )
    command = [
        sys.executable,
        "-m",
        "ethorch.cli",
        "explore",
        f"{tmp_path}/net.py:model",
        "--vary",
        "target=u55-64,u55-128,u55-256",
    ]
    command += ["--vary", "scheme=int8,a16w8", "--jobs", "2", "--json"]
    done = subprocess.run(command, cwd=tmp_path.parent, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and len(json.loads(done.stdout)["variants"]) == 6, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and "[calibration.single_sample]" in lines[0], "processes are quiet"


@pytest.mark.long
@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_workers_give_the_same(model: nn.Module, images: list[Tensor], found: Exploration, backend: str) -> None:
    with joblib.parallel_config(backend=backend):
        parallel = explored(model, images, settings=Settings(ram="1M", latency_ms=100.0), jobs=2, io=["float32", "int8"])
    alone = explored(model, images, settings=Settings(ram="1M", latency_ms=100.0), io=["float32", "int8"])
    assert parallel.variants == alone.variants and len(alone.variants) == 8
