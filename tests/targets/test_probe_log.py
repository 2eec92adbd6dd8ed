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
STREAMS = ["vela", "attention", "copy_elision", "dma_copies", "block_sizes", "optimized"]


def log(**different: int | None) -> str:
    """The output of a board: the number of runs with other outputs per stream, or None if the log ends before its result."""
    counts = {**dict.fromkeys(STREAMS, 0), **different}
    pending = "".join(f"[00:02] stream {name}: pending\r\n" for name in STREAMS)
    results = [f"stream {name}: 1000 runs, {count} different\r\n" for name, count in counts.items() if count is not None]
    return f"{HEAD}{pending}{''.join(results)}"


@pytest.mark.parametrize(
    ("text", "omitted"),
    [
        (log(), set[str]()),
        (log(attention=3, optimized=3), {"attention"}),
        (log(copy_elision=None, optimized=None), {"copy-elision"}),
        (log(attention=1, copy_elision=None, optimized=None), {"attention", "copy-elision"}),
        (log(optimized=1), set(PASSES)),
        (log(attention=7) + log(), {"attention"}),
        (log().replace("stream copy_elision: pending", "").replace("stream copy_elision: 1000", ""), {"copy-elision"}),
        (log().replace("stream resident_weights", ""), set[str]()),
    ],
    ids=["correct", "different", "ended", "both", "combination", "boots", "untested", "not tested, but like Vela's"],
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
        (log().replace(TARGET, "ethos-u85-256"), f"is for ethos-u85-256, but the target is {TARGET}"),
        (log(vela=1000), "the board failed to run Vela's stream"),
        (log(vela=None), "the board failed to run Vela's stream"),
        (log().replace("attention", "magic"), "unknown stream 'magic'"),
        (log().replace("vela: 1000", f"vela: {'1' * 5000}"), "the board failed to run Vela's stream"),
    ],
)
def test_an_unusable_log_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "board.log"
    file.write_text(text)
    with pytest.raises(SpecError, match=message):
        Settings(target=TARGET, stream=str(file))


def test_a_missing_or_binary_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"cannot read the probe's log .*none.log': No such file"):
        read_probe_log(tmp_path / "none.log", TARGET)
    with pytest.raises(SpecError, match="cannot read the probe's log"):
        read_probe_log(Path("\0.log"), TARGET)
    (tmp_path / "wide.log").write_text(log(attention=1), "utf-16")
    assert "attention" not in read_probe_log(tmp_path / "wide.log", TARGET)
    (tmp_path / "noise.log").write_bytes(bytes(range(256)) * 100)
    with pytest.raises(SpecError, match="is not the console output"):
        read_probe_log(tmp_path / "noise.log", TARGET)


def test_a_log_for_another_target_is_an_error_only_if_it_is_used(tmp_path: Path) -> None:
    file = tmp_path / "u85.log"
    file.write_text(log().replace(TARGET, "ethos-u85-256"))
    settings = Settings(stream=str(file))
    assert settings.to_json()["stream"] == str(file)
    assert settings.with_(target="ethos-u85-256").spec.stream_passes == frozenset(PASSES)
    with pytest.raises(SpecError, match="is for ethos-u85-256"):
        settings.with_(target="ethos-u55-256")


def test_a_log_beside_the_settings_is_read(tmp_path: Path) -> None:
    (tmp_path / "probe.log").write_text(log(attention=1))
    (tmp_path / "settings.toml").write_text(f'format = 1\ntarget = "{TARGET}"\nstream = "probe.log"\n')
    assert Settings.read(tmp_path / "settings.toml").spec.stream_passes == frozenset(PASSES) - {"attention"}
