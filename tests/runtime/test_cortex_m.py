"""The ``cortex_m::`` operators that ExecuTorch's Arm backend leaves in its files: kernels here, against their definitions."""

from __future__ import annotations

from pathlib import Path

import executorch
import pytest
import torch

from ethorch import runtime
from ethorch.runtime.delegate import host_backend
from ethorch.support.errors import HostError
from tests.runtime.conftest import make_cortex_m


def test_kernels_equal_their_definitions_bit_for_bit(cortex_m_operators: Path) -> None:
    """Each operator in several ways, over random inputs, against what the installed wheel's Python makes of them."""
    program = runtime.load(cortex_m_operators / "operators.pte")
    names, runs = torch.load(cortex_m_operators / "cases.pt")
    different = []
    for inputs, wanted in runs:
        found = program(*inputs)
        assert len(found) == len(names)
        for name, mine, theirs in zip(names, found, wanted, strict=True):
            assert len(theirs.unique()) > 4, f"{name} hardly varies"
            if mine.dtype != theirs.dtype or not torch.equal(mine, theirs):
                different.append(name)
    assert not different


def test_every_operator_of_the_wheel_has_a_kernel(cortex_m_operators: Path) -> None:
    from executorch.runtime import Runtime

    host_backend()
    listed = (Path(executorch.__path__[0]) / "backends/cortex_m/ops/operators.yaml").read_text()
    wanted = {line.split("func: ")[1].split("(")[0] for line in listed.splitlines() if "func: " in line}
    assert len(wanted) > 15
    assert wanted <= Runtime.get().operator_registry.operator_names
    called = {call.operator for call in runtime.load(cortex_m_operators / "operators.pte").description.calls}
    assert wanted <= called, "an operator is not among the cases of tests/helpers/cortex_m.py"


@pytest.mark.long
@pytest.mark.parametrize("name", ["delegated", "cortex_m55"])
def test_files_of_aot_arm_compiler_run(tmp_path: Path, name: str) -> None:
    """As its users call it: for an Ethos-U, where quantize and dequantize are cortex_m's, and for a Cortex-M alone."""
    assert make_cortex_m(tmp_path, name) == ""
    program = runtime.load(tmp_path / f"{name}.pte")
    assert any(call.operator.startswith("cortex_m::") for call in program.description.calls)
    inputs, wanted = torch.load(tmp_path / "float.pt")
    errors = [(program(*x)[0] - y).abs().max().item() for x, y in zip(inputs, wanted, strict=True)]
    assert max(errors) < 0.06  # of a softmax, calibrated with one sample: both files differ from the float model by that


def test_a_call_that_does_not_fit_is_an_error(cortex_m_operators: Path) -> None:
    """Not a crash: another operator's name in the file, whose kernel meets arguments that are not its own."""
    data = (cortex_m_operators / "operators.pte").read_bytes()
    damaged = data.replace(b"cortex_m::minimum", b"cortex_m::softmax")
    assert damaged != data
    inputs = torch.load(cortex_m_operators / "cases.pt")[1][0][0]
    with pytest.raises(HostError, match="cortex_m kernel: argument 1: expected an integer"):
        runtime.load(damaged)(*inputs)
