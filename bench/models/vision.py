"""Image networks: those of torchvision, and segmentation, detection and a vision transformer in sizes for small NPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.models.case import ModelCase, conv_bn, picture, unit_linear
from ethorch.models.zoos import torchvision_models


def torchvision_model(name: str, **arguments: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(torchvision_models(), name)(weights=None, **arguments)


class UNet(nn.Module):
    """Segmentation: two levels of max pooling, two of transposed convolutions, and concatenated skip connections."""

    def __init__(self, channels: int = 16, classes: int = 2):
        super().__init__()
        self.down1 = nn.Sequential(conv_bn(3, channels, 3), conv_bn(channels, channels, 3))
        self.down2 = nn.Sequential(conv_bn(channels, 2 * channels, 3), conv_bn(2 * channels, 2 * channels, 3))
        self.bottom = nn.Sequential(conv_bn(2 * channels, 4 * channels, 3), conv_bn(4 * channels, 4 * channels, 3))
        self.up2 = nn.ConvTranspose2d(4 * channels, 2 * channels, 2, stride=2)
        self.merge2 = conv_bn(4 * channels, 2 * channels, 3)
        self.up1 = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.merge1 = conv_bn(2 * channels, channels, 3)
        self.head = nn.Conv2d(channels, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down1(x)
        coarse = self.down2(F.max_pool2d(fine, 2))
        bottom = self.bottom(F.max_pool2d(coarse, 2))
        coarse = self.merge2(torch.cat([coarse, self.up2(bottom)], 1))
        return self.head(self.merge1(torch.cat([fine, self.up1(coarse)], 1)))


class DeiT(nn.Module):
    """The first layers of a vision transformer: 16x16 patches, class token, pre-norm layers with one QKV projection."""

    class Layer(nn.Module):
        def __init__(self, width: int, heads: int):
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = unit_linear(width, 3 * width), unit_linear(width, width)
            self.fc1, self.fc2 = unit_linear(width, 4 * width), unit_linear(4 * width, width)

        def forward(self, x: Tensor) -> Tensor:
            n, tokens, width = x.shape
            qkv = self.qkv(self.norm1(x)).reshape(n, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
            attended = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
            x = x + self.proj(attended.transpose(1, 2).reshape(n, tokens, width))
            return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))

    def __init__(self, width: int = 192, heads: int = 3, layers: int = 3, classes: int = 100):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.class_token = nn.Parameter(torch.randn(1, 1, width) * 0.5)
        self.positions = nn.Parameter(torch.randn(1, 197, width) * 0.5)
        self.layers = nn.Sequential(*(self.Layer(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), unit_linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])


class Yolo(nn.Module):
    """Detection in the style of YOLOv5 to v8 on 128x128, float[1, 4 + classes, cells].

    Split-and-concatenate blocks with SiLU, a pooling pyramid, nearest upsampling, boxes decoded from two scales.
    """

    class Conv(nn.Module):
        def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1):
            super().__init__()
            self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
            self.norm = nn.BatchNorm2d(outputs, eps=1e-3)

        def forward(self, x: Tensor) -> Tensor:
            return F.silu(self.norm(self.conv(x)))

    class Split(nn.Module):
        def __init__(self, inputs: int, outputs: int):
            super().__init__()
            half = outputs // 2
            self.enter = Yolo.Conv(inputs, outputs)
            self.inner = nn.Sequential(Yolo.Conv(half, half, 3), Yolo.Conv(half, half, 3))
            self.leave = Yolo.Conv(3 * half, outputs)

        def forward(self, x: Tensor) -> Tensor:
            first, second = self.enter(x).chunk(2, 1)
            return self.leave(torch.cat([first, second, second + self.inner(second)], 1))

    class Pyramid(nn.Module):
        def __init__(self, channels: int):
            super().__init__()
            self.enter, self.leave = Yolo.Conv(channels, channels // 2), Yolo.Conv(2 * channels, channels)

        def forward(self, x: Tensor) -> Tensor:
            maps = [self.enter(x)]
            for _ in range(3):
                maps.append(F.max_pool2d(maps[-1], 5, 1, 2))
            return self.leave(torch.cat(maps, 1))

    centres: Tensor
    scale: Tensor
    STRIDES = (8, 16)

    def __init__(self, classes: int = 4, side: int = 128):
        super().__init__()
        self.stem = nn.Sequential(self.Conv(3, 16, 3, 2), self.Conv(16, 32, 3, 2), self.Split(32, 32))
        self.fine = nn.Sequential(self.Conv(32, 64, 3, 2), self.Split(64, 64))
        self.coarse = nn.Sequential(self.Conv(64, 128, 3, 2), self.Split(128, 128), self.Pyramid(128))
        self.merge = self.Split(192, 64)
        self.heads = nn.ModuleList(
            nn.Sequential(self.Conv(channels, 64, 3), nn.Conv2d(64, 4 + classes, 1)) for channels in (64, 128)
        )
        cells, strides = [], []
        for stride in self.STRIDES:
            axis = torch.arange(side // stride) + 0.5
            y, x = torch.meshgrid(axis, axis, indexing="ij")
            cells.append(torch.stack([x.flatten(), y.flatten()]) * stride / side)
            strides.append(torch.full((1, (side // stride) ** 2), stride / side))
        self.register_buffer("centres", torch.cat(cells, 1)[None])
        self.register_buffer("scale", torch.cat(strides, 1)[None])

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(self.stem(x))
        coarse = self.coarse(fine)
        fine = self.merge(torch.cat([fine, F.interpolate(coarse, scale_factor=2, mode="nearest")], 1))
        raw = torch.cat([head(level).flatten(2) for head, level in zip(self.heads, (fine, coarse), strict=True)], 2)
        centre = (raw[:, :2].sigmoid() * 2 - 1) * self.scale + self.centres
        size = (raw[:, 2:4].sigmoid() * 2) ** 2 * self.scale
        return torch.cat([centre, size, raw[:, 4:].sigmoid()], 1)


#: The first three are torchvision's most used.
CASES = (
    ModelCase("mobilenet_v2", torchvision_model("mobilenet_v2"), picture(224), "torchvision"),
    ModelCase("mobilenet_v3_small", torchvision_model("mobilenet_v3_small"), picture(224), "torchvision"),
    ModelCase("resnet18", torchvision_model("resnet18"), picture(224), "torchvision"),
    ModelCase("efficientnet_b0", torchvision_model("efficientnet_b0"), picture(224), "torchvision"),
    ModelCase("shufflenet_v2", torchvision_model("shufflenet_v2_x1_0"), picture(224), "torchvision"),
    ModelCase("squeezenet", torchvision_model("squeezenet1_1"), picture(224), "torchvision"),
    ModelCase(
        "densenet",
        lambda: torchvision_models().DenseNet(12, (4, 4, 4), 16, num_classes=100),
        picture(64),
        "torchvision's DenseNet, a small one",
    ),
    ModelCase("unet", UNet, picture(96), "Ronneberger et al. 2015, a small one"),
    ModelCase("deit", DeiT, picture(224), "Touvron et al. 2020; DeiT-tiny, 3 of its 12 layers"),
    ModelCase("yolo", Yolo, picture(128), "YOLOv5/v8's building blocks, small"),
)
