"""Compile the package's C++ code on first use, into a per-user cache.

A library's file name contains digests of its sources and contents, so that outdated or truncated files are not loaded. Files that
other users can change are not used.
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

PREBUILT = Path(__file__).parent.parent / "prebuilt"  # libraries in a wheel, with the same file names as in the cache
_unloadable: set[Path] = set()  # libraries that could not be loaded


def cache_folder() -> Path:
    """Return the folder for compiled libraries: ETHORCH_CACHE_DIR, XDG_CACHE_HOME/ethorch or ~/.cache/ethorch."""
    if folder := os.environ.get("ETHORCH_CACHE_DIR"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "ethorch"


def distrust(folder: Path) -> str | None:
    """Return the reason why other users could replace a library in a folder, or None if they cannot.

    After symbolic links are resolved, the folder and its parents must belong to this user or root. Other users must not have
    write access, except to sticky parents like ``/tmp``.
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
            return f"other users can write to {path} (mode {stat.S_IMODE(status.st_mode):o}; use chmod go-w)"
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
    """Return a shared library from the cache or the wheel, or compile it. Only one process compiles. Others wait.

    Args:
        name: Prefix of the file name.
        files, headers, flags: Inputs of the compilation.
        depends: Version of an external dependency.
        purpose: Feature that needs the library, named in the error if no compiler is found.
        otherwise: Fallback compiler command.

    Raises:
        HostError: The compiler is missing or fails, or the cache is not writable or not private.
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
    cached = None if danger else _find_cached(folder, start, any_compiler=compiler is None)
    if cached is None:
        cached = _find_cached(PREBUILT, of_sources, any_compiler=True, keep=True)
    if cached is not None:
        return cached
    if compiler is None:
        raise HostError(
            f"no C++ compiler was found, but {purpose} compiles a small library on first use. Install a compiler with apt install "
            "g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora) or xcode-select --install (macOS), or set CXX to an installed "
            "compiler."
        )
    if danger:
        raise HostError(
            f"the cache {folder} is not private: {danger}. Set ETHORCH_CACHE_DIR to a folder that only you can write to."
        )
    try:
        for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
            missing.mkdir(exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix="building-", suffix=".so")
        os.close(handle)
    except OSError as error:
        raise HostError(
            f"cannot write the compiled library to {folder}: {error.strerror}. Set ETHORCH_CACHE_DIR to a writable folder."
        ) from None
    try:
        with _hold_lock(folder / f"building-{start}.lock"):
            if (cached := _find_cached(folder, start, any_compiler=False)) is not None:
                return cached
            _compile(name, [*compiler, *flags], files, temporary)
            os.chmod(temporary, 0o755)
            path = folder / f"{start}-{_digest_of(Path(temporary))}.so"
            os.replace(temporary, path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"compiling {name} with {compiler[0]} failed: {error}") from None
    finally:
        Path(temporary).unlink(missing_ok=True)
    return path


def _compile(name: str, command: list[str], files: Sequence[Path], output: str) -> None:
    def run(arguments: list[str]) -> None:
        result = subprocess.run([*command, *arguments], capture_output=True, timeout=600, check=False)
        if result.returncode:
            raise HostError(
                f"{command[0]} cannot compile {name}, which requires C++20 (g++ 10 or newer). Output: "
                f"{result.stderr.decode(errors='replace')[-2000:]}"
            )

    with tempfile.TemporaryDirectory(prefix="ethorch-build-") as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [f"{folder}/{number}.o" for number in range(len(files))]
        list(pool.map(run, (["-c", str(file), "-o", object] for file, object in zip(files, objects, strict=True))))
        run([*objects, "-o", output])


@contextlib.contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    with open(path, "wb") as file:
        with contextlib.suppress(OSError):  # without file locks, each process builds its own library
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def load(build: Callable[[], Path]) -> ctypes.CDLL:
    """Load the library that ``build`` returns. If loading fails, rebuild it once. Raise HostError if loading fails again."""
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


def _find_cached(folder: Path, start: str, any_compiler: bool, keep: bool = False) -> Path | None:
    for path in sorted(folder.glob(f"{start}-*-*.so" if any_compiler else f"{start}-*.so")):
        if keep and path in _unloadable:
            continue
        try:
            is_valid = (keep or _is_own(path)) and path.stem.endswith(f"-{_digest_of(path)}")
        except OSError:
            continue
        if is_valid:
            return path
        if not keep:
            _remove(path)
    return None


def _is_own(path: Path) -> bool:
    status = path.lstat()
    is_private = status.st_uid in (0, os.geteuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(status.st_mode) and is_private


def _digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:20]


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # read-only cache, or already removed
        path.unlink()


def compiler_command() -> list[str] | None:
    """Return the command of the C++ compiler, i.e. the first available of CXX, g++, clang++ and c++, or None."""
    variable = os.environ.get("CXX", "")
    try:
        commands = [shlex.split(variable), ["g++"], ["clang++"], ["c++"]]
    except ValueError as error:
        raise HostError(f"CXX: expected a command, got {variable!r} ({error}). Set CXX to a C++ compiler, or unset it.") from None
    return next((words for words in commands if words and shutil.which(words[0])), None)


def _compiler_version(compiler: list[str]) -> bytes:
    try:
        return subprocess.run([*compiler, "--version"], capture_output=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return b""
