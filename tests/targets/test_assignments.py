"""``--set FIELD=VALUE``: every field can be set, values are TOML or texts, and what is wrong is named."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from ethorch.support.errors import SpecError
from ethorch.targets.assignments import describe_fields, parse_axes, parse_latency, with_assignments
from ethorch.targets.settings import Settings

WORDS: dict[str, tuple[str, Any]] = {
    "target": ("ethos-u85-256", "ethos-u85-256"),
    "scheme": ("a16w8", "a16w8"),
    "modules": ('{head = "float"}', {"head": "float"}),
    "io": ("int8", "int8"),
    "io_layout": ("nhwc", "nhwc"),
    "partition": ("cost", "cost"),
    "shapes": ('["1x3x8x8"]', (((1, 3, 8, 8),),)),
    "system_config": ("Ethos_U55_High_End_Embedded", "Ethos_U55_High_End_Embedded"),
    "memory_mode": ("Sram_Only", "Sram_Only"),
    "config_ini": ("Arm/vela.ini", "Arm/vela.ini"),
    "vela_flags": ('["--optimise=Size"]', ("--optimise=Size",)),
    "arena": ("64K", 65536),
    "constants": ("sram", "sram"),
    "ram": ("1M", 2**20),
    "flash": ("1.5M", 3 * 2**19),
    "latency_ms": ("33.3", 33.3),
    "min_sqnr_db": ("20", 20),
    "board": ("corstone-300", "corstone-300"),
    "verify": ("false", False),
    "stream": ("vela", "vela"),
    "share_weights": ("false", False),
    "etrecord": ("true", True),
    "samples": ("{max_samples = 3}", {"max_samples": 3}),
}


def test_every_field_has_a_word() -> None:
    assert list(WORDS) == [entry.name for entry in fields(Settings)]
    assert [row[0] for row in describe_fields()] == list(WORDS) and all(meaning for _, _, meaning in describe_fields())


@pytest.mark.parametrize("name", WORDS)
def test_a_field_is_set(name: str) -> None:
    text, value = WORDS[name]
    found = with_assignments(Settings(), [f"{name}={text}"])
    assert getattr(found, name) == value
    assert Settings.from_toml(found.to_toml()) == found


def test_entries_of_tables_are_added() -> None:
    before = Settings(modules={"head": "float"})
    found = with_assignments(before, ["modules.stem=a16w8", 'modules."a.b"=int8', "samples.mean=[0.5]"])
    assert found.modules == {"head": "float", "stem": "a16w8", "a.b": "int8"} and found.samples == {"mean": [0.5]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["arena"], "expected FIELD=VALUE"),
        (["modules.=float"], "expected FIELD=VALUE"),
        (["arean=1"], "unknown setting 'arean'.*arena"),
        (["arena=1K", "arena=2K"], "assigns two values to arena"),
        (["modules.a=float", "modules.a=int8"], r"assigns two values to modules\.a"),
        (["modules.a=float", "modules={}"], "assigns two values to modules"),
        (["modules={}", "modules.a=float", "modules.a=int8"], "two values"),
        (["arena.a=1"], "expected a setting that is a table .*, got arena"),
        (["samples.size=1"], "unknown entry of samples 'size'"),
        (["samples.calibrate=3"], r"samples\.calibrate is 3"),
        (["verify=1"], "verify is 1; expected true or false"),
    ],
)
def test_what_is_wrong_is_named(words: list[str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        with_assignments(Settings(), words)


def test_latency_is_a_time_or_a_rate() -> None:
    assert [parse_latency(text) for text in ("5ms", "2.5", "30fps", " 8000 FPS ")] == [5, 2.5, 1000 / 30, 0.125]
    for text in ("0fps", "fps", "-1", "1e3", "5 s", ""):
        with pytest.raises(SpecError, match="--latency '"):
            parse_latency(text)


def test_axes_have_several_values() -> None:
    axes = parse_axes(["scheme=int8, a16w8", "target=all"])
    assert axes["scheme"] == ["int8", "a16w8"] and len(axes["target"]) == 11
    for words, said in (
        (["scheme"], "FIELD=A,B,C"),
        (["scheme=,"], "FIELD=A,B,C"),
        (["io=int8", "io=uint8"], "io occurs in two --vary"),
    ):
        with pytest.raises(SpecError, match=said):
            parse_axes(words)
