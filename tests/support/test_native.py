"""The compiler of the package's own C++, and its cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ethorch.support import native
from ethorch.support.errors import HostError

ROOT = Path(__file__).parent.parent.parent
SOURCE = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'
# Loading a damaged library ends the process, so libraries are loaded in one that may die.
LOAD = """
import sys
from pathlib import Path
from ethorch.support import native
print(native.load(lambda: native.build("answer", [Path(sys.argv[1])], ["-O0"])).answer())
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("ETHORCH_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "answer.cpp"
    path.write_text(SOURCE)
    return path


def build(source: Path) -> Path:
    return native.build("answer", [source], ["-O0"], purpose="this test")


def start(source: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", LOAD, str(source)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=env, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def answer(child: subprocess.Popen) -> str:
    stdout, stderr = child.communicate(timeout=120)
    assert child.returncode == 0, (child.returncode, stderr)
    return stdout.strip()


def test_a_library_is_compiled_once(source):
    built = build(source)
    before = built.stat().st_mtime_ns
    assert build(source) == built
    assert built.stat().st_mtime_ns == before and list(built.parent.iterdir()) == [built]


@pytest.mark.parametrize("damage", ["truncated", "half of it zeros", "empty", "one bit"])
def test_a_damaged_library_is_not_loaded(source, damage):
    path = build(source)
    data = path.read_bytes()
    half = len(data) // 2
    damaged = {
        "truncated": data[: half & ~4095],
        "half of it zeros": data[:half] + bytes(len(data) - half),
        "empty": b"",
        "one bit": data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :],
    }
    path.unlink()
    path.write_bytes(damaged[damage])
    assert answer(start(source)) == "42"
    assert path.read_bytes() == data


def test_a_wheels_library_is_taken_without_a_compiler(source, tmp_path, monkeypatch):
    """Whatever compiler built it; a damaged one, and one that cannot be loaded here, stay where they are."""
    wheel = tmp_path / "prebuilt"
    monkeypatch.setenv("ETHORCH_CACHE_DIR", str(wheel))
    path = build(source)
    monkeypatch.setenv("ETHORCH_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setattr(native, "PREBUILT", wheel)
    assert build(source) == path
    monkeypatch.setattr(native, "_unloadable", {path})
    assert build(source).parent == tmp_path / "empty" and path.exists()
    monkeypatch.setattr(native, "_unloadable", set())
    (tmp_path / "empty").rename(tmp_path / "away")
    path.write_bytes(path.read_bytes()[:4096])
    assert build(source).parent == tmp_path / "empty" and path.exists()
    (tmp_path / "empty").rename(tmp_path / "away too")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(HostError, match=r"no C\+\+ compiler was found"):
        build(source)


def test_without_a_compiler_a_damaged_library_is_none(source, monkeypatch):
    path = build(source)
    path.write_bytes(path.read_bytes()[:4096])
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(HostError, match=r"no C\+\+ compiler was found, but this test compiles"):
        build(source)


def test_a_library_in_a_cache_that_cannot_be_written_to(source, monkeypatch):
    path = build(source)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(native.tempfile, "mkstemp", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert build(source) == path
    path.write_bytes(b"damaged")
    with pytest.raises(HostError, match=r"cannot write the compiled library .*Permission denied.*Set ETHORCH_CACHE_DIR"):
        build(source)


OTHER = 65534  # the uid of nobody


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775, 0o770])
def test_a_cache_that_others_can_write_to_is_not_used(source, mode):
    path = build(source)
    path.parent.chmod(mode)
    with pytest.raises(HostError, match=rf"other users can write to .*cache \(mode {mode:o}.*chmod go-w.*Set ETHORCH_CACHE_DIR"):
        build(source)
    path.parent.chmod(0o755)
    assert build(source) == path


def test_no_folder_above_a_cache_may_be_one_that_others_can_write_to(source, tmp_path, monkeypatch):
    build(source)
    tmp_path.chmod(0o1777)
    build(source)  # as in /tmp: nobody else can rename the folder
    tmp_path.chmod(0o777)
    monkeypatch.setenv("ETHORCH_CACHE_DIR", str(tmp_path / "cache" / "not" / "there"))
    with pytest.raises(HostError, match="other users can write to"):
        build(source)
    tmp_path.chmod(0o700)
    assert [path.stat().st_mode & 0o777 for path in build(source).parents[:3]] == [0o700] * 3


def test_a_cache_that_is_a_link_is_judged_by_its_target(source, tmp_path, monkeypatch):
    path = build(source)
    (tmp_path / "link").symlink_to(path.parent)
    monkeypatch.setenv("ETHORCH_CACHE_DIR", str(tmp_path / "link"))
    assert build(source).resolve() == path
    path.parent.chmod(0o777)
    with pytest.raises(HostError, match="other users can write to"):
        build(source)


def test_a_cache_of_another_user_is_not_used(source, monkeypatch):
    path = build(source)
    if os.geteuid() == 0:
        os.chown(path.parent, OTHER, OTHER)
    else:  # only root can give a folder away
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    with pytest.raises(HostError, match=r"belongs to another user \(uid \d+\).*Set ETHORCH_CACHE_DIR"):
        build(source)


@pytest.mark.parametrize("kind", ["link", "writable", "foreign"])
def test_a_library_that_another_user_could_change_is_built_again(source, tmp_path, kind):
    """Its bytes fit its name: whoever puts it there can compute that."""
    path = build(source)
    if kind == "link":
        path.rename(tmp_path / "elsewhere.so")
        path.symlink_to(tmp_path / "elsewhere.so")
    elif kind == "writable":
        path.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(path, OTHER, OTHER)
    again = build(source)
    assert again == path and not again.is_symlink() and again.stat().st_mode & 0o777 == 0o755
    assert again.stat().st_uid == os.geteuid()


def test_processes_that_find_a_damaged_library_at_once(source):
    path = build(source)
    path.write_bytes(path.read_bytes()[:4096])
    children = [start(source) for _ in range(3)]
    assert [answer(child) for child in children] == ["42"] * 3
    assert list(path.parent.iterdir()) == [path]


def test_a_library_that_cannot_be_loaded_here_is_built_again(source):
    """Its bytes are as they were built, but not a library."""
    built = []

    def compile_or_not() -> Path:
        path = build(source)
        if not built:
            path.unlink()
            path = path.with_name("answer-not-a-library.so")
            path.write_text("not a library")
        built.append(path)
        return path

    assert native.load(compile_or_not).answer() == 42
    assert len(built) == 2 and not built[0].exists()


def test_what_cannot_be_loaded_at_all(tmp_path):
    def useless() -> Path:
        path = tmp_path / "useless.so"
        path.write_text("not a library")
        return path

    with pytest.raises(HostError, match="the compiled library cannot be loaded"):
        native.load(useless)


@pytest.mark.parametrize("value", ["'g++", 'g++ -DX="1', "g++ \\"])
def test_cxx_that_is_no_command(source, monkeypatch, value):
    monkeypatch.setenv("CXX", value)
    with pytest.raises(HostError, match=r"CXX: expected a command, got .* \(No "):
        build(source)


def test_cxx_may_hold_arguments(source, monkeypatch):
    compiler = os.environ.get("CXX", "g++").split()[0]
    monkeypatch.setenv("CXX", f"{compiler} -DNOTHING='a b'")
    assert build(source).is_file()
