"""Give programs int8, uint8 or int16 inputs and outputs, so that firmware needs neither float buffers nor conversions.

The quantization parameters become constant methods of the .pte, named as in ExecuTorch, e.g. ``input0_scale``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from ethorch.formats import pte
from ethorch.formats.boundary import Codes
from ethorch.formats.pte_types import DTYPES, Chain, Method, Value
from ethorch.formats.pte_writer import write
from ethorch.lower.fx.node import DEQUANTIZE, QUANTIZE, is_left_out, op_name
from ethorch.support.errors import QuantizationError

_CODES = {name: code for code, (name, _) in DTYPES.items()}


def with_integer_io(quantized: GraphModule, io: str) -> GraphModule:
    """Return a copy of the graph in which quantized inputs and outputs have dtype ``io``.

    Args:
        quantized: Graph from ``convert_pt2e``, calibrated with ``set_io(schemes.IO_CONFIGS[io]())``.
        io: int8, uint8 or int16.

    Raises:
        QuantizationError: An input or output is not quantized to ``io``, or an input's readers do not all quantize it identically.
    """
    module = copy.copy(quantized)
    module.graph = copy.deepcopy(quantized.graph)
    dtype = getattr(torch, io)
    for number, node in enumerate([n for n in module.graph.nodes if n.op == "placeholder"]):
        if _is_float(node):
            _quantize_input(node, f"input {number}", dtype)
    output = next(n for n in module.graph.nodes if n.op == "output")
    leaves, spec = pytree.tree_flatten(output.args)
    for number, node in enumerate(leaves):
        if isinstance(node, Node) and _is_float(node):
            leaves[number] = _find_quantized_output(node, f"output {number}", dtype)
    output.args = pytree.tree_unflatten(leaves, spec)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _is_float(node: Node) -> bool:
    value = node.meta.get("val")
    return op_name(node.target) in DEQUANTIZE or (isinstance(value, Tensor) and value.dtype.is_floating_point)


def _quantize_input(node: Node, label: str, dtype: torch.dtype) -> None:
    readers = list(node.users)
    if not readers:
        return
    steps = {op_name(reader.target) in QUANTIZE and reader.args[1:] for reader in readers}
    if len(steps) != 1 or False in steps:
        others = ", ".join(reader.name for reader in readers if op_name(reader.target) not in QUANTIZE)
        raise QuantizationError(
            "io.float_use",
            f"{label} ({node.name}): expected quantization to {dtype}, but "
            + (f"{others} reads the input in float" if others else "operators quantize the input differently")
            + ". Quantize the input in the same way for all operators, or use float32 inputs",
        )
    _check_type(readers[0].args[5], dtype, label)
    for reader in readers:
        reader.replace_all_uses_with(node)
        node.meta["val"] = reader.meta.get("val", node.meta["val"].to(dtype))
        node.graph.erase_node(reader)
    node.meta["val"] = torch.empty(node.meta["val"].shape, dtype=dtype, device="meta")
    node.meta.pop("tensor_meta", None)


def _find_quantized_output(node: Node, label: str, dtype: torch.dtype) -> Node:
    node = _before_cast(node)
    if op_name(node.target) not in DEQUANTIZE:
        raise QuantizationError(
            "io.float_use",
            f"{label} ({node.name}): expected quantization to {dtype}, but the output is computed in float on the CPU. Quantize "
            "the operator that computes the output, or use float32 outputs",
        )
    _check_type(node.args[5], dtype, label)
    codes: Node = node.args[0]  # type: ignore[assignment]
    return codes


def _before_cast(node: Node) -> Node:
    # ``convert_float_types`` inserts casts
    return node.all_input_nodes[0] if is_left_out(node) and node.target is torch.ops.aten.to.dtype else node


def _check_type(actual: Any, expected: torch.dtype, label: str) -> None:
    if actual != expected:
        raise QuantizationError(
            "io.type", f"{label}: expected quantization to {expected}, got {actual}. Use set_io with a {expected} config."
        )


def boundary_codes(quantized: GraphModule) -> dict[str, Codes]:
    """Return the quantization parameters of a converted graph's inputs and outputs, keyed by ``input0``, ``output1``, and so on."""
    codes: dict[str, Codes] = {}
    for number, node in enumerate([n for n in quantized.graph.nodes if n.op == "placeholder"]):
        for reader in node.users:
            if op_name(reader.target) in QUANTIZE and not isinstance(reader.args[1], Node):
                codes[f"input{number}"] = _codes(reader)
    output = next(n for n in quantized.graph.nodes if n.op == "output")
    for number, node in enumerate(pytree.tree_leaves(output.args)):
        if not isinstance(node, Node):
            continue
        node = _before_cast(node)
        if op_name(node.target) in DEQUANTIZE and not isinstance(node.args[1], Node):
            codes[f"output{number}"] = _codes(node)
    return codes


def _codes(node: Node) -> Codes:
    scale, zero, low, high, dtype = node.args[1:6]
    return Codes(float(scale), int(zero), int(low), int(high), str(dtype).removeprefix("torch."))  # type: ignore[arg-type]


def with_constants(program: bytes, codes: Mapping[str, Codes]) -> bytes:
    """Add a constant method to a ``.pte`` for each quantization parameter, e.g. ``input0_zp`` or ``output0_quant_min``."""
    parsed = pte.read(program)
    methods = dict(parsed.methods)
    for name, parameters in codes.items():
        for key, value in (
            ("scale", Value("double", number=parameters.scale)),
            ("zp", Value("int", number=parameters.zero_point)),
            ("quant_min", Value("int", number=parameters.low)),
            ("quant_max", Value("int", number=parameters.high)),
            ("dtype", Value("int", number=_CODES[parameters.dtype])),
        ):
            methods[f"{name}_{key}"] = Method(f"{name}_{key}", (value,), (), (0,), (), (), (Chain(()),))
    return write(replace(parsed, methods=methods))
