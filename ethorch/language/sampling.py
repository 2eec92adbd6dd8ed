"""Which token comes next: the likeliest, or one drawn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ethorch.support.errors import SpecError


@dataclass(frozen=True)
class Choice:
    """How tokens are chosen.

    Attributes:
        temperature: logits are divided by it before they are drawn from; 0 takes the likeliest.
        top_k: only that many of the likeliest are drawn from; 0: all.
        seed: of the draws. The same seed, prompt and logits give the same text.
    """

    temperature: float = 0.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise SpecError(f"temperature is {self.temperature}; it has to be at least 0.")
        if self.top_k < 0:
            raise SpecError(f"top_k is {self.top_k}; it has to be at least 0, which is all tokens.")

    def generator(self) -> torch.Generator:
        """The draws' source, from the beginning."""
        return torch.Generator().manual_seed(self.seed)

    def next(self, logits: Tensor, generator: torch.Generator) -> int:
        """One token by logits ``float[..., V]`` of one row."""
        row = logits.reshape(-1).double()
        if self.temperature == 0:
            return int(row.argmax())
        if self.top_k:
            row = row.masked_fill(row < row.topk(min(self.top_k, row.numel())).values[-1], -torch.inf)
        return int(torch.multinomial(torch.softmax(row / self.temperature, 0), 1, generator=generator))
