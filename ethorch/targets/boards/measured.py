"""What boards took and what was estimated for them: how far an estimate of time can be trusted.

Each row is a figure that somebody published, beside the estimate for the same network, NPU and memories.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

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
_OURS = "ethorch, Vela 5.2, `python -m bench.boards` of 2026-11-23"
_CARD = "Arm on Hugging Face, Arm/{}-ethos-u-executorch: p50 on an Alif DevKit-E8, bare metal"
_MV2_E8 = "executorch #19131, zephyr_alif_tutorial.md: {}"

MEASURED: tuple[Measured, ...] = (
    Measured("mobilenet_v2, int8", "ethos-u55-256", "alif-e8-hp", SILICON, 19.0, 26.82, _OURS, _MV2_E8.format("its text")),
    Measured("mobilenet_v2, int8", "ethos-u55-256", "alif-e8-hp", SILICON, 30.0, 26.82, _OURS, _MV2_E8.format("its log")),
    Measured(
        "mobilenet_v3_large, int8", "ethos-u85-256", "alif-e8-u85", SILICON, 35.17, 22.73, _OURS + "; weights in MRAM",
        _CARD.format("mobilenet-v3-large-int8"),
    ),
    Measured(
        "resnet50, int8-per-tensor", "ethos-u85-256", "alif-e8-u85-ospi", SILICON, 110.2, 158.10, _OURS + "; weights of 19.9 MB",
        _CARD.format("resnet-50-int8-per-tensor") + ", .pte of 14.4 MB",
    ),
    Measured(
        "resnet50, int8", "ethos-u85-256", "alif-e8-u85-ospi", SILICON, 151.4, 178.01, _OURS + "; weights of 23.1 MB",
        _CARD.format("resnet-50-int8-per-channel") + ", .pte of 21.8 MB",
    ),
    Measured(
        "inception_v3, int8-per-tensor", "ethos-u85-256", "alif-e8-u85-ospi", SILICON, 237.1, 193.28,
        _OURS + "; weights of 20.1 MB", _CARD.format("inception-v3-int8") + ", .pte of 17.5 MB",
    ),
    Measured(
        "deit_tiny_patch16_224, int8", "ethos-u85-256", "alif-e8-u85-ospi", SILICON, 81.6, 67.43,
        _OURS + "; weights of 5.7 MB", _CARD.format("deit-tiny-int8") + ", some dense layers a16w8",
    ),
    Measured(
        "FOMO, int8", "ethos-u55-256", "alif-e3-hp", SILICON, 5.51, 2.05, "Vela, by those who measured",
        "OpenMV AE3 (Alif E3), notes of those who port models to it",
    ),
    Measured(
        "mobilenet_v2, int8", "ethos-u55-256", "renesas-rzg3e", LINUX, 68.0, 4.03, _OURS + "; codes with channels last",
        "renesas-rz/rz-ethos-u-docs, run-applications.md: TFLite, through Linux and a Cortex-M33; Renesas estimates 3.54 ms",
    ),
    Measured(
        "mobilenet_v2, int8", "ethos-u55-128", "corstone-300", FVP, 11.0, 11.52, _OURS + "; Sram_Only, the NPU's cycles at 500 MHz",
        "executorch #9830: 5.5 M cycles",
    ),
    Measured(
        "mobilenet_v2, int8", "ethos-u85-128", "corstone-320", FVP, 4.739, 6.19, _OURS + "; Sram_Only, the NPU's cycles at 1 GHz",
        "Arm learning path visualizing-ethos-u-performance, evaluate output: 4,738,932 cycles by the PMU",
    ),
    Measured(
        "mobilenet_v2, int8", "ethos-u85-128", "corstone-320", FVP, 4.739, 4.942, "Vela, by those who measured: 4,942,076 cycles",
        "Arm learning path visualizing-ethos-u-performance, evaluate output: 4,738,932 cycles by the PMU",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Unestimated:
    """A published figure of a network that is not to be had here, so that nothing can be put beside it.

    Attributes:
        network, target: what ran, on which NPU.
        where: board or model.
        figure: as published.
        why: what is missing.
        source: who measured.
    """

    network: str
    target: str
    where: str
    figure: str
    why: str
    source: str


_LEARNING = "Arm learning path {}"
_RENESAS = "renesas-rz/rz-ethos-u-docs, test-models.md"
_TFLITE = "a TFLite file of Arm's zoo; through Linux, as the row of MobileNetV2"

UNESTIMATED: tuple[Unestimated, ...] = (
    Unestimated("micronet large, anomalies, int8", "ethos-u55-256", "renesas-rzg3e", "16.94 ms", _TFLITE, _RENESAS),
    Unestimated("micronet large, keywords, int8", "ethos-u55-256", "renesas-rzg3e", "16.71 ms", _TFLITE, _RENESAS),
    Unestimated("tiny wav2letter, int8", "ethos-u55-256", "renesas-rzg3e", "24.97 ms", _TFLITE, _RENESAS),
    Unestimated(
        "diffusion step of faces, a16w8", "ethos-u85-256", "alif-e8-u85", "8.5 ms", "the network is Arm's own, of 2.5 M parameters",
        _LEARNING.format("generate-faces-alif-e8"),
    ),
    Unestimated(
        "a shader of few operators, a16w8", "ethos-u85-256", "alif-e8-u85", "1.9 ms a call",
        "the network is its author's own; mostly what a call costs beside the NPU", "notes of a shader on a DevKit-E8",
    ),
    Unestimated(
        "mobilenet_v2, int8", "ethos-u55", "unnamed", "113.7 ms; TFLM 91.2 ms", "neither board nor clock is named",
        "executorch #17157",
    ),
    Unestimated(
        "rnnoise, int8", "ethos-u85-256, -512", "FVP", "36,086; 55,086 cycles", "a TFLite file, its step not described",
        "a study of 74 configurations on FVPs",
    ),
    Unestimated(
        "TinyCNN, int8", "ethos-u55", "FVP", "247,553 cycles", "the network is its author's own", "a log of ExecuTorch's runner"
    ),
    Unestimated(
        "six networks, int8", "ethos-u55", "Alif E7", "7 to 125 times a Cortex-M55", "ratios to a CPU, no times", "arXiv 2509.17533"
    ),
    Unestimated(
        "various, int8", "ethos-u55-64", "Himax WE2", "memory and start-up often dominate", "no times of networks that are named",
        "arXiv 2503.22567",
    ),
)  # fmt: skip


def in_order(rows: Iterable[Measured]) -> bool:
    """Do estimates put the networks of each board in the order that was measured? Of what was measured twice, the middle."""
    boards: dict[tuple[str, str], dict[str, list[Measured]]] = {}
    for row in rows:
        boards.setdefault((row.board.removesuffix("-ospi"), row.target), {}).setdefault(row.network, []).append(row)
    for networks in boards.values():
        times = [(median(r.milliseconds for r in own), median(r.estimate_ms for r in own)) for own in networks.values()]
        by_measure = sorted(times)
        if [estimate for _, estimate in by_measure] != sorted(estimate for _, estimate in times):
            return False
    return True


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
