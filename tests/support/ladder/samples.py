"""The operators' samples as modules with inputs, quantized."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ethorch import get_symmetric_a16w8_quantization_config, get_symmetric_quantization_config
from ethorch.ops import OPS
from ethorch.ops.samples import I8, Bools, Ints, Sample, W
from tests.support.quantized import Quantized, quantized

SPECS = {spec.name: spec for spec in OPS.values()}
CASES = [(spec.name, index) for spec in SPECS.values() for index in range(len(spec.samples))]
WEIGHTED = {"aten.convolution.default", "aten.linear.default"}  # what has a weight for the weight scheme
TARGETS = ("ethos-u55-128", "ethos-u65-256", "ethos-u85-256")
CONFIGS: dict[str, Any] = {"int8": get_symmetric_quantization_config, "int16": get_symmetric_a16w8_quantization_config}

#: What an NPU cannot do, or int16 cannot be: Reason id -> (activations, families) where a sample may be refused with it.
REFUSED = {
    **{f"BITWISE_{name}.absent": ({"int8", "int16"}, {"u55", "u65"}) for name in ("AND", "OR", "XOR")},
    "ARGMAX.dtype": ({"int16"}, {"u55", "u65"}),
    "GATHER.absent": ({"int8", "int16"}, {"u55", "u65"}),
    "SCATTER.absent": ({"int8", "int16"}, {"u55", "u65"}),
}


#: What becomes an input of a sample's module, in order.
INPUTS = (I8, Ints, Bools)


class Call(torch.nn.Module):
    """``torch.ops.<name>`` with a sample's arguments: W become parameters; I8, Ints and Bools inputs."""

    def __init__(self, name: str, sample: Sample, seed: int = 0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        namespace, packet, overload = (sample.overload or name).split(".")
        self.function = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
        self.sample = sample
        self.kinds: list[I8] = []
        for index, parameter in enumerate(leaves(sample, W)):
            data = torch.rand(parameter.shape, generator=generator) + parameter.low
            setattr(self, f"w{index}", torch.nn.Parameter(data, requires_grad=False))

    def forward(self, *inputs: torch.Tensor) -> Any:
        tensors, counter = iter(inputs), iter(range(100))

        def fill(arg: Any) -> Any:
            if isinstance(arg, INPUTS):
                return next(tensors)
            if isinstance(arg, W):
                return getattr(self, f"w{next(counter)}")
            return [fill(a) for a in arg] if isinstance(arg, (list, tuple)) else arg

        keywords = {k: getattr(torch, a) if k == "dtype" else fill(a) for k, a in self.sample.kwargs.items()}
        result = self.function(*[fill(a) for a in self.sample.args], **keywords)
        result = result[0] if isinstance(result, tuple) else result
        if isinstance(result, list):  # split and its kin: every piece
            return tuple(result)
        return result.to(torch.int32) if result.dtype == torch.int64 else result  # indices leave the NPU as int32


def leaves(arg: Any, kind: type | tuple[type, ...]) -> Iterator[Any]:
    if isinstance(arg, kind):
        yield arg
    elif isinstance(arg, (list, tuple)):
        for item in arg:
            yield from leaves(item, kind)
    elif isinstance(arg, Sample):
        yield from leaves([*arg.args, *arg.kwargs.values()], kind)


def inputs_for(sample: Sample, seed: int) -> tuple[torch.Tensor, ...]:
    """Uniform over each input's whole range, the ends included."""
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for kind in leaves(sample, INPUTS):
        x = torch.rand(kind.shape, generator=generator)
        if isinstance(kind, Bools):
            tensors.append(x < kind.chance)
            continue
        x = x * (kind.high - kind.low) + kind.low
        flat = x.flatten()
        if flat.numel():
            flat[0], flat[-1] = kind.low, kind.high
        x = flat.reshape(kind.shape)
        tensors.append(x if isinstance(kind, I8) else x.round().to(getattr(torch, kind.dtype)))
    return tuple(tensors)


@dataclass(frozen=True)
class Export:
    """A sample's module, quantized once; ``distinct``: how many values the float module has for the inputs."""

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
    q = quantized(module, calibration, config, TARGETS[-1])  # where an NPU lacks an operator, it is left whole
    return Export(name, activations, module, q, calibration[0], distinct)
