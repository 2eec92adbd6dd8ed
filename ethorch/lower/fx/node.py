"""Properties of nodes in exported programs: operators, arguments, results, locations and constants."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

from ethorch.tosa.ir import Origin

# --- operators --------------------------------------------------------------------------------------------------------------

QUANTIZE = frozenset(f"quantized_decomposed.quantize_per_{kind}" for kind in ("tensor.default", "tensor.tensor", "channel.default"))
DEQUANTIZE = frozenset(name.replace(".quantize", ".dequantize") for name in QUANTIZE)

#: Assertions about dtypes and values that torch.export inserts. They are always true.
ASSERTIONS = frozenset({"aten._assert_tensor_metadata.default", "aten._assert_scalar.default", "aten._assert_async.msg"})

#: Operators that change only the dtype of a tensor.
CASTS = frozenset({"aten.to.dtype", "aten._to_copy.default", "dim_order_ops._to_dim_order_copy.default"})

#: Operators with an uninitialized result.
UNINITIALIZED = frozenset(f"aten.{name}" for name in ("empty_like.default", "new_empty.default", "empty.memory_format"))

#: Operators that depend only on the shape of their argument.
LIKE = frozenset(f"aten.{name}.default" for name in (
    "full_like", "zeros_like", "ones_like", "new_zeros", "new_ones", "new_full", "empty_like", "new_empty",
))  # fmt: skip


def op_name(target: Any) -> str:
    """Return the functional ATen name of an OpOverload or edge operator, e.g. ``aten.conv2d.default``."""
    return _functional(str(overload_of(target)))


@functools.cache
def _functional(name: str) -> str:
    parts = name.split(".")
    if len(parts) == 3 and parts[1].endswith("_") and not parts[1].endswith("__"):
        parts[1] = parts[1][:-1]
    return ".".join(parts)


def overload_of(target: Any) -> Any:
    """Return the OpOverload of an edge operator, or any other target unchanged."""
    return target._op if type(target).__name__ == "EdgeOpOverload" else target


def aten_call(node: Node) -> tuple[Any, dict[str, Any]]:
    """Return the ATen operator of a node, and its keyword arguments except the memory format."""
    keywords = {key: value for key, value in node.kwargs.items() if key not in ("dim_order", "memory_format")}
    if op_name(node.target) == "dim_order_ops._to_dim_order_copy.default":
        return torch.ops.aten._to_copy.default, keywords
    if op_name(node.target) == "dim_order_ops._clone_dim_order.default":
        return torch.ops.aten.clone.default, {}
    return overload_of(node.target), keywords


def writes_back(node: Node) -> bool:
    """Return True if ``node`` is the final copy that updates an input or buffer."""
    into = node.args[0] if node.args else None
    return op_name(node.target) == "aten.copy.default" and isinstance(into, Node) and into.op in ("placeholder", "get_attr")


def makes_constant(node: Node) -> bool:
    """Return True if the node's result depends only on shapes and non-tensor arguments, e.g. for arange and zeros_like."""
    target = overload_of(node.target)
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    single = isinstance(node.meta.get("val"), torch.Tensor)
    return single and (op_name(target) in LIKE or (target.namespace == "aten" and not node.all_input_nodes))


# --- arguments --------------------------------------------------------------------------------------------------------------


def arguments(node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional arguments of a node in schema order, including defaults, and its keyword-only arguments by name.

    Keyword-only arguments that are not set and default to None are omitted.
    """
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for index, argument in enumerate(overload_of(node.target)._schema.arguments):
        has_keyword = argument.name in node.kwargs
        value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
        if not argument.kwarg_only:
            positional.append(value)
        elif has_keyword or argument.default_value is not None:
            keywords[argument.name] = value
    return tuple(positional), keywords


def map_leaves(args: Any, function: Callable[[Any], Any]) -> Any:
    """Apply ``function`` to the leaves of nested tuples, lists and dicts."""
    if isinstance(args, dict):
        return {key: map_leaves(value, function) for key, value in args.items()}
    if isinstance(args, (list, tuple)):
        return (tuple if isinstance(args, tuple) else list)(map_leaves(arg, function) for arg in args)
    return function(args)


def flat(args: Any) -> list[Any]:
    if isinstance(args, (list, tuple)):
        return [value for arg in args for value in flat(arg)]
    return [args]


# --- results ----------------------------------------------------------------------------------------------------------------

#: PyTorch dtype -> TOSA dtype.
TOSA_DTYPE = {
    torch.bool: "BOOL",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.float16: "FP16",
    torch.bfloat16: "BF16",
    torch.float32: "FP32",
}

#: TOSA's integer and bool dtypes, which every target supports.
INTEGERS = frozenset({"INT8", "INT16", "INT32", "BOOL"})


#: Key of ``Node.meta["custom"]``, which torch copies from graph to graph.
_LEFT_OUT = "ethorch_left_out"


def first_value(node: Node) -> torch.Tensor | None:
    """Return the fake tensor of the node's first result, or None if this result is not a tensor."""
    value = node.meta.get("val")
    value = value[0] if isinstance(value, (tuple, list)) and value else value
    return value if isinstance(value, torch.Tensor) else None


def shape_of_values(node: Node) -> bool:
    """Return True if the node's integer result, or the shape of its first result, depends on tensor values."""
    value = first_value(node)
    numbers = value.shape if value is not None else [node.meta.get("val")]
    return any(isinstance(each, torch.SymInt) and has_free_unbacked_symbols(each) for each in numbers)


def is_in_place(node: Node) -> bool:
    """Return True if ``node`` is a mutating ATen or edge operator."""
    target = overload_of(node.target)
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def is_float(node: Node) -> bool:
    value = first_value(node)
    return value is not None and value.dtype.is_floating_point


def is_integer(node: Node) -> bool:
    value = first_value(node)
    return value is not None and not value.dtype.is_floating_point


def leave_out(node: Node) -> None:
    """Exclude an operator from quantization and from the NPU, with a mark that survives torch.export and to_edge."""
    node.meta["custom"] = {**node.meta.get("custom", {}), _LEFT_OUT: True}


def is_left_out(node: Node) -> bool:
    return _LEFT_OUT in (node.meta.get("custom") or {})


def has_scalar_dim(node: Node) -> bool:
    """Return True if the operator has a dim argument, but its input has rank 0."""
    schema, x = getattr(node.target, "_schema", None), node.args[0] if node.args else None
    if schema is None or not isinstance(x, Node) or not any(argument.name in ("dim", "dims") for argument in schema.arguments):
        return False
    value = x.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dim() == 0


def is_int64(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.int64


def converts_input(node: Node) -> bool:
    """Return True for a cast of an int64 program input, and for a clamp between the input and its casts. Both run on the CPU."""
    if _clamps_input(node):
        return bool(node.users) and all(op_name(user.target) in CASTS for user in node.users)
    source = node.args[0] if node.op == "call_function" and op_name(node.target) in CASTS else None
    return isinstance(source, Node) and ((source.op == "placeholder" and is_int64(source)) or _clamps_input(source))


def _clamps_input(node: Node) -> bool:
    if node.op != "call_function" or op_name(node.target) != "aten.clamp.default" or not is_int64(node):
        return False
    return node.all_input_nodes[0].op == "placeholder"


def storage_order(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return a tensor's dimensions from outermost to innermost in memory (dim order)."""
    try:
        return tuple(int(dim) for dim in tensor.dim_order())
    except RuntimeError:
        return tuple(range(tensor.dim()))


# --- location in the user's code --------------------------------------------------------------------------------------------

#: Key of a node's original name and operator in ``meta["custom"]``.
_RECORD = "ethorch_operator"

#: Folder of the wrappers in which ethorch exports a model.
_WRAPPERS = str(Path(__file__).parents[2] / "models")
#: Classes of these wrappers, which hold the model as ``module``.
_WRAPPER_TYPES = ("ethorch.models.layouts.NhwcIo", "ethorch.models.load.KeywordInputs")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def record_operators(graph: Graph) -> None:
    """Record the name and operator of each node in metadata that torch.export preserves."""
    for node in graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            node.meta["custom"] = {**(node.meta.get("custom") or {}), _RECORD: (node.name, op_name(node.target))}


def recorded_name(node: Node) -> str:
    """Return the node's name as recorded by ``record_operators``, or else its current name."""
    return (node.meta.get("custom") or {}).get(_RECORD, (node.name,))[0]  # type: ignore[no-any-return]


def origin_of(node: Node) -> Origin:
    """Return the origin of a node: its operator (if possible, as recorded by ``record_operators``), module path and source line."""
    module = wrapper = ""
    for path, kind in (node.meta.get("nn_module_stack") or {}).values():
        module = path
        if (kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}") in _WRAPPER_TYPES:
            wrapper = f"{path}.module".lstrip(".")
    module = module.removeprefix(wrapper)
    source = ""
    frames = [frame for frame in _FRAME.findall(node.meta.get("stack_trace") or "") if not frame[0].startswith("<")]
    if frames:
        user_frames = [frame for frame in frames if "/site-packages/torch/" not in frame[0] and not frame[0].startswith(_WRAPPERS)]
        if user_frames or not module:  # a module name is more useful than a line in torch or in a wrapper of the model
            path, line = (user_frames or frames)[-1]
            source = f"{path.rsplit('/', 1)[-1]}:{line}"
    _, operator = (node.meta.get("custom") or {}).get(_RECORD, ("", ""))
    target = (operator or op_name(node.target)) if node.op == "call_function" else node.op
    return Origin(node.name, target, re.sub(r"^(L\['self'\])?\.?", "", module), source)


def origin_of_codes(node: Node) -> Origin:
    """Return the origin of ``node``, or of its input if ``node`` is a quantize node."""
    if node.op != "call_function" or op_name(node.target) not in QUANTIZE or not node.all_input_nodes:
        return origin_of(node)
    return replace(origin_of(node.all_input_nodes[0]), node=node.name)


# --- constants --------------------------------------------------------------------------------------------------------------


def attribute(model: torch.nn.Module, node: Node | str) -> Any:
    """Return the attribute to which a get_attr node or dotted name refers, or None if it does not exist."""
    value: Any = model
    for part in str(node.target if isinstance(node, Node) else node).split("."):
        value = getattr(value, part, None)
    return value


def tensor_of(model: torch.nn.Module, node: Node) -> torch.Tensor | None:
    """Return the tensor of a get_attr node, or None for any other node."""
    value = attribute(model, node) if node.op == "get_attr" else None
    return value if isinstance(value, torch.Tensor) else None


@dataclass(frozen=True)
class Converted:
    """A graph returned by ``convert_pt2e``, used in place of an ExportedProgram.

    ``mutable`` lists buffers that are not constant although the graph does not write to them.
    """

    graph_module: GraphModule
    mutable: tuple[str, ...] = ()

    @property
    def graph(self) -> Graph:
        return self.graph_module.graph


def constants_of(program: ExportedProgram | Converted) -> Callable[[Node], npt.NDArray[Any] | None]:
    """Return a function that maps nodes of constants to NumPy views, and other nodes, e.g. mutable buffers, to None."""
    if isinstance(program, Converted):
        return _attributes_of(program.graph_module, program.mutable)
    signature = program.graph_signature
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    mutated = set(signature.buffers_to_mutate.values())

    def lookup(node: Node) -> npt.NDArray[Any] | None:
        target = names.get(node.name) if node.op == "placeholder" else None
        if target is None or target in mutated:
            return None
        tensor = program.state_dict.get(target)
        if tensor is None:
            tensor = program.constants.get(target)
        return None if tensor is None else as_array(tensor)

    return lookup


def _attributes_of(module: GraphModule, names: Iterable[str]) -> Callable[[Node], npt.NDArray[Any] | None]:
    buffers = [target_buffer(node) for node in module.graph.nodes if node.op == "call_function" and is_in_place(node)]
    mutable = {str(node.target) for node in buffers if node is not None} | set(names)

    def lookup(node: Node) -> npt.NDArray[Any] | None:
        tensor = None if str(node.target) in mutable else tensor_of(module, node)
        return None if tensor is None else as_array(tensor)

    return lookup


def target_buffer(node: Node) -> Node | None:
    """Return the get_attr node of the buffer that an in-place operator changes, directly or through views, if any."""
    while node.op == "call_function" and node.args and isinstance(node.args[0], Node):
        node = node.args[0]
    return node if node.op == "get_attr" else None


def as_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return the tensor's memory as an array.

    A fake constant, which ExecuTorch uses during partitioning, becomes an array with one repeated value.
    """
    tensor = tensor.detach()
    if isinstance(tensor, FakeTensor):
        scalar = as_array(torch.full((), 2.0**-8 if tensor.dtype.is_floating_point else 0, dtype=tensor.dtype))
        return np.broadcast_to(scalar, tuple(tensor.shape))
    if tensor.dtype == torch.bfloat16:
        return tensor.cpu().contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.cpu().numpy()


def as_tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """Return a copy of an array as a tensor."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))
