"""Decoders of Hugging Face's transformers with caches that are buffers, by transformers' own code.

transformers lets a caller choose three things, and no model's code is changed by them: the cache, the mask and the function that
computes attention. The cache here writes rows of buffers at the positions that are an input, behind all that reads them. The
mask compares positions. Attention groups the queries of a key instead of repeating keys, so that no byte of a cache is copied.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ethorch.language.model import LanguageModel, picked
from ethorch.lower.ops.attention import MASKED
from ethorch.models.user_code import first_sentence
from ethorch.models.zoos import SAVE_AGAIN, torchvision_models
from ethorch.support.errors import EthorchError
from ethorch.support.text_files import read_json

torchvision_models(needed=False)  # transformers imports it

import transformers  # noqa: E402
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache  # noqa: E402

_ATTENTION = "ethorch"
_FULL, _SLIDING = "full_attention", "sliding_attention"
_NEAR = 1e-3  # relative to the largest logit: what two orders of float sums may differ by
_CHECKED = 6  # tokens that adapter and model are compared on


@dataclass(frozen=True)
class _Parts:
    """Keys or values: rows that a cache holds, and those that this call adds, which are not in it yet.

    transformers' models hand on what a cache returns to the function that computes attention, and read its shape at most.
    """

    held: Tensor
    added: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Of both together."""
        *lead, rows, width = self.held.shape
        return (*lead, rows + self.added.shape[2], width)


class _Rows(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer, written at given positions behind the call.

    Keys are ``[1, heads, rows, width]``, values ``[1, heads, width, rows]``: products of few queries read both as they lie.
    """

    is_compileable, is_sliding = True, False

    def __init__(self, keys: Tensor, values: Tensor, positions: Tensor):
        super().__init__()
        self.keys, self.stored_values, self.positions = keys, values, positions
        self.added: tuple[Tensor, Tensor] | None = None
        self.is_initialized = True

    @property
    def values(self) -> Tensor:
        """[1, heads, rows, width]"""
        return self.stored_values.transpose(2, 3)

    @values.setter
    def values(self, value: Any) -> None:
        """transformers sets it to None at first."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the buffers are there."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Rows to be written, and those that are there."""
        self.added = key_states, value_states
        return _Parts(self.keys, key_states), _Parts(self.values, value_states)

    def write(self) -> None:
        """Write the rows of this call."""
        if self.added is not None:
            keys, values = self.added
            self.keys[:, :, self.positions] = keys
            self.stored_values[:, :, :, self.positions] = values.transpose(2, 3)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(rows, the first row's position)"""
        return self.keys.shape[2], 0

    def get_seq_length(self) -> Any:
        """Tokens before these."""
        return self.positions[0]

    def get_max_length(self) -> int:
        """Rows."""
        return self.keys.shape[2]


class _Joined(_Rows):
    """Of a model that reads keys and values by code of its own: rows that are there and those that are added as one tensor."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Both behind one another, which moves the bytes of the cache."""
        self.added = key_states, value_states
        return torch.cat([self.keys, key_states], 2), torch.cat([self.values, value_states], 2)


class _Whole(_Rows):
    """Keys and values of a source, written as a whole unless they are known."""

    def __init__(self, keys: Tensor, values: Tensor, known: bool):
        super().__init__(keys, values, torch.zeros(0))
        self.known = known

    def get_seq_length(self) -> int:
        """Rows that are known."""
        return self.keys.shape[2] if self.known else 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """All rows are new."""
        self.added = key_states, value_states
        return key_states, value_states

    def write(self) -> None:
        """Write all rows of this call."""
        if self.added is not None:
            self.keys.copy_(self.added[0])
            self.stored_values.copy_(self.added[1].transpose(2, 3))


def attention(
    module: nn.Module,
    query: Tensor,
    key: Any,
    value: Any,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """softmax(scaling * query @ key.T + bias, where the mask is True) @ value, as transformers' attention functions are called.

    - Queries of one key are rows of one product: ``[1, heads, N, D]`` is ``[1, keys, heads / keys * N, D]``.
    - Rows that a cache holds and those that are added have products of their own, so that the cache is read as it is: only the
      scores lie side by side.
    """
    if kwargs.get("s_aux") is not None:
        raise EthorchError(f"{type(module).__name__} adds sinks to its attention, which this adapter does not know.")
    batch, heads, rows, width = query.shape
    shared = key.shape[1]
    groups, columns = heads // shared, key.shape[2]
    query = query.reshape(batch, shared, groups * rows, width) * (width**-0.5 if scaling is None else scaling)
    if isinstance(key, _Parts):
        scores = torch.cat([query @ key.held.transpose(2, 3), _scores(query, key.added)], -1)
    else:
        scores = query @ key.transpose(2, 3)
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    if position_bias is not None:
        scores = scores + position_bias.reshape(*position_bias.shape[:1], -1, groups * rows, columns)
    if attention_mask is not None:
        mask = attention_mask.repeat(1, 1, groups, 1) if groups > 1 and rows > 1 else attention_mask
        scores = scores.masked_fill(mask.logical_not(), MASKED)
    weights = scores.softmax(-1)
    if isinstance(value, _Parts):
        held = value.held.shape[2]
        of_added = weights[..., held:]
        added = of_added * value.added if rows == 1 else of_added @ value.added
        out = weights[..., :held] @ value.held + added
    else:
        out = weights @ value
    return out.reshape(batch, heads, rows, -1).transpose(1, 2).contiguous(), None


def _scores(query: Tensor, added: Tensor) -> Tensor:
    """query @ added.T; of one row, sums of products, which is one operator for all heads."""
    if added.shape[2] == 1:
        return (query * added).sum(-1, keepdim=True)
    return query @ added.transpose(2, 3)


transformers.AttentionInterface.register(_ATTENTION, attention)


class _TableFirst(nn.Module):
    """The last layer as ``table @ hidden``: the rows of a table that the NPU picks embeddings from, read as they lie."""

    def __init__(self, table: nn.Parameter):
        super().__init__()
        self.weight = table

    def forward(self, hidden: Tensor) -> Tensor:
        """float[1, N, D] -> float[1, N, V]"""
        return (self.weight[None] @ hidden.transpose(1, 2)).transpose(1, 2)


def _read_table_first(model: Any) -> None:
    """Let the last layer of a model with tied embeddings read their table.

    Raises:
        EthorchError: the model has two tables, or adds something to what it makes of one.
    """
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    if isinstance(head, _TableFirst):
        return
    if head is None or table is None or head.weight is not table.weight or getattr(head, "bias", None) is not None:
        raise EthorchError(
            f"store_table_once=True: {type(model).__name__} has no last layer that is its table of embeddings alone "
            "(tie_word_embeddings of its config). Leave the option out: each table is stored once then."
        )
    model.set_output_embeddings(_TableFirst(head.weight))


class _Decoder(nn.Module):
    """A causal language model: ``(tokens, positions, last) -> float[1, V]``."""

    def __init__(self, model: nn.Module, context: int, layers: list[tuple[int, int, int]]):
        super().__init__()
        self.model, self.context, self.layers = model, context, len(layers)
        self.config: Any = model.config.get_text_config(decoder=True)  # type: ignore[union-attr,operator]
        parameters = inspect.signature(model.forward).parameters
        self.keeps = "logits_to_keep" in parameters
        self.own_attention = not _takes_attention(model)
        self.joined = self.own_attention
        for number, (heads, key_width, value_width) in enumerate(layers):
            self.register_buffer(f"keys_{number}", torch.zeros(1, heads, context, key_width))
            self.register_buffer(f"values_{number}", torch.zeros(1, heads, value_width, context))

    def cache(self, positions: Tensor) -> Any:
        """The cache of one call."""
        buffers = [(getattr(self, f"keys_{number}"), getattr(self, f"values_{number}")) for number in range(self.layers)]
        kind = _Joined if self.joined else _Rows
        return Cache(layers=[kind(keys, values, positions) for keys, values in buffers])

    def masks(self, positions: Tensor) -> Any:
        """bool[1, 1, N, context + N], True where a token may look: one mask, or one for each type of layer.

        Columns are the rows that the caches hold, then the N tokens themselves, whose mask is a constant.
        """
        count, rows = positions.shape[0], positions[:, None]
        kind = positions.dtype
        columns = self.context + count
        own = torch.arange(columns) - self.context  # negative: of a row that the caches hold
        past = torch.where(own < 0, torch.arange(columns), -1).to(kind) < positions[:1]
        if count > 1:
            past = past & ((own < 0) | (own <= torch.arange(count)[:, None]))
        types = set(getattr(self.config, "layer_types", None) or ())
        window: Any = getattr(self.config, "sliding_window", None)
        if not types:
            types = {_SLIDING if window and getattr(self.config, "use_sliding_window", True) else _FULL}
        near = past
        if _SLIDING in types:
            near = past & (torch.where(own < 0, torch.arange(columns), self.context).to(kind) > rows - window)
            if count > window:
                near = near & ((own < 0) | (own > torch.arange(count)[:, None] - window))
        masks = {name: mask.reshape(1, 1, -1, columns) for name, mask in ((_FULL, past), (_SLIDING, near))}
        if self.own_attention:  # which adds it
            masks = {name: torch.zeros(mask.shape).masked_fill(mask.logical_not(), MASKED) for name, mask in masks.items()}
        return masks if len(types) > 1 else masks[types.pop()]

    def written(self, cache: Any) -> None:
        """Write what a call added to its caches."""
        for layer in cache.layers:
            layer.write()

    def forward(self, tokens: Tensor, positions: Tensor, last: Tensor | None) -> Tensor:
        """The logits of the row ``last``, or of the only one."""
        keep = {"logits_to_keep": last} if self.keeps and last is not None else {}
        cache = self.cache(positions)
        found = self.model(
            input_ids=tokens,
            attention_mask=self.masks(positions),
            position_ids=positions[None],
            past_key_values=cache,
            use_cache=True,
            **keep,
        )
        self.written(cache)
        return picked(found.logits, None if keep else last)


class _SequenceToSequence(_Decoder):
    """An encoder-decoder: ``(tokens, positions, last, source) -> float[1, V]``.

    Without a source, cross-attention reads its caches.
    """

    def __init__(self, model: nn.Module, context: int, layers: list[tuple[int, int, int]], rows: int, name: str):
        super().__init__(model, context, layers)
        self.source_name = name
        for number, (heads, key_width, value_width) in enumerate(layers):
            self.register_buffer(f"source_keys_{number}", torch.zeros(1, heads, rows, key_width))
            self.register_buffer(f"source_values_{number}", torch.zeros(1, heads, value_width, rows))
        self.rows = rows
        self.width = int(getattr(model.config, "d_model", 0))
        self.named_positions = "decoder_position_ids" in inspect.signature(model.forward).parameters
        self.call = _Call()
        for part in model.modules():
            if hasattr(part, "compute_bias") and getattr(part, "is_decoder", False):
                compute: Any = type(part).compute_bias  # type: ignore[attr-defined]
                vars(part)["compute_bias"] = types.MethodType(_bias_at(compute, self.call, context), part)

    def caches(self, positions: Tensor, known: bool) -> Any:
        """The caches of one call. Is the source known?"""
        pairs = [(getattr(self, f"source_keys_{k}"), getattr(self, f"source_values_{k}")) for k in range(self.layers)]
        return EncoderDecoderCache(self.cache(positions), Cache(layers=[_Whole(*pair, known) for pair in pairs]))

    def forward(self, tokens: Tensor, positions: Tensor, last: Tensor | None, source: Tensor | None = None) -> Tensor:
        """The logits of the row ``last``, or of the only one."""
        cache = self.caches(positions, source is None)
        given: dict[str, Any] = {self.source_name: source}
        if source is None:
            given = {"encoder_outputs": (torch.zeros(1, self.rows, self.width),)}
        if self.named_positions:
            given["decoder_position_ids"] = positions[None]
        self.call.positions = positions
        found = self.model(
            **given,
            decoder_input_ids=tokens,
            decoder_attention_mask=self.masks(positions),
            past_key_values=cache,
            use_cache=True,
        )
        self.written(cache.self_attention_cache)
        if source is not None:
            self.written(cache.cross_attention_cache)
        return picked(found.logits, last)


class _Call:
    """The positions of the call that is traced, for a bias by distance: transformers tells it the first one only."""

    positions: Tensor


def _bias_at(compute: Callable[..., Tensor], call: _Call, context: int) -> Callable[..., Tensor]:
    """T5's bias by distance as rows of the bias of all positions."""

    def bias(self: nn.Module, query_length: int, key_length: int, device: Any = None, past_seen_tokens: Any = 0) -> Tensor:
        whole = compute(self, context, context, device=device)
        own = torch.arange(query_length)
        return torch.cat([whole.index_select(2, call.positions), whole[:, :, own[:, None], own]], -1)

    return bias


def adapted(
    model: nn.Module, context: int, prompt: int, source: Tensor | None, indices: torch.dtype, store_table_once: bool = False
) -> LanguageModel:
    """A model of transformers as ``LanguageModel``; ``language_model`` says what is taken.

    Raises:
        EthorchError: its layers keep something other than keys and values, or it computes something else with these caches.
    """
    config: Any = model.config
    text = config.get_text_config(decoder=True)
    known = {_FULL, _SLIDING}
    others = sorted(set(getattr(text, "layer_types", None) or ()) - known)
    if others:
        raise EthorchError(
            f"{type(model).__name__} has layers of type {', '.join(others)}; allowed are {', '.join(sorted(known))}."
        )
    if store_table_once:
        _read_table_first(model)
    own = not _takes_attention(model)
    if own and config.is_encoder_decoder:
        raise EthorchError(f"{type(model).__name__} computes attention by code of its own that takes no boolean mask.")
    model.set_attn_implementation("eager" if own else _ATTENTION)  # type: ignore[operator]
    limit = getattr(text, "max_position_embeddings", None) or getattr(config, "max_target_positions", None)
    if limit and context > limit:
        raise EthorchError(f"context={context}; {type(model).__name__} has positions for {limit} tokens.")
    decoder: _Decoder
    if config.is_encoder_decoder:
        if source is None:
            raise EthorchError(f"{type(model).__name__} reads a source: give source=, an example of the size that all will have.")
        name: Any = model.main_input_name
        found = _shapes(model, {name: source, "decoder_input_ids": torch.zeros(1, 1, dtype=torch.int64)})
        rows = int(found.cross_attention_cache.layers[0].keys.shape[2])
        decoder = _SequenceToSequence(model, context, _widths(found.self_attention_cache), rows, str(name))
    else:
        found = _shapes(model, {"input_ids": torch.zeros(1, 1, dtype=torch.int64)})
        decoder = _Decoder(model, context, _widths(found))
    for joined in dict.fromkeys((decoder.joined, True)):
        decoder.joined = joined
        try:
            made = LanguageModel(decoder.eval(), context, prompt or int(source is not None), text.vocab_size, source, indices)
            _check(made, model)
        except EthorchError:
            raise
        except Exception as error:  # the model's own code was given something that it does not expect
            failed = error
            continue
        return made
    raise EthorchError(
        f"{type(model).__name__} does not run with a static cache and a mask for each call: {first_sentence(failed)} Wrap it "
        "in a module with forward(tokens, positions) that keeps keys and values in its buffers."
    ) from failed


def _takes_attention(model: Any) -> bool:
    """Does it compute attention by a function that is chosen?"""
    return model._supports_attention_backend or "ALL_ATTENTION_FUNCTIONS" in vars(inspect.getmodule(type(model)) or object())


def _shapes(model: Any, inputs: dict[str, Tensor]) -> Any:
    """The cache that the model fills for one token: its shapes are the model's."""
    with torch.no_grad():
        return model(**inputs, use_cache=True).past_key_values


def _widths(cache: Any) -> list[tuple[int, int, int]]:
    """(heads, width of a key, width of a value) of each layer."""
    return [(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]) for layer in cache.layers]


def _check(made: LanguageModel, model: Any) -> None:
    """Hold the first tokens' logits against those that the model computes without a cache."""
    count = min(_CHECKED, made.context)
    ids = torch.arange(count)[None] % made.vocabulary
    given = {"input_ids": ids} if made.source is None else {model.main_input_name: made.source, "decoder_input_ids": ids}
    with torch.no_grad():
        model.set_attn_implementation("eager")
        biased = [part for part in model.modules() if "compute_bias" in vars(part)]
        ours = [vars(part).pop("compute_bias") for part in biased]
        wanted = model(**given, use_cache=False).logits[0]
        for part, function in zip(biased, ours, strict=True):
            part.compute_bias = function
        model.set_attn_implementation("eager" if made.decoder.own_attention else _ATTENTION)
        if made.source is None:
            steps = [made.decoder(ids[:, k : k + 1], torch.tensor([k]), None) for k in range(count)]
        else:
            first = made.decoder(ids[:, :1], torch.tensor([0]), torch.tensor([0]), made.source)
            steps = [first, *(made.decoder(ids[:, k : k + 1], torch.tensor([k]), None) for k in range(1, count))]
    made.reset()
    found = torch.cat(steps)
    off = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-9))
    if not off < _NEAR:
        raise EthorchError(
            f"{type(model).__name__} computes something else with a static cache: logits are off by {off:.2g} of the largest, "
            f"allowed are {_NEAR:.0e}. Its layers keep more than keys and "
            "values; wrap it in a module with forward(tokens, positions)."
        )


def read_folder(folder: Path) -> nn.Module:
    """The causal or sequence-to-sequence model of a local folder, in eval mode and float32.

    Raises:
        EthorchError: there is no such model.
    """
    read_json(folder / "config.json", SAVE_AGAIN)
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        kind = getattr(transformers, (config.architectures or [""])[0], transformers.AutoModelForCausalLM)
        transformers.utils.logging.disable_progress_bar()
        model: nn.Module = kind.from_pretrained(folder, local_files_only=True, use_safetensors=True, dtype=torch.float32)
    except Exception as error:  # whatever transformers raises for a folder that is not what its config says
        raise EthorchError(f"transformers cannot load {folder}: {first_sentence(error)} {SAVE_AGAIN}") from error
    return model.eval()
