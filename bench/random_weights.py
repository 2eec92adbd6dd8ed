"""Random weights in place of downloads, for tests of other projects that name pretrained networks."""

from __future__ import annotations

from typing import Any

import torch

from ethorch.model_zoos import torchvision_models


class _NoWeights(dict[str, torch.Tensor]):
    """The state of a network that keeps its random weights."""


def use_random_weights() -> None:
    """Make torchvision, timm and transformers create pretrained networks with their random initial weights, in this process."""
    _patch_torchvision()
    _patch_timm()
    _patch_transformers()


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


def _patch_timm() -> None:
    try:
        import timm.models._builder as builder
    except ImportError:
        return
    builder.load_pretrained = lambda *_, **__: None


#: Settings of Hugging Face models that the Arm backend's tests name, for their published sizes.
_T5_SMALL = {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "decoder_start_token_id": 0}


def _patch_transformers() -> None:
    try:
        import transformers
    except ImportError:
        return

    class Tokenizer:
        """Token ids that depend on the words of a prompt, as T5's tokenizer returns them."""

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
