"""Products of two activations on the CPU: the same codes, another place; and the partition by cost, which compares both."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch.backend.products_on_cpu import move_products_to_cpu, products
from ethorch.figures.layer import CPU
from ethorch.program.program import record_of
from ethorch.support.errors import EthorchError, SpecError
from ethorch.targets.settings import Settings

KERNEL = "cortex_m::quantized_batch_matmul.out"


class Attention(nn.Module):
    """Two heads of 16 channels over 48 places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleList([nn.Linear(32, 32) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part(x).reshape(48, 2, 16).transpose(0, 1) for part in self.parts)
        return torch.softmax(query @ key.transpose(1, 2) / 4, -1) @ value


@pytest.fixture(scope="module")
def walks() -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(1, 48, 32).cumsum(1) / 8 for _ in range(4)]


@pytest.fixture(scope="module")
def usual(walks: list[Tensor]) -> ethorch.Program:
    settings = ethorch.Settings(stream="vela")
    return ethorch.compile(Attention().eval(), walks[0], "ethos-u55-128", calibration=walks, settings=settings)


@pytest.fixture(scope="module")
def cheaper(walks: list[Tensor]) -> ethorch.Program:
    settings = ethorch.Settings(partition="cost", stream="vela")
    return ethorch.compile(Attention().eval(), walks[0], "ethos-u55-128", calibration=walks, settings=settings)


def test_cost_leaves_products_to_the_cpu_of_u55(usual: ethorch.Program, cheaper: ethorch.Program, walks: list[Tensor]) -> None:
    assert cheaper.settings is not None and cheaper.settings.partition == "cpu-matmul"
    kernels = [layer for layer in record_of(cheaper).layers if layer.operator == KERNEL]
    assert len(kernels) == 2 and {layer.estimate for layer in kernels} == {"int8 mac.cortex_m"}
    assert kernels[0].macs == 2 * 48 * 48 * 16 and kernels[0].cycles == kernels[0].macs / 2
    assert (cheaper.estimate.milliseconds or 0) < 0.9 * (usual.estimate.milliseconds or 0)
    assert [attempt.change for attempt in cheaper.budgets.attempts] == ["", "products of two activations on the CPU"]
    assert cheaper.budgets.attempts[0].milliseconds == usual.estimate.milliseconds
    assert not any(layer.operator == KERNEL for layer in record_of(usual).layers)
    for x in walks:
        assert ethorch.sqnr_db(usual(x), cheaper(x)) > 35


def test_it_is_said(cheaper: ethorch.Program) -> None:
    reasons = {refusal["id"] for refusal in cheaper.to_json()["cpu"]}
    assert {"cost.product_on_cpu", "cost.scratch_of_product"} <= reasons
    assert cheaper.to_json()["writer"]["name"] == "ethorch"
    assert "[cost.product_on_cpu]" in str(cheaper.explain()) and "(assumed)" in str(cheaper.to_json()["estimate"])


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_the_npu_keeps_what_it_does_faster(walks: list[Tensor], target: str) -> None:
    """Passes compute the products of attention on U55 as convolutions."""
    settings = ethorch.Settings(partition="cost")
    found = ethorch.compile(Attention().eval(), walks[0], target, calibration=walks, settings=settings)
    assert found.settings is not None and found.settings.partition == "npu" and len(found.budgets.attempts) == 2
    assert all(layer.operator != KERNEL for layer in record_of(found).layers if layer.where == CPU)


def test_products_of_other_types_and_models_without(usual: ethorch.Program, walks: list[Tensor]) -> None:
    assert record_of(usual).quantized is not None and len(products(record_of(usual).quantized)) == 2  # type: ignore[arg-type]
    sixteen = ethorch.quantize(Attention().eval(), walks[0], calibration=walks, scheme="a16w8")
    assert not products(sixteen)
    with pytest.raises(EthorchError, match="no product of two int8 activations"):
        move_products_to_cpu(sixteen)
    dense = ethorch.compile(nn.Linear(32, 8).eval(), walks[0], calibration=walks, settings=ethorch.Settings(partition="cost"))
    assert dense.settings is not None and dense.settings.partition == "npu" and len(dense.budgets.attempts) == 1
    with pytest.raises(SpecError, match="unknown partition 'cots'"):
        Settings(partition="cots")
