"""The rewrites between lowering and Vela. No rewrite changes results."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Generic, TypeVar

from ethorch.lower.rewrite.fold_broadcasts import fold_broadcasts, fold_high_ranks
from ethorch.lower.rewrite.fold_pools import fold_pools
from ethorch.lower.rewrite.fold_strides import fold_strides
from ethorch.lower.rewrite.fold_wide_moves import fold_wide_moves
from ethorch.lower.rewrite.insert_copies import copy_broadcast_constants
from ethorch.lower.rewrite.keep_shapes import keep_shapes
from ethorch.lower.rewrite.order_channels import order_channels
from ethorch.lower.rewrite.peephole import (
    merge_neighbours,
    move_reshapes_before_pads,
    move_tables_after_transposes,
    move_tables_before_moves,
)
from ethorch.lower.rewrite.rescale_to_depthwise import rescale_to_depthwise
from ethorch.lower.rewrite.rewriter import Names, Rewriter
from ethorch.lower.rewrite.select_channels import select_channels
from ethorch.lower.rewrite.split_convolutions import split_convolutions, split_weights
from ethorch.lower.rewrite.split_tiles import split_tiles
from ethorch.lower.rewrite.split_transposes import split_transposes
from ethorch.lower.rewrite.vela_bugs import work_around
from ethorch.targets.tuning import UNTUNED, FoldColumns, FoldSquares, Tuning
from ethorch.tosa.ir import Graph
from ethorch.tosa.text import to_text
from ethorch.tosa.verify import verify

Setting = TypeVar("Setting")
Run = Callable[[Rewriter, Tuning], None]
#: Function that receives the name of a step that changed the graph, and the graph.
Dump = Callable[[str, Graph], None]


@dataclass(frozen=True)
class Step:
    """A rewrite and the reason for its position."""

    name: str
    run: Run
    why_here: str


@dataclass(frozen=True)
class Repeat:
    """A list of steps that restarts after each change."""

    steps: tuple[Step, ...]
    why_here: str


def always(rewrite: Callable[[Rewriter], None]) -> Run:
    return lambda r, tuning: rewrite(r)


@dataclass(frozen=True)
class Tuned(Generic[Setting]):
    """A rewrite with a parameter from the target's tuning. It is skipped if the parameter is not set."""

    rewrite: Callable[[Rewriter, Setting], None]
    setting: Callable[[Tuning], Setting | None]

    def __call__(self, r: Rewriter, tuning: Tuning) -> None:
        if (setting := self.setting(tuning)) is not None:
            self.rewrite(r, setting)


def where(condition: Callable[[Tuning], bool], rewrite: Callable[[Rewriter], None]) -> Run:
    def run(r: Rewriter, tuning: Tuning) -> None:
        if condition(tuning):
            rewrite(r)

    return run


PIPELINE: tuple[Step | Repeat, ...] = (
    Step(
        "fold wide moves",
        always(fold_wide_moves),
        "First, because later steps merge the RESHAPEs that this step adds.",
    ),
    Step(
        "fold broadcasts",
        always(fold_broadcasts),
        "Before neighbours are merged, because merging would separate operators from their RESCALEs.",
    ),
    Step(
        "fold high ranks",
        always(fold_high_ranks),
        "After ``fold broadcasts``, because this step separates operators from their RESCALEs.",
    ),
    Step(
        "fold pools",
        Tuned(fold_pools, lambda t: t.fewest_results_of_wide_stride),
        "Before neighbours are merged, because merging removes the RESHAPEs that this step adds.",
    ),
    Step(
        "move tables before moves",
        always(move_tables_before_moves),
        "Before neighbours are merged, so that TABLEs become adjacent to TABLEs, and TRANSPOSEs to TRANSPOSEs.",
    ),
    Step(
        "move reshapes before pads",
        always(move_reshapes_before_pads),
        "Before neighbours are merged, so that convolutions can absorb PADs.",
    ),
    Repeat(
        (
            Step(
                "merge neighbours",
                always(merge_neighbours),
                "First, because this step is fast and simplifies the graph.",
            ),
            Step(
                "split convolutions",
                always(split_convolutions),
                "Before ``keep shapes``, which moves the RESHAPEs that this step adds.",
            ),
            Step(
                "fold strides",
                Tuned[FoldColumns | FoldSquares](fold_strides, lambda t: t.fold_strides),
                "After padding is merged into the convolutions, because this step folds the padding.",
            ),
            Step(
                "keep shapes",
                always(keep_shapes),
                "Last, because this step moves RESHAPEs, which are then merged with other RESHAPEs.",
            ),
        ),
        "Each step can enable the other steps.",
    ),
    Step(
        "select channels",
        Tuned(select_channels, lambda t: t.largest_selection),
        "After neighbours are merged, because fewer RESHAPEs and TRANSPOSEs then remain to be analyzed.",
    ),
    Step(
        "order channels",
        lambda r, t: order_channels(r, by_nhwc=t.shuffles_by_nhwc),
        "After ``select channels``, which removes TRANSPOSEs, and before ``split transposes``.",
    ),
    Step(
        "split transposes",
        Tuned(split_transposes, lambda t: t.transpose_steps),
        "After ``select channels``, which removes TRANSPOSEs, and after ``merge neighbours``, which would undo the split.",
    ),
    Step(
        "move tables after transposes",
        always(move_tables_after_transposes),
        "After all steps that remove TRANSPOSEs of convolutions.",
    ),
    Step(
        "split tiles",
        Tuned(split_tiles, lambda t: t.tile_steps),
        "Before Vela's bugs are avoided, because some bugs affect the SLICEs that this step adds.",
    ),
    Step(
        "split weights",
        Tuned(split_weights, lambda t: t.split_weights),
        "After all steps that change or move convolutions, which would not recognize their slices.",
    ),
    Step(
        "copy broadcast constants",
        where(lambda t: t.copies_broadcast_constants, copy_broadcast_constants),
        "After ``keep shapes``, which determines the shapes from which constants are broadcast.",
    ),
    Step(
        "rescale by depthwise convolutions",
        lambda r, t: rescale_to_depthwise(r, t.smallest_rescale_by_depthwise, t.tables_by_depthwise),
        "After ``select channels``, which also replaces RESCALEs with convolutions.",
    ),
    Step(
        "work around Vela's bugs",
        work_around,
        "Last, because other steps could remove or merge the copies that this step adds.",
    ),
)


def rewrite(graph: Graph, tuning: Tuning = UNTUNED, *, dump: Dump | None = None) -> Graph:
    """Run ``PIPELINE`` in place on ``graph`` and its regions, innermost first, and verify the graph.

    Args:
        tuning: Tuning of the target. Default: no NPU-specific rewrites.
        dump: Function called with a name (``as lowered``, then each step that changed the graph) and the graph.
            See :func:`dump_to`.
    """
    names = Names(graph)

    def run(step: Step, r: Rewriter) -> bool:
        before = r.changes
        step.run(r, tuning)
        if r.changes == before:
            return False
        r.drop_dead()
        r.finish()
        verify(graph)
        if dump is not None:
            dump(f"{step.name} in {r.graph.name}" if r.is_region else step.name, graph)
        return True

    if dump is not None:
        dump("as lowered", graph)
    for region in reversed(list(graph.regions())):
        r = Rewriter(region, names, is_region=region is not graph)
        r.drop_dead()
        r.finish()
        for step in PIPELINE:
            if isinstance(step, Step):
                run(step, r)
                continue
            while any(run(inner, r) for inner in step.steps):
                pass
    verify(graph)
    return graph


def dump_to(folder: str | os.PathLike[str]) -> Dump:
    """Return a ``dump`` function that writes files to ``folder``, e.g. ``01_merge_neighbours.txt``."""
    directory, numbers = Path(folder), count()

    def write(name: str, graph: Graph) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{next(numbers):02}_{name.replace(' ', '_')}.txt").write_text(to_text(graph))

    return write
