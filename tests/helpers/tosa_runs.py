"""Run a TOSA graph in the reference model and, compiled by Vela, in the simulator, without PyTorch."""

from __future__ import annotations

import numpy as np

from ethorch import EthosUCompileSpec, vela
from ethorch.npu import Machine, Program
from ethorch.tosa.reference_model import as_bits, from_bits
from tests.helpers.both_ways import run_both_ways


def reference(tosa: bytes, codes: list[np.ndarray]) -> list[np.ndarray]:
    """Return the TOSA reference model's outputs. The graph must be valid."""
    import tosa_reference_model

    outputs, status = tosa_reference_model.run(tosa, [as_bits(c) for c in codes])
    assert status == tosa_reference_model.GraphStatus.TOSA_VALID, status
    return [from_bits(output) for output in outputs]


def machine(tosa: bytes, codes: list[np.ndarray], spec: EthosUCompileSpec) -> list[np.ndarray]:
    """Compile the graph with Vela and return the NPU machine's outputs."""
    return run_compiled(vela.compile(tosa, spec), codes)


def run_compiled(compiled: vela.CompiledModel, codes: list[np.ndarray], checks: tuple[str, ...] = ()) -> list[np.ndarray]:
    """Run a compiled model on a fresh machine, and require the same bytes everywhere from a plan."""
    program = Program(compiled.command_stream, compiled.constants)

    def fill(m: Machine) -> None:
        for tensor, array in zip(compiled.inputs, codes, strict=True):
            data = np.ascontiguousarray(array).view(np.uint8).ravel()
            m.region(tensor.region)[tensor.offset : tensor.offset + data.size] = data
            m.mark_written(tensor.region, tensor.offset, data.size)

    plan = run_both_ways(lambda c: Machine(program, compiled.scratch_bytes, compiled.scratch_fast_bytes, compiled=c), fill)
    assert plan is None or not plan.reasons, sorted(set(plan.reasons.values()))
    m = Machine(program, compiled.scratch_bytes, compiled.scratch_fast_bytes, checks=checks)
    fill(m)
    m.run()
    results = []
    for tensor in compiled.outputs:
        raw = m.region(tensor.region)[tensor.offset : tensor.offset + tensor.nbytes]
        results.append(raw.copy().view(f"int{8 * tensor.element_size}").reshape(tensor.shape))
    return results
