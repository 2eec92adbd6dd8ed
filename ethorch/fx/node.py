"""What a node of an exported program says: its operator, place, constants, and why it cannot run, where the node alone tells."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

from ethorch.errors import Reason
from ethorch.ops.spec import OpSpec, op_name, overload_of
from ethorch.qparams import PLAIN_INTEGERS, QTensor
from ethorch.tosa.ir import Origin

TOSA_DTYPE = {
    torch.int8: "INT8", torch.int16: "INT16", torch.int32: "INT32", torch.bool: "BOOL", torch.float32: "FP32",
    torch.float16: "FP16", torch.bfloat16: "BF16",
}  # fmt: skip

INTEGERS = frozenset({"INT8", "INT16", "INT32", "BOOL"})

QUANTIZE = {f"quantized_decomposed.quantize_per_{kind}" for kind in ("tensor.default", "tensor.tensor", "channel.default")}
DEQUANTIZE = {name.replace(".quantize", ".dequantize") for name in QUANTIZE}

NOT_OUTPUT_QUANTIZED = Reason(
    "graph.output_not_quantized", "its float result is read by operators that were not quantized",
    "Quantize the module it is in and the operators that read it.",
)  # fmt: skip

#: What torch.export writes of dtypes it has seen: true by construction, and nothing to compute.
ASSERTIONS = {"aten._assert_tensor_metadata.default", "aten._assert_scalar.default", "aten._assert_async.msg"}

NO_SUCH_FLOAT = Reason(
    "graph.dtype", "its result has a float dtype that the target lacks, and is read by operators on the CPU",
    "Convert it in the model, or ask for the TOSA extension that has its dtype.",
)  # fmt: skip

INT64_OUTPUT = Reason(
    "graph.int64_output", "its int64 result is read outside the NPU, which has integers of 32 bits",
    "Cast it to int32 in the model.",
)  # fmt: skip

INT64_INPUT = Reason(
    "graph.int64_input", "one of its inputs is int64, and the NPU has integers of 32 bits",
    "Make it int32 in the model.",
)  # fmt: skip

WRITTEN_BACK = Reason(
    "graph.written_back", "it writes to an input or buffer that the model changes in place, which is done outside the NPU",
    "Where nobody reads it afterwards, use an operator in the model that returns a new tensor.",
)  # fmt: skip


def aten_call(node: Node) -> tuple[Any, dict[str, Any]]:
    """The ATen operator that computes what ``node`` does, and its keywords: how the result lies in memory says nothing here."""
    keywords = {key: value for key, value in node.kwargs.items() if key not in ("dim_order", "memory_format")}
    if op_name(node.target) == "dim_order_ops._to_dim_order_copy.default":
        return torch.ops.aten._to_copy.default, keywords
    if op_name(node.target) == "dim_order_ops._clone_dim_order.default":
        return torch.ops.aten.clone.default, {}
    return overload_of(node.target), keywords


def mapped(args: Any, function: Callable[[Any], Any]) -> Any:
    """``args`` with ``function`` applied to what is in its tuples, lists and dicts."""
    if isinstance(args, dict):
        return {key: mapped(value, function) for key, value in args.items()}
    if isinstance(args, (list, tuple)):
        return (tuple if isinstance(args, tuple) else list)(mapped(arg, function) for arg in args)
    return function(args)


def flat(args: Any) -> list[Any]:
    """What is in ``args`` and in its tuples and lists."""
    if isinstance(args, (list, tuple)):
        return [value for arg in args for value in flat(arg)]
    return [args]


def is_int64(node: Node) -> bool:
    """Is its result one tensor of int64?"""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.int64


def writes_back(node: Node) -> bool:
    """Is it the copy with which torch.export ends what happens to an input in place?"""
    into = node.args[0] if node.args else None
    return op_name(node.target) == "aten.copy.default" and isinstance(into, Node) and into.op == "placeholder"


def unknown_operator(node: Node) -> Reason:
    """No ``@op`` answers to its name."""
    name = op_name(node.target)
    return Reason("operator.unknown", f"{name} has no lowering to the NPU", "`ethorch ops` lists the operators that do.")


def no_table(name: str, spec: OpSpec, args: tuple[Any, ...]) -> Reason:
    """An elementwise operator that is not part of a chain over one quantized input."""
    if spec.steps and any(isinstance(x, QTensor) and x.q is not None and x.q.dtype == "INT16" for x in flat(args)):
        return NOT_OUTPUT_QUANTIZED
    return Reason("graph.input_not_quantized", f"{name} becomes a table of one quantized input")


def not_decomposed(node: Node) -> Reason:
    """An operator that the quantizer takes apart, and did not."""
    value = node.meta.get("val")
    value = value[0] if isinstance(value, (tuple, list)) and value else value
    if isinstance(value, torch.Tensor) and not value.dtype.is_floating_point:
        return PLAIN_INTEGERS
    return Reason(
        "operator.composite",
        f"{op_name(node.target)} runs on the NPU as several operators, each calibrated, and this one is still whole",
        "Let EthosUQuantizer quantize it.",
    )  # fmt: skip


def storage_order(tensor: torch.Tensor) -> tuple[int, ...]:
    """Logical dimensions from outermost to innermost in memory (ExecuTorch's dim order); the logical order if not dense."""
    try:
        return tuple(int(dim) for dim in tensor.dim_order())
    except RuntimeError:
        return tuple(range(tensor.dim()))


_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def origin_of(node: Node) -> Origin:
    """Module path and source line of an FX node, from the metadata torch.export leaves."""
    stack = node.meta.get("nn_module_stack") or {}
    module = ""
    for path, _ in stack.values():
        module = path
    source = ""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if frames:
        own = [frame for frame in frames if "/site-packages/torch/" not in frame[0]]
        path, line = (own or frames)[-1]
        source = f"{path.rsplit('/', 1)[-1]}:{line}"
    target = op_name(node.target) if node.op == "call_function" else node.op
    return Origin(node.name, target, re.sub(r"^L\['self'\]\.?", "", module), source)


def constants_of(program: Any) -> Callable[[Node], np.ndarray | None]:
    """FX node -> its parameter, buffer or constant tensor as a NumPy view, for an ExportedProgram."""
    signature = program.graph_signature
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    mutated = set(signature.buffers_to_mutate.values())

    def lookup(node: Node) -> np.ndarray | None:
        target = names.get(node.name) if node.op == "placeholder" else None
        if target is None or target in mutated:
            return None
        tensor = program.state_dict.get(target)
        if tensor is None:
            tensor = program.constants.get(target)
        return None if tensor is None else as_array(tensor)

    return lookup


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's memory as an array.

    ExecuTorch partitions a program whose constants are fake. Those become arrays of the right shape that hold one small
    number and own no memory: whether an operator can run never depends on what a constant holds.
    """
    tensor = tensor.detach()
    if isinstance(tensor, FakeTensor):
        one = as_array(torch.full((), 2.0**-8 if tensor.dtype.is_floating_point else 0, dtype=tensor.dtype))
        return np.broadcast_to(one, tuple(tensor.shape))
    if tensor.dtype == torch.bfloat16:
        return tensor.cpu().contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.cpu().numpy()


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """The inverse of ``as_array``, in memory of its own."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))
