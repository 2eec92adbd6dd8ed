"""Recent transformers networks, including rare kinds: recurrences with attention, mixtures of experts, video, matting, vocoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bench.models.case import Inputs, ModelCase
from bench.zoo.sequences import (
    _DECODER,
    _NO_CACHE,
    _SMALL,
    _VIT,
    _WAVES,
    _WORDS,
    _picture,
    _series,
    _tokens,
    _wave,
)
from bench.zoo.several import (
    _ALIGNED,
    _EXPERTS,
    _PIXELS,
    _TEXT_AND_PICTURE,
    Sample,
    _boxes,
    _build,
    _flat_series,
    _frames,
    _join,
)

_IDS = ("input_ids",)
_SWIN_STAGES = {
    "model_type": "swin", "image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [1] * 4, "num_heads": [1, 2, 2, 4],
    "window_size": 2, "out_features": ["stage1", "stage2", "stage3", "stage4"],
}  # fmt: skip


def _line_of_text(rng: np.random.Generator) -> Inputs:
    return (_picture(64)(rng)[0][:, :, :32],)


def _with_trimap(rng: np.random.Generator) -> Inputs:
    """Return an image with a trimap of its foreground."""
    return (torch.cat([_picture(64)(rng)[0], _picture(64)(rng)[0][:, :1]], 1),)


#: Name: class, configuration, names of inputs, output, sample, and constant arguments.
_NETWORKS: dict[str, tuple[str, dict[str, Any], Sequence[str], str, Sample, dict[str, Any]]] = {
    # decoders: recurrences beside attention, and mixtures of experts
    "jamba": (
        "JambaForCausalLM", _DECODER | _EXPERTS | {"num_hidden_layers": 2, "num_experts": 4, "attn_layer_period": 2,
        "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1, "mamba_d_state": 8,
        "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 8}, _IDS, "logits", _tokens(8), _NO_CACHE,
    ),
    "bamba": (
        "BambaForCausalLM", _DECODER | {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 16,
        "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_expand": 2, "mamba_chunk_size": 8}, _IDS, "logits", _tokens(8),
        _NO_CACHE,
    ),
    "zamba2": (
        "Zamba2ForCausalLM", _DECODER | {"num_key_value_heads": 4, "num_hidden_layers": 2,
        "layers_block_type": ["mamba", "hybrid"], "mamba_d_state": 8, "n_mamba_heads": 8, "mamba_headdim": 16,
        "mamba_ngroups": 1, "chunk_size": 8, "num_mem_blocks": 1, "use_mem_rope": True, "adapter_rank": 8,
        "hybrid_layer_ids": [1]}, _IDS, "logits", _tokens(8), _NO_CACHE,
    ),
    "falcon_h1": (
        "FalconH1ForCausalLM", _DECODER | {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8,
        "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_chunk_size": 8}, _IDS, "logits", _tokens(8), _NO_CACHE,
    ),
    "granitemoehybrid": (
        "GraniteMoeHybridForCausalLM", _DECODER | _EXPERTS | {"layer_types": ["mamba", "attention"],
        "num_local_experts": 4, "shared_intermediate_size": 32, "mamba_n_heads": 8, "mamba_d_head": 16,
        "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_chunk_size": 8}, _IDS, "logits", _tokens(8), _NO_CACHE,
    ),
    "minimax": (
        "MiniMaxForCausalLM", _DECODER | _EXPERTS | {"head_dim": 16, "num_local_experts": 4, "block_size": 8,
        "layer_types": ["linear_attention", "full_attention"]}, _IDS, "logits", _tokens(16), _NO_CACHE,
    ),
    "qwen3_next": (
        "Qwen3NextForCausalLM", _DECODER | _EXPERTS | {"head_dim": 16, "num_experts": 4, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32, "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4}, _IDS, "logits", _tokens(8), _NO_CACHE,
    ),
    "deepseek_v2": (
        "DeepseekV2ForCausalLM", _DECODER | _EXPERTS | {"num_key_value_heads": 4, "moe_intermediate_size": 32,
        "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "q_lora_rank": 32, "kv_lora_rank": 16,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}, _IDS, "logits", _tokens(), _NO_CACHE,
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM", _DECODER | _EXPERTS | {"num_key_value_heads": 4, "moe_intermediate_size": 32,
        "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
        "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}, _IDS,
        "logits", _tokens(), _NO_CACHE,
    ),
    "llama4": (
        "Llama4ForCausalLM", _DECODER | {"head_dim": 16, "intermediate_size_mlp": 128, "num_local_experts": 4,
        "num_experts_per_tok": 1, "attention_chunk_size": 16, "interleave_moe_layer_step": 2}, _IDS, "logits",
        _tokens(), _NO_CACHE,
    ),
    "gemma3n": (
        "Gemma3nForCausalLM", _DECODER | {"head_dim": 16, "vocab_size_per_layer_input": _WORDS,
        "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0, "laurel_rank": 8, "altup_num_inputs": 2,
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8,
        "activation_sparsity_pattern": [0.0, 0.0]}, _IDS, "logits", _tokens(), _NO_CACHE,
    ),
    # text
    "nomic_bert": ("NomicBertModel", _SMALL, _IDS, "last_hidden_state", _tokens(), {}),
    "eurobert": (
        "EuroBertModel", _SMALL | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}, _IDS, "last_hidden_state",
        _tokens(), {},
    ),
    "splinter": ("SplinterModel", _SMALL, _IDS, "last_hidden_state", _tokens(), {}),
    "trocr": (
        "TrOCRForCausalLM", {"vocab_size": _WORDS, "d_model": 64, "decoder_layers": 2, "decoder_attention_heads": 4,
        "decoder_ffn_dim": 128, "max_position_embeddings": 64, "cross_attention_hidden_size": 64}, _IDS, "logits",
        _tokens(), _NO_CACHE,
    ),
    # text and picture, documents
    "lxmert": (
        "LxmertModel", {"vocab_size": _WORDS, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128,
        "l_layers": 1, "x_layers": 1, "r_layers": 1, "visual_feat_dim": 32}, ("input_ids", "visual_feats",
        "visual_pos"), "language_output", _join(_tokens(), _series(8, 32), _series(8, 4)), {},
    ),
    "visual_bert": (
        "VisualBertModel", _SMALL | {"visual_embedding_dim": 32}, ("input_ids", "visual_embeds"), "last_hidden_state",
        _join(_tokens(), _series(8, 32)), {},
    ),
    "layoutlmv3": (
        "LayoutLMv3Model", _SMALL | {"pad_token_id": 1, "coordinate_size": 8, "shape_size": 16, "input_size": 64,
        "max_2d_position_embeddings": 1024}, ("input_ids", "bbox", "pixel_values"), "last_hidden_state",
        _join(_tokens(), _boxes(4), _picture(64)), {},
    ),
    "clipseg": (
        "CLIPSegForImageSegmentation", {"text_config": _ALIGNED | {"eos_token_id": 2}, "vision_config": _VIT |
        {"num_hidden_layers": 3}, "projection_dim": 32, "extract_layers": [0, 1, 2], "reduce_dim": 16,
        "decoder_num_attention_heads": 2, "decoder_intermediate_size": 32, "conditional_layer": 0}, _TEXT_AND_PICTURE,
        "logits", _join(_tokens(16), _picture(64)), {},
    ),
    # pictures
    "mask2former": (
        "Mask2FormerForUniversalSegmentation", {"backbone_config": _SWIN_STAGES, "feature_size": 32,
        "mask_feature_size": 32, "hidden_dim": 32, "encoder_feedforward_dim": 64, "encoder_layers": 1,
        "decoder_layers": 2, "num_attention_heads": 4, "dim_feedforward": 64, "num_queries": 8, "num_labels": 4},
        _PIXELS, "class_queries_logits", _picture(64), {},
    ),
    "groupvit": (
        "GroupViTVisionModel", _VIT | {"depths": [1, 1, 0], "num_group_tokens": [8, 4, 0], "num_output_groups": [8, 4,
        0]}, _PIXELS, "last_hidden_state", _picture(64), {},
    ),
    "mgp_str": (
        "MgpstrModel", {"image_size": [32, 64], "patch_size": 8, "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4}, _PIXELS, "last_hidden_state", _line_of_text, {},
    ),
    "vitpose": (
        "VitPoseForPoseEstimation", {"backbone_config": {"model_type": "vitpose_backbone", "image_size": [64, 64],
        "patch_size": [16, 16], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "out_features": ["stage2"]}, "num_labels": 5}, _PIXELS, "heatmaps", _picture(64), {},
    ),
    "zoedepth": (
        "ZoeDepthForDepthEstimation", {"backbone_config": {"model_type": "beit", "image_size": 64, "patch_size": 16,
        "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128,
        "out_features": ["stage1", "stage2", "stage3", "stage4"], "reshape_hidden_states": False,
        "use_relative_position_bias": True}, "neck_hidden_sizes": [16, 32, 48, 64], "fusion_hidden_size": 16,
        "bottleneck_features": 16, "num_relative_features": 8, "bin_embedding_dim": 16, "num_attractors": [4, 2, 2, 1],
        "bin_configurations": [{"n_bins": 8, "min_depth": 0.1, "max_depth": 10.0, "name": "a"}]}, _PIXELS,
        "predicted_depth", _picture(64), {},
    ),
    "vjepa2": (
        "VJEPA2Model", {"image_size": 64, "crop_size": 64, "patch_size": 16, "frames_per_clip": 4, "tubelet_size": 2,
        "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "mlp_ratio": 2.0, "pred_hidden_size": 48,
        "pred_num_attention_heads": 4, "pred_num_hidden_layers": 1}, ("pixel_values_videos",), "last_hidden_state",
        _frames(4), {"skip_predictor": True},
    ),
    "lw_detr": (
        "LwDetrForObjectDetection", {"backbone_config": {"model_type": "lw_detr_vit", "image_size": 64,
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "window_block_indices": [0],
        "out_indices": [1, 2], "num_windows": 4}, "d_model": 32, "decoder_ffn_dim": 64, "decoder_layers": 1,
        "decoder_self_attention_heads": 4, "decoder_cross_attention_heads": 4, "num_queries": 8, "group_detr": 1,
        "num_feature_levels": 1, "projector_scale_factors": [1.0]}, _PIXELS, "logits", _picture(64), {},
    ),
    "sam_vision": (
        "SamVisionModel", {"image_size": 64, "patch_size": 16, "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "window_size": 2, "output_channels": 32, "global_attn_indexes": [1], "mlp_dim": 128},
        _PIXELS, "last_hidden_state", _picture(64), {},
    ),
    "sam2_vision": (
        "Sam2VisionModel", {"backbone_config": ("Sam2HieraDetConfig", {"image_size": [64, 64], "hidden_size": 16,
        "num_attention_heads": 1, "blocks_per_stage": [1, 1, 2, 1], "embed_dim_per_stage": [16, 32, 64, 128],
        "num_attention_heads_per_stage": [1, 2, 4, 8], "window_size_per_stage": [4, 2, 4, 2],
        "global_attention_blocks": [3], "window_positional_embedding_background_size": [4, 4]}),
        "backbone_channel_list": [128, 64, 32, 16], "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
        "fpn_hidden_size": 32}, _PIXELS, "last_hidden_state", _picture(64), {},
    ),
    "seggpt": (
        "SegGptModel", _VIT | {"image_size": [128, 64], "merge_index": 0, "intermediate_hidden_state_indices": [1],
        "pretrain_image_size": 64, "decoder_hidden_size": 16}, ("pixel_values", "prompt_pixel_values", "prompt_masks"),
        "last_hidden_state", _join(_picture(64), _picture(64), _picture(64)), {},
    ),
    "vitmatte": (
        "VitMatteForImageMatting", {"backbone_config": {"model_type": "vitdet", "image_size": 64, "patch_size": 16,
        "num_channels": 4, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "out_features": ["stage2"], "residual_block_indices": [], "window_block_indices": [0], "window_size": 2},
        "hidden_size": 64, "convstream_hidden_sizes": [8, 16, 32], "fusion_hidden_sizes": [32, 24, 16, 8]}, _PIXELS,
        "alphas", _with_trimap, {},
    ),
    "aimv2": ("Aimv2VisionModel", _VIT, _PIXELS, "last_hidden_state", _picture(64), {}),
    "imagegpt": (
        "ImageGPTModel", {"vocab_size": _WORDS, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}, _IDS,
        "last_hidden_state", _tokens(), _NO_CACHE,
    ),
    "hgnet_v2": (
        "HGNetV2ForImageClassification", {"stem_channels": [3, 8, 8], "stage_in_channels": [8, 16, 24, 32],
        "stage_mid_channels": [8, 8, 12, 16], "stage_out_channels": [16, 24, 32, 48], "stage_num_blocks": [1, 1, 1, 1],
        "stage_numb_of_layers": [1, 1, 1, 1], "hidden_sizes": [16, 24, 32, 48], "num_labels": 4}, _PIXELS, "logits",
        _picture(64), {},
    ),
    "pp_lcnet": ("PPLCNetForImageClassification", {"num_labels": 4}, _PIXELS, "last_hidden_state", _picture(64), {}),
    # sound, time series, actions
    "sew_d": (
        "SEWDModel", _WAVES | {"squeeze_factor": 2, "position_buckets": 16, "max_position_embeddings": 64},
        ("input_values",), "last_hidden_state", _wave(1600), {},
    ),
    "univnet": (
        "UnivNetModel", {"model_in_channels": 16, "model_hidden_channels": 8, "num_mel_bins": 16,
        "resblock_stride_sizes": [4, 4], "resblock_kernel_sizes": [3, 3], "resblock_dilation_sizes": [[1, 3], [1, 3]],
        "kernel_predictor_hidden_channels": 16}, ("input_features", "noise_sequence"), "waveforms", _join(_series(16,
        16), _series(16, 16)), {},
    ),
    "timesfm2_5": (
        "TimesFm2_5Model", {"patch_length": 8, "context_length": 64, "horizon_length": 8, "num_hidden_layers": 2,
        "hidden_size": 32, "intermediate_size": 64, "head_dim": 8, "num_attention_heads": 4, "num_key_value_heads": 4},
        ("past_values",), "last_hidden_state", _flat_series(64), {},
    ),
    "decision_transformer": (
        "DecisionTransformerModel", {"state_dim": 8, "act_dim": 4, "hidden_size": 64, "n_layer": 2, "n_head": 4,
        "max_ep_len": 32}, ("states", "actions", "returns_to_go"), "action_preds", _join(_series(8, 8), _series(8, 4),
        _series(8, 1)), {"timesteps": torch.arange(8)[None], "rewards": torch.zeros(1, 8, 1),
        "attention_mask": torch.ones(1, 8)},
    ),
}  # fmt: skip

CASES = tuple(
    ModelCase(f"hf/{name}", _build(kind, config, arguments, result, extra), sample, "transformers", 4)
    for name, (kind, config, arguments, result, sample, extra) in _NETWORKS.items()
)
