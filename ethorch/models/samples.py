"""Read samples from tensors, arrays, batches, data sets, loaders, files and folders.

Inputs are checked against the example inputs.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ethorch.models.sample_files import FORMATS, MEDIA, read
from ethorch.support import trees
from ethorch.support.errors import EthorchError, SpecError
from ethorch.support.trees import is_tensor

if TYPE_CHECKING:
    from torch import Tensor

Inputs = tuple[Any, ...]


@dataclass(frozen=True)
class Sample:
    """The inputs of one inference, and their label.

    Attributes:
        label: Label from the data set, or None.
        name: Name in messages, such as ``sample 3`` or a file name.
    """

    inputs: Inputs
    label: Any
    name: str


@dataclass(frozen=True)
class Samples:
    """See ``ethorch.samples``."""

    source: Any
    transform: Callable[[Any], Any] | None = None
    limit: int | None = None

    def __iter__(self) -> Iterator[Any]:
        for _, item in itertools.islice(self.iterate_named(Expected(()), "sample"), self.limit):
            yield item

    def iterate_named(self, expected: Expected, kind: str) -> Iterator[tuple[str, Any]]:
        """Iterate over (name, transformed item), ignoring the limit."""
        for name, item in _iterate_items(self.source, expected, kind):
            yield name, item if self.transform is None else self.transform(item)


def samples(source: Any, *, transform: Callable[[Any], Any] | None = None, limit: int | None = None) -> Samples:
    """Return at most ``limit`` transformed samples, for arguments such as ``calibration`` and ``data``.

    ::

        images = ethorch.samples("images/", transform=lambda x: (x - 0.45) / 0.225, limit=200)
        program = ethorch.compile(model, torch.zeros(1, 3, 96, 96), "ethos-u55-128", calibration=images)

    Args:
        source: Iterable of items; ``torch.utils.data.Dataset`` or ``DataLoader``; tensor or array with a batch; files or
            folders (.npy, .npz, .pt, .csv, .wav, images). Files in subfolders are labeled with the outermost subfolder's index in
            alphabetical order. Hidden entries are ignored.
        transform: Function applied to each item before checks. Images are float32 in 0..1.
        limit: Maximum number of samples. Every batch element counts.

    Raises:
        SpecError: ``limit`` is not a positive integer.
    """
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise SpecError(f"limit: expected a positive number of samples, got {limit!r}.")
    return Samples(source, transform, limit)


@dataclass(frozen=True)
class Keywords:
    """The names of keyword inputs, constant keyword arguments, and the names of the inputs before them."""

    names: Sequence[str] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)
    positional: Sequence[str] = ()


def read_samples(
    source: Any,
    example_inputs: Inputs,
    *,
    keywords: Keywords = Keywords(),
    open_dims: Sequence[Collection[int]] | None = None,
    others: Sequence[Inputs] = (),
    limit: int | None = None,
    kind: str = "sample",
) -> Iterator[Sample]:
    """Iterate over the samples of ``source``, one per inference.

    An item is a tensor or array, a tuple of them, a dict of keyword inputs, or (inputs, label). Items may omit a batch
    dimension of 1. An item may also be a batch: samples concatenated along the first dimension or stacked along a new one. Floats
    are converted to the dtype of the example tensor. Integers are converted if their values fit.

    Args:
        source: See :func:`samples`.
        example_inputs: Tuple that determines the number, shapes and dtypes of inputs, and whether samples are NumPy arrays.
        keywords: Keyword inputs, for dict items.
        open_dims: Dynamic axes of each example tensor.
        others: Further example inputs, whose shapes are also accepted.
        kind: Name of an item in messages.

    Raises:
        EthorchError: An item does not match the example inputs, or a file cannot be read.
    """
    expected = Expected(example_inputs, keywords)
    expectations = [expected, *(Expected(alternative, keywords) for alternative in others)]
    if open_dims is not None:
        expectations.append(Expected(example_inputs, keywords, open_dims))
    if isinstance(source, Samples):
        limit = min((bound for bound in (limit, source.limit) if bound is not None), default=None)
    items = source.iterate_named(expected, kind) if isinstance(source, Samples) else _iterate_items(source, expected, kind)
    count = 0
    for name, item in items:
        for sample in _match_item(expectations, item, name):
            yield sample
            count += 1
            if count == limit:
                return


def _match_item(expected: Sequence[Expected], item: Any, name: str) -> Iterator[Sample]:
    """Return the samples of an item. Single samples take precedence over batches, and fixed shapes over dynamic dims."""
    if len(expected) == 1:
        return expected[0].samples(item, name)
    fixed_shape = [expectation for expectation in expected if expectation.open_dims is None]
    for allow_batch, group in ((False, fixed_shape), (True, fixed_shape), (True, expected)):
        for expectation in group:
            try:
                samples = list(expectation.samples(item, name))
            except EthorchError:
                continue
            if allow_batch or len(samples) == 1:
                return iter(samples)
    return expected[0].samples(item, name)


def _iterate_items(source: Any, expected: Expected, kind: str) -> Iterator[tuple[str, Any]]:
    if isinstance(source, (str, os.PathLike)):
        source = [source]
    if isinstance(source, (list, tuple)) and source and all(isinstance(part, (str, os.PathLike)) for part in source):
        yield from _iterate_files([Path(part) for part in source], expected)
        return
    if _is_array(source) or isinstance(source, Mapping):
        yield f"the batch of {kind}s", source
        return
    if isinstance(source, Iterable):
        for number, item in enumerate(source):
            yield f"{kind} {number}", item
        return
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):  # iteration over a Dataset may be endless
        for number in range(len(source)):
            yield f"{kind} {number}", source[number]
        return
    raise EthorchError(
        f"expected samples as an iterable of inputs, a Dataset, a batch, a file or a folder, got {type(source).__name__}."
    )


def _iterate_files(paths: Sequence[Path], expected: Expected) -> Iterator[tuple[str, Any]]:
    for path in paths:
        if path.is_dir():
            parts_by_path = {inner: inner.relative_to(path).parts for inner in sorted(path.rglob("*"))}
            visible = {inner: parts for inner, parts in parts_by_path.items() if not any(part.startswith(".") for part in parts)}
            files = [inner for inner in visible if inner.suffix.lower() in FORMATS and inner.is_file()]
            if not files:
                raise EthorchError(f"folder {path}: expected sample files ({', '.join(FORMATS)}), got none.")
            folders = [inner.name for inner, parts in visible.items() if len(parts) == 1 and inner.is_dir()]
            for file in files:
                item = expected.read(file)
                folder, *inside = visible[file]
                yield str(file), (item, folders.index(folder)) if inside else item
        elif path.is_file():
            yield str(path), expected.read(path)
        else:
            raise EthorchError(f"file or folder {path} does not exist.")


class Expected:
    """The number, shapes and dtypes of the tensors in the example inputs."""

    def __init__(self, example_inputs: Inputs, keywords: Keywords = Keywords(), open_dims: Sequence[Collection[int]] | None = None):
        self.example, self.keywords, self.open_dims = example_inputs, keywords, open_dims
        leaves = trees.leaves(self.example)
        self.leaves = len(leaves)
        self.tensors = [leaf for leaf in leaves if is_tensor(leaf)]
        self.of_arrays = not self.tensors and any(isinstance(leaf, np.ndarray) for leaf in leaves)
        if self.of_arrays:
            self.tensors = [leaf for leaf in leaves if isinstance(leaf, np.ndarray)]
        self.shapes = [tuple(tensor.shape) for tensor in self.tensors]

    def __str__(self) -> str:
        return _describe_leaves(self.tensors)

    def read(self, path: Path) -> Any:
        """Read a sample file. Images and audio become tensors if the example inputs contain tensors.

        Arrays of a .npz become a dict if they have the names of all keyword inputs, or a tuple in the order of the inputs or file.
        """
        content = read(path, self.shapes)
        if path.suffix.lower() == ".npz" and isinstance(content, Mapping):
            of_dict = self.example[0] if len(self.example) == 1 and isinstance(self.example[0], Mapping) else {}
            if content.keys() == set(self.keywords.names or of_dict):
                return content
            named = zip((*self.keywords.positional, *self.keywords.names), self.example, strict=False)
            names = [name for name, example in named if not trees.is_constant(example)]
            if content.keys() >= set(names):
                content = {name: content[name] for name in (*names, *content)}
            return tuple(content.values())
        return content if self.of_arrays or path.suffix.lower() not in MEDIA else _tensor(content)

    def samples(self, item: Any, name: str) -> Iterator[Sample]:
        """Iterate over the samples of an item, which may be a batch."""
        for reading, label in _iterate_readings(item):
            inputs = self._order_keywords(reading, name)
            example = self.example[0] if isinstance(inputs, Mapping) and len(self.example) == 1 else self.example
            if not trees.has_keys_of(inputs, example):
                continue
            leaves = trees.leaves(trees.order_like(inputs, example))
            tensors: list[Any] = [_array(leaf) if self.of_arrays else _tensor(leaf) for leaf in leaves if _is_array(leaf)]
            if len(tensors) != len(self.tensors) or len(leaves) not in (len(tensors), self.leaves):
                continue
            if len(leaves) == self.leaves:
                for number, (leaf, constant) in enumerate(zip(leaves, trees.leaves(self.example), strict=True)):
                    trees.check_constant(f"input {number} of {name}", leaf, constant, EthorchError)
            count = self._count_samples(tensors)
            if count is None:
                continue
            parts = [self._nest([self._convert(x, i, name) for i, x in enumerate(part)]) for part in self._split(tensors, count)]
            labels = _split_labels(label, count)
            for number, (part, sample_label) in enumerate(zip(parts, labels, strict=True)):
                yield Sample(part, sample_label, name if count == 1 else f"{name}, batch element {number}")
            return
        batch, label = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
        if isinstance(batch, list) and len(batch) > 1 and all(_is_array(x) or isinstance(x, tuple) for x in batch):
            for number, member in enumerate(batch):
                yield from self.samples(member if label is None else (member, label), f"{name}, entry {number}")
            return
        if self.keywords.names and isinstance(item, Mapping):
            raise EthorchError(
                f"{name}: expected the keyword arguments {', '.join(self.keywords.names)}, as in the example inputs, got "
                f"{', '.join(map(str, item)) or 'none'}."
            )
        raise EthorchError(
            f"{name}: expected {self} like the example inputs, got {_describe_leaves(trees.leaves(item))}. Use samples or batches "
            "with the shapes of the example inputs, with or without the batch dimension. If the deployed inputs have another "
            "shape, correct the example inputs."
        )

    def _count_samples(self, tensors: Sequence[Tensor]) -> int | None:
        shapes = [tuple(x.shape) for x in tensors]
        if shapes == self.shapes or self._differs_in_open_dims(shapes):
            return 1
        if self.open_dims is not None:
            return None
        if not self.shapes or any(not shape for shape in self.shapes):
            return None
        if all(
            example_shape[0] == 1 and shape == example_shape[1:] for shape, example_shape in zip(shapes, self.shapes, strict=True)
        ):
            return 1
        if (stacked := self._count_stacked(shapes)) is not None:
            return stacked
        counts = set()
        for shape, example_shape in zip(shapes, self.shapes, strict=True):
            if len(shape) != len(example_shape) or shape[1:] != example_shape[1:] or shape[0] % example_shape[0] or not shape[0]:
                return None
            counts.add(shape[0] // example_shape[0])
        return counts.pop() if len(counts) == 1 else None

    def _count_stacked(self, shapes: Sequence[tuple[int, ...]]) -> int | None:
        is_stacked = all(shape[1:] == example_shape and shape for shape, example_shape in zip(shapes, self.shapes, strict=True))
        counts = {shape[0] for shape in shapes if shape}
        return counts.pop() if self.shapes and is_stacked and len(counts) == 1 and 0 not in counts else None

    def _differs_in_open_dims(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        return self.open_dims is not None and all(
            len(shape) == len(example_shape)
            and all(a == b or axis in dims for axis, (a, b) in enumerate(zip(shape, example_shape, strict=True)))
            for shape, example_shape, dims in zip(shapes, self.shapes, self.open_dims, strict=True)
        )

    def _split(self, tensors: Sequence[Tensor], count: int) -> Iterator[list[Tensor]]:
        if self.open_dims is not None:
            yield list(tensors)
            return
        for number in range(count):
            yield [
                x.reshape(example_shape)
                if count == 1
                else x[number]
                if x.ndim > len(example_shape)
                else x[number * example_shape[0] : (number + 1) * example_shape[0]]
                for x, example_shape in zip(tensors, self.shapes, strict=True)
            ]

    def _convert(self, x: Any, index: int, name: str) -> Any:
        dtype = self.tensors[index].dtype
        if x.dtype == dtype:
            return x
        if self.of_arrays:
            return self._convert_array(x, dtype, index, name)
        import torch  # already imported

        if x.dtype.is_floating_point and dtype.is_floating_point:
            return x.to(dtype)
        integers = not (x.dtype.is_floating_point or dtype.is_floating_point or torch.bool in (x.dtype, dtype))
        if integers and torch.equal(x.to(dtype).to(torch.int64), x.to(torch.int64)):
            return x.to(dtype)
        raise self._dtype_error(x.dtype, dtype, index, name)

    def _convert_array(self, x: Any, example_dtype: Any, index: int, name: str) -> Any:
        kinds = [np.dtype(dtype).kind if np.dtype(dtype).name != "bfloat16" else "f" for dtype in (x.dtype, example_dtype)]
        converted = x.astype(example_dtype)
        if kinds == ["f", "f"] or ({*kinds} <= {"i", "u"} and np.array_equal(converted.astype(object), x.astype(object))):
            return converted
        raise self._dtype_error(x.dtype, example_dtype, index, name)

    @staticmethod
    def _dtype_error(dtype: Any, example_dtype: Any, index: int, name: str) -> EthorchError:
        expected, actual = (str(kind).removeprefix("torch.") for kind in (example_dtype, dtype))
        remedy = "Convert the samples in the same way as the training data, e.g. image.float() / 255."
        if "float" in actual:
            remedy = f"Use {actual} example inputs, e.g. image.float() / 255, or {expected} samples."
        return EthorchError(f"input {index} of {name}: expected {expected} like the example input, got {actual}. {remedy}")

    def _order_keywords(self, inputs: Any, name: str) -> Any:
        names, constants = self.keywords.names, self.keywords.constants
        arguments, last = (inputs[:-1], inputs[-1]) if isinstance(inputs, (tuple, list)) and inputs else ((), inputs)
        if names and isinstance(last, Mapping) and all(key in last for key in names):
            for key, constant in constants.items():
                trees.check_constant(f"{key} of {name}", last.get(key, constant), constant, EthorchError)
            return (*arguments, *(last[key] for key in names))
        return inputs

    def _nest(self, tensors: list[Tensor]) -> Inputs:
        remaining = iter(tensors)
        leaves, nest = trees.flatten(self.example)
        nested: Inputs = nest(
            [next(remaining) if (isinstance(leaf, np.ndarray) if self.of_arrays else is_tensor(leaf)) else leaf for leaf in leaves]
        )
        return nested


def _iterate_readings(item: Any) -> Iterator[tuple[Any, Any]]:
    """Yield interpretations (inputs, label) of an item. The label is None, the last element, or all elements after the first."""
    yield item, None
    if isinstance(item, (tuple, list)) and len(item) >= 2:
        yield (item[0] if len(item) == 2 else tuple(item[:-1])), item[-1]
        if len(item) > 2:
            yield item[0], tuple(item[1:])


def _split_labels(label: Any, count: int) -> list[Any]:
    if count == 1:
        is_single = _is_array(label) and label.ndim == 1 and len(label) == 1
        return [label[0] if is_single else label]
    if (_is_array(label) or isinstance(label, (list, tuple))) and len(label) == count:
        return list(label)
    return [None] * count


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or is_tensor(value)


def _tensor(leaf: Any) -> Tensor:
    if not isinstance(leaf, np.ndarray):
        detached: Tensor = leaf.detach()
        return detached
    import torch

    return torch.from_numpy(np.ascontiguousarray(leaf))


def _array(leaf: Any) -> Any:
    return leaf if isinstance(leaf, np.ndarray) else leaf.detach().cpu().numpy()


def _describe_leaves(leaves: Sequence[Any]) -> str:
    texts = [
        f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}" if _is_array(leaf) else type(leaf).__name__ for leaf in leaves
    ]
    return ", ".join(texts) or "empty"
