"""Batch norms folded into the convolutions before them, in time that is linear in their number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.fx import Graph, GraphModule
from torchao.quantization.pt2e.utils import _fuse_conv_bn_


def fold_batch_norms(graph: GraphModule) -> None:
    """Fold what ``prepare_pt2e`` would fold first of all, in place, to the same nodes and weights.

    torchao looks through all of the graph for dead code after each batch norm, so that 200 of them take most of the time of
    preparing; here that is done once.
    """
    with _without_search(graph.graph):
        _fuse_conv_bn_(graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()


@contextmanager
def _without_search(graph: Graph) -> Iterator[None]:
    """Calls of ``graph.eliminate_dead_code`` do nothing."""
    setattr(graph, "eliminate_dead_code", lambda *_: False)  # noqa: B010
    try:
        yield
    finally:
        delattr(graph, "eliminate_dead_code")
