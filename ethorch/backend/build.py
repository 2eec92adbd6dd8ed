"""From a converted graph to a ``.pte``: by ethorch's writer, or by ExecuTorch's own lowering for a reason that is recorded."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from torch import nn
from torch.fx import GraphModule

from ethorch.backend.emit import reasons
from ethorch.backend.emit.build import Build
from ethorch.backend.emit.write import write_pte
from ethorch.lower.fx.outputs import with_serializable_outputs
from ethorch.lower.fx.states import with_codes
from ethorch.lower.state_buffer import StateBuffer
from ethorch.models.load import Inputs
from ethorch.models.open_sizes import list_unlimited_dims
from ethorch.support.errors import Reason
from ethorch.support.garbage import delay_collection
from ethorch.support.progress import stage
from ethorch.targets.compile_spec import EthosUCompileSpec

logger = logging.getLogger(__name__)


def build_pte(
    quantized: nn.Module,
    example_inputs: Inputs,
    spec: EthosUCompileSpec,
    *,
    etrecord: bool = False,
    shared: bool = False,
    wide: Collection[str] = (),
    dynamic_shapes: Sequence[dict[int, Any]] | None = None,
) -> Build:
    """Lower and serialize a quantized model for the spec's target. Vela compiles each delegate once.

    ethorch writes the program (``ethorch.backend.emit``). If it does not write this graph, ExecuTorch exports and partitions it
    anew, which takes longer and gives the same payloads; ``PartitionReport.executorch_reason`` is the reason.
    Buffers that the model changes hold codes where what is written to them is quantized (``ethorch.lower.fx.states``).

    Args:
        etrecord: make ExecuTorch's ETRecord too, which holds the graphs that only ExecuTorch's own way makes.
        shared: buffers that are kept from call to call lie in a memory of their own, with their names, to be shared with other
            methods (``formats.pte_merge``).
        wide: counters that stay of int64.
        dynamic_shapes: the open dims of each input tensor; such a program goes ExecuTorch's way.

    Raises:
        EthorchError: ExecuTorch cannot make a program of it.
    """
    for number, axis in list_unlimited_dims(dynamic_shapes or ()):
        logger.warning(
            "axis %d of input %d has no greatest size: ExecuTorch reserves memory for that of the example inputs, and the program "
            "accepts at most that. Export with Dim(..., max=N), or give shapes=[...]. [dynamic.no_maximum]",
            axis,
            number,
        )
    states: tuple[StateBuffer, ...] = ()
    with stage("compile"), delay_collection():
        if isinstance(quantized, GraphModule):
            quantized, states = with_codes(with_serializable_outputs(quantized), wide)
        return replace(_lower(quantized, example_inputs, spec, etrecord, shared, dynamic_shapes), states=states)


def _lower(
    quantized: nn.Module,
    example_inputs: Inputs,
    spec: EthosUCompileSpec,
    etrecord: bool,
    shared: bool,
    dynamic_shapes: Sequence[dict[int, Any]] | None,
) -> Build:
    """Lower a graph whose buffers already hold codes; the arguments are those of ``build_pte``."""
    result: Build | Reason
    if etrecord:
        result = reasons.etrecord()
    elif dynamic_shapes:
        result = reasons.open_sizes()
    elif not isinstance(quantized, GraphModule):
        result = reasons.not_converted(type(quantized).__name__)
    else:
        result = write_pte(quantized, spec)
    if isinstance(result, Build):
        return result
    logger.debug("ExecuTorch writes the program: %s", result)
    from ethorch.backend.through_executorch import lower_by_executorch  # 1.5 seconds of ExecuTorch

    build = lower_by_executorch(quantized, example_inputs, spec, etrecord=etrecord, shared=shared, dynamic_shapes=dynamic_shapes)
    build.partition.executorch_reason = result
    return build
