"""A function in a process of its own, which may take so many seconds and so much memory."""

from __future__ import annotations

import multiprocessing
import resource
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def bounded(function: Callable[[], Any], seconds: float, gigabytes: float) -> Any:
    """What ``function`` returns, called in a fork of this process.

    Raises:
        TimeoutError: it took longer.
        MemoryError, RuntimeError: it raised that, or something else; with the child's traceback.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(function, there, gigabytes))
    child.start()
    there.close()
    try:
        if not here.poll(seconds):
            raise TimeoutError(f"it took more than {seconds:g} seconds")
        result, error = here.recv()
    except EOFError:
        raise RuntimeError("the process died") from None
    finally:
        child.kill()
        child.join()
        here.close()
    if error:
        raise (MemoryError if "MemoryError" in error or "bad_alloc" in error else RuntimeError)(error)
    return result


def _run(function: Callable[[], Any], there: Connection, gigabytes: float) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (int(gigabytes * 2**30), hard))
    try:
        there.send((function(), ""))
    except BaseException:
        there.send((None, traceback.format_exc(limit=-3)))
