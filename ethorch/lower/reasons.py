"""Refusals that are the walk's: why a node cannot run on the NPU, where no operator of its own says it.

A Refusal names the operator and its place in front of the Reason, so the text here starts with what was found.
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
from ethorch.targets.u55 import NO_LOOP_ON_CPU
from ethorch.tosa.ir import FLOATS, Origin

# --- what it reads ----------------------------------------------------------------------------------------------------------

INT64_INPUT = Reason(
    "graph.int64_input",
    "one of its inputs is int64, and the NPU has integers of 32 bits",
    "Make it int32 in the model.",
)


SHAPE_OF_VALUES = Reason(
    "graph.shape_of_values",
    "the shape of its result depends on what the tensors hold, and the NPU's programs have fixed shapes",
    "Keep all elements, and put 0 in place of the others with torch.where; or make what the shape depends on a constant.",
)


def dynamic_shape(node: Node) -> Reason:
    """Some size of its tensors is open: the program was exported with ``torch.export.Dim``."""
    return Reason(
        "graph.dynamic_shape",
        f"one of its tensors is {open_shape(node)}, and the NPU's programs have fixed sizes",
        "Compile a method for each shape that you need: ethorch.compile(..., shapes=[...]), or --shape once for each.",
    )


def not_quantized(node: Node) -> Reason:
    """Its input ``node`` is float, on a target of integers."""
    return Reason("graph.input_not_quantized", f"its input {node} is float", "Quantize the module it is in, and calibrate.")


FLOAT_CONSTANT = Reason(
    "graph.input_not_quantized", "its weights, or another constant that it reads, are float", "Quantize the module it is in."
)


def no_table(name: str, spec: OpSpec, args: tuple[Any, ...]) -> Reason:
    """A pointwise operator ``name`` that is not part of a chain over one quantized tensor, and has no other lowering."""
    tensors = [x for x in flat(args) if isinstance(x, QTensor)]
    if spec.steps and any(x.is_quantized and x.qparams.dtype == "INT16" for x in tensors):
        return NOT_OUTPUT_QUANTIZED
    return Reason(
        "graph.input_not_quantized",
        f"{name} becomes a table of one quantized tensor, and reads {_counted(tensors)}",
        "Convert integers to float in the model, quantize the module it is in, and calibrate.",
    )


def _counted(tensors: list[QTensor]) -> str:
    """``2 of quantized numbers and 1 of plain integers``, or the like."""
    quantized, integers = sum(x.is_quantized for x in tensors), sum(x.is_integer for x in tensors)
    kinds = [f"{count} of {kind}" for count, kind in ((quantized, "quantized numbers"), (integers, "plain integers")) if count]
    return " and ".join(kinds) or "none"


# --- what it returns --------------------------------------------------------------------------------------------------------

SCALAR_DIM = Reason(
    "graph.scalar_dim",
    "it takes a dim of a tensor of rank 0",
    "Let EthosUQuantizer quantize the model, or reshape the tensor to one element in the model.",
)
EMPTY_OUTPUT = Reason(
    "graph.empty_output",
    "the program returns a tensor without elements, which TOSA does not have",
    "Leave it out of what the model returns.",
)
#: Most results of a program that the NPU computes: Vela gives all outputs their places together. 400 take 1.5 s, 600 6 s, and 1,000
#: more than 40 s. Results that are read inside cost nothing.
MOST_RETURNED = 512

NO_INT32_ACTIVATIONS = Reason(
    "graph.int32_activation",
    "it is quantized to int32, and the target's activations are int8 or int16",
    "Quantize it to int16 (get_symmetric_a16w8_quantization_config), or choose an ethos-u85 target.",
)

INT32_OPERAND = Reason(
    "graph.int32_operand",
    "it reads or returns int32 activations; on them the NPU has sums, differences, copies and functions whose input is int16",
    "Quantize it to int16 (get_symmetric_a16w8_quantization_config).",
)

RETURNED_LATE = Reason(
    "graph.returned_late",
    f"the program returns its result behind {MOST_RETURNED} others, as many as Vela finds places for in bearable time",
    "Return the tensor as a whole, and cut it outside of the model.",
)

NOT_OUTPUT_QUANTIZED = Reason(
    "graph.output_not_quantized",
    "its float result is read by operators that were not quantized",
    "Quantize the module it is in and the operators that read it.",
)

NO_SUCH_FLOAT = Reason(
    "graph.dtype",
    "its result has a float dtype that the target lacks, and is read by operators on the CPU",
    "Convert it in the model, or ask for the TOSA extension that has its dtype.",
)

INT64_OUTPUT = Reason(
    "graph.int64_output",
    "its int64 result is read outside the NPU, which has integers of 32 bits",
    "Cast it to int32 in the model.",
)

LEFT_OUT = Reason(
    "quantize.left_out",
    "a setting leaves it out of quantization",
    "Give its module a scheme instead of float, or take out the setter that gives it None.",
)

OTHER_RESULT = Reason(
    "graph.other_result",
    "of its results the NPU computes the first, and another one (indices, statistics) is read",
    "Compute what is read of the other by an operator of its own, such as argmax.",
)

WRITTEN_BACK = Reason(
    "graph.written_back",
    "it writes to an input or buffer that the model changes in place, which is done outside the NPU",
    "Where nobody reads it afterwards, use an operator in the model that returns a new tensor.",
)


def no_dtype(b: Builder, what: str, node: Node) -> Reason:
    """``what`` (its result, or an input of its) is ``node``, in a dtype that the target does not compute in."""
    dtype = str(getattr(node.meta.get("val"), "dtype", "no tensor")).removeprefix("torch.")
    allowed = ", ".join(name for name in FLOATS if name in b.floats)
    return Reason(
        "graph.dtype",
        f"{what} is {dtype} or is computed on the CPU; the target has {allowed}",
        "Convert it in the model, or ask for the TOSA extension that has its dtype.",
    )


def no_integer_dtype(node: Node) -> Reason:
    """The result of ``node`` is integers of a dtype that no target has."""
    value = first_value(node)
    dtype = str(value.dtype if value is not None else "no tensor").removeprefix("torch.")
    return Reason(
        "graph.integer_dtype",
        f"its result is {dtype}; allowed are int8, int16, int32 and truth values",
        "Compute in int32, and make it that dtype behind the delegate.",
    )


# --- what it is -------------------------------------------------------------------------------------------------------------


def unknown_operator(node: Node) -> Reason:
    """No ``@op`` answers to its name."""
    name = op_name(node.target)
    return Reason("operator.unknown", f"{name} has no lowering to the NPU", instead_of(name))


def not_decomposed(node: Node) -> Reason:
    """An operator that the quantizer takes apart, and did not."""
    value = first_value(node)
    if value is not None and not value.dtype.is_floating_point:
        return PLAIN_INTEGERS
    return Reason(
        "operator.composite",
        f"{op_name(node.target)} runs on the NPU as several operators, each calibrated, and this one is still whole",
        "Let EthosUQuantizer quantize it.",
    )


def no_float_form(name: str) -> Reason:
    """The operator ``name`` is a table of quantized tensors, and has no formula for floats."""
    return Reason("operator.no_float", f"{name} has no lowering of float tensors", "Quantized, it is a table.")


def no_tensor(node: Node) -> Reason:
    """An operator of constants that returns neither a tensor nor a list of them."""
    return Reason(
        "graph.constants",
        f"{op_name(node.target)} of constants returns no tensor, and only tensors are known while a graph is lowered",
        "Compute it in Python, before the model is exported.",
    )


#: Of the CPU's quantize and dequantize, which no partitioner refuses: a program of floats cannot do without them.

# --- control flow -----------------------------------------------------------------------------------------------------------

DIFFERENT_SCALES = Reason(
    "control_flow.scales",
    "its branches return one result in different scales, and nothing quantizes it behind them",
    "Quantize with quantize_with_submodules.",
)

FLOAT_LOOP = Reason(
    "control_flow.float",
    "it starts with a float tensor that was not quantized",
    "Quantize with quantize_with_submodules.",
)


def no_condition(arg: Any) -> Reason:
    """Control flow whose condition the CPU computes, or which is a number."""
    return Reason(
        "control_flow.condition",
        f"its condition {arg} is no truth value on the NPU",
        "Compute it by a comparison of tensors that are quantized or integers.",
    )


def holds_refused(part: Subgraph, origin: Origin, reason: Reason) -> Reason:
    """The graph ``part`` of control flow holds the operator at ``origin``, which is refused for ``reason``."""
    way_out = reason.way_out
    if part.node.target is torch.ops.higher_order.while_loop:
        way_out = f"{way_out} {NO_LOOP_ON_CPU}.".strip()
    return Reason("control_flow.branch", f"{part.what} holds {origin}, which cannot run: {reason.text} [{reason.id}]", way_out)


#: Why a buffer that a program keeps is copied to the NPU for each call, in every runtime.
