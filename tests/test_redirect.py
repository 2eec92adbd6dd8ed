"""The lock around calls that redirect std::cout, across forks."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from ethorch.redirect import COUT_LOCK

pytestmark = [pytest.mark.core, pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")]


def status_of_child() -> int:
    """Fork a process that makes a call of its own and ends; one that hangs dies of a signal."""
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        with COUT_LOCK:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_while_another_thread_is_inside():
    inside, leave = threading.Event(), threading.Event()

    def call() -> None:
        with COUT_LOCK:
            inside.set()
            leave.wait()

    thread = threading.Thread(target=call)
    thread.start()
    inside.wait()
    threading.Timer(0.3, leave.set).start()
    assert status_of_child() == 0
    assert leave.is_set()  # the fork has waited: inside, std::cout points into the stack of the other thread
    thread.join()
    assert COUT_LOCK.acquire(blocking=False)
    COUT_LOCK.release()


def test_a_fork_from_inside():
    with COUT_LOCK:
        assert status_of_child() == 0
