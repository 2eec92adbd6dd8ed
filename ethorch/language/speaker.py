"""Tokens through a model that keeps state: a float model, a compiled program or a file, by the same calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ethorch.errors import EthorchError
from ethorch.language.model import LanguageModel
from ethorch.language.sampling import Choice


class Speaker:
    """Reads tokens one behind the other and says what may come next.

    Args:
        decode: ``(int[1, 1] token, int[1] position) -> logits``.
        reset: empties the caches.
        context: tokens that they hold.
        prefill: ``(*source, int[1, N] tokens, int[N] positions, int[1] last) -> logits``, or None.
        prompt: N.
        source: what an encoder-decoder reads.
        indices: dtype of tokens and positions.
    """

    def __init__(
        self,
        decode: Callable[..., Any],
        reset: Callable[[], object],
        context: int,
        prefill: Callable[..., Any] | None = None,
        prompt: int = 0,
        source: Tensor | None = None,
        indices: torch.dtype = torch.int32,
    ):
        self.indices = indices
        self._decode, self._prefill, self._reset = decode, prefill, reset
        self.context, self.prompt, self.source = context, prompt if prefill else 0, source
        self.position = 0
        self.calls: dict[str, int] = {"prefill": 0, "decode": 0}  #: how often each method was called
        self._reset()

    @classmethod
    def of_model(cls, model: LanguageModel, source: Tensor | None = None) -> Speaker:
        """The float model."""
        modules = model.modules
        if model.source is not None and source is None:
            source = model.source
        return cls(modules["decode"], model.reset, model.context, modules.get("prefill"), model.prompt, source, model.indices)

    @classmethod
    def of_methods(
        cls,
        methods: Mapping[str, Callable[..., Any]],
        reset: Callable[[], object],
        model: LanguageModel,
        source: Tensor | None = None,
    ) -> Speaker:
        """Other callables of the same model: its quantized modules, or the methods of a program."""
        if model.source is not None and source is None:
            source = model.source
        return cls(methods["decode"], reset, model.context, methods.get("prefill"), model.prompt, source, model.indices)

    def reset(self) -> None:
        """Start anew."""
        self._reset()
        self.position = 0

    def read(self, ids: Sequence[int]) -> Tensor:
        """float[V]: the logits behind the last of these tokens, which follow those read before.

        Prompts go through ``prefill`` as long as it fits the context: of its last call only the first rows may be tokens.

        Raises:
            EthorchError: there are none, or more than the context has left.
        """
        if not ids or self.position + len(ids) > self.context:
            raise EthorchError(
                f"{len(ids)} tokens behind {self.position}: a context of {self.context} takes 1 to "
                f"{self.context - self.position} more."
            )
        logits: Any = None
        rest = list(ids)
        with torch.no_grad():
            while rest:
                first_of_source = self.source is not None and self.position == 0
                fits = self.prompt and self.position + self.prompt <= self.context
                if fits and (len(rest) > 1 or first_of_source):
                    part, rest = rest[: self.prompt], rest[self.prompt :]
                    tokens = self._numbers([part + [0] * (self.prompt - len(part))])
                    positions = self._numbers(range(self.position, self.position + self.prompt))
                    source = () if self.source is None else (self.source,)
                    assert self._prefill is not None
                    logits = self._prefill(*source, tokens, positions, self._numbers([len(part) - 1]))
                    self.calls["prefill"] += 1
                else:
                    part, rest = rest[:1], rest[1:]
                    logits = self._decode(self._numbers([part]), self._numbers([self.position]))
                    self.calls["decode"] += 1
                self.position += len(part)
        return _row(logits)

    def _numbers(self, values: Any) -> Tensor:
        return torch.tensor(values, dtype=self.indices)

    def generate(self, ids: Sequence[int], count: int, choice: Choice | None = None, stop: Sequence[int] = ()) -> Iterator[int]:
        """Tokens that follow ``ids``, one by one: at most ``count``, until one of ``stop`` or until the context is full."""
        choice = choice or Choice()
        generator = choice.generator()
        logits = self.read(ids)
        for left in reversed(range(count)):
            token = choice.next(logits, generator)
            yield token
            if token in stop or not left or self.position >= self.context:
                return
            logits = self.read([token])


def _row(logits: Any) -> Tensor:
    """One row of logits, as float[V]."""
    if isinstance(logits, (tuple, list)):
        logits = logits[0]
    assert isinstance(logits, Tensor)
    return logits.reshape(-1, logits.shape[-1])[-1].float()
