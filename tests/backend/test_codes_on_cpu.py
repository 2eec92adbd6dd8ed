"""Rows that the CPU picks are picked as codes: no table is dequantized whole, and nothing is quantized twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from torch import Tensor, nn

from ethorch import EthosUPartitioner, QuantizationConfig, runtime
from ethorch.arm.quantizer import get_symmetric_a16w8_quantization_config
from ethorch.lower.fx.node import DEQUANTIZE, QUANTIZE, op_name
from tests.backend.test_partitioner import SPEC
from tests.helpers.quantized import quantized

IDS = torch.tensor([[3, 0, 31], [7, 7, 2]])


class Tokens(nn.Module):
    """Rows of a table, to a layer and to ``reader``; the cast to float32 is one that ExecuTorch removes."""

    def __init__(self, reader: Callable[[Tensor], Tensor] | None = None):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.layer, self.reader = nn.Embedding(32, 8), nn.Linear(8, 8), reader

    def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
        rows = self.table(ids)
        y = self.layer(rows.to(torch.float32))
        return (y,) if self.reader is None else (y, self.reader(rows))


class Places(nn.Module):
    """Rows of what the NPU computes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.first, self.last = nn.Embedding(32, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
        x = self.first(self.table(ids)).flatten(0, 1)
        return (self.last(x[ids[0].clamp(max=5)] * torch.index_select(x, 0, ids[1].clamp(max=5))),)


CASES: dict[str, tuple[Callable[[], nn.Module], QuantizationConfig | None, int]] = {
    "embedding": (Tokens, None, 1),
    "int16": (Tokens, get_symmetric_a16w8_quantization_config(), 1),
    "read in float": (lambda: Tokens(lambda rows: torch.topk(rows, 3).values), None, 2),
    "index": (Places, None, 1),
}


@pytest.mark.parametrize("name", [x if x == "read in float" else pytest.param(x, marks=pytest.mark.long) for x in CASES])
def test_the_cpu_dequantizes_what_it_picked_alone(name: str) -> None:
    make, config, dequantized = CASES[name]
    module = quantized(make(), [(IDS,), (IDS.flip(1),)], config).module
    config_ = EdgeCompileConfig(_check_ir_validity=False)
    edge = to_edge_transform_and_lower(
        torch.export.export(module, (IDS,)), partitioner=[EthosUPartitioner(SPEC)], compile_config=config_
    )
    calls = [node for node in edge.exported_program().graph.nodes if node.op == "call_function"]
    assert all(node.args[0].op != "placeholder" for node in calls if op_name(node.target) in DEQUANTIZE)
    assert sum(op_name(node.target) in DEQUANTIZE for node in calls) == dequantized
    assert not any(op_name(node.target) in QUANTIZE for node in calls)
    program = runtime.load(edge.to_executorch(config=ExecutorchBackendConfig(extract_delegate_segments=False)).buffer)
    for found, wanted in zip(program(IDS), module(IDS), strict=True):
        torch.testing.assert_close(found, wanted, atol=0.06, rtol=0)
