"""Run one call of one operator in every layer: fake-quantized PyTorch, TOSA reference model, Vela, simulator.

``python -m tests.helpers.ladder NAME`` runs the samples of one operator.
"""

from tests.helpers.ladder.rungs import Climb, climb, climbed, lowered, refusal_ids
from tests.helpers.ladder.samples import (
    CASES,
    CONFIGS,
    INPUTS,
    REFUSED,
    SPECS,
    TARGETS,
    WEIGHTED,
    Call,
    Export,
    export,
    inputs_for,
    leaves,
)
from tests.helpers.quantized import Quantized, quantized
from tests.helpers.tosa_runs import machine, reference, run_compiled

__all__ = [
    "CASES",
    "CONFIGS",
    "INPUTS",
    "REFUSED",
    "SPECS",
    "TARGETS",
    "WEIGHTED",
    "Call",
    "Climb",
    "Export",
    "Quantized",
    "climb",
    "climbed",
    "export",
    "inputs_for",
    "leaves",
    "lowered",
    "machine",
    "quantized",
    "reference",
    "refusal_ids",
    "run_compiled",
]
