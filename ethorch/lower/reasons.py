"""Reasons for refusals of any operator.

A ``Refusal`` prints operator and location before the Reason, so each text starts with the problem.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import PLAIN_INTEGERS, QTensor
from ethorch.lower.fx.control_flow import Subgraph
from ethorch.lower.fx.node import first_value, flat, op_name
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
    "one of its inputs is int64; the NPU supports integers of up to 32 bits",
    "Use int32 in the model.",
)


SHAPE_OF_VALUES = Reason(
    "graph.shape_of_values",
    "the shape of its result depends on values; NPU programs have fixed shapes",
    "Keep all elements and set the others to 0 with torch.where, or make the values that determine the shape constant.",
)


def dynamic_shape(node: Node) -> Reason:
    return Reason(
        "graph.dynamic_shape",
        f"one of its tensors is {open_shape(node)}; NPU programs have fixed sizes",
        "Compile one method per shape: ethorch.compile(..., shapes=[...]), or one --shape option per shape.",
    )


def not_quantized(node: Node) -> Reason:
    return Reason("graph.input_not_quantized", f"its input {node} is float", "Quantize its module and calibrate.")


FLOAT_CONSTANT = Reason("graph.input_not_quantized", "its weights or other constant inputs are float", "Quantize its module.")


def no_table(name: str, spec: OpSpec, args: tuple[Any, ...]) -> Reason:
    """Return the reason for a pointwise operator on several tensors."""
    tensors = [x for x in flat(args) if isinstance(x, QTensor)]
    if spec.steps and any(x.is_quantized and x.qparams.dtype == "INT16" for x in tensors):
        return NOT_OUTPUT_QUANTIZED
    return Reason(
        "graph.input_not_quantized",
        f"{name} is lowered to a table of one quantized tensor; its inputs are {_count_inputs(tensors)}",
        "Convert integers to float in the model, quantize its module and calibrate.",
    )


def _count_inputs(tensors: list[QTensor]) -> str:
    """Return e.g. ``2 quantized tensors and 1 integer tensor``."""
    quantized, integers = sum(x.is_quantized for x in tensors), sum(x.is_integer for x in tensors)
    counts = ((quantized, "quantized tensor"), (integers, "integer tensor"))
    return " and ".join(count_noun(count, noun) for count, noun in counts if count) or "not tensors on the NPU"


# --- results ----------------------------------------------------------------------------------------------------------------

SCALAR_DIM = Reason(
    "graph.scalar_dim",
    "its dim argument refers to a tensor of rank 0",
    "Quantize the model with EthosUQuantizer, or reshape the tensor to shape (1,) in the model.",
)
EMPTY_OUTPUT = Reason(
    "graph.empty_output",
    "the program returns a tensor without elements; TOSA does not support empty tensors",
    "Remove it from the outputs of the model.",
)
#: Maximum number of outputs of an NPU program. Vela needs 1.5 s to allocate 400 outputs, 6 s for 600, more than 40 s for 1,000.
MOST_RETURNED = 512

NO_INT32_ACTIVATIONS = Reason(
    "graph.int32_activation",
    "it is quantized to int32; activations of the target are int8 or int16",
    "Quantize it to int16 (get_symmetric_a16w8_quantization_config), or choose an ethos-u85 target.",
)

INT32_OPERAND = Reason(
    "graph.int32_operand",
    "it reads or returns int32 activations; the NPU supports them in sums, differences, copies and functions with int16 input",
    "Quantize it to int16 (get_symmetric_a16w8_quantization_config).",
)

RETURNED_LATE = Reason(
    "graph.returned_late",
    f"the program returns its result after {MOST_RETURNED} others; Vela's compile time limits the number of outputs",
    "Return one tensor and split it outside the model.",
)

NOT_OUTPUT_QUANTIZED = Reason(
    "graph.output_not_quantized",
    "its float result is read by operators that were not quantized",
    "Quantize its module and the operators that read its result.",
)

NO_SUCH_FLOAT = Reason(
    "graph.dtype",
    "its result has a float dtype that the target does not support, and is read by operators on the CPU",
    "Convert it in the model, or select a target with the TOSA extension for its dtype.",
)

INT64_OUTPUT = Reason(
    "graph.int64_output",
    "its int64 result is read outside the NPU, which supports integers of up to 32 bits",
    "Cast it to int32 in the model.",
)

LEFT_OUT = Reason(
    "quantize.left_out",
    "a setting excludes it from quantization",
    "Set a scheme other than float for its module, or remove the setting of None.",
)

OTHER_RESULT = Reason(
    "graph.other_result",
    "the NPU computes only its first result, but another result (indices, statistics) is read",
    "Compute the other result with a separate operator, such as argmax.",
)

WRITTEN_BACK = Reason(
    "graph.written_back",
    "it writes to an input or buffer that the model changes in place; such writes run outside the NPU",
    "If the changed tensor is not read later, use an operator that returns a new tensor.",
)


def no_dtype(b: Builder, role: str, node: Node) -> Reason:
    """Return the reason for the unsupported dtype of ``role``, e.g. ``its result``."""
    dtype = str(getattr(node.meta.get("val"), "dtype", "no tensor")).removeprefix("torch.")
    allowed = ", ".join(name for name in FLOATS if name in b.floats)
    return Reason(
        "graph.dtype",
        f"{role} is {dtype} or is computed on the CPU; the target supports {allowed}",
        "Convert it in the model, or select a target with the TOSA extension for its dtype.",
    )


def no_integer_dtype(node: Node) -> Reason:
    value = first_value(node)
    dtype = str(value.dtype if value is not None else "no tensor").removeprefix("torch.")
    return Reason(
        "graph.integer_dtype",
        f"its result is {dtype}; expected int8, int16, int32 or bool",
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
    return Reason(
        "operator.composite",
        f"{op_name(node.target)} runs on the NPU as several calibrated operators, but was not decomposed",
        "Quantize it with EthosUQuantizer.",
    )


def no_float_form(name: str) -> Reason:
    return Reason("operator.no_float", f"{name} has no lowering for float tensors", "Quantize it; then it is computed by a table.")


def no_tensor(node: Node) -> Reason:
    return Reason(
        "graph.constants",
        f"{op_name(node.target)} with constant inputs does not return a tensor; only tensors can be lowered",
        "Compute it in Python before the model is exported.",
    )


# --- control flow -----------------------------------------------------------------------------------------------------------

DIFFERENT_SCALES = Reason(
    "control_flow.scales",
    "its branches return a result with different scales, and no quantize operator reads the result",
    "Quantize with quantize_with_submodules.",
)

FLOAT_LOOP = Reason(
    "control_flow.float",
    "an initial value of the loop is a float tensor that was not quantized",
    "Quantize with quantize_with_submodules.",
)


def no_condition(arg: Any) -> Reason:
    return Reason(
        "control_flow.condition",
        f"its condition {arg} is not a truth value on the NPU",
        "Compute it by comparing quantized or integer tensors.",
    )


def holds_refused(subgraph: Subgraph, origin: Origin, reason: Reason) -> Reason:
    """Return the reason for a refused operator at ``origin`` in ``subgraph``."""
    way_out = reason.way_out
    if subgraph.node.target is torch.ops.higher_order.while_loop:
        way_out = f"{way_out} {NO_LOOP_ON_CPU}.".strip()
    return Reason(
        "control_flow.branch", f"{subgraph.description} contains {origin}, which cannot run: {reason.text} [{reason.id}]", way_out
    )
