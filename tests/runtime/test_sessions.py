"""Several methods of one .pte that share buffers, as ExecuTorch's own ``share_mutable_buffers`` writes them."""

import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge
from executorch.exir.passes import MemoryPlanningPass
from torch import nn

from ethorch import runtime
from ethorch.support.errors import HostError


class Kept(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("sum", torch.zeros(2, 3))


class Add(nn.Module):
    def __init__(self, kept):
        super().__init__()
        self.kept = kept

    def forward(self, x):
        self.kept.sum.add_(x)
        return self.kept.sum * 2


class Read(Add):
    def forward(self, x):
        large = torch.sin(x.repeat(8, 8)).sum()  # its own tensors are where those of the other method were
        return self.kept.sum + large - large


class Fresh(nn.Module):
    def forward(self, x):
        return x + 1


def program(share):
    kept, x = Kept(), (torch.ones(2, 3),)
    parts = {"add": Add(kept), "read": Read(kept), "fresh": Fresh()}
    edge = to_edge({name: torch.export.export(part, x) for name, part in parts.items()})
    return edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=share))).buffer


@pytest.fixture(scope="module")
def shared():
    return program(share=True)


ONES = torch.ones(2, 3)


def test_methods_see_what_the_other_wrote(shared):
    add = runtime.load(shared, "add")
    read = add["read"]
    assert set(add.methods) == set(read.methods) == {"add", "read"}
    first = add(ONES)[0]
    assert torch.equal(first, 2 * ONES)
    assert torch.equal(read(ONES)[0], ONES)
    add(ONES)
    assert torch.equal(read(ONES)[0], 2 * ONES)
    assert torch.equal(first, 2 * ONES)  # results are the caller's


def test_reset_is_for_all_methods(shared):
    read = runtime.load(shared, "read")
    read["add"](ONES)
    read.reset()
    assert torch.equal(read(ONES)[0], 0 * ONES)
    read["add"](ONES)
    assert torch.equal(read(ONES)[0], ONES)


def test_two_loads_keep_apart(shared):
    one, two = runtime.load(shared, "add"), runtime.load(shared, "add")
    one(ONES)
    assert torch.equal(two(ONES)[0], 2 * ONES)


def test_methods_that_share_nothing_are_loaded_alone(shared):
    assert runtime.load(shared, "fresh").methods == ("fresh",)
    assert runtime.load(program(share=False), "add").methods == ("add",)


def test_an_unknown_method_is_named(shared):
    with pytest.raises(HostError, match=r"expected a method that was loaded together with 'add' \('add', 'read'\), got 'fresh'"):
        runtime.load(shared, "add")["fresh"]
