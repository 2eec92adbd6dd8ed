"""ethorch beside ExecuTorch's Arm and Cortex-M backends in one process, imported in any order."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np

import ethorch
from tests.helpers.both_backends import ARM, facts, programs

CORTEX_M = "executorch.backends.cortex_m.quantizer.quantizer"  # imports the operators
#: ``ethorch.backend`` defines the class EthosUBackend; ``import ethorch`` alone defines nothing.
ORDERS = [(CORTEX_M, ARM, "ethorch.backend"), ("ethorch.backend", "product_on_cpu", ARM, CORTEX_M)]


def test_programs_do_not_depend_on_the_other_backends_of_the_process() -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.helpers.both_backends", *order],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for order in ORDERS
    ]
    alone = facts(programs(ethorch.arm))
    results = []
    for process in processes:
        out, errors = process.communicate()
        assert process.returncode == 0, errors
        results.append(json.loads(out.splitlines()[-1]))
    first, second = results
    assert first == second
    for name in ("ethorch", "ethorch delegate"):
        assert first[name] == alone[name]
    assert first["ethorch delegate"] != first["executorch delegate"]
    ours, theirs = map(np.array, first["outputs"])
    assert np.array_equal(ours, alone["outputs"][0])
    assert np.abs(ours - theirs).max() < 0.1 * np.abs(ours).max()
