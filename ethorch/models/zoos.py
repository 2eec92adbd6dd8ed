"""Load models by name. Networks from torchvision and timm have random weights. Loading weights cannot execute code."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ethorch.models.user_code import first_sentence
from ethorch.support.errors import EthorchError, FormatError, SpecError, unknown_name
from ethorch.support.text_files import read_json
from ethorch.support.wording import did_you_mean, shorten

logger = logging.getLogger(__name__)

#: Remedy for a damaged folder of a Hugging Face model.
SAVE_AGAIN = "Use a folder written by transformers' save_pretrained, or write the folder again."

#: (module, example inputs)
ModelAndInputs = tuple[nn.Module, Any]


def load(zoo: str, name: str) -> ModelAndInputs:
    """Load the model ``zoo:name`` in eval mode.

    - ``torchvision:mobilenet_v2``: A classification network with input float[1, 3, 224, 224].
    - ``timm:NAME``: A timm network with its default input size.
    - ``hf:FOLDER``: A folder written by ``save_pretrained``, with safetensors weights. The input is 32 token ids or an image of the
      configured size. Decoders are loaded without caches. See ``ethorch.language``.
    - ``executorch:NAME``: An ExecuTorch example model, e.g. mv2. Weights are downloaded if necessary. Without a network
      connection, examples based on torchvision or timm have random weights, with a warning.

    Raises:
        SpecError: The model does not exist.
        EthorchError: The package is not installed, or the folder does not contain a model.
    """
    return ZOOS[zoo](name)


def _load_torchvision(name: str) -> ModelAndInputs:
    models = torchvision_models()
    names = models.list_models(module=models)
    if name not in names:
        raise _unknown_model("torchvision", name, names)
    return models.get_model(name, weights=None).eval(), (create_example_input((1, 3, 224, 224)),)


def _load_timm(name: str) -> ModelAndInputs:
    torchvision_models()  # timm imports torchvision
    timm = _import_package("timm")
    if not timm.is_model(name):
        raise _unknown_model("timm", name, timm.list_models())
    model = timm.create_model(name, pretrained=False).eval()
    return model, (create_example_input((1, *model.default_cfg.get("input_size", (3, 224, 224)))),)


def _load_hugging_face(folder: str) -> ModelAndInputs:
    path = Path(folder) / "config.json"
    names = read_json(path, SAVE_AGAIN).get("architectures") or ["AutoModel"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FormatError(f"{path}: expected architectures to be a list of class names, got {shorten(names)}. {SAVE_AGAIN}")
    torchvision_models(needed=False)
    transformers = _import_package("transformers")
    kind = getattr(transformers, names[0], None)
    if kind is None:
        raise EthorchError(f"transformers does not support {names[0][:60]}, the architecture of {folder}. Upgrade transformers.")
    logging = getattr(getattr(transformers, "utils", None), "logging", None)
    if logging is not None:
        logging.disable_progress_bar()  # ethorch shows a progress bar
    try:
        model = kind.from_pretrained(folder, local_files_only=True, use_safetensors=True).eval()
    except Exception as error:  # transformers raises many types for inconsistent folders
        raise EthorchError(f"transformers cannot load {folder}: {first_sentence(error)} {SAVE_AGAIN}") from error
    model.config.use_cache = False
    if not getattr(model, "can_generate", bool)():  # decoders access the outputs of their layers by name
        model.config.return_dict = False
    return model, _create_inputs(model)


_POSITIONS = 32
_LARGEST_IMAGE = 8192


def create_example_input(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Create a deterministic example input.

    Floats of rank 4 are smooth images with values in about -2..2. Other floats are normally distributed. Integers are 1.
    """
    if not dtype.is_floating_point:
        return torch.ones(tuple(shape), dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    if len(shape) != 4:
        return torch.randn(tuple(shape), generator=generator).to(dtype)
    small = torch.randn(shape[0], shape[1], 8, 8, generator=generator)
    return nn.functional.interpolate(small, tuple(shape[2:]), mode="bilinear").to(dtype)


def _create_inputs(model: Any) -> Mapping[str, Any]:
    name, config = model.main_input_name, model.config
    if name == "input_ids":
        inputs = {"input_ids": torch.ones(1, _POSITIONS, dtype=torch.int64)}
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = torch.ones(1, _POSITIONS, dtype=torch.int64)
        return inputs
    if name == "pixel_values":
        size = getattr(config, "image_size", 224)
        shape = (1, getattr(config, "num_channels", 3), *(size if isinstance(size, (list, tuple)) else (size, size)))
        if len(shape) != 4 or not all(type(extent) is int and 0 < extent <= _LARGEST_IMAGE for extent in shape):
            raise FormatError(
                f"config.json of {type(model).__name__}: expected integers from 1 to {_LARGEST_IMAGE} as image_size and "
                f"num_channels, got {shorten(size)} and {shorten(shape[1])}. {SAVE_AGAIN}"
            )
        return {name: create_example_input(shape)}
    raise EthorchError(
        f"{type(model).__name__} requires the input {name}, for which ethorch has no example. Write a function that returns "
        "(model, example_inputs), and compile FILE.py:function."
    )


def _load_executorch(name: str) -> ModelAndInputs:
    if name in _SCRIPT_MODELS:
        return _SCRIPT_MODELS[name]()
    class_by_name = executorch_models()
    if name not in class_by_name:
        raise unknown_name("model of executorch.examples.models", name, (*class_by_name, *_SCRIPT_MODELS))
    torchvision_models(needed=False)
    file, kind = class_by_name[name]
    try:
        example = getattr(importlib.import_module(f"{_EXAMPLES}.{file}"), kind)()
        return example.get_eager_model().eval(), example.get_example_inputs()
    except ImportError as error:
        package = str(error.name or "").split(".")[0]
        if package in ("", "executorch"):
            raise EthorchError(f"executorch's example model {name} cannot be imported: {first_sentence(error)}") from error
        raise EthorchError(
            f"executorch's example model {name} requires the Python package {package}, which is missing or too old. "
            f"Run pip install {package}."
        ) from error
    except OSError as error:  # download errors, including URLError
        if name not in _ARCHITECTURES:
            raise EthorchError(
                f"executorch's example model {name} cannot be downloaded: {first_sentence(error)} Connect to the network, or write "
                "the model to a file FILE.py with ModelUnderTest and ModelInputs."
            ) from error
        logger.warning(
            "the weights of %s are random, because they cannot be downloaded. %s [model.random_weights]",
            name,
            first_sentence(error),
        )
        return load(*_ARCHITECTURES[name].split(":"))
    except Exception as error:  # errors in the code of the example
        raise EthorchError(f"executorch's example model {name} cannot be created: {first_sentence(error)}") from error


def executorch_models() -> Mapping[str, tuple[str, str]]:
    """Return (module, class) of each model in ``executorch.examples.models``, keyed by the name in ExecuTorch's scripts."""
    try:
        models: Mapping[str, tuple[str, str]] = importlib.import_module(_EXAMPLES).MODEL_NAME_TO_MODEL
    except ImportError:  # the wheel contains no examples
        return {}
    return models


def zoo_of(name: str) -> str:
    """Return the zoo of a model in ExecuTorch's Arm script: ``executorch`` if that zoo contains the name, else ``torchvision``."""
    return "executorch" if name in _SCRIPT_MODELS or name in executorch_models() else "torchvision"


_EXAMPLES = "executorch.examples.models"
#: Zoo names of examples that download their weights.
_ARCHITECTURES = {
    "mv2": "torchvision:mobilenet_v2",
    "mv3": "torchvision:mobilenet_v3_small",
    "ic3": "torchvision:inception_v3",
    "vit": "torchvision:vit_b_16",
    "resnet18": "torchvision:resnet18",
    "resnet50": "torchvision:resnet50",
    "ic4": "timm:inception_v4",
    "deit_tiny": "timm:deit_tiny_patch16_224",
}


class _Sums(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a + a, b + b, (a + a) + (b + b)


class _Chain(nn.Module):
    def forward(self, w: torch.Tensor, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return w - x, w - x + y, (w - x + y) * z


class _Twice(nn.Module):
    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return a + a


#: Models defined in the Arm script, with inputs of the same shapes and ranges.
_SCRIPT_MODELS: dict[str, Callable[[], ModelAndInputs]] = {
    "qadd": lambda: (_Twice(), (create_example_input((13, 3)),)),
    "qadd2": lambda: (_Sums(), (create_example_input((13, 7, 3)), create_example_input((13, 7, 3)))),
    "qops": lambda: (
        _Chain(),
        (
            create_example_input((3, 1, 2)),
            create_example_input((3, 5, 2)),
            create_example_input((3, 5, 1)) * -1e-6,
            create_example_input((3, 5, 2)) * 1000,
        ),
    ),
    "qlinear": lambda: (nn.Linear(61, 37).eval(), (create_example_input((8, 61)),)),
}

ZOOS: dict[str, Callable[[str], ModelAndInputs]] = {
    "torchvision": _load_torchvision,
    "timm": _load_timm,
    "hf": _load_hugging_face,
    "executorch": _load_executorch,
}


def _unknown_model(zoo: str, name: str, names: list[str]) -> SpecError:
    return SpecError(f"{zoo} has no model {name!r}.{did_you_mean(name, names)} {zoo}.list_models() lists all {len(names)} models.")


def _import_package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        raise EthorchError(f"the Python package {missing} is not installed. Run pip install {missing}.") from error


def torchvision_models(needed: bool = True) -> ModuleType:
    """Return ``torchvision.models``, even if torchvision's compiled extension does not match the installed torch.

    If the extension does not match, the operator ``torchvision::nms`` is missing and the import fails. Declaring the operator's
    schema is sufficient for networks that do not call the operator.

    Args:
        needed: Whether to raise an error, instead of returning an empty module, if torchvision is missing.
    """
    try:
        importlib.import_module("torchvision.models")
    except ModuleNotFoundError:
        return _import_package("torchvision") if needed else ModuleType("torchvision")
    except (RuntimeError, ImportError) as error:
        if "torchvision::nms" not in str(error) and "partially initialized" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        _declare_torchvision_operators()
    return importlib.import_module("torchvision.models")


_declared: list[torch.library.Library] = []  # references, because deleting a Library removes its operators


def _declare_torchvision_operators() -> None:
    if _declared:
        return
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)
