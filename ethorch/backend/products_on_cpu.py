"""Products of two activations on the CPU, of codes: U55 and U65 have none of their own, and Vela makes many operations of one.

ExecuTorch's ``cortex_m`` library multiplies int8 matrices by CMSIS-NN, with the vector instructions (Helium) of Cortex-M55 and M85.
Nobody has published how fast for these shapes: the rate ``int8 mac.cortex_m`` of ``ethorch.figures.RATES`` is assumed.
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

#: Key of a node's ``meta``: why the partitioner leaves it to the CPU.
LEFT_TO_CPU = "ethorch_left_to_cpu"
REASON = Reason(
    "cost.product_on_cpu",
    "a product of two activations is left to the CPU's int8 kernel, as partition asks for",
    "partition='npu' has it on the NPU; partition='cost' compares the estimates.",
)
SCRATCH = Reason(
    "cost.scratch_of_product",
    "the memory in which the CPU's int8 kernel of a product sums, a product that partition leaves to the CPU",
    "partition='npu' has the product on the NPU.",
)

#: The operator in a graph, and the kernel that a program calls for it.
_OPERATOR, _KERNEL = "ethorch::quantized_batch_matmul", "cortex_m::quantized_batch_matmul"
#: Name of the operator in a graph.
QUANTIZED_PRODUCT = "ethorch.quantized_batch_matmul.default"
#: Products of two tensors -> places of the factors.
_PRODUCTS = {"aten.bmm.default": (0, 1), "aten.baddbmm.default": (1, 2), "aten.matmul.default": (0, 1)}
_INT8 = (-128, 127, torch.int8)
_SUM_BYTES = 4  # of scratch memory that CMSIS-NN wants for each column


def reason_for_cpu(node: Node) -> Reason | None:
    """Return the reason why a node was left to the CPU before it was partitioned, or None.

    Operators that ``on_cpu`` inserts are recognized by name because ExecuTorch's export drops their ``LEFT_TO_CPU``.
    """
    if op_name(node.target) == QUANTIZED_PRODUCT:
        return REASON
    if any(op_name(user.target) == QUANTIZED_PRODUCT and user.args[-1] is node for user in node.users):
        return SCRATCH
    reason: Reason | None = node.meta.get(LEFT_TO_CPU)
    return reason


def products(module: GraphModule) -> list[Node]:
    """The products of two int8 activations, rounded to int8, of a graph that ``convert_pt2e`` returned."""
    return [node for node in module.graph.nodes if _product(node) is not None]


def on_cpu(module: GraphModule) -> GraphModule:
    """The same graph with each of its ``products`` as ``ethorch.quantized_batch_matmul``, which stays on the CPU.

    The result of a product may be another by one code: the CPU rounds by 31 bits.

    Raises:
        EthorchError: there is no such product.
    """
    if not products(module):
        raise EthorchError(
            "the model has no product of two int8 activations that the CPU could compute of codes: leave "
            "partition='cpu-matmul' out."
        )
    _define()
    found = GraphModule(module, copy.deepcopy(module.graph))
    found.meta = dict(module.meta)
    for node in products(found):
        _replace(found, node)
    found.graph.eliminate_dead_code()
    found.recompile()
    return found


@functools.cache
def _define() -> torch.library.Library:
    """Define the operator of ExecuTorch's kernel under ``_OPERATOR``, for the rest of the process.

    Its own name is left to ``executorch.backends.cortex_m``, which can be imported before or after: PyTorch accepts one definition.
    """
    arguments = (
        "Tensor lhs, int lhs_zero_point, Tensor rhs_transposed, int rhs_zero_point, int output_zero_point, int output_multiplier, "
        "int output_shift, Tensor scratch"
    )
    library = torch.library.Library("ethorch", "FRAGMENT")
    library.define(f"quantized_batch_matmul({arguments}) -> Tensor")
    library.define(f"quantized_batch_matmul.out({arguments}, *, Tensor(a!) out) -> Tensor(a!)")
    torch.library.register_fake(_OPERATOR, _shape, lib=library)
    return library


def with_kernels(program: bytes) -> bytes:
    """Return a ``.pte`` that calls ExecuTorch's kernel for each operator that ``on_cpu`` inserted."""
    if _OPERATOR.encode() not in program:
        return program
    parsed = pte.read(program)
    methods = {}
    for name, method in parsed.methods.items():
        chains = tuple(replace(chain, instructions=tuple(map(_with_kernel, chain.instructions))) for chain in method.chains)
        methods[name] = replace(method, operators=tuple(map(_kernel, method.operators)), chains=chains)
    return write(replace(parsed, methods=methods))


def _with_kernel(step: Instruction) -> Instruction:
    return replace(step, operator=_kernel(step.operator)) if isinstance(step, Call) and step.operator else step


def _kernel(operator: str) -> str:
    base, dot, overload = operator.partition(".")
    return f"{_KERNEL}{dot}{overload}" if base == _OPERATOR else operator


def _shape(left: Tensor, left_zero: int, right: Tensor, *rest: Any) -> Tensor:
    return left.new_empty((left.shape[0], left.shape[1], right.shape[1]))


@dataclass(frozen=True)
class _Product:
    """The dequantize nodes that a product reads, the quantize node behind it, and what is summed over."""

    left: Node
    right: Node
    quantize: Node
    inner: int


def _product(node: Node) -> _Product | None:
    """What ``node`` is as a product of two int8 activations of rank 3; None of anything else."""
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
    """Of what quantize and dequantize nodes, which prepare and convert leave without a value, are made of."""
    while "val" not in node.meta and node.args:
        node = node.args[0]
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def _replace(module: GraphModule, node: Node) -> None:
    found = _product(node)
    assert found is not None
    graph = module.graph
    left, right, out = (_scale_and_zero(one) for one in (found.left, found.right, found.quantize))
    alpha: Any = node.kwargs.get("alpha", 1)
    fraction, shift = math.frexp(left[0] * right[0] * alpha / out[0])
    batch, rows, columns = node.meta["val"].shape

    def call(target: Any, args: tuple[Any, ...], shape: tuple[int, ...], result: torch.dtype, **kwargs: Any) -> Node:
        made = graph.call_function(target, args, kwargs)
        made.meta = {**node.meta, "val": torch.empty(shape, dtype=result, device="meta")}
        return made

    with graph.inserting_before(node):
        turned = call(torch.ops.aten.permute.default, (found.right, [0, 2, 1]), (batch, columns, found.inner), torch.float32)
        codes = call(found.quantize.target, (turned, *found.right.args[1:]), (batch, columns, found.inner), torch.int8)
        size = _SUM_BYTES * columns
        scratch = call(torch.ops.aten.full.default, ([size], 0), (size,), torch.int8, dtype=torch.int8)
        product = call(
            torch.ops.ethorch.quantized_batch_matmul.default,
            (found.left.args[0], -left[1], codes, -right[1], out[1], min(round(fraction * 2**31), 2**31 - 1), shift, scratch),
            (batch, rows, columns),
            torch.int8,
        )
    found.quantize.replace_all_uses_with(product)
    graph.erase_node(found.quantize)
    graph.erase_node(node)


def _scale_and_zero(node: Any) -> tuple[float, int]:
    return float(node.args[1]), int(node.args[2])
