"""Spread outliers of the residual stream over all channels, using an orthogonal matrix folded into parameters.

Outliers reduce the resolution of all other values. The rotation matrix is random (QuaRot, Ashkboos et al. 2024).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ethorch.lower.fx.export import export_module
from ethorch.models.load import in_eval_mode
from ethorch.support.errors import EthorchError
from ethorch.support.exclusive import exclusive
from ethorch.tuning.residual_stream import Norm, Reader, Stream, find_streams
from ethorch.tuning.smoothing_sites import Parameter


@dataclass(frozen=True)
class Rotated:
    """The result of ``rotate``.

    Attributes:
        parameters: Names of the changed parameters.
        untied: Names of last-layer weights that no longer share memory with the embedding, because a norm was folded into them.
        refused: Reasons why residual streams were not rotated.
    """

    parameters: tuple[str, ...]
    untied: tuple[str, ...]
    refused: tuple[str, ...]


@exclusive()
def rotate(model: nn.Module | Mapping[str, nn.Module], example_inputs: Any, *, seed: int = 0) -> Rotated:
    """Rotate the residual streams of a transformer by a random orthogonal matrix.

    Parameters are changed in place. Outputs are preserved up to float rounding. A stream can be rotated if it starts with
    embeddings, only linear layers add to it, and it is read only by normalizations that precede linear layers. The scale factors of
    these normalizations become 1, and their biases become 0. Other streams, e.g. those normalized after each addition, do not
    change.

    ::

        print(ethorch.tuning.rotate(model, example_inputs).refused)

    Args:
        model: Module in evaluation mode, or a mapping from names to models that share modules.
        example_inputs: Inputs of the model, or a mapping from model names to inputs.
        seed: Seed of the random matrix.

    Raises:
        EthorchError: A model has no example inputs.
        UserCodeError: A model cannot be exported.
    """
    models = {"": model} if isinstance(model, nn.Module) else dict(model)
    inputs = {"": example_inputs} if isinstance(model, nn.Module) else example_inputs
    if not isinstance(inputs, Mapping) or set(models) - set(inputs):
        raise EthorchError("rotate: expected example inputs for each model. Pass a dict from model names to inputs.")
    graphs: list[tuple[list[Stream], Mapping[int, int]]] = []
    for name, module in models.items():
        arguments = inputs[name] if isinstance(inputs[name], tuple) else (inputs[name],)
        with in_eval_mode(module):
            graphs.append(find_streams(export_module(module, arguments).module(check_guards=False), module))
    untied = _settle(graphs, list(models.values()))
    good = [stream for streams, _ in graphs for stream in streams if not stream.refused]
    refused = tuple(dict.fromkeys(stream.refused for streams, _ in graphs for stream in streams if stream.refused))
    with torch.no_grad():
        changed = _Turning(untied, seed).turn(good)
    return Rotated(tuple(changed), tuple(name for name, _ in untied.values()), refused)


#: Mapping from the ``data_ptr()`` of a tied embedding to the name and the untied copy of the last layer's weight.
Untied = dict[int, tuple[str, Tensor]]


def _settle(graphs: Sequence[tuple[list[Stream], Mapping[int, int]]], modules: Sequence[nn.Module]) -> Untied:
    before = -1
    while before != (now := sum(bool(stream.refused) for streams, _ in graphs for stream in streams)):
        before = now
        for streams, uses in graphs:
            places = _places([stream for stream in streams if not stream.refused])
            for stream in (stream for graph_streams, _ in graphs for stream in graph_streams if not stream.refused):
                wrong = [p.name for p in stream.parameters() if uses.get(key := p.tensor.data_ptr(), 0) not in (0, places[key])]
                alone = [reader.weight.name for reader in _find_tied_readers(graphs, stream) if _owner(reader, modules) is None]
                if wrong:
                    stream.refused = f"an operator outside the stream also reads {wrong[0]}"
                elif alone:
                    stream.refused = f"{alone[0]} is shared by an embedding and a layer that is not a module with a weight"
    untied: Untied = {}
    for stream in (stream for streams, _ in graphs for stream in streams if not stream.refused):
        for reader in _find_tied_readers(graphs, stream):
            owner = _owner(reader, modules)
            if owner is not None and (key := reader.weight.tensor.data_ptr()) not in untied:
                copy = nn.Parameter(owner.weight.detach().clone(), requires_grad=owner.weight.requires_grad)
                owner.weight = copy
                untied[key] = f"{reader.owner}.weight", copy.data
    return untied


def _find_tied_readers(graphs: Sequence[tuple[list[Stream], Mapping[int, int]]], stream: Stream) -> list[Reader]:
    tables = {table.tensor.data_ptr() for streams, _ in graphs for candidate in streams for table in candidate.tables}
    return [reader for reader in stream.readers if reader.weight.tensor.data_ptr() in tables]


def _owner(reader: Reader, modules: Sequence[nn.Module]) -> Any:
    for module in modules:
        try:
            owner = module.get_submodule(reader.owner)
        except AttributeError:
            continue
        weight = owner._parameters.get("weight")
        if weight is not None and weight.data_ptr() == reader.weight.tensor.data_ptr():
            return owner
    return None


def _places(streams: Sequence[Stream]) -> Counter[int]:
    tables, writers, others = Counter[int](), Counter[int](), Counter[int]()
    for stream in streams:
        tables.update(table.tensor.data_ptr() for table in stream.tables)
        writers.update(writer.tensor.data_ptr() for writer in stream.writers)
        others.update(p.tensor.data_ptr() for norm in stream.norms for p in (norm.weight, norm.bias) if p is not None)
        others.update(p.tensor.data_ptr() for reader in stream.readers for p in (reader.weight, reader.bias) if p is not None)
    return tables + (writers | others)


class _Turning:
    def __init__(self, untied: Untied, seed: int):
        self._untied, self._seed = untied, seed
        self._done: set[tuple[int, str]] = set()

    def turn(self, streams: Sequence[Stream]) -> Iterator[str]:
        names = dict[str, None]()
        centered = {stream.width for stream in streams if any(norm.centers for norm in stream.norms)}
        for stream in streams:
            for norm in stream.norms:
                self._fold(norm)
        for stream in streams:
            turn = orthogonal(stream.width, self._seed, keeps_mean=stream.width in centered)
            for table in stream.tables:
                self._multiply(table, table.tensor, 1, turn, "channels")
            for writer in stream.writers:
                self._multiply(writer, writer.tensor, writer.axis, turn, "written")
            for reader in stream.readers:
                self._multiply(reader.weight, self._tensor(reader), reader.weight.axis, turn, "read")
            names.update(dict.fromkeys(parameter.name for parameter in stream.parameters()))
        return iter(names)

    def _tensor(self, reader: Reader) -> Tensor:
        tied = self._untied.get(reader.weight.tensor.data_ptr())
        return reader.weight.tensor if tied is None else tied[1]

    def _first(self, tensor: Tensor, what: str) -> bool:
        key = tensor.data_ptr(), what
        if key in self._done:
            return False
        self._done.add(key)
        return True

    def _fold(self, norm: Norm) -> None:
        for reader in norm.readers:
            weight = self._tensor(reader)
            if not self._first(weight, "folded"):
                continue
            rows = weight if reader.weight.axis else weight.t()
            if norm.bias is not None and reader.bias is not None:
                reader.bias.tensor.add_((rows.double() @ norm.bias.tensor.double()).to(rows.dtype))
            if norm.weight is not None:
                rows.mul_(norm.weight.tensor + norm.weight.added)
        if norm.weight is not None and self._first(norm.weight.tensor, "ones"):
            norm.weight.tensor.fill_(1.0 - norm.weight.added)
        if norm.bias is not None and self._first(norm.bias.tensor, "zeros"):
            norm.bias.tensor.zero_()

    def _multiply(self, parameter: Parameter, tensor: Tensor, axis: int, turn: Tensor, what: str) -> None:
        if self._first(tensor, what):
            tensor.copy_((tensor.double().transpose(axis, -1) @ turn).transpose(axis, -1).to(tensor.dtype))


def orthogonal(width: int, seed: int, *, keeps_mean: bool = False) -> Tensor:
    """Return a random orthogonal matrix, float64[width, width].

    If ``width`` is a power of two and ``keeps_mean`` is False, the matrix is a Hadamard matrix with random signs.

    Args:
        keeps_mean: Whether the rotation preserves the mean of each row, and thus commutes with subtracting the mean.
    """
    generator = torch.Generator().manual_seed(seed)
    size = width - 1 if keeps_mean else width
    if size & (size - 1) == 0:
        turn = torch.ones(1, 1, dtype=torch.float64)
        while len(turn) < size:
            turn = torch.cat([torch.cat([turn, turn], 1), torch.cat([turn, -turn], 1)])
        signs = torch.randint(2, (size,), generator=generator) * 2.0 - 1.0
        turn = turn * signs / math.sqrt(size)
    else:
        turn = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0]
    if not keeps_mean:
        return turn
    mirror = torch.ones(width, dtype=torch.float64) / math.sqrt(width)  # reflects the mean to the first channel
    mirror[0] -= 1.0
    reflect = torch.eye(width, dtype=torch.float64)
    if (length := float(mirror @ mirror)) > 0:
        reflect = reflect - 2 * torch.outer(mirror, mirror) / length
    inner = torch.eye(width, dtype=torch.float64)
    inner[1:, 1:] = turn
    return reflect @ inner @ reflect
