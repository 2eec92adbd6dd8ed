"""The networks that benchmarks and whole-model tests run, by name.

Weights are random with a fixed seed (no pretrained ones can be had everywhere), but batch normalization has statistics
from real forward passes over structured inputs, so that activations are scaled as in a trained network and outputs
differ from input to input.
"""

from __future__ import annotations

import itertools
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import signals

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class ModelCase:
    """A network and where its inputs come from.

    Attributes:
        name: key in `MODELS`.
        create: the untrained network; called under a fixed seed.
        sample: one input tuple with batch 1 from a random generator.
        source: where the architecture is published.
        statistics_inputs: how many inputs the batch-normalization statistics come from.
    """

    name: str
    create: Callable[[], nn.Module]
    sample: Callable[[np.random.Generator], Inputs]
    source: str
    statistics_inputs: int = 16

    def build(self) -> nn.Module:
        """The network in eval mode; every call returns the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(self.name.encode()))
            model = self.create()
            _spread_batch_norm(model)
            set_batch_norm_statistics(model, self.calibration(self.statistics_inputs, seed=7))
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        return model.eval()

    def example_inputs(self, seed: int = 0) -> Inputs:
        """One input tuple, batch 1."""
        return self.sample(np.random.default_rng([zlib.crc32(self.name.encode()), seed]))

    def calibration(self, n: int = 8, seed: int = 1) -> list[Inputs]:
        """`n` different input tuples; different seeds give different inputs."""
        return [self.example_inputs(seed * 1_000_003 + i) for i in range(n)]


_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def _spread_batch_norm(model: nn.Module) -> None:
    """Gives batch normalization the per-channel variety of a trained network: gamma in 0.5..1.5, beta around 0."""
    for module in model.modules():
        if isinstance(module, _BATCH_NORM) and module.affine:
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0.0, 0.3)


def set_batch_norm_statistics(model: nn.Module, inputs: list[Inputs]) -> None:
    """Running mean and variance := those of one forward pass over all inputs as a batch (dropout stays off)."""
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


# torchvision ---------------------------------------------------------------------------------------------------------


def torchvision_models() -> ModuleType:
    """`torchvision.models`, also where torchvision's compiled extension does not fit the installed torch.

    Without that extension the import dies on the missing operator ``torchvision::nms``; declaring its schema is enough
    for every classification network.
    """
    try:
        import torchvision.models
    except (RuntimeError, ImportError) as error:
        if "torchvision::nms" not in str(error) and "partially initialized" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        _declare_torchvision_operators()
        import torchvision.models
    return torchvision.models


_declared: list[torch.library.Library] = []  # a Library takes its operators with it when it is collected


def _declare_torchvision_operators() -> None:
    if _declared:
        return
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)


def torchvision_model(name: str, **arguments: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(torchvision_models(), name)(weights=None, **arguments)


# MLPerf Tiny ---------------------------------------------------------------------------------------------------------


def conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, relu: bool = True) -> nn.Sequential:
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([nn.ReLU()] if relu else []))


class ResNet8(nn.Module):
    """Image classification: three residual stacks of 16, 32 and 64 channels on 32x32 pictures."""

    class Stack(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int):
            super().__init__()
            self.first = conv_bn(inputs, outputs, 3, stride)
            self.second = conv_bn(outputs, outputs, 3, relu=False)
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride) if stride != 1 else nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.second(self.first(x)) + self.shortcut(x))

    def __init__(self, classes: int = 10):
        super().__init__()
        self.stem = conv_bn(3, 16, 3)
        self.stacks = nn.Sequential(self.Stack(16, 16, 1), self.Stack(16, 32, 2), self.Stack(32, 64, 2))
        self.pool = nn.AvgPool2d(8)
        self.classifier = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.pool(self.stacks(self.stem(x))).flatten(1))


class DsCnn(nn.Module):
    """Keyword spotting: a 10x4 stem and four depthwise-separable blocks of 64 channels on 49x10 cepstra."""

    def __init__(self, classes: int = 12, channels: int = 64):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, channels, (10, 4), 2, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
        blocks = [
            layer for _ in range(4) for layer in (conv_bn(channels, channels, 3, groups=channels), conv_bn(channels, channels, 1))
        ]
        self.blocks = nn.Sequential(nn.Dropout(0.2), *blocks, nn.Dropout(0.4))
        self.pool = nn.AvgPool2d((25, 5))
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (1, 1, 4, 5))  # TensorFlow's "same" padding for stride 2 is not symmetric
        return self.classifier(self.pool(self.blocks(self.stem(x))).flatten(1))


class MobileNetV1Quarter(nn.Module):
    """Visual wake words: MobileNetV1 with a quarter of its channels on 96x96 pictures."""

    BLOCKS = ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2), (256, 1))

    def __init__(self, classes: int = 2):
        super().__init__()
        layers, channels = [conv_bn(3, 8, 3, 2)], 8
        for outputs, stride in self.BLOCKS:
            layers += [conv_bn(channels, channels, 3, stride, groups=channels), conv_bn(channels, outputs, 1)]
            channels = outputs
        self.features = nn.Sequential(*layers)
        self.pool = nn.AvgPool2d(3)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.pool(self.features(x)).flatten(1))


def _autoencoder() -> nn.Module:
    """Anomaly detection: 640 -> 4 x 128 -> 8 -> 4 x 128 -> 640, batch normalization and ReLU after all but the last."""
    widths = [640, 128, 128, 128, 128, 8, 128, 128, 128, 128]
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 640))


# The registry --------------------------------------------------------------------------------------------------------


def as_batch(array: signals.Array) -> Inputs:
    # cloned: an array that grew an axis by [None] has stride 0 there, which ExecuTorch refuses
    return (torch.from_numpy(np.ascontiguousarray(array))[None].clone(memory_format=torch.contiguous_format),)


def picture(side: int) -> Callable[[np.random.Generator], Inputs]:
    return lambda rng: as_batch(signals.imagenet_image(rng, side, side))


_MLPERF = "MLPerf Tiny (github.com/mlcommons/tiny, benchmark/training)"

MODELS: dict[str, ModelCase] = {
    case.name: case
    for case in (
        ModelCase("mobilenet_v2", torchvision_model("mobilenet_v2"), picture(224), "torchvision"),
        ModelCase("mobilenet_v3_small", torchvision_model("mobilenet_v3_small"), picture(224), "torchvision"),
        ModelCase("resnet18", torchvision_model("resnet18"), picture(224), "torchvision"),
        ModelCase("resnet8", ResNet8, picture(32), _MLPERF, 32),
        ModelCase("ds_cnn", DsCnn, lambda rng: as_batch(signals.cepstrum(rng)[None]), _MLPERF, 32),
        ModelCase("mobilenet_v1_025", MobileNetV1Quarter, picture(96), _MLPERF, 32),
        ModelCase("autoencoder", _autoencoder, lambda rng: as_batch(signals.machine_sound(rng)), _MLPERF, 256),
    )
}
