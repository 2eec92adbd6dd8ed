"""Quantized modules of the operators' samples, with inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ethorch.arm.quantizer import get_symmetric_a16w8_quantization_config, get_symmetric_quantization_config
from ethorch.lower.ops import OPS
from ethorch.lower.ops.sample_calls import INPUTS, Call, inputs_for, leaves
from tests.helpers.quantized import Quantized, quantized

__all__ = [
    "CASES",
    "CONFIGS",
    "INPUTS",
    "REFUSED",
    "SPECS",
    "TARGETS",
    "WEIGHTED",
    "Call",
    "Export",
    "export",
    "inputs_for",
    "leaves",
]

SPECS = {spec.name: spec for spec in OPS.values()}
CASES = [(spec.name, index) for spec in SPECS.values() for index in range(len(spec.samples))]
WEIGHTED = {"aten.convolution.default", "aten.linear.default"}  # operators with a weight that the scheme quantizes
TARGETS = ("ethos-u55-128", "ethos-u65-256", "ethos-u85-256")
CONFIGS: dict[str, Any] = {"int8": get_symmetric_quantization_config, "int16": get_symmetric_a16w8_quantization_config}

#: Limits of NPUs and of int16: Reason id -> (activations, families) for which a sample may be refused with it.
REFUSED = {
    **{f"BITWISE_{name}.absent": ({"int8", "int16"}, {"u55", "u65"}) for name in ("AND", "OR", "XOR")},
    "INTDIV.absent": ({"int8", "int16"}, {"u55", "u65"}),
    "GATHER.absent": ({"int8", "int16"}, {"u55", "u65"}),
    "grid_sampler.computed": ({"int8", "int16"}, {"u55", "u65"}),
    "SCATTER.absent": ({"int8", "int16"}, {"u55", "u65"}),
}


@dataclass(frozen=True)
class Export:
    """A sample's module, quantized once; ``distinct`` is the number of values of the float module for the inputs."""

    name: str
    activations: str
    float_module: Call
    q: Quantized
    inputs: tuple[Any, ...]
    distinct: int


def export(name: str, index: int, activations: str, per_channel: bool) -> Export:
    sample = SPECS[name].samples[index]
    module = Call(name, sample)
    calibration = [inputs_for(sample, seed) for seed in range(2)]
    distinct = len(np.unique(torch.utils._pytree.tree_leaves(module(*calibration[0]))[0].numpy()))
    config = CONFIGS[activations](is_per_channel=per_channel)
    q = quantized(module, calibration, config, TARGETS[-1])  # for an NPU with all operators, so none is decomposed
    return Export(name, activations, module, q, calibration[0], distinct)
