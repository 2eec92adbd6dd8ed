"""Checks for every .pte, whoever wrote it."""

from __future__ import annotations

from ethorch.formats import pte
from ethorch.formats.pte_types import Program
from ethorch.formats.pte_writer import write


def check_round_trip(data: bytes) -> Program:
    """Check that a file is equal after reading, writing and reading. Return the program."""
    program = pte.read(data)
    again = write(program)
    assert pte.read(again) == program
    assert write(pte.read(again)) == again
    return program
