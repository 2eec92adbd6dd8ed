"""A program with inputs and expected outputs in one file, a ``.bpte``, for ExecuTorch's test runners."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from executorch.devtools import BundledProgram
from executorch.devtools.bundled_program.config import MethodTestCase, MethodTestSuite
from executorch.devtools.bundled_program.serialize import serialize_from_bundled_program_to_flatbuffer


def bundled_program(program: bytes, method: str, cases: Iterable[tuple[Sequence[Any], Sequence[Any]]]) -> bytes:
    """The bundled program.

    Args:
        program: the .pte.
        method: the method that is tested.
        cases: (flat inputs, flat expected outputs) of each test.
    """
    suite = MethodTestSuite(method, [MethodTestCase(inputs=list(taken), expected_outputs=list(given)) for taken, given in cases])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.pte"  # ExecuTorch's class takes its own manager or a file
        file.write_bytes(program)
        return bytes(serialize_from_bundled_program_to_flatbuffer(BundledProgram(None, [suite], os.fspath(file))))
