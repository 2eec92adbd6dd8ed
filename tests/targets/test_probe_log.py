"""The output of a probe as the setting ``stream``: only the passes that it confirms are used."""

from __future__ import annotations

from pathlib import Path

import pytest

from ethorch.npu.passes.names import PASSES
from ethorch.support.errors import SpecError
from ethorch.targets.probe_log import read_probe_log
from ethorch.targets.settings import Settings

TARGET = "ethos-u55-128"
HEAD = f"[00:01] model probe for {TARGET}\r\nbytes: arena 29120\r\n"
STREAMS = ["vela", "attention", "copy_elision", "optimized"]


def log(**different: int | None) -> str:
    """The output of a board: the number of runs with other outputs per stream, or None if the log ends before its result."""
    counts = {**dict.fromkeys(STREAMS, 0), **different}
    results = [f"stream {name}: 1000 runs, {count} different\r\n" for name, count in counts.items() if count is not None]
    return f"{HEAD}[00:02] streams: {', '.join(STREAMS)}\r\n{''.join(results)}"


@pytest.mark.parametrize(
    ("text", "omitted"),
    [
        (log(), set[str]()),
        (log(attention=3, optimized=3), {"attention"}),
        (log(copy_elision=None, optimized=None), {"copy-elision"}),
        (log(attention=1, copy_elision=None, optimized=None), {"attention", "copy-elision"}),
        (log(optimized=1), set(PASSES)),
    ],
    ids=["correct", "different", "ended", "both", "combination"],
)
def test_passes_that_the_log_does_not_confirm_are_omitted(tmp_path: Path, text: str, omitted: set[str]) -> None:
    file = tmp_path / "board.log"
    file.write_text(text)
    settings = Settings(target="u55-128", stream=str(file))
    expected = ",".join(name for name in PASSES if name not in omitted) or "vela"
    assert settings.selected_stream == expected == settings.to_json()["stream"]
    assert settings.spec.stream_passes == frozenset(PASSES) - omitted
    file.unlink()
    assert Settings.from_toml(settings.to_toml()).spec.stream_passes == frozenset(PASSES) - omitted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not the console output of a probe. Write the firmware with `ethorch firmware --probe`"),
        (HEAD, "is not the console output of a probe"),
        (log().replace(TARGET, "ethos-u85-256"), f"is of ethos-u85-256, but the target is {TARGET}"),
        (log(vela=1000), "the board failed to run Vela's stream"),
        (log(vela=None), "the board failed to run Vela's stream"),
        (log().replace("attention", "magic"), "unknown stream 'magic'"),
    ],
)
def test_an_unusable_log_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "board.log"
    file.write_text(text)
    with pytest.raises(SpecError, match=message):
        Settings(target=TARGET, stream=str(file))


def test_a_missing_or_binary_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"cannot read the probe's log .*none.log: No such file"):
        read_probe_log(tmp_path / "none.log", TARGET)
    (tmp_path / "noise.log").write_bytes(bytes(range(256)) * 100)
    with pytest.raises(SpecError, match="is not the console output"):
        read_probe_log(tmp_path / "noise.log", TARGET)
