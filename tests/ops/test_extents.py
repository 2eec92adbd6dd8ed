"""Every operator over axes as long as NPUs count: around 32,768 and 65,536, where Vela's streams and shapes go wrong.

A case is one of the operator's samples with one axis of its tensors that long and the others short. Each layer agrees with the
next, in INT8, INT16 and INT32, or the operator is refused with a reason; in bounded time and memory.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree

from ethorch.errors import QuantizationError, Unsupported
from ethorch.ops.samples import I8, Bools, Ints, Sample
from tests.ops.test_integers import check as check_integers
from tests.support import ladder
from tests.support.bounded import bounded
from tests.support.ladder import CONFIGS, SPECS, TARGETS

EXTENTS = (32767, 32768, 32769, 65535, 65536, 65537)
#: The most elements of a result and of an argument; more is for machines with more memory.
MOST_ELEMENTS = 1_000_000
SECONDS, GIGABYTES = 300, 12


def stretched(sample: Sample, dim: int, extent: int, others: int) -> Sample | None:
    """``sample`` with ``extent`` along ``dim`` of its tensors, counted from the last, and at most ``others`` along all other axes.

    None where no tensor has that axis. Axes of extent 1 stay: they are broadcast.
    """
    kinds = (I8, Ints, Bools)
    first = next(iter(ladder.leaves(sample, kinds)), None)
    if first is None or len(first.shape) < dim or first.shape[-dim] == 1:
        return None
    before = first.shape[-dim]

    def shape_of(old: tuple[int, ...]) -> tuple[int, ...]:
        new = [min(e, others) for e in old]
        if len(old) >= dim:
            new[-dim] = extent if old[-dim] == before else old[-dim]
        return tuple(new)

    def changed(arg: Any) -> Any:
        if isinstance(arg, I8):
            return I8(*shape_of(arg.shape), low=arg.low, high=arg.high)
        if isinstance(arg, Ints):
            return Ints(*shape_of(arg.shape), low=arg.low, high=arg.high, dtype=arg.dtype)
        if isinstance(arg, Bools):
            return Bools(*shape_of(arg.shape), chance=arg.chance)
        return [changed(a) for a in arg] if isinstance(arg, (list, tuple)) else arg

    made = Sample(*[changed(arg) for arg in sample.args], **{key: changed(value) for key, value in sample.kwargs.items()})
    return made.of(sample.overload) if sample.overload else made


def accepted(name: str, sample: Sample) -> bool:
    """Does PyTorch compute it, and is it small enough?"""
    inputs = [kind.shape for kind in ladder.leaves(sample, (I8, Ints, Bools))]
    if any(torch.Size(shape).numel() > MOST_ELEMENTS for shape in inputs):
        return False
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            results = _pytree.tree_leaves(ladder.Call(name, sample)(*ladder.inputs_for(sample, 0)))
    except (RuntimeError, IndexError, NotImplementedError, ValueError):
        return False
    return all(result.numel() <= MOST_ELEMENTS for result in results)


@functools.cache
def case(name: str, dim: int, extent: int) -> Sample | None:
    """The first of the operator's samples that can be stretched so."""
    for others in (8, 4, 2):
        for sample in SPECS[name].samples:
            made = stretched(sample, dim, extent, others)
            if made is not None and accepted(name, made):
                return made
    return None


def climb(name: str, sample: Sample, activations: str, target: str) -> str:
    """ "" or the reason for which it is refused."""
    module = ladder.Call(name, sample).eval()
    inputs = ladder.inputs_for(sample, 0)
    try:
        q = ladder.quantized(module, [inputs, ladder.inputs_for(sample, 1)], CONFIGS[activations](), target)
        spec = SPECS[name]
        ladder.climb(q, inputs, target, tolerance=spec.bound if activations == "int8" else spec.bound16)
    except Unsupported as refusal:
        return refusal.reason.id
    except QuantizationError as refusal:
        return refusal.id
    return ""


def cases() -> Iterator[Any]:
    for name, spec in SPECS.items():
        ranks = {len(kind.shape) for sample in spec.samples for kind in ladder.leaves(sample, (I8, Ints, Bools))}
        for dim in range(1, min(max(ranks, default=0), 4) + 1):
            yield pytest.param(name, dim, id=f"{name}-{dim}")


@pytest.mark.long
@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("activations", CONFIGS)
@pytest.mark.parametrize(("name", "dim"), cases())
def test_every_operator(name: str, dim: int, activations: str, extent: int) -> None:
    sample = case(name, dim, extent)
    if sample is None:
        pytest.skip("PyTorch has no such call, or it has too many elements")
    if any(True for _ in ladder.leaves(sample, (Ints, Bools))) and activations == "int16":
        pytest.skip("not quantized")
    refused = [bounded(functools.partial(climb, name, sample, activations, target), SECONDS, GIGABYTES) for target in TARGETS]
    if all(refused):
        pytest.skip(f"refused: {', '.join(refused)}")


@pytest.mark.long
@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize(("name", "dim"), cases())
def test_every_operator_of_int32(name: str, dim: int, extent: int) -> None:
    sample = case(name, dim, extent)
    if sample is None or not any(True for _ in ladder.leaves(sample, I8)):
        pytest.skip("PyTorch has no such call, it has too many elements, or it is of integers anyway")
    for target in TARGETS:
        bounded(functools.partial(check_integers, name, sample, "int32", target), SECONDS, GIGABYTES)
