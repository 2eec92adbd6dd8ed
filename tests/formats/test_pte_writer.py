"""What the writer writes, the reader reads back as it was, and ExecuTorch's runtime runs to the same results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge, to_edge_transform_and_lower
from torch import Tensor, nn

from ethorch import EthosUCompileSpec, EthosUPartitioner
from ethorch.formats import pte
from ethorch.formats.pte_types import Call, Method, Program, Value
from ethorch.formats.pte_writer import write
from ethorch.support.errors import ProgramError
from tests.helpers.pte_files import check_round_trip
from tests.helpers.quantized import Small, lower, quantized, samples


class Constants(nn.Module):
    """Weights that the portable kernels read: constants in a segment."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.relu(self.first(x)).clamp(max=2.5))
        return out


class Counter(nn.Module):
    """A buffer that each call changes, with initial contents in the file."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def forward(self, x: Tensor) -> Tensor:
        self.sum += x
        return self.sum * 2


class Branches(nn.Module):
    """Jumps, moves, and views without planned memory."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.cond(x.sum() > 0, lambda x: (x.view(1, -1) + 1).view(-1), lambda x: x * 2, (x,))
        return out


def portable(model: nn.Module, inputs: tuple[Any, ...], **config: Any) -> bytes:
    edge = to_edge(torch.export.export(model.eval(), inputs), compile_config=EdgeCompileConfig(_check_ir_validity=False))
    data: bytes = edge.to_executorch(ExecutorchBackendConfig(**config)).buffer
    return data


def by_ethorch() -> bytes:
    inputs = samples((1, 3, 8, 8))
    q = quantized(Small(), inputs)
    return lower(q.module, inputs[0], EthosUPartitioner(EthosUCompileSpec("ethos-u55-128")))


def by_xnnpack() -> bytes:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    program = torch.export.export(Constants().eval(), (torch.randn(2, 4),))
    data: bytes = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch().buffer
    return data


def of_two_methods() -> bytes:
    programs = {
        "forward": torch.export.export(Constants().eval(), (torch.randn(2, 4),)),
        "other": torch.export.export(Branches().eval(), (torch.randn(3),)),
    }
    data: bytes = to_edge(programs, compile_config=EdgeCompileConfig(_check_ir_validity=False)).to_executorch().buffer
    return data


FILES: dict[str, Callable[[], bytes]] = {
    "ethorch": by_ethorch,
    "xnnpack": by_xnnpack,
    "constants": lambda: portable(Constants(), (torch.randn(2, 4),)),
    "state": lambda: portable(Counter(), (torch.ones(4),), emit_mutable_buffer_names=True),
    "branches": lambda: portable(Branches(), (torch.ones(4),)),
    "methods": of_two_methods,
}


@cache
def file_of(name: str) -> bytes:
    torch.manual_seed(0)
    return FILES[name]()


NAMES = [pytest.param(name, marks=[pytest.mark.long] * (name == "xnnpack")) for name in FILES]  # whose import takes seconds


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_what_was_read(name: str) -> None:
    check_round_trip(file_of(name))


@pytest.mark.parametrize("name", [name for name in NAMES if name.values != ("ethorch",)])
def test_the_runtime_computes_the_same(name: str) -> None:
    from executorch.runtime import Runtime

    data = file_of(name)
    torch.manual_seed(1)
    shapes = {"xnnpack": (2, 4), "constants": (2, 4), "methods": (2, 4)}
    inputs = [torch.randn(shapes.get(name, (4,))) for _ in range(2)]
    results = []
    for content in (data, write(pte.read(data))):
        method = Runtime.get().load_program(content).load_method("forward")
        assert method is not None
        results.append([method.execute([x])[0].clone() for x in inputs])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_a_delegate_runs_from_the_written_file() -> None:
    from ethorch import runtime

    data = file_of("ethorch")
    (x,) = samples((1, 3, 8, 8))[0]
    torch.testing.assert_close(runtime.load(write(pte.read(data)))(x)[0], runtime.load(data)(x)[0], rtol=0, atol=0)


def test_what_no_file_can_hold_is_named() -> None:
    value = Value("tensor", "float32", (1,), (0,), place=(1, 0))
    chain = (pte.read(file_of("constants")).methods["forward"].chains[0],)
    method = Method(
        "forward", (value,), (0,), (0,), (), (), (replace(chain[0], instructions=(Call("aten::relu.out", None, (0,)),)),), (0, 16)
    )
    with pytest.raises(ProgramError, match=r"aten::relu\.out, which is not one of"):
        write(Program({"forward": method}))
    for wrong in (replace(value, dtype="quint4x2"), replace(value, kind="image")):
        with pytest.raises(ProgramError, match="cannot write a"):
            write(Program({"forward": replace(method, values=(wrong,), chains=())}))
