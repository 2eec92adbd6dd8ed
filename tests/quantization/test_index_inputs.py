"""Token ids and positions are cast once, and what is computed of a position is looked up in a table."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import ethorch
from ethorch import EthosUCompileSpec, runtime
from ethorch.backend.build import build_pte
from ethorch.formats import pte
from ethorch.lower.fx.node import op_name
from ethorch.lower.ops.cast import to
from ethorch.lower.ops.spec import find
from ethorch.models.load import UserModel
from ethorch.program.program import record_of
from ethorch.quantization.calibrate import quantize
from ethorch.quantization.passes.context import PassContext
from ethorch.quantization.passes.pipeline import run_passes
from ethorch.quantization.shared_buffers import start_from_initial_state
from ethorch.support.errors import EthorchError
from ethorch.targets import TARGETS

ROWS, WIDTH = 300, 16


class Step(nn.Module):
    """A row of a cache is written, and all of it is weighed by what ``weigh`` computes of the positions."""

    def __init__(self, weigh: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weigh = weigh
        self.table = nn.Embedding(9, WIDTH)
        self.register_buffer("cache", torch.zeros(ROWS, WIDTH))

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        self.cache.index_copy_(0, position, self.table(token) * self.weigh(position))
        return self.cache.sum(0) + self.weigh(position)


def rotation(position: Tensor) -> Tensor:
    return (position[:, None].float() * 10.0 ** -torch.linspace(0, 3, WIDTH)).cos() * 0.9


def distances(position: Tensor) -> Tensor:
    """A bias by the logarithm of a distance, the way that T5 has it."""
    distance = (position[:, None] - torch.arange(WIDTH)).abs() + 1
    return torch.linspace(-1, 1, 20)[(distance.float().log() * 3).to(torch.int64)]


def running(position: Tensor) -> Tensor:
    """What depends on all positions before: no row of it is one position's."""
    return (position[:, None].float() * torch.ones(WIDTH)).cumsum(0) * 1e-2


def passed(weigh: Callable[[Tensor], Tensor], count: int, target: str = "ethos-u85-256") -> GraphModule:
    inputs = torch.zeros(count, dtype=torch.int64), torch.arange(count)
    graph = torch.export.export(Step(weigh).eval(), inputs).module(check_guards=False)
    assert isinstance(graph, GraphModule)
    return run_passes(graph, PassContext(limits=TARGETS[target].limits, trainable=False))


def names(graph: GraphModule) -> list[str]:
    return [op_name(node.target) for node in graph.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("count", (1, 5))
@pytest.mark.parametrize("weigh", (rotation, distances))
def test_floats_of_positions_are_rows_of_a_table(weigh: Callable[[Tensor], Tensor], count: int) -> None:
    graph = passed(weigh, count)
    assert names(graph).count("aten.index_select.default") == 1  # one table for both readers
    assert not {"aten.cos.default", "aten.log.default"} & set(names(graph))
    wanted = Step(weigh)
    weights = graph.state_dict()
    wanted.load_state_dict({key: weights[key] for key in wanted.state_dict()})
    for first in (0, 7, ROWS - count):
        inputs = torch.randint(9, (count,)), torch.arange(first, first + count).flip(0)
        torch.testing.assert_close(graph(*inputs), wanted(*inputs))


def test_floats_that_depend_on_several_positions_are_computed() -> None:
    graph = passed(running, 4)
    assert "aten.cumsum.default" in names(graph) or "aten.index_select.default" not in names(graph)


def test_each_index_is_cast_once() -> None:
    graph = passed(lambda position: torch.where((torch.arange(WIDTH) <= position[:, None] - 3)[:, None], 0.5, 1.5)[:, 0], 1)
    casts = [node for node in graph.graph.nodes if node.op == "call_function" and "to." in str(node.target)]
    assert [cast.args[0].op for cast in casts] == ["placeholder"] * 2
    for node in graph.graph.nodes:
        spec = find(node.target) if node.op == "call_function" else None
        assert spec is None or node in casts or all(arg.meta["val"].dtype != torch.int64 for arg in node.all_input_nodes)


@pytest.mark.parametrize("target", ("ethos-u85-256", "ethos-u55-128"))
def test_positions_pick_rows_as_they_come(target: str) -> None:
    """A reshape that does nothing would be a delegate of its own, in front of the CPU that picks the rows on U55."""
    graph = passed(rotation, 1, target)
    (select,) = (node for node in graph.graph.nodes if op_name(node.target) == "aten.index_select.default")
    index = select.args[2]
    assert isinstance(index, torch.fx.Node) and (index.op == "placeholder" or find(index.target) is to)


def test_chosen_ids_are_cast_with_the_others() -> None:
    """Gemma 3n's: ids that a smaller table has not are its first."""

    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large, self.small = nn.Embedding(20, 8), nn.Embedding(10, 8)

        def forward(self, ids: Tensor) -> Tensor:
            known = (ids >= 0) & (ids < 10)
            padded = ids.masked_fill(ids == 3, 1)
            return self.large(ids) + self.small(torch.where(known, ids, torch.zeros_like(ids))) + self.large(padded)

    ids, module = torch.randint(20, (1, 7)), Chosen().eval()
    graph = torch.export.export(module, (ids,)).module(check_guards=False)
    graph = run_passes(graph, PassContext(limits=TARGETS["ethos-u85-256"].limits, trainable=False))
    wide = [node for node in graph.graph.nodes if node.op == "call_function" and node.meta["val"].dtype == torch.int64]
    assert not wide
    assert torch.equal(graph(ids), module(ids))


def test_an_npu_without_gather_leaves_indices_to_the_cpu() -> None:
    assert "aten.to.dtype" not in names(passed(lambda position: torch.ones(WIDTH), 2, "ethos-u55-128"))


class Counted(nn.Module):
    """Each call writes one more row of a cache, by a counter that it keeps, and sums the rows so far."""

    def __init__(self, dtype: torch.dtype, write: Callable[[Tensor, Tensor, Tensor], object], begin: int = 0) -> None:
        super().__init__()
        self.write, self.key, self.head = write, nn.Linear(8, 8), nn.Linear(8, 4)
        self.register_buffer("cache", torch.zeros(1, 16, 8))
        self.register_buffer("count", torch.full((1,), begin, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        self.write(self.cache, self.count, self.key(x))
        seen = (torch.arange(16) <= self.count).float().view(1, 16, 1)
        self.next()
        return self.head((self.cache * seen).sum(1))

    def next(self) -> None:
        self.count += 1


class Ring(Counted):
    """Begins at the front again when it is full."""

    def next(self) -> None:
        self.count.add_(3).remainder_(16)


def put(cache: Tensor, place: Tensor, row: Tensor) -> None:
    cache[:, place] = row


def copied(cache: Tensor, place: Tensor, row: Tensor) -> None:
    cache.index_copy_(1, place.to(torch.int64), row)


@pytest.mark.parametrize(
    ("counted", "write", "target"),
    [
        (Counted, put, "ethos-u85-256"),
        (Counted, copied, "ethos-u55-128"),
        (Ring, put, "ethos-u55-128"),
        (Ring, copied, "ethos-u85-256"),
    ],
)
def test_a_counter_of_int64_becomes_one_of_int32(counted: type[Counted], write: Callable[..., object], target: str) -> None:
    """It indexes, so it fits; the NPU counts, and the CPU is left with rows and floats."""
    calls = [(torch.randn(1, 1, 8, generator=torch.Generator().manual_seed(k)),) for k in range(12)]
    torch.manual_seed(0)
    program = ethorch.compile(counted(torch.int64, write).eval(), calls[0], target, calibration=[calls], progress=False)
    assert {state.name: (state.dtype, state.in_place) for state in program.explain().states} == {
        "cache": ("int8", True),
        "count": ("int32", True),
    }
    assert {layer.operator.split("::")[1] for layer in record_of(program).layers if layer.where == "CPU"} <= {
        "index_put_", "quantize_per_tensor.out", "dequantize_per_tensor.out"
    }  # fmt: skip
    assert record_of(program).quantized is not None and record_of(program).quantized.get_buffer("count").dtype == torch.int64
    with start_from_initial_state(record_of(program).quantized):
        for call in calls:
            torch.testing.assert_close(program(*call), record_of(program).quantized(*call), rtol=0, atol=0.05)
        assert record_of(program).quantized.get_buffer("count").item() == (12 if counted is Counted else 36 % 16)


class Wrapped(nn.Module):
    """A counter that goes up for ever: where to write is what it leaves when divided."""

    def __init__(self, rows: int, begin: int = 0) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, rows, 8))
        self.register_buffer("count", torch.full((1,), begin))

    def forward(self, x: Tensor) -> Tensor:
        self.cache[:, self.count % self.cache.shape[1]] = x
        self.count += 1
        return self.cache.sum(1)


class Modulo(nn.Module):
    """Rows of a cache are written at a position modulo its length."""

    def __init__(self, write: Callable[[Tensor, Tensor, Tensor], object]) -> None:
        super().__init__()
        self.write, self.key = write, nn.Linear(8, 8)
        self.register_buffer("cache", torch.zeros(1, 16, 8))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        self.write(self.cache, position, self.key(x))
        return (self.cache * 0.5).sum(1)


def put_modulo(cache: Tensor, place: Tensor, row: Tensor) -> None:
    cache[:, place % 16] = row


def copy_modulo(cache: Tensor, place: Tensor, row: Tensor) -> None:
    cache.index_copy_(1, torch.remainder(place.to(torch.int64), 16), row)


def put_at_two(cache: Tensor, place: Tensor, row: Tensor) -> None:
    cache.index_put_((torch.arange(1)[:, None], (place % 16)[None]), row)


FEW = [
    (put_modulo, torch.int64, "ethos-u55-128", "int8"),
    (copy_modulo, torch.int64, "ethos-u85-256", "int8"),
    (copy_modulo, torch.int32, "ethos-u55-128", "a16w8"),
    (put_at_two, torch.int64, "ethos-u55-128", "int8"),
    (put_at_two, torch.int64, "ethos-u85-256", "a16w8"),
]


@pytest.mark.parametrize(
    ("write", "dtype", "target", "scheme"),
    [
        pytest.param(*case, *where, marks=[pytest.mark.long] * ((*case, *where) not in FEW))
        for case in dict.fromkeys(each[:2] for each in FEW)
        for where in product(("ethos-u55-128", "ethos-u85-256"), ("int8", "a16w8"))
    ],
)
def test_positions_modulo_a_power_of_two_stay_on_the_npu(
    write: Callable[[Tensor, Tensor, Tensor], object], dtype: torch.dtype, target: str, scheme: str
) -> None:
    """Only their lower bits matter, so 32 of them are as good as 64."""
    generator = torch.Generator().manual_seed(0)
    places = [0, 5, 17, 2**31 - 1, 2**33 + 3] if dtype == torch.int64 else [0, 5, 17, 2**31 - 1, -3]
    calls = [(torch.randn(1, 1, 8, generator=generator), torch.tensor([place], dtype=dtype)) for place in places]
    torch.manual_seed(0)
    program = ethorch.compile(Modulo(write).eval(), calls[0], target, scheme=scheme, calibration=[calls], progress=False)
    assert not program.to_json()["cpu"]
    assert record_of(program).quantized is not None
    with start_from_initial_state(record_of(program).quantized):
        for call in calls:
            torch.testing.assert_close(program(*call), record_of(program).quantized(*call), rtol=0, atol=0.05)


@pytest.mark.parametrize(("bound", "step", "size"), [(16, 3, 16), (16, 16, 16), (7, 1, 7), (5, -4, 9)])
def test_a_ring_is_wrapped_in_int32_as_in_int64(bound: int, step: int, size: int) -> None:
    """By what stands in for the remainder, for every place that an index may be, those counted from the end as well."""

    class Next(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
            self.register_buffer("cache", torch.arange(float(bound)))

        def forward(self, x: Tensor) -> Tensor:
            result = self.cache[self.count] + x
            self.count.add_(step).remainder_(size)
            return result

    graph = torch.export.export(Next(), (torch.zeros(1),)).module(check_guards=False)
    assert isinstance(graph, GraphModule)
    run_passes(graph, PassContext(limits=TARGETS["ethos-u85-256"].limits, trainable=False))
    assert "aten.remainder.Scalar" not in names(graph)
    for place in range(-bound, bound):
        graph.get_buffer("count").fill_(place)
        graph(torch.zeros(1))
        assert graph.get_buffer("count").item() == (place + step) % size


@pytest.mark.parametrize(("rows", "dtype"), [(16, "int32"), (12, "int64")])
def test_a_counter_that_is_no_index_stays_of_int64(rows: int, dtype: str) -> None:
    """Unless it is only read modulo a power of two."""
    calls = [(torch.randn(1, 1, 8, generator=torch.Generator().manual_seed(k)),) for k in range(6)]
    begin = 2**31 - 3 if dtype == "int32" else 2**31 + 5
    program = ethorch.compile(Wrapped(rows, begin).eval(), calls[0], "ethos-u85-256", calibration=[calls], progress=False)
    assert {state.name: state.dtype for state in program.explain().states} == {"cache": "int8", "count": dtype}
    assert record_of(program).quantized is not None
    with start_from_initial_state(record_of(program).quantized):
        for call in calls:
            torch.testing.assert_close(program(*call), record_of(program).quantized(*call), rtol=0, atol=0.05)


def test_a_rotation_by_a_late_position_keeps_its_accuracy() -> None:
    model = Step(rotation).eval()
    model.table.weight.data.clamp_(-2, 2)
    samples = [(torch.tensor([k % 9]), torch.tensor([k * 17 % ROWS])) for k in range(60)]
    program = ethorch.compile(model, samples[0], "ethos-u85-256", calibration=samples)
    wanted, found = Step(rotation).eval(), []
    wanted.table.load_state_dict(model.table.state_dict())
    results = []
    with torch.no_grad():
        for sample in samples:
            results.append(wanted(*sample))
            found.append(program(*sample))
    assert ethorch.sqnr_db(results, found) > 25


class Masked(nn.Module):
    """A decoder without index-based caches: the position is only compared, to make a mask and a row."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.register_buffer("rows", torch.arange(16))

    def forward(self, x: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        row = torch.where((self.rows == position[:, None]).unsqueeze(-1), self.project(x).unsqueeze(1), 0.0)
        return row, (self.rows <= position[:, None]) & (position[:, None] < 14), torch.relu(x)


@pytest.mark.parametrize("target", ("ethos-u55-128", "ethos-u85-256"))
def test_positions_that_are_only_compared_are_clamped_and_cast(target: str) -> None:
    x, spec = torch.randn(1, 8), EthosUCompileSpec(target)
    inputs = (x, torch.tensor([3]))
    module = quantize(UserModel(Masked().eval(), inputs, [inputs]), spec)
    built = build_pte(module, inputs, spec)
    assert len(built.delegates) == 1 and built.partition.refusals == []
    program = runtime.load(built.pte)
    for position in (3, 0, 15, 13, 14, -1, 1 << 40, -(1 << 40), (1 << 32) + 3):
        given = (x, torch.tensor([position]))
        for found, wanted in zip(program(*given), module(*given), strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


class Timesteps(nn.Module):
    """The sinusoids of diffusers: steps of int64, viewed as a column before they become floats."""

    def __init__(self) -> None:
        super().__init__()
        self.frequencies, self.layer = nn.Buffer(torch.exp(-torch.arange(8) / 2)), nn.Linear(16, 4)

    def forward(self, step: Tensor) -> Tensor:
        angles = step[:, None].float() * self.frequencies[None]
        return self.layer(torch.cat([angles.sin(), angles.cos()], -1))


@pytest.mark.parametrize("target", ("ethos-u55-128", "ethos-u85-256"))
def test_an_input_is_cast_before_it_is_viewed(target: str) -> None:
    """The CPU casts and quantizes it, as the Arm backend has it, and moves nothing."""
    torch.manual_seed(0)
    model, step = Timesteps().eval(), torch.tensor([3, 7, 1])
    program = ethorch.compile(model, step, target, progress=False)
    assert record_of(program).build is not None and not record_of(program).build.partition.refusals
    operators = [call.operator for method in pte.read(program.pte).methods.values() for call in method.calls]
    assert not any("unsqueeze" in name for name in operators)
    assert ethorch.sqnr_db(model(step), program(step)) > 20


class Picked(nn.Module):
    """Rows and columns at indices of rank 0."""

    def forward(self, x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        y = 2 * x
        return y[i], y[:, i] + 1, torch.select(y, 1, y.sum(0).argmax()), x[-1] * 2


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_an_index_of_rank_0_selects(target: str) -> None:
    torch.manual_seed(0)
    samples = [(torch.randn(6, 5), torch.tensor(number % 5)) for number in range(6)]
    program = ethorch.compile(Picked(), samples[0], target, calibration=samples, progress=False)
    for x, i in (samples[2], samples[4], (samples[0][0], torch.tensor(-2))):
        for wanted, found in zip(Picked()(x, i), program(x, i), strict=True):
            assert found.shape == wanted.shape and ethorch.sqnr_db(wanted, found) > 25


class Cut(nn.Module):
    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        return x[i : i + 2] * 2


class Filled(nn.Module):
    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        y = x * 2
        y[i] = 1.0
        return y


@pytest.mark.parametrize("model, remedy", [(Cut(), r"x\[start \+ torch\.arange"), (Filled(), r"y\[i\.reshape\(1\)\] = z")])
def test_other_uses_of_an_index_of_rank_0_have_a_remedy(model: nn.Module, remedy: str) -> None:
    with pytest.raises(EthorchError, match=remedy):
        ethorch.compile(model, (torch.randn(6, 5), torch.tensor(2)), "ethos-u55-128", progress=False)


class ReturnedIndex(nn.Module):
    """Selects the largest number, and returns its index as int64, or a view of the index."""

    def __init__(self, viewed: bool):
        super().__init__()
        self.viewed = viewed

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        index = x.argmax(-1)
        return nn.functional.one_hot(index, 6).float() * x, index[:, None] if self.viewed else index


@pytest.mark.parametrize("viewed", [False, True])
def test_a_returned_index_does_not_move_its_other_readers_to_the_cpu(viewed: bool) -> None:
    torch.manual_seed(0)
    samples = list(torch.randn(16, 3, 6))
    model = ReturnedIndex(viewed)
    program = ethorch.compile(model, samples[0], "ethos-u55-128", calibration=samples)
    on_cpu = {row.operator for row in program.explain(cpu_only=True).operators if not row.id.startswith("io.")}
    assert on_cpu == {"aten._to_copy.default"} | ({"aten.unsqueeze.default"} if viewed else set())
    (found, index), (expected, expected_index) = program(samples[1]), model(samples[1])
    assert torch.equal(index, expected_index) and ethorch.sqnr_db(expected, found) > 35
