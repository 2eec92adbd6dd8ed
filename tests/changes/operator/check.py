"""Check that `aten.logaddexp2` runs on the NPU, near to PyTorch."""

import torch

import ethorch
from ethorch.lower.ops.spec import OPS

torch.manual_seed(0)
assert "aten.logaddexp2.default" in {str(operator) for operator in OPS}, "ethorch does not lower aten.logaddexp2"


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.logaddexp2(x, y)


samples = [(3 * torch.randn(1, 40), 3 * torch.randn(1, 40)) for _ in range(4)]
program = ethorch.compile(Model(), samples[0], "ethos-u55-128", calibration=samples, progress=False)
data = program.to_json()
assert data["operators"]["cpu"] == 0, "some of it runs on the CPU"
assert data["verification"]["equal"] == data["verification"]["delegates"] == 1, "the commands compute something else"
assert ethorch.sqnr_db(Model()(*samples[0]), program(*samples[0])) > 30, "it is far from PyTorch"
