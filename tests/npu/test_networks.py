"""Whole networks, through ethorch's own quantizer and lowering: the machine equals the TOSA reference model, bit for bit."""

from __future__ import annotations

import hashlib
import math
import re
from functools import lru_cache

import numpy as np
import pytest

from bench.implementation import memory_for
from bench.models import ALL_MODELS
from tests.helpers import npu_coverage as coverage

TARGETS = ("ethos-u55-32", "ethos-u55-128", "ethos-u65-256", "ethos-u65-512", "ethos-u85-256", "ethos-u85-1024")
MODES = {"performance": ("--optimise Performance",), "size": ("--optimise Size",)}


@lru_cache(maxsize=1)
def user_and_quantized(model: str, target: str):
    """(the user's model, quantized for the target); made once for both modes."""
    from ethorch.models.load import UserModel
    from ethorch.quantization.calibrate import quantize

    case = ALL_MODELS[model]
    user = UserModel(case.build(), case.example_inputs(), case.calibration(4))
    return user, quantize(user, _spec(target, ()))


def _spec(target: str, flags: tuple[str, ...]):
    from ethorch.targets.compile_spec import EthosUCompileSpec

    system_config, memory_mode = memory_for(target)
    return EthosUCompileSpec(target, system_config=system_config, memory_mode=memory_mode, extra_flags=list(flags) or None)


def fuses_wrongly(text: str) -> list[str]:
    """RESCALEs per channel behind a product of two computed tensors, in a TOSA graph's text.

    Vela's bug ``vela.rescale-of-product-per-channel``.
    """
    constants = set(re.findall(r"^const (%\S+):", text, re.M))
    dynamic = set(re.findall(r"^(%\S+): \S+\[.*?\] = MATMUL ", text, re.M))
    for name, operands in re.findall(r"^(%\S+): \S+\[.*?\] = (?:CONV2D|DEPTHWISE_CONV2D|CONV3D) ([^{]*)", text, re.M):
        if operands.split(", ")[1].strip() not in constants:
            dynamic.add(name)
    rescales = re.findall(r"^(%\S+): .* = RESCALE (%[^ ,{]+).*per_channel=True", text, re.M)
    return [name for name, source in rescales if source in dynamic]


def test_a_wrong_fusion_would_be_found():
    graph = "const %w: INT8[4]\n%a: INT32[1, 2] = {} %x, {}, %b {{}}\n%y: INT8[1, 2] = RESCALE %a {{per_channel={}}}\n"
    assert fuses_wrongly(graph.format("MATMUL", "%v", True)) == ["%y"]
    assert fuses_wrongly(graph.format("CONV2D", "%v", True)) == ["%y"]
    assert not fuses_wrongly(graph.format("CONV2D", "%w", True))
    assert not fuses_wrongly(graph.format("MATMUL", "%v", False))


_references: dict[str, list[np.ndarray]] = {}  # of the model in work: most targets have one TOSA graph


def reference(model: str, tosa: bytes, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The reference model's outputs, computed once for the same graph and inputs of a model."""
    import tosa_reference_model

    digest = hashlib.sha256(tosa)
    for array in arrays:
        digest.update(array.tobytes())
    key = f"{model} {digest.hexdigest()}"
    if key not in _references:
        for other in [k for k in _references if not k.startswith(f"{model} ")]:
            del _references[other]
        outputs, status = tosa_reference_model.run(tosa, arrays)
        assert "VALID" in str(status)
        _references[key] = outputs
    return _references[key]


def check_network(model: str, target: str, flags: tuple[str, ...]) -> None:
    """Build, take the delegates' inputs from a run on fresh samples, compare; with every optional check on."""
    from ethorch import runtime
    from ethorch.backend.build import build_pte
    from ethorch.npu import Machine, Program, staging_bytes
    from ethorch.program.measure.ladder import Recorder
    from ethorch.vela.verification import delegate_arrays

    user, ready = user_and_quantized(model, target)
    build = build_pte(ready, user.example_inputs, _spec(target, flags))
    assert build.delegates
    assert not any(fuses_wrongly(delegate.text) for delegate in build.delegates)
    recorders: list[Recorder] = []

    def recording(payload):
        recorders.append(Recorder(payload))
        return recorders[-1]

    device = runtime.load(build.pte, machine=recording)
    by_payload = {delegate.payload: delegate for delegate in build.delegates}
    programs = {d.payload: Program(d.payload.commands, d.payload.weights) for d in build.delegates}
    assert not coverage.unexercised(programs.values())
    distinct: set[int] = set()
    results = sum(math.prod(tensor.shape) for delegate in build.delegates for tensor in delegate.payload.outputs)
    for sample in ALL_MODELS[model].calibration(2 if results > 8 else 8, seed=99):
        device(*sample)
        for recorder in recorders:
            delegate = by_payload[recorder.payload]
            program, payload = programs[recorder.payload], delegate.payload
            machine = Machine(program, payload.scratch_bytes, staging_bytes(program), checks=("uninitialized", "overlap"))
            for place, data in zip(payload.inputs, recorder.inputs, strict=True):
                machine.region(place.region)[place.offset : place.offset + place.nbytes] = data
                machine.mark_written(place.region, place.offset, place.nbytes)
            machine.run()
            wanted = reference(model, delegate.tosa, delegate_arrays(delegate, recorder.inputs))
            for place, expected in zip(payload.outputs, wanted, strict=True):
                found = machine.region(place.region)[place.offset : place.offset + place.nbytes].view(expected.dtype)
                different = int((found != expected.ravel()).sum())
                assert not different, f"{different} of {expected.size} elements differ"
                distinct |= set(np.unique(expected).tolist())
    assert len(distinct) > 4, "the network's output hardly varies"


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", ALL_MODELS)
def test_network(model, target, mode):
    check_network(model, target, MODES[mode])


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", ["mobilenet_v2", "resnet8", "unet"])
def test_network_in_a_small_arena(model, target):
    """Cascades: stripes in rolling buffers."""
    check_network(model, target, ("--optimise Performance", "--arena-cache-size 200000"))
