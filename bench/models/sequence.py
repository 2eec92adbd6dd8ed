"""Networks for text and sound: transformers, recurrent layers, speech recognition."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import signals
from bench.models.case import Inputs, ModelCase, as_batch, unit_linear


class BertEncoder(nn.Module):
    """A classifier of token ids, int64[1, T] -> logits: two post-norm encoder layers with GELU, and a head on the first token."""

    class Layer(nn.Module):
        def __init__(self, width: int, heads: int):
            super().__init__()
            self.heads = heads
            self.query, self.key, self.value = (unit_linear(width, width) for _ in range(3))
            self.output = unit_linear(width, width)
            self.attention_norm = nn.LayerNorm(width)
            self.expand, self.contract = unit_linear(width, 4 * width), unit_linear(4 * width, width)
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
        self.pooler, self.classifier = unit_linear(width, width), unit_linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.layers(self.norm(self.words(tokens) + self.positions))
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Inputs:
        """Return token ids with the frequencies of a natural language (Zipf's law)."""
        return (torch.from_numpy(np.minimum(rng.zipf(1.3, (1, cls.TOKENS)), cls.VOCABULARY) - 1),)


class Recurrent(nn.Module):
    """A classifier of 16 frames of 20 cepstral coefficients: an LSTM or GRU layer, and a linear layer on its last output."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], features: int = 20, width: int = 64, classes: int = 12):
        super().__init__()
        self.recurrent = kind(features, width, batch_first=True)
        self.classifier = unit_linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.recurrent(x)[0][:, -1])

    @staticmethod
    def sample(rng: np.random.Generator) -> Inputs:
        return as_batch(signals.cepstrum(rng, 16, 20) / 4)


class Acoustic(nn.Module):
    """A speech recognition encoder: depthwise-separable residual conv1d blocks over 64 mel bands, with letter logits per frame."""

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
        self.wq, self.wk, self.wv, self.wo = (unit_linear(width, width, bias=False) for _ in range(4))
        self.w1, self.w3 = (unit_linear(width, 4 * width, bias=False) for _ in range(2))
        self.w2 = unit_linear(4 * width, width, bias=False)
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
            """Return random values that are similar for neighboring tokens."""
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


CASES = (
    ModelCase("bert", BertEncoder, BertEncoder.sample, "Devlin et al. 2018; BERT-tiny: 2 layers of 128"),
    ModelCase("lstm", lambda: Recurrent(nn.LSTM), Recurrent.sample, "torch.nn.LSTM"),
    ModelCase("gru", lambda: Recurrent(nn.GRU), Recurrent.sample, "torch.nn.GRU"),
    ModelCase("acoustic", Acoustic, Acoustic.sample, "Kriman et al. 2019 (QuartzNet), a small one"),
    ModelCase("llama", LlamaBlock, LlamaBlock.sample, "Touvron et al. 2023, one small layer with a static cache"),
)
