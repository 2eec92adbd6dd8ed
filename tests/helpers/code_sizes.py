"""``python -m tests.helpers.code_sizes``: measure the table of code sizes, ethorch/deploy/firmware/code_sizes.csv.

Sizes are those of clang in the package ziglang for a Cortex-M33 at -Os.
"""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from elftools.elf.elffile import ELFFile

import ethorch
from ethorch.deploy.firmware import project_run
from ethorch.deploy.firmware.code_size import APPLICATION, CALL, TABLE
from ethorch.deploy.firmware.kernels import SOURCE_FOLDER
from ethorch.formats.files import write_whole
from tests.helpers.c_kernels import ZIG, CortexM33, compile_kernels
from tests.helpers.kernel_page import COSTS, make_program

#: Functions of the self-test and its console, which a user's application replaces.
SELF_TEST = ("main", "run", "failed", "put_address", "console_", "firmware_exit")


def measure_application(folder: Path) -> int:
    """Return the bytes of an application without kernels and self-test."""
    program = ethorch.compile(torch.nn.Conv2d(3, 8, 3), torch.rand(1, 3, 8, 8), "ethos-u55-128", io="int8")
    ethorch.firmware(program, folder)
    elf = project_run.build(folder, project_run.Options(cpu="cortex-m33"))
    with elf.open("rb") as file:
        symbols = list(ELFFile(file).get_section_by_name(".symtab").iter_symbols())
    sizes = {s.name: s["st_size"] for s in symbols if s["st_info"]["type"] == "STT_FUNC"}
    replaced = sum(size for name, size in sizes.items() if name.startswith(SELF_TEST) or name.startswith("etk_"))
    return project_run.code_bytes(elf) - replaced


def measure_call(folder: Path) -> int:
    """Return the mean bytes of one kernel call with its constants, over the calls with a measured cost."""
    programs = [make_program(cost, 16, number) for number, cost in enumerate(COSTS)]
    CortexM33(programs, folder)
    command = [sys.executable, "-m", "ziglang", "cc", *ZIG, f"-I{SOURCE_FOLDER}", "-c", str(folder / "programs.c")]
    subprocess.run([*command, "-ffunction-sections", "-fdata-sections", "-o", str(folder / "calls.o")], check=True)
    with (folder / "calls.o").open("rb") as file:
        names = (".text", ".rodata")
        total = sum(s["sh_size"] for s in ELFFile(file).iter_sections() if s.name.startswith(names))
    return round(total / len(programs))


def measure() -> str:
    """Return the text of the table."""
    rows = [(name, function.size_bytes, " ".join(function.callees)) for name, function in sorted(compile_kernels().items())]
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        (base / "calls").mkdir()
        rows = [(APPLICATION, measure_application(base / "app"), ""), (CALL, measure_call(base / "calls"), ""), *rows]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([("function", "bytes", "calls"), *rows])
    return out.getvalue()


if __name__ == "__main__":
    write_whole(TABLE, measure().encode())
