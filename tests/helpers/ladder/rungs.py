"""Layers with equal results: the lowered graph in the TOSA reference model, Vela's command stream in the simulator."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from ethorch import EthosUCompileSpec
from ethorch.lower.fx.node import Converted, constants_of
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.lower.walk import Walk, lower_program
from ethorch.tosa import interpreter
from ethorch.tosa.ir import Graph
from ethorch.tosa.serialize import serialize
from ethorch.tosa.verify import verify
from ethorch.vela.delegate import builder_for
from tests.helpers.quantized import Quantized
from tests.helpers.tosa_runs import machine, reference


def lowered(program: torch.export.ExportedProgram | Converted, target: str) -> Graph:
    """Return the program as one rewritten and verified TOSA graph."""
    return _lowered(program, target)[1]


def _lowered(program: torch.export.ExportedProgram | Converted, target: str) -> tuple[Graph, Graph]:
    """Return the program as one TOSA graph, before and after the rewrites."""
    builder = builder_for(EthosUCompileSpec(target).target)
    source = lower_program(program, builder)
    graph = rewrite(source.copy(), tuning=builder.tuning)
    verify(graph)
    return source, graph


def refusal_ids(program: torch.export.ExportedProgram | Converted, target: str) -> set[str]:
    """Return the ids of the reasons in a dry run of the program."""
    builder = builder_for(EthosUCompileSpec(target).target)
    return {reason.id for reason in Walk(program.graph, constants_of(program), builder, strict=False).run().refusals.values()}


@dataclass(frozen=True)
class Climb:
    """Results of each layer for one input: codes of every output."""

    graph: Graph
    fake_quantized: list[np.ndarray]  # int64
    reference: list[np.ndarray]
    simulated: list[np.ndarray]

    def beside(self, other: list[np.ndarray]) -> Climb:
        """Return a copy with the elements of ``other`` that are nearer to the reference model's than PyTorch's."""
        rows = zip(self.fake_quantized, other, self.reference, strict=True)
        nearer = [np.where(np.abs(b - got) < np.abs(a - got), b, a) for a, b, got in rows]
        return replace(self, fake_quantized=nearer)

    @property
    def steps_off(self) -> int:
        """Return the largest distance between fake-quantized PyTorch and the TOSA reference model, in codes."""
        pairs = zip(self.fake_quantized, self.reference, strict=True)
        return max(int(np.abs(want - got.astype(np.int64)).max(initial=0)) for want, got in pairs)

    @property
    def rms_steps(self) -> float:
        """Return the root mean square of that distance, over all elements."""
        pairs = zip(self.fake_quantized, self.reference, strict=True)
        off = np.concatenate([(want - got.astype(np.int64)).ravel() for want, got in pairs])
        return float(np.sqrt(np.square(off.astype(np.float64)).mean())) if off.size else 0.0

    @property
    def different(self) -> int:
        """Count the elements that differ between simulator and reference model."""
        return sum(int((a.ravel() != b.ravel()).sum()) for a, b in zip(self.reference, self.simulated, strict=True))


def climbed(q: Quantized, inputs: tuple[torch.Tensor, ...], target: str = "ethos-u55-128") -> Climb:
    """Run all layers on one input. The interpreter must equal the reference model before and after the rewrites.

    Raises:
        Unsupported: The target refuses the program.
    """
    source, graph = _lowered(q.converted, target)
    tosa = serialize(graph)
    codes = q.input_codes(inputs)
    codes = [x.astype(np.int8) if value.dtype == "INT8" else x for x, value in zip(codes, graph.inputs, strict=True)]
    wanted = reference(tosa, codes)
    for interpreted in (interpreter.run(source, codes), interpreter.run(graph, codes)):
        for a, b in zip(interpreted, wanted, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_array_equal(a, b)
    return Climb(graph, q.output_codes(inputs), wanted, machine(tosa, codes, EthosUCompileSpec(target)))


def climb(
    q: Quantized, inputs: tuple[torch.Tensor, ...], target: str = "ethos-u55-128", tolerance: int = 1
) -> tuple[Graph, list[np.ndarray]]:
    """Run all layers on one input and assert that they agree. Return the graph and the reference's outputs."""
    found = climbed(q, inputs, target)
    for want, got in zip(found.fake_quantized, found.reference, strict=True):
        assert want.shape == got.shape
        assert np.abs(want - got.astype(np.int64)).max(initial=0) <= tolerance, (want.ravel()[:10], got.ravel()[:10])
    for got, want in zip(found.simulated, found.reference, strict=True):
        np.testing.assert_array_equal(got.ravel(), want.ravel())
    return found.graph, found.reference
