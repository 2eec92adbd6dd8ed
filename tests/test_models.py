"""Whole networks: one delegate each, and the same bits from TOSA reference model, NPU machine and ExecuTorch runtime."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bench.models import MODELS
from ethorch import EthosUCompileSpec, runtime
from ethorch.backend.build import build_pte
from ethorch.lower.fx.node import DEQUANTIZE, QUANTIZE, op_name
from ethorch.models.load import UserModel
from ethorch.program.measure.ladder import Recorder
from ethorch.quantization.calibrate import quantize
from ethorch.vela.verification import delegate_arrays
from tests.helpers.ladder import reference

#: Networks over 224x224 take up to 25 seconds.
MARKS = {name: [pytest.mark.long] for name in ("mobilenet_v2", "mobilenet_v3_small", "resnet18")} | {"ds_cnn": [pytest.mark.core]}
SLICE = [pytest.param(name, marks=MARKS.get(name, [])) for name in MODELS]


def boundary(module: torch.nn.Module) -> tuple[torch.fx.Node, torch.fx.Node]:
    """The quantize node of the input and the dequantize node of the output, of a model with one of each."""
    nodes = list(module.graph.nodes)
    first = next(node for node in nodes if op_name(node.target) in QUANTIZE and node.args[0].op == "placeholder")
    (last,) = nodes[-1].all_input_nodes
    assert op_name(last.target) in DEQUANTIZE
    return first, last


@pytest.mark.parametrize("name", SLICE)
def test_one_delegate_and_the_same_bits(name: str) -> None:
    case = MODELS[name]
    module, spec = case.build(), EthosUCompileSpec("ethos-u55-128")
    user = UserModel(module, case.example_inputs(0), case.calibration(4, 1))
    quantized = quantize(user, spec)
    built = build_pte(quantized, user.example_inputs, spec)
    assert len(built.delegates) == 1
    assert [str(refusal) for refusal in built.partition.refusals] == []
    first, last = boundary(quantized)
    recorders: list[Recorder] = []

    def machine(payload: object) -> Recorder:
        recorders.append(Recorder(payload))  # type: ignore[arg-type]
        return recorders[-1]

    program = runtime.load(built.pte, machine=machine)
    distinct: set[int] = set()
    noise = torch.zeros(2)
    for seed in range(5):
        inputs = case.example_inputs(100 + seed)
        (found,) = program(*inputs)
        codes = first.target(inputs[0], *first.args[1:]).numpy()
        (delegate,), recorder = built.delegates, recorders[-1]
        np.testing.assert_array_equal(delegate_arrays(delegate, recorder.inputs)[0].ravel(), codes.ravel())
        (wanted,) = reference(delegate.tosa, [codes.reshape(delegate.inputs[0].shape)])
        np.testing.assert_array_equal(recorder.outputs[0].view(np.int8), wanted.ravel())
        dequantized = last.target(torch.from_numpy(wanted.reshape(found.shape)), *last.args[1:])
        torch.testing.assert_close(found, dequantized, rtol=0, atol=0)
        distinct.update(wanted.ravel().tolist())
        with torch.no_grad():
            real, fake = module(*inputs), quantized(*inputs)
        noise += torch.tensor([((fake - real) ** 2).sum().item(), ((found - real) ** 2).sum().item()])
    # Roundings differ by one step here and there, and a network of random weights amplifies that; the accuracy must not suffer.
    assert noise[1] < 1.6 * noise[0], f"noise of fake-quant and of the NPU: {noise.tolist()}"
    assert len(distinct) >= min(16, 5 * found.numel() // 2), "a network that outputs a constant proves nothing"
