"""Reasons for using ExecuTorch's lowering instead of ethorch's writer."""

from __future__ import annotations

from ethorch.support.errors import Reason


def not_converted(kind: str) -> Reason:
    return Reason(
        "writer.not_converted", f"expected a GraphModule, got {kind}", "Compile the graph module that convert_pt2e returns."
    )


def etrecord() -> Reason:
    return Reason("writer.etrecord", "only ExecuTorch's lowering creates the graphs of an ETRecord", "Remove the setting etrecord.")


def open_sizes() -> Reason:
    return Reason(
        "writer.open_sizes",
        "the inputs have dynamic shapes, which only ExecuTorch's memory planning supports",
        "Use shapes=[...], which compiles a method for each tuple of shapes.",
    )


def control_flow(name: str) -> Reason:
    return Reason(
        "writer.control_flow",
        f"{name} is a control flow operator, which only ExecuTorch's lowering supports",
        "Compute both branches, and select a result with torch.where.",
    )


def module(name: str) -> Reason:
    return Reason(
        "writer.module", f"{name} calls a module; expected an operator", "Export the model without preserve_module_call_signature."
    )


def not_tensor(name: str) -> Reason:
    return Reason("writer.not_tensor", f"{name} is not a tensor", "Use only tensors as inputs and outputs of the model.")


def unknown_value(name: str) -> Reason:
    return Reason(
        "writer.unknown_value", f"the shape and dtype of {name} are unknown", "Quantize the graph that torch.export returns."
    )


def layout(name: str) -> Reason:
    return Reason(
        "writer.layout",
        f"{name} is not contiguous, or has a dynamic shape",
        'Export with contiguous inputs of fixed shape. For channels-last inputs and outputs, use Settings(io_layout="nhwc").',
    )


def elements(name: str) -> Reason:
    return Reason(
        "writer.elements",
        f"{name} is complex or empty",
        "Represent each complex tensor by two real tensors (real and imaginary parts), and remove empty tensors.",
    )


def in_place(name: str) -> Reason:
    return Reason(
        "writer.in_place",
        f"{name} is an in-place operation, and its results may depend on the order of reads and writes",
        "Write to each buffer once, with copy_ at the end of the model.",
    )


def other_buffer(name: str) -> Reason:
    return Reason(
        "writer.other_buffer", f"the model copies buffer {name} to another buffer", f"Write a clone of {name} to the other buffer."
    )


def output_buffer() -> Reason:
    return Reason(
        "writer.returned_buffer",
        "the program returns a constant or a buffer",
        "No action is required. ExecuTorch's lowering produces the same results.",
    )


def undone_quantization(name: str) -> Reason:
    return Reason(
        "writer.undone_quantization",
        f"{name} quantizes values that were dequantized with the same scale, and ExecuTorch removes both operators",
        "Remove the operator between the dequantize and quantize operators, because it has no effect.",
    )


def unknown_operator(name: str) -> Reason:
    return Reason(
        "writer.operator",
        f"ethorch's .pte writer does not support the CPU operator {name}",
        "Quantize the operator so that it runs on the NPU, or use an operator listed in docs/cpu-kernels.md.",
    )


def argument(operator: str, name: str) -> Reason:
    return Reason(
        "writer.argument",
        f"argument {name} of {operator} has a type that a program cannot store",
        "Pass a number, a tensor or a list.",
    )


def unread_result(name: str) -> Reason:
    return Reason(
        "writer.unread_result", f"a result of {name} is not used", "Return the result, or remove its operator from the model."
    )


def no_delegate() -> Reason:
    return Reason("writer.no_delegate", "no operator runs on the NPU", "See the reasons reported for the CPU operators.")


def no_input(name: str) -> Reason:
    return Reason(
        "writer.no_input", f"delegate {name} has no inputs, so its outputs are constant", "Compute the outputs before export."
    )


def vela_refusal(text: str) -> Reason:
    return Reason(
        "writer.refused",
        f"a delegate cannot be compiled: {text}",
        "ExecuTorch's lowering compiles the model. Operators that the NPU cannot run stay on the CPU.",
    )
