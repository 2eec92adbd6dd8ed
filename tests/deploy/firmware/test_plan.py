"""What firmware makes of a method: places, order, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ethorch.deploy.firmware.plan import plan
from ethorch.deploy.firmware.steps import ARENA, Kernel, Run
from ethorch.formats import pte
from ethorch.formats.pte_types import Chain, JumpFalse, Method, Program, Value
from ethorch.support.errors import EthorchError
from tests.helpers.firmware import program


def parsed(name: str) -> tuple[Program, Method]:
    found = pte.read(program(name, "ethos-u55-128").pte)
    return found, found.methods["forward"]


def test_codes_go_straight_into_the_npus_memory_and_out_of_it() -> None:
    found = plan(*parsed("small"))
    assert [step.operator.split("::")[1] for step in found.convert_in] == ["quantize_per_tensor.out"]
    assert [step.operator.split("::")[1] for step in found.convert_out] == ["dequantize_per_tensor.out"]
    (step,) = found.body
    assert isinstance(step, Run) and not step.before and not step.after
    for end in (*found.inputs, *found.outputs):
        assert end.codes and found.places[end.codes.index].buffer == ARENA
    assert found.codes_tensors_bytes == 0 < found.tensors_bytes


def test_what_lies_between_delegates_is_copied() -> None:
    found = plan(*parsed("sorts"))
    runs = [step for step in found.body if isinstance(step, Run)]
    assert len(runs) == 2 and runs[0].after and runs[1].before
    assert any(isinstance(step, Kernel) and "topk" in step.operator for step in found.body)
    assert found.arena_bytes == max(payload.scratch_bytes for payload in found.payloads.values())


def test_state_is_kept_apart_from_inputs() -> None:
    found = plan(*parsed("state"))
    assert found.keeps_state and not plan(*parsed("small")).keeps_state
    (end,) = found.inputs
    assert end.codes is not None


def test_integers_at_the_boundary_are_not_converted() -> None:
    found = plan(*parsed("codes"))
    assert not found.convert_in and not found.convert_out and not found.has_codes
    assert found.places[found.inputs[0].index].buffer == found.places[found.outputs[0].index].buffer == ARENA
    assert found.tensors_bytes == 0


def _branching(method: Method) -> Method:
    first = method.chains[0]
    return replace(method, chains=(Chain((*first.instructions, JumpFalse(0, 0))),))


def _with_number(method: Method) -> Method:
    return replace(method, values=(*method.values, Value("int", number=3)), inputs=(*method.inputs, len(method.values)))


def _growing(method: Method) -> Method:
    values = list(method.values)
    values[method.inputs[0]] = replace(values[method.inputs[0]], dynamism=1)
    return replace(method, values=tuple(values))


def _foreign(method: Method) -> Method:
    return replace(method, delegates=(replace(method.delegates[0], id="XnnpackBackend"),))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_branching, "branches on the CPU"),
        (_with_number, "input 1 of method 'forward': expected a tensor of static shape, got int"),
        (_growing, "a dynamic shape of at most float32"),
        (_foreign, "expected a delegate for Ethos-U, got XnnpackBackend"),
    ],
)
def test_what_firmware_cannot_do_is_refused_with_the_remedy(change, words: str) -> None:
    found, method = parsed("small")
    with pytest.raises(EthorchError, match=rf"{words}.*docs/guides/firmware.md"):
        plan(found, change(method))
