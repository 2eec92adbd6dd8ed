"""Compute matrix products of two int8 activations on the CPU, because the Ethos-U55 and U65 need many operations per product.

ExecuTorch's ``cortex_m`` library calls CMSIS-NN, which uses Helium on Cortex-M55 and M85.
"""

from __future__ import annotations

import copy
import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ethorch.formats import pte
from ethorch.formats.pte_types import Call, Instruction
from ethorch.formats.pte_writer import write
from ethorch.lower.fx.node import DEQUANTIZE, QUANTIZE, op_name
from ethorch.support.errors import EthorchError, Reason

#: Key in a node's ``meta`` for the reason why the partitioner assigns the node to the CPU.
LEFT_TO_CPU = "ethorch_left_to_cpu"
REASON = Reason(
    "cost.product_on_cpu",
    "the setting 'partition' assigns products of two activations to the CPU's int8 kernel",
    "Use partition='npu' to run the product on the NPU, or partition='cost' to compare the estimates.",
)
SCRATCH = Reason(
    "cost.scratch_of_product",
    "the operator allocates scratch memory for a product that the setting 'partition' assigns to the CPU's int8 kernel",
    "Use partition='npu' to run the product on the NPU.",
)

#: The operator in a graph, and the kernel that a program calls for it.
_OPERATOR, _KERNEL = "ethorch::quantized_batch_matmul", "cortex_m::quantized_batch_matmul"
#: Name of the operator in a graph.
QUANTIZED_PRODUCT = "ethorch.quantized_batch_matmul.default"
#: Operators that multiply two tensors, and the indices of the factors among their arguments.
_PRODUCTS = {"aten.bmm.default": (0, 1), "aten.baddbmm.default": (1, 2), "aten.matmul.default": (0, 1)}
_INT8 = (-128, 127, torch.int8)
_SUM_BYTES = 4  # scratch memory that CMSIS-NN requires per column


def reason_for_cpu(node: Node) -> Reason | None:
    """Return the reason why a node was assigned to the CPU before partitioning, or None.

    Operators from ``move_products_to_cpu`` are recognized by name, because ExecuTorch's export drops ``meta[LEFT_TO_CPU]``.
    """
    if op_name(node.target) == QUANTIZED_PRODUCT:
        return REASON
    if any(op_name(user.target) == QUANTIZED_PRODUCT and user.args[-1] is node for user in node.users):
        return SCRATCH
    reason: Reason | None = node.meta.get(LEFT_TO_CPU)
    return reason


def products(module: GraphModule) -> list[Node]:
    """Return a converted graph's matrix products whose operands and results are int8 activations."""
    return [node for node in module.graph.nodes if _product(node) is not None]


def move_products_to_cpu(module: GraphModule) -> GraphModule:
    """Return a copy of the graph in which the CPU operator ``ethorch.quantized_batch_matmul`` replaces each node from ``products``.

    Because of rounding, results may differ by 1 from those of the NPU. Raise EthorchError if ``products`` finds nothing.
    """
    if not products(module):
        raise EthorchError(
            "the model has no product of two int8 activations for the int8 kernel of the CPU. Remove partition='cpu-matmul'."
        )
    _define()
    moved = GraphModule(module, copy.deepcopy(module.graph))
    moved.meta = dict(module.meta)
    for node in products(moved):
        _replace(moved, node)
    moved.graph.eliminate_dead_code()
    moved.recompile()
    return moved


@functools.cache
def _define() -> torch.library.Library:
    arguments = (
        "Tensor lhs, int lhs_zero_point, Tensor rhs_transposed, int rhs_zero_point, int output_zero_point, int output_multiplier, "
        "int output_shift, Tensor scratch"
    )
    library = torch.library.Library("ethorch", "FRAGMENT")
    library.define(f"quantized_batch_matmul({arguments}) -> Tensor")
    library.define(f"quantized_batch_matmul.out({arguments}, *, Tensor(a!) out) -> Tensor(a!)")
    torch.library.register_fake(_OPERATOR, _shape, lib=library)
    return library


def rename_kernels(program: bytes) -> bytes:
    """Replace ``ethorch::quantized_batch_matmul`` in a ``.pte`` with ExecuTorch's kernel ``cortex_m::quantized_batch_matmul``."""
    if _OPERATOR.encode() not in program:
        return program
    parsed = pte.read(program)
    methods = {}
    for name, method in parsed.methods.items():
        chains = tuple(replace(chain, instructions=tuple(map(_rename_kernel, chain.instructions))) for chain in method.chains)
        methods[name] = replace(method, operators=tuple(map(_kernel, method.operators)), chains=chains)
    return write(replace(parsed, methods=methods))


def _rename_kernel(step: Instruction) -> Instruction:
    return replace(step, operator=_kernel(step.operator)) if isinstance(step, Call) and step.operator else step


def _kernel(operator: str) -> str:
    base, dot, overload = operator.partition(".")
    return f"{_KERNEL}{dot}{overload}" if base == _OPERATOR else operator


def _shape(left: Tensor, left_zero: int, right: Tensor, *rest: Any) -> Tensor:
    return left.new_empty((left.shape[0], left.shape[1], right.shape[1]))


@dataclass(frozen=True)
class _Product:
    left: Node
    right: Node
    quantize: Node
    inner: int


def _product(node: Node) -> _Product | None:
    if node.op != "call_function" or op_name(node.target) not in _PRODUCTS or len(node.users) != 1:
        return None
    if op_name(node.target) == "aten.baddbmm.default" and node.kwargs.get("beta", 1) != 0:
        return None
    left, right = (node.args[place] for place in _PRODUCTS[op_name(node.target)])
    quantize = next(iter(node.users))
    if not isinstance(left, Node) or not isinstance(right, Node) or not isinstance(node.meta.get("val"), Tensor):
        return None
    if not _is_int8(quantize, QUANTIZE) or not _is_int8(left, DEQUANTIZE) or not _is_int8(right, DEQUANTIZE):
        return None
    first, second, result = _shape_of(left), _shape_of(right), tuple(node.meta["val"].shape)
    if not len(first) == len(second) == len(result) == 3 or first[0] != second[0]:
        return None
    return _Product(left, right, quantize, first[2])


def _is_int8(node: Node, kind: frozenset[str]) -> bool:
    return op_name(node.target) in kind and "per_tensor" in op_name(node.target) and tuple(node.args[3:6]) == _INT8


def _shape_of(node: Any) -> tuple[int, ...]:
    while "val" not in node.meta and node.args:
        node = node.args[0]
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def _replace(module: GraphModule, node: Node) -> None:
    operands = _product(node)
    assert operands is not None
    graph = module.graph
    left, right, out = (_scale_and_zero(conversion) for conversion in (operands.left, operands.right, operands.quantize))
    alpha: Any = node.kwargs.get("alpha", 1)
    fraction, shift = math.frexp(left[0] * right[0] * alpha / out[0])
    batch, rows, columns = node.meta["val"].shape

    def call(target: Any, args: tuple[Any, ...], shape: tuple[int, ...], val_dtype: torch.dtype, **kwargs: Any) -> Node:
        call_node = graph.call_function(target, args, kwargs)
        call_node.meta = {**node.meta, "val": torch.empty(shape, dtype=val_dtype, device="meta")}
        return call_node

    with graph.inserting_before(node):
        turned = call(torch.ops.aten.permute.default, (operands.right, [0, 2, 1]), (batch, columns, operands.inner), torch.float32)
        codes = call(operands.quantize.target, (turned, *operands.right.args[1:]), (batch, columns, operands.inner), torch.int8)
        size = _SUM_BYTES * columns
        scratch = call(torch.ops.aten.full.default, ([size], 0), (size,), torch.int8, dtype=torch.int8)
        product = call(
            torch.ops.ethorch.quantized_batch_matmul.default,
            (operands.left.args[0], -left[1], codes, -right[1], out[1], min(round(fraction * 2**31), 2**31 - 1), shift, scratch),
            (batch, rows, columns),
            torch.int8,
        )
    operands.quantize.replace_all_uses_with(product)
    graph.erase_node(operands.quantize)
    graph.erase_node(node)


def _scale_and_zero(node: Any) -> tuple[float, int]:
    return float(node.args[1]), int(node.args[2])
