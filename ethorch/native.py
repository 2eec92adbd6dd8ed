"""Compiles the package's own C++ on first use, into a per-user cache.

A library's name holds a digest of everything it is made from, so that a cached file is never stale.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from ethorch.errors import HostError

#: Held around calls into ExecuTorch's runtime and into Vela. Both redirect std::cout to a buffer of the call (pybind11's
#: scoped_ostream_redirect) and put back what they found; when two threads' calls overlap, std::cout is left with the
#: buffer of a call that has ended, and the next call to flush it ends the process.
REDIRECTING = threading.RLock()


def cache_folder() -> Path:
    """Where built libraries are kept: ETHORCH_CACHE_DIR, else XDG_CACHE_HOME/ethorch, else ~/.cache/ethorch."""
    if given := os.environ.get("ETHORCH_CACHE_DIR"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "ethorch"


def build(
    name: str, files: Sequence[Path], flags: Sequence[str], headers: Sequence[Path] = (), depends: str = "", purpose: str = ""
) -> Path:
    """A shared library, compiled if this user has not done so before.

    Written to a temporary name and renamed, so that any number of processes may do this at once. HostError when there
    is no compiler, or no place to write to.

    Args:
        name: how its file name starts.
        files, headers, flags: what it is made from.
        depends: a version of something outside that it is compiled against.
        purpose: who wants it, to be said when there is no compiler.
    """
    flags = ["-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", *flags]
    digest = hashlib.sha256(" ".join([depends, *flags]).encode())
    for file in (*files, *headers):
        digest.update(file.read_bytes())
    key = digest.hexdigest()[:20]
    folder = cache_folder()
    compiler = _compiler()
    if compiler is None:
        for built in sorted(folder.glob(f"{name}-{key}-*.so")):
            return built
        raise HostError(
            f"no C++ compiler was found, and {purpose} builds a small library on first use. Install one (Debian, "
            "Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install), or set CXX to the "
            "one you have."
        )
    path = folder / f"{name}-{key}-{hashlib.sha256(_compiler_version(compiler)).hexdigest()[:8]}.so"
    if path.is_file():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix="building-", suffix=".so")
        os.close(handle)
    except OSError as error:
        raise HostError(
            f"cannot write the compiled library to {folder}: {error.strerror}. Set ETHORCH_CACHE_DIR to a folder of yours."
        ) from None
    try:
        command = [*compiler, *flags, *map(str, files), "-o", temporary]
        result = subprocess.run(command, capture_output=True, timeout=600, check=False)
        if result.returncode:
            raise HostError(
                f"{compiler[0]} could not compile {name}; a compiler that knows C++20 is needed (g++ 10 or newer). "
                f"It said: {result.stderr.decode(errors='replace')[-2000:]}"
            )
        os.chmod(temporary, 0o755)
        os.replace(temporary, path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"compiling {name} with {compiler[0]} failed: {error}") from None
    finally:
        Path(temporary).unlink(missing_ok=True)
    return path


def load(build: Callable[[], Path]) -> ctypes.CDLL:
    """The library that ``build`` makes; built once more when the file in the cache is damaged."""
    path = build()
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        path.unlink(missing_ok=True)
        try:
            return ctypes.CDLL(str(build()))
        except OSError as error:
            raise HostError(f"the compiled library cannot be loaded: {error}") from None


def _compiler() -> list[str] | None:
    """Command of the C++ compiler: CXX if set, else the first of the usual ones that is there."""
    for command in (os.environ.get("CXX", ""), "g++", "clang++", "c++"):
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            return words
    return None


def _compiler_version(compiler: list[str]) -> bytes:
    try:
        return subprocess.run([*compiler, "--version"], capture_output=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return b""
