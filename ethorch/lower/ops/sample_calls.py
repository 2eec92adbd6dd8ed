from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ethorch.lower.ops.samples import I8, Bools, Ints, Sample, W

#: Arguments that become inputs of a sample's module.
INPUTS = (I8, Ints, Bools)


class Call(torch.nn.Module):
    """A module that executes the operator call of a Sample. W arguments become parameters, and I8, Ints and Bools become inputs."""

    def __init__(self, name: str, sample: Sample, seed: int = 0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        namespace, packet, overload = (sample.overload or name).split(".")
        self.function = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
        self.sample = sample
        for index, parameter in enumerate(leaves(sample, W)):
            data = torch.rand(parameter.shape, generator=generator) + parameter.low
            setattr(self, f"w{index}", torch.nn.Parameter(data, requires_grad=False))

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Call the operator. Return the result, or its first element if it is a tuple. Convert an int64 result to int32."""
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
        if isinstance(result, list):
            return tuple(result)
        return result.to(torch.int32) if result.dtype == torch.int64 else result


def leaves(arg: Any, kind: type | tuple[type, ...]) -> Iterator[Any]:
    """Iterate over the nested arguments that are instances of a type."""
    if isinstance(arg, kind):
        yield arg
    elif isinstance(arg, (list, tuple)):
        for item in arg:
            yield from leaves(item, kind)
    elif isinstance(arg, Sample):
        yield from leaves([*arg.args, *arg.kwargs.values()], kind)


def inputs_for(sample: Sample, seed: int) -> tuple[torch.Tensor, ...]:
    """Return random inputs for a sample, uniform over their ranges. Each input contains both ends of its range."""
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for kind in leaves(sample, INPUTS):
        x = torch.rand(kind.shape, generator=generator)
        if isinstance(kind, Bools):
            tensors.append(x < kind.chance)
            continue
        x = x * (kind.high - kind.low) + kind.low
        if x.numel():  # in place, because torch.export is twice as slow for a view
            x.view(-1)[0], x.view(-1)[-1] = kind.low, kind.high
        tensors.append(x if isinstance(kind, I8) else x.round().to(getattr(torch, kind.dtype)))
    return tuple(tensors)
