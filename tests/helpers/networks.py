"""Compare a model in all layers: float ~ fake-quantized ~ TOSA reference model == simulator == the ExecuTorch runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from ethorch import EthosUCompileSpec, QuantizationConfig
from ethorch.backend.build import build_pte
from ethorch.backend.emit.build import Build
from ethorch.models.load import UserModel
from ethorch.program.measure.ladder import compare
from ethorch.quantization.calibrate import quantize

TARGETS = ("ethos-u55-128", "ethos-u85-256")


def checked(
    model: nn.Module,
    calibration: Sequence[tuple[Any, ...]],
    target: str,
    config: QuantizationConfig | None = None,
    quantized_db: float = 15,
    agreement_db: float = 40,
) -> Build:
    """Quantize, build, and run the last sample in every layer. From TOSA on, every bit must be equal."""
    spec = EthosUCompileSpec(target)
    user = UserModel(model.eval(), calibration[0], list(calibration))
    graph = quantize(user, spec, config)
    built = build_pte(graph, user.example_inputs, spec)
    ladder = compare(model, graph, built, calibration[-1])
    assert ladder.bit_exact, ladder.to_text()
    assert all(x.quantized_db > quantized_db and x.agreement_db > agreement_db for x in ladder.outputs), ladder.to_text()
    return built
