"""Convert the caches of transformers models to buffers without changing the models' code.

The adapter replaces the cache, the mask and the attention function.
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

from ethorch.language.model import LanguageModel, pick_row
from ethorch.lower.ops.attention import MASKED
from ethorch.models.user_code import first_sentence
from ethorch.models.zoos import SAVE_AGAIN, torchvision_models
from ethorch.support.errors import EthorchError
from ethorch.support.text_files import read_json

torchvision_models(needed=False)  # transformers imports torchvision

import transformers  # noqa: E402
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache  # noqa: E402

_ATTENTION = "ethorch"
_FULL, _SLIDING = "full_attention", "sliding_attention"
_TOLERANCE = 1e-3  # relative to the largest logit; the order of float sums differs
_CHECKED = 6  # number of compared tokens


@dataclass(frozen=True)
class _Parts:
    """The cached keys or values, and the new rows of a call. Models read only ``shape``."""

    cached: Tensor
    added: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        *lead, rows, width = self.cached.shape
        return (*lead, rows + self.added.shape[2], width)


class _Rows(CacheLayerMixin):  # type: ignore[misc]
    """A layer's cache: keys ``[1, heads, rows, width]`` and values ``[1, heads, width, rows]``.

    ``write`` stores the new rows after the model has run. With these layouts, matrix products of few queries avoid transposes.
    """

    is_compileable, is_sliding = True, False

    def __init__(self, keys: Tensor, values: Tensor, positions: Tensor):
        super().__init__()
        self.keys, self.stored_values, self.positions = keys, values, positions
        self.added: tuple[Tensor, Tensor] | None = None
        self.is_initialized = True

    @property
    def values(self) -> Tensor:
        return self.stored_values.transpose(2, 3)

    @values.setter
    def values(self, value: Any) -> None:
        """Ignore assignments, because transformers initializes the attribute to None."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Skip the initialization, because the buffers already exist."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        self.added = key_states, value_states
        return _Parts(self.keys, key_states), _Parts(self.values, value_states)

    def write(self) -> None:
        if self.added is not None:
            keys, values = self.added
            self.keys[:, :, self.positions] = keys
            self.stored_values[:, :, :, self.positions] = values.transpose(2, 3)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.keys.shape[2], 0

    def get_seq_length(self) -> Any:
        return self.positions[0]

    def get_max_length(self) -> int:
        return self.keys.shape[2]


class _Joined(_Rows):
    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        self.added = key_states, value_states
        return torch.cat([self.keys, key_states], 2), torch.cat([self.values, value_states], 2)


class _Whole(_Rows):
    def __init__(self, keys: Tensor, values: Tensor, is_known: bool):
        super().__init__(keys, values, torch.zeros(0))
        self.is_known = is_known

    def get_seq_length(self) -> int:
        return self.keys.shape[2] if self.is_known else 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        self.added = key_states, value_states
        return key_states, value_states

    def write(self) -> None:
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
    """Return (masked_softmax(scaling * query @ key.T + bias) @ value, None), as transformers requires.

    - Query heads that share one of the K key heads become rows of one matrix product: ``[1, heads, N, D]`` becomes
      ``[1, K, heads / K * N, D]``.
    - Cached and new rows have separate matrix products. Only their scores are concatenated.
    """
    if kwargs.get("s_aux") is not None:
        raise EthorchError(f"{type(module).__name__} uses attention sinks, which ethorch does not support.")
    batch, heads, rows, width = query.shape
    shared = key.shape[1]
    groups, columns = heads // shared, key.shape[2]
    query = query.reshape(batch, shared, groups * rows, width) * (width**-0.5 if scaling is None else scaling)
    if isinstance(key, _Parts):
        scores = torch.cat([query @ key.cached.transpose(2, 3), _compute_scores(query, key.added)], -1)
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
        cached_count = value.cached.shape[2]
        added_weights = weights[..., cached_count:]
        added = added_weights * value.added if rows == 1 else added_weights @ value.added
        out = weights[..., :cached_count] @ value.cached + added
    else:
        out = weights @ value
    return out.reshape(batch, heads, rows, -1).transpose(1, 2).contiguous(), None


def _compute_scores(query: Tensor, added: Tensor) -> Tensor:
    if added.shape[2] == 1:
        return (query * added).sum(-1, keepdim=True)
    return query @ added.transpose(2, 3)


transformers.AttentionInterface.register(_ATTENTION, attention)


class _TableFirst(nn.Module):
    # The order of the operands lets the product read the table in its stored layout.

    def __init__(self, table: nn.Parameter):
        super().__init__()
        self.weight = table

    def forward(self, hidden: Tensor) -> Tensor:
        return (self.weight[None] @ hidden.transpose(1, 2)).transpose(1, 2)


def _use_table_first(model: Any) -> None:
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    if isinstance(head, _TableFirst):
        return
    if head is None or table is None or head.weight is not table.weight or getattr(head, "bias", None) is not None:
        raise EthorchError(
            f"store_table_once requires tied embeddings (tie_word_embeddings) and an output layer without a bias; "
            f"{type(model).__name__} does not meet these requirements. Omit store_table_once."
        )
    model.set_output_embeddings(_TableFirst(head.weight))


class _Decoder(nn.Module):
    def __init__(self, model: nn.Module, context: int, layers: list[tuple[int, int, int]]):
        super().__init__()
        self.model, self.context, self.layers = model, context, len(layers)
        self.config: Any = model.config.get_text_config(decoder=True)  # type: ignore[union-attr,operator]
        parameters = inspect.signature(model.forward).parameters
        self.keeps = "logits_to_keep" in parameters
        self.own_attention = not _has_replaceable_attention(model)
        self.joined = self.own_attention
        for number, (heads, key_width, value_width) in enumerate(layers):
            self.register_buffer(f"keys_{number}", torch.zeros(1, heads, context, key_width))
            self.register_buffer(f"values_{number}", torch.zeros(1, heads, value_width, context))

    def cache(self, positions: Tensor) -> Any:
        buffers = [(getattr(self, f"keys_{number}"), getattr(self, f"values_{number}")) for number in range(self.layers)]
        kind = _Joined if self.joined else _Rows
        return Cache(layers=[kind(keys, values, positions) for keys, values in buffers])

    def masks(self, positions: Tensor) -> Any:
        """Return bool[1, 1, N, context + N] with True for visible columns, as one mask or a dict of masks by layer type.

        The columns for the cached rows precede N constant columns for the tokens of the call. If the model's attention cannot be
        replaced, masks are float and contain 0 for visible columns.
        """
        count, rows = positions.shape[0], positions[:, None]
        dtype = positions.dtype
        columns = self.context + count
        relative = torch.arange(columns) - self.context  # negative for cached rows
        past = torch.where(relative < 0, torch.arange(columns), -1).to(dtype) < positions[:1]
        if count > 1:
            past = past & ((relative < 0) | (relative <= torch.arange(count)[:, None]))
        types = set(getattr(self.config, "layer_types", None) or ())
        window: Any = getattr(self.config, "sliding_window", None)
        if not types:
            types = {_SLIDING if window and getattr(self.config, "use_sliding_window", True) else _FULL}
        near = past
        if _SLIDING in types:
            near = past & (torch.where(relative < 0, torch.arange(columns), self.context).to(dtype) > rows - window)
            if count > window:
                near = near & ((relative < 0) | (relative > torch.arange(count)[:, None] - window))
        masks = {name: mask.reshape(1, 1, -1, columns) for name, mask in ((_FULL, past), (_SLIDING, near))}
        if self.own_attention:  # this code adds the mask to the scores
            masks = {name: torch.zeros(mask.shape).masked_fill(mask.logical_not(), MASKED) for name, mask in masks.items()}
        return masks if len(types) > 1 else masks[types.pop()]

    def write(self, cache: Any) -> None:
        for layer in cache.layers:
            layer.write()

    def forward(self, tokens: Tensor, positions: Tensor, last: Tensor | None) -> Tensor:
        keep = {"logits_to_keep": last} if self.keeps and last is not None else {}
        cache = self.cache(positions)
        outputs = self.model(
            input_ids=tokens,
            attention_mask=self.masks(positions),
            position_ids=positions[None],
            past_key_values=cache,
            use_cache=True,
            **keep,
        )
        self.write(cache)
        return pick_row(outputs.logits, None if keep else last)


class _SequenceToSequence(_Decoder):
    """An encoder-decoder: ``(tokens, positions, last, source) -> float[1, V]``.

    Without ``source``, cross-attention reads its caches.
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
                vars(part)["compute_bias"] = types.MethodType(_create_bias(compute, self.call, context), part)

    def caches(self, positions: Tensor, is_known: bool) -> Any:
        pairs = [(getattr(self, f"source_keys_{k}"), getattr(self, f"source_values_{k}")) for k in range(self.layers)]
        return EncoderDecoderCache(self.cache(positions), Cache(layers=[_Whole(*pair, is_known) for pair in pairs]))

    def forward(self, tokens: Tensor, positions: Tensor, last: Tensor | None, source: Tensor | None = None) -> Tensor:
        cache = self.caches(positions, source is None)
        inputs: dict[str, Any] = {self.source_name: source}
        if source is None:
            inputs = {"encoder_outputs": (torch.zeros(1, self.rows, self.width),)}
        if self.named_positions:
            inputs["decoder_position_ids"] = positions[None]
        self.call.positions = positions
        outputs = self.model(
            **inputs,
            decoder_input_ids=tokens,
            decoder_attention_mask=self.masks(positions),
            past_key_values=cache,
            use_cache=True,
        )
        self.write(cache.self_attention_cache)
        if source is not None:
            self.write(cache.cross_attention_cache)
        return pick_row(outputs.logits, last)


class _Call:
    positions: Tensor


def _create_bias(compute: Callable[..., Tensor], call: _Call, context: int) -> Callable[..., Tensor]:

    def bias(self: nn.Module, query_length: int, key_length: int, device: Any = None, past_seen_tokens: Any = 0) -> Tensor:
        full_bias = compute(self, context, context, device=device)
        offsets = torch.arange(query_length)
        return torch.cat([full_bias.index_select(2, call.positions), full_bias[:, :, offsets[:, None], offsets]], -1)

    return bias


def adapt_model(
    model: nn.Module, context: int, prompt: int, source: Tensor | None, indices: torch.dtype, store_table_once: bool = False
) -> LanguageModel:
    """Create a ``LanguageModel`` from a transformers model. See :func:`language_model`.

    Raises:
        EthorchError: The model is not supported, or static caches change its logits.
    """
    config: Any = model.config
    text = config.get_text_config(decoder=True)
    supported = {_FULL, _SLIDING}
    unsupported = sorted(set(getattr(text, "layer_types", None) or ()) - supported)
    if unsupported:
        raise EthorchError(
            f"{type(model).__name__}: expected layers of type {', '.join(sorted(supported))}, got {', '.join(unsupported)}."
        )
    if store_table_once:
        _use_table_first(model)
    has_own_attention = not _has_replaceable_attention(model)
    if has_own_attention and config.is_encoder_decoder:
        raise EthorchError(
            f"{type(model).__name__} does not support custom attention implementations, which ethorch requires for "
            "encoder-decoder models."
        )
    model.set_attn_implementation("eager" if has_own_attention else _ATTENTION)  # type: ignore[operator]
    limit = getattr(text, "max_position_embeddings", None) or getattr(config, "max_target_positions", None)
    if limit and context > limit:
        raise EthorchError(f"context: expected at most {limit} (the number of positions of {type(model).__name__}), got {context}.")
    decoder: _Decoder
    if config.is_encoder_decoder:
        if source is None:
            raise EthorchError(
                f"source: expected an example of the encoder input of {type(model).__name__}, got None. "
                "All encoder inputs must have the shape of the example."
            )
        name: Any = model.main_input_name
        filled_cache = _fill_cache(model, {name: source, "decoder_input_ids": torch.zeros(1, 1, dtype=torch.int64)})
        rows = int(filled_cache.cross_attention_cache.layers[0].keys.shape[2])
        decoder = _SequenceToSequence(model, context, _find_widths(filled_cache.self_attention_cache), rows, str(name))
    else:
        filled_cache = _fill_cache(model, {"input_ids": torch.zeros(1, 1, dtype=torch.int64)})
        decoder = _Decoder(model, context, _find_widths(filled_cache))
    for joined in dict.fromkeys((decoder.joined, True)):
        decoder.joined = joined
        try:
            language_model = LanguageModel(
                decoder.eval(), context, prompt or int(source is not None), text.vocab_size, source, indices
            )
            _check_logits(language_model, model)
        except EthorchError:
            raise
        except Exception as error:  # the model does not support this cache
            failure = error
            continue
        return language_model
    raise EthorchError(
        f"{type(model).__name__} does not run with a static cache and a mask for each call: {first_sentence(failure)} Wrap the "
        "model in a module with forward(tokens, positions) that stores keys and values in buffers."
    ) from failure


def _has_replaceable_attention(model: Any) -> bool:
    return model._supports_attention_backend or "ALL_ATTENTION_FUNCTIONS" in vars(inspect.getmodule(type(model)) or object())


def _fill_cache(model: Any, inputs: dict[str, Tensor]) -> Any:
    with torch.no_grad():
        return model(**inputs, use_cache=True).past_key_values


def _find_widths(cache: Any) -> list[tuple[int, int, int]]:
    return [(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]) for layer in cache.layers]


def _check_logits(adapted_model: LanguageModel, model: Any) -> None:
    count = min(_CHECKED, adapted_model.context)
    ids = torch.arange(count)[None] % adapted_model.vocabulary
    inputs = (
        {"input_ids": ids}
        if adapted_model.source is None
        else {model.main_input_name: adapted_model.source, "decoder_input_ids": ids}
    )
    with torch.no_grad():
        model.set_attn_implementation("eager")
        biased = [part for part in model.modules() if "compute_bias" in vars(part)]
        bias_functions = [vars(part).pop("compute_bias") for part in biased]
        expected = model(**inputs, use_cache=False).logits[0]
        for part, function in zip(biased, bias_functions, strict=True):
            part.compute_bias = function
        model.set_attn_implementation("eager" if adapted_model.decoder.own_attention else _ATTENTION)
        if adapted_model.source is None:
            steps = [adapted_model.decoder(ids[:, k : k + 1], torch.tensor([k]), None) for k in range(count)]
        else:
            first = adapted_model.decoder(ids[:, :1], torch.tensor([0]), torch.tensor([0]), adapted_model.source)
            steps = [first, *(adapted_model.decoder(ids[:, k : k + 1], torch.tensor([k]), None) for k in range(1, count))]
    adapted_model.reset()
    logits = torch.cat(steps)
    deviation = float((logits - expected).abs().max() / expected.abs().max().clamp(min=1e-9))
    if not deviation < _TOLERANCE:
        raise EthorchError(
            f"a static cache changes the logits of {type(model).__name__}: expected a deviation below {_TOLERANCE:.0e} of "
            f"the largest logit, got {deviation:.2g}. Layers that store more than keys and values are not supported. Wrap the "
            "model in a module with forward(tokens, positions)."
        )


def read_folder(folder: Path) -> nn.Module:
    """Load a causal or sequence-to-sequence model from a local folder, in eval mode and float32.

    Raises:
        EthorchError: The folder does not contain a supported model.
    """
    read_json(folder / "config.json", SAVE_AGAIN)
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        kind = getattr(transformers, (config.architectures or [""])[0], transformers.AutoModelForCausalLM)
        transformers.utils.logging.disable_progress_bar()
        model: nn.Module = kind.from_pretrained(folder, local_files_only=True, use_safetensors=True, dtype=torch.float32)
    except Exception as error:  # transformers raises many types for inconsistent folders
        raise EthorchError(f"transformers cannot load {folder}: {first_sentence(error)} {SAVE_AGAIN}") from error
    return model.eval()
