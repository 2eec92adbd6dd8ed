"""Outliers of the residual stream spread over all its channels, by an orthogonal matrix that is folded into the parameters.

What trained transformers keep in a few channels of large values, costs all other channels their resolution. A rotation that is
random spreads it (QuaRot, Ashkboos et al. 2024); normalizations do not notice, and layers that write and read are turned with it.
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
    """What ``rotate`` did.

    Attributes:
        parameters: that were changed.
        untied: weights of a last layer that are no longer the embedding's: a normalization's weights went into them.
        refused: of the residual streams that were left, why.
    """

    parameters: tuple[str, ...]
    untied: tuple[str, ...]
    refused: tuple[str, ...]


@exclusive()
def rotate(model: nn.Module | Mapping[str, nn.Module], example_inputs: Any, *, seed: int = 0) -> Rotated:
    """Turn a transformer's residual stream by a random orthogonal matrix, where that can be folded into its parameters.

    Parameters are changed in place; outputs stay the same up to float rounding, and nothing is computed more. A stream can be
    turned if it begins with embeddings, only linear layers add to it, and each of its readers is a normalization (RMS, or of layers
    whose readers have biases) in front of linear layers. The normalizations' weights are ones afterwards. Streams of other
    models (normalizations behind the addition, convolutions) stay as they are.

    ::

        print(ethorch.tuning.rotate(model, example_inputs).refused)

    Args:
        model: in eval mode; or several by name that share modules, as ``ethorch.compile`` takes them.
        example_inputs: that the model runs with; of several models by name.
        seed: of the matrix.

    Raises:
        EthorchError: there are models without example inputs.
        UserCodeError: a model cannot be exported.
    """
    models = {"": model} if isinstance(model, nn.Module) else dict(model)
    inputs = {"": example_inputs} if isinstance(model, nn.Module) else example_inputs
    if not isinstance(inputs, Mapping) or set(models) - set(inputs):
        raise EthorchError("rotate: several models need several inputs: give example inputs as a dict of the models' names.")
    found: list[tuple[list[Stream], Mapping[int, int]]] = []
    for name, module in models.items():
        given = inputs[name] if isinstance(inputs[name], tuple) else (inputs[name],)
        with in_eval_mode(module):
            found.append(find_streams(export_module(module, given).module(check_guards=False), module))
    untied = _settle(found, list(models.values()))
    good = [stream for streams, _ in found for stream in streams if not stream.refused]
    refused = tuple(dict.fromkeys(stream.refused for streams, _ in found for stream in streams if stream.refused))
    with torch.no_grad():
        changed = _Turning(untied, seed).turn(good)
    return Rotated(tuple(changed), tuple(name for name, _ in untied.values()), refused)


#: Memory of a tied embedding -> the last layer's weight, and its own copy.
Untied = dict[int, tuple[str, Tensor]]


def _settle(found: Sequence[tuple[list[Stream], Mapping[int, int]]], modules: Sequence[nn.Module]) -> Untied:
    """Refuse streams whose parameters something else reads too, here or in another model; untie embeddings from last layers."""
    before = -1
    while before != (now := sum(bool(stream.refused) for streams, _ in found for stream in streams)):
        before = now
        for streams, uses in found:
            places = _places([stream for stream in streams if not stream.refused])
            for stream in (stream for other, _ in found for stream in other if not stream.refused):
                wrong = [p.name for p in stream.parameters() if uses.get(key := p.tensor.data_ptr(), 0) not in (0, places[key])]
                alone = [reader.weight.name for reader in _find_tied_readers(found, stream) if _owner(reader, modules) is None]
                if wrong:
                    stream.refused = f"something else reads {wrong[0]} too"
                elif alone:
                    stream.refused = f"{alone[0]} is an embedding and the weight of a layer that has none of its own"
    untied: Untied = {}
    for stream in (stream for streams, _ in found for stream in streams if not stream.refused):
        for reader in _find_tied_readers(found, stream):
            owner = _owner(reader, modules)
            if owner is not None and (key := reader.weight.tensor.data_ptr()) not in untied:
                own = nn.Parameter(owner.weight.detach().clone(), requires_grad=owner.weight.requires_grad)
                owner.weight = own
                untied[key] = f"{reader.owner}.weight", own.data
    return untied


def _find_tied_readers(found: Sequence[tuple[list[Stream], Mapping[int, int]]], stream: Stream) -> list[Reader]:
    """Layers of a stream whose weight is an embedding of one."""
    tables = {table.tensor.data_ptr() for streams, _ in found for one in streams for table in one.tables}
    return [reader for reader in stream.readers if reader.weight.tensor.data_ptr() in tables]


def _owner(reader: Reader, modules: Sequence[nn.Module]) -> Any:
    """The module that computes a layer and holds its weight; None where it holds none."""
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
    """Memory of a parameter -> how many operators read it as these streams say: a layer may read one and write to one."""
    tables, writers, others = Counter[int](), Counter[int](), Counter[int]()
    for stream in streams:
        tables.update(table.tensor.data_ptr() for table in stream.tables)
        writers.update(writer.tensor.data_ptr() for writer in stream.writers)
        others.update(p.tensor.data_ptr() for norm in stream.norms for p in (norm.weight, norm.bias) if p is not None)
        others.update(p.tensor.data_ptr() for reader in stream.readers for p in (reader.weight, reader.bias) if p is not None)
    return tables + (writers | others)


class _Turning:
    """Changes the parameters of streams, each once."""

    def __init__(self, untied: Untied, seed: int):
        self._untied, self._seed = untied, seed
        self._done: set[tuple[int, str]] = set()

    def turn(self, streams: Sequence[Stream]) -> Iterator[str]:
        """Fold all normalizations into what reads them, then turn; names of what was changed."""
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
        """Return True the first time that this is done with the parameter."""
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
        """A row of channels ``x`` becomes ``x @ turn``."""
        if self._first(tensor, what):
            tensor.copy_((tensor.double().transpose(axis, -1) @ turn).transpose(axis, -1).to(tensor.dtype))


def orthogonal(width: int, seed: int, *, keeps_mean: bool = False) -> Tensor:
    """float64[width, width]: a random orthogonal matrix; of a power of two Hadamard's with random signs.

    Args:
        width: channels.
        seed: of the random numbers.
        keeps_mean: rows have the same mean after it as before: what subtracts the mean does not notice it either.
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
    mirror = torch.ones(width, dtype=torch.float64) / math.sqrt(width)  # a reflection between the mean and the first channel
    mirror[0] -= 1.0
    reflect = torch.eye(width, dtype=torch.float64)
    if (length := float(mirror @ mirror)) > 0:
        reflect = reflect - 2 * torch.outer(mirror, mirror) / length
    inner = torch.eye(width, dtype=torch.float64)
    inner[1:, 1:] = turn
    return reflect @ inner @ reflect
