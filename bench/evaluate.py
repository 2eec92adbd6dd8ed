"""Measure the CPU seconds of `ethorch.evaluate` for MobileNetV2 on 96x96 images.

``python -m bench.evaluate [--images 1000] [--target T] [--json]``

The images are in memory, ExecuTorch's runtime is imported, and the program is loaded before the measurement. The first run
evaluates only the simulated NPU. The second run adds the float model, and the third also the fake-quantized model, in PyTorch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch

import ethorch
from bench.compile import markdown_row, provenance
from bench.models.case import ModelCase, picture
from bench.models.vision import torchvision_model

SIDE = 96
COLUMNS: dict[str, tuple[str, ...]] = {"NPU": (), "NPU, float": ("float",), "NPU, float, quantized": ("float", "quantized")}


def measure(images: int, target: str) -> list[dict[str, Any]]:
    """Return a record for each selection of columns."""
    torch.set_num_threads(1)
    case = ModelCase("mobilenet_v2_96", torchvision_model("mobilenet_v2"), picture(SIDE), "Sandler et al. 2018")
    program = ethorch.compile(case.build(), case.example_inputs(), target, calibration=case.calibration(8), progress=False)
    distinct = [x[0] for (x,) in case.calibration(50, seed=99)]
    data = [(distinct[number % len(distinct)], number % 10) for number in range(images)]
    ethorch.evaluate(program, data[:1], progress=False)
    records = []
    for name, against in COLUMNS.items():
        clock, cpu = time.perf_counter(), time.process_time()
        found = ethorch.evaluate(program, data, against=against, progress=False)
        seconds = time.process_time() - cpu
        records.append(
            {
                "columns": name,
                "images": found.samples,
                "cpu_seconds": seconds,
                "wall_seconds": time.perf_counter() - clock,
                "images_per_cpu_second": images / seconds,
            }
        )
    return records


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.evaluate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--target", default="ethos-u55-128")
    parser.add_argument("--json", action="store_true", help="print the records as JSON")
    options = parser.parse_args()
    records = measure(options.images, options.target)
    if options.json:
        print(json.dumps({"provenance": provenance(), "records": records}, indent=1))
        return 0
    head = ["columns", "images", "CPU s", "images / CPU s"]
    rows = [[r["columns"], str(r["images"]), f"{r['cpu_seconds']:.1f}", f"{r['images_per_cpu_second']:.0f}"] for r in records]
    print(f"{provenance()}; {options.target}\n")
    print("\n".join(map(markdown_row, (head, ["---"] * len(head), *rows))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
