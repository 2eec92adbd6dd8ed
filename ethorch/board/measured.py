"""What boards took and what was estimated for them: how far an estimate of time can be trusted.

Each row is a figure that somebody published, beside the estimate for the same network, NPU and memories.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SILICON, LINUX, FVP = "silicon", "linux", "fvp"
#: What printed our estimates, and when.
COMMAND = "python -m bench.boards"


@dataclass(frozen=True)
class Measured:
    """A published figure beside an estimate.

    Attributes:
        network: what ran.
        target: the NPU.
        board: its name here; empty of a board that is not here.
        where: ``silicon``; ``linux``: silicon, called through an operating system, in memory that nobody describes; or ``fvp``.
        milliseconds: of one call, as published.
        estimate_ms: what was estimated for it.
        estimated_by: who estimated, with which memories and when.
        source: who measured.
    """

    network: str
    target: str
    board: str
    where: str
    milliseconds: float
    estimate_ms: float
    estimated_by: str
    source: str

    @property
    def ratio(self) -> float:
        """Measured over estimated: above 1 where the estimate was too good."""
        return self.milliseconds / self.estimate_ms


MEASURED: tuple[Measured, ...] = (
    Measured(
        "mobilenet_v2", "ethos-u85-128", "corstone-320", FVP, 4.739, 4.942,
        "Vela, Ethos_U85_SYS_DRAM_Mid, Sram_Only; in millions of cycles",
        "Arm learning path visualizing-ethos-u-performance, evaluate output: 4,738,932 cycles by the PMU",
    ),
    Measured(
        "FOMO", "ethos-u55-256", "alif-e3-hp", SILICON, 5.51, 2.05, "Vela, by those who measured",
        "OpenMV AE3 (Alif E3), notes of those who port models to it",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """How many times the estimate boards have taken.

    Attributes:
        low, high: least and largest ratio.
        count: of how many published figures.
        of: ``this board`` or ``boards with silicon``.
    """

    low: float
    high: float
    count: int
    of: str

    def __str__(self) -> str:
        return f"measured, {self.of} took {self.low:.1f} to {self.high:.1f} times the estimate ({self.count} published figures)"


def spread(board: str, rows: Iterable[Measured] = MEASURED) -> Spread:
    """The spread of a board's own figures, where it has two or more; else of all silicon that firmware drives, and its own."""
    known = [row for row in rows if row.where == SILICON or (row.where == LINUX and row.board == board)]
    own = [row.ratio for row in known if row.board == board]
    ratios = own if len(own) > 1 else [row.ratio for row in known]
    return Spread(min(ratios), max(ratios), len(ratios), "this board" if len(own) > 1 else "boards with silicon")
