"""Networks of the benchmarks, with their inputs and batch norm statistics.

Weights are random with a fixed seed, because pretrained weights need downloads. Statistics of batch normalization come from
forward passes over structured inputs. Activations are therefore scaled as in a trained network, and outputs differ between inputs.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from bench import signals

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class ModelCase:
    """A network and a generator of its inputs.

    Attributes:
        name: Key in ``MODELS``.
        create: Function that creates the untrained network, called under a fixed seed.
        sample: Function that draws one input tuple with batch size 1.
        source: Publication of the architecture.
        statistics_inputs: Number of inputs from which the batch-normalization statistics are computed.
    """

    name: str
    create: Callable[[], nn.Module]
    sample: Callable[[np.random.Generator], Inputs]
    source: str
    statistics_inputs: int = 16

    def build(self) -> nn.Module:
        """Return the network in eval mode. Every call returns the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(self.name.encode()))
            model = self.create()
            _spread_batch_norm(model)
            set_batch_norm_statistics(model, self.calibration(self.statistics_inputs, seed=7))
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        _detach_computed_weights(model)
        return model.eval()

    def example_inputs(self, seed: int = 0) -> Inputs:
        """Return one input tuple with batch size 1."""
        return self.sample(np.random.default_rng([zlib.crc32(self.name.encode()), seed]))

    def calibration(self, n: int = 8, seed: int = 1) -> list[Inputs]:
        """Return ``n`` different input tuples, which depend on the seed."""
        return [self.example_inputs(seed * 1_000_003 + i) for i in range(n)]


def _detach_computed_weights(model: nn.Module) -> None:
    """Detach tensors that ``torch.nn.utils.weight_norm`` computed from parameters, because autograd's results cannot be copied."""
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                setattr(module, name, value.detach())


_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def _spread_batch_norm(model: nn.Module) -> None:
    """Vary batch normalization per channel as in a trained network: gamma in 0.5..1.5, beta around 0."""
    for module in model.modules():
        if isinstance(module, _BATCH_NORM) and module.affine:
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0.0, 0.3)


def set_batch_norm_statistics(model: nn.Module, inputs: list[Inputs]) -> None:
    """Set running mean and variance to those of one forward pass over all inputs as a batch, without dropout."""
    layers = [m for m in model.modules() if isinstance(m, _BATCH_NORM)]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    model.eval()
    for layer in layers:
        layer.train()
        layer.reset_running_stats()
        layer.momentum = None  # cumulative average: the batch's own statistics
    with torch.no_grad():
        model(*(torch.cat(argument) for argument in zip(*inputs, strict=True)))
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
        layer.eval()


def as_batch(array: signals.Array) -> Inputs:
    # cloned: an array that grew an axis by [None] has stride 0 there, which ExecuTorch refuses
    return (torch.from_numpy(np.ascontiguousarray(array))[None].clone(memory_format=torch.contiguous_format),)


def picture(side: int) -> Callable[[np.random.Generator], Inputs]:
    return lambda rng: as_batch(signals.imagenet_image(rng, side, side))


def conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, relu: bool = True) -> nn.Sequential:
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([nn.ReLU()] if relu else []))


def unit_linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """Return a linear layer that preserves unit variance, so that attention scores differ as in a trained network."""
    layer = nn.Linear(inputs, outputs, bias)
    nn.init.normal_(layer.weight, std=inputs**-0.5)
    return layer
