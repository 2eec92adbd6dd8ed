"""Every operator's every sample: each layer agrees with the next.

By default int8 on ethos-u55-128, weights per channel (and per tensor where there are any); the long run is every sample in
int8 and int16 on one NPU of each family.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from ethorch import get_symmetric_a16w8_quantization_config, get_symmetric_quantization_config
from ethorch.errors import Unsupported
from ethorch.ops import OPS
from tests import ladder

SPECS = {spec.name: spec for spec in OPS.values()}
CASES = [(spec.name, index) for spec in SPECS.values() for index in range(len(spec.samples))]
WEIGHTED = {name for name, spec in SPECS.items() if not callable(spec.quant) and spec.quant.weight >= 0}
TARGETS = ("ethos-u55-128", "ethos-u65-256", "ethos-u85-256")
CONFIGS: dict[str, Any] = {"int8": get_symmetric_quantization_config, "int16": get_symmetric_a16w8_quantization_config}

#: What an NPU cannot do, or int16 cannot be: Reason id -> (activations, families) where a sample may be refused with it.
REFUSED = {
    **{f"BITWISE_{name}.absent": ({"int8", "int16"}, {"u55", "u65"}) for name in ("AND", "OR", "XOR")},
    "ARGMAX.dtype": ({"int16"}, {"u55", "u65"}),
    "GATHER.absent": ({"int8", "int16"}, {"u55", "u65"}),
    "SCATTER.absent": ({"int8", "int16"}, {"u55", "u65"}),
}


@dataclass(frozen=True)
class Export:
    """A sample's module, quantized once; ``distinct``: how many values the float module has for the inputs."""

    name: str
    activations: str
    q: ladder.Quantized
    inputs: tuple[Any, ...]
    distinct: int


def export(name: str, index: int, activations: str, per_channel: bool) -> Export:
    sample = SPECS[name].samples[index]
    module = ladder.Call(name, sample)
    calibration = [ladder.inputs_for(sample, seed) for seed in range(2)]
    distinct = len(np.unique(torch.utils._pytree.tree_leaves(module(*calibration[0]))[0].numpy()))
    config = CONFIGS[activations](is_per_channel=per_channel)
    q = ladder.quantized(module, calibration, config, TARGETS[-1])  # where an NPU lacks an operator, it is left whole
    return Export(name, activations, q, calibration[0], distinct)


def climb(case: Export, target: str) -> None:
    spec = SPECS[case.name]
    try:
        _, outputs = ladder.climb(case.q, case.inputs, target, tolerance=spec.bound if case.activations == "int8" else spec.bound16)
    except Unsupported as refusal:
        assert refusal.reason.id in REFUSED, refusal
        dtypes, families = REFUSED[refusal.reason.id]
        assert case.activations in dtypes and target.split("-")[1] in families, refusal
        return
    assert len(np.unique(outputs[0])) >= min(case.distinct // 4, 20), "an output that hardly varies proves nothing"


@pytest.mark.parametrize(("name", "index"), CASES, ids=[f"{name}-{index}" for name, index in CASES])
def test_per_channel(name: str, index: int) -> None:
    climb(export(name, index, "int8", True), TARGETS[0])


@pytest.mark.parametrize(("name", "index"), [case for case in CASES if case[0] in WEIGHTED])
def test_per_tensor(name: str, index: int) -> None:
    climb(export(name, index, "int8", False), TARGETS[0])


@pytest.mark.long
@pytest.mark.parametrize("activations", CONFIGS)
@pytest.mark.parametrize(("name", "index"), CASES, ids=[f"{name}-{index}" for name, index in CASES])
def test_everywhere(name: str, index: int, activations: str) -> None:
    case = export(name, index, activations, True)
    for target in TARGETS:
        climb(case, target)


INT16 = ("aten.add.Tensor", "aten.convolution.default", "aten.sigmoid.default", "aten.mean.dim", "aten.cat.default")


@pytest.mark.parametrize("name", INT16)
def test_int16(name: str) -> None:
    """A few in the default run, so that int16 cannot break unseen."""
    case = export(name, 0, "int16", True)
    for target in (TARGETS[0], TARGETS[2]):
        climb(case, target)


def test_every_operator_has_samples() -> None:
    assert [spec.name for spec in SPECS.values() if not spec.samples] == []
