"""Create language models from decoders: modules, transformers models, and folders that contain one."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ethorch.language.model import LanguageModel, _ExecuTorchLlama, _Plain
from ethorch.models.zoos import torchvision_models
from ethorch.support.errors import EthorchError

#: Calls of methods in order: what calibrates a program with state.
Session = list[tuple[str, tuple[Tensor, ...]]]

_EXECUTORCH_LLAMA = "executorch.examples.models.llama"


def language_model(
    model: nn.Module,
    *,
    context: int = 256,
    prompt: int | Sequence[int] = 32,
    vocabulary: int | None = None,
    source: Tensor | None = None,
    indices: torch.dtype = torch.int32,
    store_table_once: bool = False,
) -> LanguageModel:
    """A decoder that somebody has as ``LanguageModel``. It computes what the model computes, with the model's own code and weights.

    - A causal language model of Hugging Face's transformers, with caches of ``context`` tokens that are buffers here.
    - A sequence-to-sequence one (T5, Whisper): prefill reads the source too, and keeps the keys and values of cross-attention.
    - ExecuTorch's ``examples.models.llama`` transformer, built with ``use_kv_cache``; ``context`` is its own.
    - Any module with ``forward(tokens, positions)`` that keeps caches in its buffers and returns logits.

    Args:
        model: is used as it is, in eval mode; of a transformers model, which attention it computes by is set.
        context: tokens that the caches hold.
        prompt: Tokens that prefill reads in one call; 0 for no prefill. Of several numbers each becomes a method, and a prompt is
            read by the smallest that it fits.
        vocabulary: how many tokens there are; None asks the model.
        source: of a sequence-to-sequence model: token ids or features of the size that all sources will have.
        indices: dtype of tokens and positions; ``torch.int64`` for runners that give those, which costs two casts on the CPU.
        store_table_once: of a transformers model with tied embeddings, whose table is stored twice else, as rows to pick and as
            encoded weights of the last layer. Once, it saves flash and costs cycles; its numbers have one scale.

    Raises:
        EthorchError: the model is not supported, its caches are not static, or it has no tied embeddings.
    """
    if not isinstance(prompt, int):
        longest, *shorter = sorted(set(prompt), reverse=True) or [0]
        if shorter and shorter[-1] < 1:
            raise EthorchError(f"prompt={prompt}: expected numbers of tokens from 1 on.")
        made = language_model(
            model,
            context=context,
            prompt=longest,
            vocabulary=vocabulary,
            source=source,
            indices=indices,
            store_table_once=store_table_once,
        )
        return replace(made, shorter=tuple(size for size in shorter if size < made.prompt))
    if not 0 <= prompt <= context or context < 2:
        raise EthorchError(f"prompt={prompt}, context={context}: a prompt is 0 to context tokens, a context at least 2.")
    model.eval()
    if hasattr(model, "config") and any(base.__module__ == "transformers.modeling_utils" for base in type(model).__mro__):
        from ethorch.language.hugging_face import adapted  # transformers, which is optional: 2 seconds

        return adapted(model, context, prompt, source, indices, store_table_once)
    if store_table_once:
        raise EthorchError(
            f"store_table_once=True is for transformers' models. Let the last layer of {type(model).__name__} be "
            "table.weight[None] @ hidden.transpose(1, 2), then its table is stored once."
        )
    decoder: nn.Module
    if type(model).__module__.startswith(_EXECUTORCH_LLAMA):
        arguments: Any = model.params
        if not arguments.use_kv_cache or arguments.enable_dynamic_shape:
            raise EthorchError(
                "the transformer has no static caches: build it with ModelArgs(use_kv_cache=True, enable_dynamic_shape=False)."
            )
        decoder, context, vocabulary = _ExecuTorchLlama(model), arguments.max_context_len, arguments.vocab_size
        prompt = min(prompt, context)
        if prompt and not arguments.generate_full_logits:
            raise EthorchError("prefill picks its row of all logits: build it with ModelArgs(generate_full_logits=True).")
    elif len(inspect.signature(model.forward).parameters) >= 2:
        decoder = _Plain(model)
    else:
        raise EthorchError(
            f"{type(model).__name__} is not supported; expected a transformers model or a module with forward(tokens, positions)."
        )
    if vocabulary is None:
        tables = [part.num_embeddings for part in model.modules() if isinstance(part, nn.Embedding)]
        if not tables:
            raise EthorchError(f"{type(model).__name__} has no embedding that says how many tokens there are: give vocabulary=.")
        vocabulary = tables[0]
    return LanguageModel(decoder.eval(), context, prompt, vocabulary, indices=indices)


def from_folder(
    folder: str | Path,
    *,
    context: int = 256,
    prompt: int | Sequence[int] = 32,
    source: Tensor | None = None,
    store_table_once: bool = False,
) -> LanguageModel:
    """The language model in a folder as ``save_pretrained`` writes it: ``config.json`` and safetensors. Nothing is downloaded.

    Raises:
        EthorchError: the folder holds no such model, its weights are no safetensors, or transformers is not installed.
    """
    torchvision_models(needed=False)
    try:
        from ethorch.language.hugging_face import read_folder  # transformers, which is optional: 2 seconds
    except ModuleNotFoundError as error:
        raise EthorchError(f'the Python package {error.name} is not installed: pip install "ethorch[language]".') from error

    model = read_folder(Path(folder))
    try:
        return language_model(model, context=context, prompt=prompt, source=source, store_table_once=store_table_once)
    except EthorchError as error:
        error.args = (f"{folder}: {error}",)
        raise
