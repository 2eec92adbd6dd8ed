"""Small decoders of every family that ethorch.language supports, with random weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ethorch.language import LanguageModel, language_model
from ethorch.models.zoos import torchvision_models

VOCABULARY = 64
CONTEXT, PROMPT = 48, 8
WINDOW = 12


class Rotary(nn.Module):
    """A decoder in plain PyTorch: RMSNorm, rotary embeddings, grouped queries, SwiGLU, tied embeddings, own caches."""

    def __init__(
        self, width: int = 32, layers: int = 2, heads: int = 4, keys: int = 2, vocabulary: int = VOCABULARY, rows: int = CONTEXT
    ):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, keys, rows) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x, positions)
        return self.norm(x) @ self.table.weight.t()


class Block(nn.Module):
    """One layer of ``Rotary``."""

    def __init__(self, width: int, heads: int, keys: int, rows: int):
        super().__init__()
        self.heads, self.keys, self.size = heads, keys, width // heads
        self.norm, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(width, keys * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)
        self.register_buffer("k", torch.zeros(1, keys, rows, self.size))
        self.register_buffer("v", torch.zeros(1, keys, rows, self.size))

    def rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate pairs of neighbors by angles of their position, as complex numbers."""
        angles = torch.outer(positions.float(), 1000.0 ** -(torch.arange(self.size // 2) / (self.size // 2)))
        turned = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(turned).flatten(-2)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        y, rows = self.norm(x), x.shape[1]
        q, k, v = (part(y).view(1, rows, -1, self.size).transpose(1, 2) for part in (self.query, self.key, self.value))
        self.k[:, :, positions] = self.rotated(k, positions)
        self.v[:, :, positions] = v
        mask = torch.zeros(rows, self.k.shape[2]).masked_fill(torch.arange(self.k.shape[2]) > positions[:, None], -torch.inf)
        y = nn.functional.scaled_dot_product_attention(self.rotated(q, positions), self.k, self.v, attn_mask=mask, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def _transformers() -> Any:
    torchvision_models(needed=False)
    import transformers

    return transformers


def _causal(name: str, **more: Any) -> Callable[[int, int], LanguageModel]:
    def make(width: int, layers: int) -> LanguageModel:
        library = _transformers()
        usual = {
            "vocab_size": VOCABULARY, "hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": layers,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT, "head_dim": width // 4,
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        }  # fmt: skip
        given = {**usual, **{key: value(width, layers) if callable(value) else value for key, value in more.items()}}
        config = getattr(library, f"{name}{'Text' if name == 'Gemma3' else ''}Config")
        model = getattr(library, f"{name}ForCausalLM")(config(**given))
        return language_model(model, context=CONTEXT, prompt=PROMPT)

    return make


def _gpt2(width: int, layers: int) -> LanguageModel:
    library = _transformers()
    config = library.GPT2Config(
        vocab_size=VOCABULARY, n_embd=width, n_layer=layers, n_head=4, n_positions=CONTEXT, bos_token_id=1, eos_token_id=2
    )
    return language_model(library.GPT2LMHeadModel(config), context=CONTEXT, prompt=PROMPT)


def _opt(width: int, layers: int) -> LanguageModel:
    library = _transformers()
    config = library.OPTConfig(
        vocab_size=VOCABULARY, hidden_size=width, ffn_dim=2 * width, num_hidden_layers=layers, num_attention_heads=4,
        max_position_embeddings=CONTEXT, word_embed_proj_dim=width, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return language_model(library.OPTForCausalLM(config), context=CONTEXT, prompt=PROMPT)


def _gpt_neo(width: int, layers: int) -> LanguageModel:
    """Create a model like TinyStories, which alternates full and local attention with its own code."""
    library = _transformers()
    config = library.GPTNeoConfig(
        vocab_size=VOCABULARY, hidden_size=width, num_layers=layers, num_heads=4, intermediate_size=2 * width, bos_token_id=1,
        max_position_embeddings=2 * CONTEXT, attention_types=[[["global", "local"], layers // 2]], eos_token_id=2,
        window_size=2 * CONTEXT,
    )  # fmt: skip
    return language_model(library.GPTNeoForCausalLM(config), context=CONTEXT, prompt=PROMPT)


def _gptj(width: int, layers: int) -> LanguageModel:
    library = _transformers()
    config = library.GPTJConfig(
        vocab_size=VOCABULARY, n_embd=width, n_layer=layers, n_head=4, n_positions=2 * CONTEXT, rotary_dim=4, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    return language_model(library.GPTJForCausalLM(config), context=CONTEXT, prompt=PROMPT)


def _t5(width: int, layers: int) -> LanguageModel:
    library = _transformers()
    config = library.T5Config(
        vocab_size=VOCABULARY, d_model=width, d_kv=8, d_ff=2 * width, num_layers=layers, num_decoder_layers=layers, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    source = torch.arange(10)[None]
    return language_model(library.T5ForConditionalGeneration(config), context=CONTEXT, prompt=2, source=source)


def _whisper(width: int, layers: int) -> LanguageModel:
    library = _transformers()
    config = library.WhisperConfig(
        vocab_size=VOCABULARY, d_model=width, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=2 * width, decoder_ffn_dim=2 * width, num_mel_bins=16, max_source_positions=20,
        max_target_positions=CONTEXT, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3,
    )  # fmt: skip
    source = torch.randn(1, 16, 40)
    return language_model(library.WhisperForConditionalGeneration(config), context=CONTEXT, prompt=2, source=source)


def _executorch(width: int, layers: int) -> LanguageModel:
    from executorch.examples.models.llama.llama_transformer import construct_transformer
    from executorch.examples.models.llama.model_args import ModelArgs

    arguments = ModelArgs(
        dim=width, n_layers=layers, n_heads=4, n_kv_heads=2, vocab_size=VOCABULARY, hidden_dim=2 * width, max_seq_len=CONTEXT,
        max_context_len=CONTEXT, use_kv_cache=True, enable_dynamic_shape=False, generate_full_logits=True,
    )  # fmt: skip
    return language_model(construct_transformer(arguments), prompt=PROMPT)


def _plain(width: int, layers: int) -> LanguageModel:
    return language_model(Rotary(width, layers), context=CONTEXT, prompt=PROMPT)


def _alternating(width: int, layers: int) -> Sequence[str]:
    return ["sliding_attention", "full_attention"] * (layers // 2)


#: Family -> a function of (width, layers).
FAMILIES: dict[str, Callable[[int, int], LanguageModel]] = {
    "plain": _plain,
    "executorch llama": _executorch,
    "Llama": _causal("Llama", tie_word_embeddings=True),
    "SmolLM3": _causal("SmolLM3"),
    "Qwen2": _causal("Qwen2"),
    "Qwen3": _causal("Qwen3"),
    "Mistral": _causal("Mistral", sliding_window=WINDOW),
    "Gemma": _causal("Gemma", num_key_value_heads=1),
    "Gemma2": _causal("Gemma2", sliding_window=WINDOW),
    "Gemma3": _causal("Gemma3", sliding_window=WINDOW, layer_types=_alternating),
    "Phi": _causal("Phi", num_key_value_heads=4),
    "Phi3": _causal("Phi3", original_max_position_embeddings=CONTEXT),
    "GPT-2": _gpt2,
    "GPT-Neo": _gpt_neo,
    "GPT-J": _gptj,
    "OPT": _opt,
    "T5": _t5,
    "Whisper": _whisper,
}
SIZES = ((32, 2), (64, 4))  #: (width, layers)
