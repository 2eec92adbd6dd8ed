"""Reasons that can apply to any operator.

A ``Refusal`` prints the operator and location before the text of a Reason, so each text starts with the problem.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import PLAIN_INTEGERS, QTensor
from ethorch.lower.fx.control_flow import Subgraph
from ethorch.lower.fx.node import DEQUANTIZE, QUANTIZE, first_value, flat, op_name
from ethorch.lower.ops.spec import OpSpec
from ethorch.lower.replacements import instead_of
from ethorch.models.open_sizes import open_shape
from ethorch.support.errors import Reason
from ethorch.support.wording import count_noun
from ethorch.targets.u55 import NO_LOOP_ON_CPU
from ethorch.tosa.ir import FLOATS, Origin

# --- inputs -----------------------------------------------------------------------------------------------------------------

INT64_INPUT = Reason(
    "graph.int64_input",
    "an input is int64, but the NPU supports integers of at most 32 bits",
    "Use int32 tensors in the model.",
)


SHAPE_OF_VALUES = Reason(
    "graph.shape_of_values",
    "the shape of the result depends on tensor values, but NPU programs require fixed shapes",
    "Keep all elements and set unselected elements to 0 with torch.where, or use constants for values that determine the shape.",
)


def dynamic_shape(node: Node) -> Reason:
    return Reason(
        "graph.dynamic_shape",
        f"expected tensors with fixed shapes, got a tensor {open_shape(node)}",
        "Compile one method for each shape, with ethorch.compile(..., shapes=[...]) or one --shape option per shape.",
    )


def not_quantized(node: Node) -> Reason:
    return Reason(
        "graph.input_not_quantized",
        f"the input {node} is a float tensor; expected a quantized tensor",
        "Quantize the operator's module, and calibrate the model.",
    )


def per_channel(axis: int, channels: int | None) -> Reason:
    # channels: axis of the output channels of a weight, or None for other operands
    if channels is None:
        return Reason(
            "graph.per_channel",
            f"an operand has one scale per index of axis {axis}, which only weights of convolutions and linear layers may have",
            "Use a per-tensor QuantizationSpec for the operand.",
        )
    return Reason(
        "graph.per_channel",
        f"the weight has one scale per index of axis {axis}; expected axis {channels}, the output channels",
        f"Set ch_axis={channels} in the QuantizationSpec of the weight.",
    )


FLOAT_CONSTANT = Reason(
    "graph.input_not_quantized",
    "a constant input, such as the weights, is float; expected a quantized tensor",
    "Quantize the operator's module.",
)


def no_table(name: str, spec: OpSpec, args: tuple[Any, ...]) -> Reason:
    """Return the reason why no table can compute a pointwise operator."""
    tensors = [x for x in flat(args) if isinstance(x, QTensor)]
    if spec.steps and any(x.is_quantized and x.qparams.dtype == "INT16" for x in tensors):
        return NOT_OUTPUT_QUANTIZED
    return Reason(
        "graph.input_not_quantized",
        f"{name} is lowered to a lookup table, which requires exactly one quantized input; got {_count_inputs(tensors)}",
        "Convert integer inputs to float in the model, quantize the operator's module, and calibrate the model.",
    )


def _count_inputs(tensors: list[QTensor]) -> str:
    quantized, integers = sum(x.is_quantized for x in tensors), sum(x.is_integer for x in tensors)
    counts = ((quantized, "quantized tensor"), (integers, "integer tensor"))
    return " and ".join(count_noun(count, noun) for count, noun in counts if count) or "no tensors on the NPU"


# --- results ----------------------------------------------------------------------------------------------------------------

SCALAR_DIM = Reason(
    "graph.scalar_dim",
    "the operator has a dim argument, but its input is a tensor of rank 0",
    "Quantize the model with EthosUQuantizer, or reshape the tensor to shape (1,) in the model.",
)
EMPTY_OUTPUT = Reason(
    "graph.empty_output",
    "the program returns an empty tensor, which TOSA does not support",
    "Remove the empty tensor from the outputs of the model.",
)
#: Maximum number of outputs of an NPU program. Vela needs 1.5 s to allocate 400 outputs, 6 s for 600, more than 40 s for 1,000.
MOST_RETURNED = 512

NO_INT32_ACTIVATIONS = Reason(
    "graph.int32_activation",
    "the operator is quantized to int32, but the target supports only int8 and int16 activations",
    "Quantize the operator to int16 (get_symmetric_a16w8_quantization_config), or choose an ethos-u85 target.",
)

INT32_OPERAND = Reason(
    "graph.int32_operand",
    "the operator reads or returns int32 activations, which the NPU supports only in sums, differences and copies, and as results "
    "of lookup tables",
    "Quantize the operator to int16 (get_symmetric_a16w8_quantization_config).",
)

RETURNED_LATE = Reason(
    "graph.returned_late",
    f"the result is not among the first {MOST_RETURNED} outputs of the program, and Vela compiles more outputs too slowly",
    "Concatenate the outputs in the model, and split the concatenated tensor outside the model.",
)

NOT_OUTPUT_QUANTIZED = Reason(
    "graph.output_not_quantized",
    "the float result is read by operators that are not quantized",
    "Quantize the operator's module, and the modules that read the result.",
)

NO_SUCH_FLOAT = Reason(
    "graph.dtype",
    "the result is read by operators on the CPU, and has a float dtype that the target does not support",
    "Convert the result to a supported dtype in the model, or select a target with the TOSA extension for the dtype.",
)

INT64_OUTPUT = Reason(
    "graph.int64_output",
    "the int64 result is read outside the NPU, but the NPU supports integers of at most 32 bits",
    "Cast the result to int32 in the model.",
)

LEFT_OUT = Reason(
    "quantize.left_out",
    "a setting excludes the operator from quantization",
    "Set a scheme other than float for the operator's module, or remove the setting that has the value None.",
)

OTHER_RESULT = Reason(
    "graph.other_result",
    "the NPU computes only the first result, but another result (such as indices or statistics) is read",
    "Compute the other result with a separate operator, such as argmax.",
)

WRITTEN_BACK = Reason(
    "graph.written_back",
    "the operator writes to an input or buffer in place; in-place writes run outside the NPU",
    "If the model does not read the changed tensor later, use an operator that returns a new tensor.",
)


def no_dtype(b: Builder, role: str, node: Node) -> Reason:
    """Return the reason for refusing an unsupported dtype. ``role`` describes the tensor, e.g. ``the result``."""
    dtype = str(getattr(node.meta.get("val"), "dtype", "no tensor")).removeprefix("torch.")
    allowed = ", ".join(name for name in FLOATS if name in b.floats)
    return Reason(
        "graph.dtype",
        f"expected {role} to have one of the dtypes {allowed}, got {dtype}",
        "Convert the tensor to a supported dtype in the model, or select a target with the TOSA extension for the dtype.",
    )


def no_integer_dtype(node: Node) -> Reason:
    value = first_value(node)
    dtype = str(value.dtype if value is not None else "no tensor").removeprefix("torch.")
    return Reason(
        "graph.integer_dtype",
        f"the result is {dtype}; expected int8, int16, int32 or bool",
        "Compute in int32, and convert the result outside the delegate.",
    )


# --- operators --------------------------------------------------------------------------------------------------------------


def unknown_operator(node: Node) -> Reason:
    name = op_name(node.target)
    return Reason("operator.unknown", f"{name} has no lowering to the NPU", instead_of(name))


def not_decomposed(node: Node) -> Reason:
    value = first_value(node)
    if value is not None and not value.dtype.is_floating_point:
        return PLAIN_INTEGERS
    name = op_name(node.target)
    if any(op_name(other.target) in QUANTIZE | DEQUANTIZE for other in node.graph.nodes):
        return Reason(
            "operator.composite",
            f"{name} has no decomposition into operators that run on the NPU for these arguments",
            f"`ethorch ops {name}` lists the supported calls. {instead_of(name)}",
        )
    return Reason(
        "operator.composite",
        f"{name} was not decomposed into calibrated operators that run on the NPU",
        "Quantize the model with EthosUQuantizer.",
    )


def no_float_form(name: str) -> Reason:
    return Reason(
        "operator.no_float",
        f"{name} has no lowering for float tensors",
        "Quantize the operator, so that a lookup table computes it.",
    )


def no_tensor(node: Node) -> Reason:
    return Reason(
        "graph.constants",
        f"{op_name(node.target)} with constant inputs does not return a tensor; expected a tensor or a sequence of tensors",
        "Compute the result in Python before the model is exported.",
    )


# --- control flow -----------------------------------------------------------------------------------------------------------

DIFFERENT_SCALES = Reason(
    "control_flow.scales",
    "corresponding results of the branches have different quantization parameters, and no quantize operator reads them",
    "Quantize the model with quantize_with_submodules.",
)

FLOAT_LOOP = Reason(
    "control_flow.float",
    "an initial value of the loop is a float tensor that was not quantized",
    "Quantize the model with quantize_with_submodules.",
)


def no_condition(arg: Any) -> Reason:
    return Reason(
        "control_flow.condition",
        f"the condition {arg} is not a BOOL tensor on the NPU",
        "Compute the condition by comparing quantized or integer tensors.",
    )


def holds_refused(subgraph: Subgraph, origin: Origin, reason: Reason) -> Reason:
    """Return the reason for refusing a control-flow operator whose ``subgraph`` contains a refused operator at ``origin``."""
    remedy = reason.remedy
    if subgraph.node.target is torch.ops.higher_order.while_loop:
        remedy = f"{remedy} {NO_LOOP_ON_CPU}.".strip()
    return Reason(
        "control_flow.branch",
        f"{subgraph.description} contains {origin}, which cannot run on the NPU: {reason.text} [{reason.id}]",
        remedy,
    )
