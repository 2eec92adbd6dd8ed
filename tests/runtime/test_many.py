"""HostProgram.run_many: what one call after the other gives, from batches on the simulated NPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ethorch import runtime
from ethorch.formats import pte
from ethorch.runtime import many
from ethorch.support.errors import HostError, MachineFault
from tests.helpers.host import Stub, random_inputs

SAMPLES = 7


def samples(name: str) -> list[tuple[torch.Tensor, ...]]:
    first = random_inputs(name)
    return [tuple(x * (1 - k / 10) if x.is_floating_point() else x for x in first) for k in range(SAMPLES)]


@pytest.fixture
def batched(monkeypatch):
    """Small networks in batches too, three at a time; the numbers of the images that each delegate got at once."""
    monkeypatch.setattr(many, "LEAST_WORK", 0)
    monkeypatch.setattr(many, "MOST_INPUTS", 3)
    seen: list[int] = []
    run = many.npu.run_many

    def counted(program, inputs, *arguments, **options):
        seen.append(len(inputs[0][1]))
        return run(program, inputs, *arguments, **options)

    monkeypatch.setattr(many.npu, "run_many", counted)
    return seen


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["cnn", "interrupted"])
def test_as_one_call_after_the_other(incumbent, batched, name, threads):
    program = runtime.load(incumbent / f"{name}.pte")
    wanted = [program(*sample) for sample in samples(name)]
    assert len({tuple(x.flatten().tolist()) for x, *_ in wanted}) > 1
    found = program.run_many(samples(name), threads=threads)
    assert all(torch.equal(a, b) for x, y in zip(found, wanted, strict=True) for a, b in zip(x, y, strict=True))
    assert batched == [3] * len(program.delegates) * 2 + [1] * len(program.delegates)
    assert all(torch.equal(a, b) for a, b in zip(program(*samples(name)[0]), wanted[0], strict=True))  # usable as before


def test_small_networks_and_machines_of_the_callers_run_one_by_one(incumbent, batched, monkeypatch):
    program = runtime.load(incumbent / "cnn.pte", machine=Stub)
    assert len(program.run_many(samples("cnn"))) == SAMPLES
    monkeypatch.setattr(many, "LEAST_WORK", 1 << 60)
    assert len(runtime.load(incumbent / "cnn.pte").run_many(samples("cnn"))) == SAMPLES
    assert not batched


def test_a_fault_names_the_sample(incumbent, batched):
    program = runtime.load(incumbent / "cnn.pte", budget=1)
    with pytest.raises(MachineFault, match="work units"):
        program.run_many(samples("cnn"))
    program = runtime.load(incumbent / "cnn.pte")
    wrong = samples("cnn")
    wrong[4] = (torch.zeros(1, 3, 32, 31),)
    with pytest.raises(HostError, match="for other shapes"):
        program.run_many(wrong)
    assert len(program.run_many(samples("cnn"))) == SAMPLES


def test_what_keeps_state(incumbent):
    description = pte.read((incumbent / "cnn.pte").read_bytes()).methods["forward"]
    assert not many.keeps_state(description)
    for operator in (
        "aten::index_put_",
        "aten::copy_.default",
        "aten::rand.out",
        "aten::bernoulli.p_out",
        "aten::native_dropout.out",
    ):
        assert many.keeps_state(replace(description, operators=(*description.operators, operator)))
    tensor = next(value for value in description.values if value.kind == "tensor" and value.planned)
    assert many.keeps_state(replace(description, values=(*description.values, replace(tensor, data=1))))
