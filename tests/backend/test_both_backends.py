"""ethorch beside ExecuTorch's Arm and Cortex-M backends in one process, imported in any order."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import ethorch
from tests.helpers.both_backends import ARM, facts, programs

CORTEX_M = "executorch.backends.cortex_m.quantizer.quantizer"  # imports the operators
#: ``ethorch.backend`` defines the class EthosUBackend; ``import ethorch`` alone defines nothing.
ORDERS = [(CORTEX_M, ARM, "ethorch.backend"), ("ethorch.backend", "product_on_cpu", ARM, CORTEX_M)]


@functools.cache
def facts_of_a_process(order: tuple[str, ...]) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.helpers.both_backends", *order]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "order", [pytest.param(ORDERS[0], marks=pytest.mark.long), ORDERS[1]], ids=["Cortex-M first", "ethorch first"]
)
def test_programs_do_not_depend_on_the_other_backends_of_the_process(order: tuple[str, ...]) -> None:
    alone, found = facts(programs(ethorch.arm)), facts_of_a_process(order)
    for name in ("ethorch", "ethorch delegate"):
        assert found[name] == alone[name]
    assert found["ethorch delegate"] != found["executorch delegate"]
    ours, theirs = map(np.array, found["outputs"])
    assert np.array_equal(ours, alone["outputs"][0])
    assert np.abs(ours - theirs).max() < 0.1 * np.abs(ours).max()


@pytest.mark.long
def test_programs_do_not_depend_on_the_order_of_imports() -> None:
    first, second = map(facts_of_a_process, ORDERS)
    assert first == second
