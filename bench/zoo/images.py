"""Image networks of timm and torchvision with random weights and small images."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench import signals
from bench.models.case import Inputs, ModelCase
from bench.models.vision import torchvision_model
from ethorch.models.zoos import torchvision_models

#: Names in timm, and the side of the image. Networks with a fixed grid of tokens also need ``img_size``.
_TIMM: dict[str, int] = {
    # plain and separable convolutions
    "lcnet_050": 64, "mobilenetv3_small_050": 64, "mobilenetv4_conv_small": 64, "efficientnet_lite0": 64, "tinynet_e": 64,
    "mixnet_s": 64, "ghostnet_050": 64, "mnasnet_small": 64, "repvgg_a0": 64, "mobileone_s0": 64, "resnet26d": 64,
    "regnetx_002": 64, "regnety_002": 64, "seresnext26t_32x4d": 64, "res2net50_26w_4s": 64, "skresnet18": 64, "dla34": 64,
    "hrnet_w18_small": 64, "ese_vovnet19b_dw": 64, "cspdarknet53": 64, "selecsls42": 64, "rexnet_100": 64, "nf_resnet26": 64,
    "hgnetv2_b0": 64, "starnet_s1": 64, "fasternet_t0": 64, "repvit_m0_9": 64, "convnext_atto": 64, "convnextv2_atto": 64,
    "inception_next_atto": 64, "mambaout_femto": 64, "poolformer_s12": 64, "ghostnetv2_100": 64, "ghostnetv3_050": 64,
    # attention
    "vit_tiny_patch16_224": 64, "mobilevit_xxs": 64, "mobilevitv2_050": 64, "edgenext_xx_small": 64, "efficientvit_m0": 128,
    "efficientvit_b0": 64, "levit_128s": 224, "fastvit_t8": 64, "pvt_v2_b0": 64, "swin_tiny_patch4_window7_224": 56,
    "shvit_s1": 128, "efficientformerv2_s0": 224, "botnet26t_256": 256, "mixer_s32_224": 224, "resmlp_12_224": 224,
    "xcit_nano_12_p16_224": 64, "tiny_vit_5m_224": 224, "swiftformer_xs": 64,
    "coat_tiny": 64, "convit_tiny": 64,
    # further families of both kinds
    "crossvit_9_240": 240, "tnt_s_patch16_224": 64, "visformer_tiny": 64, "davit_tiny": 64, "hiera_tiny_224": 224,
    "halonet26t": 256,
    "efficientformer_l1": 224, "coat_lite_tiny": 64, "sequencer2d_s": 64, "cait_xxs24_224": 64, "beit_base_patch16_224": 64,
    "eva02_tiny_patch14_224": 56, "coatnet_pico_rw_224": 224, "maxvit_rmlp_pico_rw_256": 64, "twins_pcpvt_small": 64,
    "twins_svt_small": 64, "lambda_resnet26t": 128, "sebotnet33ts_256": 256, "repghostnet_050": 64, "semnasnet_050": 64,
    "dpn48b": 64,
    "xception41": 64, "densenet121": 64, "inception_v3": 96, "resnest14d": 64, "cs3darknet_focus_s": 64, "rdnet_tiny": 64,
    "mobilenet_edgetpu_v2_s": 64, "regnetz_005": 64, "eca_nfnet_l0": 64, "swinv2_cr_tiny_ns_224": 64, "swinv2_tiny_window8_256": 64,
    # later variants
    "test_vit3": 160, "test_byobnet": 64, "test_efficientnet_gn": 64, "test_efficientnet_ln": 64, "test_efficientnet_evos": 64,
    "test_convnext3": 64, "test_mambaout": 64, "test_nfnet": 64, "test_resnet": 64, "csatv2": 512, "tresnet_m": 64,
    "vit_pwee_patch16_reg1_gap_256": 64, "vit_dpwee_patch16_reg1_gap_256": 64, "mobilenetv4_hybrid_medium": 64,
    "pvt_v2_b2_li": 64, "hieradet_small": 64, "hiera_small_abswin_256": 64, "levit_conv_128s": 224, "dm_nfnet_f0": 64,
    "nfnet_l0": 64, "regnetz_b16": 64, "haloregnetz_b": 224, "hardcorenas_a": 64, "fbnetc_100": 64, "fbnetv3_b": 64,
    "tf_mixnet_s": 65, "resnetv2_18": 64, "resnetblur18": 64, "ecaresnetlight": 64, "legacy_seresnet18": 64, "resnetrs50": 64,
    "gcresnext26ts": 64, "dpn68": 64, "dla60_res2next": 64, "selecsls60b": 64, "cspresnext50": 64, "darknetaa53": 64,
    "vovnet39a": 64, "efficientvit_l1": 64, "fastvit_mci0": 64, "fastvit_sa12": 64, "mambaout_small_rw": 64,
}  # fmt: skip
_WITH_IMAGE_SIZE = {
    "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "coat_tiny", "convit_tiny", "tnt_s_patch16_224", "visformer_tiny",
    "coat_lite_tiny", "sequencer2d_s", "cait_xxs24_224", "beit_base_patch16_224", "eva02_tiny_patch14_224",
    "maxvit_rmlp_pico_rw_256",
    "twins_pcpvt_small", "twins_svt_small", "swinv2_cr_tiny_ns_224", "swinv2_tiny_window8_256",
    "vit_pwee_patch16_reg1_gap_256", "vit_dpwee_patch16_reg1_gap_256", "hiera_small_abswin_256",
}  # fmt: skip
_SETTINGS: dict[str, dict[str, Any]] = {
    "swin_tiny_patch4_window7_224": {"depths": (1, 1, 2, 1)},
    "vit_tiny_patch16_224": {"depth": 3},
    "xcit_nano_12_p16_224": {"depth": 3},
    "coat_tiny": {"serial_depths": (1, 1, 1, 1), "parallel_depth": 1},
    "convit_tiny": {"depth": 2, "local_up_to_layer": 1},
    "crossvit_9_240": {"depth": ((1, 1, 0),) * 2, "embed_dim": (64, 128), "num_heads": (2, 2), "mlp_ratio": (3, 3, 1)},
    "tnt_s_patch16_224": {"depth": 2},
    "davit_tiny": {"depths": (1, 1, 1, 1), "embed_dims": (32, 64, 96, 128), "num_heads": (1, 2, 3, 4)},
    "hiera_tiny_224": {"embed_dim": 32, "stages": (1, 1, 1, 1)},
    "sequencer2d_s": {"layers": (1, 1, 1, 1)},
    "cait_xxs24_224": {"depth": 2},
    "beit_base_patch16_224": {"depth": 2, "embed_dim": 96, "num_heads": 3},
    "eva02_tiny_patch14_224": {"depth": 2},
    "twins_pcpvt_small": {"depths": (1, 1, 1, 1)},
    "twins_svt_small": {"depths": (1, 1, 2, 1)},
    "swinv2_cr_tiny_ns_224": {"window_size": 2, "depths": (1, 1, 1, 1)},
    "swinv2_tiny_window8_256": {"depths": (1, 1, 1, 1)},
    "tresnet_m": {"layers": [1, 1, 2, 1]},
    "vit_pwee_patch16_reg1_gap_256": {"depth": 2},
    "vit_dpwee_patch16_reg1_gap_256": {"depth": 2},
    "pvt_v2_b2_li": {"depths": (1, 1, 1, 1)},
    "hieradet_small": {"stages": (1, 1, 1, 1), "embed_dim": 32},
    "hiera_small_abswin_256": {"embed_dim": 32, "stages": (1, 1, 1, 1)},
    "resnetrs50": {"layers": [1, 1, 1, 1]},
    "dpn68": {"k_sec": (1, 1, 1, 1)},
    "mambaout_small_rw": {"depths": (1, 1, 1, 1)},
}
#: A scale of a residual branch below this is the beginning of a training, at which the branch adds nothing.
_NOTHING = 1e-2
_TORCHVISION = ("mobilenet_v3_large", "googlenet", "mnasnet0_5", "regnet_y_400mf", "shufflenet_v2_x0_5", "efficientnet_v2_s")


def picture(side: int) -> Callable[[np.random.Generator], Inputs]:
    return lambda rng: (torch.from_numpy(signals.imagenet_image(rng, side, side))[None],)


def _timm(name: str, side: int) -> Callable[[], nn.Module]:
    def create() -> nn.Module:
        torchvision_models()  # timm imports torchvision, which may lack its compiled half
        import timm

        settings = {"num_classes": 10, **_SETTINGS.get(name, {})}
        if name in _WITH_IMAGE_SIZE:
            settings["img_size"] = side
        model: nn.Module = timm.create_model(name, **settings)
        begin(model)
        return model

    return create


def begin(model: nn.Module) -> None:
    """Set zero heads and residual scales to other values, so that outputs depend on the input."""
    for name, parameter in model.named_parameters():
        largest = float(parameter.detach().abs().max())
        if parameter.dim() > 1 and largest == 0 and name.endswith("weight"):
            nn.init.xavier_uniform_(parameter)
        elif parameter.dim() == 1 and "gamma" in name and 0 < largest < _NOTHING:
            nn.init.constant_(parameter, 0.3)


class Segmentation(nn.Module):
    """A torchvision segmentation network that returns the output "out"."""

    def __init__(self, name: str):
        super().__init__()
        torchvision_models()
        from torchvision.models import segmentation

        self.model = getattr(segmentation, name)(weights=None, weights_backbone=None, num_classes=4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x)["out"]
        return out


class Video(nn.Module):
    """A torchvision video network."""

    def __init__(self, name: str):
        super().__init__()
        torchvision_models()
        from torchvision.models import video

        self.model = getattr(video, name)(weights=None, num_classes=4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x)
        return out


def _clip(rng: np.random.Generator) -> Inputs:
    picture = signals.imagenet_image(rng, 48, 48)
    frames = [np.roll(picture, shift, 2) for shift in range(4)]
    return (torch.from_numpy(np.stack(frames, 1))[None],)


CASES = (
    *(ModelCase(f"timm/{name}", _timm(name, side), picture(side), "timm") for name, side in _TIMM.items()),
    *(ModelCase(f"torchvision/{name}", torchvision_model(name), picture(96), "torchvision") for name in _TORCHVISION),
    *(
        ModelCase(f"torchvision/{name}", partial(Segmentation, name), picture(64), "torchvision", 4)
        for name in ("lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large")
    ),
    ModelCase("torchvision/r3d_18", lambda: Video("r3d_18"), _clip, "torchvision", 4),
)
