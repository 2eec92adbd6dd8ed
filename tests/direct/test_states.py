"""State of codes: the results of state in float, without its quantize and dequantize operators, from the same beginning."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from ethorch import EthosUCompileSpec, flow, get_symmetric_a16w8_quantization_config, get_symmetric_quantization_config, host
from ethorch.backend.through_executorch import built_by_executorch, built_reduced
from ethorch.formats import pte
from ethorch.formats.pte_types import Value
from ethorch.fx.states import with_codes
from tests.support.states import CASES, Attention, Case, run

CONFIGS = {"int8": get_symmetric_quantization_config, "int16": get_symmetric_a16w8_quantization_config}
QUANTIZE, DEQUANTIZE = (f"quantized_decomposed::{kind}_per_tensor.out" for kind in ("quantize", "dequantize"))
PUT, CAST, COPY = "aten::index_put_", "dim_order_ops::_to_dim_order_copy.out", "aten::copy_"


def named(method: pte.Method) -> dict[str, Value]:
    return {value.extra.name: value for value in method.values if value.extra and value.extra.name}


@pytest.mark.parametrize("dtype", CONFIGS)
@pytest.mark.parametrize("name", CASES)
def test_state_of_codes_gives_what_state_in_float_gives(name: str, dtype: str) -> None:
    case = CASES[name]
    module, steps, spec = case.quantized(CONFIGS[dtype]())
    build = flow.build(module, steps[0], spec)
    method = pte.read(build.pte).methods["forward"]
    dtypes = {state: "int32" if state == "position" else dtype for state in case.states}
    assert {state.name: (state.dtype, state.reason) for state in build.states} == {k: (v, None) for k, v in dtypes.items()}
    assert set(named(method)) == set(case.states)
    operators = [call.operator for call in method.calls if call.delegate is None]
    assert {QUANTIZE, DEQUANTIZE} <= set(operators) <= {QUANTIZE, DEQUANTIZE, PUT, CAST, COPY}
    assert (operators.count(QUANTIZE), operators.count(DEQUANTIZE)) == (1, 1)  # the input's and the output's
    assert sum(call.delegate is not None for call in method.calls) == 1
    floats = built_by_executorch(module, steps[0], spec)
    theirs = pte.read(floats.pte).methods["forward"]
    assert len(method.calls) <= len(theirs.calls) - 2 * len(set(case.states) - {"position"})  # quantize and dequantize of each
    more = case.steps(20, seed=5)
    ours, of_floats, fake = (run(each, more) for each in (host.load(build.pte), host.load(floats.pte), copy.deepcopy(module)))
    for number, outputs in enumerate(zip(ours, of_floats, fake, strict=True)):
        assert torch.equal(outputs[0], outputs[1]), f"step {number}"
    step = next(float(n.args[1]) for n in module.graph.nodes if n in module.graph.output_node().all_input_nodes)
    bound = {"int8": 1, "int16": 12}[dtype] * step
    assert max(float((a - b).abs().max()) for a, b in zip(ours, fake, strict=True)) <= bound * 1.001
    assert len({output.numpy().tobytes() for output in ours}) > 1


@pytest.mark.parametrize("name", CASES)
def test_a_state_begins_with_the_models_contents_and_lies_apart(name: str) -> None:
    case = CASES[name]
    module, steps, spec = case.quantized()
    build = flow.build(module, steps[0], spec)
    program = pte.read(build.pte)
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


def test_a_converted_graph_stays_as_it_is() -> None:
    module, steps, spec = CASES["denoiser"].quantized()
    before, buffers = str(module.graph), {name: b.clone() for name, b in module.named_buffers()}
    flow.build(module, steps[0], spec)
    assert str(module.graph) == before
    assert {name: b.dtype for name, b in module.named_buffers()} == {name: b.dtype for name, b in buffers.items()}
    assert torch.equal(module.h, buffers["h"])


def test_two_programs_keep_states_of_their_own() -> None:
    module, steps, spec = CASES["denoiser"].quantized()
    data = flow.build(module, steps[0], spec).pte
    one, other = host.load(data), host.load(data)
    first = run(one, steps)
    assert not torch.equal(run(one, steps[:1])[0], first[0])
    assert all(torch.equal(a, b) for a, b in zip(run(other, steps), first, strict=True))


@pytest.mark.parametrize("name", ("attention", "wide positions", "counted", "slots"))
def test_of_a_buffer_that_is_written_in_rows_only_these_leave_the_npu(name: str) -> None:
    case = CASES[name]
    module, steps, spec = case.quantized()
    build = flow.build(module, steps[0], spec)
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
    method = pte.read(flow.build(module, steps[0], spec).pte).methods["forward"]
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
    module = flow.quantize(flow.UserModel(Twice().eval(), steps[0], steps), spec)
    build = flow.build(module, steps[0], spec)
    assert [state.dtype for state in build.states] == ["int8", "int8"]
    programs = host.load(build.pte), host.load(built_reduced(with_codes(module)[0], steps[0], spec).pte)
    for inputs in steps:
        outputs = [program(*inputs) for program in programs]
        for ours, reduced in zip(*outputs, strict=True):
            assert torch.equal(ours, reduced)
        for ours, fake in zip(outputs[0], module(*inputs), strict=True):
            torch.testing.assert_close(ours, fake, rtol=0, atol=0.03)


class Returned(nn.Module):
    """Sorted on the CPU, so in float: what it was is returned, and what it becomes."""

    best: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("best", torch.full((1, 4), 0.3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        before = self.best.clone()
        self.best.copy_(torch.topk(self.best + self.lin(x), 4)[0])
        return before, self.best


def test_a_buffer_in_float_is_returned_as_it_was_and_as_it_becomes() -> None:
    torch.manual_seed(0)
    steps = [(torch.randn(1, 4),) for _ in range(12)]
    spec = EthosUCompileSpec("ethos-u55-128")
    module = flow.quantize(flow.UserModel(Returned().eval(), steps[0], steps), spec)
    build = flow.build(module, steps[0], spec)
    assert [state.reason and state.reason.id for state in build.states] == ["state.written_as_float"]
    program, becomes = host.load(build.pte), torch.full((1, 4), 0.3)
    for inputs in steps:
        before, after = (value.clone() for value in program(*inputs))
        torch.testing.assert_close(before, becomes, rtol=0, atol=0.05)
        assert not torch.equal(before, after)
        becomes = after
