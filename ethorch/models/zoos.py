"""Models by the names that public libraries give them: torchvision, timm, and folders of Hugging Face models.

Nothing is downloaded: networks have random weights unless the user has a file of them. Nothing is unpickled.
"""

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
from ethorch.support.wording import did_you_mean, shown

logger = logging.getLogger(__name__)

#: The remedy for a damaged folder of a Hugging Face model.
SAVE_AGAIN = "Name a folder that save_pretrained of transformers wrote, or write it again."

#: What such a name gives: (module, example inputs).
Found = tuple[nn.Module, Any]


def load(zoo: str, name: str) -> Found:
    """The model ``zoo:name``, in eval mode.

    - ``torchvision:mobilenet_v2``: a classification network on float[1, 3, 224, 224].
    - ``timm:NAME``: any network of timm, on the input size that timm has for it.
    - ``hf:FOLDER``: a folder with ``config.json`` and weights (safetensors), as ``save_pretrained`` writes it; token ids of 32
      positions, or a picture of the size that the config names. A decoder has no caches here: ``ethorch.language`` gives it some.
    - ``executorch:NAME``: an example model of ExecuTorch, such as mv2, with its weights, which it may download; without a network
      those of torchvision and timm have random ones, with a warning.

    Raises:
        SpecError: there is no model of that name.
        EthorchError: the package is not installed, or the folder holds no model.
    """
    return ZOOS[zoo](name)


def _torchvision(name: str) -> Found:
    models = torchvision_models()
    known = models.list_models(module=models)
    if name not in known:
        raise _no_model("torchvision", name, known)
    return models.get_model(name, weights=None).eval(), (made_up((1, 3, 224, 224)),)


def _timm(name: str) -> Found:
    torchvision_models()  # timm imports it
    timm = _package("timm")
    if not timm.is_model(name):
        raise _no_model("timm", name, timm.list_models())
    model = timm.create_model(name, pretrained=False).eval()
    return model, (made_up((1, *model.default_cfg.get("input_size", (3, 224, 224)))),)


def _hugging_face(folder: str) -> Found:
    path = Path(folder) / "config.json"
    names = read_json(path, SAVE_AGAIN).get("architectures") or ["AutoModel"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FormatError(f"{path}: architectures is {shown(names)}; expected a list of names of classes. {SAVE_AGAIN}")
    torchvision_models(needed=False)
    transformers = _package("transformers")
    kind = getattr(transformers, names[0], None)
    if kind is None:
        raise EthorchError(f"{folder} is a {names[0][:60]}, which the installed transformers does not have.")
    logging = getattr(getattr(transformers, "utils", None), "logging", None)
    if logging is not None:
        logging.disable_progress_bar()  # ethorch draws its own
    try:
        model = kind.from_pretrained(folder, local_files_only=True, use_safetensors=True).eval()
    except Exception as error:  # whatever transformers raises for a folder that is not what its config says
        raise EthorchError(f"transformers cannot load {folder}: {first_sentence(error)} {SAVE_AGAIN}") from error
    model.config.use_cache = False
    if not getattr(model, "can_generate", bool)():  # decoders read the parts of what their own layers return by name
        model.config.return_dict = False
    return model, _inputs_of(model)


_POSITIONS = 32
_LARGEST_IMAGE = 8192


def made_up(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An example input where the user has none: of rank 4 a smooth picture of about -2..2, else normal values; integers are 1.

    The same one each time. Ranges that come from it fit no real input: calibrate.
    """
    if not dtype.is_floating_point:
        return torch.ones(tuple(shape), dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    if len(shape) != 4:
        return torch.randn(tuple(shape), generator=generator).to(dtype)
    small = torch.randn(shape[0], shape[1], 8, 8, generator=generator)
    return nn.functional.interpolate(small, tuple(shape[2:]), mode="bilinear").to(dtype)


def _inputs_of(model: Any) -> Mapping[str, Any]:
    """Example inputs by the name of the model's main input."""
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
                f"the config.json of {type(model).__name__} has image_size {shown(size)} and num_channels {shown(shape[1])}; "
                f"expected integers from 1 to {_LARGEST_IMAGE}. {SAVE_AGAIN}"
            )
        return {name: made_up(shape)}
    raise EthorchError(
        f"{type(model).__name__} takes {name}, of which ethorch knows no example: write a file with a function that returns "
        "(model, example_inputs), and name it as FILE.py:function."
    )


def _executorch(name: str) -> Found:
    if name in _OF_THE_SCRIPT:
        return _OF_THE_SCRIPT[name]()
    known = executorch_models()
    if name not in known:
        raise unknown_name("model of executorch.examples.models", name, (*known, *_OF_THE_SCRIPT))
    torchvision_models(needed=False)
    file, kind = known[name]
    try:
        example = getattr(importlib.import_module(f"{_EXAMPLES}.{file}"), kind)()
        return example.get_eager_model().eval(), example.get_example_inputs()
    except ImportError as error:
        package = str(error.name or "").split(".")[0]
        if package in ("", "executorch"):
            raise EthorchError(f"executorch's example model {name} cannot be imported: {first_sentence(error)}") from error
        raise EthorchError(
            f"executorch's example model {name} needs the Python package {package}, which is not installed or too old: "
            f"pip install {package}."
        ) from error
    except OSError as error:  # whatever cannot be downloaded; a URLError is one
        if name not in _ARCHITECTURES:
            raise EthorchError(
                f"executorch's example model {name} cannot be downloaded: {first_sentence(error)} Connect to the network, or write "
                "the model to a file FILE.py with ModelUnderTest and ModelInputs."
            ) from error
        logger.warning(
            "the weights of %s cannot be downloaded, so they are random: %s [model.random_weights]", name, first_sentence(error)
        )
        return load(*_ARCHITECTURES[name].split(":"))
    except Exception as error:  # the example's own code
        raise EthorchError(f"executorch's example model {name} cannot be created: {first_sentence(error)}") from error


def executorch_models() -> Mapping[str, tuple[str, str]]:
    """Return module and class of each model in ``executorch.examples.models``, by the name that ExecuTorch's scripts accept."""
    try:
        found: Mapping[str, tuple[str, str]] = importlib.import_module(_EXAMPLES).MODEL_NAME_TO_MODEL
    except ImportError:  # a wheel without examples
        return {}
    return found


def zoo_of(name: str) -> str:
    """Return the zoo of a model that ExecuTorch's Arm script accepts by its bare name, else torchvision."""
    return "executorch" if name in _OF_THE_SCRIPT or name in executorch_models() else "torchvision"


_EXAMPLES = "executorch.examples.models"
#: The zoo's names of examples whose weights are downloaded.
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


#: The four models that the Arm script itself has, with inputs of its shapes and ranges.
_OF_THE_SCRIPT: dict[str, Callable[[], Found]] = {
    "qadd": lambda: (_Twice(), (made_up((13, 3)),)),
    "qadd2": lambda: (_Sums(), (made_up((13, 7, 3)), made_up((13, 7, 3)))),
    "qops": lambda: (
        _Chain(),
        (made_up((3, 1, 2)), made_up((3, 5, 2)), made_up((3, 5, 1)) * -1e-6, made_up((3, 5, 2)) * 1000),
    ),
    "qlinear": lambda: (nn.Linear(61, 37).eval(), (made_up((8, 61)),)),
}

ZOOS: dict[str, Callable[[str], Found]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "hf": _hugging_face,
    "executorch": _executorch,
}


def _no_model(zoo: str, name: str, known: list[str]) -> SpecError:
    return SpecError(
        f"{zoo} has no model {name!r}.{did_you_mean(name, known)} It has {len(known)}; {zoo}.list_models() lists them."
    )


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        raise EthorchError(f"the Python package {missing} is not installed: pip install {missing}.") from error


def torchvision_models(needed: bool = True) -> ModuleType:
    """``torchvision.models``, also where torchvision's compiled extension does not fit the installed torch.

    Without that extension the import dies on the missing operator ``torchvision::nms``; declaring its schema is enough for
    every network that does not call it.

    Args:
        needed: where it is not installed, raise; otherwise return an empty module.
    """
    try:
        importlib.import_module("torchvision.models")
    except ModuleNotFoundError:
        return _package("torchvision") if needed else ModuleType("torchvision")
    except (RuntimeError, ImportError) as error:
        if "torchvision::nms" not in str(error) and "partially initialized" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        _declare_torchvision_operators()
    return importlib.import_module("torchvision.models")


_declared: list[torch.library.Library] = []  # a Library takes its operators with it when it is collected


def _declare_torchvision_operators() -> None:
    if _declared:
        return
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)
