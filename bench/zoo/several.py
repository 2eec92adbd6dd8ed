"""Networks of transformers with several inputs, or with a configuration inside another: pairs, documents, audio, time series."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.models.case import Inputs, ModelCase
from bench.zoo.sequences import (
    _AST,
    _DECODER,
    _NO_CACHE,
    _SMALL,
    _VIT,
    _WAVES,
    _WORDS,
    _picture,
    _series,
    _settle,
    _tokens,
    _wave,
)
from ethorch.models.zoos import torchvision_models

Sample = Callable[[np.random.Generator], Inputs]


class Called(nn.Module):
    """A transformers model with several named inputs, constant arguments and one output."""

    def __init__(self, model: nn.Module, arguments: Sequence[str], result: str, extra: dict[str, Any] | None = None):
        super().__init__()
        self.model, self.arguments, self.result, self.extra = model, tuple(arguments), result, extra or {}

    def forward(self, *inputs: Tensor) -> Tensor:
        out: Tensor = getattr(self.model(**dict(zip(self.arguments, inputs, strict=True)), **self.extra), self.result)
        return out


def _build(
    kind: str, config: dict[str, Any], arguments: Sequence[str], result: str, extra: dict[str, Any] | None = None
) -> Callable[[], nn.Module]:
    """Return a function that creates a model of the class ``kind``.

    A value ``(class name, settings)`` in ``config`` becomes a configuration of that class.
    """

    def create() -> nn.Module:
        torchvision_models()  # transformers imports torchvision, which may lack its compiled half
        import transformers

        def create_config(value: Any) -> Any:
            if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict):
                return getattr(transformers, value[0])(**value[1])
            return value

        cls = getattr(transformers, kind)
        configuration = cls.config_class(**{key: create_config(value) for key, value in config.items()})
        if not getattr(cls, "_supports_sdpa", False):
            configuration._attn_implementation = "eager"
        model = cls(configuration).eval()
        _settle(model)
        return Called(model, arguments, result, extra)

    return create


def _join(*samples: Sample) -> Sample:
    """Return a sample with the inputs of several samples."""
    return lambda rng: tuple(tensor for sample in samples for tensor in sample(rng))


def _boxes(tokens: int, length: int = 24) -> Sample:
    """Return a box per token, with corners in 0..1000, or boxes of four corners in 0..1."""

    def sample(rng: np.random.Generator) -> Inputs:
        corners = np.sort(rng.integers(0, 1000, (1, length, 2, 2)), axis=2)
        if tokens == 4:
            return (torch.from_numpy(corners.reshape(1, length, 4)),)
        (left, top), (right, bottom) = np.moveaxis(corners[0].astype(np.float32) / 1000, (1, 2), (0, 1))
        return (torch.from_numpy(np.stack([left, top, right, top, right, bottom, left, bottom], -1))[None],)

    return sample


def _frames(count: int) -> Sample:
    return lambda rng: (torch.stack([_picture(64)(rng)[0][0] for _ in range(count)])[None],)


def _flat_series(length: int) -> Sample:
    return lambda rng: (_series(length, 1)(rng)[0][..., 0],)


def _future(past: int, future: int) -> Sample:
    """Return past values of a series, features of past time, and features of future time."""

    def sample(rng: np.random.Generator) -> Inputs:
        series = _series(past, 1)(rng)[0][..., 0]
        time = torch.arange(past + future, dtype=torch.float32)
        features = torch.stack([time / (past + future) - 0.5, torch.sin(time * 0.26 + float(rng.uniform(0, 6)))], -1)[None]
        return series, features[:, :past], features[:, past:]

    return sample


_ALIGNED = _SMALL | {"max_position_embeddings": 64}
_RESNET = {"embedding_size": 16, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}
_QUERIES = {
    "backbone": None, "use_timm_backbone": False, "use_pretrained_backbone": False, "d_model": 64, "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "num_queries": 8,
}  # fmt: skip
_FORECAST = {
    "prediction_length": 8, "context_length": 16, "input_size": 1, "num_time_features": 2, "lags_sequence": [1, 2, 3],
    "d_model": 32,
    "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}  # fmt: skip
_PAST = 16 + 3
_FORECASTS = ("past_values", "past_time_features", "future_time_features")
_PIXELS = ("pixel_values",)
_TEXT_AND_PICTURE = ("input_ids", "pixel_values")
_EXPERTS = {"num_experts_per_tok": 2}
#: Name: class, configuration, names of inputs, output, sample, and constant arguments.
_NETWORKS: dict[str, tuple[str, dict[str, Any], Sequence[str], str, Sample, dict[str, Any]]] = {
    # pictures
    "cvt": (
        "CvtModel", {"embed_dim": [16, 32, 64], "num_heads": [1, 2, 4], "depth": [1, 2, 3]}, _PIXELS,
        "last_hidden_state", _picture(64), {},
    ),
    "dpt": (
        "DPTForDepthEstimation",
        _VIT | {
            "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [16, 32, 48, 64],
            "fusion_hidden_size": 32,
        },
        _PIXELS, "predicted_depth", _picture(64), {},
    ),
    "depth_anything": (
        "DepthAnythingForDepthEstimation",
        {
            "backbone_config": (
                "Dinov2Config",
                _VIT | {
                    "image_size": 56, "patch_size": 14, "num_hidden_layers": 4, "reshape_hidden_states": False,
                    "out_features": ["stage1", "stage2", "stage3", "stage4"],
                },
            ),
            "reassemble_hidden_size": 64, "patch_size": 14, "neck_hidden_sizes": [16, 32, 48, 64], "fusion_hidden_size": 16,
            "head_hidden_size": 8,
        },
        _PIXELS, "predicted_depth", _picture(56), {},
    ),
    "upernet": (
        "UperNetForSemanticSegmentation",
        {
            "backbone_config": (
                "ConvNextConfig",
                {
                    "hidden_sizes": [16, 32, 48, 64], "depths": [1] * 4, "out_features": ["stage1", "stage2", "stage3", "stage4"],
                },
            ),
            "hidden_size": 32, "auxiliary_in_channels": 48, "auxiliary_channels": 16, "num_labels": 4,
        },
        _PIXELS, "logits", _picture(64), {},
    ),
    "deformable_detr": (
        "DeformableDetrForObjectDetection",
        _QUERIES | {
            "backbone_config": ("ResNetConfig", _RESNET | {"out_features": ["stage2", "stage3", "stage4"]}), "decoder_layers": 2,
            "num_feature_levels": 3,
        },
        _PIXELS, "logits", _picture(64), {},
    ),
    "rt_detr": (
        "RTDetrForObjectDetection",
        {
            "backbone_config": (
                "RTDetrResNetConfig",
                {"embedding_size": 16, "hidden_sizes": [16, 32, 48, 64], "depths": [1] * 4, "layer_type": "basic",
                 "out_features": ["stage2", "stage3", "stage4"]},
            ),
            "encoder_in_channels": [32, 48, 64], "encoder_hidden_dim": 32, "d_model": 32, "num_queries": 8, "decoder_layers": 1,
            "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
            "decoder_in_channels": [32, 32, 32], "anchor_image_size": [64, 64], "num_denoising": 0,
        },
        _PIXELS, "logits", _picture(64), {},
    ),
    "maskformer": (
        "MaskFormerForInstanceSegmentation",
        {
            "backbone_config": {
                "model_type": "swin", "image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [1] * 4,
                "num_heads": [1, 2, 2, 4], "window_size": 2, "out_features": ["stage1", "stage2", "stage3", "stage4"],
            },
            "decoder_config": _QUERIES | {"model_type": "detr", "d_model": 32},
            "fpn_feature_size": 32, "mask_feature_size": 32,
        },
        _PIXELS, "class_queries_logits", _picture(64), {},
    ),
    "videomae": ("VideoMAEModel", _VIT | {"num_frames": 4}, _PIXELS, "last_hidden_state", _frames(4), {}),
    "timesformer": ("TimesformerModel", _VIT | {"num_frames": 2}, _PIXELS, "last_hidden_state", _frames(2), {}),
    "vivit": (
        "VivitModel", _VIT | {"num_frames": 4, "tubelet_size": [2, 16, 16]}, _PIXELS, "last_hidden_state", _frames(4), {},
    ),
    "perceiver": (
        "PerceiverModel",
        {
            "num_latents": 8, "d_latents": 64, "d_model": 32, "num_blocks": 1, "num_self_attends_per_block": 2,
            "num_self_attention_heads": 4, "num_cross_attention_heads": 4,
        },
        ("inputs",), "last_hidden_state", _series(32, 32), {},
    ),
    # documents
    "lilt": (
        "LiltModel", _ALIGNED | {"pad_token_id": 1, "hidden_size": 96, "num_attention_heads": 4}, ("input_ids", "bbox"),
        "last_hidden_state", _join(_tokens(), _boxes(4)), {},
    ),
    "bros": (
        "BrosModel", _SMALL | {"hidden_size": 128}, ("input_ids", "bbox"), "last_hidden_state", _join(_tokens(), _boxes(8)), {},
    ),
    "tapas": ("TapasModel", _ALIGNED, ("input_ids",), "last_hidden_state", _tokens(), {}),
    # text and picture
    "clip": (
        "CLIPModel", {"text_config": _ALIGNED | {"eos_token_id": 2}, "vision_config": _VIT, "projection_dim": 32},
        _TEXT_AND_PICTURE, "logits_per_image", _join(_tokens(16), _picture(64)), {},
    ),
    "siglip": (
        "SiglipModel", {"text_config": _ALIGNED | {"projection_size": 64}, "vision_config": _VIT}, _TEXT_AND_PICTURE,
        "logits_per_image", _join(_tokens(16), _picture(64)), {},
    ),
    "blip": (
        "BlipModel",
        {"text_config": _ALIGNED | {"encoder_hidden_size": 64}, "vision_config": _VIT, "projection_dim": 32}, _TEXT_AND_PICTURE,
        "logits_per_image", _join(_tokens(16), _picture(64)), {},
    ),
    "owlvit": (
        "OwlViTForObjectDetection",
        {"text_config": _ALIGNED | {"max_position_embeddings": 16, "eos_token_id": 2}, "vision_config": _VIT, "projection_dim": 64},
        _TEXT_AND_PICTURE, "logits", _join(_tokens(16), _picture(64)), {},
    ),
    # sound
    "sew": ("SEWModel", _WAVES | {"squeeze_factor": 2}, ("input_values",), "last_hidden_state", _wave(1600), {}),
    "unispeech_sat": ("UniSpeechSatModel", _WAVES, ("input_values",), "last_hidden_state", _wave(1600), {}),
    "data2vec_audio": (
        "Data2VecAudioModel", _WAVES | {"num_conv_pos_embeddings": 3}, ("input_values",), "last_hidden_state", _wave(1600), {},
    ),
    "wav2vec2_conformer": ("Wav2Vec2ConformerModel", _WAVES, ("input_values",), "last_hidden_state", _wave(1600), {}),
    "wav2vec2_bert": (
        "Wav2Vec2BertModel", _SMALL | {"feature_projection_input_dim": 32}, ("input_features",), "last_hidden_state",
        _series(32, 32), {},
    ),
    "wav2vec2_ctc": ("Wav2Vec2ForCTC", _WAVES, ("input_values",), "logits", _wave(1600), {}),
    "ast_classifier": ("ASTForAudioClassification", _AST, ("input_values",), "logits", _series(64, 32), {}),
    "clap_audio": (
        "ClapAudioModel",
        {
            "spec_size": 64, "num_mel_bins": 16, "patch_size": 4, "patch_stride": [4, 4], "patch_embeds_hidden_size": 16,
            "depths": [1, 1], "num_attention_heads": [2, 4], "window_size": 4, "hidden_size": 32, "projection_dim": 32,
        },
        ("input_features",), "pooler_output", lambda rng: (_series(64, 16)(rng)[0][None],), {},
    ),
    "parakeet": (
        "ParakeetEncoder",
        {
            "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
            "subsampling_conv_channels": 16, "num_mel_bins": 32, "subsampling_factor": 4,
        },
        ("input_features",), "last_hidden_state", _series(64, 32), {},
    ),
    # time series
    "time_series_transformer": (
        "TimeSeriesTransformerModel", _FORECAST, _FORECASTS, "last_hidden_state", _future(_PAST, 8),
        {"past_observed_mask": torch.ones(1, _PAST), "future_values": torch.zeros(1, 8), "use_cache": False},
    ),
    "informer": (
        "InformerModel", _FORECAST | {"attention_type": "full"}, _FORECASTS, "last_hidden_state", _future(_PAST, 8),
        {"past_observed_mask": torch.ones(1, _PAST), "future_values": torch.zeros(1, 8), "use_cache": False},
    ),
    "autoformer": (
        "AutoformerModel", _FORECAST | {"label_length": 8, "moving_average": 5, "autocorrelation_factor": 1}, _FORECASTS,
        "last_hidden_state", _future(_PAST, 8),
        {"past_observed_mask": torch.ones(1, _PAST), "future_values": torch.zeros(1, 8), "use_cache": False},
    ),
    "patchtsmixer_classifier": (
        "PatchTSMixerForTimeSeriesClassification",
        {
            "context_length": 64, "patch_length": 8, "patch_stride": 8, "num_input_channels": 2, "num_targets": 4, "d_model": 16,
            "num_layers": 2, "mode": "mix_channel", "gated_attn": True,
        },
        ("past_values",), "prediction_outputs", _series(64, 2), {},
    ),
    "patchtst_classifier": (
        "PatchTSTForClassification",
        {
            "num_input_channels": 2, "context_length": 64, "patch_length": 8, "patch_stride": 8, "d_model": 32, "ffn_dim": 64,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_targets": 4, "use_cls_token": True,
        },
        ("past_values",), "prediction_logits", _series(64, 2), {},
    ),
    "timesfm": (
        "TimesFmModel",
        {
            "patch_length": 8, "context_length": 64, "horizon_length": 8, "num_hidden_layers": 2, "hidden_size": 32,
            "intermediate_size": 64, "head_dim": 8, "num_attention_heads": 4,
        },
        ("past_values",), "last_hidden_state", _flat_series(64),
        {"past_values_padding": torch.zeros(1, 64, dtype=torch.long), "freq": torch.zeros(1, 1, dtype=torch.long)},
    ),
    # mixtures of experts
    "mixtral": (
        "MixtralForCausalLM", _DECODER | _EXPERTS | {"num_local_experts": 4}, ("input_ids",), "logits", _tokens(), _NO_CACHE,
    ),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        _DECODER | _EXPERTS | {"num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64},
        ("input_ids",), "logits", _tokens(), _NO_CACHE,
    ),
    "olmoe": ("OlmoeForCausalLM", _DECODER | _EXPERTS | {"num_experts": 4}, ("input_ids",), "logits", _tokens(), _NO_CACHE),
    "gpt_oss": (
        "GptOssForCausalLM", _DECODER | _EXPERTS | {"head_dim": 16, "num_local_experts": 4, "sliding_window": 8}, ("input_ids",),
        "logits", _tokens(), _NO_CACHE,
    ),
    "rwkv": (
        "RwkvForCausalLM",
        {
            "vocab_size": _WORDS, "hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32, "intermediate_size": 64,
            "context_length": 32,
        },
        ("input_ids",), "logits", _tokens(), _NO_CACHE,
    ),
}  # fmt: skip

CASES = tuple(
    ModelCase(f"hf/{name}", _build(kind, config, arguments, result, extra), sample, "transformers", 4)
    for name, (kind, config, arguments, result, sample, extra) in _NETWORKS.items()
)
