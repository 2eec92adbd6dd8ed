"""Code size of an application with generated firmware."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ethorch.deploy.firmware.kernels import kernel_call
from ethorch.formats.pte_types import Program
from ethorch.support.errors import Reason

#: Sizes measured by ``python -m tests.helpers.code_sizes`` with ziglang's compiler at -Os for a Cortex-M33.
TABLE = Path(__file__).resolve().parent / "code_sizes.csv"
#: Name of the row for code that every application contains: start-up code, the driver and the model's functions.
APPLICATION = "application"
#: Name of the row for the mean size of one kernel call, including the constants of the call.
CALL = "call"
_FUNCTION = re.compile(r"\betk_\w+")


@dataclass(frozen=True)
class CodeSize:
    """The code size of an application.

    Attributes:
        size_bytes: Bytes of code and constants, excluding the .pte's contents and the user's code.
        missing: CPU operators that have no C kernel and are not counted.
    """

    size_bytes: int
    missing: tuple[str, ...]


@cache
def _read_table() -> tuple[Mapping[str, int], Mapping[str, tuple[str, ...]]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {row["function"]: int(row["bytes"]) for row in rows}, {row["function"]: tuple(row["calls"].split()) for row in rows}


def estimate_code_size(program: Program) -> CodeSize:
    """Estimate the code size of firmware for all methods of a program.

    Each kernel and each function called by a kernel is counted once.
    """
    sizes, callees = _read_table()
    functions, missing = set[str](), dict[str, None]()
    call_count = 0
    for method in program.methods.values():
        for number, call in enumerate(method.calls):
            if call.delegate is not None:
                continue
            statements = kernel_call(method, call, lambda index: f"value_{index}", f"call_{number}")
            if isinstance(statements, Reason):
                missing[call.operator] = None
                continue
            call_count += bool(statements.lines)
            functions.update(_FUNCTION.findall("\n".join(statements.lines)))
    unvisited = [name for name in functions if name in sizes]
    linked = set(unvisited)
    while unvisited:
        unvisited = [name for caller in unvisited for name in callees[caller] if name not in linked]
        linked.update(unvisited)
    total = sizes[APPLICATION] + call_count * sizes[CALL] + sum(sizes[name] for name in linked)
    return CodeSize(total, tuple(missing))
