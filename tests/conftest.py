"""Makes `bench` importable from tests, which use its networks, and seeds what draws random numbers."""

from __future__ import annotations

import gc
import random
import sys
from pathlib import Path

import numpy as np
import pytest

gc.set_threshold(50_000, 20, 25)  # of torch's objects, a look through all takes a third of a second
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same weights and inputs in a test whatever ran before it, in whatever process."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
