"""Compiles the package's own C++ on first use, into a per-user cache.

A library's name holds a digest of everything it is made from, so that a cached file is never stale, and one of its own
bytes: loading a truncated or overwritten library would end the process, so a file that does not fit its name is not loaded.
A digest protects against accidents only, so a folder or a file that another user can change is not used at all.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ethorch.support.errors import HostError

PREBUILT = Path(__file__).parent.parent / "prebuilt"  # libraries that a wheel brings along, by the names that the cache gives them
_unloadable: set[Path] = set()  # of these, what this computer refuses


def cache_folder() -> Path:
    """Where built libraries are kept: ETHORCH_CACHE_DIR, else XDG_CACHE_HOME/ethorch, else ~/.cache/ethorch."""
    if given := os.environ.get("ETHORCH_CACHE_DIR"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "ethorch"


def distrust(folder: Path) -> str | None:
    """Return why another user could replace a library in a folder, or None if only this user and root can.

    The folder and all above it, after symbolic links, must belong to this user or to root. Nobody else may have permission to
    write to them. Folders above it may be writable if they are sticky, as ``/tmp`` is.
    """
    folder = folder.resolve()
    for path in (folder, *folder.parents):
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return f"{path}: {error.strerror}"
        if status.st_uid not in (0, os.geteuid()):
            return f"{path} belongs to another user (uid {status.st_uid})"
        is_sticky = bool(status.st_mode & stat.S_ISVTX) and path != folder
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_sticky:
            return f"other users can write to {path} (mode {stat.S_IMODE(status.st_mode):o}; allow this user only: chmod go-w)"
    return None


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

    It is written under a temporary name and renamed, so that any number of processes may do this at once. Those that need the same
    library wait for the first, which compiles one file on each CPU.

    Args:
        name: how its file name starts.
        files, headers, flags: what it is made from.
        depends: a version of something outside that it is compiled against.
        purpose: who wants it, to be said when there is no compiler.
        otherwise: the command of another compiler, to be taken when there is none.

    Raises:
        HostError: there is no compiler, or CXX is no command, or the compiler fails, or the cache cannot be written to, or other
            users can write to it.
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
    danger = distrust(folder)
    cached = None if danger else _cached(folder, start, any_compiler=compiler is None)
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
    if danger:
        raise HostError(
            f"no library is loaded from {folder}: {danger}. Set ETHORCH_CACHE_DIR to a folder to which only this user can write."
        )
    try:
        for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
            missing.mkdir(exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix="building-", suffix=".so")
        os.close(handle)
    except OSError as error:
        raise HostError(
            f"cannot write the compiled library to {folder}: {error.strerror}. Set ETHORCH_CACHE_DIR to a folder of yours."
        ) from None
    try:
        with _locked(folder / f"building-{start}.lock"):
            if (cached := _cached(folder, start, any_compiler=False)) is not None:
                return cached
            _compile(name, [*compiler, *flags], files, temporary)
            os.chmod(temporary, 0o755)
            path = folder / f"{start}-{_content(Path(temporary))}.so"
            os.replace(temporary, path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"compiling {name} with {compiler[0]} failed: {error}") from None
    finally:
        Path(temporary).unlink(missing_ok=True)
    return path


def _compile(name: str, command: list[str], files: Sequence[Path], output: str) -> None:
    """Compile files, one on each CPU, and link them. HostError with what the compiler says if it fails."""

    def run(arguments: list[str]) -> None:
        result = subprocess.run([*command, *arguments], capture_output=True, timeout=600, check=False)
        if result.returncode:
            raise HostError(
                f"{command[0]} could not compile {name}; a compiler that knows C++20 is needed (g++ 10 or newer). "
                f"It said: {result.stderr.decode(errors='replace')[-2000:]}"
            )

    with tempfile.TemporaryDirectory(prefix="ethorch-build-") as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [f"{folder}/{number}.o" for number in range(len(files))]
        list(pool.map(run, (["-c", str(file), "-o", object] for file, object in zip(files, objects, strict=True))))
        run([*objects, "-o", output])


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait until no other process is inside with this file. It is removed at the end; a process that waits has it open."""
    with open(path, "wb") as file:
        with contextlib.suppress(OSError):  # a file system without locks: each process builds for itself
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


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
    """A library of a folder whose bytes are those that were built. Damaged ones, and other users', are removed.

    Args:
        start: its name up to the digest of its bytes; with ``any_compiler`` up to the digest of the compiler.
        keep: leave damaged ones, and pass over those that could not be loaded: the folder is not ours.
    """
    for path in sorted(folder.glob(f"{start}-*-*.so" if any_compiler else f"{start}-*.so")):
        if keep and path in _unloadable:
            continue
        try:
            whole = (keep or _is_own(path)) and path.stem.endswith(f"-{_content(path)}")
        except OSError:
            continue
        if whole:
            return path
        if not keep:
            _remove(path)
    return None


def _is_own(path: Path) -> bool:
    """Return True if a path is a file, not a link, that only this user or root can change."""
    status = path.lstat()
    is_private = status.st_uid in (0, os.geteuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(status.st_mode) and is_private


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
