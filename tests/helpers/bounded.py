"""Functions in a process of their own, each of which may take so many seconds of the CPU, and all so much memory."""

from __future__ import annotations

import math
import multiprocessing
import resource
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

#: A child that has answered so many calls makes way for a new one: caches grow.
CALLS = 500
#: How much longer than its seconds of the CPU a call may take on the clock: other processes may keep the CPUs busy.
PATIENCE = 10
#: Words of errors of Python, C++ and PyTorch about too little memory.
_OF_MEMORY = ("MemoryError", "bad_alloc", "can't allocate memory")


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
            TimeoutError: it took the CPU for longer than ``seconds``, or ``PATIENCE`` times that on the clock.
            MemoryError, RuntimeError: it raised that, or something else; with the child's traceback.
        """
        if self._child is None:
            context = multiprocessing.get_context("fork")
            self._pipe, there = context.Pipe()
            self._child = context.Process(target=_serve, args=(there, self._pipe, self.seconds, self.gigabytes), daemon=True)
            self._child.start()
            self._calls = 0
            there.close()
        try:
            self._pipe.send((function, args))
            if not self._pipe.poll(PATIENCE * self.seconds):
                raise TimeoutError(f"it took more than {PATIENCE * self.seconds:g} seconds")
            result, error = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._child.join(1)
            status = self._child.exitcode
            self.close()
            if status == -signal.SIGXCPU:
                raise TimeoutError(f"it took the CPU for more than {self.seconds:g} seconds") from None
            raise RuntimeError("the process died") from None
        except BaseException:
            self.close()
            raise
        self._calls += 1
        of_memory = any(words in error for words in _OF_MEMORY)
        if self._calls == CALLS or of_memory:
            self.close()
        if error:
            raise (MemoryError if of_memory else RuntimeError)(error)
        return result

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.join()
            self._pipe.close()
            self._child = None


def _serve(pipe: Connection, other_end: Connection, seconds: float, gigabytes: float) -> None:
    other_end.close()  # else it would wait forever where the parent is killed
    _, most_seconds = resource.getrlimit(resource.RLIMIT_CPU)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = int(gigabytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time() + seconds), most_seconds))
        try:
            answer = (function(*args), "")
        except BaseException:
            answer = (None, traceback.format_exc(limit=-6))
        pipe.send(answer)
