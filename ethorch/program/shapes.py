"""Compile one model for several input shapes, with one method for each shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ethorch.formats.pte_types import Program
from ethorch.lower.fx.export import describe_inputs, export_module
from ethorch.models.load import Inputs, UserMethods, UserModel
from ethorch.models.zoos import create_example_input
from ethorch.support.errors import SpecError
from ethorch.targets.selection import SHAPES, Padding, Selection, input_shapes
from ethorch.targets.settings import Shapes


def with_selection(program: Program, names: Sequence[str], paddings: tuple[Padding, ...], nhwc: bool) -> Program:
    """Record in the program that the named methods are one model compiled for several shapes.

    Args:
        paddings: Axes along which inputs can be padded, in the model's original layout.
        nhwc: Whether the methods have NHWC inputs and outputs.
    """
    selection = Selection({name: input_shapes(program.methods[name]) for name in names}, paddings)
    if nhwc:
        first_method = program.methods[names[0]]
        inputs, outputs = (
            [len(first_method.values[index].shape) for index in side] for side in (first_method.inputs, first_method.outputs)
        )
        selection = selection.nhwc((inputs, outputs))
    return replace(program, methods={**program.methods, SHAPES: selection.method()})


def methods_of(user: UserModel, shapes: Sequence[Shapes]) -> UserMethods:
    """Return a method for each tuple of input shapes, smallest first.

    Calibration samples become one session, in which each sample calls the method for its shapes. If no sample has the shapes of a
    method, the method is calibrated with all samples, cropped or repeated to its shapes.

    Raises:
        SpecError: The number or ranks of the shapes are wrong, or the exported program does not support a size.
    """
    ordered = sorted(shapes, key=elements)
    names = _names(ordered)
    models = {name: of_shapes(user, sample_shapes) for name, sample_shapes in zip(names, ordered, strict=True)}
    by_shapes = dict(zip(ordered, names, strict=True))
    calls = [
        (by_shapes[sample_shapes], sample) for sample in user.calibration if (sample_shapes := _tensor_shapes(sample)) in by_shapes
    ]
    for name in sorted(set(names) - {name for name, _ in calls}, key=names.index):
        calls += [(name, _inputs(sample, ordered[names.index(name)])) for sample in user.calibration]
    return UserMethods(models, [calls] if calls else [], alternatives=True)


def elements(shapes: Shapes) -> int:
    """Return the total number of elements in tensors with the given shapes."""
    return sum(map(math.prod, shapes))


def of_shapes(user: UserModel, shapes: Shapes) -> UserModel:
    """Return the model with fixed input shapes, and only the calibration samples with these shapes.

    Raises:
        SpecError: See ``methods_of``.
    """
    _check(user, shapes)
    samples = [sample for sample in user.calibration if _tensor_shapes(sample) == shapes]
    inputs = samples[0] if samples else _inputs(user.example_inputs, shapes)
    module = user.module
    if user.quantized and user.dynamic_shapes:
        module = export_module(module, inputs).module(check_guards=False)
    return UserModel(module, inputs, samples, quantized=user.quantized, is_exported=user.is_exported)


def samples_like(user: UserModel, shapes: Sequence[Shapes]) -> list[Inputs]:
    """Return example inputs for each tuple of shapes."""
    for target_shapes in shapes:
        _check(user, target_shapes)
    return [_inputs(user.example_inputs, target_shapes) for target_shapes in shapes]


def _tensor_shapes(inputs: Any) -> Shapes:
    return tuple(tuple(leaf.shape) for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor))


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a number"


def _check(user: UserModel, shapes: Shapes) -> None:
    tensors = [leaf for leaf in pytree.tree_leaves(user.example_inputs) if isinstance(leaf, Tensor)]
    words = ",".join(map(_text, shapes))
    if [len(shape) for shape in shapes] != [x.dim() for x in tensors]:
        raise SpecError(
            f"shapes: expected one shape for each input, with the ranks of {describe_inputs(user.example_inputs)}; got {words}. "
            f"For example, use {','.join(_text(x.shape) for x in tensors)}."
        )
    if user.quantized and not user.dynamic_shapes and shapes != tuple(tuple(x.shape) for x in tensors):
        raise SpecError(
            f"shapes: expected the shapes for which the model was quantized ({describe_inputs(user.example_inputs)}), got {words}. "
            "Pass the float model."
        )
    if not user.is_exported:
        return
    roots: dict[Any, int] = {}
    for number, (x, shape) in enumerate(zip(tensors, shapes, strict=True)):
        dims = user.dynamic_shapes[number] if user.dynamic_shapes else {}
        for axis, (size, fixed) in enumerate(zip(shape, x.shape, strict=True)):
            if axis not in dims and size != fixed:
                raise SpecError(
                    f"shapes: expected size {fixed} for axis {axis} of input {number}, because the model was exported with this "
                    f"size; got {words}. Export the model with the axis in dynamic_shapes, or pass the nn.Module."
                )
            if axis not in dims:
                continue
            root, value = _root(dims[axis], size)
            if root is None:
                continue
            low, high = root.min, root.max
            if value is None or not low <= value <= high or roots.setdefault(root.__name__, value) != value:
                limits = f"{dims[axis].min}..{dims[axis].max}"
                raise SpecError(
                    f"shapes: expected a size in {limits} for axis {axis} of input {number}, and equal sizes for all axes "
                    f"that were exported as {dims[axis].__name__}; got {words}. Change the sizes, or export with other limits."
                )


def _root(dim: Any, size: int) -> tuple[Any, int | None]:
    """Return the root of the ``torch.export.Dim`` ``dim``, and the root's value if ``dim`` is ``size``."""
    # Return (None, None) for ``Dim.AUTO``.
    if not isinstance(dim, torch.export.Dim):
        return None, None
    root, of_root = getattr(dim, "root", None), getattr(dim, "fn", None)
    if root is None or of_root is None:
        return dim, size
    value, rest = divmod(size - of_root(0), of_root(1) - of_root(0))
    return root, value if rest == 0 else None


def _inputs(example: Inputs, shapes: Shapes) -> Inputs:
    remaining = iter(shapes)

    def of_shape(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        shape = next(remaining)
        if tuple(leaf.shape) == shape:
            return leaf
        if not leaf.numel():
            return create_example_input(shape, leaf.dtype)
        for axis, size in enumerate(shape):
            if leaf.shape[axis]:
                leaf = leaf.index_select(axis, torch.arange(size) % leaf.shape[axis])
        return leaf.clone()

    resized: Inputs = pytree.tree_map(of_shape, example)
    return resized


def _names(shapes: Sequence[Shapes]) -> list[str]:
    """Return method names with the sizes that distinguish the methods, e.g. ``forward_64``."""
    columns = list(zip(*([size for shape in input_shapes for size in shape] for input_shapes in shapes), strict=True))
    differing = list(dict.fromkeys(column for column in columns if len(set(column)) > 1))
    return ["_".join(["forward", *(str(column[number]) for column in differing)]) for number in range(len(shapes))]
