"""Several models that share buffers and weights as the methods of one program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch import cli, npu
from ethorch.backend import build as build_module
from ethorch.backend.emit.build import Build
from ethorch.backend.through_executorch import lower_by_executorch
from ethorch.formats import pte
from ethorch.program.program import record_of
from ethorch.support.errors import EthorchError, SpecError
from tests.helpers.pte_files import check_round_trip

TARGET = "ethos-u85-256"


class Cell(nn.Module):
    """h = tanh(x W + h U): what both methods share."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(6, 16), nn.Linear(16, 16)
        self.register_buffer("state", torch.zeros(1, 16))


class Step(nn.Module):
    """One step; returns the state."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.cell.x(x) + self.cell.h(self.cell.state))
        self.cell.state.copy_(h)
        return h


class Steps(Step):
    """Four steps; returns the last state."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.cell.state
        for number in range(4):
            h = torch.tanh(self.cell.x(x[number : number + 1]) + self.cell.h(h))
        self.cell.state.copy_(h)
        return h


Calls = list[tuple[str, tuple[Tensor, ...]]]


def session(seed: int) -> Calls:
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: int) -> Tensor:
        return torch.randn(rows, 6, generator=generator)

    return [("steps", (draw(4),)), ("step", (draw(1),)), ("step", (draw(1),)), ("steps", (draw(4),)), ("step", (draw(1),))]


def models() -> dict[str, nn.Module]:
    torch.manual_seed(3)
    cell = Cell().eval()
    return {"steps": Steps(cell), "step": Step(cell)}


INPUTS = {"steps": (torch.zeros(4, 6),), "step": (torch.zeros(1, 6),)}


@pytest.fixture(scope="module")
def both() -> tuple[dict[str, nn.Module], ethorch.Program]:
    made = models()
    return made, ethorch.compile(made, INPUTS, TARGET, calibration=[session(seed) for seed in range(6)])


def test_a_file_of_several_methods_is_written_as_it_was_read(both: tuple[dict[str, nn.Module], ethorch.Program]) -> None:
    found = check_round_trip(both[1].pte)
    assert set(both[0]) <= set(found.methods) and found.mutable


def run(models: dict[str, nn.Module], program: ethorch.Program, calls: Calls) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs of a session in float and of the program."""
    buffers = {buffer: buffer.clone() for model in models.values() for buffer in model.buffers()}
    program.reset()
    with torch.no_grad():
        exact = [models[name](*inputs).clone() for name, inputs in calls]
    for buffer, contents in buffers.items():
        buffer.copy_(contents)
    return exact, [program[name](*inputs) for name, inputs in calls]


def test_each_methods_payloads_are_those_of_executorchs_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own, as ``to_edge_transform_and_lower`` makes them of the graph whose buffers hold codes."""
    made: list[tuple[tuple[Any, ...], dict[str, Any], Build]] = []
    built = build_module._lower

    def watched(*args: Any, **kwargs: Any) -> Build:
        made.append((args, kwargs, built(*args, **kwargs)))
        return made[-1][2]

    monkeypatch.setattr(build_module, "_lower", watched)
    program = ethorch.compile(models(), INPUTS, TARGET, calibration=[session(0)])
    assert len(made) == len(program.methods) == 2
    for (graph, inputs, spec, etrecord, shared, _open), _, build in made:
        assert shared and not etrecord
        usual = lower_by_executorch(graph, inputs, spec, shared=True)
        assert [part.payload for part in build.delegates] == [part.payload for part in usual.delegates]


def test_methods_share_their_state(both: tuple[dict[str, nn.Module], ethorch.Program]) -> None:
    models, program = both
    assert record_of(program).method == "steps"
    assert set(program.methods) == {"steps", "step"}
    exact, found = run(models, program, session(100))
    assert ethorch.sqnr_db(exact, found) > 20
    again = run(models, program, session(100))[1]
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    program.reset()
    assert not torch.equal(program["step"](*session(100)[1][1]), found[1])  # the state that `steps` left is gone


def test_the_models_state_is_as_before(both: tuple[dict[str, nn.Module], ethorch.Program]) -> None:
    models, program = both
    accuracy = program["step"].accuracy
    assert accuracy is not None
    assert accuracy.sqnr_db > 20
    assert accuracy.samples >= 3
    assert not models["step"].cell.state.any()  # type: ignore[union-attr]


def test_accuracy_leaves_alone_what_the_user_has_run(both: tuple[dict[str, nn.Module], ethorch.Program]) -> None:
    models, program = both
    calls = session(5)
    wanted = run(models, program, calls)[1]
    run(models, program, calls[:2])
    program["step"].__dict__.pop("accuracy", None)  # another test may have asked for it
    assert program["step"].accuracy
    for (name, inputs), one in zip(calls[2:], wanted[2:], strict=True):
        assert torch.equal(program[name](*inputs), one)


def test_the_quantized_models_share_a_buffer_of_their_own(both: tuple[dict[str, nn.Module], ethorch.Program]) -> None:
    floats, program = both
    one, other = record_of(program["steps"]).quantized, record_of(program["step"]).quantized
    assert one is not None and other is not None
    state = one.get_buffer("cell.state")
    assert other.get_buffer("cell.state") is state
    other(*session(1)[1][1])
    assert state.any()
    assert not floats["step"].cell.state.any()  # type: ignore[union-attr]
    state.zero_()


def test_a_shared_buffer_is_in_the_file_once(both: tuple[dict[str, nn.Module], ethorch.Program]) -> None:
    parsed = pte.read(both[1].pte)
    kept = {
        (name, value.extra.name, value.dtype, value.place)
        for name, method in parsed.methods.items()
        for value in method.values
        if value.place is not None and value.place[0] > 1 and value.extra is not None
    }
    assert {name for name, *_ in kept} == {"steps", "step"}
    assert len({(buffer, dtype, place) for _, buffer, dtype, place in kept}) == 1
    assert {method.memories[2] for method in parsed.methods.values()} == {16}  # int8 codes


def test_each_method_has_figures_of_its_own(both: tuple[dict[str, nn.Module], ethorch.Program]) -> None:
    program = both[1]
    four, one = program.estimate.npu_cycles, program["step"].estimate.npu_cycles
    assert four is not None
    assert one is not None
    assert four > one > 0
    assert program["step"].to_json()["method"] == "step"
    assert program["step"].explain().to_json()


def test_a_method_is_compared_by_itself(both: tuple[dict[str, nn.Module], ethorch.Program]) -> None:
    found = both[1]["step"].compare(torch.randn(1, 6))
    assert found.bit_exact
    assert "linear cell.h" in str(found)


def test_a_saved_program_has_both(both: tuple[dict[str, nn.Module], ethorch.Program], tmp_path: Path) -> None:
    models, program = both
    program.save(tmp_path / "model.pte")
    loaded = ethorch.load(tmp_path / "model.pte")
    assert record_of(loaded).method in ("steps", "step")
    wanted = run(models, program, session(7))[1]
    found = run(models, loaded, session(7))[1]
    assert all(torch.equal(one, other) for one, other in zip(wanted, found, strict=True))
    assert record_of(ethorch.load(tmp_path / "model.pte", "step")).method == "step"


def knows_its_operators(loaded: ethorch.Program, compiled: ethorch.Program) -> None:
    found = {(layer.name, layer.module) for layer in record_of(loaded).layers if layer.where == "NPU"}
    assert found <= {(layer.name, layer.module) for layer in record_of(compiled).layers}
    assert {"cell.x", "cell.h"} <= {module for _, module in found}


def test_a_saved_folder_knows_the_operators_of_both(both: tuple[dict[str, nn.Module], ethorch.Program], tmp_path: Path) -> None:
    program = both[1]
    program.save(tmp_path / "folder")
    for name in program.methods:
        knows_its_operators(ethorch.load(tmp_path / "folder", name), program[name])


def test_firmware_is_of_one_method_where_one_is_named(both: tuple[dict[str, nn.Module], ethorch.Program], tmp_path: Path) -> None:
    program = both[1]
    made = {name: ethorch.firmware(program, tmp_path / name, methods=name) for name in program.methods}
    sizes = {name: made[name].sizes for name in made}
    assert sizes["steps"]["commands"] > sizes["step"]["commands"]
    program.save(tmp_path / "two.pte")
    assert ethorch.firmware(tmp_path / "two.pte", tmp_path / "file", methods="step").sizes == sizes["step"]
    every = ethorch.firmware(program["step"], tmp_path / "all")
    alone = sizes["step"]["commands"] + sizes["steps"]["commands"]
    assert alone <= every.sizes["commands"] <= alone + 2 * 64  # a stream that reads the state where it lies says so
    assert every.sizes["weights"] == sizes["step"]["weights"] == sizes["steps"]["weights"]


def test_inputs_and_outputs_can_be_codes() -> None:
    made = models()
    program = ethorch.compile(made, INPUTS, TARGET, calibration=[session(seed) for seed in range(6)], io="int8")
    for name in ("steps", "step"):
        assert program[name].inputs[0].dtype == program[name].outputs[0].dtype == "int8"
    assert program["step"].inputs[0].codes != program["step"].outputs[0].codes
    calls = session(9)
    program.reset()
    found = [record_of(program[name]).floats([program[name](*inputs)])[0] for name, inputs in calls]
    with torch.no_grad():
        exact = [made[name](*inputs).clone() for name, inputs in calls]
    assert ethorch.sqnr_db(exact, found) > 20


def test_weights_are_stored_once(both: tuple[dict[str, nn.Module], ethorch.Program]) -> None:
    """As named data, which the runtime finds; apart, on request. The results are the same."""
    models, shared = both
    apart = ethorch.compile(
        models, INPUTS, TARGET, calibration=[session(seed) for seed in range(6)], settings=ethorch.Settings(share_weights=False)
    )
    parsed = pte.read(shared.pte)
    (weights,) = parsed.named.values()
    assert [p.weights for name in ("steps", "step") for p in record_of(shared[name]).payloads] == [weights, weights]
    assert weights not in parsed.methods["step"].delegates[0].blob
    assert len(weights) < sum(len(p.weights) for name in ("steps", "step") for p in record_of(apart[name]).payloads)
    assert not pte.read(apart.pte).named
    wanted, found = run(models, apart, session(20))[1], run(models, shared, session(20))[1]
    assert all(torch.equal(one, other) for one, other in zip(wanted, found, strict=True))
    for name in ("steps", "step"):  # commands that were inserted belong to the operators that they did
        ours, theirs = ([(layer.name, layer.cycles) for layer in record_of(program[name]).layers] for program in (shared, apart))
        assert ours == theirs
        assert program_sources(shared[name]) == program_sources(apart[name])


def program_sources(program: ethorch.Program) -> list[str]:
    """Names of the operators that the commands work for, in order."""
    (sources,) = (record_of(program).command_sources or {}).values()
    parsed = npu.Program(record_of(program).payloads[0].commands, record_of(program).payloads[0].weights)
    return [str(sources.at(op.offset)) for op in parsed.operations()]


def test_one_session_is_taken_and_none_too() -> None:
    for calibration in (session(0), None):
        program = ethorch.compile(models(), INPUTS, TARGET, calibration=calibration)
        assert program["step"](torch.zeros(1, 6)).shape == (1, 16)


@pytest.mark.parametrize(
    ("inputs", "calibration", "words"),
    [
        ({"steps": (torch.zeros(4, 6),)}, None, "method 'step' has no example inputs"),
        ({**INPUTS, "other": ()}, None, "expected example inputs for the methods 'steps', 'step', got example inputs for 'other'"),
        (
            INPUTS,
            [[("jump", (torch.zeros(1, 6),))]],
            r"call 0 of calibration session 0: expected one of the methods 'steps', 'step', got 'jump'",
        ),
        (
            INPUTS,
            [[("step", (torch.zeros(3, 7),))]],
            r"call 0 of calibration session 0 \('step'\), sample 0: expected .*, got float32\[3, 7\]",
        ),
        (INPUTS, [[torch.zeros(1, 6)]], "call 0 of calibration session 0: expected"),
        (torch.zeros(1, 6), None, "expected a dict of models and a dict of example inputs"),
        ({"steps": (torch.zeros(4, 6),), "stp": (torch.zeros(1, 6),)}, None, "got example inputs for 'stp', which has no model"),
        (INPUTS, [[("step", (torch.zeros(1, 6),))]], "no calibration session calls 'steps'"),
        ({**INPUTS, "": (torch.zeros(1, 6),)}, None, "expected a non-empty string as the name of a method"),
    ],
)
def test_what_is_wrong_is_named(inputs: object, calibration: object, words: str) -> None:
    with pytest.raises(EthorchError, match=words):
        ethorch.compile(models(), inputs, TARGET, calibration=calibration)


def test_an_unknown_module_is_named() -> None:
    with pytest.raises(SpecError, match="cells"):
        ethorch.compile(models(), INPUTS, TARGET, modules={"cells": "float"})


MODELS = """
import torch
from torch import nn

class Count(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("sum", torch.zeros(1, 8))

class Add(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.count = count

    def forward(self, x):
        self.count.sum.add_(torch.relu(x))
        return self.count.sum * 0.5

class Read(Add):
    def forward(self, x):
        return self.count.sum + x  # writes nothing

def methods():
    count = Count()
    x = torch.ones(1, 8)
    return {"add": Add(count), "read": Read(count)}, {"add": x, "read": x}, [("add", x), ("add", x), ("read", x)]
"""


def test_the_command_line_takes_a_factory_of_methods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        return cli.main([*map(str, arguments)]), *capsys.readouterr()

    (tmp_path / "net.py").write_text(MODELS)
    status, out, err = run("compile", f"{tmp_path}/net.py:methods", "--output", tmp_path / "m.pte", "--target", TARGET, "--json")
    assert status == 0, err
    assert json.loads(out)["method"] == "add"
    program = ethorch.load(tmp_path / "m.pte", "read")
    x = torch.ones(1, 8)
    program["add"](x)
    assert torch.allclose(program(x), torch.full((1, 8), 2.0), atol=0.05)
    assert len(record_of(program).payloads[0].outputs) == 1  # what it only reads, it does not give back
    status, out, err = run("explain", f"{tmp_path}/net.py:methods", "--method", "read", "--set", f"target={TARGET}")
    assert status == 0 and "count.sum" in out, err
    status, _, err = run("compile", f"{tmp_path}/net.py:methods", "-o", tmp_path / "m.pte", "--calibrate", tmp_path)
    assert status == 2
    assert "--calibrate requires a model with one method" in err
    _, _, err = run("tune", f"{tmp_path}/net.py:methods")
    assert "expected a model with one method" in err


class Written(nn.Module):
    """Writes rows into a cache from where its counter stands."""

    def __init__(self, shared: nn.Module, rows: int, returns: bool = False) -> None:
        super().__init__()
        self.shared, self.rows, self.returns = shared, rows, returns

    def forward(self, x: Tensor) -> Any:
        cache, count = self.shared.get_buffer("cache"), self.shared.get_buffer("count")
        places = count + torch.arange(self.rows)
        cache[:, places] = x
        sums = torch.where((torch.arange(16) < count + self.rows)[None, :, None], cache, 0.0).sum(1)
        count += self.rows
        return (sums, count.clone()) if self.returns else sums


@pytest.mark.parametrize("returns", (False, True))
def test_methods_share_a_counter_in_one_type(returns: bool) -> None:
    """Of int32 if all can take that; one of them returns it as int64 here."""
    shared = nn.Module()
    shared.register_buffer("cache", torch.zeros(1, 16, 8))
    shared.register_buffer("count", torch.zeros(1, dtype=torch.int64))
    methods = {"several": Written(shared, 4).eval(), "one": Written(shared, 1, returns).eval()}
    torch.manual_seed(0)
    calls: Calls = [(name, (torch.randn(1, 4 if name == "several" else 1, 8),)) for name in ("several", "one", "one", "several")]
    inputs = dict(calls[:2])
    program = ethorch.compile(methods, inputs, TARGET, calibration=[calls], progress=False)
    for name in methods:
        assert {state.name: state.dtype for state in program[name].explain().states} == {
            "shared.cache": "int8",
            "shared.count": "int64" if returns else "int32",
        }
    assert record_of(program["one"]).quantized is not None and record_of(program["several"]).quantized is not None
    for name, given in calls:
        fake, found = record_of(program[name]).quantized(*given), program[name](*given)  # type: ignore[misc]
        sums, wanted = (found[0], fake[0]) if returns and name == "one" else (found, fake)
        torch.testing.assert_close(sums, wanted, rtol=0, atol=0.1)
        if returns and name == "one":
            assert torch.equal(found[1], fake[1])
