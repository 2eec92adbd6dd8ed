"""Why is an operator on the CPU, and what is the way out?

``python examples/explain.py``: the partitioner's reasons for a model on two NPUs, and the same model after the reasons were
followed. ``ethorch explain MODEL`` prints the same for a model in a file.
"""

import torch
from torch import Tensor, nn

from ethorch import EthosUCompileSpec
from ethorch.backend.build import build_pte
from ethorch.models.load import UserModel
from ethorch.quantization.calibrate import quantize


class Tokens(nn.Module):
    """Rows of a computed table by their numbers, and a layer over their four largest entries."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(8, 16), nn.Linear(4, 3)

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        chosen = torch.relu(self.layer(x))[rows]  # GATHER, which U55 does not have
        return self.head(torch.topk(chosen, 4)[0])  # no Ethos-U sorts


class Rewritten(Tokens):
    """The row numbers are int32, and the largest entry of each quarter takes the place of the four largest."""

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        chosen = torch.index_select(torch.relu(self.layer(x)), 0, rows)
        return self.head(chosen.reshape(2, 4, 4).amax(-1))


def report(model: nn.Module, target: str, dtype: torch.dtype = torch.int64) -> None:
    """Prints where the operators of the quantized model run, and for each on the CPU why, and what would change that."""
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
