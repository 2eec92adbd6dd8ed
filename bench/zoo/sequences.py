"""Networks of transformers in tiny configurations with random weights: text, audio, time series, images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench import signals
from bench.models.case import Inputs, ModelCase
from ethorch.models.zoos import torchvision_models

_WORDS = 120
_SMALL = {"vocab_size": _WORDS, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
_DECODER = _SMALL | {
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


class Only(nn.Module):
    """A transformers model with one named input and one output."""

    def __init__(self, model: nn.Module, argument: str, result: str, extra: dict[str, Any] | None = None):
        super().__init__()
        self.model, self.argument, self.result, self.extra = model, argument, result, extra or {}

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = getattr(self.model(**{self.argument: x}, **self.extra), self.result)
        return out


def _make(
    kind: str, config: dict[str, Any], result: str, argument: str = "input_ids", extra: dict[str, Any] | None = None
) -> Callable[[], nn.Module]:
    """Return a function that creates a model of the class ``kind``, with the class's ``config_class``."""

    def create() -> nn.Module:
        torchvision_models()  # transformers imports torchvision, which may lack its compiled half
        import transformers

        cls = getattr(transformers, kind)
        configuration = cls.config_class(**config)
        configuration._attn_implementation = "sdpa" if getattr(cls, "_supports_sdpa", False) else "eager"
        model = cls(configuration).eval()
        _settle(model)
        return Only(model, argument, result, extra)

    return create


def _settle(model: nn.Module) -> None:
    """Scale weights as in a trained network, because attention is flat with the usual initialization of 0.02."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            nn.init.xavier_uniform_(module.weight, gain=1.2)


def _tokens(length: int = 24) -> Callable[[np.random.Generator], Inputs]:
    return lambda rng: (torch.from_numpy(rng.integers(3, _WORDS, (1, length))),)


def _picture(side: int) -> Callable[[np.random.Generator], Inputs]:
    return lambda rng: (torch.from_numpy(signals.imagenet_image(rng, side, side))[None],)


def _series(length: int, channels: int) -> Callable[[np.random.Generator], Inputs]:
    def sample(rng: np.random.Generator) -> Inputs:
        time = np.arange(length)[:, None]
        waves = np.sin(time * rng.uniform(0.05, 0.6, channels) + rng.uniform(0, 6, channels)) + rng.normal(
            0, 0.1, (length, channels)
        )
        return (torch.from_numpy(waves.astype(np.float32))[None],)

    return sample


def _wave(samples: int) -> Callable[[np.random.Generator], Inputs]:
    return lambda rng: (torch.from_numpy(signals.sound(rng, samples))[None],)


def _mel(rng: np.random.Generator) -> Inputs:
    bands = signals.log_mel(signals.sound(rng, 16000), 64, 16, 400, 200)
    return (torch.from_numpy(np.ascontiguousarray(bands.T.astype(np.float32)))[None],)


_VIT = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 64,
    "patch_size": 16,
}  # fmt: skip
_T5 = {"vocab_size": _WORDS, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
_NO_CACHE: dict[str, Any] = {"use_cache": False}
_STAGES = {"hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 1, 1]}

_ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", _SMALL),
    "roberta": ("RobertaModel", _SMALL | {"pad_token_id": 1}),
    "distilbert": ("DistilBertModel", {"vocab_size": _WORDS, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}),
    "albert": ("AlbertModel", _SMALL | {"embedding_size": 32}),
    "mobilebert": ("MobileBertModel", _SMALL | {"embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32}),
    "electra": ("ElectraModel", _SMALL | {"embedding_size": 32}),
    "deberta_v2": ("DebertaV2Model", _SMALL),
    "modernbert": ("ModernBertModel", _SMALL | {"pad_token_id": 0, "local_attention": 16}),
    "nystromformer": ("NystromformerModel", _SMALL | {"num_landmarks": 24, "segment_means_seq_len": 24}),
    "squeezebert": ("SqueezeBertModel", _SMALL | {"embedding_size": 64}),
    "mpnet": ("MPNetModel", _SMALL),
    "t5_encoder": ("T5EncoderModel", _T5),
    "esm": ("EsmModel", _SMALL | {"pad_token_id": 0, "position_embedding_type": "rotary"}),
    "convbert": ("ConvBertModel", _SMALL | {"embedding_size": 64}),
    "fnet": ("FNetModel", _SMALL),
    "funnel": (
        "FunnelBaseModel",
        {"vocab_size": _WORDS, "d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 128, "block_sizes": [1, 1]},
    ),
    "xlnet": ("XLNetModel", {"vocab_size": _WORDS, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128}),
    "roformer": ("RoFormerModel", _SMALL),
    "rembert": ("RemBertModel", _SMALL | {"input_embedding_size": 64, "output_embedding_size": 64}),
}
_DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", _DECODER),
    "qwen2": ("Qwen2ForCausalLM", _DECODER),
    "qwen3": ("Qwen3ForCausalLM", _DECODER | {"head_dim": 16}),
    "gemma2": ("Gemma2ForCausalLM", _DECODER | {"head_dim": 16, "sliding_window": 16}),
    "phi3": ("Phi3ForCausalLM", _DECODER),
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": _WORDS, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "gpt_neox": ("GPTNeoXForCausalLM", _SMALL),
    "opt": (
        "OPTForCausalLM",
        {k: v for k, v in _SMALL.items() if k != "intermediate_size"} | {"ffn_dim": 128, "word_embed_proj_dim": 64},
    ),
    "lfm2": ("Lfm2ForCausalLM", _DECODER | {"layer_types": ["conv", "full_attention"]}),
    "mistral": ("MistralForCausalLM", _DECODER | {"head_dim": 16}),
    "gemma3": ("Gemma3ForCausalLM", _DECODER | {"head_dim": 16, "sliding_window": 16}),
    "olmo2": ("Olmo2ForCausalLM", _DECODER),
    "stablelm": ("StableLmForCausalLM", _DECODER),
    "falcon": (
        "FalconForCausalLM",
        {"vocab_size": _WORDS, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "alibi": False},
    ),
    "bloom": ("BloomForCausalLM", {"vocab_size": _WORDS, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "gptj": (
        "GPTJForCausalLM",
        {"vocab_size": _WORDS, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 8},
    ),
}
_VISION: dict[str, tuple[str, dict[str, Any], int]] = {
    "vit": ("ViTModel", _VIT, 64),
    "dinov2": ("Dinov2Model", _VIT, 64),
    "siglip_vision": ("SiglipVisionModel", _VIT, 64),
    "segformer": (
        "SegformerModel",
        _STAGES | {"num_attention_heads": [1, 2, 4, 4], "decoder_hidden_size": 32},
        64,
    ),
    "mobilevit": ("MobileViTModel", {"image_size": 64, "hidden_sizes": [32, 48, 64]}, 64),
    "poolformer": ("PoolFormerModel", _STAGES, 64),
    "convnextv2": ("ConvNextV2Model", _STAGES, 64),
    "swinv2": (
        "Swinv2Model",
        {"image_size": 32, "patch_size": 4, "embed_dim": 24, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4},
        32,
    ),
}
_WAVES = _SMALL | {
    "conv_dim": (32, 32, 32), "conv_kernel": (10, 3, 3), "conv_stride": (5, 2, 2), "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
_AST = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "max_length": 64,
    "num_mel_bins": 32,
}  # fmt: skip
_DAC = {
    "encoder_hidden_size": 16, "downsampling_ratios": [2, 4], "upsampling_ratios": [4, 2], "decoder_hidden_size": 32,
    "n_codebooks": 2, "codebook_size": 32, "codebook_dim": 8, "hidden_size": 64,
}  # fmt: skip
_MIXER = {
    "context_length": 64, "patch_length": 8, "patch_stride": 8, "num_input_channels": 2, "prediction_length": 16, "d_model": 16,
    "num_layers": 2,
}  # fmt: skip

CASES = (
    *(
        ModelCase(f"hf/{name}", _make(kind, config, "last_hidden_state"), _tokens(), "transformers")
        for name, (kind, config) in _ENCODERS.items()
    ),
    *(
        ModelCase(f"hf/{name}", _make(kind, config, "logits", extra=_NO_CACHE), _tokens(), "transformers")
        for name, (kind, config) in _DECODERS.items()
    ),
    *(
        ModelCase(f"hf/{name}", _make(kind, config, "last_hidden_state", "pixel_values"), _picture(side), "transformers", 4)
        for name, (kind, config, side) in _VISION.items()
    ),
    ModelCase(
        "hf/swin2sr",
        _make(
            "Swin2SRForImageSuperResolution",
            {"image_size": 16, "embed_dim": 24, "depths": [2], "num_heads": [2], "window_size": 8, "upscale": 2},
            "reconstruction",
            "pixel_values",
        ),
        _picture(16),
        "transformers",
    ),
    ModelCase(
        "hf/clip_text",
        _make("CLIPTextModel", _SMALL | {"max_position_embeddings": 32, "eos_token_id": 2}, "pooler_output"),
        _tokens(),
        "transformers",
    ),
    ModelCase(
        "hf/patchtst",
        _make(
            "PatchTSTForPrediction",
            {
                "num_input_channels": 2,
                "context_length": 64,
                "patch_length": 8,
                "patch_stride": 8,
                "d_model": 32,
                "ffn_dim": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "prediction_length": 16,
            },
            "prediction_outputs",
            "past_values",
        ),
        _series(64, 2),
        "transformers",
    ),
    *(
        ModelCase(f"hf/{name}", _make(kind, _WAVES, "last_hidden_state", "input_values"), _wave(1600), "transformers")
        for name, kind in (("wav2vec2", "Wav2Vec2Model"), ("hubert", "HubertModel"), ("wavlm", "WavLMModel"))
    ),
    ModelCase(
        "hf/yolos",
        _make("YolosForObjectDetection", _VIT | {"image_size": [64, 64], "num_detection_tokens": 8}, "logits", "pixel_values"),
        _picture(64),
        "transformers",
    ),
    ModelCase(
        "hf/ast",
        _make("ASTModel", _AST, "last_hidden_state", "input_values"),
        _series(64, 32),
        "transformers",
    ),
    ModelCase(
        "hf/dac",
        _make("DacModel", _DAC, "audio_values", "input_values"),
        lambda rng: (_wave(512)(rng)[0][None],),
        "transformers",
    ),
    ModelCase(
        "hf/patchtsmixer",
        _make("PatchTSMixerForPrediction", _MIXER, "prediction_outputs", "past_values"),
        _series(64, 2),
        "transformers",
    ),
    ModelCase(
        "hf/whisper_encoder",
        lambda: _whisper_encoder(),
        _mel,
        "transformers",
    ),
    ModelCase(
        "hf/mamba",
        _make(
            "MambaModel",
            {"vocab_size": _WORDS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
            "last_hidden_state",
            extra=_NO_CACHE,
        ),
        _tokens(8),
        "transformers",
    ),
)


def _whisper_encoder() -> nn.Module:
    torchvision_models()
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        vocab_size=_WORDS, num_mel_bins=16, d_model=64, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=128,
        max_source_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    model: nn.Module = WhisperEncoder(config)
    _settle(model)
    return Only(model, "input_features", "last_hidden_state")
