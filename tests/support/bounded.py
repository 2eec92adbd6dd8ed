"""Functions in a process of their own, each of which may take so many seconds, and all so much memory."""

from __future__ import annotations

import multiprocessing
import resource
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

#: A child that has answered so many calls makes way for a new one: caches grow.
CALLS = 500


class Bounded:
    """A fork of this process that calls functions, and what it keeps from one call it has in the next.

    Where one takes too long or kills it, the next call makes another fork.
    """

    def __init__(self, seconds: float, gigabytes: float):
        self.seconds, self.gigabytes = seconds, gigabytes
        self._child: Any = None

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """What ``function`` returns; it and ``args`` are pickled.

        Raises:
            TimeoutError: it took longer than ``seconds``.
            MemoryError, RuntimeError: it raised that, or something else; with the child's traceback.
        """
        if self._child is None:
            context = multiprocessing.get_context("fork")
            self._pipe, there = context.Pipe()
            self._child = context.Process(target=_serve, args=(there, self._pipe, self.gigabytes), daemon=True)
            self._child.start()
            self._calls = 0
            there.close()
        try:
            self._pipe.send((function, args))
            if not self._pipe.poll(self.seconds):
                raise TimeoutError(f"it took more than {self.seconds:g} seconds")
            result, error = self._pipe.recv()
        except (EOFError, ConnectionError):
            self.close()
            raise RuntimeError("the process died") from None
        except BaseException:
            self.close()
            raise
        self._calls += 1
        if self._calls == CALLS or "MemoryError" in error or "bad_alloc" in error:
            self.close()
        if error:
            raise (MemoryError if "MemoryError" in error or "bad_alloc" in error else RuntimeError)(error)
        return result

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.join()
            self._pipe.close()
            self._child = None


def _serve(pipe: Connection, other_end: Connection, gigabytes: float) -> None:
    other_end.close()  # else it would wait forever where the parent is killed
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (int(gigabytes * 2**30), hard))
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        try:
            answer = (function(*args), "")
        except BaseException:
            answer = (None, traceback.format_exc(limit=-6))
        pipe.send(answer)
