"""The fifty networks selected by ``bench.zoo.draw``, in small configurations with random weights.

Graph networks have node features as their input. The graph is constant, as for a fixed set of sensors.
A class that cannot be called with tensors is built unchanged and listed as a failure. For example, ``MotionAdapter`` only contains
modules for another network.
Requires ``pip install --no-deps diffusers segmentation-models-pytorch torch_geometric ultralytics timm xxhash
opencv-python-headless polars polars-runtime-32 importlib_metadata zipp``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench import signals
from bench.models.case import Inputs, ModelCase
from bench.zoo.draw import DRAWN
from ethorch.models.zoos import torchvision_models

Sampler = Callable[[np.random.Generator], Inputs]
SIDE = 64
NODES, EDGES = 24, 60


class Call(nn.Module):
    """A module that calls a network with tensors by name and with constants, and returns only float tensors.

    Attributes:
        names: Argument name for each input; "" is the first positional argument.
        constants: Further arguments. Tensors become buffers.
    """

    def __init__(self, network: nn.Module, names: Sequence[str] = ("",), **constants: Any):
        super().__init__()
        self.network, self.names, self.constants = network, tuple(names), constants
        for name, value in constants.items():
            if isinstance(value, Tensor):
                self.register_buffer(f"constant_{name}", value)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        constants = {
            name: getattr(self, f"constant_{name}") if isinstance(value, Tensor) else value
            for name, value in self.constants.items()
        }
        named = dict(zip(self.names, inputs, strict=True))
        first = [named.pop("")] if "" in named else []
        results = tuple(_float_tensors(self.network(*first, **named, **constants)))
        if not results:
            raise ValueError("the network returns no tensor of floats")
        return results


def _float_tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result] if result.is_floating_point() else []
    if hasattr(result, "to_tuple"):
        result = result.to_tuple()
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (list, tuple)):
        return [tensor for item in result for tensor in _float_tensors(item)]
    return []


def _noise(*shapes: tuple[int, ...]) -> Sampler:
    return lambda rng: tuple(torch.from_numpy(rng.standard_normal(shape).astype(np.float32)) for shape in shapes)


def _picture(rng: np.random.Generator, side: int = SIDE) -> Inputs:
    return (torch.from_numpy(signals.imagenet_image(rng, side, side))[None].clone(),)


def _tokens(words: int, length: int = 24, count: int = 1) -> Sampler:
    return lambda rng: tuple(torch.from_numpy(rng.integers(3, words, (1, length))) for _ in range(count))


def _one_hot(rng: np.random.Generator) -> Inputs:
    """Return one-hot colors of all nodes, int64[NODES, 16]."""
    return (torch.nn.functional.one_hot(torch.from_numpy(rng.integers(0, 16, NODES)), 16),)


# --- diffusers ---------------------------------------------------------------------------------------------------------


def _diffusers(name: str, config: dict[str, Any], names: Sequence[str] = ("",), **constants: Any) -> Callable[[], nn.Module]:
    def create() -> nn.Module:
        torchvision_models()
        network = getattr(import_module("diffusers"), name)(**config).eval()
        if "return_dict" not in constants and name != "MotionAdapter":
            return Call(network, names, return_dict=False, **constants)
        return Call(network, names, **constants)

    return create


_TIME = torch.tensor([500])
_DIFFUSERS: dict[str, tuple[Callable[[], nn.Module], Sampler]] = {
    "AutoencoderKLWan": (
        _diffusers("AutoencoderKLWan", {"base_dim": 8, "z_dim": 16, "dim_mult": [1, 2], "num_res_blocks": 1,
                                        "temperal_downsample": [False]}),
        _noise((1, 3, 1, 32, 32)),
    ),
    "GlmImageTransformer2DModel": (
        _diffusers(
            "GlmImageTransformer2DModel",
            {"patch_size": 2, "in_channels": 4, "out_channels": 4, "num_layers": 2, "attention_head_dim": 16,
             "num_attention_heads": 4, "text_embed_dim": 32, "time_embed_dim": 32, "condition_dim": 16,
             "prior_vq_quantizer_codebook_size": 64},
            ("hidden_states", "encoder_hidden_states"),
            prior_token_id=torch.arange(64)[None] % 64, prior_token_drop=torch.zeros(1, 64, dtype=torch.bool), timestep=_TIME,
            target_size=torch.tensor([[16.0, 16.0]]), crop_coords=torch.tensor([[0.0, 0.0]]),
        ),
        _noise((1, 4, 16, 16), (1, 12, 32)),
    ),
    "JoyImageEditPlusTransformer3DModel": (
        _diffusers(
            "JoyImageEditPlusTransformer3DModel",
            {"patch_size": [1, 2, 2], "in_channels": 4, "hidden_size": 64, "num_attention_heads": 4, "text_dim": 32,
             "num_layers": 2, "rope_dim_list": [4, 6, 6]},
            ("hidden_states", "encoder_hidden_states"), timestep=_TIME, shape_list=[[(1, 8, 8)]],
        ),
        _noise((1, 64, 4, 1, 2, 2), (1, 12, 32)),
    ),
    "AutoencoderOobleck": (
        _diffusers("AutoencoderOobleck", {"encoder_hidden_size": 16, "downsampling_ratios": [2, 4], "channel_multiples": [1, 2],
                                          "decoder_channels": 16, "decoder_input_channels": 8}),
        _noise((1, 2, 256)),
    ),
    "HunyuanVideoFramepackTransformer3DModel": (
        _diffusers(
            "HunyuanVideoFramepackTransformer3DModel",
            {"in_channels": 4, "out_channels": 4, "num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 1,
             "num_single_layers": 1, "num_refiner_layers": 1, "text_embed_dim": 32, "pooled_projection_dim": 16,
             "rope_axes_dim": (4, 6, 6), "guidance_embeds": False, "has_clean_x_embedder": True,
             "has_image_proj": True, "image_proj_dim": 16},
            ("hidden_states", "encoder_hidden_states", "pooled_projections", "image_embeds", "latents_clean", "latents_history_2x",
             "latents_history_4x"),
            timestep=_TIME, encoder_attention_mask=torch.ones(1, 12, dtype=torch.long), indices_latents=torch.arange(9, 11),
            indices_latents_clean=torch.arange(1), indices_latents_history_2x=torch.arange(1, 3),
            indices_latents_history_4x=torch.arange(3, 7),
        ),
        _noise((1, 4, 2, 8, 8), (1, 12, 32), (1, 16), (1, 6, 16), (1, 4, 1, 8, 8), (1, 4, 2, 8, 8), (1, 4, 4, 8, 8)),
    ),
    "ChromaTransformer2DModel": (
        _diffusers(
            "ChromaTransformer2DModel",
            {"in_channels": 16, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 4,
             "joint_attention_dim": 32, "axes_dims_rope": (4, 6, 6), "approximator_num_channels": 8,
             "approximator_hidden_dim": 32, "approximator_layers": 1},
            ("hidden_states", "encoder_hidden_states"),
            timestep=_TIME, img_ids=torch.stack([torch.zeros(64), torch.arange(64) // 8, torch.arange(64) % 8], 1),
            txt_ids=torch.zeros(12, 3),
        ),
        _noise((1, 64, 16), (1, 12, 32)),
    ),
    "LTXVideoTransformer3DModel": (
        _diffusers(
            "LTXVideoTransformer3DModel",
            {"in_channels": 16, "out_channels": 16, "num_attention_heads": 4, "attention_head_dim": 16,
             "cross_attention_dim": 64, "num_layers": 2, "caption_channels": 32},
            ("hidden_states", "encoder_hidden_states"),
            timestep=_TIME, encoder_attention_mask=torch.ones(1, 12, dtype=torch.long), num_frames=2, height=6, width=6,
        ),
        _noise((1, 72, 16), (1, 12, 32)),
    ),
    "MotionAdapter": (
        _diffusers("MotionAdapter", {"block_out_channels": (16, 16), "motion_num_attention_heads": 2, "motion_norm_num_groups": 4,
                                     "motion_layers_per_block": 1}),
        _noise((1, 4, 16, 16)),
    ),
    "AnyFlowFARTransformer3DModel": (
        _diffusers(
            "AnyFlowFARTransformer3DModel",
            {"num_attention_heads": 4, "attention_head_dim": 16, "in_channels": 4, "out_channels": 4, "text_dim": 32,
             "freq_dim": 32, "ffn_dim": 64, "num_layers": 1, "rope_max_seq_len": 64, "chunk_partition": (1, 1)},
            ("hidden_states", "encoder_hidden_states"),
            timestep=torch.full((1, 2), 500), r_timestep=torch.full((1, 2), 100), chunk_partition=[1, 1],
        ),
        _noise((1, 2, 4, 8, 8), (1, 12, 32)),
    ),
    "RFD4ProteinaAutoencoder": (
        _diffusers(
            "RFD4ProteinaAutoencoder",
            {"atom37_mask": [[True] * 37] * 8, "allowed_residue_types": [[True] * 8] * 7, "latent_dim": 8, "n_residue_types": 8,
             "nlayers": 1, "token_dim": 32, "nheads": 4, "dim_cond": 16, "pair_repr_dim": 16, "token_type_emb_dim": 8},
            ("z_latent", "ca_coors_nm"),
            padding_mask=torch.ones(1, 16, dtype=torch.bool), token_type=torch.zeros(1, 16, dtype=torch.long),
            conditioning={"is_in_context_conditioning": torch.zeros(1, 16, dtype=torch.bool),
                          "supports_local_latent": torch.ones(1, 16, dtype=torch.bool)},
        ),
        _noise((1, 16, 8), (1, 16, 3)),
    ),
}  # fmt: skip


# --- segmentation-models-pytorch ----------------------------------------------------------------------------------------


def _segmentation(name: str) -> Callable[[], nn.Module]:
    architecture, encoder = name.split("/")

    def create() -> nn.Module:
        torchvision_models()
        smp = import_module("segmentation_models_pytorch")
        network: nn.Module = smp.create_model(architecture, encoder_name=encoder, encoder_weights=None, classes=3)
        return network.eval()

    return create


# --- torch_geometric ----------------------------------------------------------------------------------------------------


def _edges() -> Tensor:
    """Return a connected graph, int64[2, EDGES]: a ring of NODES nodes and random edges."""
    rng = np.random.default_rng(7)
    ring = np.stack([np.arange(NODES), (np.arange(NODES) + 1) % NODES])
    return torch.from_numpy(np.concatenate([ring, rng.integers(0, NODES, (2, EDGES - NODES))], 1))


class _Typed(nn.Module):
    """An ``HGTConv`` for nodes and edges of one type, with tensors in place of dictionaries."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network
        self.register_buffer("edges", _edges())

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.network({"n": x}, {("n", "to", "n"): self.edges})["n"]
        return result


def _geometric(name: str) -> Callable[[], nn.Module]:
    def create() -> nn.Module:
        g = import_module("torch_geometric.nn")
        perceptron = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))
        networks: dict[str, Callable[[], nn.Module]] = {
            "NeuralFingerprint": lambda: g.NeuralFingerprint(16, 32, 8, 2),
            "EdgeConv": lambda: g.EdgeConv(perceptron),
            "TransformerConv": lambda: g.TransformerConv(16, 8, heads=4),
            "HGTConv": lambda: _Typed(g.HGTConv(16, 32, (["n"], [("n", "to", "n")]), heads=4)),
            "TAGConv": lambda: g.TAGConv(16, 32),
            "WLConv": lambda: g.WLConv(),
            "GIN": lambda: g.GIN(16, 32, 2, 8),
            "GMMConv": lambda: g.GMMConv(16, 32, dim=2, kernel_size=3),
            "FiLMConv": lambda: g.FiLMConv(16, 32),
            "GAE": lambda: g.GAE(g.GCN(16, 32, 2, 8)),
        }
        network = networks[name]().eval()
        if name == "HGTConv":
            return network
        constants: dict[str, Any] = {"edge_index": _edges()}
        if name == "GMMConv":
            constants["edge_attr"] = torch.from_numpy(np.random.default_rng(8).random((EDGES, 2), np.float32))
        return Call(network, ("",), **constants)

    return create


# --- ultralytics --------------------------------------------------------------------------------------------------------


def _ultralytics(name: str) -> Callable[[], nn.Module]:
    def create() -> nn.Module:
        os.environ.setdefault("YOLO_OFFLINE", "true")
        torchvision_models()
        tasks = import_module("ultralytics.nn.tasks")
        description = name if name[-1] in "nsmlx" or name.startswith(("rtdetr", "yolov9")) else _with_size(name)
        config = tasks.yaml_model_load(f"{description}.yaml")
        kind = tasks.guess_model_task(config)
        classes = {"detect": "DetectionModel", "classify": "ClassificationModel", "segment": "SegmentationModel",
                   "pose": "PoseModel", "obb": "OBBModel", "depth": "DepthModel", "semantic": "SemanticModel"}  # fmt: skip
        network_class = tasks.RTDETRDetectionModel if "rtdetr" in name else getattr(tasks, classes[kind])
        if name.startswith("yoloe"):
            network_class = tasks.YOLOESegModel if "seg" in name else tasks.YOLOEModel
        network: nn.Module = network_class(config, ch=3, verbose=False).eval()
        for module in network.modules():
            if hasattr(module, "export"):
                module.export = True  # type: ignore[assignment]  # the heads' own switch for exporters: one tensor in place of training outputs
        return Call(network)

    return create


def _with_size(name: str) -> str:
    """Return the name of the nano variant of a description, e.g. ``yolo12n-seg`` for ``yolo12-seg``."""
    parts = name.split("-")
    where = 1 if name.startswith("yoloe") else 0
    parts[where] += "n"
    return "-".join(parts)


# --- transformers -------------------------------------------------------------------------------------------------------

_SMALL = {"vocab_size": 120, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
          "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16}


def _transformers(
    name: str, config: dict[str, Any], names: Sequence[str] = ("input_ids",), **extra: Any
) -> Callable[[], nn.Module]:
    def create() -> nn.Module:
        torchvision_models()
        transformers = import_module("transformers")
        cls = getattr(transformers, name)
        configuration = cls.config_class(**config)
        network = cls(configuration).eval()
        for module in network.modules():
            if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
                nn.init.xavier_uniform_(module.weight, gain=1.2)
        return Call(network, names, **extra)

    return create


_GEMMA_TEXT = _SMALL | {"num_hidden_layers": 2, "head_dim": 16, "sliding_window": 16,
                        "layer_types": ["sliding_attention", "full_attention"], "num_experts": 4, "top_k_experts": 2,
                        "moe_intermediate_size": 32}  # fmt: skip
_TRANSFORMERS: dict[str, tuple[Callable[[], nn.Module], Sampler]] = {
    "xlm": (_transformers("XLMModel", {"vocab_size": 120, "emb_dim": 64, "n_layers": 2, "n_heads": 4,
                                       "max_position_embeddings": 64}), _tokens(120)),
    "sapiens2": (
        _transformers("Sapiens2Model", {"patch_size": 16, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                                        "num_attention_heads": 4, "image_size": SIDE, "num_register_tokens": 2,
                                        "num_key_value_heads_per_layer": [4, 2]}, ("pixel_values",)), _picture),
    "diffusion_gemma": (
        _transformers(
            "DiffusionGemmaModel",
            {"text_config": _GEMMA_TEXT, "canvas_length": 8, "image_token_id": 119, "boi_token_id": 118, "eoi_token_id": 117,
             "vision_config": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
                               "num_key_value_heads": 2, "head_dim": 16}},
            ("input_ids", "decoder_input_ids"),
        ),
        lambda rng: (*_tokens(110)(rng), *_tokens(110, 8)(rng)),
    ),
    "udop": (
        _transformers("UdopModel", {"vocab_size": 120, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2,
                                    "num_decoder_layers": 2, "num_heads": 4, "image_size": SIDE, "max_2d_position_embeddings": 64},
                      ("input_ids", "pixel_values", "decoder_input_ids"), bbox=torch.full((1, 24, 4), 0.5),
                      attention_mask=torch.ones(1, 24, dtype=torch.long), use_cache=False),
        lambda rng: (*_tokens(110)(rng), *_picture(rng), *_tokens(110, 8)(rng)),
    ),
    "solar_open": (
        _transformers("SolarOpenModel", _SMALL | {"num_hidden_layers": 2, "head_dim": 16, "moe_intermediate_size": 32,
                                                  "num_experts_per_tok": 2, "n_routed_experts": 4}, use_cache=False), _tokens(120)),
    "plbart": (
        _transformers("PLBartModel", {"vocab_size": 120, "max_position_embeddings": 64, "encoder_layers": 2, "decoder_layers": 2,
                                      "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "encoder_attention_heads": 4,
                                      "decoder_attention_heads": 4, "d_model": 64},
                      ("input_ids", "decoder_input_ids"), use_cache=False), _tokens(120, count=2)),
    "d_fine": (
        _transformers("DFineModel", {
            "backbone_config": {
                "model_type": "hgnet_v2", "depths": [1, 1, 1, 1], "embedding_size": 16, "hidden_sizes": [16, 32, 48, 64],
                "stem_channels": [3, 8, 16], "stage_in_channels": [16, 16, 32, 48], "stage_mid_channels": [8, 8, 16, 16],
                "stage_out_channels": [16, 32, 48, 64], "stage_num_blocks": [1, 1, 1, 1], "stage_numb_of_layers": [2, 2, 2, 2],
                "out_features": ["stage2", "stage3", "stage4"],
            },
            "encoder_hidden_dim": 32, "encoder_in_channels": [32, 48, 64], "encoder_ffn_dim": 64, "encoder_attention_heads": 4,
            "d_model": 32, "num_queries": 20, "decoder_in_channels": [32, 32, 32], "decoder_ffn_dim": 64, "decoder_layers": 2,
            "decoder_attention_heads": 4, "num_denoising": 0, "anchor_image_size": [SIDE, SIDE],
            "lqe_hidden_dim": 16, "head_dim": 8,
        }, ("pixel_values",)), _picture),
    "vibevoice_acoustic_tokenizer_decoder": (
        _transformers("VibeVoiceAcousticTokenizerDecoderModel",
                      {"hidden_size": 16, "num_filters": 8, "downsampling_ratios": [2, 4], "depths": [1, 1, 1],
                       "layer_scale_init_value": 0.5}, ("hidden_states",)), _noise((1, 16, 16))),
    "longcat_flash": (
        _transformers("LongcatFlashModel", {k: v for k, v in _SMALL.items() if k != "intermediate_size"} | _LATENT | {
            "num_layers": 1, "num_key_value_heads": 4, "ffn_hidden_size": 128, "head_dim": 16, "qk_head_dim": 32, "moe_topk": 2,
            "n_routed_experts": 4, "zero_expert_num": 2, "expert_ffn_hidden_size": 32}, use_cache=False), _tokens(120)),
    "axk2": (
        _transformers("AXK2Model", _SMALL | _LATENT | {
            "num_key_value_heads": 4, "num_hidden_layers": 2, "moe_intermediate_size": 32, "n_routed_experts": 4,
            "num_experts_per_tok": 2, "mlp_layer_types": ["dense", "sparse"], "index_topk": 8, "index_head_dim": 32,
            "index_n_heads": 4, "layer_types": ["indexed_attention"] * 2, "head_dim": 16, "qk_head_dim": 32},
            use_cache=False), _tokens(120)),
}  # fmt: skip

_CREATE: dict[str, Callable[[str], tuple[Callable[[], nn.Module], Sampler]]] = {
    "diffusers": _DIFFUSERS.__getitem__,
    "smp": lambda name: (_segmentation(name), _picture),
    "pyg": lambda name: (_geometric(name), _one_hot if name == "WLConv" else _noise((NODES, 16))),
    "ultralytics": lambda name: (_ultralytics(name), _picture),
    "transformers": _TRANSFORMERS.__getitem__,
}
_SOURCES = {
    "diffusers": "diffusers 0.42.1",
    "smp": "segmentation-models-pytorch 0.6.0",
    "pyg": "torch_geometric 2.8.1",
    "ultralytics": "ultralytics 8.4.190",
    "transformers": "transformers 5.23.0",
}
CASES = [
    ModelCase(f"drawn/{library}/{name}", *_CREATE[library](name), _SOURCES[library])
    for library, names in DRAWN.items()
    for name in names
]
