"""Operators broken up for the CPU compute what they did, also those with several results."""

from __future__ import annotations

import torch
from executorch.exir import EdgeCompileConfig, to_edge
from torch import Tensor, nn
from torch.export import ExportedProgram

from ethorch.backend.break_up import break_up


class Extremes(nn.Module):
    """What has two results; the second is the program's."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        low, high = torch.aminmax(x)
        return low + 1, high


class Normalized(nn.Module):
    """A batch norm, which PyTorch breaks up no further."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.norm(x), x * 2


def edge_program(model: nn.Module, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    return to_edge(
        torch.export.export(model.eval(), inputs),
        compile_config=EdgeCompileConfig(_check_ir_validity=False, preserve_ops=[torch.ops.aten.aminmax.default]),
    ).exported_program()


def test_results_of_an_operator_with_several_are_those_of_its_parts() -> None:
    model, inputs = Extremes(), (torch.randn(2, 3, 4),)
    program = edge_program(model, inputs)
    before = [spec.arg.name for spec in program.graph_signature.output_specs]
    whole = [node for node in program.graph.nodes if "aminmax" in str(node.target)]
    assert len(whole) == 1
    made = break_up(program, whole)
    assert [str(node.target._op) for node in made] == ["aten.amin.default", "aten.amax.default"]
    assert not [node for node in program.graph.nodes if "aminmax" in str(node.target)]
    assert [node.name for node in program.graph.output_node().args[0]] == before
    for found, wanted in zip(program.module()(*inputs), model(*inputs), strict=True):
        torch.testing.assert_close(found, wanted)


def test_what_pytorch_breaks_up_no_further_stays_as_it_is() -> None:
    program = edge_program(Normalized(), (torch.randn(1, 3, 4, 4),))
    whole = [node for node in program.graph.nodes if "batch_norm" in str(node.target)]
    assert len(whole) == 1
    assert break_up(program, whole) == []
    assert [node for node in program.graph.nodes if "batch_norm" in str(node.target)] == whole
