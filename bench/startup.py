"""Measure the CPU seconds of ``import ethorch``, of a tiny compilation compared with an export, and of commands for finished
programs.

``python -m bench.startup [--repeat N] [--json]``

Each run is a separate process with one torch thread. Figures are medians of user and system CPU seconds, from the start of the
interpreter to its exit. Modules have cached bytecode, as installed packages have. The measurements alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MODEL = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 10)).eval()
inputs = (torch.randn(1, 3, 16, 16),)
"""
SAVE = f"""{MODEL}
import ethorch
program = ethorch.compile(model, inputs, settings=ethorch.Settings(verify=False))
program.save("net.pte")
program.save("net")
"""
EXPORT, COMPILE = "a bare `torch.export`", "`ethorch.compile` without verification"
SCRIPTS = {
    "`import ethorch`": "import ethorch",
    EXPORT: f"{MODEL}\ntorch.export.export(model, inputs)",
    COMPILE: f"{MODEL}\nimport ethorch\nethorch.compile(model, inputs, settings=ethorch.Settings(verify=False))",
}
COMMANDS = (
    "run net.pte",
    "disassemble net.pte",
    "explain net",
    "compare net",
    "report net -o report.html",
    "firmware net.pte -o project",
    "ops",
    "targets",
    "boards",
)
#: Results at commit ebe7a6c.
BEFORE = {COMPILE: 3.9, "run net.pte": 5.1, "disassemble net.pte": 3.4, "ops": 2.0}


def cpu_seconds(arguments: list[str], folder: Path) -> float:
    """Run the interpreter in the folder; return the user and system seconds of the process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "PYTHONPATH": os.getcwd()}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{' '.join(arguments)[:200]} ended with status {child.returncode}")
    return usage.ru_utime + usage.ru_stime


def measure(repeat: int) -> dict[str, float]:
    """Return the median CPU seconds of each script and command."""
    runs = {name: ["-c", script] for name, script in SCRIPTS.items()}
    runs |= {command: ["-m", "ethorch.cli", *command.split()] for command in COMMANDS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cpu_seconds(["-c", SAVE], folder)
        for arguments in runs.values():
            cpu_seconds(arguments, folder)  # writes bytecode, and builds libraries that are not there
        found: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(repeat):
            for key, arguments in runs.items():
                found[key].append(cpu_seconds(arguments, folder))
    return {key: statistics.median(values) for key, values in found.items()}


def table(seconds: dict[str, float]) -> str:
    """Format the figures as a Markdown table."""
    lines = ["| | CPU seconds | at ebe7a6c |", "| --- | --- | --- |"]
    for name, value in seconds.items():
        before = f"{BEFORE[name]:.1f}" if name in BEFORE else ""
        lines.append(f"| {name if '`' in name else f'`ethorch {name}`'} | {value:.2f} | {before} |")
    return "\n".join([*lines, "", f"The compilation takes {seconds[COMPILE] / seconds[EXPORT]:.2f} times the export."])


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.startup", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=5, help="runs per measurement; default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    seconds = measure(options.repeat)
    print(json.dumps(seconds, indent=2) if options.json else table(seconds))


if __name__ == "__main__":
    main()
