"""Compiles the package's own C++ on first use, into a per-user cache.

A library's name holds a digest of everything it is made from, so that a cached file is never stale, and one of its own
bytes: loading a truncated or overwritten library would end the process, so a file that does not fit its name is not loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ethorch.errors import HostError

PREBUILT = Path(__file__).parent / "prebuilt"  # libraries that a wheel brings along, by the names that the cache gives them
_unloadable: set[Path] = set()  # of these, what this computer refuses


def cache_folder() -> Path:
    """Where built libraries are kept: ETHORCH_CACHE_DIR, else XDG_CACHE_HOME/ethorch, else ~/.cache/ethorch."""
    if given := os.environ.get("ETHORCH_CACHE_DIR"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "ethorch"


def build(
    name: str,
    files: Sequence[Path],
    flags: Sequence[str],
    headers: Sequence[Path] = (),
    depends: str = "",
    purpose: str = "",
    otherwise: Sequence[str] = (),
) -> Path:
    """A shared library, compiled unless the cache or the wheel has it whole.

    It is written under a temporary name and renamed, so that any number of processes may do this at once.

    Args:
        name: how its file name starts.
        files, headers, flags: what it is made from.
        depends: a version of something outside that it is compiled against.
        purpose: who wants it, to be said when there is no compiler.
        otherwise: the command of another compiler, to be taken when there is none.

    Raises:
        HostError: there is no compiler, or CXX is no command, or the compiler fails, or the cache cannot be written to.
    """
    flags = ["-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", *flags]
    digest = hashlib.sha256(" ".join([depends, *flags]).encode())
    for file in (*files, *headers):
        digest.update(file.read_bytes())
    start = of_sources = f"{name}-{digest.hexdigest()[:20]}"
    folder = cache_folder()
    compiler = compiler_command() or list(otherwise) or None
    if compiler is not None:
        start += f"-{hashlib.sha256(_compiler_version(compiler)).hexdigest()[:8]}"
    cached = _cached(folder, start, any_compiler=compiler is None)
    if cached is None:
        cached = _cached(PREBUILT, of_sources, any_compiler=True, keep=True)
    if cached is not None:
        return cached
    if compiler is None:
        raise HostError(
            f"no C++ compiler was found, and {purpose} builds a small library on first use. Install one (Debian, "
            "Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install), or set CXX to the "
            "one you have."
        )
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
        path = folder / f"{start}-{_content(Path(temporary))}.so"
        os.replace(temporary, path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"compiling {name} with {compiler[0]} failed: {error}") from None
    finally:
        Path(temporary).unlink(missing_ok=True)
    return path


def load(build: Callable[[], Path]) -> ctypes.CDLL:
    """The library that ``build`` makes; built once more when the cached one cannot be loaded here.

    Raises:
        HostError: it cannot be built, or what was built cannot be loaded.
    """
    path = build()
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        _unloadable.add(path)
        if path.parent != PREBUILT:
            _remove(path)
        try:
            return ctypes.CDLL(str(build()))
        except OSError as error:
            raise HostError(f"the compiled library cannot be loaded: {error}") from None


def _cached(folder: Path, start: str, any_compiler: bool, keep: bool = False) -> Path | None:
    """A library of a folder whose bytes are those that were built. Damaged ones are removed.

    Args:
        start: its name up to the digest of its bytes; with ``any_compiler`` up to the digest of the compiler.
        keep: leave damaged ones, and pass over those that could not be loaded: the folder is not ours.
    """
    for path in sorted(folder.glob(f"{start}-*-*.so" if any_compiler else f"{start}-*.so")):
        if keep and path in _unloadable:
            continue
        try:
            whole = path.stem.endswith(f"-{_content(path)}")
        except OSError:
            continue
        if whole:
            return path
        if not keep:
            _remove(path)
    return None


def _content(path: Path) -> str:
    """The digest of a library's bytes, as its name holds it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:20]


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # the cache may be read-only, or another process was quicker
        path.unlink()


def compiler_command() -> list[str] | None:
    """Command of the C++ compiler: CXX if set, else the first of the usual ones that is there."""
    given = os.environ.get("CXX", "")
    try:
        commands = [shlex.split(given), ["g++"], ["clang++"], ["c++"]]
    except ValueError as error:
        raise HostError(f"CXX is {given!r}, which is no command: {error}. Set it to a C++ compiler, or unset it.") from None
    return next((words for words in commands if words and shutil.which(words[0])), None)


def _compiler_version(compiler: list[str]) -> bytes:
    try:
        return subprocess.run([*compiler, "--version"], capture_output=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return b""
