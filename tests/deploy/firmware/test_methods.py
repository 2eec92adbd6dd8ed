"""Several methods of a program in one firmware: what they share is there once, and a session on the board is the desk's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

import ethorch
from ethorch import cli
from ethorch.deploy.firmware import project_run
from ethorch.deploy.firmware.firmware import firmware
from ethorch.deploy.firmware.methods import plan_methods
from ethorch.deploy.firmware.plan import plan
from ethorch.deploy.firmware.project_run import Options
from ethorch.deploy.firmware.steps import ARENA, TENSORS, Place, Plan, Run
from ethorch.formats import pte
from ethorch.formats.pte_types import Method, Program
from ethorch.formats.pte_writer import write
from ethorch.program.program import record_of
from ethorch.support.errors import EthorchError
from tests.deploy.firmware.test_project import compiled
from tests.deploy.virtual_board.test_qemu import needs_qemu
from tests.helpers.firmware import built_and_run, program
from tests.program.test_methods import INPUTS, TARGET, models, session


@cache
def steps() -> ethorch.Program:
    """``steps`` and ``step`` of a recurrent cell: both read its weights and write its state."""
    return ethorch.compile(models(), INPUTS, TARGET, calibration=[session(seed) for seed in range(2)], progress=False)


def states(found: Plan, buffer: str = TENSORS) -> dict[str, int]:
    """Where the CPU's buffer, or the arena, has each state."""
    places = {index: found.places[index] for index in found.states}
    assert {place.buffer for place in places.values()} <= {buffer}
    return {getattr(found.method.values[index].extra, "name", ""): place.offset for index, place in places.items()}


def spans(found: Plan) -> Iterator[tuple[int, int]]:
    """The bytes of the CPU's buffer that a method has for what is not state."""
    for index, place in found.places.items():
        if place.buffer == TENSORS and index not in found.states:
            yield place.offset, place.offset + found.method.values[index].nbytes


def test_methods_have_their_state_in_one_place_and_all_else_in_the_same_memory() -> None:
    parsed = pte.read(steps().pte)
    found = plan_methods(parsed, ["steps", "step"])
    one, other = found.plans.values()
    assert states(one, ARENA) == states(other, ARENA) and len(states(one, ARENA)) == 1
    (start,) = states(one, ARENA).values()
    payloads = [payload for each in (one, other) for payload in each.payloads.values()]
    assert start == max(-(-payload.scratch_bytes // 16) * 16 for payload in payloads) <= found.arena_bytes - found.state_bytes
    runs = [step for each in (one, other) for step in each.body if isinstance(step, Run)]
    assert not any(step.before for step in runs)  # the NPU reads it there, and writes it there
    assert not any(copied.target == Place(ARENA, start) for step in runs for copied in step.after)
    assert found.arena_bytes == max(one.arena_bytes, other.arena_bytes)
    assert found.tensors_bytes == max(one.tensors_bytes, other.tensors_bytes) < one.tensors_bytes + other.tensors_bytes
    assert len(found.initial) == 1 and found.keeps_state and found.has_state_in_arena
    alone = plan_methods(parsed, ["step"])
    assert alone.plans["step"] == plan(parsed, parsed.methods["step"])  # one method alone is what it was


def test_a_session_runs_on_the_board_with_weights_stored_once_and_the_reset_is_seen(tmp_path: Path) -> None:
    made = firmware(steps(), tmp_path)
    assert [path for path in made.files if "weights" in path] == ["model/model_weights_0.bin"]
    assert set(made.methods) == {"steps", "step"} and made.sizes["arena"] == max(own["arena"] for own in made.methods.values())
    weights = [delegate.payload.weights for name in made.methods for delegate in record_of(steps()[name]).description.delegates]
    assert len(weights) == 2 and made.sizes["weights"] == len(weights[0]) == len(weights[1])
    header = (tmp_path / "model" / "model.h").read_text()
    assert all(f"ethosu_status model_{method}_run(model_t *self);" in header for method in made.methods)
    assert "model_run" not in header and header.count("void model_reset") == 1
    assert all(
        f"`model_{method}_run` | {own['arena']}" in (tmp_path / "REPORT.md").read_text() for method, own in made.methods.items()
    )
    done = built_and_run(tmp_path)
    calls = project_run.read_description(tmp_path)["calls"]
    assert calls == ["steps", "step", "step", "steps", "step"] * 2
    assert re.findall(r"run \d+: (\w+),", done.text) == calls and done.text.count("reset\n") == 1
    outputs = [output.found for output in project_run.outputs(done.text, project_run.read_description(tmp_path))]
    assert outputs[:5] == outputs[5:] and len(set(outputs)) == 5
    source = tmp_path / "model" / "model.c"  # without the reset the second half of the session differs
    source.write_text(
        source.read_text().replace(
            "void model_reset(model_t *self) {", "void model_reset(model_t *self) {\n  if (self->cycles) return;"
        )
    )
    text = project_run.run(tmp_path, project_run.build(tmp_path)).text
    wrong = [output.run for output in project_run.outputs(text, project_run.read_description(tmp_path)) if not output.equal]
    assert wrong and min(wrong) >= 5 and "FAIL" in text.split()


def test_no_source_of_several_methods_has_a_warning(tmp_path: Path) -> None:
    firmware(steps(), tmp_path)
    strict = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wcast-align", "-Werror", "-mcpu=cortex_m33+fp_armv8d16sp")
    include = [f"-I{tmp_path / folder}" for folder in ("model", "model/kernels", "firmware", "firmware/freestanding")]
    for path in ("model/model.c", "firmware/main.c"):
        compiled(tmp_path / path, tmp_path / "one.o", *strict, *include)


def renamed(parsed: Program, **methods: Method) -> Program:
    return replace(parsed, methods={name: replace(method, name=name) for name, method in methods.items()})


def kept_to_itself(method: Method) -> Method:
    """The method with its state in memory 1, as ExecuTorch plans it where methods share none."""
    _, own, shared = method.memories
    start = -(-own // 16) * 16
    values = tuple(replace(v, place=(1, start + v.place[1])) if v.place and v.place[0] == 2 else v for v in method.values)
    return replace(method, values=values, memories=(0, start + shared))


def test_state_of_a_method_alone_is_overwritten_by_no_other(tmp_path: Path) -> None:
    parsed = pte.read(program("state", "ethos-u55-128").pte)
    stateless = pte.read(program("small", "ethos-u55-128").pte)
    mine = kept_to_itself(parsed.methods["forward"])
    assert not stateless.constants[1:] and not parsed.constants[1:]
    both = renamed(parsed, look=stateless.methods["forward"], one=mine, other=mine)
    found = plan_methods(both, list(both.methods))
    kept = [(place, place + 8) for name in ("one", "other") for place in states(found.plans[name]).values()]
    assert len(kept) == 2 and kept[0] != kept[1]
    for name, own in found.plans.items():
        mine_too = states(own).values()
        for start, stop in (span for span in kept if span[0] not in mine_too):
            assert all(stop <= low or high <= start for low, high in spans(own)), name
    x, y = torch.randn(1, 1, 8, 8), torch.randn(1, 8)
    calls = [("one", (y,)), ("look", (x,)), ("one", (y,)), ("other", (y,)), ("look", (x,)), ("one", (y,)), ("other", (y,))]
    firmware(write(both), tmp_path, samples=calls)
    done = built_and_run(tmp_path)
    hashes = [output.found for output in project_run.outputs(done.text, project_run.read_description(tmp_path))][:7]
    assert hashes[3] == hashes[0] != hashes[2] == hashes[6] != hashes[5]  # each of the two begins by itself
    names = sorted(path.name for path in (tmp_path / "model").glob("*commands*"))
    assert names == ["model_look_commands_0.bin", "model_one_commands_0.bin"]  # those of `other` are the same bytes


def test_what_cannot_be_had_is_refused_with_a_reason() -> None:
    parsed = pte.read(steps().pte)
    one, other = parsed.methods["steps"], parsed.methods["step"]
    with pytest.raises(
        EthorchError, match=r"'a' cannot be the prefix.*equals 'A' in upper case.*\[firmware.method_name\].*--method"
    ):
        plan_methods(renamed(parsed, a=one, A=other), ["a", "A"])
    with pytest.raises(EthorchError, match=r"not a C identifier.*\[firmware.method_name\]"):
        plan_methods(renamed(parsed, **{"a.b": one, "c": other}), ["a.b", "c"])
    assert plan_methods(renamed(parsed, **{"a.b": one}), ["a.b"]).plans  # alone, its name stands nowhere
    (segment,) = parsed.mutable
    values = tuple(replace(v, data=len(segment)) if v.planned and v.data else v for v in other.values)
    changed = replace(
        parsed, mutable=((*segment, bytes(len(segment[1]))),), methods={"steps": one, "step": replace(other, values=values)}
    )
    with pytest.raises(EthorchError, match=r"different initial values.*\[firmware.initial_contents\]"):
        plan_methods(changed, ["steps", "step"])
    for inputs in ([INPUTS["step"]], [("stairs", INPUTS["step"])]):
        with pytest.raises(EthorchError, match=r"sample 0: expected \(method, inputs\) with one of the methods steps, step, got"):
            firmware(steps(), "nowhere", samples=inputs)
    with pytest.raises(EthorchError, match="at least one method"):
        firmware(steps(), "nowhere", methods=[])


def test_the_command_makes_a_project_of_all_methods_or_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps().save(tmp_path / "steps.pte")
    line = ["firmware", str(tmp_path / "steps.pte"), "-o", str(tmp_path / "project")]
    assert cli.main([*line, "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert list(both["methods"]) == ["steps", "step"]
    assert cli.main([*line, "--method", "step"]) == 0
    assert "Methods not included in the project: steps." in capsys.readouterr().out
    header = (tmp_path / "project" / "model" / "model.h").read_text()
    assert "ethosu_status model_run(model_t *self);" in header and "step" not in header.replace("steps", "")
    assert cli.main([*line, "--inputs", str(tmp_path / "x.npy")]) == 2
    assert "Use --method NAME" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize(
    ("target", "platform"), [("ethos-u85-256", "unicorn"), pytest.param("ethos-u55-128", "qemu", marks=needs_qemu)]
)
def test_a_decoder_speaks_on_the_board(target: str, platform: str, tmp_path: Path) -> None:
    from tests.helpers.decoders import FAMILIES

    model = FAMILIES["Llama"](32, 2)
    texts = torch.randint(model.vocabulary, (3, 20), generator=torch.Generator().manual_seed(7)).tolist()
    made = ethorch.compile(model.modules, model.example_inputs, target, calibration=model.sessions(texts), progress=False)
    found = firmware(made, tmp_path)
    caches = sum(v.nbytes for v in record_of(made["decode"]).description.values if v.kind == "tensor" and v.extra and v.extra.name)
    assert caches <= found.sizes["arena"] and all(state.in_place for state in made["decode"].explain().states)
    assert len([path for path in found.files if "weights" in path]) == 1
    assert built_and_run(tmp_path, Options(caches=platform == "unicorn"), platform=platform).text.count("reset") == 1
    assert project_run.read_description(tmp_path)["calls"] == ["prefill", "decode", "decode", "decode"] * 2
