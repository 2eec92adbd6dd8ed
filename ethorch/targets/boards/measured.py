"""Published measurements on boards, and estimates for the same networks, NPUs and memories."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

SILICON, LINUX, FVP = "silicon", "linux", "fvp"
#: Command that prints ethorch's estimates.
COMMAND = "python -m bench.boards"


@dataclass(frozen=True)
class Measured:
    """A published measurement and the corresponding estimate.

    Attributes:
        board: Name of a built-in board, or an empty string.
        where: ``silicon``, ``fvp``, or ``linux`` (silicon running an operating system, with undocumented memories).
        milliseconds: Published inference time.
        estimated_by: Author and date of the estimate, and the assumed memories.
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
        """The measured time divided by the estimated time."""
        return self.milliseconds / self.estimate_ms


#: Source of ethorch's estimates, for torchvision networks with Laplace-distributed weights and float inputs unless noted.
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
        "FOMO, int8", "ethos-u55-256", "alif-e3-hp", SILICON, 5.51, 2.05, "Vela, by the authors of the measurement",
        "OpenMV AE3 (Alif E3), notes of its porting authors",
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
        "mobilenet_v2, int8", "ethos-u85-128", "corstone-320", FVP, 4.739, 4.942, "Vela, by the same authors: 4,942,076 cycles",
        "Arm learning path visualizing-ethos-u-performance, evaluate output: 4,738,932 cycles by the PMU",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Unestimated:
    """A published measurement without an estimate, because the network or the conditions are not available.

    Attributes:
        where: Name of the board, or ``FVP``.
        figure: Published value.
        why: Information that an estimate would require.
    """

    network: str
    target: str
    where: str
    figure: str
    why: str
    source: str


_LEARNING = "Arm learning path {}"
_RENESAS = "renesas-rz/rz-ethos-u-docs, test-models.md"
_TFLITE = "a TFLite file of Arm's zoo, run through Linux like MobileNetV2"

UNESTIMATED: tuple[Unestimated, ...] = (
    Unestimated("micronet large, anomalies, int8", "ethos-u55-256", "renesas-rzg3e", "16.94 ms", _TFLITE, _RENESAS),
    Unestimated("micronet large, keywords, int8", "ethos-u55-256", "renesas-rzg3e", "16.71 ms", _TFLITE, _RENESAS),
    Unestimated("tiny wav2letter, int8", "ethos-u55-256", "renesas-rzg3e", "24.97 ms", _TFLITE, _RENESAS),
    Unestimated(
        "diffusion step of faces, a16w8", "ethos-u85-256", "alif-e8-u85", "8.5 ms", "Arm's own network with 2.5 M parameters",
        _LEARNING.format("generate-faces-alif-e8"),
    ),
    Unestimated(
        "a shader with few operators, a16w8", "ethos-u85-256", "alif-e8-u85", "1.9 ms per call",
        "the author's own network; dominated by call overhead", "notes of a shader on a DevKit-E8",
    ),
    Unestimated(
        "mobilenet_v2, int8", "ethos-u55", "unnamed", "113.7 ms; TFLM 91.2 ms", "board and clock are not named",
        "executorch #17157",
    ),
    Unestimated(
        "rnnoise, int8", "ethos-u85-256, -512", "FVP", "36,086; 55,086 cycles", "a TFLite file with an undocumented step",
        "a study of 74 configurations on FVPs",
    ),
    Unestimated(
        "TinyCNN, int8", "ethos-u55", "FVP", "247,553 cycles", "the author's own network", "a log of ExecuTorch's runner"
    ),
    Unestimated(
        "six networks, int8", "ethos-u55", "Alif E7", "7 to 125 times a Cortex-M55", "ratios to a CPU, no times", "arXiv 2509.17533"
    ),
    Unestimated(
        "various, int8", "ethos-u55-64", "Himax WE2", "memory and start-up often dominate", "no times of named networks",
        "arXiv 2503.22567",
    ),
)  # fmt: skip


def in_order(rows: Iterable[Measured]) -> bool:
    """Return True if measurements and estimates rank the networks of each board in the same order.

    Repeated measurements of a network are represented by their median.
    """
    boards: dict[tuple[str, str], dict[str, list[Measured]]] = {}
    for row in rows:
        boards.setdefault((row.board.removesuffix("-ospi"), row.target), {}).setdefault(row.network, []).append(row)
    for networks in boards.values():
        times = [(median(r.milliseconds for r in group), median(r.estimate_ms for r in group)) for group in networks.values()]
        by_measure = sorted(times)
        if [estimate for _, estimate in by_measure] != sorted(estimate for _, estimate in times):
            return False
    return True


@dataclass(frozen=True)
class Spread:
    """The range of the ratios between measured and estimated times.

    Attributes:
        count: Number of measurements.
        of: Measured boards, either ``this board`` or ``boards with silicon``.
    """

    low: float
    high: float
    count: int
    of: str

    def __str__(self) -> str:
        return f"{self.count} published measurements on {self.of} are {self.low:.1f} to {self.high:.1f} times the estimate"


def spread(board: str, rows: Iterable[Measured] = MEASURED) -> Spread | None:
    """Return the spread of a board's measurements. FVPs are excluded.

    With fewer than two measurements, return the spread of all those on this board and on any bare-metal silicon, or None if no
    measurement exists.
    """
    relevant = [row for row in rows if row.where == SILICON or (row.where == LINUX and row.board == board)]
    own_ratios = [row.ratio for row in relevant if row.board == board]
    ratios = own_ratios if len(own_ratios) > 1 else [row.ratio for row in relevant]
    if not ratios:
        return None
    return Spread(min(ratios), max(ratios), len(ratios), "this board" if len(own_ratios) > 1 else "boards with silicon")
