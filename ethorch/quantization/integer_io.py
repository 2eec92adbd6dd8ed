"""Programs whose inputs and outputs are codes: int8, uint8 or int16 instead of float32.

The camera or microphone delivers integers, and firmware saves the buffer of floats and the two loops. The quantize node behind an
input and the dequantize node in front of an output go; their scale and zero point become constant methods of the .pte, named as
ExecuTorch's own passes name them (``input0_scale``, ``input0_zp``, ``input0_quant_min``, ``input0_quant_max``, ``input0_dtype``).
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
from ethorch.lower.fx.node import DEQUANTIZE, QUANTIZE, op_name
from ethorch.support.errors import QuantizationError

_CODES = {name: code for code, (name, _) in DTYPES.items()}


def with_integer_io(quantized: GraphModule, io: str) -> GraphModule:
    """A copy of the graph whose quantized inputs and outputs are codes of type ``io``; integer ones of the model stay as they are.

    Args:
        quantized: as ``convert_pt2e`` returned it, calibrated with ``set_io(schemes.IO_CONFIGS[io]())``.
        io: int8, uint8 or int16.

    Raises:
        QuantizationError: an input or output is quantized to another type, or used as float too.
    """
    module = copy.copy(quantized)
    module.graph = copy.deepcopy(quantized.graph)
    dtype = getattr(torch, io)
    for number, node in enumerate([n for n in module.graph.nodes if n.op == "placeholder"]):
        if _is_float(node):
            _take_codes(node, f"input {number}", dtype)
    output = next(n for n in module.graph.nodes if n.op == "output")
    leaves, spec = pytree.tree_flatten(output.args)
    for number, node in enumerate(leaves):
        if isinstance(node, Node) and _is_float(node):
            leaves[number] = _given_codes(node, f"output {number}", dtype)
    output.args = pytree.tree_unflatten(leaves, spec)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _is_float(node: Node) -> bool:
    value = node.meta.get("val")
    return op_name(node.target) in DEQUANTIZE or (isinstance(value, Tensor) and value.dtype.is_floating_point)


def _take_codes(node: Node, what: str, dtype: torch.dtype) -> None:
    """The placeholder is codes now; the quantize nodes behind it are gone."""
    readers = list(node.users)
    if not readers:
        return
    steps = {op_name(reader.target) in QUANTIZE and reader.args[1:] for reader in readers}
    if len(steps) != 1 or False in steps:
        others = ", ".join(reader.name for reader in readers if op_name(reader.target) not in QUANTIZE)
        raise QuantizationError(
            "io.float_use",
            f"{what} ({node.name}) cannot be {dtype}: "
            + (f"{others} takes it as float" if others else "it is quantized twice, differently")
            + ". Quantize what reads it alike, or leave the program's inputs in float32",
        )
    _check_type(readers[0].args[5], dtype, what)
    for reader in readers:
        reader.replace_all_uses_with(node)
        node.meta["val"] = reader.meta.get("val", node.meta["val"].to(dtype))
        node.graph.erase_node(reader)
    node.meta["val"] = torch.empty(node.meta["val"].shape, dtype=dtype, device="meta")
    node.meta.pop("tensor_meta", None)


def _given_codes(node: Node, what: str, dtype: torch.dtype) -> Node:
    """What the output is as codes."""
    if op_name(node.target) not in DEQUANTIZE:
        raise QuantizationError(
            "io.float_use",
            f"{what} ({node.name}) cannot be {dtype}: it is computed in float, on the CPU. Quantize what makes it, or leave the "
            "program's outputs in float32",
        )
    _check_type(node.args[5], dtype, what)
    codes: Node = node.args[0]  # type: ignore[assignment]
    return codes


def _check_type(found: Any, wanted: torch.dtype, what: str) -> None:
    if found != wanted:
        raise QuantizationError(
            "io.type", f"{what} is quantized to {found}, not {wanted}: call the quantizer's set_io with a config of that type"
        )


def boundary_codes(quantized: GraphModule) -> dict[str, Codes]:
    """``input0``, ``output1``, ... -> what its codes mean, for the quantized inputs and outputs of a converted graph."""
    found: dict[str, Codes] = {}
    for number, node in enumerate([n for n in quantized.graph.nodes if n.op == "placeholder"]):
        for reader in node.users:
            if op_name(reader.target) in QUANTIZE:
                found[f"input{number}"] = _codes(reader)
    output = next(n for n in quantized.graph.nodes if n.op == "output")
    for number, node in enumerate(pytree.tree_leaves(output.args)):
        if isinstance(node, Node) and op_name(node.target) in DEQUANTIZE:
            found[f"output{number}"] = _codes(node)
    return found


def _codes(node: Node) -> Codes:
    scale, zero, low, high, dtype = node.args[1:6]
    return Codes(float(scale), int(zero), int(low), int(high), str(dtype).removeprefix("torch."))  # type: ignore[arg-type]


def with_constants(program: bytes, codes: Mapping[str, Codes]) -> bytes:
    """The .pte with a constant method for each figure of ``codes``; firmware and ``boundary_of`` read them."""
    parsed = pte.read(program)
    methods = dict(parsed.methods)
    for name, one in codes.items():
        for key, value in (
            ("scale", Value("double", number=one.scale)),
            ("zp", Value("int", number=one.zero_point)),
            ("quant_min", Value("int", number=one.low)),
            ("quant_max", Value("int", number=one.high)),
            ("dtype", Value("int", number=_CODES[one.dtype])),
        ):
            methods[f"{name}_{key}"] = Method(f"{name}_{key}", (value,), (), (0,), (), (), (Chain(()),))
    return write(replace(parsed, methods=methods))
