"""Reasons why ExecuTorch's lowering, not ethorch's writer, writes a program."""

from __future__ import annotations

from ethorch.support.errors import Reason


def not_converted(kind: str) -> Reason:
    return Reason(
        "writer.not_converted", f"the model is {kind}, not a graph", "Compile the graph module that convert_pt2e returns."
    )


def etrecord() -> Reason:
    return Reason("writer.etrecord", "only ExecuTorch's lowering creates the graphs of an ETRecord", "Remove the setting etrecord.")


def open_sizes() -> Reason:
    return Reason(
        "writer.open_sizes",
        "input sizes are dynamic, and only ExecuTorch plans their memory",
        "Use shapes=[...], which compiles a method for each tuple of shapes.",
    )


def control_flow(name: str) -> Reason:
    return Reason(
        "writer.control_flow",
        f"{name} is a control flow operator, and only ExecuTorch writes its jumps",
        "Compute both branches and choose with torch.where.",
    )


def module(name: str) -> Reason:
    return Reason("writer.module", f"{name} is a module, not an operator", "Export the model without preserved modules.")


def not_tensor(name: str) -> Reason:
    return Reason("writer.not_tensor", f"{name} is not a tensor", "Pass and return tensors only.")


def unknown_value(name: str) -> Reason:
    return Reason("writer.unknown_value", f"shape and dtype of {name} are unknown", "Quantize the graph that torch.export returns.")


def layout(name: str) -> Reason:
    return Reason(
        "writer.layout",
        f"{name} is not stored row by row, or has no fixed shape",
        'Export with contiguous inputs. Use Settings(io_layout="nhwc") for programs with channels last.',
    )


def elements(name: str) -> Reason:
    return Reason(
        "writer.elements", f"{name} has complex numbers, or no elements", "Keep real and imaginary parts as two real tensors."
    )


def in_place(name: str) -> Reason:
    return Reason(
        "writer.in_place",
        f"{name} changes a tensor in a way that depends on the order of reads and writes",
        "Write a buffer once, by copy_ at the end of the model.",
    )


def other_buffer(name: str) -> Reason:
    return Reason(
        "writer.other_buffer", f"buffer {name} is written to another buffer", f"Write a clone of {name} to the other buffer."
    )


def output_buffer() -> Reason:
    return Reason("writer.returned_buffer", "the program returns a constant or a buffer", "Return a clone of it.")


def undone_quantization(name: str) -> Reason:
    return Reason(
        "writer.undone_quantization",
        f"{name} quantizes values that were dequantized with the same scale, and ExecuTorch removes both operators",
        "Remove the operator between them, which has no effect.",
    )


def unknown_operator(name: str) -> Reason:
    return Reason(
        "writer.operator",
        f"ethorch's writer does not support {name} on the CPU",
        "Quantize it so that it runs on the NPU, or use an operator of docs/cpu-kernels.md.",
    )


def argument(operator: str, name: str) -> Reason:
    return Reason(
        "writer.argument",
        f"a program cannot store the argument {name} of {operator}",
        "Pass a number, a tensor or a list.",
    )


def unread_result(name: str) -> Reason:
    return Reason("writer.unread_result", f"a result of {name} is not used", "Return it, or remove its operator from the model.")


def no_delegate() -> Reason:
    return Reason("writer.no_delegate", "no operator runs on the NPU", "See the reasons reported for the CPU operators.")


def no_input(name: str) -> Reason:
    return Reason("writer.no_input", f"delegate {name} has no input", "Compute the constants that it returns before export.")


def vela_refusal(text: str) -> Reason:
    return Reason(
        "writer.refused", f"a delegate was refused: {text}", "ExecuTorch's lowering compiles the model again without this operator."
    )
