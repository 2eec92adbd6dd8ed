"""Compile a converted graph to a ``.pte`` without ExecuTorch."""

from __future__ import annotations

import logging
from pathlib import Path

from torch.fx import GraphModule

from ethorch.backend.emit import reasons
from ethorch.backend.emit.build import Build
from ethorch.backend.emit.checks import structure_of
from ethorch.backend.emit.partitions import partition_graph
from ethorch.backend.emit.writer import Writer
from ethorch.backend.products_on_cpu import rename_kernels
from ethorch.formats.payload import BACKEND_ID
from ethorch.formats.pte_types import Delegate
from ethorch.formats.pte_writer import write
from ethorch.lower.fx.states import with_reads_first
from ethorch.support.errors import Reason, Unsupported, VelaError
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.vela import artifacts
from ethorch.vela.delegate import compile_lowered

logger = logging.getLogger(__name__)


def write_pte(quantized: GraphModule, spec: EthosUCompileSpec) -> Build | Reason:
    """Partition a graph, compile each partition once, and write the program.

    Args:
        quantized: Graph from ``convert_pt2e``, with quantized mutable buffers. It is not changed.

    Returns:
        The program, or the reason why ExecuTorch's lowering is needed.
    """
    graph = partition_graph(with_reads_first(quantized), spec)
    if isinstance(graph, Reason):
        return graph
    writer = Writer(graph)
    if reason := writer.add_graph():
        return reason
    try:
        compiled = [compile_lowered(partition.graph, partition.tuning, spec) for partition in graph.partitions]
    except (Unsupported, VelaError) as error:
        return reasons.vela_refusal(str(error))
    delegates = tuple(compiled[number] for number in writer.calls)
    if spec.path_for_intermediates:
        for lowered in delegates:
            folder, debug = Path(spec.path_for_intermediates), spec.tosa_debug_mode
            artifacts.write(folder, lowered.graph, lowered.tosa, lowered.payload, lowered.sources, debug)
    logger.info("%s", graph.report.summary())
    options = tuple(spec.publish().to_pairs())
    blobs = [Delegate(BACKEND_ID, lowered.payload.pack(), options) for lowered in delegates]
    return Build(rename_kernels(write(writer.program(blobs, structure_of(quantized)))), graph.report, delegates, spec)
