"""The heavy modules that each command loads: commands of finished programs, of tables and of boards do without torch."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

import ethorch
from tests.deploy.virtual_board.support import compiled

pytestmark = pytest.mark.core

ROOT = Path(__file__).resolve().parent.parent.parent

#: Top-level packages that take 0.1 s or more to import, alone or with what they import themselves.
HEAVY = {
    "IPython", "bokeh", "elftools", "ethosu", "executorch", "jinja2", "matplotlib", "networkx", "numpy", "pandas", "plotly", "rich",
    "scipy", "sympy", "torch", "torchao", "torchvision", "transformers", "unicorn",
}  # fmt: skip
PROGRAM = "net.pte"
FOLDER = "net"
FIRMWARE = "probe.elf"
#: Command -> the heavy packages that it uses. None of them may load torch, torchao or executorch.
COMMANDS = {
    "ops": set(),
    "ops softmax": set(),
    "targets": {"rich"},
    "targets --diff ethos-u55-128 ethos-u85-256": {"rich"},
    "boards": {"rich"},
    f"disassemble {PROGRAM}": {"numpy"},
    f"dis {FOLDER} --json": {"numpy"},
    f"run {PROGRAM}": {"numpy"},
    f"run {FOLDER} -i input.npy -o output.npz": {"numpy"},
    f"firmware {PROGRAM} -o project": {"jinja2", "numpy"},
    f"firmware {PROGRAM} -o tested -i input.npy": {"jinja2", "numpy"},
    f"explain {PROGRAM}": {"numpy", "rich"},
    f"explain {FOLDER}": {"numpy", "rich"},
    f"compare {FOLDER}": {"numpy"},
    f"compare {FOLDER} --json": {"numpy"},
    f"report {FOLDER} -o report.html": {"jinja2", "numpy"},
    f"report {FOLDER} -o -": {"jinja2", "numpy"},
    f"run-firmware {FIRMWARE}": {"elftools", "numpy", "unicorn"},
}
#: Exit status of each command that does not return 0. The firmware finds no model, which it reports by its exit code.
STATUS = {f"run-firmware {FIRMWARE}": 3}

_RUN = """
import json, sys
import ethorch.cli
status = ethorch.cli.main(json.loads(sys.argv[1]))
print(json.dumps([status, sorted({name.partition(".")[0] for name in sys.modules})]), file=sys.stderr)
"""


def loaded(folder: Path, command: str) -> set[str]:
    """Return the heavy packages that the command loaded in a process of its own; check its exit status."""
    words = [sys.executable, "-c", _RUN, json.dumps(command.split())]
    child = subprocess.run(words, capture_output=True, text=True, cwd=folder, check=True)
    status, modules = json.loads(child.stderr.splitlines()[-1])
    assert status == STATUS.get(command, 0), child.stderr
    return HEAVY & set(modules)


#: Packages whose modules may use torch in functions alone: those that pyproject.toml's contract about PyTorch lists.
WITHOUT_TORCH = (
    "deploy", "figures", "formats", "lower.builder", "lower.rewrite", "npu", "report", "runtime", "support", "targets", "tosa",
    "vela",
)  # fmt: skip

_IMPORT = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print("torch" in sys.modules)
"""


def test_no_module_of_these_packages_imports_torch() -> None:
    names = []
    for package in WITHOUT_TORCH:
        path = str(ROOT / "ethorch" / package.replace(".", "/"))
        names += [module.name for module in pkgutil.walk_packages([path], f"ethorch.{package}.")]
    names = [name for name in names if not name.endswith(".__main__")]
    child = subprocess.run([sys.executable, "-c", _IMPORT, json.dumps(names)], capture_output=True, text=True, check=True)
    assert len(names) > 150 and child.stdout.splitlines()[-1] == "False"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program, as a file and as a saved folder, and with a firmware."""
    folder = tmp_path_factory.mktemp("startup")
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()
    program = ethorch.compile(model, (torch.randn(1, 3, 8, 8),), settings=ethorch.Settings(verify=False))
    program.save(folder / PROGRAM)
    numpy.save(folder / "input.npy", numpy.ones((1, 3, 8, 8), numpy.float32))
    program.save(folder / FOLDER)
    compiled(folder, name=FIRMWARE)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_finished_programs_load_no_torch(command: str, folder: Path) -> None:
    found = loaded(folder, command)
    assert not found & {"torch", "torchao", "executorch"}, sorted(found)
    assert found <= COMMANDS[command], sorted(found - COMMANDS[command])
