"""Build the compiled code of the simulator for every CPU level: ``python -m ethorch.npu.prebuild FOLDER`` (docs/wheels.md)."""

from __future__ import annotations

import os
import platform
import sys

from ethorch.npu.plan.library import LEVELS
from ethorch.npu.plan.library import build as build_plan
from ethorch.npu.weights.compiled import build as build_weights


def main(arguments: list[str] | None = None) -> int:
    folder = (sys.argv[1:] if arguments is None else arguments)[0]
    os.environ["ETHORCH_CACHE_DIR"] = folder
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    for path in (build_weights(), *(build_plan(level) for level, (needs, _) in LEVELS.items() if is_x86 or not needs)):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
