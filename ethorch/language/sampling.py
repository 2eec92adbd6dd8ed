"""Select the next token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ethorch.support.errors import SpecError


@dataclass(frozen=True)
class Choice:
    """The settings of token sampling.

    Attributes:
        temperature: Divisor of the logits. 0 selects the most likely token.
        top_k: Number of most likely tokens from which to sample. 0 samples from all tokens.
    """

    temperature: float = 0.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise SpecError(f"temperature: expected at least 0, got {self.temperature}.")
        if self.top_k < 0:
            raise SpecError(f"top_k: expected at least 0 (0 samples from all tokens), got {self.top_k}.")

    def generator(self) -> torch.Generator:
        """Create the random generator."""
        return torch.Generator().manual_seed(self.seed)

    def next(self, logits: Tensor, generator: torch.Generator) -> int:
        """Choose a token from the logits ``float[..., V]`` of one row."""
        row = logits.reshape(-1).double()
        if self.temperature == 0:
            return int(row.argmax())
        if self.top_k:
            row = row.masked_fill(row < row.topk(min(self.top_k, row.numel())).values[-1], -torch.inf)
        return int(torch.multinomial(torch.softmax(row / self.temperature, 0), 1, generator=generator))
