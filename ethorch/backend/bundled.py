"""Bundled programs (``.bpte``), which contain inputs and expected outputs for ExecuTorch's test runners."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from executorch.devtools import BundledProgram
from executorch.devtools.bundled_program.config import MethodTestCase, MethodTestSuite
from executorch.devtools.bundled_program.serialize import serialize_from_bundled_program_to_flatbuffer


def bundle_program(program: bytes, method: str, cases: Iterable[tuple[Sequence[Any], Sequence[Any]]]) -> bytes:
    """Bundle a program with test cases, each of which consists of flat inputs and expected outputs of ``method``."""
    suite = MethodTestSuite(
        method, [MethodTestCase(inputs=list(inputs), expected_outputs=list(outputs)) for inputs, outputs in cases]
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.pte"  # BundledProgram accepts a file name or ExecuTorch's program manager
        file.write_bytes(program)
        return bytes(serialize_from_bundled_program_to_flatbuffer(BundledProgram(None, [suite], os.fspath(file))))
