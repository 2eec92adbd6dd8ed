"""Networks of other kinds: several inputs, heavy tails, control flow, and public networks of timm and transformers.

``python -m bench.accuracy --models various`` runs all of them. timm and transformers are imported only if such a network is built:
``pip install --no-deps timm transformers safetensors huggingface_hub tokenizers regex``. Their weights are random.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.models.case import Inputs, ModelCase, as_batch, picture
from ethorch.models.zoos import torchvision_models


class SuperResolution(nn.Module):
    """Three convolutions, a pixel shuffle and a tanh, which return an image of twice the width and height in -1..1."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 32, 5, padding=2), nn.Conv2d(32, 16, 3, padding=1)
        self.last = nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.second(x))
        return torch.tanh(F.pixel_shuffle(self.last(x), 2))


class JoinedInputs(nn.Module):
    """A classifier of the concatenated features of an image, a vector and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())
        self.vector = nn.Sequential(nn.Linear(10, 16), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(32 + 16 + 1, 32), nn.ReLU(), nn.Linear(32, 5))

    def forward(self, image: Tensor, vector: Tensor, number: Tensor) -> Tensor:
        return self.head(torch.cat([self.conv(image).mean((2, 3)), self.vector(vector), number], 1))

    @staticmethod
    def sample(rng: np.random.Generator) -> Inputs:
        return tuple(torch.from_numpy(rng.standard_normal(shape).astype(np.float32)) for shape in ((1, 3, 32, 32), (1, 10), (1, 1)))


class SharedEncoder(nn.Module):
    """A classifier of the difference between two sequences that pass through the same encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, 32, 3, 2, 1), nn.ReLU())
        self.head = nn.Linear(32, 3)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.head((self.encoder(first) - self.encoder(second)).abs().mean(2))

    @staticmethod
    def sample(rng: np.random.Generator) -> Inputs:
        return tuple(torch.from_numpy(rng.standard_normal((1, 16, 16)).astype(np.float32)) for _ in range(2))


class ResidualSuperResolution(nn.Module):
    """Two convolutions and a pixel shuffle, added to the upsampled image."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 12, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(self.body(x), 2) + F.interpolate(x, scale_factor=2.0, mode="bilinear")


class ConvolutionalGru(nn.Module):
    """Convolutions over a spectrogram, a GRU over its frames, and a classifier of each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, (2, 1), 1), nn.ReLU())
        self.gru, self.head = nn.GRU(16, 16, batch_first=True), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(self.convolutions(x).mean(2).transpose(1, 2))[0])


class Folded(nn.Module):
    """A linear layer on overlapping patches, whose results are summed (``fold``)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(27, 27)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.linear(F.unfold(x, 3, padding=1).transpose(1, 2))
        return F.fold(patches.transpose(1, 2), (16, 16), 3, padding=1)


class SmallGru(nn.Module):
    """A GRU over twelve frames, and a classifier of its last output."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0][:, -1])


class Sorted(nn.Module):
    """A sort and a topk, which the CPU runs, between linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sort(F.relu(self.first(x)), -1).values
        return self.last(torch.topk(self.second(x), 8).values)


class Branches(nn.Module):
    """Two convolutions, one of which is selected by a mean (``torch.cond``)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.other = (nn.Conv2d(i, 8, 3, padding=1) for i in (3, 8, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = torch.cond(x.mean() > 0.255, lambda y: F.relu(self.one(y)), lambda y: torch.tanh(self.other(y)), (x,))
        return self.head(x.mean((2, 3)))


class Attention(nn.Module):
    """A small pre-norm transformer encoder for vectors."""

    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, norm_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))


class Decoder(nn.Module):
    """A language model layer for 32 tokens without a cache: explicit norms, rotary positions, causal attention, SwiGLU."""

    cos: Tensor
    sin: Tensor
    WIDTH, HEADS, TOKENS = 128, 4, 32

    def __init__(self) -> None:
        super().__init__()
        self.gammas = nn.ParameterList(torch.ones(self.WIDTH) for _ in range(2))
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(self.WIDTH, self.WIDTH, bias=False) for _ in range(4))
        self.w1, self.w3 = (nn.Linear(self.WIDTH, 2 * self.WIDTH, bias=False) for _ in range(2))
        self.w2 = nn.Linear(2 * self.WIDTH, self.WIDTH, bias=False)
        head = self.WIDTH // self.HEADS
        angles = torch.arange(self.TOKENS)[:, None] / 10000 ** (torch.arange(0, head, 2) / head)
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos())
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin())

    @staticmethod
    def norm(x: Tensor, gamma: Tensor) -> Tensor:
        return gamma * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def rotate(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat([-second, first], -1) * self.sin

    def heads(self, x: Tensor) -> Tensor:
        return x.view(1, self.TOKENS, self.HEADS, -1).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x, self.gammas[0])
        query, key = self.rotate(self.heads(self.wq(normed))), self.rotate(self.heads(self.wk(normed)))
        attended = F.scaled_dot_product_attention(query, key, self.heads(self.wv(normed)), is_causal=True)
        x = x + self.wo(attended.transpose(1, 2).reshape(x.shape))
        normed = self.norm(x, self.gammas[1])
        return x + self.w2(F.silu(self.w1(normed)) * self.w3(normed))


class Public(nn.Module):
    """A network of transformers that returns only its first result."""

    def __init__(self, name: str, config: str, **sizes: Any):
        super().__init__()
        torchvision_models()  # timm and transformers import it
        library: Any = import_module("transformers")
        self.model = getattr(library, name)(getattr(library, config)(**sizes))

    def forward(self, x: Tensor) -> Tensor:
        results = self.model(x, return_dict=False)
        return results[0]


class Nystrom(nn.Module):
    """The layers of transformers' Nystromformer with fewer landmarks than tokens. Each computes a pseudoinverse in six steps."""

    def __init__(self) -> None:
        super().__init__()
        torchvision_models()
        library: Any = import_module("transformers.models.nystromformer.modeling_nystromformer")
        self.layers = library.NystromformerEncoder(library.NystromformerConfig(num_landmarks=4, segment_means_seq_len=16, **_TINY))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x, return_dict=False)[0]


def _timm(name: str) -> nn.Module:
    torchvision_models()
    return import_module("timm").create_model(name)


def _normal(*shape: int) -> Any:
    return lambda rng: as_batch(rng.standard_normal(shape).astype(np.float32))


def _tokens(count: int, vocabulary: int) -> Any:
    return lambda rng: (torch.from_numpy(rng.integers(3, vocabulary, (1, count))),)


_TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37, "vocab_size": 99}

_T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2, "num_heads": 4}
_DISTIL = {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37}
_VIT = {**_TINY, "image_size": 32, "patch_size": 8}
_PATCHES = {
    "d_model": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 32, "num_input_channels": 3, "context_length": 32,
    "patch_length": 8, "patch_stride": 8, "prediction_length": 8,
}  # fmt: skip

CASES = (
    ModelCase("super_resolution", SuperResolution, _normal(1, 24, 24), "written for the benchmark"),
    ModelCase("joined_inputs", JoinedInputs, JoinedInputs.sample, "written for the benchmark"),
    ModelCase("shared_encoder", SharedEncoder, SharedEncoder.sample, "written for the benchmark"),
    ModelCase("residual_super_resolution", ResidualSuperResolution, picture(16), "written for the benchmark"),
    ModelCase("convolutional_gru", ConvolutionalGru, _normal(1, 16, 16), "written for the benchmark"),
    ModelCase("folded", Folded, picture(16), "written for the benchmark"),
    ModelCase("small_gru", SmallGru, _normal(12, 8), "written for the benchmark"),
    ModelCase("sorted", Sorted, _normal(16), "written for the benchmark"),
    ModelCase("branches", Branches, _normal(3, 16, 16), "written for the benchmark"),
    ModelCase("attention", Attention, _normal(16, 32), "written for the benchmark"),
    ModelCase("decoder", Decoder, _normal(Decoder.TOKENS, Decoder.WIDTH), "written for the benchmark"),
    ModelCase("lcnet_050", lambda: _timm("lcnet_050"), picture(224), "timm"),
    ModelCase("mobilenetv4_small", lambda: _timm("mobilenetv4_conv_small_050"), picture(128), "timm"),
    ModelCase("ghostnetv3_050", lambda: _timm("ghostnetv3_050"), picture(64), "timm"),
    ModelCase("t5", lambda: Public("T5EncoderModel", "T5Config", **_T5), _tokens(16, 99), "transformers"),
    ModelCase("patch_tst", lambda: Public("PatchTSTForPrediction", "PatchTSTConfig", **_PATCHES), _normal(32, 3), "transformers"),
    ModelCase(
        "nystromformer", lambda: Public("NystromformerModel", "NystromformerConfig", **_TINY), _tokens(16, 99), "transformers"
    ),
    ModelCase("nystrom", Nystrom, _normal(16, 32), "transformers"),
    ModelCase("distilbert", lambda: Public("DistilBertModel", "DistilBertConfig", **_DISTIL), _tokens(16, 99), "transformers"),
    ModelCase("vit", lambda: Public("ViTModel", "ViTConfig", **_VIT), picture(32), "transformers"),
)
