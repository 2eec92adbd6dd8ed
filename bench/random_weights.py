"""Replace downloaded weights by random weights, for tests of other projects that use pretrained networks."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

from ethorch.models.zoos import torchvision_models


class _NoWeights(dict[str, torch.Tensor]):
    """A state that leaves a network's random weights unchanged."""


class _Download(str):
    """The name of a file that was not downloaded."""


def use_random_weights() -> None:
    """Make torchvision, timm, transformers and tests that download a state dict use random initial weights in this process."""
    _patch_torchvision()
    _patch_torchaudio()
    _patch_timm()
    _patch_transformers()
    _patch_hugging_face_hub()


def _patch_torchvision() -> None:
    torchvision_models()
    from torchvision.models._api import WeightsEnum

    def no_weights(*_: Any, **__: Any) -> _NoWeights:
        return _NoWeights()

    load = torch.nn.Module.load_state_dict

    def load_state_dict(self: torch.nn.Module, state: Any, *arguments: Any, **settings: Any) -> Any:
        return None if isinstance(state, _NoWeights) else load(self, state, *arguments, **settings)

    WeightsEnum.get_state_dict = no_weights
    torch.nn.Module.load_state_dict = load_state_dict  # type: ignore[method-assign,assignment]


def _patch_torchaudio() -> None:
    """Import torchaudio without its compiled operators if they cannot be loaded. Its networks do not use these operators."""
    if find_spec("torchaudio") is None:
        return
    try:
        import torchaudio  # noqa: F401
    except (ImportError, OSError, RuntimeError):
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchaudio"]:
            del sys.modules[name]
        extension = ModuleType("torchaudio._extension")
        extension.__dict__.update(
            _IS_TORCHAUDIO_EXT_AVAILABLE=False,
            _IS_ALIGN_AVAILABLE=False,
            _check_cuda_version=lambda: None,
            fail_if_no_align=lambda function: function,
        )
        sys.modules["torchaudio._extension"] = extension


def _patch_timm() -> None:
    try:
        import timm.models._builder as builder
    except ImportError:
        return
    builder.load_pretrained = lambda *_, **__: None


def _patch_hugging_face_hub() -> None:
    """Replace downloads by file names whose state dict leaves a network's random weights unchanged."""
    try:
        import huggingface_hub
    except ImportError:
        return
    load = torch.load

    def load_nothing(file: Any, *arguments: Any, **settings: Any) -> Any:
        return _NoWeights() if isinstance(file, _Download) else load(file, *arguments, **settings)

    huggingface_hub.hf_hub_download = lambda *_, filename="", **__: _Download(filename)  # type: ignore[assignment]
    torch.load = load_nothing  # type: ignore[assignment]


#: Settings of Hugging Face models that the Arm backend's tests name, for their published sizes.
_T5_SMALL = {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "decoder_start_token_id": 0}


def _patch_transformers() -> None:
    try:
        import transformers
    except ImportError:
        return

    class Tokenizer:
        """A tokenizer whose ids depend on the words of a prompt, like T5's tokenizer."""

        pad_token_id = 0

        def __call__(self, prompt: str, **_: Any) -> Any:
            ids = torch.tensor([[3 + sum(map(ord, word)) % 32000 for word in prompt.split()] + [1]])
            return transformers.BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    def from_pretrained(cls: Any, name: str, *_: Any, **__: Any) -> Any:
        if name != "google-t5/t5-small":
            raise OSError(f"{name} has no settings in bench/random_weights.py")
        return cls(transformers.T5Config(**_T5_SMALL)).eval()

    transformers.PreTrainedModel.from_pretrained = classmethod(from_pretrained)
    transformers.AutoTokenizer.from_pretrained = lambda *_, **__: Tokenizer()
