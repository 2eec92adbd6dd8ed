"""Further transformers families, with one tiny network for each: decoders, encoders, encoder-decoders and vision models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn

from bench.models.case import Inputs, ModelCase
from bench.zoo.sequences import (
    _DECODER,
    _NO_CACHE,
    _SMALL,
    _STAGES,
    _VIT,
    _WORDS,
    _make,
    _mel,
    _picture,
    _series,
    _settle,
    _tokens,
    _wave,
)
from ethorch.models.zoos import torchvision_models

_GPT = {"vocab_size": _WORDS, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
_STATES = {"vocab_size": _WORDS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
_DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt_bigcode": ("GPTBigCodeForCausalLM", _GPT),
    "codegen": ("CodeGenForCausalLM", _GPT | {"rotary_dim": 8}),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        {
            "vocab_size": _WORDS, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
            "window_size": 8, "max_position_embeddings": 64,
        },
    ),
    "phi": ("PhiForCausalLM", _DECODER),
    "gemma": ("GemmaForCausalLM", _DECODER | {"head_dim": 16}),
    "olmo": ("OlmoForCausalLM", _DECODER),
    "granite": ("GraniteForCausalLM", _DECODER),
    "cohere": ("CohereForCausalLM", _DECODER),
    "starcoder2": ("Starcoder2ForCausalLM", _DECODER),
    "mpt": ("MptForCausalLM", {"vocab_size": _WORDS, "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}),
    "biogpt": ("BioGptForCausalLM", _SMALL),
    "xglm": ("XGLMForCausalLM", {"vocab_size": _WORDS, "d_model": 64, "ffn_dim": 128, "num_layers": 2, "attention_heads": 4}),
    "ctrl": (
        "CTRLLMHeadModel", {"vocab_size": _WORDS, "n_positions": 64, "n_embd": 64, "dff": 128, "n_layer": 2, "n_head": 4},
    ),
    "persimmon": ("PersimmonForCausalLM", {key: value for key, value in _DECODER.items() if key != "num_key_value_heads"}),
    "nemotron": ("NemotronForCausalLM", _DECODER),
    "glm": ("GlmForCausalLM", _DECODER | {"head_dim": 16}),
    "smollm3": ("SmolLM3ForCausalLM", _DECODER),
    "exaone4": ("Exaone4ForCausalLM", _DECODER | {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}),
    "helium": ("HeliumForCausalLM", _DECODER | {"head_dim": 16}),
    "ernie4_5": ("Ernie4_5ForCausalLM", _DECODER | {"head_dim": 16}),
    "bitnet": ("BitNetForCausalLM", _DECODER),
    "mamba2": ("Mamba2ForCausalLM", _STATES | {"num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8, "expand": 2}),
    "falcon_mamba": ("FalconMambaForCausalLM", _STATES),
    "xlstm": (
        "xLSTMForCausalLM",
        {"vocab_size": _WORDS, "hidden_size": 64, "num_hidden_layers": 2, "num_blocks": 2, "num_heads": 4, "chunk_size": 8},
    ),
    "recurrent_gemma": (
        "RecurrentGemmaForCausalLM",
        _DECODER | {"lru_width": 64, "attention_window_size": 16, "block_types": ["recurrent", "attention"]},
    ),
    "diffllama": ("DiffLlamaForCausalLM", _DECODER),
    "apertus": ("ApertusForCausalLM", _DECODER),
    "arcee": ("ArceeForCausalLM", _DECODER | {"head_dim": 16}),
}  # fmt: skip
_XLM = {"vocab_size": _WORDS, "emb_dim": 64, "n_layers": 2, "n_heads": 4}
_BOTH = {
    "vocab_size": _WORDS, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
_ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "big_bird": ("BigBirdModel", _SMALL | {"attention_type": "original_full"}),
    "canine": ("CanineModel", _SMALL | {"max_position_embeddings": 64, "local_transformer_stride": 8}),
    "ibert": ("IBertModel", _SMALL | {"pad_token_id": 1}),
    "megatron_bert": ("MegatronBertModel", _SMALL),
    "mra": ("MraModel", _SMALL),
    "yoso": ("YosoModel", _SMALL | {"use_expectation": True}),
    "data2vec_text": ("Data2VecTextModel", _SMALL | {"pad_token_id": 1}),
    "layoutlm": ("LayoutLMModel", _SMALL),
    "deberta": ("DebertaModel", _SMALL),
    "xlm": ("XLMModel", _XLM),
    "flaubert": ("FlaubertModel", _XLM),
    "xlm_roberta": ("XLMRobertaModel", _SMALL | {"pad_token_id": 1}),
    "luke": ("LukeModel", _SMALL | {"entity_vocab_size": 20, "entity_emb_size": 32}),
}
_PYRAMID = {"image_size": 64, "hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 4, 4]}
_SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 24, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}
_RESIDUAL = {"embedding_size": 16, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}
_HIERA = {
    "image_size": [64, 64], "embed_dim": 16, "depths": [1, 1, 1], "num_heads": [1, 2, 4], "query_stride": [2, 2],
    "num_query_pool": 2,
    "masked_unit_size": [4, 4], "masked_unit_attention": [True, True, False],
}  # fmt: skip
_VISION: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "beit": ("BeitModel", _VIT, 64, "last_hidden_state"),
    "deit": ("DeiTModel", _VIT, 64, "last_hidden_state"),
    "swin": ("SwinModel", _SWIN, 32, "last_hidden_state"),
    "convnext": ("ConvNextModel", _STAGES, 64, "last_hidden_state"),
    "efficientnet": (
        "EfficientNetModel",
        {"width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320, "image_size": 64}, 64, "last_hidden_state",
    ),
    "focalnet": (
        "FocalNetModel",
        {"image_size": 64, "embed_dim": 24, "depths": [1, 1, 1], "focal_levels": [2, 2, 2], "focal_windows": [3, 3, 3]},
        64, "last_hidden_state",
    ),
    "glpn": (
        "GLPNForDepthEstimation", _STAGES | {"num_attention_heads": [1, 2, 4, 4], "decoder_hidden_size": 32}, 64, "predicted_depth",
    ),
    "levit": (
        "LevitModel",
        {"image_size": 64, "hidden_sizes": [32, 48, 64], "num_attention_heads": [2, 3, 4], "depths": [1] * 3, "key_dim": [16] * 3},
        64, "last_hidden_state",
    ),
    "mobilenet_v1": ("MobileNetV1Model", {"depth_multiplier": 0.25, "image_size": 64}, 64, "last_hidden_state"),
    "mobilenet_v2": ("MobileNetV2Model", {"depth_multiplier": 0.25, "image_size": 64}, 64, "last_hidden_state"),
    "mobilenet_v2_deeplab": ("MobileNetV2ForSemanticSegmentation", {"depth_multiplier": 0.25, "image_size": 64}, 64, "logits"),
    "mobilevitv2": ("MobileViTV2Model", {"image_size": 64, "width_multiplier": 0.5}, 64, "last_hidden_state"),
    "pvt": ("PvtModel", _PYRAMID, 64, "last_hidden_state"),
    "pvt_v2": ("PvtV2Model", _PYRAMID, 64, "last_hidden_state"),
    "regnet": ("RegNetModel", _RESIDUAL | {"groups_width": 16}, 64, "last_hidden_state"),
    "resnet": ("ResNetModel", _RESIDUAL, 64, "last_hidden_state"),
    "swiftformer": (
        "SwiftFormerModel", {"image_size": 64, "embed_dims": [16, 32, 48, 64], "depths": [1] * 4}, 64, "last_hidden_state",
    ),
    "bit": ("BitModel", _RESIDUAL | {"hidden_sizes": [32, 32, 64, 64], "num_groups": 4}, 64, "last_hidden_state"),
    "segformer_semseg": (
        "SegformerForSemanticSegmentation", _STAGES | {"num_attention_heads": [1, 2, 4, 4], "decoder_hidden_size": 32}, 64,
        "logits",
    ),
    "hiera": ("HieraModel", _HIERA, 64, "last_hidden_state"),
    "dinov2_registers": ("Dinov2WithRegistersModel", _VIT, 64, "last_hidden_state"),
    "dinov3_vit": ("DINOv3ViTModel", _VIT, 64, "last_hidden_state"),
    "ijepa": ("IJepaModel", _VIT, 64, "last_hidden_state"),
    "vit_msn": ("ViTMSNModel", _VIT, 64, "last_hidden_state"),
    "vitdet": ("VitDetModel", _VIT | {"window_size": 2, "window_block_indices": [0]}, 64, "last_hidden_state"),
}  # fmt: skip


class Both(nn.Module):
    """A transformers model with an encoder and a decoder. It is called with the inputs of both and returns logits."""

    def __init__(self, model: nn.Module, first: str):
        super().__init__()
        self.model, self.first = model, first

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        out: Tensor = self.model(**{self.first: x, "decoder_input_ids": tokens}, use_cache=False).logits
        return out


def _both(kind: str, config: dict[str, Any], first: str) -> Callable[[], nn.Module]:
    def create() -> nn.Module:
        torchvision_models()  # transformers imports torchvision, which may lack its compiled half
        import transformers

        cls = getattr(transformers, kind)
        configuration = cls.config_class(**config)
        configuration._attn_implementation = "sdpa" if getattr(cls, "_supports_sdpa", False) else "eager"
        model = cls(configuration).eval()
        _settle(model)
        return Both(model, first)

    return create


def _and_tokens(first: Callable[[np.random.Generator], Inputs]) -> Callable[[np.random.Generator], Inputs]:
    return lambda rng: (first(rng)[0], _tokens(8)(rng)[0])


_T5 = {
    "vocab_size": _WORDS, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip
_PROPHET = {
    "vocab_size": _WORDS, "hidden_size": 64, "num_encoder_layers": 1, "num_decoder_layers": 1, "num_encoder_attention_heads": 4,
    "num_decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_position_embeddings": 64,
}  # fmt: skip
_WHISPER = _BOTH | {"num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 32, "decoder_start_token_id": 1}
_SPEECH = _BOTH | {
    "input_feat_per_channel": 32, "input_channels": 1, "conv_channels": 32, "max_source_positions": 64, "max_target_positions": 64,
}  # fmt: skip
_MOONSHINE = {
    "vocab_size": _WORDS, "hidden_size": 64, "intermediate_size": 128, "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 2,
    "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
_PAIRS: dict[str, tuple[str, dict[str, Any], str, Callable[[np.random.Generator], Inputs]]] = {
    "bart": ("BartForConditionalGeneration", _BOTH, "input_ids", _tokens()),
    "t5": ("T5ForConditionalGeneration", _T5, "input_ids", _tokens()),
    "marian": ("MarianMTModel", _BOTH, "input_ids", _tokens()),
    "pegasus": ("PegasusForConditionalGeneration", _BOTH, "input_ids", _tokens()),
    "m2m_100": ("M2M100ForConditionalGeneration", _BOTH, "input_ids", _tokens()),
    "blenderbot": ("BlenderbotForConditionalGeneration", _BOTH, "input_ids", _tokens()),
    "prophetnet": ("ProphetNetForConditionalGeneration", _PROPHET, "input_ids", _tokens()),
    "whisper": ("WhisperForConditionalGeneration", _WHISPER, "input_features", _mel),
    "speech_to_text": ("Speech2TextForConditionalGeneration", _SPEECH, "input_features", _series(64, 32)),
    "moonshine": ("MoonshineForConditionalGeneration", _MOONSHINE, "input_values", _wave(4000)),
}

CASES = (
    *(
        ModelCase(f"hf/{name}", _make(kind, config, "logits", extra=_NO_CACHE), _tokens(), "transformers")
        for name, (kind, config) in _DECODERS.items()
    ),
    *(
        ModelCase(f"hf/{name}", _make(kind, config, "last_hidden_state"), _tokens(), "transformers")
        for name, (kind, config) in _ENCODERS.items()
    ),
    *(
        ModelCase(f"hf/{name}", _make(kind, config, result, "pixel_values"), _picture(side), "transformers", 4)
        for name, (kind, config, side, result) in _VISION.items()
    ),
    *(
        ModelCase(f"hf/{name}", _both(kind, config, first), _and_tokens(sample), "transformers")
        for name, (kind, config, first, sample) in _PAIRS.items()
    ),
)
