"""From a converted graph to a ``.pte``: without ExecuTorch if it is one delegate, or with ExecuTorch for what the CPU runs."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.fx import GraphModule

from ethorch.backend.emit.build import Build
from ethorch.backend.emit.program import program_of
from ethorch.backend.emit.whole import NotWhole, lower_whole
from ethorch.formats.pte_writer import write
from ethorch.lower.fx.outputs import with_serializable_outputs
from ethorch.lower.fx.states import with_codes
from ethorch.lower.state_buffer import StateBuffer
from ethorch.models.load import Inputs
from ethorch.models.open_sizes import list_unlimited_dims
from ethorch.support.errors import Unsupported, VelaError
from ethorch.support.garbage import delay_collection
from ethorch.support.progress import stage
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.vela import artifacts

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

    A model that is one delegate as a whole takes ``ethorch.backend.emit``'s way, in about the time that Vela takes. Of one with
    operators on the CPU, ExecuTorch is shown the CPU's part (``ethorch.backend.reduced``). What neither can take (control flow,
    channels last, what only Vela declines) ExecuTorch exports anew and partitions. The payloads are the same.
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
        return replace(_built(quantized, example_inputs, spec, etrecord, shared, dynamic_shapes), states=states)


def _built(
    quantized: nn.Module,
    example_inputs: Inputs,
    spec: EthosUCompileSpec,
    etrecord: bool,
    shared: bool,
    dynamic_shapes: Sequence[dict[int, Any]] | None,
) -> Build:
    """Lower a graph whose buffers already hold codes; the arguments are those of ``build_pte``."""
    if isinstance(quantized, GraphModule) and not etrecord and not dynamic_shapes:
        try:
            return _built_directly(quantized, spec)
        except (NotWhole, Unsupported, VelaError) as error:  # what is declined, the partitioner leaves to the CPU
            logger.debug("not directly: %s", error)
        from ethorch.backend.through_executorch import built_reduced  # 1.5 seconds of ExecuTorch

        try:
            return built_reduced(quantized, example_inputs, spec, shared=shared)
        except (NotWhole, Unsupported, VelaError) as error:
            logger.debug("not reduced: %s", error)
    from ethorch.backend.through_executorch import built_by_executorch  # 1.5 seconds, if not imported above

    return built_by_executorch(quantized, example_inputs, spec, etrecord=etrecord, shared=shared, dynamic_shapes=dynamic_shapes)


def _built_directly(quantized: GraphModule, spec: EthosUCompileSpec) -> Build:
    """Lower a graph that is one delegate, without ExecuTorch.

    Raises:
        NotWhole, VelaError: ``lower_whole`` refuses it.
    """
    whole = lower_whole(quantized, spec)
    logger.info("%s", whole.partition.summary())
    if spec.path_for_intermediates:
        lowered = whole.lowered
        folder, debug = Path(spec.path_for_intermediates), spec.tosa_debug_mode
        artifacts.write(folder, lowered.graph, lowered.tosa, lowered.payload, lowered.sources, debug)
    return Build(write(program_of(whole, spec)), whole.partition, (whole.lowered,), spec)
