"""Ctrl-C at any moment of a load or a run comes out as KeyboardInterrupt, and the next call is as if nothing had been."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ethorch import runtime
from tests.backend.test_build import made
from tests.helpers.host import Stub

INPUTS = (torch.ones(1, 3, 8, 8),)


@pytest.fixture(scope="module")
def pte() -> bytes:
    """Two delegates with the CPU between them."""
    return made().pte


@pytest.fixture
def alarm() -> Iterator[None]:
    """SIGALRM does what Ctrl-C does."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def interrupt(call: Callable[[], Any], times: int) -> None:
    """Interrupt the call that often, at random moments of it; whatever else it raises comes through."""
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    chance, interrupted = random.Random(0), 0
    for _ in range(100 * times):
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 1.1 * min(seconds)))
            call()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupted += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        if interrupted == times:
            return
    raise AssertionError(f"only {interrupted} interruptions")


def test_a_run(pte: bytes, alarm: None) -> None:
    program = runtime.load(pte, machine=Stub)
    hook = sys.unraisablehook
    interrupt(lambda: program(*INPUTS), 200)
    assert sys.unraisablehook == hook


def test_a_run_of_the_simulator(pte: bytes, alarm: None) -> None:
    program = runtime.load(pte)
    (wanted,) = program(*INPUTS)
    interrupt(lambda: program(*INPUTS), 50)
    assert torch.equal(program(*INPUTS)[0], wanted)


def test_a_load(pte: bytes, alarm: None) -> None:
    interrupt(lambda: runtime.load(pte, machine=Stub), 50)


@pytest.mark.parametrize("name", ["_open", "_run", "_report", "_events"])
def test_what_leaves_a_callback_is_raised_by_the_call(name: str, pte: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal's exception does at a callback's first instruction, before its ``try``."""
    backend = runtime.delegate.host_backend()

    def interrupted(*args: Any) -> Any:
        raise KeyboardInterrupt

    def run() -> None:
        machine = (lambda payload: 1 / 0) if name == "_report" else Stub
        runtime.load(pte, machine=machine, etdump=True)(*INPUTS)

    kinds = {"_open": backend._OPEN, "_run": backend._RUN, "_report": backend._REPORT, "_events": backend._EVENTS}
    place = ["_open", "_run", "_close", "_report", "_events"].index(name)
    interrupted.__qualname__ = f"HostBackend.{name}"
    callbacks = list(backend._callbacks)
    callbacks[place] = kinds[name](interrupted)
    backend.library.ethorch_set_callbacks(*callbacks)
    try:
        with pytest.raises(ZeroDivisionError if name == "_report" else KeyboardInterrupt):
            run()
    finally:
        backend.library.ethorch_set_callbacks(*backend._callbacks)
