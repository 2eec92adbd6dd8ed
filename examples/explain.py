"""Explain why operators run on the CPU, and how to change that.

``python examples/explain.py`` prints the partitioner's reasons for a model on two NPUs, and for a rewritten model that removes
these reasons. ``ethorch explain MODEL`` prints the same for a model in a file.
"""

import torch
from torch import Tensor, nn

from ethorch import EthosUCompileSpec
from ethorch.backend.build import build_pte
from ethorch.models.load import UserModel
from ethorch.quantization.calibrate import quantize


class Tokens(nn.Module):
    """A model that selects rows of a computed table by index, and applies a layer to the four largest elements of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(8, 16), nn.Linear(4, 3)

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        chosen = torch.relu(self.layer(x))[rows]  # GATHER: the U55 does not support it
        return self.head(torch.topk(chosen, 4)[0])  # sorting: no Ethos-U supports it


class Rewritten(Tokens):
    """A model that uses int32 indices, and the maximum of each quarter of a row instead of the four largest elements."""

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        chosen = torch.index_select(torch.relu(self.layer(x)), 0, rows)
        return self.head(chosen.reshape(2, 4, 4).amax(-1))


def report(model: nn.Module, target: str, dtype: torch.dtype = torch.int64) -> None:
    """Print the number of operators on each processor, and the reason and the remedy for each operator on the CPU."""
    samples = [(torch.randn(6, 8), torch.tensor([3, 1], dtype=dtype)) for _ in range(8)]
    spec, user = EthosUCompileSpec(target), UserModel(model.eval(), samples[0], samples)
    partition = build_pte(quantize(user, spec), samples[0], spec).partition
    print(f"{type(model).__name__}: {partition.summary()}")
    for refusal in partition.refusals:
        print(f"  {refusal}")


torch.manual_seed(0)
report(Tokens(), "ethos-u55-128")
report(Tokens(), "ethos-u85-256")
report(Rewritten(), "ethos-u85-256", torch.int32)
