"""Operators that ``to_edge`` takes apart into others, in hand-written programs: the C gives what ExecuTorch's runtime gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from executorch.runtime import Runtime
from torch import Tensor

from ethorch.deploy.firmware.kernels import list_kernels
from ethorch.formats.pte_types import Value
from ethorch.formats.pte_writer import write
from tests.deploy.firmware import (
    test_kernels_copies,
    test_kernels_elementwise,
    test_kernels_indexing,
    test_kernels_reductions,
    test_kernels_windows,
)
from tests.helpers.c_kernels import PLATFORMS, Program, compiled, floats, same_bits, steps_apart
from tests.helpers.made_calls import Made, T

F, INT8, L, B = "float32", "int8", "int64", "bool"
X, I8, OUT, WHERE = T(F, 4, 6), T(INT8, 4, 6), T(F, 4, 6), T(B, 4, 6)

#: Operator -> arguments of each call, the output last.
CALLS: dict[str, list[tuple[object, ...]]] = {
    "aten::add.Scalar_out": [(X, 2.5, 1, OUT), (I8, 3, 2, I8)],
    "aten::sub.Scalar_out": [(X, 2.5, 2, OUT), (I8, 3, 1, I8)],
    "aten::rsub.Scalar_out": [(X, 2.5, 1, OUT), (I8, 3, 2, I8)],
    "aten::mul.Scalar_out": [(X, 0.3, OUT), (I8, 3, I8)],
    "aten::div.Scalar_out": [(X, 0.3, OUT), (I8, 3, OUT)],
    "aten::div.Scalar_mode_out": [(X, 0.7, "floor", OUT), (X, 0.7, "trunc", OUT)],
    "aten::floor_divide.out": [(X, X, OUT)],
    "aten::ge.Scalar_out": [(X, 0.5, WHERE)],
    "aten::ne.Scalar_out": [(X, 0.5, WHERE), (I8, 3, WHERE)],
    "aten::le.Tensor_out": [(X, X, WHERE)],
    "aten::bitwise_or.Scalar_out": [(I8, 5, I8)],
    "aten::bitwise_xor.Scalar_out": [(I8, 5, I8)],
    "aten::bitwise_left_shift.Tensor_Scalar_out": [(I8, 2, I8)],
    "aten::bitwise_right_shift.Tensor_Scalar_out": [(I8, 2, I8)],
    "aten::masked_fill.Scalar_out": [(X, WHERE, -1.5, OUT), (I8, T(B, 6), 7, I8)],
    "aten::glu.out": [(X, 1, T(F, 4, 3)), (X, 0, T(F, 2, 6))],
    "aten::alias_copy.out": [(X, OUT)],
    "aten::detach_copy.out": [(X, OUT)],
    "aten::lift_fresh_copy.out": [(I8, I8)],
    "aten::clone.out": [(X, None, OUT)],
    "aten::_to_copy.out": [(X, False, None, I8)],
    "aten::fill.Scalar_out": [(X, 2.5, OUT), (I8, 3, I8)],
    "aten::fill.Tensor_out": [(X, T(F), OUT)],
    "aten::full_like.out": [(X, 2.5, None, OUT)],
    "aten::zeros.out": [((4, 6), OUT)],
    "aten::ones.out": [((4, 6), I8)],
    "aten::arange.out": [(5, T(L, 5)), (5, T(F, 5))],
    "aten::t_copy.out": [(X, T(F, 6, 4)), (T(INT8, 5), T(INT8, 5))],
    "aten::transpose_copy.int_out": [(T(INT8, 2, 3, 4), 0, -1, T(INT8, 4, 3, 2))],
    "aten::narrow_copy.out": [(X, 1, 2, 3, T(F, 4, 3))],
    "aten::select_scatter.out": [(X, T(F, 4), 1, 2, OUT), (I8, T(INT8, 6), 0, -1, I8)],
    "aten::squeeze_copy.dim_out": [(T(INT8, 4, 1, 6), 1, I8)],
    "aten::stack.out": [((X, X), 1, T(F, 4, 2, 6)), ((I8, I8), -1, T(INT8, 4, 6, 2))],
    "aten::split_copy.Tensor_out": [(X, 4, 1, (T(F, 4, 4), T(F, 4, 2)))],
    "aten::unbind_copy.int_out": [(T(INT8, 2, 5), 0, (T(INT8, 5), T(INT8, 5)))],
    "aten::pixel_shuffle.out": [(T(INT8, 2, 8, 3, 5), 2, T(INT8, 2, 2, 6, 10))],
    "aten::pixel_unshuffle.out": [(T(INT8, 2, 2, 6, 10), 2, T(INT8, 2, 8, 3, 5))],
    "aten::roll.out": [(X, (2,), (1,), OUT), (I8, (1, -2), (0, 1), I8)],
    "aten::reflection_pad1d.out": [(T(INT8, 3, 5), (2, 4), T(INT8, 3, 11))],
    "aten::reflection_pad2d.out": [(T(F, 2, 3, 4, 5), (2, 4, 3, 1), T(F, 2, 3, 8, 11))],
    "aten::reflection_pad3d.out": [(T(INT8, 2, 3, 4, 5), (1, 2, 3, 1, 2, 0), T(INT8, 2, 5, 8, 8))],
    "aten::replication_pad1d.out": [(T(INT8, 3, 5), (2, 6), T(INT8, 3, 13))],
    "aten::replication_pad2d.out": [(T(F, 2, 3, 4, 5), (2, 0, 5, 1), T(F, 2, 3, 10, 7))],
    "aten::replication_pad3d.out": [(T(INT8, 2, 3, 4, 5), (1, 2, 3, 1, 2, 3), T(INT8, 2, 8, 8, 8))],
    "aten::any.dims_out": [(I8, (0,), False, T(B, 6)), (X, None, False, T(B)), (X, (0, 1), True, T(B, 1, 1))],
    "aten::linear.out": [(T(F, 2, 3, 8), T(F, 5, 8), T(F, 5), T(F, 2, 3, 5))],
    "aten::pow.Tensor_Tensor_out": [(X, X, OUT)],
    "quantized_decomposed::quantize_per_tensor.Tensor_out": [(X, T("float64", 1), T(L, 1), -128, 127, 1, I8)],
    "quantized_decomposed::dequantize_per_tensor.Tensor_out": [(I8, T("float64", 1), T(L, 1), -128, 127, 1, None, OUT)],
}
#: Calls of operators that write their first argument.
IN_PLACE: dict[str, list[tuple[object, ...]]] = {
    "aten::index_put_": [(X, [T(L, 3)], T(F, 3, 6), False), (I8, [None, T(L, 2)], T(INT8, 4, 2), False)],
}
#: Of those whose bits are not the runtime's: how many floats between.
BOUNDS = {"aten::glu.out": 3, "aten::linear.out": 4, "aten::pow.Tensor_Tensor_out": 1}
#: No runtime kernel to compare with: what others are made of, in programs of older ExecuTorch.
UNCALLED = {"aten::_reshape_copy.out", "aten::_unsafe_view.out", "aten::empty.out", "executorch_prim::et_view.default"}


def _program() -> tuple[Program, list[str]]:
    """A program of all calls, and the operator of each of its outputs."""
    made, of_outputs = Made(), []
    for calls, in_place in ((CALLS, False), (IN_PLACE, True)):
        for operator, several in calls.items():
            for arguments in several:
                made.call(operator, arguments, in_place=in_place)
                of_outputs += [operator] * (len(made.outputs) - len(of_outputs))
    return Program("calls", write(made.program()), made.method(), (b"",), ()), of_outputs


def _input(value: Value) -> Tensor:
    dtype: torch.dtype = getattr(torch, value.dtype)
    if dtype is torch.float64:  # a scale
        return torch.rand(value.shape, dtype=dtype) + 0.01
    if dtype.is_floating_point:
        return floats(*value.shape)
    if dtype is torch.bool:
        return torch.rand(value.shape) > 0.5
    return torch.randint(0 if dtype is torch.int64 else -128, 2 if dtype is torch.int64 else 128, value.shape, dtype=dtype)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_c_gives_what_the_runtime_gives(platform: str, tmp_path: Path) -> None:
    program, of_outputs = _program()
    library = compiled(platform, [program], tmp_path)
    for _ in range(3):
        inputs = [_input(program.method.values[index]) for index in program.method.inputs]
        wanted = program.run_in_runtime([x.clone() for x in inputs])
        status, outputs = library.run(program, inputs)
        assert status == 0 and len(outputs) == len(wanted) == len(of_outputs)
        for operator, got, want in zip(of_outputs, outputs, wanted, strict=True):
            bound = BOUNDS.get(operator)
            fits = same_bits(got, want) if bound is None else steps_apart(got, want) <= bound
            assert fits, (operator, got, want)


def test_the_runtime_has_what_is_called_and_no_call_is_here_twice() -> None:
    assert {*CALLS, *IN_PLACE} <= Runtime.get().operator_registry.operator_names
    assert not CALLS.keys() & IN_PLACE.keys()


@pytest.mark.long
def test_every_operator_is_called_by_a_test() -> None:
    modules = (
        test_kernels_copies,
        test_kernels_elementwise,
        test_kernels_indexing,
        test_kernels_reductions,
        test_kernels_windows,
    )
    called = {call.operator for module in modules for program in module.programs().values() for call in program.method.calls}
    of_its_own = {name for name in list_kernels() if name.startswith("cortex_m::")}  # test_kernels_cortex_m.py
    assert set(list_kernels()) - called - of_its_own == {*CALLS, *IN_PLACE, *UNCALLED}
