"""One model compiled for several input shapes: a method each, and the smallest that fits is called."""

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
from ethorch.models.zoos import made_up
from ethorch.support.errors import SpecError
from ethorch.support.wording import counted
from ethorch.targets.selection import SHAPES, Padding, Selection, input_shapes
from ethorch.targets.settings import Shapes


def with_selection(program: Program, names: Sequence[str], paddings: tuple[Padding, ...], nhwc: bool) -> Program:
    """The program with a record that these methods are one model at several shapes.

    Args:
        paddings: of the model's own axes.
        nhwc: the methods have their channels last.
    """
    found = Selection({name: input_shapes(program.methods[name]) for name in names}, paddings)
    if nhwc:
        one = program.methods[names[0]]
        inputs, outputs = ([len(one.values[index].shape) for index in side] for side in (one.inputs, one.outputs))
        found = found.nhwc((inputs, outputs))
    return replace(program, methods={**program.methods, SHAPES: found.method()})


def methods_of(user: UserModel, shapes: Sequence[Shapes]) -> UserMethods:
    """A model as methods, one for each tuple of input shapes, the smallest first.

    Calibration samples become one session, each a call of the method of its shapes. A method whose shapes no sample has is
    calibrated with all of them, cropped or repeated.

    Raises:
        SpecError: a tuple has another number of shapes than the model has inputs, or one of another rank; or the exported program
            has a size fixed, or in another range.
    """
    ordered = sorted(shapes, key=elements)
    names = _names(ordered)
    models = {name: of_shapes(user, one) for name, one in zip(names, ordered, strict=True)}
    by_shapes = dict(zip(ordered, names, strict=True))
    calls = [(by_shapes[one], sample) for sample in user.calibration if (one := _tensor_shapes(sample)) in by_shapes]
    for name in sorted(set(names) - {name for name, _ in calls}, key=names.index):
        calls += [(name, _inputs(sample, ordered[names.index(name)])) for sample in user.calibration]
    return UserMethods(models, [calls] if calls else [], alternatives=True)


def elements(shapes: Shapes) -> int:
    """Return the total number of elements in inputs of these shapes."""
    return sum(map(math.prod, shapes))


def of_shapes(user: UserModel, shapes: Shapes) -> UserModel:
    """The model at fixed input shapes, with the calibration samples that have these.

    Raises:
        SpecError: as of ``methods_of``.
    """
    _check(user, shapes)
    samples = [sample for sample in user.calibration if _tensor_shapes(sample) == shapes]
    inputs = samples[0] if samples else _inputs(user.example_inputs, shapes)
    module = user.module
    if user.quantized and user.dynamic_shapes:
        module = export_module(module, inputs).module(check_guards=False)
    return UserModel(module, inputs, samples, quantized=user.quantized, is_exported=user.is_exported)


def samples_like(user: UserModel, shapes: Sequence[Shapes]) -> list[Inputs]:
    """Example inputs of each of the shapes."""
    for one in shapes:
        _check(user, one)
    return [_inputs(user.example_inputs, one) for one in shapes]


def _tensor_shapes(inputs: Any) -> Shapes:
    return tuple(tuple(leaf.shape) for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor))


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a number"


def _check(user: UserModel, shapes: Shapes) -> None:
    tensors = [leaf for leaf in pytree.tree_leaves(user.example_inputs) if isinstance(leaf, Tensor)]
    words = ",".join(map(_text, shapes))
    if [len(shape) for shape in shapes] != [x.dim() for x in tensors]:
        raise SpecError(
            f"shapes has {words}, {counted(len(shapes), 'shape')}; the model takes {counted(len(tensors), 'tensor')}, "
            f"{describe_inputs(user.example_inputs)}. Give a shape of the same rank for each, such as "
            f"{','.join(_text(x.shape) for x in tensors)}."
        )
    if user.quantized and not user.dynamic_shapes and shapes != tuple(tuple(x.shape) for x in tensors):
        raise SpecError(
            f"shapes has {words}, but the model is quantized for {describe_inputs(user.example_inputs)}: give the float model."
        )
    if not user.is_exported:
        return
    roots: dict[Any, int] = {}
    for number, (x, shape) in enumerate(zip(tensors, shapes, strict=True)):
        dims = user.dynamic_shapes[number] if user.dynamic_shapes else {}
        for axis, (size, fixed) in enumerate(zip(shape, x.shape, strict=True)):
            if axis not in dims and size != fixed:
                raise SpecError(
                    f"shapes has {words}, but the program was exported with {fixed} as axis {axis} of input {number}. Export it "
                    "with that dim in dynamic_shapes, or give the nn.Module."
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
                    f"shapes has {words}; the program was exported with axis {axis} of input {number} as {dims[axis].__name__} in "
                    f"{limits}, and the sizes of one Dim go together. Give shapes that it allows, or export it with others."
                )


def _root(dim: Any, size: int) -> tuple[Any, int | None]:
    """(the Dim that a dim is or is linear in, the value that it has where the dim is ``size``); (None, None) of ``Dim.AUTO``."""
    if not isinstance(dim, torch.export.Dim):
        return None, None
    root, of_root = getattr(dim, "root", None), getattr(dim, "fn", None)
    if root is None or of_root is None:
        return dim, size
    value, rest = divmod(size - of_root(0), of_root(1) - of_root(0))
    return root, value if rest == 0 else None


def _inputs(example: Inputs, shapes: Shapes) -> Inputs:
    """Return inputs of these shapes: the example's own elements, cropped, or repeated where they are fewer."""
    remaining = iter(shapes)

    def of_shape(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        shape = next(remaining)
        if tuple(leaf.shape) == shape:
            return leaf
        if not leaf.numel():
            return made_up(shape, leaf.dtype)
        for axis, size in enumerate(shape):
            if leaf.shape[axis]:
                leaf = leaf.index_select(axis, torch.arange(size) % leaf.shape[axis])
        return leaf.clone()

    found: Inputs = pytree.tree_map(of_shape, example)
    return found


def _names(shapes: Sequence[Shapes]) -> list[str]:
    """``forward_64``: the sizes in which the shapes differ, each once; ``forward`` of one alone."""
    columns = list(zip(*([size for shape in one for size in shape] for one in shapes), strict=True))
    differing = list(dict.fromkeys(column for column in columns if len(set(column)) > 1))
    return ["_".join(["forward", *(str(column[number]) for column in differing)]) for number in range(len(shapes))]
