"""What is written without ExecuTorch for operators on the CPU: the kernels that ExecuTorch calls, with the same results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from executorch.exir.dialects._ops import ops as edge_ops
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from ethorch import runtime
from ethorch.backend import cpu_kernels, through_executorch
from ethorch.backend.emit.checks import set_values
from ethorch.backend.emit.kernels import CAST_KERNEL, CLONE_KERNEL, VIEW_KERNEL, kernel_of
from ethorch.backend.emit.partitions import PartitionedGraph
from ethorch.backend.emit.writer import Writer
from ethorch.backend.preprocess import register_quantized_kernels
from ethorch.backend.products_on_cpu import QUANTIZED_PRODUCT
from ethorch.formats import pte
from ethorch.formats.pte_types import Call
from ethorch.formats.pte_writer import write
from ethorch.lower.fx.node import op_name
from ethorch.lower.partition_report import PartitionReport
from ethorch.support.errors import Reason
from ethorch.targets.cpu_operators import FORMS

OPS, CODES = torch.ops.aten, torch.ops.quantized_decomposed
Case = tuple[Callable[..., Any], tuple[Tensor, ...]]


def _cases() -> Iterator[tuple[str, Case]]:
    """Name -> a function of tensors, and the tensors. Every operator that is written without ExecuTorch is in at least one."""
    torch.manual_seed(0)
    x, y, positive, last = torch.randn(2, 3, 4), torch.randn(2, 3, 4), torch.rand(2, 3, 4) / 2 + 0.25, torch.randn(4)
    wide, place = torch.randint(-5, 6, (2, 3, 4)), torch.randint(0, 3, (2, 3, 4))
    narrow, mask, codes = wide.int(), x > 0, wide.to(torch.int8)
    table, rows = torch.randn(10, 6), torch.randint(0, 10, (2, 5))
    for name in (
        "abs", "acos", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "elu", "erf", "exp", "expm1", "floor", "gelu",
        "hardtanh", "isinf", "isnan", "leaky_relu", "log", "log10", "log1p", "log2", "neg", "reciprocal", "relu", "round",
        "rsqrt", "sigmoid",
        "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
    ):  # fmt: skip
        yield name, (getattr(OPS, name).default, (positive,))
    yield "acosh", (lambda a: OPS.acosh.default(a + 1.0), (positive,))
    for name in ("bitwise_not", "neg", "sign", "abs"):
        yield f"{name} of integers", (getattr(OPS, name).default, (wide,))
    yield "logical_not", (OPS.logical_not.default, (mask,))
    for name in ("add", "div", "eq", "ge", "gt", "le", "lt", "mul", "ne", "remainder", "sub"):
        op = getattr(OPS, name)
        scalar = op.Tensor if name in ("add", "div", "mul", "sub") else op.Scalar
        for kind, operands in {
            "": (x, y), "of int64": (wide, place + 1), "of int32 and float": (narrow, x), "of two ranks": (x, last),
            "of int64 and int32": (wide, narrow + 7),
        }.items():  # fmt: skip
            yield f"{name} {kind}", (op.Tensor, operands)
        for number, operand in ((2.5, x), (2, x), (2, wide), (2, narrow)):
            yield f"{name} {operand.dtype} {number}", (lambda a, op=scalar, b=number: op(a, b), (operand,))
    yield "add alpha", (lambda a, b: OPS.add.Tensor(a, b, alpha=2), (x, y))
    for mode, operands in (("floor", (x, y)), ("trunc", (wide, place + 1))):
        yield f"div {mode}", (lambda a, b, mode=mode: OPS.div.Tensor_mode(a, b, rounding_mode=mode), operands)
    for op in (OPS.maximum.default, OPS.minimum.default, OPS.fmod.Tensor, OPS.atan2.default, OPS.pow.Tensor_Tensor):
        yield str(op), (op, (positive, positive + 1))
    for op in (OPS.maximum.default, OPS.minimum.default, OPS.bitwise_and.Tensor, OPS.bitwise_or.Tensor, OPS.bitwise_xor.Tensor):
        yield f"{op} of integers", (op, (place + 1, place + 2))
    yield "minimum of integers and floats", (OPS.minimum.default, (narrow, x))
    for op in (OPS.logical_and.default, OPS.logical_or.default, OPS.logical_xor.default, OPS.bitwise_and.Tensor):
        yield f"{op} of truth values", (op, (mask, place > 1))
    yield "bitwise_and.Scalar", (lambda a: OPS.bitwise_and.Scalar(a, 3), (wide,))
    yield "pow 2", (lambda a: OPS.pow.Tensor_Scalar(a, 2), (x,))
    yield "pow 2.5", (lambda a: OPS.pow.Tensor_Scalar(a, 2.5), (positive,))
    yield "power of 2", (lambda a: OPS.pow.Scalar(2.0, a), (positive,))
    yield "where", (OPS.where.self, (mask, x, last))
    yield "where of integers", (OPS.where.self, (mask, wide, place))
    yield "clamp", (lambda a: OPS.clamp.default(a, -0.5, 0.5), (x,))
    yield "clamp from", (lambda a: OPS.clamp.default(a, 0), (wide,))
    yield "clip", (lambda a: OPS.clip.default(a, -0.5, 0.5), (x,))
    yield "clamp_min", (lambda a: OPS.clamp_min.default(a, 0.1), (x,))
    yield "clamp_max", (lambda a: OPS.clamp_max.default(a, 3), (wide,))
    for name in ("sum.dim_IntList", "mean.dim", "amax.default", "amin.default"):
        op = getattr(getattr(OPS, name.split(".")[0]), name.split(".")[1])
        yield name, (lambda a, op=op: op(a, [1]), (x,))
        yield f"{name} that keeps it", (lambda a, op=op: op(a, [-1], True), (x,))
    yield "sum of integers", (lambda a: OPS.sum.dim_IntList(a, [1]), (wide,))
    yield "sum as floats", (lambda a: OPS.sum.dim_IntList(a, [1], dtype=torch.float32), (wide,))
    yield "mean of all", (OPS.mean.default, (x,))
    yield "any of all", (OPS.any.default, (mask,))
    yield "any", (lambda a: OPS.any.dim(a, 1), (mask,))
    yield "prod", (lambda a: OPS.prod.dim_int(a, 1), (x,))
    for op in (OPS.argmax.default, OPS.argmin.default):
        yield f"{op}", (lambda a, op=op: op(a, 1), (x,))
        yield f"{op} of all", (op, (x,))
        yield f"{op} of integers", (lambda a, op=op: op(a, -1, True), (wide,))
    yield "max and where", (lambda a: OPS.max.dim(a, 1), (x,))
    yield "min and where", (lambda a: OPS.min.dim(a, -1), (x,))
    yield "max alone", (lambda a: OPS.max.dim(a, 1)[0], (x,))
    yield "topk", (lambda a: OPS.topk.default(a, 2), (x,))
    yield "places of topk", (lambda a: OPS.topk.default(a, 2)[1], (x,))
    for operand in (x, wide, mask):
        yield f"cumsum {operand.dtype}", (lambda a: OPS.cumsum.default(a, 1), (operand,))
    yield "embedding", (OPS.embedding.default, (table, rows))
    yield "embedding with padding", (lambda a, b: OPS.embedding.default(a, b, 0), (table, rows))
    yield "embedding of codes", (OPS.embedding.default, ((table * 20).to(torch.int8), rows))
    yield "embedding by int32", (OPS.embedding.default, (table, rows.int()))
    yield "index_select", (lambda a, b: OPS.index_select.default(a, 0, b), (table, rows[0]))
    yield "gather", (lambda a, b: OPS.gather.default(a, 1, b), (x, place))
    yield "index", (lambda a, b: OPS.index.Tensor(a, [b]), (table, rows))
    yield "index behind", (lambda a, b: OPS.index.Tensor(a, [None, b]), (table, rows[0] % 6))
    yield "index by two", (lambda a, b, c: OPS.index.Tensor(a, [b, c]), (table, rows[0], rows[1] % 6))
    yield "scatter", (lambda a, b, c: OPS.scatter.src(a, 1, b, c), (x, place, y))
    yield "scatter of a number", (lambda a, b: OPS.scatter.value(a, 1, b, 1.0), (x, place))
    yield "scatter_add", (lambda a, b, c: OPS.scatter_add.default(a, 1, b, c), (x, place, y))
    for adds in (False, True):
        yield (
            f"index_put {adds}",
            (lambda a, b, c, adds=adds: OPS.index_put.default(a, [b], c, adds), (table, rows[0], table[:5] + 1)),
        )
    yield "slice_scatter", (lambda a, b: OPS.slice_scatter.default(a, b, 1, 0, 2), (x, y[:, :2].contiguous()))
    yield "cat", (lambda a, b: OPS.cat.default([a, b], 1), (x, y))
    yield "cat of two dtypes", (lambda a, b: OPS.cat.default([a, b], 1), (x, wide))
    yield "flip", (lambda a: OPS.flip.default(a, [1]), (x,))
    yield "repeat", (lambda a: OPS.repeat.default(a, [2, 1, 1]), (x,))
    yield "constant_pad_nd", (lambda a: OPS.constant_pad_nd.default(a, [1, 1]), (x,))
    yield "permute", (lambda a: OPS.permute.default(a, [2, 0, 1]), (x,))
    yield "permute of nothing", (lambda a: OPS.permute.default(a, [0, 1, 2]), (x,))
    yield "transpose", (lambda a: OPS.transpose.int(a, 0, -1), (x,))
    yield "t", (OPS.t.default, (table,))
    yield "unsqueeze", (lambda a: OPS.unsqueeze.default(a, 1), (x,))
    yield "squeeze", (lambda a: OPS.squeeze.dim(a, 0), (x[:1].contiguous(),))
    yield "squeeze of two", (lambda a: OPS.squeeze.dims(a, [0, 2]), (x[:1, :, :1].contiguous(),))
    yield "squeeze of all", (OPS.squeeze.default, (x[:1].contiguous(),))
    yield "squeeze of nothing", (lambda a: OPS.squeeze.dim(a, 1), (x,))
    yield "view", (lambda a: OPS.view.default(a, [6, -1]), (x,))
    yield "view between", (lambda a: OPS.add.Tensor(OPS.view.default(OPS.relu.default(a), [6, 4]), 1.0), (x,))
    yield "view of a view", (lambda a: OPS.relu.default(OPS.view.default(OPS.view.default(a, [6, 4]), [24])), (x,))
    yield "view inside and out", (lambda a: (seen := OPS.view.default(a, [6, 4]), OPS.relu.default(seen)), (x,))
    yield "view twice", (lambda a: (OPS.view.default(a, [24]), OPS.view.default(a, [6, 4])), (x,))
    yield "view of a constant", (lambda a: OPS.add.Tensor(a, OPS.view.default(torch.arange(4.0), [1, 1, 4])), (x,))
    yield "unsafe view", (lambda a: OPS.relu.default(OPS._unsafe_view.default(a, [6, 4])), (x,))
    yield "view_as", (lambda a, b: OPS.relu.default(OPS.view_as.default(a, b)), (x, y.reshape(6, 4).contiguous()))
    yield "reshape", (lambda a: OPS.relu.default(OPS.reshape.default(a, [6, 4])), (x,))
    yield "flatten", (lambda a: OPS.relu.default(OPS.flatten.using_ints(a, 1)), (x,))
    yield "unflatten", (lambda a: OPS.relu.default(OPS.unflatten.int(a, 2, [2, 2])), (x,))
    yield "expand", (lambda a: OPS.expand.default(a, [2, 3, 4]), (last,))
    yield "expand of one", (lambda a: OPS.expand.default(a, [-1, 3, -1]), (x[:, :1].contiguous(),))
    yield "select", (lambda a: OPS.select.int(a, 1, -1), (x,))
    yield "slice", (lambda a: OPS.slice.Tensor(a, 1, 0, 2), (x,))
    yield "every other one", (lambda a: OPS.slice.Tensor(a, 2, 0, 4, 2), (x,))
    yield "slice of all", (lambda a: OPS.relu.default(OPS.slice.Tensor(a, 1, 0, 2**63 - 1)), (x,))
    yield "slice of all, given", (lambda a: OPS.slice.Tensor(a, 1, 0, 2**63 - 1), (x,))
    yield "to float", (lambda a: OPS.to.dtype(a, torch.float32), (wide,))
    yield "to what it is", (lambda a: OPS.relu.default(OPS.to.dtype(a, torch.float32)), (x,))
    yield "to int64", (lambda a: OPS.to.dtype(a, torch.int64), (x,))
    yield "to bool", (lambda a: OPS.to.dtype(a, torch.bool), (wide,))
    yield "to copy", (lambda a: OPS._to_copy.default(a, dtype=torch.int32), (wide,))
    yield "to a device", (lambda a: OPS.to.device(a, torch.device("cpu"), torch.float64), (x,))
    yield "type_as", (OPS.type_as.default, (wide, x))
    yield "clone", (OPS.clone.default, (x,))
    yield "clone between", (lambda a: OPS.relu.default(OPS.clone.default(a)), (x,))
    yield "softmax", (lambda a: OPS.softmax.int(a, -1), (x,))
    yield "_softmax", (lambda a: OPS._softmax.default(a, 1, False), (x,))
    yield "log_softmax", (lambda a: OPS.log_softmax.int(a, -1), (x,))
    yield "_log_softmax", (lambda a: OPS._log_softmax.default(a, 1, False), (x,))
    yield "mm", (OPS.mm.default, (table, table.T.contiguous()))
    yield "bmm", (OPS.bmm.default, (x, y.transpose(1, 2).contiguous()))
    yield "addmm", (OPS.addmm.default, (last[:3], table, torch.randn(6, 3)))
    yield "arange", (lambda a: a + torch.arange(4), (wide,))
    yield "arange from", (lambda a: a + torch.arange(1, 5, dtype=torch.float32), (x,))
    yield "arange in steps", (lambda a: a + torch.arange(1, 9, 2), (wide,))
    yield "full", (lambda a: a + torch.full((4,), 1.5), (x,))
    yield "full_like", (lambda a: OPS.full_like.default(a, 1.5), (x,))
    yield "scalar_tensor", (lambda a: a + torch.scalar_tensor(2.0), (x,))
    int8, int16 = (-128, 127, torch.int8), (-32768, 32767, torch.int16)
    yield "quantize", (lambda a: CODES.quantize_per_tensor.default(a, 0.1, 3, *int8), (x,))
    yield "quantize to int16", (lambda a: CODES.quantize_per_tensor.default(a, 0.001, 0, *int16), (x,))
    yield "dequantize", (lambda a: CODES.dequantize_per_tensor.default(a, 0.1, 3, *int8), (codes,))

    def to_another_scale(a: Tensor) -> Any:
        return CODES.quantize_per_tensor.default(CODES.dequantize_per_tensor.default(a, 0.1, 3, *int8), 0.2, 3, *int8)

    yield "to another scale", (to_another_scale, (codes,))


CASES = dict(_cases())
#: One of each way that an operator is written.
FEW = (
    "relu", "add of int32 and float", "add torch.int32 2", "div of int64", "ge torch.float32 2.5", "topk", "cumsum torch.int64",
    "embedding of codes", "index behind", "cat", "transpose", "squeeze", "view inside and out", "view of a view", "expand",
    "slice of all", "slice", "clip", "to a device",
    "to float", "to what it is", "type_as", "clone", "softmax", "arange", "quantize", "dequantize",
    "max and where",
)  # fmt: skip
MANY = 30


class Several(nn.Module):
    """All of the cases, one after the other."""

    def __init__(self, cases: Sequence[Case]) -> None:
        super().__init__()
        self.cases = cases

    def forward(self, *inputs: Tensor) -> tuple[Any, ...]:
        results, at = [], 0
        for function, own in self.cases:
            results.append(function(*inputs[at : at + len(own)]))
            at += len(own)
        return tuple(results)


def graph_of(cases: Sequence[Case]) -> tuple[GraphModule, tuple[Tensor, ...]]:
    """The cases as a graph like those of ``convert_pt2e``, and its inputs."""
    inputs = tuple(value for _, own in cases for value in own)
    module = torch.export.export(Several(cases), inputs).module(check_guards=False)
    for node in list(module.graph.nodes):
        if node.op == "call_module":
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()
    assert set_values(module) is None
    return module, inputs


class NoPartition(Partitioner):  # type: ignore[misc]
    """Leaves everything to the CPU."""

    report = PartitionReport("ethos-u55-128")

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        register_quantized_kernels()
        return PartitionResult(exported_program, {})


def written(module: GraphModule) -> bytes | Reason:
    writer = Writer(PartitionedGraph(module, (), NoPartition.report, ()))
    return writer.add_graph() or write(writer.program((), ("", "")))


def kernels(data: bytes) -> list[str]:
    """What a program calls, sorted."""
    return sorted(step.operator for step in pte.read(data).methods["forward"].chains[0].instructions if isinstance(step, Call))


def check(names: Sequence[str]) -> None:
    module, inputs = graph_of([CASES[name] for name in names])
    data = written(module)
    assert isinstance(data, bytes), data
    partitioner: Any = NoPartition()
    _, theirs, _ = through_executorch._lower(torch.export.export(module, inputs), partitioner)
    assert kernels(data) == kernels(theirs)
    for a, b in zip(runtime.load(data)(*inputs), runtime.load(theirs)(*inputs), strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_some_operators_are_written_as_executorch_writes_them() -> None:
    check(FEW)


@pytest.mark.long
@pytest.mark.parametrize("start", range(0, len(CASES), MANY))
def test_all_operators_are_written_as_executorch_writes_them(start: int) -> None:
    check(list(CASES)[start : start + MANY])


@pytest.mark.long
def test_every_operator_is_held_against_executorch() -> None:
    module, _ = graph_of(list(CASES.values()))
    tried = {op_name(node.target) for node in module.graph.nodes if node.op == "call_function"}
    assert tried >= FORMS.keys() - {QUANTIZED_PRODUCT}
    data = written(module)
    assert isinstance(data, bytes), data
    assert set(kernels(data)) <= cpu_kernels.registered_kernels()


def test_kernels_are_those_that_executorch_finds() -> None:
    """And firmware has them, too."""
    register_quantized_kernels()
    assert {CAST_KERNEL, CLONE_KERNEL, VIEW_KERNEL} <= cpu_kernels.registered_kernels()
    kept = {name for name, form in FORMS.items() if form in ("unchanged", "promoted", "promoted_to_float")}
    for name in kept - {QUANTIZED_PRODUCT}:  # tests/backend/test_products_on_cpu.py runs that one
        namespace, base, overload = name.split(".")
        op = getattr(getattr(getattr(torch.ops, namespace), base), overload)
        kernel = kernel_of(op)
        assert kernel is not None
        assert kernel.name == cpu_kernels.kernel_of(getattr(getattr(getattr(edge_ops.edge, namespace), base), overload))
        assert kernel.name in cpu_kernels.registered_kernels()
        assert namespace != "aten" or kernel.name in cpu_kernels._portable()


@pytest.mark.parametrize(
    ("function", "operands", "id"),
    [
        (lambda a: OPS.silu.default(a), (torch.randn(4),), "writer.operator"),  # ExecuTorch breaks it up
        (lambda a: OPS.reshape.default(OPS.permute.default(a, [1, 0]), [6]), (torch.randn(2, 3),), "writer.layout"),
        (lambda a: OPS.relu.default(a[:, :0]), (torch.randn(2, 3),), "writer.elements"),
        (lambda a: OPS.abs.default(a), (torch.randn(2, dtype=torch.complex64),), "writer.elements"),
        (lambda a: (a, 3), (torch.randn(2),), "writer.not_tensor"),
        (
            lambda a: CODES.quantize_per_tensor.default(
                OPS.slice.Tensor(CODES.dequantize_per_tensor.default(a, 0.1, 3, -128, 127, torch.int8), 0, 0, 9),
                *(0.1, 3, -128, 127, torch.int8),
            ),
            (torch.ones(4, dtype=torch.int8),),
            "writer.undone_quantization",
        ),
    ],
)  # fmt: skip
def test_what_executorch_changes_is_left_to_it(function: Callable[..., Any], operands: tuple[Tensor, ...], id: str) -> None:
    module, _ = graph_of([(function, operands)])
    reason = written(module)
    assert isinstance(reason, Reason) and reason.id == id
