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
    """Create a ``LanguageModel`` that uses the code and weights of a decoder.

    Supported decoders:

    - Causal language models from Hugging Face's transformers. Their caches of ``context`` tokens become buffers.
    - Sequence-to-sequence models (T5, Whisper). Prefill also reads the source and stores cross-attention keys and values.
    - ExecuTorch's ``examples.models.llama`` transformer, built with ``use_kv_cache``. ``context`` is ignored.
    - Modules with ``forward(tokens, positions)`` that store caches in their buffers and return logits.

    Args:
        model: Decoder, which is set to eval mode. The attention function of a transformers model is replaced.
        prompt: Number of tokens per prefill call, or 0 to omit prefill. A sequence creates one method per number.
        vocabulary: Vocabulary size of a module with ``forward(tokens, positions)``. Default: that of its first embedding.
        source: Example token ids or features for a sequence-to-sequence model. All sources must have this shape.
        indices: Dtype of tokens and positions. ``torch.int64`` requires two casts on the CPU.
        store_table_once: Whether the tied embedding and last layer share one table. This saves flash and costs cycles. Requires
            a transformers model.

    Raises:
        EthorchError: The model or an argument is not supported.
    """
    if not isinstance(prompt, int):
        longest, *shorter = sorted(set(prompt), reverse=True) or [0]
        if shorter and shorter[-1] < 1:
            raise EthorchError(f"prompt: expected lengths of at least 1 token, got {prompt}.")
        longest_model = language_model(
            model,
            context=context,
            prompt=longest,
            vocabulary=vocabulary,
            source=source,
            indices=indices,
            store_table_once=store_table_once,
        )
        return replace(longest_model, shorter=tuple(size for size in shorter if size < longest_model.prompt))
    if not 0 <= prompt <= context or context < 2:
        raise EthorchError(f"expected context >= 2 and 0 <= prompt <= context, got prompt={prompt}, context={context}.")
    model.eval()
    if hasattr(model, "config") and any(base.__module__ == "transformers.modeling_utils" for base in type(model).__mro__):
        from ethorch.language.hugging_face import adapt_model  # imports transformers (optional, 2 seconds)

        return adapt_model(model, context, prompt, source, indices, store_table_once)
    if store_table_once:
        raise EthorchError(
            f"store_table_once: expected a transformers model, got {type(model).__name__}. Use "
            "table.weight[None] @ hidden.transpose(1, 2) as the last layer to store the table once."
        )
    decoder: nn.Module
    if type(model).__module__.startswith(_EXECUTORCH_LLAMA):
        arguments: Any = model.params
        if not arguments.use_kv_cache or arguments.enable_dynamic_shape:
            raise EthorchError(
                "expected a transformer with static caches, got a transformer without them. Use ModelArgs(use_kv_cache=True, "
                "enable_dynamic_shape=False)."
            )
        decoder, context, vocabulary = _ExecuTorchLlama(model), arguments.max_context_len, arguments.vocab_size
        prompt = min(prompt, context)
        if prompt and not arguments.generate_full_logits:
            raise EthorchError(
                "prefill: expected a transformer that returns the logits of all positions, got one that returns only the last "
                "position. Use ModelArgs(generate_full_logits=True)."
            )
    elif len(inspect.signature(model.forward).parameters) >= 2:
        decoder = _Plain(model)
    else:
        raise EthorchError(
            f"expected a transformers model or a module with forward(tokens, positions), got {type(model).__name__}."
        )
    if vocabulary is None:
        tables = [part.num_embeddings for part in model.modules() if isinstance(part, nn.Embedding)]
        if not tables:
            raise EthorchError(
                f"expected a model with an nn.Embedding, which determines the vocabulary size, got {type(model).__name__}. "
                "Pass the size as vocabulary."
            )
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
    """Load a language model from a folder written by ``save_pretrained`` (safetensors), without downloads.

    See :func:`language_model` for all arguments except ``folder``.

    Raises:
        EthorchError: The folder does not contain a supported model, or transformers is not installed.
    """
    torchvision_models(needed=False)
    try:
        from ethorch.language.hugging_face import read_folder  # imports transformers (optional, 2 seconds)
    except ModuleNotFoundError as error:
        raise EthorchError(f'the Python package {error.name} is not installed. Run pip install "ethorch[language]".') from error

    model = read_folder(Path(folder))
    try:
        return language_model(model, context=context, prompt=prompt, source=source, store_table_once=store_table_once)
    except EthorchError as error:
        error.args = (f"{folder}: {error}",)
        raise
