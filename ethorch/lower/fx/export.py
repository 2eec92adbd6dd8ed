"""Export of modules with torch.export, with errors that refer to the user's code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.export import ExportedProgram, _trace
from torch.fx import Node
from torch.utils import _pytree as pytree

from ethorch.lower.fx.constant_values import ConstantValues
from ethorch.lower.fx.node import shape_of_values
from ethorch.lower.fx.sequences import short_sequences
from ethorch.lower.fx.structure import serializable
from ethorch.models.open_sizes import in_structure
from ethorch.models.user_code import at, convert_user_errors, first_sentence
from ethorch.support.errors import QuantizationError, UserCodeError
from ethorch.support.exclusive import EXPORT_LOCK

#: State and inputs of each module at the last export, and the exported program, which ``Program.compare`` reuses.
_LAST: WeakKeyDictionary[nn.Module, tuple[list[Any], list[Any], ExportedProgram]] = WeakKeyDictionary()


def describe_inputs(inputs: Any, dynamic_shapes: Sequence[dict[int, Any]] | None = None) -> str:
    """Describe the tensors of an input tuple, e.g. ``float32[1, 3, 8, 8], int64[1, any]``."""
    leaves = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    texts = []
    for number, leaf in enumerate(leaves):
        dims = dynamic_shapes[number] if dynamic_shapes else {}
        sizes = ", ".join("any" if axis in dims else str(size) for axis, size in enumerate(leaf.shape))
        texts.append(f"{str(leaf.dtype).removeprefix('torch.')}[{sizes}]")
    return ", ".join(texts) or "no tensor"


def check_float32(dtypes: Iterable[tuple[str, torch.dtype]]) -> None:
    """Check that each float tensor is float32, which can be quantized. Refuse complex128.

    Raises:
        QuantizationError: A float tensor is not float32 (reason ``quantize.dtype``).
    """
    for name, dtype in dtypes:
        actual = str(dtype).removeprefix("torch.")
        if dtype == torch.complex128:  # ExecuTorch's CPU kernels misread it
            text = f"expected {name} to be complex64, got {actual}. Use x.to(torch.complex64) or torch.view_as_real(x)"
            raise QuantizationError("quantize.dtype", text)
        if dtype.is_floating_point and dtype != torch.float32:
            raise QuantizationError(
                "quantize.dtype",
                f"expected {name} to be float32, got {actual}. Convert the model with model.float(), casts in forward to float32, "
                "and inputs with x.float()",
            )


def check_module(module: nn.Module, inputs: Any) -> None:
    """Check for properties that cause unclear errors in torch.export and torch.fx.

    Raises:
        QuantizationError: A float tensor is not float32, torch.fx cannot write the name of a submodule or tensor as code, or
            PyTorch cannot serialize a key of a dict.
    """
    tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    check_float32((f"parameter {name}", parameter.dtype) for name, parameter in module.named_parameters())
    check_float32((f"input {number}", tensor.dtype) for number, tensor in enumerate(tensors))
    serializable(pytree.tree_structure(inputs))
    for name, _ in (*module.named_modules(), *module.named_parameters(), *module.named_buffers()):
        if any(character in '"\\' or not character.isprintable() for character in name):
            raise QuantizationError(
                "quantize.name",
                f"the name {name!r} contains a quotation mark, a backslash or a control character. Rename the submodule or tensor",
            )


def check_outputs(program: ExportedProgram) -> None:
    """Raise QuantizationError if all outputs are empty, or for an unsupported key or output."""
    serializable(program.call_spec.out_spec)
    outputs = pytree.tree_leaves(program.graph.output_node().args)
    results = [output.meta.get("val") if isinstance(output, Node) else output for output in outputs]
    tensors = [result for result in results if isinstance(result, torch.Tensor)]
    if not tensors or any(isinstance(result, str) for result in results):
        others = ", ".join(repr(result) for result in results if not isinstance(result, torch.Tensor)) or "none"
        text = f"expected at least one tensor and no string as outputs, got {others}. Return only tensors, e.g. in a wrapper"
        raise QuantizationError("quantize.output", text)
    if all(any(isinstance(n, int) and n == 0 for n in tensor.shape) for tensor in tensors):
        raise QuantizationError(
            "quantize.empty",
            f"expected a nonempty output, got {describe_inputs(tensors)}. Use example inputs with a batch size of at least 1",
        )


def export_module(
    module: nn.Module,
    inputs: tuple[Any, ...],
    dynamic_shapes: Sequence[dict[int, Any]] | None = None,
    *,
    any_batch: bool = False,
) -> ExportedProgram:
    """Export a module with torch.export, and evaluate values and shapes that depend only on constants.

    Args:
        dynamic_shapes: Dynamic dimensions from ``open_sizes.dynamic_shapes_of``.
        any_batch: Whether to make the first dimension of each input dynamic if possible.

    Raises:
        QuantizationError: The sequence of a recurrent layer is too long (reason ``recurrent.steps``).
        UserCodeError: The module cannot be run or exported. The message contains the user's source line.
    """
    try:
        with EXPORT_LOCK, short_sequences(module), patch.object(_trace, "print", _ignore_print, create=True):
            open_dims = in_structure(module, inputs, dynamic_shapes) if dynamic_shapes else None
            program = _export(module, inputs, _any_batch(inputs) if any_batch else open_dims)
            if not dynamic_shapes and not any_batch:
                _LAST[module] = (_state_of(module), _types_of(inputs), program)
            return program
    except QuantizationError:
        raise
    except Exception as error:
        with convert_user_errors(f"the model does not run with its example inputs, {describe_inputs(inputs)}"), torch.no_grad():
            module(*inputs)
        if _is_data_dependent(error):
            raise UserCodeError(
                f"the model's control flow depends on tensor values{at(error)}, but torch.export supports only one path. Compute "
                "both paths and select a result with torch.where, or use torch.cond. Numbers that item() or int() "
                "reads from a tensor, and masks used as indices, must be constant. Assign to elements with an index of rank 1, as "
                "in y[i.reshape(1)] = z."
            ) from error
        text = f"torch.export cannot export the model{at(error)}: {first_sentence(error)}{remedy_of(error)}"
        raise UserCodeError(text) from error


def remedy_of(error: Exception) -> str:
    """Return a remedy with a leading space, or ""."""
    text = f"{at(error)} {error}"
    if "numpy" in text:
        return " Use torch operators instead of NumPy in forward."
    if "pack_padded" in text or "pad_packed" in text or "PackedSequence" in text:
        return " Pass padded tensors to the recurrent layer, and mask its outputs, because packed sequences have no fixed shape."
    if "while_loop" in text and "Unsupported control flow" in text:
        return (
            " Unroll the loop in Python, or quantize the model for an ethos-u85 target with "
            "EthosUQuantizer.quantize_with_submodules, and pass the result to ethorch.compile."
        )
    if "unbacked" in text or "data-dependent" in text:
        return " Use computed indices instead of slices with computed bounds, e.g. x[start + torch.arange(size)]."
    if "not a known type" in text:
        return " Return tensors, tuples and dicts, or register a dataclass with torch.export.register_dataclass."
    return ""


def last_export(module: nn.Module, inputs: tuple[Any, ...]) -> ExportedProgram | None:
    """Return the last result of ``export_module``, or None if the module, or the type or shape of an input, has changed."""
    state, types, program = _LAST.get(module, (None, None, None))
    return program if state == _state_of(module) and types == _types_of(inputs) else None


def _state_of(module: nn.Module) -> list[Any]:
    modules = [(name, id(part), part.training) for name, part in module.named_modules()]
    tensors = (*module.named_parameters(), *module.named_buffers())
    return [*modules, *((name, id(tensor), tensor._version) for name, tensor in tensors)]


def _types_of(inputs: tuple[Any, ...]) -> list[Any]:
    return [describe_inputs(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in pytree.tree_leaves(inputs)]


def _separate(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    # Clones repeated tensors, for which torch.export would create only one input.
    seen: set[int] = set()

    def clone_repeated(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        is_repeated = id(value) in seen
        seen.add(id(value))
        return value.clone() if is_repeated else value

    separated: tuple[Any, ...] = pytree.tree_map(clone_repeated, inputs)
    return separated


def _export(module: nn.Module, inputs: tuple[Any, ...], dynamic_shapes: Any) -> ExportedProgram:
    inputs = _separate(inputs)
    program, failure = None, None
    try:
        program = torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes)
    except Exception as error:
        if not _is_data_dependent(error):
            raise
        failure = error
    if program is not None and not any(map(shape_of_values, program.graph.nodes)):
        return program
    variable: set[str] = set()
    while True:
        values = ConstantValues(module, variable)
        try:
            with values.inside_forward():
                exported = torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes)
        except Exception:
            if failure is not None:
                raise failure from None
            assert program is not None
            return program
        if not values.written:
            return exported
        variable |= values.written


def _is_data_dependent(error: Exception) -> bool:
    return any(name in f"{type(error).__name__} {error}" for name in _DATA_DEPENDENT)


def _ignore_print(*_: object, **__: object) -> None:
    """Ignore the partial graph that torch's tracer prints."""


def _any_batch(inputs: tuple[Any, ...]) -> Any:
    first = {0: torch.export.Dim.AUTO}
    return pytree.tree_map(lambda leaf: first if isinstance(leaf, torch.Tensor) and leaf.dim() else None, inputs)


#: Class names and phrases in torch.export's errors about code that depends on tensor values.
_DATA_DEPENDENT = ("DataDependent", "data-dependent", "Dynamic control flow", "dynamic control flow", "data is not allocated yet")
