"""Small networks built from timm's classes, for names whose registered configurations cannot be made small."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from bench.models.case import ModelCase
from bench.zoo.images import begin, picture
from ethorch.models.zoos import torchvision_models

#: Name: the module of ``timm.models``, the class, its settings, the side of the picture. A setting ``"module:name"`` is looked up.
_NETWORKS: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "gcvit": (
        "gcvit", "GlobalContextVit",
        {"img_size": 64, "depths": (1, 1, 2, 1), "num_heads": (1, 2, 4, 8), "embed_dim": 32}, 64,
    ),
    "pit": ("pit", "PoolingVisionTransformer", {"img_size": 64, "base_dims": [16] * 3, "depth": [1, 2, 1]}, 64),
    "volo": (
        "volo", "VOLO",
        {"img_size": 64, "layers": (1, 1, 1, 1), "embed_dims": (32, 64, 64, 64), "num_heads": (2, 4, 4, 4), "stem_hidden_dim": 16},
        64,
    ),
    "nextvit": ("nextvit", "NextViT", {"in_chans": 3, "depths": (1, 1, 5, 1), "head_dim": 16, "stem_chs": (16, 16, 16)}, 64),
    "mvitv2": (
        "mvitv2", "MultiScaleVit",
        {
            "img_size": 64,
            "cfg": ("timm.models.mvitv2:MultiScaleVitCfg", {"depths": (1, 1, 2, 1), "embed_dim": 24, "num_heads": (1, 2, 4, 8)}),
        },
        64,
    ),
    "convmixer": ("convmixer", "ConvMixer", {"dim": 64, "depth": 3, "kernel_size": 7, "patch_size": 7}, 56),
    "nest": ("nest", "Nest", {"img_size": 64, "embed_dims": (32, 64, 96), "num_heads": (1, 2, 3), "depths": (1, 1, 2)}, 64),
    "gmlp": (
        "mlp_mixer", "MlpMixer",
        {
            "img_size": 64, "patch_size": 16, "num_blocks": 3, "embed_dim": 64, "mlp_ratio": 6,
            "block_layer": "timm.models.mlp_mixer:SpatialGatingBlock", "mlp_layer": "timm.layers:GatedMlp",
        },
        64,
    ),
    "gmixer": (
        "mlp_mixer", "MlpMixer",
        {
            "img_size": 64, "patch_size": 16, "num_blocks": 3, "embed_dim": 64, "mlp_ratio": (1.0, 4.0),
            "mlp_layer": "timm.layers:GluMlp", "act_layer": "torch.nn:SiLU",
        },
        64,
    ),
    "bat_resnext": (
        "byobnet", "ByobNet",
        {"cfg": ("timm.models.byobnet:ByoModelCfg", {
            "blocks": [
                ("timm.models.byobnet:ByoBlockCfg", {"type": "bottle", "d": 1, "c": 64, "s": 1, "gs": 16, "br": 0.5}),
                ("timm.models.byobnet:ByoBlockCfg", {"type": "bottle", "d": 1, "c": 128, "s": 2, "gs": 16, "br": 0.5}),
            ],
            "stem_chs": 32, "stem_type": "tiered", "stem_pool": "maxpool", "act_layer": "silu", "attn_layer": "bat",
            "attn_kwargs": {"block_size": 4},
        })},
        64,
    ),
    "convformer": (
        "metaformer", "MetaFormer",
        {
            "depths": (1, 1, 1, 1), "dims": (16, 32, 64, 96), "token_mixers": "timm.models.metaformer:SepConv",
            "norm_layers": "timm.models.metaformer:LayerNorm2dNoBias",
        },
        64,
    ),
    "caformer": (
        "metaformer", "MetaFormer",
        {
            "depths": (1, 1, 1, 1), "dims": (16, 32, 64, 96),
            "token_mixers": ["timm.models.metaformer:SepConv"] * 2 + ["timm.models.metaformer:Attention"] * 2,
            "norm_layers": ["timm.models.metaformer:LayerNorm2dNoBias"] * 2 + ["timm.models.metaformer:LayerNormNoBias"] * 2,
        },
        64,
    ),
    "poolformerv2": (
        "metaformer", "MetaFormer",
        {"depths": (1, 1, 1, 1), "dims": (16, 32, 64, 96), "norm_layers": "timm.models.metaformer:GroupNorm1NoBias"}, 64,
    ),
    "samvit": (
        "vision_transformer_sam", "VisionTransformerSAM",
        {
            "img_size": 64, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 4, "use_rel_pos": True, "window_size": 3,
            "global_attn_indexes": (1,), "neck_chans": 32, "use_abs_pos": True,
        },
        64,
    ),
    "vit_relpos": (
        "vision_transformer_relpos", "VisionTransformerRelPos",
        {"img_size": 64, "embed_dim": 64, "depth": 2, "num_heads": 4, "rel_pos_type": "mlp", "rel_pos_dim": 64}, 64,
    ),
    "nasnet": ("nasnet", "NASNetALarge", {"stem_size": 16, "channel_multiplier": 2, "num_features": 384}, 64),
}  # fmt: skip


def _look_up(setting: Any) -> Any:
    """Resolve ``"module:name"`` to the object, and ``("module:Class", settings)`` to an instance, also within lists."""
    if isinstance(setting, str) and ":" in setting:
        module, _, name = setting.partition(":")
        return getattr(import_module(module), name)
    if isinstance(setting, tuple) and len(setting) == 2 and isinstance(setting[1], dict):
        return _look_up(setting[0])(**{key: _look_up(value) for key, value in setting[1].items()})
    if isinstance(setting, list):
        return [_look_up(value) for value in setting]
    return setting


def _network(module: str, kind: str, settings: dict[str, Any]) -> Callable[[], nn.Module]:
    def create() -> nn.Module:
        torchvision_models()  # timm imports torchvision, which may lack its compiled half
        found = getattr(import_module(f"timm.models.{module}"), kind)
        model: nn.Module = found(num_classes=10, **{key: _look_up(value) for key, value in settings.items()})
        begin(model)
        return model

    return create


CASES = tuple(
    ModelCase(f"timm/{name}", _network(module, kind, settings), picture(side), "timm")
    for name, (module, kind, settings, side) in _NETWORKS.items()
)
