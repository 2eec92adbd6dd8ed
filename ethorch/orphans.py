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
def end_worker_with(parent: int) -> None:
    """Let this worker process end soon after the process that started it.

    A thread looks at the parent's process number, so a worker inside C++ that holds Python's lock ends after that call. Nothing
    happens in a process that ``parent`` did not start itself, such as a worker of a cluster.

    Args:
        parent: The process that hands out the work.
    """
    worker = multiprocessing.current_process()
    if getattr(worker, "_parent_pid", None) == parent and worker.name != "MainProcess":
        threading.Thread(target=_end_after, args=(parent,), name="ethorch-orphans", daemon=True).start()


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
