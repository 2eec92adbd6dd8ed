"""Streaming models on U55 and U65: calls one after the other, state kept, give what one call of the unrolled network gives."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from ethorch import runtime
from ethorch.arm.quantizer import get_symmetric_a16w8_quantization_config, get_symmetric_quantization_config
from ethorch.backend.build import build_pte
from tests.helpers.states import CASES, run, unrolled

CONFIGS = {"int8": get_symmetric_quantization_config, "int16": get_symmetric_a16w8_quantization_config}


@pytest.mark.parametrize(
    ("name", "target", "dtype", "frames"),
    [
        pytest.param("denoiser", "ethos-u55-128", "int8", 100, marks=pytest.mark.long),
        pytest.param("streaming", "ethos-u55-128", "int8", 100, marks=pytest.mark.long),
        pytest.param("spotter", "ethos-u55-128", "int8", 100, marks=pytest.mark.long),
        pytest.param("spotter", "ethos-u55-256", "int16", 100, marks=pytest.mark.long),
        pytest.param("denoiser", "ethos-u55-128", "int8", 30, marks=pytest.mark.long),
        pytest.param("streaming", "ethos-u55-128", "int8", 30, marks=pytest.mark.long),
        ("spotter", "ethos-u55-128", "int8", 20),  # it looks back 18 frames
        ("denoiser", "ethos-u65-256", "int16", 10),
        ("streaming", "ethos-u65-256", "int8", 10),
    ],
)
def test_calls_one_after_the_other_give_what_the_unrolled_network_gives(name: str, target: str, dtype: str, frames: int) -> None:
    case = dataclasses.replace(CASES[name], target=target)
    axis = 2 if name == "streaming" else 0
    module, steps, spec = case.quantized(CONFIGS[dtype]())
    inputs = case.steps(frames, seed=9)
    together = torch.cat([frame for (frame,) in inputs], axis)
    whole = build_pte(unrolled(module, frames, axis), (together,), spec)
    assert len(whole.delegates) == 1 and not whole.partition.refusals and not whole.states
    build = build_pte(module, steps[0], spec)
    assert len(build.delegates) == 1 and not build.partition.refusals
    (wanted,) = runtime.load(whole.pte)(together)
    found = torch.cat(run(runtime.load(build.pte), inputs))
    assert torch.equal(found, wanted)
    assert (wanted[1:] != wanted[:-1]).flatten(1).any(1).float().mean() > 0.8  # the frames differ
