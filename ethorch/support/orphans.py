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
    """Open a pipe that breaks when this process ends, and return its read descriptor.

    Args:
        process: Id of this process. The pipe is cached per id, so a forked process opens its own.
    """
    reading, _ = os.pipe()  # only this process has the write end, and never closes it
    return reading


@functools.lru_cache(maxsize=1)
def end_worker_with(parent: int, pipe: int) -> None:
    """End this worker process when its parent ends, on Linux even while C++ code holds the GIL.

    On other systems, a thread polls the parent's id, and the worker ends after the C++ code returns. If ``parent`` did not
    start this process, nothing happens.

    Args:
        parent: Id of the process that assigns the work.
        pipe: Result of ``lifeline`` in that process.
    """
    # PR_SET_PDEATHSIG is not suitable, because it depends on the thread that started the worker.
    worker = multiprocessing.current_process()
    if getattr(worker, "_parent_pid", None) == parent and worker.name != "MainProcess":
        threading.Thread(target=_end_after, args=(parent,), name="ethorch-orphans", daemon=True).start()
        if sys.platform.startswith("linux"):
            with contextlib.suppress(OSError):  # /proc may hide other processes
                _end_at_hangup(os.open(f"/proc/{parent}/fd/{pipe}", os.O_RDONLY | os.O_NONBLOCK))


def _end_at_hangup(pipe: int) -> None:
    import fcntl  # Unix only

    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(128 + signal.SIGTERM)


def end_child_with(parent: int) -> None:
    """End this process if its parent has already ended. On Linux, the process also ends when the parent ends.

    Args:
        parent: Id of the parent. The parent's thread that started this process must wait for it to end.
    """
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):  # the C library has no prctl
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent has already ended
        os._exit(128 + signal.SIGTERM)
