"""Whatever a name or a title contains, generated files hold it as text: strings of a .pte, of a board's file and of YAML."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import ethorch
from ethorch.deploy.firmware.delegate import write_delegate
from ethorch.deploy.firmware.escapes import c_comment, c_string, linker_labels, markdown
from ethorch.deploy.firmware.firmware import firmware
from ethorch.deploy.firmware.mlops import Mlops, write_ai_layer
from ethorch.support.errors import BoardError
from ethorch.targets import boards
from ethorch.targets.boards.loading import FOLDER
from ethorch.targets.boards.loading import parse as parse_board
from tests.helpers.firmware import built_and_run, program

TITLE = '*/ #error "title" \\'
PIECES = [
    *("*/", "/*", "//", "\\", '"', "'", "\n", "\r", "\0", "??/", "??)", "%s", "#error x"),
    *("`", "|", "<b>", "${X}", "$(X)", "é", "\u202e", "a", " ", "0"),
]


def hostile_texts(count: int) -> list[str]:
    generator = random.Random(1)
    return ["".join(generator.choices(PIECES, k=generator.randrange(1, 9))) for _ in range(count)]


def test_strings_and_comments_in_c(tmp_path: Path) -> None:
    """A program prints its strings as they were, and each comment ends where it should."""
    texts = hostile_texts(300)
    lines = ["#include <stdio.h>", "static const char *const texts[] = {"]
    lines += [f'/* {c_comment(text)} */ "{c_string(text)}", /* {c_comment(text)}. */' for text in texts]
    lines += ["};", "static const unsigned sizes[] = {", *(f"{len(text.encode())}u," for text in texts), "};"]
    lines += ["int main(void) {", f"for (int i = 0; i < {len(texts)}; i++) fwrite(texts[i], 1, sizes[i], stdout);", "return 0; }"]
    (tmp_path / "texts.c").write_text("\n".join(lines))
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "no C compiler"
    command = [compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-o", str(tmp_path / "texts"), str(tmp_path / "texts.c")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert subprocess.run([tmp_path / "texts"], capture_output=True, check=True).stdout == "".join(texts).encode()


def test_markdown_has_one_line_and_no_marks() -> None:
    for text in map(markdown, hostile_texts(300)):
        assert text.isprintable() and "\n" not in text and "<" not in text
        assert not re.search(r"(?<!\\)(\\\\)*[`|*_\[\]#$]", text)


def test_labels_of_memories_differ() -> None:
    labels = linker_labels(["sram", "a-b", "a_b", "a.b", "0", "origin", "len", "é"])
    assert labels["sram"] == "SRAM" and len(set(labels.values())) == len(labels)
    assert all(re.fullmatch(r"[A-Z]\w*", label, re.ASCII) for label in labels.values())
    assert not {"ORIGIN", "LEN"} & set(labels.values())


def board_text(title: str, names: dict[str, str] | None = None) -> str:
    """Return Corstone-300's description with another title and other names of memories."""
    lines = (FOLDER / "corstone-300.toml").read_text().splitlines()
    key = r'^(name|constants|feature_maps|staging) = "([\w-]+)"'
    renamed = [re.sub(key, lambda found: f'{found[1]} = "{(names or {}).get(found[2], found[2])}"', line) for line in lines]
    return "\n".join(f"title = {json.dumps(title)}" if line.startswith("title = ") else line for line in renamed)


def test_a_project_of_hostile_names_passes(tmp_path: Path) -> None:
    """The method's name, the board's title and the memories' names."""
    pte = program("small", "ethos-u55-128").pte
    method = b'"*/\n\\?%'
    assert pte.count(b"\x07\0\0\0forward\0") == 1
    (tmp_path / "hostile.pte").write_bytes(pte.replace(b"\x07\0\0\0forward\0", b"\x07\0\0\0" + method + b"\0"))
    memories = [memory.name for memory in boards.load("corstone-300").memories]
    hostile = ["origin", "0", "a-b", "a_b", "a.b", "len", "l", "o", "memory", "length"]
    (tmp_path / "hostile.toml").write_text(board_text(TITLE, dict(zip(memories, hostile, strict=False))))
    folder = tmp_path / 'it\'s "a" $(folder)'
    made = firmware(tmp_path / "hostile.pte", folder, board=str(tmp_path / "hostile.toml"))
    assert boards.load(tmp_path / "hostile.toml").title == TITLE and TITLE not in (folder / "firmware" / "board.h").read_text()
    assert c_string(method.decode()) in (folder / "model" / "model.c").read_text()
    assert markdown(TITLE) in (folder / "REPORT.md").read_text().splitlines()[0]
    assert [*made.methods] == [method.decode()]
    for path in folder.rglob("*.yml"):
        yaml.safe_load(path.read_text())
    built_and_run(folder)


def test_an_ai_layer_for_a_hostile_processor(tmp_path: Path) -> None:
    mlops = replace(Mlops("model", "ethos-u55-128", None, None, None, (), None, ""), processor='*/\n#error "x"\n/*')
    write_ai_layer(ethorch.load(program("small", "ethos-u55-128").save(tmp_path / "small.pte")), tmp_path / "layer", mlops)
    text = (tmp_path / "layer" / "model" / "model_params.h").read_text()
    assert not any(line.startswith("#error") for line in text.splitlines()) and text.splitlines()[0].endswith("*/")
    write_delegate(tmp_path / "delegate")


@pytest.mark.parametrize("title", ["two\nlines", "a\u202eb", "\x1b[31m"])
def test_a_title_has_one_line_of_what_prints(title: str) -> None:
    with pytest.raises(BoardError, match=r"title: .*nonempty single-line string"):
        parse_board(board_text(title).encode())


@pytest.mark.parametrize("command", ["FVP_x/../../bin/sh", "FVP_a b", "sh", "FVP_"])
def test_an_fvp_is_a_command_on_path(command: str) -> None:
    text = re.sub(r"(?m)^fvp = .*$", f"fvp = {{ u55 = '{command}' }}", (FOLDER / "corstone-300.toml").read_text())
    with pytest.raises(BoardError, match="a command without a folder: FVP_"):
        parse_board(text.encode())
