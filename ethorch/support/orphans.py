"""Processes that end when the process that started them ends, even if a signal killed it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import multiprocessing
import os
import signal
import sys
import threading
import time

_POLL_SECONDS = 0.2
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@functools.lru_cache(maxsize=1)
def lifeline(process: int) -> int:
    """Open a pipe that breaks when this process ends, and return the file descriptor of its reading end.

    Args:
        process: The number of this process, so that each has its own pipe.
    """
    reading, _ = os.pipe()  # only this process has the other end, and never closes it
    return reading


@functools.lru_cache(maxsize=1)
def end_worker_with(parent: int, pipe: int) -> None:
    """Let this worker process end when the process that started it ends, on Linux even inside C++ that holds Python's lock.

    Elsewhere, a thread compares the parent's process number, and such a worker ends after the C++ call. PR_SET_PDEATHSIG would end
    it with the thread that started it, which may be another than the one that hands out the work. Nothing happens in a process
    that ``parent`` did not start itself, such as a worker of a cluster.

    Args:
        parent: The process that hands out the work.
        pipe: ``lifeline`` of that process.
    """
    worker = multiprocessing.current_process()
    if getattr(worker, "_parent_pid", None) == parent and worker.name != "MainProcess":
        threading.Thread(target=_end_after, args=(parent,), name="ethorch-orphans", daemon=True).start()
        if sys.platform.startswith("linux"):
            with contextlib.suppress(OSError):  # a /proc that hides other processes
                _end_at_hangup(os.open(f"/proc/{parent}/fd/{pipe}", os.O_RDONLY | os.O_NONBLOCK))


def _end_at_hangup(pipe: int) -> None:
    """Have the kernel send SIGKILL to this process when nobody holds the writing end of a pipe any more (fcntl(2), O_ASYNC)."""
    import fcntl  # Unix only

    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(128 + signal.SIGTERM)


def end_child_with(parent: int) -> None:
    """Let this process end at once if its parent ends, on Linux even inside C++.

    Args:
        parent: The process that started this one. Its thread that did waits for this process: Linux watches threads.
    """
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):  # a C library without prctl
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended already
        os._exit(128 + signal.SIGTERM)
