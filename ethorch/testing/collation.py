"""Collect the TOSA flatbuffers of a test suite in one folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ethorch.formats.files import write_whole
from ethorch.tosa.ir import Graph
from ethorch.tosa.serialize import serialize

#: Environment variables for the folder (named as in the Arm backend) and for the running test (set by pytest).
FOLDER, TEST = "TOSA_TESTCASES_BASE_PATH", "PYTEST_CURRENT_TEST"


def folder_of_test() -> Path | None:
    """Return ``BASE/KIND/NAME`` for the running test, or None if no test is running or ``TOSA_TESTCASES_BASE_PATH`` is not set.

    KIND is ``tosa-int`` or ``tosa-fp`` if the test's name contains ``INT`` or ``FP``, and ``other`` if it contains neither.
    """
    base, test = os.environ.get(FOLDER), os.environ.get(TEST)
    if not base or not test:
        return None
    name = test.partition("::")[2].rpartition(" ")[0].rpartition("::")[2]
    kind = "tosa-int" if "INT" in name else "tosa-fp" if "FP" in name else "other"
    return Path(base) / kind / name


def collate(graphs: Iterable[Graph], specification: str) -> None:
    """Write each graph to ``delegate_N_SPECIFICATION.tosa`` in ``folder_of_test()``. If that is None, write nothing."""
    folder = folder_of_test()
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for number, graph in enumerate(graphs):
        write_whole(folder / f"delegate_{number}_{specification}.tosa", serialize(graph))
