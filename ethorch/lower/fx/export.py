"""A module as torch.export sees it, and what is said where it cannot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.export import ExportedProgram, _trace
from torch.utils import _pytree as pytree

from ethorch.lower.fx.constant_values import ConstantValues
from ethorch.lower.fx.node import shape_of_values
from ethorch.lower.fx.sequences import short_sequences
from ethorch.models.open_sizes import in_structure
from ethorch.models.user_code import at, explained, first_sentence
from ethorch.support.errors import QuantizationError, UserCodeError
from ethorch.support.exclusive import EXPORT_LOCK


def described(inputs: Any, dynamic_shapes: Sequence[dict[int, Any]] | None = None) -> str:
    """Return the tensors of an input tuple as text: ``float32[1, 3, 8, 8], int64[1, any]`` where the last size is open."""
    leaves = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    texts = []
    for number, leaf in enumerate(leaves):
        dims = dynamic_shapes[number] if dynamic_shapes else {}
        sizes = ", ".join("any" if axis in dims else str(size) for axis, size in enumerate(leaf.shape))
        texts.append(f"{str(leaf.dtype).removeprefix('torch.')}[{sizes}]")
    return ", ".join(texts) or "no tensor"


def check_float32(dtypes: Iterable[tuple[str, torch.dtype]]) -> None:
    """Check that no tensor is a float of another dtype than float32, which all that is quantized has to be.

    Args:
        dtypes: name of each tensor, for the message, and its dtype.

    Raises:
        QuantizationError: ``quantize.dtype``.
    """
    for name, dtype in dtypes:
        if dtype.is_floating_point and dtype != torch.float32:
            found = str(dtype).removeprefix("torch.")
            raise QuantizationError(
                "quantize.dtype",
                f"{name} is {found}, expected float32: convert the model by model.float(), and its inputs by x.float()",
            )


def check_module(module: nn.Module, inputs: Any) -> None:
    """Check what torch.export and torch.fx would answer with an error of their own, or not at all.

    Raises:
        QuantizationError: ``quantize.dtype``, a parameter or an input is a float of another dtype than float32;
            ``quantize.name``, torch.fx cannot write the name of a submodule or parameter into code.
    """
    tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    check_float32((f"parameter {name}", parameter.dtype) for name, parameter in module.named_parameters())
    check_float32((f"input {number}", tensor.dtype) for number, tensor in enumerate(tensors))
    for name, _ in (*module.named_modules(), *module.named_parameters(), *module.named_buffers()):
        if any(character in '"\\' or not character.isprintable() for character in name):
            raise QuantizationError(
                "quantize.name",
                f"the name {name!r} has a quotation mark, a backslash or a control character: rename that submodule or tensor",
            )


def check_outputs(program: ExportedProgram) -> None:
    """Check that a result of the program has elements.

    Raises:
        QuantizationError: ``quantize.empty``.
    """
    values = [node.meta.get("val") for node in program.graph.output_node().all_input_nodes]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if tensors and all(any(isinstance(n, int) and n == 0 for n in tensor.shape) for tensor in tensors):
        raise QuantizationError(
            "quantize.empty",
            f"the outputs have no elements, {described(tensors)}: give example inputs with a batch of at least 1",
        )


def exported(
    module: nn.Module,
    inputs: tuple[Any, ...],
    dynamic_shapes: Sequence[dict[int, Any]] | None = None,
    *,
    any_batch: bool = False,
) -> ExportedProgram:
    """``torch.export.export(module, inputs)``, with fixed numbers and shapes where those depend on constants alone.

    Args:
        dynamic_shapes: the open dims of each input tensor, as ``open_sizes.dynamic_shapes_of`` returns them.
        any_batch: the first dimension of each input may be another one later, where the model allows it.

    Raises:
        QuantizationError: ``recurrent.steps``, a recurrent layer's sequence is too long; torch.export takes minutes for it.
        UserCodeError: the module does not run with these inputs, or cannot be exported; the message names the user's line.
    """
    try:
        with EXPORT_LOCK, short_sequences(module), patch.object(_trace, "print", _not_printed, create=True):
            open_dims = in_structure(module, inputs, dynamic_shapes) if dynamic_shapes else None
            return _exported(module, inputs, _any_batch(inputs) if any_batch else open_dims)
    except QuantizationError:
        raise
    except Exception as error:
        with explained(f"the model does not run with its example inputs, {described(inputs)}"), torch.no_grad():
            module(*inputs)
        if _is_data_dependent(error):
            raise UserCodeError(
                f"the model's way depends on the values of a tensor{at(error)}, and an exported model has one way only. Compute "
                "both and choose with torch.where, or use torch.cond; a number taken out of a tensor (item, int, a mask as an "
                "index) has to be a constant."
            ) from error
        raise UserCodeError(f"torch.export cannot export the model{at(error)}: {first_sentence(error)}{_remedy(error)}") from error


def _remedy(error: Exception) -> str:
    """Return a remedy for a common reason that a model cannot be exported; empty if the reason is unknown."""
    text = f"{at(error)} {error}"
    if "numpy" in text:
        return " Use torch operators instead of NumPy in forward."
    if "pack_padded" in text or "pad_packed" in text or "PackedSequence" in text:
        return " Pass padded tensors to the recurrent layer, and mask its outputs, because packed sequences have no fixed shape."
    return ""


def _exported(module: nn.Module, inputs: tuple[Any, ...], dynamic_shapes: Any) -> ExportedProgram:
    """Export the module; once more with the values of constants if something depends on the values of tensors."""
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
                found = torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes)
        except Exception:
            if failure is not None:
                raise failure from None
            assert program is not None
            return program
        if not values.written:
            return found
        variable |= values.written


def _is_data_dependent(error: Exception) -> bool:
    return any(name in f"{type(error).__name__} {error}" for name in _DATA_DEPENDENT)


def _not_printed(*_: object, **__: object) -> None:
    """In place of ``print`` in torch's tracer, which writes the graph as far as it came to stderr before it raises.

    The error has it, as ``partial_fx_graph``: the command line's ``--traceback`` shows it.
    """


def _any_batch(inputs: tuple[Any, ...]) -> Any:
    """What torch.export wants to hear of inputs whose first dimension is not fixed."""
    first = {0: torch.export.Dim.AUTO}
    return pytree.tree_map(lambda leaf: first if isinstance(leaf, torch.Tensor) and leaf.dim() else None, inputs)


#: Of the errors that torch.export raises where Python looks at a tensor's values: their class or their words.
_DATA_DEPENDENT = ("DataDependent", "data-dependent", "Dynamic control flow", "dynamic control flow", "data is not allocated yet")
