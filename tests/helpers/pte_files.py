"""What holds of every .pte, whoever wrote it."""

from __future__ import annotations

from ethorch.formats import pte
from ethorch.formats.pte_types import Program
from ethorch.formats.pte_writer import write


def check_round_trip(data: bytes) -> Program:
    """What the reader reads of a file, the writer writes so that it is read again as the same; the program."""
    program = pte.read(data)
    again = write(program)
    assert pte.read(again) == program
    assert write(pte.read(again)) == again
    return program
