"""A program with operators on both sides, as plain data, and what is made of it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ethorch


class Both(nn.Module):
    """Convolutions around the CPU's topk."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.topk(self.stem(x), 8, dim=3).values)


@pytest.fixture(scope="session")
def program() -> ethorch.Program:
    torch.manual_seed(0)
    small = torch.rand(4, 1, 3, 4, 4)
    images = [nn.functional.interpolate(x, (16, 16), mode="bilinear") for x in small]
    program = ethorch.compile(
        Both().eval(),
        images[0],
        "ethos-u55-128",
        calibration=images,
        ram="64K",
        latency_ms=0.001,
        min_sqnr_db=10,
        settings=ethorch.Settings(memory_mode="Shared_Sram"),
    )
    assert program.accuracy is not None
    return program


@pytest.fixture(scope="session")
def _data(program: ethorch.Program) -> str:
    return json.dumps(program.to_json())


@pytest.fixture
def data(_data: str) -> dict[str, Any]:
    """Its data, as a file has it; a test may change it."""
    return json.loads(_data)  # type: ignore[no-any-return]


def repeated(data: dict[str, Any], count: int) -> dict[str, Any]:
    """The data with its layers and tensors again and again, until there are so many layers."""
    times = -(-count // len(data["layers"]))
    memory = data["memory"]
    layers, tensors = [], []
    for k in range(times):
        shift = k * len(data["layers"])
        for layer in copy.deepcopy(data["layers"]):
            module = f"stage{k}.{layer['module']}" if layer["module"] else ""
            layers.append({**layer, "index": layer["index"] + shift, "name": f"{layer['name']}_{k}", "module": module})
        for tensor in memory["tensors"]:
            times_of = {name: tensor[name] + shift for name in ("first", "last")}
            times_of |= {name: tensor[name] + 2 * shift for name in ("begins", "ends")}
            tensors.append({**tensor, **times_of, "name": f"{tensor['name']}_{k}"})
    total = sum(layer["op_cycles"] for layer in layers)
    for layer in layers:
        layer["share"] = layer["op_cycles"] / total
    return {**data, "layers": layers, "memory": {**memory, "tensors": tensors, "layer_count": len(layers)}}
