"""Networks beyond the first seven: wider coverage of what people run, in the sizes small NPUs see."""

from __future__ import annotations

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import signals
from bench.models import MODELS, Inputs, ModelCase, as_batch, conv_bn, picture, torchvision_model, torchvision_models


def _unit_linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """A linear layer that keeps unit variance, so that attention scores differ from each other as in a trained net."""
    layer = nn.Linear(inputs, outputs, bias)
    nn.init.normal_(layer.weight, std=inputs**-0.5)
    return layer


class UNet(nn.Module):
    """Segmentation: two levels down by max pooling, two up by transposed convolution, skip connections by cat."""

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


class BertEncoder(nn.Module):
    """Two post-norm encoder layers over token ids, int64[1, T] -> logits; GELU, first token pooled."""

    class Layer(nn.Module):
        def __init__(self, width: int, heads: int):
            super().__init__()
            self.heads = heads
            self.query, self.key, self.value = (_unit_linear(width, width) for _ in range(3))
            self.output = _unit_linear(width, width)
            self.attention_norm = nn.LayerNorm(width)
            self.expand, self.contract = _unit_linear(width, 4 * width), _unit_linear(4 * width, width)
            self.norm = nn.LayerNorm(width)

        def split(self, x: Tensor) -> Tensor:
            return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

        def forward(self, x: Tensor) -> Tensor:
            query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
            scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
            attended = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
            x = self.attention_norm(x + self.output(attended))
            return self.norm(x + self.contract(F.gelu(self.expand(x))))

    TOKENS, VOCABULARY = 64, 1000

    def __init__(self, width: int = 128, heads: int = 2, layers: int = 2):
        super().__init__()
        self.words = nn.Embedding(self.VOCABULARY, width)
        self.positions = nn.Parameter(torch.randn(1, self.TOKENS, width) * 0.5)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(*(self.Layer(width, heads) for _ in range(layers)))
        self.pooler, self.classifier = _unit_linear(width, width), _unit_linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.layers(self.norm(self.words(tokens) + self.positions))
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Inputs:
        """Token ids with the frequencies of a language (Zipf's law)."""
        return (torch.from_numpy(np.minimum(rng.zipf(1.3, (1, cls.TOKENS)), cls.VOCABULARY) - 1),)


class DeiT(nn.Module):
    """A vision transformer's first layers: 16x16 patches, class token, pre-norm layers with one QKV projection."""

    class Layer(nn.Module):
        def __init__(self, width: int, heads: int):
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = _unit_linear(width, 3 * width), _unit_linear(width, width)
            self.fc1, self.fc2 = _unit_linear(width, 4 * width), _unit_linear(4 * width, width)

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
        self.norm, self.head = nn.LayerNorm(width), _unit_linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])


class Recurrent(nn.Module):
    """A sequence classifier: one LSTM or GRU layer over 16 frames of 20 cepstra, its last output classified."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], features: int = 20, width: int = 64, classes: int = 12):
        super().__init__()
        self.recurrent = kind(features, width, batch_first=True)
        self.classifier = _unit_linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.recurrent(x)[0][:, -1])

    @staticmethod
    def sample(rng: np.random.Generator) -> Inputs:
        return as_batch(signals.cepstrum(rng, 16, 20) / 4)


class Acoustic(nn.Module):
    """Speech recognition's encoder: depthwise-separable residual conv1d blocks over 64 mel bands, letters per frame."""

    class Block(nn.Module):
        def __init__(self, channels: int, kernel: int):
            super().__init__()
            self.depthwise = nn.Conv1d(channels, channels, kernel, padding=kernel // 2, groups=channels, bias=False)
            self.pointwise = nn.Conv1d(channels, channels, 1, bias=False)
            self.norm = nn.BatchNorm1d(channels)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x + self.norm(self.pointwise(self.depthwise(x))))

    def __init__(self, bands: int = 64, channels: int = 128, letters: int = 29):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv1d(bands, channels, 11, stride=2, padding=5, bias=False), nn.BatchNorm1d(channels), nn.ReLU()
        )
        self.blocks = nn.Sequential(*(self.Block(channels, kernel) for kernel in (11, 13, 15, 17)))
        self.letters = nn.Conv1d(channels, letters, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.letters(self.blocks(self.stem(x)))

    @staticmethod
    def sample(rng: np.random.Generator) -> Inputs:
        wave = signals.sound(rng, 160 * 127 + 400)
        return as_batch(signals.log_mel(wave, 128, 64, window=400, hop=160).T)


class LlamaBlock(nn.Module):
    """A decoder layer that continues a text by 16 tokens: RMSNorm, rotary positions, static cache of 48, SwiGLU.

    Inputs: hidden states, key cache, value cache, additive mask; returns hidden states, new keys and values.
    """

    cos: Tensor
    sin: Tensor
    CACHED, NEW, HEADS, HEAD_WIDTH = 48, 16, 4, 16

    def __init__(self) -> None:
        super().__init__()
        width = self.HEADS * self.HEAD_WIDTH
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.wq, self.wk, self.wv, self.wo = (_unit_linear(width, width, bias=False) for _ in range(4))
        self.w1, self.w3 = (_unit_linear(width, 4 * width, bias=False) for _ in range(2))
        self.w2 = _unit_linear(4 * width, width, bias=False)
        positions = torch.arange(self.CACHED, self.CACHED + self.NEW)[:, None]
        angles = positions / 10000 ** (torch.arange(0, self.HEAD_WIDTH, 2) / self.HEAD_WIDTH)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def rotate(self, x: Tensor) -> Tensor:
        even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack([even * self.cos - odd * self.sin, even * self.sin + odd * self.cos], -1).flatten(-2)

    def heads(self, x: Tensor) -> Tensor:
        return x.view(1, self.NEW, self.HEADS, self.HEAD_WIDTH).transpose(1, 2)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normed = self.attention_norm(x)
        query, key = self.rotate(self.heads(self.wq(normed))), self.rotate(self.heads(self.wk(normed)))
        value = self.heads(self.wv(normed))
        attended = F.scaled_dot_product_attention(query, torch.cat([keys, key], 2), torch.cat([values, value], 2), attn_mask=mask)
        x = x + self.wo(attended.transpose(1, 2).reshape(1, self.NEW, -1))
        normed = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(normed)) * self.w3(normed)), key, value

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Inputs:
        def walk(*shape: int) -> Tensor:
            """Neighbouring tokens resemble each other."""
            steps = rng.standard_normal(shape).astype(np.float32)
            for token in range(1, shape[-2]):
                steps[..., token, :] = 0.7 * steps[..., token - 1, :] + 0.71 * steps[..., token, :]
            return torch.from_numpy(steps)

        filled = int(rng.integers(8, cls.CACHED + 1))
        future = np.arange(cls.CACHED + cls.NEW)[None, :] > np.arange(cls.NEW)[:, None] + cls.CACHED
        unused = (np.arange(cls.CACHED + cls.NEW) < cls.CACHED - filled)[None, :]
        mask = torch.from_numpy(np.where(future | unused, np.float32(-16), np.float32(0))).reshape(1, 1, *future.shape)
        cache = (1, cls.HEADS, cls.CACHED, cls.HEAD_WIDTH)
        return walk(1, cls.NEW, cls.HEADS * cls.HEAD_WIDTH), walk(*cache), walk(*cache), mask


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


MORE_MODELS: dict[str, ModelCase] = {
    case.name: case
    for case in (
        ModelCase("efficientnet_b0", torchvision_model("efficientnet_b0"), picture(224), "torchvision"),
        ModelCase("shufflenet_v2", torchvision_model("shufflenet_v2_x1_0"), picture(224), "torchvision"),
        ModelCase("squeezenet", torchvision_model("squeezenet1_1"), picture(224), "torchvision"),
        ModelCase(
            "densenet", lambda: torchvision_models().DenseNet(12, (4, 4, 4), 16, num_classes=100), picture(64),
            "torchvision's DenseNet, a small one",
        ),
        ModelCase("unet", UNet, picture(96), "Ronneberger et al. 2015, a small one"),
        ModelCase("bert", BertEncoder, BertEncoder.sample, "Devlin et al. 2018; BERT-tiny: 2 layers of 128"),
        ModelCase("deit", DeiT, picture(224), "Touvron et al. 2020; DeiT-tiny, 3 of its 12 layers"),
        ModelCase("lstm", lambda: Recurrent(nn.LSTM), Recurrent.sample, "torch.nn.LSTM"),
        ModelCase("gru", lambda: Recurrent(nn.GRU), Recurrent.sample, "torch.nn.GRU"),
        ModelCase("acoustic", Acoustic, Acoustic.sample, "Kriman et al. 2019 (QuartzNet), a small one"),
        ModelCase("llama", LlamaBlock, LlamaBlock.sample, "Touvron et al. 2023, one small layer with a static cache"),
        ModelCase("yolo", Yolo, picture(128), "YOLOv5/v8's building blocks, small"),
    )
}

ALL_MODELS: dict[str, ModelCase] = MODELS | MORE_MODELS


def models_named(parser: argparse.ArgumentParser, text: str | None) -> list[str]:
    """The models of a ``--models`` argument: comma-separated, "all", or None for the first seven; else the parser's error."""
    models = list(MODELS) if text is None else list(ALL_MODELS) if text == "all" else text.split(",")
    if unknown := [model for model in models if model not in ALL_MODELS]:
        parser.error(f"unknown models {', '.join(unknown)}; known: {', '.join(ALL_MODELS)}")
    return models
