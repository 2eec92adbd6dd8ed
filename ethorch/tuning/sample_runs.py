"""Run graphs on samples from the same initial state."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from ethorch import runtime
from ethorch.backend.emit.build import Build
from ethorch.lower.fx import export
from ethorch.quantization.constrained_weights import fold
from ethorch.support.errors import QuantizationError

#: Arguments of one call of the model.
Inputs = tuple[Any, ...]
#: Initial values of buffers by name.
State = Mapping[str, Tensor]
#: Source of the outputs that a metric compares: the fake-quantized model or the simulated NPU.
JUDGES = FAKE, NPU = "quantized", "npu"


def export_copy(model: nn.Module, inputs: Inputs) -> GraphModule:
    """Return a copy of a graph module, or export any other model.

    An exported graph shares the model's parameters and has copies of its buffers.

    Raises:
        QuantizationError, UserCodeError: See ``lower.fx.export.export_module``.
    """
    if isinstance(model, GraphModule):
        return copy.deepcopy(model)
    graph: GraphModule = fold(export.export_module(model.eval(), inputs).module(check_guards=False))
    return copy.deepcopy(graph, {id(parameter): parameter for parameter in graph.parameters()})


def copy_state(graph: GraphModule) -> State:
    return {name: buffer.clone() for name, buffer in graph.named_buffers()}


def reset(graph: GraphModule, state: State) -> None:
    """Restore the buffers that ``state`` contains."""
    with torch.no_grad():
        for name, buffer in graph.named_buffers():
            if name in state:
                buffer.copy_(state[name])


def compute_outputs(graph: GraphModule, samples: Iterable[Inputs], state: State) -> list[Any]:
    """Restore ``state`` once, run the samples in order, and return the outputs for each sample."""
    reset(graph, state)
    with torch.no_grad():
        return [graph(*inputs) for inputs in samples]


def outputs_on_npu(build: Build, graph: GraphModule, samples: Sequence[Inputs]) -> list[Any]:
    """Run a program on the simulated NPU and return the outputs for each sample, structured like the outputs of ``graph``."""
    structure = graph._out_spec
    assert structure is not None, "expected a graph from torch.export"
    return [pytree.tree_unflatten(list(flat), structure) for flat in runtime.load(build.pte).run_many(samples)]


def check_judge(judge: str) -> None:
    if judge not in JUDGES:
        raise QuantizationError("accuracy.judge", f"expected judge={' or '.join(map(repr, JUDGES))}, got {judge!r}")
