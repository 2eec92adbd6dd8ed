from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ethorch.support.errors import EthorchError

_CHILD = """
import sys, numpy, tosa_reference_model
tosa, inputs, outputs = sys.argv[1:]
with numpy.load(inputs) as stored:
    arrays = [stored[f"arr_{i}"] for i in range(len(stored.files))]
results, status = tosa_reference_model.run(open(tosa, "rb").read(), arrays)
if int(status) != int(tosa_reference_model.GraphStatus.TOSA_VALID):
    sys.exit(f"the reference model returned {status}")
numpy.savez(outputs, *results)
"""


def run(
    tosa: bytes | str | os.PathLike[str], inputs: Sequence[npt.NDArray[Any]], timeout_seconds: float = 600
) -> list[npt.NDArray[Any]]:
    """Return the outputs of the TOSA reference model, which runs in a separate process because it aborts on invalid graphs.

    Args:
        tosa: Flatbuffer, or path of a .tosa file.
        inputs: Arrays with the shapes and dtypes of the graph's inputs. BF16 arrays have dtype ``ml_dtypes.bfloat16``.

    Raises:
        EthorchError: The model rejected the graph or inputs, reported an unpredictable result, aborted or exceeded the time limit.
    """
    content = bytes(tosa) if isinstance(tosa, (bytes, bytearray, memoryview)) else Path(tosa).read_bytes()
    if content[4:8] != b"TOSA":
        raise EthorchError(f"not a TOSA flatbuffer: expected b'TOSA' in bytes 4 to 7, got {content[4:8]!r}.")
    with tempfile.TemporaryDirectory() as directory:
        graph, arrays, results = (Path(directory) / name for name in ("graph.tosa", "inputs.npz", "outputs.npz"))
        graph.write_bytes(content)
        np.savez(arrays, *(as_bits(array) for array in inputs))
        command = [sys.executable, "-c", _CHILD, str(graph), str(arrays), str(results)]
        try:
            child = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=False)
        except subprocess.TimeoutExpired:
            raise EthorchError(f"the TOSA reference model exceeded its limit of {timeout_seconds:.0f} s.") from None
        if child.returncode:
            raise EthorchError(f"the TOSA reference model failed ({child.returncode}): {child.stderr.strip()[-1000:]}")
        with np.load(results) as stored:
            return [from_bits(stored[f"arr_{i}"]) for i in range(len(stored.files))]


def as_bits(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert BF16, which the reference model's Python module cannot read, to 16-bit integers."""
    array = np.ascontiguousarray(array)
    return array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array


def from_bits(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert the reference model's untyped 2-byte elements to BF16."""
    return array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array
