"""Standard output around calls into C++: the lock, across forks, and the lines that are not for the user."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch
from torch import nn

import ethorch
from ethorch.support.redirect import COUT_LOCK, without_lines

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


def test_only_the_lines_that_are_named_are_dropped(capfd):
    with without_lines(b"noise", b"more noise") as omitted:
        os.write(1, b"noise of a library\nmore noise\nan answer: noise\n")
        os.write(1, b"without a newline")
    assert omitted == [b"noise of a library\n", b"more noise\n"]
    assert capfd.readouterr().out == "an answer: noise\nwithout a newline"


def test_what_is_printed_before_an_error_is_kept(capfd):
    with pytest.raises(ValueError, match="inside"), without_lines(b"noise"):
        os.write(1, b"said\n")
        raise ValueError("inside")
    os.write(1, b"later\n")
    assert capfd.readouterr().out == "said\nlater\n"


def test_standard_output_is_the_programs_alone(capfd):
    """Vela prints a line for each SCATTER; a program that reads our JSON must not."""

    class Write(nn.Module):
        def forward(self, x, at):
            return x.index_copy(0, at, x[:2] * 2)

    ethorch.compile(Write(), (torch.randn(16, 32), torch.tensor([3, 5], dtype=torch.int32)), "ethos-u85-256")
    assert capfd.readouterr().out == ""
