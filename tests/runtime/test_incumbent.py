"""Programs made by ExecuTorch's own Arm backend."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ethorch import runtime, vela
from ethorch.formats import pte as program
from ethorch.formats.payload import DelegatePayload
from ethorch.npu.registers import NPUS
from ethorch.runtime.checks import payloads
from ethorch.runtime.host_program import _npu_program
from ethorch.support.errors import ProgramError
from ethorch.targets.compile_spec import EthosUCompileSpec
from tests.helpers.host import INPUTS, TARGETS, Recorder, random_inputs
from tests.helpers.pte_files import check_round_trip
from tests.runtime.conftest import make


@pytest.mark.parametrize("name", INPUTS)
def test_programs_of_the_incumbent_equal_their_tosa(incumbent, name):
    """Every delegate call, bit for bit, against the reference model on the incumbent's own TOSA of that delegate."""
    check_program(incumbent, name, TARGETS[name], 2 if name == "interrupted" else 1)


def test_a_program_gives_the_same_of_tensors_and_of_arrays(incumbent):
    program = runtime.load(incumbent / "cnn.pte")
    (x,) = random_inputs("cnn")
    (wanted,) = program(x)
    array = x.numpy()
    for x_array in (array, array.astype(">f4"), np.asfortranarray(array)):
        (found,) = program.arrays(x_array)
        assert isinstance(found, np.ndarray) and np.array_equal(found, wanted.numpy())
    assert torch.equal(program(array)[0], wanted)


def test_its_files_are_written_as_they_were_read(incumbent):
    found = [check_round_trip(path.read_bytes()) for path in sorted(incumbent.glob("*.pte"))]
    assert len(found) >= len(INPUTS)


@pytest.mark.long
@pytest.mark.parametrize("npu", NPUS.values(), ids=lambda npu: npu.name)
def test_programs_for_every_target(tmp_path, npu):
    assert not make(tmp_path, npu.name)
    check_program(tmp_path, npu.name, npu.name, 1)


def check_program(folder: Path, name: str, target: str, delegates: int) -> None:
    import tosa_reference_model

    runs: list = []
    loaded = runtime.load(folder / f"{name}.pte", machine=lambda payload: Recorder(payload, runs))
    spec = EthosUCompileSpec(target)
    graphs = {}  # delegates and dumps are not in the same order: our Vela makes of each dump the payload it belongs to
    for path in (folder / name).glob("*_tag*.tosa"):
        graphs[vela.compile(path.read_bytes(), spec).payload.pack()] = path.read_bytes()
    assert {payload.pack() for payload in loaded.delegates} == set(graphs)
    assert len(graphs) == delegates
    for seed in range(3):
        outputs = loaded(*random_inputs(name, seed))
        assert all(torch.isfinite(output).all() for output in outputs)
    assert len(runs) == 3 * len(graphs)
    for payload, inputs, outputs in runs:
        graph = graphs[payload.pack()]
        call = next(c for c in loaded.description.calls if c.delegate == loaded.delegates.index(payload))
        shapes = [loaded.description.values[arg].shape for arg in call.args]
        arrays = [array.reshape(shape) for array, shape in zip(inputs, shapes, strict=False)]
        wanted, _ = tosa_reference_model.run(graph, arrays)
        for mine, theirs in zip(outputs, wanted, strict=True):
            assert len(np.unique(theirs)) > 3, "the test's output hardly varies"
            np.testing.assert_array_equal(mine.ravel(), np.asarray(theirs).ravel())


def test_outputs_are_what_the_machine_wrote(incumbent):
    """The float outputs are the last delegate's bytes, dequantized by ExecuTorch's CPU kernel."""
    runs: list = []
    loaded = runtime.load(incumbent / "interrupted.pte", machine=lambda payload: Recorder(payload, runs))
    outputs = loaded(*random_inputs("interrupted"))
    values = loaded.description.values
    for call in loaded.description.calls:
        if "dequantize" in call.operator and call.args[-1] in loaded.description.outputs:
            position = loaded.description.outputs.index(call.args[-1])
            scale, zero_point = values[call.args[1]].number, values[call.args[2]].number
            codes = [array for array in runs[-1][2] if array.size == outputs[position].numel()]
            reals = [(torch.from_numpy(array.astype(np.float32)).ravel() - zero_point) * scale for array in codes]
            assert any(torch.equal(real, outputs[position].ravel()) for real in reals)


def test_our_payload_class_reproduces_the_incumbents_blobs(incumbent):
    for path in incumbent.glob("*.pte"):
        for delegate in program.read(path.read_bytes()).methods["forward"].delegates:
            assert DelegatePayload.unpack(delegate.blob).pack() == delegate.blob


def test_staging_memory_is_found_from_the_stream(incumbent):
    """No smaller than Vela allocated, as far as the stream uses it: the incumbent's file does not say."""
    loaded = runtime.load(incumbent / "staged.pte")
    compiled = vela.compile((incumbent / "staged/out.tosa").read_bytes(), EthosUCompileSpec("ethos-u65-256"))
    assert loaded.delegates == (compiled.payload,)
    _, staging = _npu_program(loaded.delegates[0])
    assert 0 < staging <= compiled.scratch_fast_bytes + 4096


def test_a_payload_that_lacks_an_output_is_refused(incumbent):
    """The incumbent does not notice that Vela dropped an output; its firmware would copy the other one in its place."""
    with pytest.raises(
        ProgramError, match=r"delegate 0 .*expected 1 input and 1 output, as in the payload, got 3 tensors"
    ) as error:
        runtime.load(incumbent / "lost.pte")
    assert "Compile the model with ethorch" in str(error.value)


def test_a_payload_that_lacks_an_input_is_refused(incumbent):
    """The incumbent's PatchTST: what reads only an input's shape becomes constants, and the call still passes the input."""
    method = program.read((incumbent / "cnn.pte").read_bytes()).methods["forward"]
    (delegate,) = method.delegates
    without = replace(DelegatePayload.unpack(delegate.blob), inputs=()).pack()
    with pytest.raises(ProgramError, match=r"expected 0 inputs and 1 output, as in the payload, got 2 tensors"):
        payloads(replace(method, delegates=(replace(delegate, blob=without),)))
