from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from torch import nn
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from ethorch.backend.emit import reasons
from ethorch.backend.emit.build import Build
from ethorch.backend.emit.write import write_pte
from ethorch.lower.fx.states import with_codes
from ethorch.lower.fx.structure import with_serializable_structure
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
    """Lower and serialize a quantized model.

    If ethorch's writer (``ethorch.backend.emit``) does not support the graph or Vela rejects a delegate, ExecuTorch exports and
    partitions the graph again, which is slower. ``PartitionReport.executorch_reason`` records the reason.

    Args:
        etrecord: Whether to create an ETRecord, which requires ExecuTorch's lowering.
        shared: Whether ExecuTorch must place mutable buffers in a separate memory that methods can share.
        wide: Names of mutable buffers, such as counters, that stay int64.
        dynamic_shapes: Dynamic dims of each input tensor, keyed by axis. Requires ExecuTorch's lowering.

    Raises:
        EthorchError: ExecuTorch does not support the model.
    """
    for number, axis in list_unlimited_dims(dynamic_shapes or ()):
        logger.warning(
            "axis %d of input %d has no maximum size, so its size in the example inputs becomes the maximum. Export with "
            "Dim(..., max=N), or use shapes=[...]. [dynamic.no_maximum]",
            axis,
            number,
        )
    states: tuple[StateBuffer, ...] = ()
    with stage("compile"), delay_collection():
        if isinstance(quantized, GraphModule):
            quantized, states = with_codes(with_serializable_structure(quantized), wide)
            example_inputs = _structured_like(quantized, example_inputs)
        return replace(_lower(quantized, example_inputs, spec, etrecord, shared, dynamic_shapes), states=states)


def _structured_like(module: GraphModule, inputs: Inputs) -> Inputs:
    structure = getattr(module, "_in_spec", None)
    if structure is None:
        return inputs
    arguments, keywords = pytree.tree_unflatten(pytree.tree_leaves(inputs), structure)
    return (*arguments, *keywords.values())


def _lower(
    quantized: nn.Module,
    example_inputs: Inputs,
    spec: EthosUCompileSpec,
    etrecord: bool,
    shared: bool,
    dynamic_shapes: Sequence[dict[int, Any]] | None,
) -> Build:
    outcome: Build | Reason
    if etrecord:
        outcome = reasons.etrecord()
    elif dynamic_shapes:
        outcome = reasons.open_sizes()
    elif not isinstance(quantized, GraphModule):
        outcome = reasons.not_converted(type(quantized).__name__)
    else:
        outcome = write_pte(quantized, spec)
    if isinstance(outcome, Build):
        return outcome
    logger.debug("ExecuTorch writes the program: %s", outcome)
    from ethorch.backend.through_executorch import lower_by_executorch  # imports ExecuTorch in 1.5 seconds

    build = lower_by_executorch(quantized, example_inputs, spec, etrecord=etrecord, shared=shared, dynamic_shapes=dynamic_shapes)
    build.partition.executorch_reason = outcome
    return build
