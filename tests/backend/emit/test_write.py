"""The writer gives what ExecuTorch's lowering gives: the same payloads and results. It returns the reason if it cannot."""

from __future__ import annotations

import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ethorch import EthosUCompileSpec, EthosUPartitioner, runtime
from ethorch.backend import through_executorch
from ethorch.backend.build import build_pte
from ethorch.backend.emit import reasons
from ethorch.backend.emit import write as write_module
from ethorch.backend.emit.build import Build
from ethorch.backend.emit.write import write_pte
from ethorch.formats import pte
from ethorch.formats.pte_types import Call, Method
from ethorch.support.errors import Reason, VelaError
from tests.helpers.quantized import Quantized, lower, quantized, samples


class Joined(nn.Module):
    """Two inputs, three outputs; one is read within, one is given twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(2, 4, 1)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        first = torch.relu(self.b(y))
        total = first + self.a(x)
        return total, first.mean((2, 3)), total


class Turned(nn.Module):
    """A result that PyTorch gives as a view with other strides."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.conv(x)).permute(0, 2, 3, 1)


class Integers(nn.Module):
    """Integers in and out, beside floats."""

    def forward(self, x: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(x * 2), shift * 3 + 1


class Embedded(nn.Module):
    """int64 positions: the CPU casts them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, positions: Tensor) -> Tensor:
        out: Tensor = torch.relu(self.table(positions))
        return out


class Sorted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.topk(torch.relu(x), 3)[0]


class Counting(nn.Module):
    """Changes a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.zeros(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.sum += x
        return self.sum * 2


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.cond(x.sum() > 0, torch.relu, torch.tanh, (x,))
        return out


class SortedAlone(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.topk(x, 3)[0]


class Strided(nn.Module):
    """Adds a buffer that is a transposed view."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.randn(5, 6).t())

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) + self.mask


class Through(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.relu(x), x


INT32 = torch.tensor([[1, -2, 3, 40]], dtype=torch.int32)
WHOLE: dict[str, tuple[nn.Module, list[Any]]] = {
    "joined": (Joined(), samples((1, 3, 6, 6), (1, 2, 6, 6))),
    "turned": (Turned(), samples((1, 3, 6, 5))),
    "strided": (Strided(), samples((1, 3, 6, 5))),
    "integers": (Integers(), [(torch.randn(2, 3), INT32), (torch.randn(2, 3), INT32)]),
}
NOT_WRITTEN: dict[str, tuple[nn.Module, Any, str]] = {
    "branch": (Branch(), (torch.randn(1, 4),), "writer.control_flow"),
    "channels_last": (Turned(), (torch.randn(1, 3, 6, 5).to(memory_format=torch.channels_last),), "writer.layout"),
    "sorted alone": (SortedAlone(), (torch.randn(1, 8),), "writer.no_delegate"),
}


def written(q: Quantized, spec: EthosUCompileSpec) -> Build:
    build = write_pte(q.module, spec)
    assert isinstance(build, Build), build
    return build


class Between(nn.Module):
    """Two delegates, one of which reads what the other and the CPU give; a branch beside them, and state."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        self.calls += 1
        first = torch.relu(self.a(x)).mean((2, 3))
        best, places = torch.topk(first, 4)
        return self.b(torch.sigmoid(best)) + first, places, self.calls * 1


class Twice(nn.Module):
    """Gathers the int64 indices of one topk at those of another, as detectors do."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        best, places = torch.topk(torch.relu(x), 12)
        best, order = torch.topk(best * 2, 9)
        return best, places.gather(1, order)


WITH_CPU: dict[str, tuple[nn.Module, Any]] = {
    "between": (Between(), (torch.randn(1, 3, 6, 6),)),
    "embedded": (Embedded(), (torch.tensor([[1, 2, 9]]),)),
    "topk": (Sorted(), (torch.randn(1, 8),)),
    "topk twice": (Twice(), (torch.randn(1, 20),)),
    "through": (Through(), (torch.randn(1, 4),)),
    "buffer": (Counting(), (torch.randn(1, 4),)),
}


TARGETS = ("ethos-u55-128", "ethos-u85-256")
#: The other programs of WITH_CPU are covered by the next test.
FEW = (("between", "ethos-u85-256"), ("topk twice", "ethos-u85-256"), ("buffer", "ethos-u55-128"))


@pytest.mark.parametrize(
    ("name", "target"),
    [pytest.param(*case, marks=[pytest.mark.long] * (case not in FEW)) for case in itertools.product(WITH_CPU, TARGETS)],
)
def test_operators_on_the_cpu_are_written_as_executorch_writes_them(name: str, target: str) -> None:
    model, inputs = WITH_CPU[name]
    q = quantized(model, [inputs], target=target)
    before = str(q.module.graph)
    spec = EthosUCompileSpec(target)
    build = written(q, spec)
    usual = by_executorch(q, target)
    ours, theirs = (pte.read(content).methods["forward"] for content in (build.pte, usual))
    assert ours.delegates == theirs.delegates
    assert kernels(ours) == kernels(theirs)
    assert str(q.module.graph) == before
    assert [delegate.payload.pack() for delegate in build.delegates] == [delegate.blob for delegate in ours.delegates]
    begins_alike = through_executorch.lower_by_executorch(q.module, inputs, spec).pte  # ExecuTorch drops what buffers begin with
    programs = runtime.load(build.pte), runtime.load(begins_alike)
    for _ in range(2):
        for a, b in zip(*(program(*inputs) for program in programs), strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["embedded", "topk", "through"])
def test_a_cpus_part_that_is_written_as_it_stands_needs_no_executorch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = WITH_CPU[name]
    spec = EthosUCompileSpec("ethos-u55-128")
    taken = pytest.fail
    monkeypatch.setattr(through_executorch, "to_edge_transform_and_lower", lambda *_, **__: taken("ExecuTorch's way was taken"))
    build = build_pte(quantized(model, [inputs]).module, inputs, spec)
    usual = by_executorch(quantized(model, [inputs]), "ethos-u55-128")
    ours, theirs = (pte.read(content).methods["forward"] for content in (build.pte, usual))
    assert ours.structure == theirs.structure
    assert sum(ours.memories) <= sum(theirs.memories)
    for a, b in zip(runtime.load(build.pte)(*inputs), runtime.load(usual)(*inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def kernels(method: Method) -> list[str]:
    return sorted(step.operator for step in method.chains[0].instructions if isinstance(step, Call) and step.operator)


def by_executorch(q: Quantized, target: str) -> bytes:
    return lower(q.module, q.example, EthosUPartitioner(EthosUCompileSpec(target)))


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(*case, marks=[pytest.mark.long] * ((case[0] == "joined") != (case[1] == "ethos-u85-256")))
        for case in itertools.product(WHOLE, TARGETS)
    ],
)
def test_both_ways_give_the_same(name: str, target: str) -> None:
    model, calibration = WHOLE[name]
    q = quantized(model, calibration, target=target)
    spec = EthosUCompileSpec(target)
    data = written(q, spec).pte
    usual = by_executorch(q, target)
    (ours,), (theirs,) = (pte.read(content).methods["forward"].delegates for content in (data, usual))
    assert ours == theirs
    assert pte.read(data).methods["forward"].structure == pte.read(usual).methods["forward"].structure
    for inputs in calibration:
        for a, b in zip(runtime.load(data)(*inputs), runtime.load(usual)(*inputs), strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("name", NOT_WRITTEN)
def test_a_graph_that_is_not_written_is_lowered_by_executorch_and_the_reason_is_recorded(name: str) -> None:
    model, inputs, id = NOT_WRITTEN[name]
    spec = EthosUCompileSpec("ethos-u55-128")
    q = quantized(model, [inputs])
    reason = write_pte(q.module, spec)
    assert isinstance(reason, Reason) and reason.id == id
    build = build_pte(q.module, inputs, spec)
    assert build.partition.executorch_reason == reason
    assert runtime.load(build.pte)(*inputs)


def test_an_etrecord_and_open_sizes_are_reasons() -> None:
    model, calibration = WHOLE["turned"]
    q = quantized(model, calibration)
    build = build_pte(q.module, calibration[0], EthosUCompileSpec("ethos-u55-128"), etrecord=True)
    assert build.partition.executorch_reason == reasons.etrecord()


def test_two_threads_compile_at_once() -> None:
    model, inputs = WITH_CPU["between"]
    q = quantized(model, [inputs])
    spec = EthosUCompileSpec("ethos-u55-128")
    wanted = written(q, spec).pte
    with ThreadPoolExecutor(2) as pool:
        assert [build.pte for build in pool.map(lambda _: written(q, spec), range(4))] == [wanted] * 4


def test_build_writes_one_delegate_without_executorch(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calibration = WHOLE["turned"]
    taken = pytest.fail
    monkeypatch.setattr(through_executorch, "to_edge_transform_and_lower", lambda *_, **__: taken("ExecuTorch's way was taken"))
    build = build_pte(quantized(model, calibration).module, calibration[0], EthosUCompileSpec("ethos-u55-128"))
    assert len(build.delegates) == 1
    assert build.partition.npu_operators == 3
    assert build.partition.refusals == []
    assert build.partition.executorch_reason is None


def test_a_graph_that_vela_declines_is_lowered_by_executorch(monkeypatch: pytest.MonkeyPatch) -> None:
    def declined(*_: Any) -> None:
        raise VelaError("no.")

    model, calibration = WHOLE["turned"]
    monkeypatch.setattr(write_module, "compile_lowered", declined)
    build = build_pte(quantized(model, calibration).module, calibration[0], EthosUCompileSpec("ethos-u55-128"))
    assert build.partition.npu_operators
    assert build.partition.executorch_reason is not None and build.partition.executorch_reason.id == "writer.refused"


def test_artifacts_are_written(tmp_path: Any) -> None:
    model, calibration = WHOLE["turned"]
    spec = EthosUCompileSpec("ethos-u55-128").dump_intermediate_artifacts_to(str(tmp_path))
    build = build_pte(quantized(model, calibration).module, calibration[0], spec)
    assert {"delegate_0.tosa", "delegate_0.steps"} <= {path.name for path in tmp_path.iterdir()}
    assert str(tmp_path).encode() not in build.pte


class FirstOfTwo(nn.Module):
    """broadcast_tensors reads two tensors, and its first result only one of them: ExecuTorch drops the other."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(6, 5), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.one(x), self.other(x)
        return torch.broadcast_tensors(one.sum(-1) > 0, other.sum(-1) > 0)[0].to(torch.int32) * 2


def test_results_that_executorch_drops_take_the_other_way() -> None:
    calibration = samples((3, 6))
    q = quantized(FirstOfTwo(), calibration)
    program = runtime.load(build_pte(q.module, calibration[0], EthosUCompileSpec("ethos-u55-128")).pte)
    for inputs in calibration:
        assert torch.equal(program(*inputs)[0], q.module(*inputs))


def test_codes_that_are_taken_and_given_outlive_the_input() -> None:
    """The quantize node's result lay over its operand: it was counted as written by the delegate, which gives it, too."""
    calibration = samples((1, 3, 8, 8))
    q = quantized(TwoSizes(), calibration)
    output = q.module.graph.output_node()
    first = next(n for n in q.module.graph.nodes if ".dequantize_per_tensor" in str(n.target) and n.args[0].op == "call_function")
    output.args = ((first, *output.args[0]),)
    codegen = q.module.graph._codegen
    codegen.pytree_info = codegen.pytree_info._replace(out_spec=torch.utils._pytree.tree_structure((0, 0, 0)))
    q.module.recompile()
    spec = EthosUCompileSpec("ethos-u55-128")
    program = runtime.load(written(q, spec).pte)
    for inputs in calibration:
        torch.testing.assert_close(program(*inputs)[0], q.module(*inputs)[0], rtol=0, atol=0)


class TwoSizes(nn.Module):
    """So that the small result's codes lie at 0, where the input lay, and those of the input right behind, in its middle."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.big = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 16, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.small(x), self.big(x)


def test_a_program_of_one_delegate_is_compiled_without_importing_executorch() -> None:
    code = """
import sys, torch, ethorch
program = ethorch.compile(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()), torch.rand(1, 3, 8, 8))
assert len(program.delegates) == 1 and str(program)
print([name for name in sys.modules if name.split(".")[0] == "executorch"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
