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


#: Who estimated where it was us. Networks are torchvision's, weights drawn from a Laplace distribution, inputs float unless said.
_OURS = "ethorch, Vela 5.2, `python -m bench.boards` of 2026-11-22"
_CARD = "Arm on Hugging Face, Arm/{}-ethos-u-executorch: p50 on an Alif DevKit-E8, bare metal"
_MV2_E8 = "executorch #19131, zephyr_alif_tutorial.md: {}"

MEASURED: tuple[Measured, ...] = (
    Measured("mobilenet_v2, int8", "ethos-u55-256", "alif-e8-hp", SILICON, 19.0, 21.13, _OURS, _MV2_E8.format("its text")),
    Measured("mobilenet_v2, int8", "ethos-u55-256", "alif-e8-hp", SILICON, 30.0, 21.13, _OURS, _MV2_E8.format("its log")),
    Measured(
        "mobilenet_v3_large, int8", "ethos-u85-256", "alif-e8-u85", SILICON, 35.17, 23.51, _OURS + "; weights in MRAM",
        _CARD.format("mobilenet-v3-large-int8"),
    ),
    Measured(
        "resnet50, int8-per-tensor", "ethos-u85-256", "alif-e8-u85-ospi", SILICON, 110.2, 158.96, _OURS + "; weights of 19.9 MB",
        _CARD.format("resnet-50-int8-per-tensor") + ", .pte of 14.4 MB",
    ),
    Measured(
        "resnet50, int8", "ethos-u85-256", "alif-e8-u85-ospi", SILICON, 151.4, 178.87, _OURS + "; weights of 23.1 MB",
        _CARD.format("resnet-50-int8-per-channel") + ", .pte of 21.8 MB",
    ),
    Measured(
        "inception_v3, int8-per-tensor", "ethos-u85-256", "alif-e8-u85-ospi", SILICON, 237.1, 193.61,
        _OURS + "; weights of 20.1 MB", _CARD.format("inception-v3-int8") + ", .pte of 17.5 MB",
    ),
    Measured(
        "deit_tiny_patch16_224, int8", "ethos-u85-256", "alif-e8-u85-ospi", SILICON, 81.6, 69.49,
        _OURS + "; weights of 5.7 MB", _CARD.format("deit-tiny-int8") + ", some dense layers a16w8",
    ),
    Measured(
        "FOMO, int8", "ethos-u55-256", "alif-e3-hp", SILICON, 5.51, 2.05, "Vela, by those who measured",
        "OpenMV AE3 (Alif E3), notes of those who port models to it",
    ),
    Measured(
        "mobilenet_v2, int8", "ethos-u55-256", "renesas-rzg3e", LINUX, 68.0, 3.06, _OURS + "; codes with channels last",
        "renesas-rz/rz-ethos-u-docs, run-applications.md: TFLite, through Linux and a Cortex-M33; Renesas estimates 3.54 ms",
    ),
    Measured(
        "mobilenet_v2, int8", "ethos-u55-128", "corstone-300", FVP, 11.0, 11.38, _OURS + "; Sram_Only, the NPU's cycles at 500 MHz",
        "executorch #9830: 5.5 M cycles",
    ),
    Measured(
        "mobilenet_v2, int8", "ethos-u85-128", "corstone-320", FVP, 4.739, 6.62, _OURS + "; Sram_Only, the NPU's cycles at 1 GHz",
        "Arm learning path visualizing-ethos-u-performance, evaluate output: 4,738,932 cycles by the PMU",
    ),
    Measured(
        "mobilenet_v2, int8", "ethos-u85-128", "corstone-320", FVP, 4.739, 4.942, "Vela, by those who measured: 4,942,076 cycles",
        "Arm learning path visualizing-ethos-u-performance, evaluate output: 4,738,932 cycles by the PMU",
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
