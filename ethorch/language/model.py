"""Split a decoder into two methods: prefill reads a prompt, and decode reads one token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ethorch.support.errors import EthorchError

#: Calls (method, inputs) in order, for the calibration of programs with mutable buffers.
Session = list[tuple[str, tuple[Tensor, ...]]]


class Prefill(nn.Module):
    """A module ``(*source, int[1, N] tokens, int[N] positions, int[1] last) -> float[1, V]``.

    It returns the logits after token ``last``. Caches store all N tokens. Tokens after ``last`` are padding that later calls mask
    out.
    """

    def __init__(self, decoder: nn.Module):
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens: Tensor, positions: Tensor, last: Tensor) -> Tensor:
        logits: Tensor = self.decoder(tokens, positions, last)
        return logits


class _PrefillOfSource(Prefill):
    def forward(self, source: Tensor, tokens: Tensor, positions: Tensor, last: Tensor) -> Tensor:  # type: ignore[override]
        logits: Tensor = self.decoder(tokens, positions, last, source)
        return logits


class Decode(nn.Module):
    """A module ``(int[1, 1] token, int[1] position) -> float[1, V]``, which returns the logits after one token."""

    def __init__(self, decoder: nn.Module):
        super().__init__()
        self.decoder = decoder

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        logits: Tensor = self.decoder(token, position, None)
        return logits


class _Plain(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, positions: Tensor, last: Tensor | None) -> Tensor:
        return pick_row(self._logits(tokens, positions), last)

    def _logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        outputs = self.model(tokens, positions)
        return outputs[0] if isinstance(outputs, tuple) else outputs  # type: ignore[no-any-return]


class _ExecuTorchLlama(_Plain):
    def _logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        outputs = self.model(tokens, {"input_pos": positions})
        return outputs[0] if isinstance(outputs, tuple) else outputs  # type: ignore[no-any-return]


def pick_row(logits: Tensor, last: Tensor | None) -> Tensor:
    """Return row ``last`` (0 if None) of logits float[1, N, V] as float[1, V]. Return 2-D logits unchanged."""
    if logits.dim() == 2:
        return logits
    return logits[:, 0] if last is None or logits.shape[1] == 1 else logits.index_select(1, last)[:, 0]


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A decoder whose methods share weights and caches.

    Attributes:
        decoder: Float decoder whose buffers are the caches.
        context: Capacity of the caches in tokens.
        prompt: Number of tokens per ``prefill`` call, or 0 to read prompts with ``decode``.
        source: Example input of the encoder, or None.
        shorter: Prompt lengths below ``prompt`` with separate methods, e.g. ``prefill_8``.
        caches: Initial values of the buffers that change when a token is read, by name.
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
        """The modules by method name, for ``ethorch.compile``."""
        prefill = (Prefill if self.source is None else _PrefillOfSource)(self.decoder).eval()
        return {**dict.fromkeys(self.prefills, prefill), "decode": Decode(self.decoder).eval()}

    @property
    def prefills(self) -> dict[str, int]:
        """The number of tokens of each prefill method, largest first."""
        sizes = sorted(self.shorter, reverse=True)
        return {"prefill": self.prompt, **{f"prefill_{size}": size for size in sizes}} if self.prompt else {}

    @property
    def example_inputs(self) -> dict[str, tuple[Tensor, ...]]:
        """The example inputs by method name."""
        source = () if self.source is None else (self.source,)
        prefills = {name: (*source, *self.rows([0] * size, 0, size - 1)) for name, size in self.prefills.items()}
        return {**prefills, "decode": self.rows([0], 0)}

    def rows(self, ids: Sequence[int], position: int, last: int | None = None) -> tuple[Tensor, ...]:
        """Return the inputs for consecutive tokens that start at ``position``: tokens, positions and, if passed, ``last``."""
        tensors = [torch.tensor([list(ids)]), torch.arange(position, position + len(ids))]
        tensors += [] if last is None else [torch.tensor([last])]
        return tuple(x.to(self.indices) for x in tensors)

    def session(self, ids: Sequence[int], source: Tensor | None = None) -> Session:
        """Return the calls that read ``ids``: at most one call to each prefill method, longest first, then calls to ``decode``.

        Raises:
            EthorchError: ``ids`` is empty, is longer than the context, or, for an encoder-decoder, is shorter than ``prompt``.
        """
        if not 0 < len(ids) <= self.context:
            raise EthorchError(f"expected 1 to {self.context} tokens (the context length), got {len(ids)}.")
        read = self.prompt if self.prompt and (len(ids) > self.prompt or self.source is not None) else 0
        if read > len(ids):
            raise EthorchError(f"expected at least {read} tokens (the size of the prefill method), got {len(ids)}.")
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
        """Return a session for each nonempty text, truncated to ``length`` tokens or to the context."""
        return [self.session(ids[: min(length or self.context, self.context)]) for ids in texts if len(ids)]

    def __post_init__(self) -> None:
        object.__setattr__(self, "caches", _find_caches(self))

    def reset(self) -> None:
        """Restore the initial values of the caches."""
        with torch.no_grad():
            for name, value in self.caches.items():
                self.decoder.get_buffer(name).copy_(value)


def _find_caches(model: LanguageModel) -> dict[str, Tensor]:
    buffers = {name: (buffer, buffer.clone(), buffer._version) for name, buffer in model.decoder.named_buffers()}
    changed = {}
    with torch.no_grad():
        model.modules["decode"](*model.example_inputs["decode"])
        for name, (buffer, value, version) in buffers.items():
            if model.decoder.get_buffer(name) is not buffer or buffer._version != version:
                changed[name] = value
                owner, _, attribute = name.rpartition(".")
                setattr(model.decoder.get_submodule(owner), attribute, buffer)
                buffer.copy_(value)
    return changed
