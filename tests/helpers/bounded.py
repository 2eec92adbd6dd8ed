"""Call functions in a separate process with limits of CPU seconds per call and of memory."""

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

#: Calls after which a child is replaced, because its caches grow.
CALLS = 500
#: Wall-clock time that a call may take, relative to its CPU seconds: other processes may use the CPUs.
PATIENCE = 10
#: Words of errors of Python, C++ and PyTorch about too little memory.
_OF_MEMORY = ("MemoryError", "bad_alloc", "can't allocate memory")


class Bounded:
    """A fork of this process that calls functions and keeps its state between calls.

    After a call that takes too long or kills it, the next call creates another fork.
    """

    def __init__(self, seconds: float, gigabytes: float):
        self.seconds, self.gigabytes = seconds, gigabytes
        self._child: Any = None

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the result of ``function``, pickled like ``args``.

        Raises:
            TimeoutError: The call exceeded ``seconds`` of CPU time, or ``PATIENCE`` times as many seconds.
            MemoryError, RuntimeError: The call raised this or another error. The message contains the child's traceback.
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
    other_end.close()  # otherwise the child would wait forever if the parent is killed
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
