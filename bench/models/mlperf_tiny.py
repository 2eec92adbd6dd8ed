"""The four networks of MLPerf Tiny (github.com/mlcommons/tiny, benchmark/training)."""

from __future__ import annotations

import itertools

import torch.nn.functional as F
from torch import Tensor, nn

from bench import signals
from bench.models.case import ModelCase, as_batch, conv_bn, picture


class ResNet8(nn.Module):
    """Image classification: three residual stacks with 16, 32 and 64 channels, for 32x32 images."""

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
    """Keyword spotting: a 10x4 stem and four depthwise-separable blocks of 64 channels, for 49x10 cepstral coefficients."""

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
    """Visual wake words: MobileNetV1 with a quarter of its channels, for 96x96 images."""

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
    """Return an autoencoder for anomaly detection: 640 -> 4 x 128 -> 8 -> 4 x 128 -> 640.

    Batch normalization and ReLU follow every layer except the last.
    """
    widths = [640, 128, 128, 128, 128, 8, 128, 128, 128, 128]
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 640))


_SOURCE = "MLPerf Tiny (github.com/mlcommons/tiny, benchmark/training)"

CASES = (
    ModelCase("resnet8", ResNet8, picture(32), _SOURCE, 32),
    ModelCase("ds_cnn", DsCnn, lambda rng: as_batch(signals.cepstrum(rng)[None]), _SOURCE, 32),
    ModelCase("mobilenet_v1_025", MobileNetV1Quarter, picture(96), _SOURCE, 32),
    ModelCase("autoencoder", _autoencoder, lambda rng: as_batch(signals.machine_sound(rng)), _SOURCE, 256),
)
