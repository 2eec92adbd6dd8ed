"""What is wrong is answered with a named error, and the firmware goes on: the model's next run gives the right output."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ethorch.deploy.firmware import project_run
from ethorch.deploy.firmware.project_run import Options
from tests.helpers.firmware import project

CAUSES = {
    "init": "OK",
    "small-arena": "SMALL_MEMORY",
    "misaligned-arena": "BAD_ADDRESS",
    "good": "OK",
    "other-macs": "OTHER_NPU",
    "other-product": "OTHER_NPU",
    "newer-architecture": "OTHER_VERSION",
    "no-header": "BAD_STREAM",
    "longer-than-it-is": "BAD_STREAM",
    "cut-off": "BAD_STREAM",
    "without-stop": "NOT_ENDED",
    "no-command": "PARSE_ERROR",
    "misaligned-weights": "BAD_ADDRESS",
    "no-weights": "BAD_ADDRESS",
    "misaligned-stream": "BAD_ADDRESS",
    "arena-in-tcm": "BUS_FAULT",
    "arena-nowhere": "BUS_FAULT",
    "finish-without-start": "BUSY",
    "started-twice": "BUSY",
    "no-npu-there": "NO_NPU",
}
#: Before the model is initialized, it cannot run.
BEFORE = ("init", "small-arena", "misaligned-arena")


def faulty(folder: Path, target: str, interrupt: bool, only_good: bool = False) -> Path:
    """The ELF of faults.c, in the project of a small network."""
    project("small", target, folder)
    text = (folder / "model" / "model.c").read_text()
    found = {key: re.search(rf"\.{key} = (\w+)", text) for key in ("region_config", "queue_config")}
    values = {key: match[1] for key, match in found.items() if match}
    source = folder / "firmware" / "faults.c"
    source.write_text((Path(__file__).parent / "faults.c").read_text())
    sources = [path for path in project_run.read_description(folder)["sources"] if not path.endswith("main.c")]
    defines = {"REGIONS": values["region_config"], "QUEUE": values["queue_config"], "ONLY_GOOD": str(int(only_good))}
    return project_run.build(folder, Options(interrupt=interrupt, defines=defines), sources=[*sources, "firmware/faults.c"])


def run(folder: Path, elf: Path, **more: Any) -> tuple[dict[str, list[str]], Any]:
    from ethorch.deploy import virtual_board

    described = project_run.read_description(folder)
    done = virtual_board.run(elf, board=described["board"], npu=described["target"], timeout=120, **more)
    return {match[1]: match[2].split() for match in re.finditer(r"\[(\S+) ([^\]]+)\]", done.text)}, done


@pytest.mark.parametrize(
    ("target", "interrupt"),
    [
        ("ethos-u55-128", True),
        ("ethos-u85-256", False),
        *(pytest.param(t, i, marks=pytest.mark.long) for t in ("ethos-u65-256", "ethos-u85-1024") for i in (True, False)),
    ],
)
def test_each_fault_has_its_name_and_the_next_run_is_right(target: str, interrupt: bool, tmp_path: Path) -> None:
    answers, done = run(tmp_path, faulty(tmp_path, target, interrupt))
    assert {name: answer[0] for name, answer in answers.items()} == CAUSES, done.text
    for name, answer in answers.items():
        if name not in BEFORE:
            assert answer[1:] == ["OK", "equal"], (name, answer)
    said = json.dumps([fault.to_json() for fault in done.faults])
    assert "tcm" in said.lower(), said


@pytest.mark.parametrize(
    ("fault", "interrupt"),
    [("no-interrupt", True), pytest.param("never-ends", True, marks=pytest.mark.long), ("never-ends", False)],
)
def test_an_npu_that_does_not_answer_is_a_timeout(fault: str, interrupt: bool, tmp_path: Path) -> None:
    answers, _ = run(tmp_path, faulty(tmp_path, "ethos-u55-128", interrupt, only_good=True), inject=(fault,))
    assert answers["good"][:2] == ["OK", "TIMEOUT"]


def test_weights_that_changed_are_found_before_they_are_used(tmp_path: Path) -> None:
    from elftools.elf.elffile import ELFFile

    from ethorch.deploy import virtual_board

    project("small", "ethos-u55-128", tmp_path)
    elf = project_run.build(tmp_path)
    with open(elf, "rb") as file:
        symbols = ELFFile(file).get_section_by_name(".symtab")
        address = symbols.get_symbol_by_name("model_weights_0")[0]["st_value"]
    content = (tmp_path / "model" / "model_weights_0.bin").read_bytes()
    done = virtual_board.run(elf, board="corstone-300", npu="ethos-u55-128", data={address + 40: bytes([content[40] ^ 1])})
    assert "model_check: CORRUPT_DATA" in done.text and "FAIL" in done.text
