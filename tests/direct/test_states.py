"""State of codes: the results of state in float, without its quantize and dequantize operators, from the same beginning."""

from __future__ import annotations

import copy

import pytest
import torch

from ethorch import flow, get_symmetric_a16w8_quantization_config, get_symmetric_quantization_config, host
from ethorch.backend.through_executorch import built_by_executorch
from ethorch.formats import pte
from ethorch.formats.pte_types import Value
from tests.support.states import CASES, run

CONFIGS = {"int8": get_symmetric_quantization_config, "int16": get_symmetric_a16w8_quantization_config}
QUANTIZE, DEQUANTIZE = (f"quantized_decomposed::{kind}_per_tensor.out" for kind in ("quantize", "dequantize"))


def named(method: pte.Method) -> dict[str, Value]:
    return {value.extra.name: value for value in method.values if value.extra and value.extra.name}


@pytest.mark.parametrize("dtype", CONFIGS)
@pytest.mark.parametrize("name", CASES)
def test_state_of_codes_gives_what_state_in_float_gives(name: str, dtype: str) -> None:
    case = CASES[name]
    module, steps, spec = case.quantized(CONFIGS[dtype]())
    build = flow.build(module, steps[0], spec)
    method = pte.read(build.pte).methods["forward"]
    assert {state.name: (state.dtype, state.reason) for state in build.states} == dict.fromkeys(case.states, (dtype, None))
    assert set(named(method)) == set(case.states)
    assert {call.operator for call in method.calls if call.delegate is None} == {QUANTIZE, DEQUANTIZE}
    assert sum(call.delegate is not None for call in method.calls) == 1
    floats = built_by_executorch(module, steps[0], spec)
    theirs = pte.read(floats.pte).methods["forward"]
    assert len(method.calls) <= len(theirs.calls) - 3 * len(case.states)  # quantize, dequantize and copy_ of each
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
        assert value.extra is not None and state.scale is not None
        codes = torch.frombuffer(bytearray(program.mutable[value.extra.segment][value.data]), dtype=torch.int8)
        real = (codes.reshape(value.shape).float() - state.zero_point) * state.scale
        assert float((real - float_state[state.name]).abs().max()) <= state.scale / 2
    assert sum(v.nbytes for v in named(method).values()) <= method.memories[2]
    assert all(v.place is None or v.place[0] == 1 for v in method.values if not (v.extra and v.extra.name))


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
