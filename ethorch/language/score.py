"""Compute teacher-forced and free-running perplexity, to compare implementations of a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ethorch.language.sampling import Choice
from ethorch.language.speaker import Speaker
from ethorch.support import tables
from ethorch.support.errors import EthorchError
from ethorch.support.rendering import as_html, as_text

if TYPE_CHECKING:
    from rich.console import RenderableType


def predictions(speaker: Speaker, ids: Sequence[int], prompt: int) -> Iterator[tuple[int, Tensor]]:
    """Reset the speaker, and yield (token, logits that predict it) for each token after the first ``prompt`` tokens.

    Raises:
        EthorchError: ``prompt`` is less than 1, or the text is not longer than the prompt.
    """
    if prompt < 1:
        raise EthorchError(f"expected a prompt of at least 1 token, got prompt={prompt}.")
    if prompt >= len(ids):
        raise EthorchError(
            f"expected a text of at least {prompt + 1} tokens (a prompt of {prompt} and a token to predict), got {len(ids)}."
        )
    speaker.reset()
    logits = speaker.read(ids[:prompt])
    for number, token in enumerate(ids[prompt:], prompt):
        yield token, logits
        if number + 1 < len(ids):
            logits = speaker.read([token])


def surprise(logits: Tensor, token: int) -> float:
    """Return the negative logarithm of a token's probability."""
    return -float(torch.log_softmax(logits.double(), 0)[token])


def perplexity(speaker: Speaker, texts: Sequence[Sequence[int]], prompt: int = 1) -> float:
    """Return the exponential of the mean :func:`surprise` over all tokens after the first ``prompt`` tokens of each text.

    The result is 1 if each token has probability 1, and the vocabulary size for uniform predictions.
    """
    surprises = [surprise(logits, token) for ids in texts for token, logits in predictions(speaker, ids, prompt)]
    if not surprises:
        raise EthorchError("expected at least one text with tokens to predict, got none.")
    return math.exp(sum(surprises) / len(surprises))


def token_perplexity(outputs: Sequence[Any], labels: Sequence[Any]) -> float:
    """Compute perplexity from the logits ``[..., N, V]`` and the N labels of each sample.

    Use this function as a metric of ``ethorch.evaluate`` for models without mutable buffers.

    Raises:
        EthorchError: The numbers of logit rows and labels differ, or are 0.
    """
    surprises = []
    for output, label in zip(outputs, labels, strict=True):
        logits = output[0] if isinstance(output, (list, tuple)) else output
        rows, targets = logits.reshape(-1, logits.shape[-1]), torch.as_tensor(label).reshape(-1)
        if len(rows) != len(targets):
            raise EthorchError(f"expected {len(rows)} labels (the next token at each position), got {len(targets)}.")
        surprises += [surprise(row, int(token)) for row, token in zip(rows, targets, strict=True)]
    if not surprises:
        raise EthorchError("expected at least one token to predict, got none.")
    return math.exp(sum(surprises) / len(surprises))


@dataclass(frozen=True)
class Scores:
    """The result of :func:`scores`.

    Attributes:
        perplexity: Teacher-forced perplexity of each column (implementation of the model), by name.
        free_running: Perplexity of the text that each column generates, computed with the first column. Empty if ``write`` is 0.
        agreement: Fraction of teacher-forced tokens for which a column and the first column have the same most likely token.
    """

    tokens: int
    perplexity: Mapping[str, float]
    free_running: Mapping[str, float]
    agreement: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        return asdict(self)

    def rich(self) -> RenderableType:
        """Return a table with one row for each implementation."""
        table = tables.table()
        for name in ("", "perplexity", "free running", "same token"):
            table.add_column(name)
        for name, value in self.perplexity.items():
            free = self.free_running.get(name)
            table.add_row(name, f"{value:.4g}", "" if free is None else f"{free:.4g}", f"{self.agreement[name]:.1%}")
        return table

    def __str__(self) -> str:
        return as_text(self.rich())

    def _repr_html_(self) -> str:
        return as_html(self.rich())


def scores(
    columns: Mapping[str, Speaker], texts: Sequence[Sequence[int]], *, prompt: int = 8, write: int = 0, choice: Choice | None = None
) -> Scores:
    """Compute the perplexity of several implementations (columns) on the same texts, and their agreement with the first column.

    Args:
        columns: Speakers, keyed by name. The first column is the reference, usually the float model.
        texts: Token ids of texts that fit into the context.
        prompt: Number of tokens to read before scoring.
        write: Number of tokens to generate after each prompt, for ``free_running``.

    Raises:
        EthorchError: ``columns`` or ``texts`` is empty, or a text is too short or too long.
    """
    if not columns or not texts:
        raise EthorchError(f"expected at least one model and one text, got {len(columns)} and {len(texts)}.")
    sums: dict[str, float] = {}
    best_tokens: dict[str, list[int]] = {}
    count = 0
    for name, speaker in columns.items():
        surprises, chosen = [], []
        for ids in texts:
            for token, logits in predictions(speaker, ids, prompt):
                surprises.append(surprise(logits, token))
                chosen.append(int(logits.argmax()))
        sums[name], best_tokens[name], count = sum(surprises), chosen, len(surprises)
    judge, first = next(iter(columns.values())), next(iter(columns))
    free_running: dict[str, float] = {}
    for name, speaker in columns.items() if write else ():
        continuations = []
        for ids in texts:
            speaker.reset()
            continuations.append([*ids[:prompt], *speaker.generate(ids[:prompt], write, choice)])
        free_running[name] = perplexity(judge, continuations, prompt)
    agreement = {
        name: sum(a == b for a, b in zip(best_tokens[first], tokens, strict=True)) / count for name, tokens in best_tokens.items()
    }
    return Scores(count, {name: math.exp(value / count) for name, value in sums.items()}, free_running, agreement)
