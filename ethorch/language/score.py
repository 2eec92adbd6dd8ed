"""How well a model predicts text: perplexity, teacher-forced and free-running, of several ways to compute it side by side."""

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
from ethorch.support.wording import counted

if TYPE_CHECKING:
    from rich.console import RenderableType


def predictions(speaker: Speaker, ids: Sequence[int], known: int) -> Iterator[tuple[int, Tensor]]:
    """(token, logits behind those before it) of each token behind the first ``known``. Teacher-forced, from an empty cache.

    Raises:
        EthorchError: there are no such tokens.
    """
    if not 0 < known < len(ids):
        raise EthorchError(
            f"a text has {counted(len(ids), 'token')}; the first {known} are given, so that at least {known + 1} are needed."
        )
    speaker.reset()
    logits = speaker.read(ids[:known])
    for number, token in enumerate(ids[known:], known):
        yield token, logits
        if number + 1 < len(ids):
            logits = speaker.read([token])


def surprise(logits: Tensor, token: int) -> float:
    """The negative logarithm of a token's probability."""
    return -float(torch.log_softmax(logits.double(), 0)[token])


def perplexity(speaker: Speaker, texts: Sequence[Sequence[int]], known: int = 1) -> float:
    """exp of the mean surprise over all tokens of all texts but each one's first ``known``: 1 is certain, V is a guess."""
    each = [surprise(logits, token) for ids in texts for token, logits in predictions(speaker, ids, known)]
    if not each:
        raise EthorchError("there is no text to predict.")
    return math.exp(sum(each) / len(each))


def token_perplexity(outputs: Sequence[Any], labels: Sequence[Any]) -> float:
    """Perplexity as a metric of ``ethorch.evaluate``, of models without state: logits ``[..., N, V]`` and the N right tokens.

    Raises:
        EthorchError: logits and labels are not of as many tokens, or there are none.
    """
    each = []
    for found, label in zip(outputs, labels, strict=True):
        logits = found[0] if isinstance(found, (list, tuple)) else found
        rows, right = logits.reshape(-1, logits.shape[-1]), torch.as_tensor(label).reshape(-1)
        if len(rows) != len(right):
            raise EthorchError(
                f"a sample has logits for {counted(len(rows), 'token')} and {counted(len(right), 'label')}: "
                "give the token behind each one."
            )
        each += [surprise(row, int(token)) for row, token in zip(rows, right, strict=True)]
    if not each:
        raise EthorchError("there is no token to predict.")
    return math.exp(sum(each) / len(each))


@dataclass(frozen=True)
class Scores:
    """What ``scores`` found.

    Attributes:
        tokens: predicted of the texts, by each column.
        perplexity: column -> teacher-forced: each token by the true ones before it.
        free_running: column -> what the first column thinks of the texts that each column writes behind the same prompts, as
            perplexity: errors that add up over a text show here.
        agreement: column -> how often its likeliest token is the first column's, teacher-forced.
    """

    tokens: int
    perplexity: Mapping[str, float]
    free_running: Mapping[str, float]
    agreement: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """As plain data; keys are the attributes' names."""
        return asdict(self)

    def rich(self) -> RenderableType:
        """A table of Rich: a row for each column."""
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
    columns: Mapping[str, Speaker], texts: Sequence[Sequence[int]], *, known: int = 8, write: int = 0, choice: Choice | None = None
) -> Scores:
    """Perplexity of each column on the same texts, and agreement with the first column.

    Args:
        columns: name -> model; the first is what the others are held against, the float model as a rule.
        texts: token ids; each fits the context.
        known: tokens of each text that are given.
        write: tokens that each column writes behind each text's first ``known``, for ``free_running``; 0: none.
        choice: how it chooses them.

    Raises:
        EthorchError: there is no column, no text, or one that is too short or too long.
    """
    if not columns or not texts:
        raise EthorchError("there is nothing to score: give at least one model and one text.")
    sums: dict[str, float] = {}
    best: dict[str, list[int]] = {}
    count = 0
    for name, speaker in columns.items():
        each, chosen = [], []
        for ids in texts:
            for token, logits in predictions(speaker, ids, known):
                each.append(surprise(logits, token))
                chosen.append(int(logits.argmax()))
        sums[name], best[name], count = sum(each), chosen, len(each)
    judge, first = next(iter(columns.values())), next(iter(columns))
    written: dict[str, float] = {}
    for name, speaker in columns.items() if write else ():
        made = []
        for ids in texts:
            speaker.reset()
            made.append([*ids[:known], *speaker.generate(ids[:known], write, choice)])
        written[name] = perplexity(judge, made, known)
    agreement = {name: sum(a == b for a, b in zip(best[first], found, strict=True)) / count for name, found in best.items()}
    return Scores(count, {name: math.exp(value / count) for name, value in sums.items()}, written, agreement)
