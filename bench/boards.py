"""Compare published inference times on boards with estimates: ``python -m bench.boards [--only NAME] [--small]``.

Weights are drawn from a Laplace distribution, because cycles depend on how well weights compress, and uniformly distributed weights
hardly compress. The table also lists encoded megabytes. The rows are those of ``ethorch boards``.
``ethorch.targets.boards.measured`` stores the result.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch

import ethorch
from ethorch.models.zoos import load
from ethorch.program.program import record_of


@dataclass(frozen=True)
class Published:
    """A published inference time.

    Attributes:
        network: Name in torchvision or timm.
        size: Height and width of the input image.
        scheme, target, board, memory_mode: Options of the compilation. None selects the default of the board.
        milliseconds: Published time.
        source: Publisher.
        npu_only: Whether the time is measured by the NPU's cycle counter, without the CPU.
        io: Type of the program's inputs and outputs. Quantized inputs and outputs are channels last, as in TFLite.
    """

    network: str
    size: int
    scheme: str
    board: str
    milliseconds: float
    source: str
    target: str | None = None
    memory_mode: str | None = None
    npu_only: bool = False
    io: str = "float32"

    def estimate_milliseconds(self, program: ethorch.Program) -> float:
        """Return the estimate for the NPU alone or for the whole call, whichever was published."""
        data = program.to_json()
        taken = 1e3 * data["total_cycles"] / data["core_clock_hz"] if self.npu_only else data["milliseconds"]
        return float(taken)


E8 = "Hugging Face, Arm/{}-ethos-u-executorch: p50 on Alif's DevKit-E8, bare metal"
PUBLISHED = (
    Published("torchvision:mobilenet_v2", 224, "int8", "alif-e8-hp", 19.0, "executorch #19131, zephyr_alif_tutorial.md: text"),
    Published("torchvision:mobilenet_v2", 224, "int8", "alif-e8-hp", 30.0, "executorch #19131, zephyr_alif_tutorial.md: its log"),
    Published("torchvision:mobilenet_v2", 224, "int8", "renesas-rzg3e", 68.0,
              "renesas-rz/rz-ethos-u-docs, run-applications.md: TFLite", io="int8"),
    Published("torchvision:mobilenet_v2", 224, "int8", "corstone-320", 4.739,
              "Arm learning path visualizing-ethos-u-performance, FVP: PMU's cycles, at 1 GHz", "ethos-u85-128", "Sram_Only", True),
    Published("torchvision:mobilenet_v2", 224, "int8", "corstone-300", 11.0, "executorch #9830, FVP: 5.5 M cycles, at 500 MHz",
              "ethos-u55-128", "Sram_Only", True),
    Published("torchvision:mobilenet_v3_large", 224, "int8", "alif-e8-u85", 35.17, E8.format("mobilenet-v3-large-int8")),
    Published("torchvision:resnet50", 224, "int8-per-tensor", "alif-e8-u85-ospi", 110.2,
              E8.format("resnet-50-int8-per-tensor") + ", .pte of 14.42 MB"),
    Published("torchvision:resnet50", 224, "int8", "alif-e8-u85-ospi", 151.4,
              E8.format("resnet-50-int8-per-channel") + ", .pte of 21.76 MB"),
    Published("torchvision:inception_v3", 299, "int8-per-tensor", "alif-e8-u85-ospi", 237.1,
              E8.format("inception-v3-int8") + ", .pte of 17.53 MB"),
    Published("timm:deit_tiny_patch16_224", 224, "int8", "alif-e8-u85-ospi", 81.6, E8.format("deit-tiny-int8")),
)  # fmt: skip
SMALL = ("mobilenet_v2", "mobilenet_v3_large")


def estimate(row: Published) -> ethorch.Program:
    """Compile the program of a row."""
    torch.manual_seed(0)
    module, _ = load(*row.network.split(":"))
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() > 1:
                weight.copy_(torch.distributions.Laplace(0.0, float(weight.std()) / 2**0.5).sample(weight.shape))
    picture = torch.nn.functional.interpolate(torch.rand(1, 3, 8, 8), (row.size, row.size), mode="bicubic")
    return ethorch.compile(
        module,
        picture,
        row.target,
        board=row.board,
        scheme=row.scheme,
        io=row.io,
        progress=False,
        settings=ethorch.Settings(memory_mode=row.memory_mode, io_layout="nhwc" if row.io != "float32" or None else "nchw"),
    )


def table(rows: list[tuple[Published, ethorch.Program]]) -> str:
    """Format a Markdown table of measured times, estimates and ratios."""
    lines = [
        "| network | quantized | board | NPU | memory mode | measured, ms | estimate, ms | measured / estimate | weights, MB "
        "| measured by |"
    ]
    lines.append("| --- " * 10 + "|")
    for row, program in rows:
        spec = record_of(program).spec
        assert spec is not None
        estimate_ms = row.estimate_milliseconds(program)
        cells = (
            row.network.partition(":")[2], row.scheme, row.board, program.target.removeprefix("ethos-"), spec.memory_mode,
            f"{row.milliseconds:g}", f"{estimate_ms:.2f}", f"{row.milliseconds / estimate_ms:.2f}",
            f"{program.memory.component('weights').flash_bytes / 1e6:.2f}", row.source,
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Compile the selected rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="select networks whose name contains this text")
    parser.add_argument("--small", action="store_true", help=f"select only {', '.join(SMALL)}")
    chosen = parser.parse_args()
    keep: Callable[[str], bool] = lambda name: chosen.only in name and (not chosen.small or any(s in name for s in SMALL))  # noqa: E731
    done: dict[tuple[object, ...], ethorch.Program] = {}
    found = []
    for row in PUBLISHED:
        if keep(row.network):
            key = (row.network, row.scheme, row.board, row.target, row.memory_mode, row.io)
            if key not in done:
                done[key] = estimate(row)
            found.append((row, done[key]))
            print(table(found).splitlines()[-1], flush=True)
    print()
    print(table(found))


if __name__ == "__main__":
    main()
