"""Compiling from several threads of one process: torch.export allows one at a time, so the library serializes it."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch.program.program import record_of
from ethorch.support.exclusive import EXPORT_LOCK

X = torch.linspace(-1, 1, 3 * 12 * 12).sin().reshape(1, 3, 12, 12)
SPEC = ethorch.EthosUCompileSpec("ethos-u55-128")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return Net().eval()


def compiled(seed: int) -> ethorch.Program:
    return ethorch.compile(net(seed), X, "ethos-u55-128", calibration=[X])


@pytest.mark.core
def test_twelve_threads_compile_what_one_compiles() -> None:
    """Models are drawn before: the seed of torch is the process's."""
    models = [net(seed % 4) for seed in range(12)]
    alone = 3 * [ethorch.compile(model, X, "ethos-u55-128", calibration=[X]).pte for model in models[:4]]
    with ThreadPoolExecutor(12) as threads:
        found = list(threads.map(lambda model: ethorch.compile(model, X, "ethos-u55-128", calibration=[X]), models))
    assert [program.pte for program in found] == alone
    assert all(record_of(program).verification is not None and record_of(program).verification.equal == 1 for program in found)


@pytest.mark.long
def test_twelve_threads_do_different_things() -> None:
    models, program = [net(seed) for seed in range(12)], compiled(20)
    wanted = program(X)

    def trained(model: nn.Module) -> Any:
        return ethorch.tuning.convert_qat(ethorch.tuning.prepare_qat(model, X))

    work = [
        lambda model: ethorch.compile(model, X, "ethos-u85-256", calibration=[X], scheme="a16w8"),
        lambda model: ethorch.quantize(model, X, calibration=[X]),
        lambda model: ethorch.explore(model, X, calibration=[X], vary={"target": ["ethos-u55-64", "ethos-u65-256"]}),
        lambda model: ethorch.evaluate(program, [(X, 0)] * 4, jobs=1),
        lambda model: ethorch.tuning.sensitivity(model, SPEC, [(X,)]),
        lambda model: program.compare(X),
        lambda model: program.suggest(),
        lambda model: torch.testing.assert_close(program(X), wanted, rtol=0, atol=0),
        trained,
        lambda model: ethorch.tuning.mixed_precision(model, SPEC, [(X,)], target_sqnr_db=20.0),
        lambda model: ethorch.tuning.compress.plan(model, SPEC, [(X,)], min_sqnr_db=10.0),
        lambda model: ethorch.compile({"a": model, "b": model}, {"a": X, "b": X}, "ethos-u55-128"),
    ]
    with ThreadPoolExecutor(12) as threads:
        running = [threads.submit(function, model) for function, model in zip(work, models, strict=True)]
        for one in running:
            one.result()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the platform has no fork")
def test_a_fork_waits_until_no_thread_compiles() -> None:
    """The child's lock is free."""
    held, released = threading.Event(), threading.Event()

    def hold() -> None:
        with EXPORT_LOCK:
            held.set()
            released.wait(1)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = multiprocessing.get_context("fork").Process(target=EXPORT_LOCK.acquire)
    child.start()
    child.join(30)
    released.set()
    thread.join()
    assert child.exitcode == 0
