"""A decoder as the two methods that a language model is run by: prefill reads a prompt, decode one token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ethorch.support.errors import EthorchError
from ethorch.support.wording import counted

#: Calls of methods in order: what calibrates a program with state.
Session = list[tuple[str, tuple[Tensor, ...]]]

_EXECUTORCH_LLAMA = "executorch.examples.models.llama"


class Prefill(nn.Module):
    """``(*source, int[1, N] tokens, int[N] positions, int[1] last) -> float[1, V]``: the logits behind the token at ``last``.

    All N tokens go to the caches at their positions. Those behind ``last`` are filling: nothing that is read later looks so far.
    """

    def __init__(self, decoder: nn.Module):
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens: Tensor, positions: Tensor, last: Tensor) -> Tensor:
        """The logits of one row."""
        logits: Tensor = self.decoder(tokens, positions, last)
        return logits


class _PrefillOfSource(Prefill):
    """``Prefill`` of an encoder-decoder, which reads its source first."""

    def forward(self, source: Tensor, tokens: Tensor, positions: Tensor, last: Tensor) -> Tensor:  # type: ignore[override]
        logits: Tensor = self.decoder(tokens, positions, last, source)
        return logits


class Decode(nn.Module):
    """``(int[1, 1] token, int[1] position) -> float[1, V]``: the logits behind one token."""

    def __init__(self, decoder: nn.Module):
        super().__init__()
        self.decoder = decoder

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        """The logits of the only row."""
        logits: Tensor = self.decoder(token, position, None)
        return logits


class _Plain(nn.Module):
    """A decoder with caches of its own: ``model(tokens, positions)`` returns logits of all rows."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, positions: Tensor, last: Tensor | None) -> Tensor:
        """float[1, V]"""
        return picked(self._logits(tokens, positions), last)

    def _logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        found = self.model(tokens, positions)
        return found[0] if isinstance(found, tuple) else found  # type: ignore[no-any-return]


class _ExecuTorchLlama(_Plain):
    """ExecuTorch's ``examples.models.llama`` transformer, built with ``use_kv_cache`` and without dynamic shapes."""

    def _logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        found = self.model(tokens, {"input_pos": positions})
        return found[0] if isinstance(found, tuple) else found  # type: ignore[no-any-return]


def picked(logits: Tensor, last: Tensor | None) -> Tensor:
    """float[1, V]: the row ``last`` of ``float[1, N, V]``; of one row, that."""
    if logits.dim() == 2:
        return logits
    return logits[:, 0] if last is None or logits.shape[1] == 1 else logits.index_select(1, last)[:, 0]


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A decoder whose methods share weights and caches.

    Attributes:
        decoder: computes in float; its buffers are the caches.
        context: tokens that the caches hold.
        prompt: tokens that one call of ``prefill`` reads; 0: there is no such method, and prompts go through ``decode``.
        vocabulary: how many tokens there are.
        source: example of what an encoder-decoder's encoder reads, else None.
        indices: dtype of tokens and positions. The NPU takes int32; an int64 is cast by the CPU.
        shorter: Numbers of tokens below ``prompt`` for which there is a method too, such as ``prefill_8``.
        caches: name -> what it held at first, of the decoder's buffers that reading a token changes.
    """

    decoder: nn.Module
    context: int
    prompt: int
    vocabulary: int
    source: Tensor | None = None
    indices: torch.dtype = torch.int32
    shorter: tuple[int, ...] = ()
    caches: Mapping[str, Tensor] = field(init=False, repr=False, compare=False)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Method -> module, for ``ethorch.compile``."""
        prefill = (Prefill if self.source is None else _PrefillOfSource)(self.decoder).eval()
        return {**dict.fromkeys(self.prefills, prefill), "decode": Decode(self.decoder).eval()}

    @property
    def prefills(self) -> dict[str, int]:
        """Name of each method that reads a prompt -> how many tokens it reads; the longest first."""
        sizes = sorted(self.shorter, reverse=True)
        return {"prefill": self.prompt, **{f"prefill_{size}": size for size in sizes}} if self.prompt else {}

    @property
    def example_inputs(self) -> dict[str, tuple[Tensor, ...]]:
        """Method -> inputs that fix the shapes."""
        source = () if self.source is None else (self.source,)
        prefills = {name: (*source, *self.rows([0] * size, 0, size - 1)) for name, size in self.prefills.items()}
        return {**prefills, "decode": self.rows([0], 0)}

    def rows(self, ids: Sequence[int], position: int, last: int | None = None) -> tuple[Tensor, ...]:
        """Inputs for tokens from ``position`` on: tokens, positions and, where it is given, ``last``."""
        found = [torch.tensor([list(ids)]), torch.arange(position, position + len(ids))]
        found += [] if last is None else [torch.tensor([last])]
        return tuple(x.to(self.indices) for x in found)

    def session(self, ids: Sequence[int], source: Tensor | None = None) -> Session:
        """The calls that read these tokens from the beginning: a full prefill of each size that fits, and a decode for each other.

        Raises:
            EthorchError: there are more tokens than the context holds, or too few for a prefill that has to be.
        """
        if not 0 < len(ids) <= self.context:
            raise EthorchError(
                f"a session has {counted(len(ids), 'token')}; allowed are 1 to {self.context}, the context of the model."
            )
        read = self.prompt if self.prompt and (len(ids) > self.prompt or self.source is not None) else 0
        if read > len(ids):
            raise EthorchError(
                f"a session has {counted(len(ids), 'token')}; an encoder-decoder's has at least the {read} of its prefill."
            )
        calls: Session = []
        sources = () if self.source is None else (self.source if source is None else source,)
        if read:
            calls.append(("prefill", (*sources, *self.rows(ids[:read], 0, read - 1))))
        for name, size in list(self.prefills.items())[1:]:
            if read + size < len(ids) and (read or self.source is None):
                calls.append((name, (*sources, *self.rows(ids[read : read + size], read, size - 1))))
                read += size
        return calls + [("decode", self.rows(ids[k : k + 1], k)) for k in range(read, len(ids))]

    def sessions(self, texts: Iterable[Sequence[int]], length: int | None = None) -> list[Session]:
        """A session for each text's first tokens: at most ``length``, or the context."""
        return [self.session(ids[: min(length or self.context, self.context)]) for ids in texts if len(ids)]

    def __post_init__(self) -> None:
        object.__setattr__(self, "caches", _written(self))

    def reset(self) -> None:
        """Give the caches back what they held when this was made."""
        with torch.no_grad():
            for name, value in self.caches.items():
                self.decoder.get_buffer(name).copy_(value)


def _written(model: LanguageModel) -> dict[str, Tensor]:
    """Buffers that change when a token is read, with what they held before; they hold it again."""
    before = {name: (buffer, buffer.clone(), buffer._version) for name, buffer in model.decoder.named_buffers()}
    changed = {}
    with torch.no_grad():
        model.modules["decode"](*model.example_inputs["decode"])
        for name, (buffer, value, version) in before.items():
            if model.decoder.get_buffer(name) is not buffer or buffer._version != version:
                changed[name] = value
                owner, _, last = name.rpartition(".")
                setattr(model.decoder.get_submodule(owner), last, buffer)
                buffer.copy_(value)
    return changed
