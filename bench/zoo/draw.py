"""Draw fifty public networks with a fixed seed: ``python -m bench.zoo.draw`` prints ``DRAWN`` from the installed class lists.

The draw was committed before the first of these networks was compiled. Networks that fail stay in the table.
Versions: diffusers 0.42.1, segmentation-models-pytorch 0.6.0, torch_geometric 2.8.1, ultralytics 8.4.190, transformers 5.23.0.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

SEED = 20261124
PER_LIBRARY = 10

#: Drawn names of each library.
DRAWN: dict[str, list[str]] = {
    "diffusers": [
        "AutoencoderKLWan",
        "GlmImageTransformer2DModel",
        "JoyImageEditPlusTransformer3DModel",
        "AutoencoderOobleck",
        "HunyuanVideoFramepackTransformer3DModel",
        "ChromaTransformer2DModel",
        "LTXVideoTransformer3DModel",
        "MotionAdapter",
        "AnyFlowFARTransformer3DModel",
        "RFD4ProteinaAutoencoder",
    ],
    "smp": [
        "unetplusplus/resnext101_32x32d",
        "unet/efficientnet-b1",
        "pspnet/timm-efficientnet-b3",
        "unetplusplus/timm-efficientnet-b8",
        "fpn/resnext101_32x16d",
        "manet/vgg13_bn",
        "pspnet/resnet34",
        "fpn/dpn131",
        "unetplusplus/dpn131",
        "manet/timm-tf_efficientnet_lite0",
    ],
    "pyg": [
        "NeuralFingerprint",
        "EdgeConv",
        "TransformerConv",
        "HGTConv",
        "TAGConv",
        "WLConv",
        "GIN",
        "GMMConv",
        "FiLMConv",
        "GAE",
    ],
    "ultralytics": [
        "yolov9s",
        "yolov5-p6",
        "yolov8-cls",
        "yolov8-pose-p6",
        "yolo12-pose",
        "yolo26-depth",
        "yoloe-26-seg",
        "rtdetr-resnet101",
        "yolo12-seg",
        "yolo12-cls",
    ],
    "transformers": [
        "xlm",
        "sapiens2",
        "diffusion_gemma",
        "udop",
        "solar_open",
        "plbart",
        "d_fine",
        "vibevoice_acoustic_tokenizer_decoder",
        "longcat_flash",
        "axk2",
    ],
}


def _class_names(module: Any, names: Sequence[str], prefix: str) -> list[str]:
    """Return the names in ``module`` of torch modules that are defined below the package ``prefix``."""
    from torch import nn

    classes = {name: getattr(module, name, None) for name in names}
    return sorted(
        name
        for name, cls in classes.items()
        if inspect.isclass(cls) and issubclass(cls, nn.Module) and cls.__module__.startswith(prefix)
    )


def list_diffusers() -> list[str]:
    """Return the names of all model classes of diffusers."""
    module = import_module("diffusers")
    return [name for name in _class_names(module, dir(module), "diffusers.models") if name != "ModelMixin"]


def list_segmentation() -> list[str]:
    """Return all pairs of architecture and encoder of segmentation-models-pytorch, as ``architecture/encoder``."""
    module = import_module("segmentation_models_pytorch")
    return sorted(f"{a}/{e}" for a in module.MODEL_ARCHITECTURES_MAPPING for e in module.encoders.encoders)


def list_geometric() -> list[str]:
    """Return the names of all convolutions and models of torch_geometric."""
    module = import_module("torch_geometric.nn")
    return _class_names(module, [*module.conv.__all__, *module.models.__all__], "torch_geometric.nn")


def list_ultralytics() -> list[str]:
    """Return the names of all model descriptions of ultralytics."""
    root = Path(str(import_module("ultralytics").__file__)).parent / "cfg" / "models"
    return sorted(path.stem for path in root.rglob("*.yaml"))


def list_transformers() -> list[str]:
    """Return all model types of transformers that have a base model."""
    return sorted(import_module("transformers.models.auto.modeling_auto").MODEL_MAPPING_NAMES)


LISTS: dict[str, Callable[[], list[str]]] = {
    "diffusers": list_diffusers,
    "smp": list_segmentation,
    "pyg": list_geometric,
    "ultralytics": list_ultralytics,
    "transformers": list_transformers,
}


def draw() -> dict[str, list[str]]:
    """Return the drawn names of each library, in the order in which they were drawn."""
    return {library: random.Random(f"{SEED} {library}").sample(names(), PER_LIBRARY) for library, names in LISTS.items()}


if __name__ == "__main__":
    from ethorch.models.zoos import torchvision_models

    torchvision_models()
    for library, names in draw().items():
        print(f"    {library!r}: {names!r},")
