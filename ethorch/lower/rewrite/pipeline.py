"""``PIPELINE``: the steps from TOSA as it was lowered to TOSA as Vela gets it, and ``rewrite``, which runs them.

No step changes a bit of what the graph computes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Generic, TypeVar

from ethorch.lower.rewrite.fold_broadcasts import fold_broadcasts
from ethorch.lower.rewrite.fold_pools import fold_pools
from ethorch.lower.rewrite.fold_strides import fold_strides
from ethorch.lower.rewrite.fold_wide_moves import fold_wide_moves
from ethorch.lower.rewrite.insert_copies import copy_broadcast_constants
from ethorch.lower.rewrite.keep_shapes import keep_shapes
from ethorch.lower.rewrite.order_channels import order_channels
from ethorch.lower.rewrite.peephole import (
    merge_neighbours,
    move_reshapes_before_pads,
    move_tables_before_moves,
    move_tables_behind_transposes,
)
from ethorch.lower.rewrite.rescale_to_depthwise import rescale_to_depthwise
from ethorch.lower.rewrite.rewriter import Names, Rewriter
from ethorch.lower.rewrite.select_channels import select_channels
from ethorch.lower.rewrite.split_convolutions import split_convolutions
from ethorch.lower.rewrite.split_tiles import split_tiles
from ethorch.lower.rewrite.split_transposes import split_transposes
from ethorch.lower.rewrite.vela_bugs import work_around
from ethorch.targets.tuning import UNTUNED, FoldColumns, FoldSquares, Tuning
from ethorch.tosa.ir import Graph
from ethorch.tosa.text import to_text
from ethorch.tosa.verify import verify

Setting = TypeVar("Setting")
Run = Callable[[Rewriter, Tuning], None]
#: Gets the name of a step that changed the graph, and the graph as it then is.
Dump = Callable[[str, Graph], None]


@dataclass(frozen=True)
class Step:
    """One rewrite: what it does, the function that does it, and why it stands where it stands."""

    name: str
    run: Run
    why_here: str


@dataclass(frozen=True)
class Repeat:
    """Steps of which the first is tried again after each that changed something, until none does."""

    steps: tuple[Step, ...]
    why_here: str


def always(rewrite: Callable[[Rewriter], None]) -> Run:
    """``rewrite`` for every target."""
    return lambda r, tuning: rewrite(r)


@dataclass(frozen=True)
class Tuned(Generic[Setting]):
    """``rewrite`` with a field of the target's tuning; where that is None, not at all."""

    rewrite: Callable[[Rewriter, Setting], None]
    setting: Callable[[Tuning], Setting | None]

    def __call__(self, r: Rewriter, tuning: Tuning) -> None:
        if (setting := self.setting(tuning)) is not None:
            self.rewrite(r, setting)


def where(condition: Callable[[Tuning], bool], rewrite: Callable[[Rewriter], None]) -> Run:
    """``rewrite`` for the targets whose tuning says so."""

    def run(r: Rewriter, tuning: Tuning) -> None:
        if condition(tuning):
            rewrite(r)

    return run


PIPELINE: tuple[Step | Repeat, ...] = (
    Step(
        "fold wide moves",
        always(fold_wide_moves),
        "First: the RESHAPEs that it adds merge with their neighbours in the steps behind.",
    ),
    Step(
        "fold broadcasts",
        always(fold_broadcasts),
        "Before neighbours are merged, which would part the operators from what belongs to them.",
    ),
    Step(
        "fold pools",
        Tuned(fold_pools, lambda t: t.fewest_results_of_wide_stride),
        "Before neighbours are merged, for the sake of its RESHAPEs.",
    ),
    Step(
        "move tables before moves",
        always(move_tables_before_moves),
        "Before neighbours are merged: TABLEs and TRANSPOSEs meet their like.",
    ),
    Step(
        "move reshapes before pads",
        always(move_reshapes_before_pads),
        "Before neighbours are merged: only then does a convolution find the PAD that it can take over.",
    ),
    Repeat(
        (
            Step("merge neighbours", always(merge_neighbours), "The cheapest, and it brings together what the others look for."),
            Step("split convolutions", always(split_convolutions), "Before shapes are kept, which moves the RESHAPE it looks for."),
            Step(
                "fold strides",
                Tuned[FoldColumns | FoldSquares](fold_strides, lambda t: t.fold_strides),
                "After padding is merged into the convolutions: it folds the padding, too.",
            ),
            Step("keep shapes", always(keep_shapes), "Last: it moves RESHAPEs on, which then merge with others."),
        ),
        "Each of these makes room for the others.",
    ),
    Step(
        "select channels",
        Tuned(select_channels, lambda t: t.largest_selection),
        "After neighbours are merged: it follows RESHAPEs and TRANSPOSEs back, and the fewer there are the more it understands.",
    ),
    Step(
        "order channels",
        lambda r, t: order_channels(r, by_nhwc=t.shuffles_by_nhwc),
        "After channels are selected, which leaves fewer TRANSPOSEs; before those are split: what is left of one keeps rows whole.",
    ),
    Step(
        "split transposes",
        Tuned(split_transposes, lambda t: t.transpose_steps),
        "After channels are selected, which leaves fewer of them; after neighbours are merged, which would join the steps.",
    ),
    Step(
        "move tables behind transposes",
        always(move_tables_behind_transposes),
        "After all that looks for TRANSPOSEs behind a convolution: only then is it clear which of them are left.",
    ),
    Step(
        "split tiles",
        Tuned(split_tiles, lambda t: t.tile_steps),
        "Before Vela's bugs, some of which are about the SLICE that it adds where steps make too many copies.",
    ),
    Step(
        "copy broadcast constants",
        where(lambda t: t.copies_broadcast_constants, copy_broadcast_constants),
        "After shapes are kept, which gives constants the shape that they are broadcast from.",
    ),
    Step(
        "rescale by depthwise convolutions",
        lambda r, t: rescale_to_depthwise(r, t.smallest_rescale_by_depthwise, t.channels_of_rescale_by_depthwise),
        "After channels are selected: that turns RESCALEs into convolutions that move channels, too.",
    ),
    Step(
        "work around Vela's bugs",
        work_around,
        "Last: its copies stand between operators that Vela must not see side by side.",
    ),
)


def rewrite(graph: Graph, tuning: Tuning = UNTUNED, *, dump: Dump | None = None) -> Graph:
    """Run ``PIPELINE`` on the regions of ``graph``, the innermost first, and on itself; the graph. Its outputs keep every bit.

    First, and after each step, what nothing reads is dropped: the next sees who really reads a value. Then the graph is verified.

    Args:
        graph: is changed.
        tuning: the target's; without one, nothing is done for the sake of an NPU.
        dump: gets the graph as it is now, and each step's name with what it left behind. ``dump_to(folder)`` makes one that writes
            files; lowering makes that one where the compile spec's ``dump_intermediate_artifacts_to`` names a folder.

    Raises:
        AssertionError: a step left a graph that is not TOSA.
    """
    names = Names(graph)

    def run(step: Step, r: Rewriter) -> bool:
        """True if the step changed something."""
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
    """A ``dump`` that writes files into ``folder``: ``00_as_lowered.txt``, ``01_merge_neighbours.txt`` and so on."""
    directory, numbers = Path(folder), count()

    def write(name: str, graph: Graph) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{next(numbers):02}_{name.replace(' ', '_')}.txt").write_text(to_text(graph))

    return write
