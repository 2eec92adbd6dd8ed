"""The library that is compiled on first use, and its registration."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ethorch import runtime
from ethorch.runtime import library
from ethorch.support import native
from ethorch.support.errors import HostError
from tests.formats.test_payload import BLOB
from tests.helpers.host import random_inputs

ROOT = Path(__file__).parent.parent.parent


RUN = """
import sys
from ethorch import runtime
from tests.helpers.host import random_inputs
print(runtime.load(sys.argv[1])(*random_inputs("cnn"))[0].sum().item())
"""


def run_in_child(prelude: str, path: Path, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", f"{prelude}\n{RUN}", str(path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
    )


def test_the_order_of_imports_does_not_matter(incumbent):
    """Imported first, these kernels bring a copy of the runtime's core that the bindings then use."""
    wanted = runtime.load(incumbent / "cnn.pte")(*random_inputs("cnn"))[0].sum().item()
    child = run_in_child("import torch, executorch.kernels.quantized", incumbent / "cnn.pte")
    assert child.returncode == 0, child.stderr
    assert float(child.stdout) == wanted
    assert "register_pal" not in child.stderr


def test_without_a_compiler(monkeypatch, tmp_path):
    library.build_library()  # the compiler is there, normally
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("ETHORCH_CACHE_DIR", str(tmp_path / "empty"))
    with pytest.raises(HostError, match=r"no C\+\+ compiler was found.*apt install g\+\+.*CXX"):
        library.build_library()


def built_earlier(monkeypatch, tmp_path) -> Path:
    """The library in a cache of its own."""
    earlier = library.build_library()
    monkeypatch.setenv("ETHORCH_CACHE_DIR", str(tmp_path))
    return Path(shutil.copy(earlier, tmp_path))


def test_a_library_built_earlier_needs_no_compiler(monkeypatch, tmp_path):
    built = built_earlier(monkeypatch, tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert library.build_library() == built


def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
    compiler = tmp_path / "cxx"
    compiler.write_text("#!/bin/sh\necho 'error: unknown C++ standard' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("ETHORCH_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(HostError, match=r"requires C\+\+20.*unknown C\+\+ standard"):
        library.build_library()
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_unwritable_cache(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ETHORCH_CACHE_DIR", str(tmp_path / "file/cache"))
    with pytest.raises(HostError, match=r"cannot write .*Set ETHORCH_CACHE_DIR"):
        library.build_library()


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("ETHORCH_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.cache_folder() == tmp_path / "ethorch"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert native.cache_folder() == tmp_path / ".cache/ethorch"


def copying_compiler(folder: Path) -> str:
    """The path of a compiler that takes a moment and gives the library built earlier, whatever it is to compile."""
    compiler, earlier = folder / "cxx", library.build_library()
    compiler.write_text(f'#!/bin/sh\nfor output; do :; done\nsleep 0.2\n[ "$1" = --version ] || cp {earlier} "$output"\n')
    compiler.chmod(0o755)
    return str(compiler)


def test_a_damaged_library_is_built_again(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", copying_compiler(tmp_path))
    monkeypatch.setenv("ETHORCH_CACHE_DIR", str(tmp_path / "cache"))
    built = library.build_library()
    built.unlink()
    built.write_bytes(b"not a library")
    assert library.load_library().ethorch_parse(BLOB, len(BLOB)) is None
    assert library.load_library().ethorch_parse(b"", 0) is not None


def test_several_processes_build_at_once(tmp_path):
    script = "from ethorch.runtime import library; print(library.build_library())"
    env = {**os.environ, "ETHORCH_CACHE_DIR": str(tmp_path / "cache"), "CXX": copying_compiler(tmp_path)}
    children = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=env) for _ in range(2)]
    outputs = {child.communicate(timeout=300)[0] for child in children}
    assert [child.returncode for child in children] == [0, 0]
    assert len(outputs) == 1
    assert [str(path) for path in (tmp_path / "cache").iterdir()] == [outputs.pop().strip()]
