"""Tensors of every dtype an NPU takes, several methods, threads: what the runtime hands over is what was meant."""

from __future__ import annotations

import threading

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from torch import nn

from ethorch import EthosUCompileSpec, EthosUPartitioner, runtime
from ethorch.backend.preprocess import register_quantized_kernels

SHAPE = (1, 3, 4, 5)


class Integers(nn.Module):
    """An operator for each dtype, exact in PyTorch and on the NPU."""

    def forward(self, a, b, c, d):
        return a + a * 3, b & 12, torch.logical_not(c), d | 5


class Halves(nn.Module):
    """Another method: other shapes, other inputs."""

    def forward(self, a, b):
        return a - b, torch.maximum(a, b) * 2


def integers(seed: int = 0) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    a, b, d = (
        torch.randint(-bound, bound, SHAPE, generator=g).to(dtype)
        for bound, dtype in ((10**6, torch.int32), (128, torch.int8), (32768, torch.int16))
    )
    return a, b, torch.rand(SHAPE, generator=g) > 0.5, d


def pair(seed: int = 0) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(-(10**6), 10**6, (2, 7), generator=g, dtype=torch.int32) for _ in range(2))


@pytest.fixture(scope="module")
def buffer() -> bytes:
    """A .pte with both as methods."""
    register_quantized_kernels()
    methods = {
        "forward": torch.export.export(Integers(), integers()),
        "halves": torch.export.export(Halves(), pair()),
    }
    edge = to_edge_transform_and_lower(methods, partitioner=[EthosUPartitioner(EthosUCompileSpec("ethos-u85-256"))])
    return bytes(edge.to_executorch().buffer)


def same(found, wanted) -> bool:
    return all(f.dtype == w.dtype and torch.equal(f, w) for f, w in zip(found, wanted, strict=True))


def test_integers_and_truth_values_of_every_width(buffer):
    program = runtime.load(buffer)
    assert [[t.element_size for t in d.inputs] for d in program.delegates] == [[4, 1, 1, 2]]
    dtypes = [program.description.values[index].dtype for index in program.description.inputs]
    assert dtypes == ["int32", "int8", "bool", "int16"]
    for seed in range(3):
        assert same(program(*integers(seed)), Integers()(*integers(seed)))


def test_methods_of_one_program_take_turns(buffer):
    """Each with its own delegates and its own plan of memory; results of one call do not change in the next."""
    first, second = runtime.load(buffer), runtime.load(buffer, "halves")
    assert len(first.delegates) == len(second.delegates) == 1 and first.delegates != second.delegates
    kept = []
    for seed in range(3):
        kept.append((first(*integers(seed)), second(*pair(seed))))
    for seed, (one, other) in enumerate(kept):
        assert same(one, Integers()(*integers(seed))) and same(other, Halves()(*pair(seed)))


def test_methods_in_threads(buffer):
    problems: list[object] = []

    def work(method: str) -> None:
        module, make = (Integers(), integers) if method == "forward" else (Halves(), pair)
        try:
            program = runtime.load(buffer, method)
            problems.extend(seed for seed in range(4) if not same(program(*make(seed)), module(*make(seed))))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(method,)) for method in ("forward", "halves") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not problems and not any(thread.is_alive() for thread in threads)
