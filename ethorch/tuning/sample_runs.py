"""Running a graph on samples, every time from the same state: a model that writes to its buffers is compared with itself."""

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
#: Buffers by name, as they were before the first run.
State = Mapping[str, Tensor]
#: Whose outputs a metric is of: the fake-quantized model's, or those of the simulated NPU.
JUDGES = FAKE, NPU = "quantized", "npu"


def export_copy(model: nn.Module, inputs: Inputs) -> GraphModule:
    """A graph module of the model that may be run and changed: the user's buffers and graph stay as they are.

    Args:
        model: in eval mode, or a graph module from torch.export.
        inputs: fix the shapes.

    Raises:
        QuantizationError, UserCodeError: as of ``lower.fx.export.export_module``.
    """
    if isinstance(model, GraphModule):
        return copy.deepcopy(model)
    graph: GraphModule = fold(export.export_module(model.eval(), inputs).module(check_guards=False))
    return copy.deepcopy(graph, {id(parameter): parameter for parameter in graph.parameters()})


def copy_state(graph: GraphModule) -> State:
    """Its buffers, copied."""
    return {name: buffer.clone() for name, buffer in graph.named_buffers()}


def reset(graph: GraphModule, state: State) -> None:
    """Write the state back into the buffers of these names; others stay as they are."""
    with torch.no_grad():
        for name, buffer in graph.named_buffers():
            if name in state:
                buffer.copy_(state[name])


def compute_outputs(graph: GraphModule, samples: Iterable[Inputs], state: State) -> list[Any]:
    """What the graph returns for each sample, one after the other, the first of them from ``state``."""
    reset(graph, state)
    with torch.no_grad():
        return [graph(*inputs) for inputs in samples]


def outputs_on_npu(build: Build, graph: GraphModule, samples: Sequence[Inputs]) -> list[Any]:
    """What a program gives for each sample on the simulated NPU, one after the other, nested as the graph returns it.

    Args:
        graph: that the program is made of.
    """
    structure = graph._out_spec
    assert structure is not None, "of a graph from torch.export"
    return [pytree.tree_unflatten(list(flat), structure) for flat in runtime.load(build.pte).run_many(samples)]


def check_judge(judge: str) -> None:
    """QuantizationError unless the figures are to be of the fake-quantized model or of the NPU."""
    if judge not in JUDGES:
        raise QuantizationError("accuracy.judge", f"judge={judge!r}: figures can be of {' or '.join(map(repr, JUDGES))}")
