"""Samples of whatever users have: tensors, arrays, batches, data sets, loaders, files and folders.

Each becomes the input tuple of one inference, checked against the model's example inputs, and the label that came with it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    """What one inference takes.

    Attributes:
        inputs: the model's input tuple.
        label: what a data set has beside it; None where there is nothing.
        name: where it comes from, for messages: ``sample 3``, or a file's name.
    """

    inputs: Inputs
    label: Any
    name: str


@dataclass(frozen=True)
class Samples:
    """Samples with a transform and a limit; iterating gives the transformed items. ``ethorch.samples`` makes them."""

    source: Any
    transform: Callable[[Any], Any] | None = None
    limit: int | None = None

    def __iter__(self) -> Iterator[Any]:
        for _, item in itertools.islice(self.named_items(Expected(()), "sample"), self.limit):
            yield item

    def named_items(self, expected: Expected, what: str) -> Iterator[tuple[str, Any]]:
        """Return (name, transformed item) pairs, without the limit."""
        for name, item in _items(self.source, expected, what):
            yield name, item if self.transform is None else self.transform(item)


def samples(source: Any, *, transform: Callable[[Any], Any] | None = None, limit: int | None = None) -> Samples:
    """Return samples for ``calibration`` and ``data``, each transformed, and at most ``limit`` of them.

    ::

        images = ethorch.samples("images/", transform=lambda x: (x - 0.45) / 0.225, limit=200)
        program = ethorch.compile(model, torch.zeros(1, 3, 96, 96), "ethos-u55-128", calibration=images)

    Args:
        source: An iterable of items; a ``torch.utils.data.Dataset`` or ``DataLoader``; one tensor or array, a batch of samples; a
            file or folder, or several: .npy, .npz, .pt, .csv, .wav, images.
        transform: Called on each item as it comes, before anything is checked. Images are float32 in 0..1.
        limit: The number of samples to take at most. A batch of several counts as several.

    Raises:
        SpecError: ``limit`` is not a positive integer.
    """
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise SpecError(f"limit is {limit!r}; expected the number of samples to take, 1 at least.")
    return Samples(source, transform, limit)


def read_samples(
    source: Any,
    example_inputs: Inputs,
    *,
    keywords: Sequence[str] = (),
    open_dims: Sequence[Collection[int]] | None = None,
    others: Sequence[Inputs] = (),
    limit: int | None = None,
    what: str = "sample",
) -> Iterator[Sample]:
    """The samples of ``source``, one inference each.

    An item is a tensor or array, a tuple of them, a dict of keyword inputs, or (inputs, label). It may lack the batch
    dimension of 1 that the example has. It may be a batch of several: then each is a sample. Doubles become floats and integers
    change their width where that keeps their values; nothing else is converted.

    Args:
        source: an iterable of items; a ``torch.utils.data.Dataset`` or ``DataLoader``; one tensor or array, a batch of samples;
            a file or folder, or several (see ``ethorch.models.sample_files``); or ``Samples`` of these.
        example_inputs: the model's input tuple; it fixes number, shapes and dtypes; if it is of NumPy's arrays, so are the samples.
        keywords: names of the last of these, for items that are dicts.
        open_dims: axes of each example tensor that may have another size.
        others: example inputs of other shapes that samples may have instead.
        limit: stop after this many.
        what: what messages call an item.

    Raises:
        EthorchError: an item does not fit the example inputs, or a file cannot be read; both are named.
    """
    expected = Expected(example_inputs, keywords)
    every = [expected, *(Expected(other, keywords) for other in others)]
    if open_dims is not None:
        every.append(Expected(example_inputs, keywords, open_dims))
    if isinstance(source, Samples):
        limit = min((each for each in (limit, source.limit) if each is not None), default=None)
    items = source.named_items(expected, what) if isinstance(source, Samples) else _items(source, expected, what)
    count = 0
    for name, item in items:
        for sample in _fitting(every, item, name):
            if limit is not None and count >= limit:
                return
            count += 1
            yield sample


def _fitting(expected: Sequence[Expected], item: Any, name: str) -> Iterator[Sample]:
    """The samples of an item by the first that it fits: as it is, then with another batch, then with other sizes of open dims."""
    if len(expected) == 1:
        return expected[0].samples(item, name)
    fixed = [one for one in expected if one.open_dims is None]
    for several, group in ((False, fixed), (True, fixed), (True, expected)):
        for one in group:
            try:
                found = list(one.samples(item, name))
            except EthorchError:
                continue
            if several or len(found) == 1:
                return iter(found)
    return expected[0].samples(item, name)


def _items(source: Any, expected: Expected, what: str) -> Iterator[tuple[str, Any]]:
    """(name, item) of each."""
    if isinstance(source, (str, os.PathLike)):
        source = [source]
    if isinstance(source, (list, tuple)) and source and all(isinstance(entry, (str, os.PathLike)) for entry in source):
        yield from _from_files([Path(entry) for entry in source], expected)
        return
    if _is_array(source) or isinstance(source, Mapping):
        yield "the batch", source
        return
    if isinstance(source, Iterable):
        for number, item in enumerate(source):
            yield f"{what} {number}", item
        return
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):  # a Dataset: its iteration has no end of its own
        for number in range(len(source)):
            yield f"{what} {number}", source[number]
        return
    raise EthorchError(
        f"samples cannot be taken from {type(source).__name__}: give an iterable of inputs, a Dataset, a batch, a file or a folder."
    )


def _from_files(paths: Sequence[Path], expected: Expected) -> Iterator[tuple[str, Any]]:
    for path in paths:
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.suffix.lower() in FORMATS and file.is_file())
            if not files:
                raise EthorchError(f"the folder {path} has no file of samples; they end in {', '.join(FORMATS)}.")
            folders = sorted({file.parent.name for file in files if file.parent != path})
            for file in files:
                item = expected.read(file)
                yield str(file), (item, folders.index(file.parent.name)) if file.parent != path else item
        elif path.is_file():
            yield str(path), expected.read(path)
        else:
            raise EthorchError(f"there is no file or folder {path}.")


class Expected:
    """What the example inputs say of a sample: how many tensors, of which shapes and dtypes."""

    def __init__(self, example_inputs: Inputs, keywords: Sequence[str] = (), open_dims: Sequence[Collection[int]] | None = None):
        self.example, self.keywords, self.open_dims = example_inputs, keywords, open_dims
        leaves = trees.leaves(self.example)
        self.leaves = len(leaves)
        self.tensors = [leaf for leaf in leaves if is_tensor(leaf)]
        self.of_arrays = not self.tensors and any(isinstance(leaf, np.ndarray) for leaf in leaves)
        if self.of_arrays:
            self.tensors = [leaf for leaf in leaves if isinstance(leaf, np.ndarray)]
        self.shapes = [tuple(tensor.shape) for tensor in self.tensors]

    def __str__(self) -> str:
        return _described(self.tensors)

    def read(self, path: Path) -> Any:
        """Read a file of samples. Pictures and sounds become tensors, as torchvision makes them, if the example is of tensors."""
        item = read(path, self.shapes)
        return item if self.of_arrays or path.suffix.lower() not in MEDIA else _tensor(item)

    def samples(self, item: Any, name: str) -> Iterator[Sample]:
        """The samples that an item holds: one, or as many as its batch has."""
        for given, label in _readings(item):
            inputs = self._by_position(given)
            leaves = trees.leaves(inputs)
            found: list[Any] = [_array(leaf) if self.of_arrays else _tensor(leaf) for leaf in leaves if _is_array(leaf)]
            if len(found) != len(self.tensors) or len(leaves) not in (len(found), self.leaves):
                continue
            count = self._batch(found)
            if count is None:
                continue
            parts = [self._nested([self._converted(x, i, name) for i, x in enumerate(part)]) for part in self._split(found, count)]
            labels = _labels(label, count)
            for number, (part, one) in enumerate(zip(parts, labels, strict=True)):
                yield Sample(part, one, name if count == 1 else f"{name}, number {number} of its batch")
            return
        several, label = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
        if isinstance(several, list) and len(several) > 1 and all(_is_array(x) or isinstance(x, tuple) for x in several):
            for number, entry in enumerate(several):
                yield from self.samples(entry if label is None else (entry, label), f"{name}, entry {number}")
            return
        if self.keywords and isinstance(item, Mapping):
            raise EthorchError(
                f"{name} has the keyword arguments {', '.join(map(str, item)) or 'none'}; the example inputs have "
                f"{', '.join(self.keywords)}."
            )
        raise EthorchError(
            f"{name} is {_described(trees.leaves(item))}; the example inputs are {self}. Give samples of these shapes, "
            "without the first dimension, or batches of them."
        )

    def _batch(self, found: Sequence[Tensor]) -> int | None:
        """How many samples the tensors hold; None where they do not fit."""
        shapes = [tuple(x.shape) for x in found]
        if shapes == self.shapes or self._differs_in_open_dims(shapes):
            return 1
        if self.open_dims is not None:
            return None
        if not self.shapes or any(not shape for shape in self.shapes):
            return None
        if all(wanted[0] == 1 and shape == wanted[1:] for shape, wanted in zip(shapes, self.shapes, strict=True)):
            return 1
        counts = set()
        for shape, wanted in zip(shapes, self.shapes, strict=True):
            if len(shape) != len(wanted) or shape[1:] != wanted[1:] or shape[0] % wanted[0] or not shape[0]:
                return None
            counts.add(shape[0] // wanted[0])
        return counts.pop() if len(counts) == 1 else None

    def _differs_in_open_dims(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Return True if the shapes are the example's but for the sizes of open dims."""
        return self.open_dims is not None and all(
            len(shape) == len(wanted) and all(a == b or axis in dims for axis, (a, b) in enumerate(zip(shape, wanted, strict=True)))
            for shape, wanted, dims in zip(shapes, self.shapes, self.open_dims, strict=True)
        )

    def _split(self, found: Sequence[Tensor], count: int) -> Iterator[list[Tensor]]:
        if self.open_dims is not None:
            yield list(found)
            return
        for number in range(count):
            yield [
                x.reshape(wanted) if count == 1 else x[number * wanted[0] : (number + 1) * wanted[0]]
                for x, wanted in zip(found, self.shapes, strict=True)
            ]

    def _converted(self, x: Any, index: int, name: str) -> Any:
        wanted = self.tensors[index].dtype
        if x.dtype == wanted:
            return x
        if self.of_arrays:
            return self._converted_array(x, wanted, index, name)
        import torch  # is there: these are tensors

        if x.dtype.is_floating_point and wanted.is_floating_point:
            return x.to(wanted)
        integers = not (x.dtype.is_floating_point or wanted.is_floating_point or torch.bool in (x.dtype, wanted))
        if integers and torch.equal(x.to(wanted).to(torch.int64), x.to(torch.int64)):
            return x.to(wanted)
        raise self._wrong_dtype(x.dtype, wanted, index, name)

    def _converted_array(self, x: Any, wanted: Any, index: int, name: str) -> Any:
        kinds = [np.dtype(dtype).kind if np.dtype(dtype).name != "bfloat16" else "f" for dtype in (x.dtype, wanted)]
        converted = x.astype(wanted)
        if kinds == ["f", "f"] or ({*kinds} <= {"i", "u"} and np.array_equal(converted.astype(object), x.astype(object))):
            return converted
        raise self._wrong_dtype(x.dtype, wanted, index, name)

    @staticmethod
    def _wrong_dtype(found: Any, wanted: Any, index: int, name: str) -> EthorchError:
        return EthorchError(
            f"input {index} of {name} is {str(found).removeprefix('torch.')}; the example input is "
            f"{str(wanted).removeprefix('torch.')}. Convert it as the model's own data is, e.g. image.float() / 255."
        )

    def _by_position(self, inputs: Any) -> Any:
        """A dict of keyword inputs as the tuple that it stands for; anything else as it is."""
        if self.keywords and isinstance(inputs, Mapping) and all(name in inputs for name in self.keywords):
            return tuple(inputs[name] for name in self.keywords)
        return inputs

    def _nested(self, tensors: list[Tensor]) -> Inputs:
        """The tensors as the example has them nested; what is no tensor comes from the example."""
        taken = iter(tensors)
        leaves, nest = trees.flatten(self.example)
        nested: Inputs = nest(
            [next(taken) if (isinstance(leaf, np.ndarray) if self.of_arrays else is_tensor(leaf)) else leaf for leaf in leaves]
        )
        return nested


def _readings(item: Any) -> Iterator[tuple[Any, Any]]:
    """(inputs, label) as an item may be meant: all of it inputs first, then its last element the label."""
    yield item, None
    if isinstance(item, (tuple, list)) and len(item) >= 2:
        yield (item[0] if len(item) == 2 else tuple(item[:-1])), item[-1]
        if len(item) > 2:
            yield item[0], tuple(item[1:])


def _labels(label: Any, count: int) -> list[Any]:
    """The label of each sample of a batch."""
    if count == 1:
        one = _is_array(label) and label.ndim == 1 and len(label) == 1
        return [label[0] if one else label]
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


def _described(leaves: Sequence[Any]) -> str:
    texts = [
        f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}" if _is_array(leaf) else type(leaf).__name__ for leaf in leaves
    ]
    return ", ".join(texts) or "empty"
