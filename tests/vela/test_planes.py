"""A picture in planes is read as it lies: the reference model's bits, fewer cycles, and the usual way wherever it cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch import EthosUCompileSpec
from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.planes import BRICK, read_planes, smallest_plane
from ethorch.npu import Program
from ethorch.program.program import record_of
from ethorch.targets.npus import TARGETS, TUNING
from ethorch.tosa.ir import Graph
from ethorch.tosa.serialize import serialize
from ethorch.vela import compile
from ethorch.vela.compiled_model import CompiledModel
from ethorch.vela.delegate import compile_graph, compile_lowered, rewritten
from ethorch.vela.planes import with_planes
from tests.helpers.compiling import compile_with

WAY = TUNING["u85"].read_planes


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What earlier compilations found out does not count."""
    monkeypatch.setattr("ethorch.vela.arena.cache_folder", lambda: tmp_path)


def stem(channels: int = 3, stride: int = 2) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(channels, 8, 3, stride, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2)).eval()


def compiled(model: nn.Module, *inputs: Tensor, **settings: object) -> ethorch.Program:
    program = compile_with(model, inputs, **{"target": "ethos-u85-256", **settings})
    assert program.compare(*inputs).bit_exact
    return program


def reads_planes(program: ethorch.Program) -> bool:
    return not any(layer.operator == "Transpose" and layer.cycles for layer in record_of(program).layers[:4])


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ((1, 3, 48, 48), {}),
        ((1, 3, 48, 48), {"scheme": "a16w8"}),
        ((1, 2, 20, 36), {"target": "ethos-u85-128"}),  # rows of no whole bricks
        ((1, 4, 32, 32), {"target": "ethos-u85-1024"}),
        ((1, 3, 64, 64), {"memory_mode": "Dedicated_Sram_384KB", "system_config": "Ethos_U85_SYS_DRAM_Mid"}),
    ],
)
def test_bits(shape: tuple[int, ...], settings: dict[str, str]) -> None:
    torch.manual_seed(2)
    program = compiled(stem(shape[1]), torch.randn(shape), **settings)
    assert reads_planes(program)


def test_vela_copies_the_picture_first() -> None:
    """By a pool, for which a transfer stands then."""
    from bench.models import ALL_MODELS  # a network of which that is known

    case = ALL_MODELS["mobilenet_v1_025"]
    memory = {"memory_mode": "Dedicated_Sram_384KB", "system_config": "Ethos_U85_SYS_DRAM_Mid"}
    program = compiled(case.build().features[:3], *case.example_inputs(), **memory)
    (copy,) = [layer for layer in record_of(program).layers if layer.operator == "MemoryCopy"]
    assert reads_planes(program)
    assert copy.cycles == -(-3 * 96 * 96 // 12)
    (delegate,) = record_of(program).build.delegates
    rows, performance = delegate.compiled.rows(), delegate.performance
    assert sum(row.npu_cycles for row in rows) == performance.npu_cycles
    assert sum(row.op_cycles for row in rows) == performance.total_cycles
    assert sum(row.macs for row in rows) == performance.mac_count
    operations = Program(delegate.compiled.command_stream, delegate.compiled.constants).operations()
    assert next(op.name for op in operations if op.name.startswith("NPU_OP_") and "WAIT" not in op.name) == "NPU_OP_DMA_START"


def test_the_input_is_read_elsewhere_too() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = stem(stride=1)

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return self.stem(x) + y.mean(), x * 2

    torch.manual_seed(3)
    compiled(Both(), torch.randn(1, 3, 32, 32), torch.randn(1, 3, 16, 16))


@pytest.mark.parametrize("scheme", ["int8", "a16w8"])
def test_a_choice_reads_the_input_in_its_own_shape(scheme: str) -> None:
    """Vela's bug ``vela.select-of-reshaped``: the convolution reads bricks of the input."""

    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(2, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x > 0.1, x, self.stem(x))

    torch.manual_seed(3)
    compiled(Chosen().eval(), torch.randn(1, 2, 6, 24), scheme=scheme)


def test_two_pictures() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = stem(3), stem(2)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.cat([self.left(x), self.right(y)], 1)

    torch.manual_seed(4)
    assert reads_planes(compiled(Two(), torch.randn(1, 3, 32, 32), torch.randn(1, 2, 32, 32)))


def test_layers_are_named_for_the_users_code() -> None:
    program = compiled(stem(), torch.randn(1, 3, 48, 48))
    first = next(layer for layer in record_of(program).layers if layer.where == "NPU")
    assert (first.operator, first.module, first.macs) == ("Conv2D", "0", 0)


def turned(shape: tuple[int, ...] = (1, 3, 16, 32), dtype: str = "INT8") -> Graph:
    b = Builder()
    b.graph.outputs.append(b.emit("TRANSPOSE", b.input("x", shape, dtype), perms=(0, 2, 3, 1)))
    return b.graph


@pytest.mark.parametrize(
    ("shape", "dtype", "takes"),
    [
        ((1, 3, 16, 32), "INT8", True),
        ((1, 3, 16, 32), "INT16", True),
        ((1, 3, 16, 32), "INT32", False),
        ((2, 3, 16, 32), "INT8", False),  # two pictures
        ((1, 5, 16, 32), "INT8", False),  # too many planes
        ((1, 3, 5, 7), "INT8", False),  # no whole bricks
    ],
)
def test_which_inputs(shape: tuple[int, ...], dtype: str, takes: bool) -> None:
    assert WAY is not None
    assert smallest_plane(turned(shape, dtype), WAY.most) == (16 * 32 if takes else 0)


def test_a_graph_is_not_changed() -> None:
    graph = turned()
    before = serialize(graph)
    given, planes = read_planes(graph, 4)
    assert serialize(graph) == before and [op.name for op in graph.ops] == ["TRANSPOSE"]
    assert [each.rows * each.columns * BRICK for each in planes] == [16 * 32]
    assert "TRANSPOSE" not in {op.name for op in given.ops}


def made_of(target: str = "ethos-u85-256") -> tuple[CompiledModel, Graph, Graph, tuple, EthosUCompileSpec]:
    meant = turned()
    given, planes = read_planes(meant.copy(), 4)
    spec = EthosUCompileSpec(target)
    return compile(serialize(given), spec), given, meant, planes, spec


def test_commands_that_read_anything_else_are_left_to_the_usual_way() -> None:
    model, given, meant, planes, spec = made_of()
    assert with_planes(model, given, meant, planes, spec) is not None
    moved = replace(model, inputs=tuple(replace(tensor, offset=tensor.offset + 16) for tensor in model.inputs))
    assert with_planes(moved, given, meant, planes, spec) is None
    wrong = tuple(replace(each, rows=2 * each.rows) for each in planes)
    assert with_planes(model, given, meant, wrong, spec) is None


@pytest.mark.parametrize(
    ("side", "settings", "first_calls", "later_calls"),
    [
        (64, {}, 1, 1),  # pixels have room in SRAM
        (64, {"memory_mode": "Dedicated_Sram_384KB", "system_config": "Ethos_U85_SYS_DRAM_Mid"}, 1, 1),
        (352, {"memory_mode": "Dedicated_Sram_384KB", "system_config": "Ethos_U85_SYS_DRAM_Mid"}, 2, 1),  # just so
        (400, {"memory_mode": "Dedicated_Sram_384KB", "system_config": "Ethos_U85_SYS_DRAM_Mid"}, 1, 1),  # not all of them
    ],
)
def test_both_ways_are_compiled_only_where_it_is_not_known_which_is_better(
    side: int, settings: dict[str, str], first_calls: int, later_calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr("ethorch.vela.arena.compile", lambda *args: calls.append(1) or compile(*args))
    spec = EthosUCompileSpec("ethos-u85-256", **settings)
    tuning = TARGETS["ethos-u85-256"].tuning
    first = compile_lowered(turned((1, 3, side, side)), tuning, spec)
    assert len(calls) == first_calls
    again = compile_lowered(turned((1, 3, side, side)), tuning, spec)
    assert len(calls) == first_calls + later_calls
    assert again.payload == first.payload
    usual = compile_graph(rewritten(turned((1, 3, side, side)), tuning, spec), spec)
    assert first.performance.total_cycles <= usual.performance.total_cycles


@pytest.mark.parametrize(("side", "is_planar"), [(4, False), (32, True)])
def test_small_inputs_have_the_faster_layout(side: int, is_planar: bool) -> None:
    """In DRAM, the weights of the convolution cost more than the transpose of 16 pixels."""
    spec = EthosUCompileSpec("ethos-u85-256", "Ethos_U85_SYS_DRAM_Mid", "Dedicated_Sram_384KB")
    lowered = compile_lowered(turned((1, 2, side, side)), TUNING["u85"], spec)
    assert any("Conv2D" in row.operator for row in lowered.compiled.rows()) == is_planar
