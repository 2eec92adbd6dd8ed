"""State of codes: the results of state in float, without its quantize and dequantize operators, from the same beginning."""

from __future__ import annotations

import copy
import ctypes
import dataclasses
import functools

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ethorch import EthosUCompileSpec, EthosUQuantizer, runtime
from ethorch.arm.quantizer import get_symmetric_a16w8_quantization_config, get_symmetric_quantization_config
from ethorch.backend.build import build_pte
from ethorch.backend.emit.build import Build
from ethorch.backend.emit.partitions import PartitionedGraph, partition_graph
from ethorch.backend.through_executorch import lower_by_executorch
from ethorch.formats import pte
from ethorch.formats.pte_types import Value
from ethorch.formats.pte_writer import write
from ethorch.lower.fx.states import with_codes
from ethorch.models.load import UserModel
from ethorch.quantization.calibrate import quantize
from tests.helpers.pte_files import check_round_trip
from tests.helpers.states import CASES, Attention, Case, Inputs, run

CONFIGS = {"int8": get_symmetric_quantization_config, "int16": get_symmetric_a16w8_quantization_config}
QUANTIZE, DEQUANTIZE = (f"quantized_decomposed::{kind}_per_tensor.out" for kind in ("quantize", "dequantize"))
PUT, CAST, COPY = "aten::index_put_", "dim_order_ops::_to_dim_order_copy.out", "aten::copy_"


def named(method: pte.Method) -> dict[str, Value]:
    return {value.extra.name: value for value in method.values if value.extra and value.extra.name}


@functools.cache
def compiled(name: str, dtype: str = "int8") -> tuple[GraphModule, list[Inputs], EthosUCompileSpec, Build]:
    """What ``Case.quantized`` gives, and the program; several tests look at one."""
    module, steps, spec = CASES[name].quantized(CONFIGS[dtype]())
    return module, steps, spec, build_pte(module, steps[0], spec)


#: U55 with parts of a buffer, U65 with int16, U85 with rows at a counter.
FEW = (("slots", "int8"), ("lstm", "int16"), ("counted", "int8"))
BOTH = [pytest.param(name, dtype, marks=[pytest.mark.long] * ((name, dtype) not in FEW)) for name in CASES for dtype in CONFIGS]
#: Whose programs other tests compile too, and one with initial contents.
COMPILED = ("lstm", "streaming", "attention", "slots", "counted", "delayed", "mean")


@pytest.mark.parametrize(("name", "dtype"), BOTH)
def test_state_of_codes_gives_what_state_in_float_gives(name: str, dtype: str) -> None:
    case = CASES[name]
    module, steps, spec, build = compiled(name, dtype)
    method = pte.read(build.pte).methods["forward"]
    dtypes = {state: "int32" if state == "position" else dtype for state in case.states}
    assert {state.name: (state.dtype, state.reason) for state in build.states} == {k: (v, None) for k, v in dtypes.items()}
    assert set(named(method)) == set(case.states)
    operators = [call.operator for call in method.calls if call.delegate is None]
    assert {QUANTIZE, DEQUANTIZE} <= set(operators) <= {QUANTIZE, DEQUANTIZE, PUT, CAST, COPY}
    assert (operators.count(QUANTIZE), operators.count(DEQUANTIZE)) == (1, 1)  # the input's and the output's
    assert sum(call.delegate is not None for call in method.calls) == 1
    floats = lower_by_executorch(module, steps[0], spec)
    theirs = pte.read(floats.pte).methods["forward"]
    assert len(method.calls) <= len(theirs.calls) - 2 * len(set(case.states) - {"position"})  # quantize and dequantize of each
    more = case.steps(20, seed=5)
    ours, of_floats, fake = (run(each, more) for each in (runtime.load(build.pte), runtime.load(floats.pte), copy.deepcopy(module)))
    for number, outputs in enumerate(zip(ours, of_floats, fake, strict=True)):
        assert torch.equal(outputs[0], outputs[1]), f"step {number}"
    step = next(float(n.args[1]) for n in module.graph.nodes if n in module.graph.output_node().all_input_nodes)
    bound = {"int8": 1, "int16": 12}[dtype] * step
    assert max(float((a - b).abs().max()) for a, b in zip(ours, fake, strict=True)) <= bound * 1.001
    assert len({output.numpy().tobytes() for output in ours}) > 1


@pytest.mark.parametrize("name", ["attention", "lstm", "slots", "streaming"])
def test_the_simulated_npu_reads_buffers_where_the_runtime_has_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits as with copies, and all that is copied to the NPU is what is no buffer."""
    _, _, _, build = compiled(name)
    method = pte.read(build.pte).methods["forward"]
    inputs, outputs = build.delegates[0].payload.inputs, build.delegates[0].payload.outputs
    kept = sum(value.nbytes for value in named(method).values())
    moved: list[int] = []
    memmove = ctypes.memmove
    monkeypatch.setattr(ctypes, "memmove", lambda *args: moved.append(args[2]) or memmove(*args))
    more, found = CASES[name].steps(12, seed=3), []
    for machine in (None, runtime.npu_machine):
        moved.clear()
        found.append(run(runtime.load(build.pte, machine=machine), more))
        copied = sum(tensor.nbytes for tensor in (*inputs, *outputs)) - (kept if machine is None else 0)
        assert sum(moved) == len(more) * copied
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("name", [x if x in COMPILED else pytest.param(x, marks=pytest.mark.long) for x in CASES])
def test_a_state_begins_with_the_models_contents_and_lies_apart(name: str) -> None:
    module, _, _, build = compiled(name)
    program = check_round_trip(build.pte)
    method = program.methods["forward"]
    float_state = dict(module.named_buffers())
    for state in build.states:
        value = named(method)[state.name]
        assert value.place is not None and value.place[0] == 2
        if state.name == "position":
            continue
        assert value.extra is not None and state.scale is not None
        codes = torch.frombuffer(bytearray(program.mutable[value.extra.segment][value.data]), dtype=torch.int8)
        real = (codes.reshape(value.shape).float() - state.zero_point) * state.scale
        assert float((real - float_state[state.name]).abs().max()) <= state.scale / 2
    assert sum(v.nbytes for v in named(method).values()) <= method.memories[2]
    others = [v.place for v in method.values if v.place and not (v.extra and v.extra.name)]
    assert all(memory == 1 or name == "slots" for memory, _ in others)  # which has parts that are written


def test_equal_contents_are_stored_once_and_states_do_not_meet() -> None:
    """The runtime copies them: int16 zeros of h and c are one entry of the file, and the two go ways of their own."""
    case = CASES["lstm"]
    module, steps, spec = case.quantized(CONFIGS["int16"]())
    build = build_pte(module, steps[0], spec)
    parsed = pte.read(build.pte)
    states = named(parsed.methods["forward"])
    assert len(states) == 2 and {value.data for value in states.values()} == {1}
    assert len({value.place for value in states.values()}) == 2
    (segment,) = parsed.mutable
    assert [bytes(entry).strip(b"\0") for entry in segment] == [b"", b""] and len(segment[1]) == max(
        v.nbytes for v in states.values()
    )
    (first,) = segment[1:]
    apart = dataclasses.replace(
        parsed,
        mutable=((b"", first, first),),
        methods={
            "forward": dataclasses.replace(
                parsed.methods["forward"],
                values=tuple(
                    dataclasses.replace(v, data=2) if v.extra and v.extra.name == list(states)[1] else v
                    for v in parsed.methods["forward"].values
                ),
            )
        },
    )
    wanted = run(runtime.load(write(apart)), steps)
    assert all(torch.equal(one, other) for one, other in zip(run(runtime.load(build.pte), steps), wanted, strict=True))


@pytest.mark.parametrize("name", [name if name == "delayed" else pytest.param(name, marks=pytest.mark.long) for name in CASES])
def test_executorchs_lowering_keeps_the_same_state(name: str) -> None:
    """By the same payloads, unless a buffer is written in parts: only the writer's delegates return these parts."""
    module, steps, spec, build = compiled(name)
    codes, _ = with_codes(module)
    more = CASES[name].steps(5, seed=6)
    ours = run(runtime.load(build.pte), more)
    graph = partition_graph(codes, spec)
    assert isinstance(graph, PartitionedGraph) and build.partition.executorch_reason is None
    in_parts = any(node.target is torch.ops.aten.index_put_.default or is_part(node) for node in graph.module.graph.nodes)
    other = lower_by_executorch(codes, steps[0], spec)
    theirs = run(runtime.load(other.pte), more)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert in_parts or [part.payload for part in other.delegates] == [part.payload for part in build.delegates]


def is_part(node: Node) -> bool:
    """Return True if a node writes to a part of a buffer."""
    return node.target is torch.ops.aten.copy_.default and isinstance(node.args[0], Node) and node.args[0].op != "get_attr"


def test_a_converted_graph_stays_as_it_is() -> None:
    module, steps, spec = CASES["denoiser"].quantized()
    before, buffers = str(module.graph), {name: b.clone() for name, b in module.named_buffers()}
    build_pte(module, steps[0], spec)
    assert str(module.graph) == before
    assert {name: b.dtype for name, b in module.named_buffers()} == {name: b.dtype for name, b in buffers.items()}
    assert torch.equal(module.h, buffers["h"])


def test_two_programs_keep_states_of_their_own() -> None:
    module, steps, spec = CASES["denoiser"].quantized()
    data = build_pte(module, steps[0], spec).pte
    one, other = runtime.load(data), runtime.load(data)
    first = run(one, steps)
    assert not torch.equal(run(one, steps[:1])[0], first[0])
    assert all(torch.equal(a, b) for a, b in zip(run(other, steps), first, strict=True))


@pytest.mark.parametrize("name", ("attention", pytest.param("wide positions", marks=pytest.mark.long), "counted", "slots"))
def test_of_a_buffer_that_is_written_in_rows_only_these_leave_the_npu(name: str) -> None:
    build = compiled(name)[-1]
    method = pte.read(build.pte).methods["forward"]
    (payload,) = (delegate.payload for delegate in build.delegates)
    whole = sum(value.nbytes for value in named(method).values())
    assert sum(tensor.nbytes for tensor in payload.outputs) <= 8 * 5 < whole
    (call,) = (call for call in method.calls if call.delegate is not None)
    given = [method.values[arg] for arg in call.args[len(payload.inputs) :]]
    inside = [value for value in given if value.place is not None and value.place[0] == 2]
    assert len(inside) == {"slots": 3, "counted": 1}.get(name, 0)  # the counter's next value
    assert sum(call.operator == PUT for call in method.calls) == {"slots": 0, "counted": 1}.get(name, 2)


def test_a_small_cache_is_copied_whole_where_that_is_cheaper() -> None:
    """An operator takes longer for an element of a row than memcpy for 24 bytes."""
    case = Case(lambda: Attention(length=20), "ethos-u85-256", CASES["attention"].step, ("keys", "values"))
    module, steps, spec = case.quantized()
    method = pte.read(build_pte(module, steps[0], spec).pte).methods["forward"]
    assert all(call.operator != PUT for call in method.calls)


class Twice(nn.Module):
    """The same codes in two buffers, which are also returned."""

    one: Tensor
    other: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("one", torch.zeros(1, 4))
        self.register_buffer("other", torch.ones(1, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.tanh(x + self.one * 0.5 - self.other * 0.25)
        self.one.copy_(y)
        self.other.copy_(y)
        return y, self.one + self.other


def test_codes_in_two_buffers_and_in_an_output_are_three_tensors() -> None:
    torch.manual_seed(0)
    steps = [(torch.randn(1, 4),) for _ in range(12)]
    spec = EthosUCompileSpec("ethos-u55-128")
    module = quantize(UserModel(Twice().eval(), steps[0], steps), spec)
    build = build_pte(module, steps[0], spec)
    assert [state.dtype for state in build.states] == ["int8", "int8"]
    programs = runtime.load(build.pte), runtime.load(lower_by_executorch(with_codes(module)[0], steps[0], spec).pte)
    for inputs in steps:
        outputs = [program(*inputs) for program in programs]
        for ours, reduced in zip(*outputs, strict=True):
            assert torch.equal(ours, reduced)
        for ours, fake in zip(outputs[0], module(*inputs), strict=True):
            torch.testing.assert_close(ours, fake, rtol=0, atol=0.03)


class Returned(nn.Module):
    """Computed on the CPU, so in float: what it was is returned, and what it becomes."""

    angle: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("angle", torch.full((1, 4), 0.3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        before = self.angle.clone()
        self.angle.copy_(torch.atan2(self.angle + self.lin(x), x + 2))
        return before, self.angle


def test_a_buffer_in_float_is_returned_as_it_was_and_as_it_becomes() -> None:
    torch.manual_seed(0)
    steps = [(torch.randn(1, 4),) for _ in range(12)]
    spec = EthosUCompileSpec("ethos-u55-128")
    module = quantize(UserModel(Returned().eval(), steps[0], steps), spec)
    build = build_pte(module, steps[0], spec)
    assert [state.reason and state.reason.id for state in build.states] == ["state.written_as_float"]
    program, becomes = runtime.load(build.pte), torch.full((1, 4), 0.3)
    for inputs in steps:
        before, after = (value.clone() for value in program(*inputs))
        torch.testing.assert_close(before, becomes, rtol=0, atol=0.05)
        assert not torch.equal(before, after)
        becomes = after


@pytest.mark.parametrize("target", ("ethos-u55-128", pytest.param("ethos-u65-256", marks=pytest.mark.long)))
def test_where_the_cpu_puts_rows_into_a_cache_it_moves_codes(target: str) -> None:
    """These NPUs have no SCATTER: no cache becomes floats for that."""
    case = dataclasses.replace(CASES["wide positions"], target=target)
    module, steps, spec = case.quantized()
    build = build_pte(module, steps[0], spec)
    method = pte.read(build.pte).methods["forward"]
    large = {v.dtype for call in method.calls for v in map(method.values.__getitem__, call.args) if v.shape == (1, 60, 8)}
    assert large == {"int8"}
    fake = run(copy.deepcopy(module), steps)
    step = next(float(n.args[1]) for n in module.graph.nodes if n in module.graph.output_node().all_input_nodes)
    assert max(float((a - b).abs().max()) for a, b in zip(run(runtime.load(build.pte), steps), fake, strict=True)) <= 1.001 * step


class Replaced(nn.Module):
    """No state: rows of a wide range are put among those of a narrow one."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        return torch.tanh(self.lin(x)).index_copy(1, place, 20 * x[:, :1]) * 0.5


def test_rows_of_a_wider_range_are_not_clipped() -> None:
    torch.manual_seed(0)
    steps = [(torch.randn(1, 5, 8), torch.tensor([k % 5])) for k in range(12)]
    spec = EthosUCompileSpec("ethos-u55-128")
    module = quantize(UserModel(Replaced().eval(), steps[0], steps), spec)
    program = runtime.load(build_pte(module, steps[0], spec).pte)
    step = next(float(n.args[1]) for n in module.graph.nodes if n in module.graph.output_node().all_input_nodes)
    for inputs in steps:
        torch.testing.assert_close(program(*inputs)[0], module(*inputs), rtol=0, atol=1.001 * step)


@pytest.mark.parametrize("name", ("denoiser", "attention", "slots"))
def test_a_calibration_with_autograd_on_is_a_calibration(name: str) -> None:
    case = CASES[name]
    torch.manual_seed(1)
    steps, spec = case.steps(6), EthosUCompileSpec(case.target)
    model = case.model()
    quantizer = EthosUQuantizer(spec).set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(torch.export.export(model, steps[0]).module(), quantizer)
    assert torch.is_grad_enabled()
    for inputs in steps:
        prepared(*inputs)
    build = build_pte(convert_pt2e(prepared), steps[0], spec)
    assert [state.dtype for state in build.states] == ["int8"] * len(case.states)
    assert all(parameter.requires_grad for parameter in model.parameters())


class Wide(nn.Module):
    """A counter that goes up for ever says where the cache is written; control flow decides what another buffer becomes."""

    keys: Tensor
    position: Tensor
    gate: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.k = nn.Linear(8, 8)
        self.register_buffer("keys", torch.zeros(1, 60, 8))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("gate", torch.full((1, 8), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        self.keys.index_copy_(1, self.position % 60, self.k(x)[None])
        self.position += 1
        y = self.keys.sum(1) + self.gate
        self.gate.copy_(torch.cond(x.sum() > 0, torch.tanh, torch.neg, (y,)))
        return y


def test_counters_of_int64_and_control_flow_keep_their_state_on_the_cpu() -> None:
    torch.manual_seed(0)
    steps = [(torch.randn(1, 8),) for _ in range(12)]
    spec = EthosUCompileSpec("ethos-u85-256")
    module = quantize(UserModel(Wide().eval(), steps[0], steps), spec)
    build = build_pte(module, steps[0], spec)
    found = {state.name: (state.dtype, state.reason and state.reason.id) for state in build.states}
    assert found == {"keys": ("int8", None), "position": ("int64", None), "gate": ("float32", "state.written_as_float")}
    ours, fake = run(runtime.load(build.pte), steps), run(copy.deepcopy(module), steps)
    for number, (a, b) in enumerate(zip(ours, fake, strict=True)):
        torch.testing.assert_close(a, b, rtol=0, atol=0.1, msg=f"step {number}")


class Heads(nn.Module):
    """Two heads over a cache [1, heads, length, width] that is written along its third dim, in each of three spellings."""

    k: Tensor
    v: Tensor
    places: Tensor

    def __init__(self, spelling: str, length: int = 64, heads: int = 2, width: int = 16) -> None:
        super().__init__()
        self.spelling, self.heads, self.width = spelling, heads, width
        self.qkv = nn.Linear(heads * width, 3 * heads * width)
        self.register_buffer("k", torch.zeros(1, heads, length, width))
        self.register_buffer("v", torch.zeros(1, heads, length, width))
        self.register_buffer("places", torch.arange(length))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (part.reshape(1, -1, self.heads, self.width).transpose(1, 2) for part in parts)
        if self.spelling == "index_copy_":
            self.k.index_copy_(2, positions, k)
            self.v.index_copy_(2, positions, v)
        elif self.spelling == "index_put_":
            self.k[:, :, positions] = k
            self.v[:, :, positions] = v
        else:
            self.k, self.v = torch.index_copy(self.k, 2, positions, k), torch.index_copy(self.v, 2, positions, v)
        mask = self.places[None] <= positions[:, None]
        return nn.functional.scaled_dot_product_attention(q, self.k, self.v, attn_mask=mask).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    ("spelling", "tokens"),
    [
        ("index_copy_", 1),
        pytest.param("index_put_", 4, marks=pytest.mark.long),
        pytest.param("assigned", 1, marks=pytest.mark.long),
    ],
)
def test_caches_of_heads_are_written_at_positions(spelling: str, tokens: int) -> None:
    """One token at a time, of which the rows leave the NPU; four, of which copying all is cheaper."""
    torch.manual_seed(0)
    steps = [(torch.randn(1, tokens, 32), torch.arange(k * tokens, (k + 1) * tokens)) for k in range(8)]
    spec = EthosUCompileSpec("ethos-u85-256")
    module = quantize(UserModel(Heads(spelling).eval(), steps[0], steps), spec)
    build = build_pte(module, steps[0], spec)
    assert [state.dtype for state in build.states] == ["int8", "int8"] and len(build.delegates) == 1
    (payload,) = (delegate.payload for delegate in build.delegates)
    given = sorted(tensor.nbytes for tensor in payload.outputs)
    assert given == ([32, 32, 32] if tokens == 1 else [128, 2048, 2048])
    floats = lower_by_executorch(module, steps[0], spec)
    for ours, theirs in zip(*(run(runtime.load(each.pte), steps) for each in (build, floats)), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("spelling", ["index_copy_", "index_put_", "assigned"])
def test_caches_are_written_at_several_positions_without_scatter(spelling: str) -> None:
    """The U55 has no SCATTER, so the CPU writes the rows."""
    torch.manual_seed(0)
    steps = [(torch.randn(1, 4, 32), torch.arange(k * 4, (k + 1) * 4)) for k in range(4)]
    spec = EthosUCompileSpec("ethos-u55-128")
    module = quantize(UserModel(Heads(spelling).eval(), steps[0], steps), spec)
    build = build_pte(module, steps[0], spec)
    assert build.partition.executorch_reason is None and [state.dtype for state in build.states] == ["int8", "int8"]
    floats = lower_by_executorch(module, steps[0], spec)
    for ours, theirs in zip(*(run(runtime.load(each.pte), steps) for each in (build, floats)), strict=True):
        assert torch.equal(ours, theirs)


class OnlyCache(nn.Module):
    """A cache that is returned, so that no operator runs on a U55."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 16, 8))

    def forward(self, positions: Tensor, rows: Tensor) -> Tensor:
        return self.cache.index_copy_(1, positions, rows)


def test_a_cache_is_written_without_a_delegate() -> None:
    torch.manual_seed(0)
    steps = [(torch.tensor([k, k + 5]), torch.randn(1, 2, 8)) for k in range(4)]
    spec = EthosUCompileSpec("ethos-u55-128")
    module = quantize(UserModel(OnlyCache().eval(), steps[0], steps), spec)
    build = build_pte(module, steps[0], spec)
    assert not build.delegates
    for ours, fake in zip(run(runtime.load(build.pte), steps), run(copy.deepcopy(module), steps), strict=True):
        torch.testing.assert_close(ours, fake)
