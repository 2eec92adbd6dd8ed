"""Every operator over axes as long as NPUs count: around 32,768 and 65,536, where Vela's streams and shapes go wrong.

A case is one operator, one axis and one dtype; it takes a sample of each rank and spelling, with that axis of its tensors as long
as each of ``EXTENTS`` and the others as short as PyTorch allows. Each layer agrees with the next, in INT8, INT16 and INT32, on each
family of NPUs, or the operator is refused with a reason; in bounded time and memory.

All cases take some three hours on one core. ``EXTENTS_SHARE=0.1`` takes a tenth of them, drawn at random; ``EXTENTS_SEED=1`` draws
others.
"""

from __future__ import annotations

import functools
import os
import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from ethorch.lower.fx.node import op_name
from ethorch.lower.fx.sequences import refuse_long_sequence
from ethorch.lower.ops.samples import I8, Bools, Ints, Sample, W
from ethorch.lower.reasons import MOST_RETURNED
from ethorch.support.errors import QuantizationError, Unsupported
from tests.helpers import ladder
from tests.helpers.bounded import Bounded
from tests.helpers.ladder import CONFIGS, SPECS, TARGETS
from tests.lower.ops.test_integers import IntegerCall

EXTENTS = (32767, 32768, 32769, 65535, 65536, 65537)
DTYPES = (*CONFIGS, "int32")
#: The most elements of a result and of an argument; more is for machines with more memory.
MOST_ELEMENTS = 1_000_000
KINDS = ladder.INPUTS
#: By how many ``bound16`` one element of int16 may be off: inputs meet every interval of a table, some of 65,536 variances
#: are next to 0. The root mean square over all elements stays within one: one rounding to the other side each is less.
#: The distance is that from PyTorch in float32 or in float64, the smaller for each element: of 32,767 places, those between which
#: an image is interpolated are 0.002 off in float32, 57 steps of noise.
OUTLIERS = 16
#: Seconds of the CPU and memory for a call on one target. A batch of 32,767 products of int16 is 260,000 operations: half a minute
#: in the simulator.
SECONDS, GIGABYTES = 60, 12
#: Operators whose error grows with an extent: by what their bound is multiplied. Scores of 32,767 products, times the sample's
#: scale, range over 600, so that a code of int16 is s = 0.018. Where each score is rounded to the other side, tanh(s / 2) of all
#: weight moves at most, and the result by so much of its 65,535 codes: 600. Measured on U85: 20 in the root mean square, and 168.
STEEP = {"aten.scaled_dot_product_attention.default": 32}


def stretched(sample: Sample, dim: int, extent: int, others: int) -> Sample | None:
    """``sample`` with ``extent`` along ``dim`` of its tensors, counted from the last, and at most ``others`` along all other axes.

    None where no tensor has that axis. Axes of extent 1 stay: they are broadcast.
    """
    first = next(iter(ladder.leaves(sample, KINDS)), None)
    if first is None or len(first.shape) < dim or first.shape[-dim] == 1:
        return None
    before = first.shape[-dim]
    parameters = list(ladder.leaves(sample, W))
    if any(before in parameter.shape for parameter in parameters):
        return None  # PyTorch's batch_norm takes parameters that are too short, and reads behind them
    if parameters:
        others = max(others, *first.shape)

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
    inputs = [kind.shape for kind in ladder.leaves(sample, KINDS)]
    if any(torch.Size(shape).numel() > MOST_ELEMENTS for shape in inputs):
        return False
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            results = _pytree.tree_leaves(ladder.Call(name, sample)(*ladder.inputs_for(sample, 0)))
    except (RuntimeError, IndexError, NotImplementedError, ValueError):
        return False
    return len(results) <= MOST_RETURNED and all(0 < result.numel() <= MOST_ELEMENTS for result in results)


@functools.cache
def samples(name: str, dim: int, extent: int) -> list[Sample]:
    """The operator's samples that can be stretched so: the first of each spelling and rank, with the smallest other axes."""
    found: dict[Any, Sample] = {}
    for others in (2, 3, 4, 8):
        for sample in SPECS[name].samples:
            made = stretched(sample, dim, extent, others)
            if made is not None:
                kind = (made.overload, *(len(leaf.shape) for leaf in ladder.leaves(made, KINDS)))
                if kind not in found and accepted(name, made):
                    found[kind] = made
    return list(found.values())


@functools.lru_cache(1)
def call_of(name: str, dim: int, extent: int, number: int, dtype: str) -> Any:
    """The sample's module, inputs and, of plain integers, results; None where there is no such call."""
    sample = samples(name, dim, extent)[number]
    quantized = any(True for _ in ladder.leaves(sample, I8))
    if dtype == "int32":
        return IntegerCall.of(name, sample, dtype) if quantized else None
    if not quantized and dtype == "int16":
        return None
    return ladder.Call(name, sample).eval(), [ladder.inputs_for(sample, seed) for seed in range(2)]


class ShortSequences(TorchFunctionMode):
    """Refuses a sequence that is too long before PyTorch traces it, as ``lower.fx.export`` does of layers."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op_name(function) in ("aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input"):
            refuse_long_sequence(args[0].shape[1 if args[-1] and args[0].dim() == 3 else 0])
        return function(*args, **(kwargs or {}))


@functools.lru_cache(1)
def quantized(name: str, dim: int, extent: int, number: int, dtype: str, target: str) -> ladder.Quantized:
    call = call_of(name, dim, extent, number, dtype)
    if dtype == "int32":
        return call.quantized(target)
    module, inputs = call
    with ShortSequences():
        return ladder.quantized(module, inputs, CONFIGS[dtype](), target)


def climb(name: str, dim: int, extent: int, number: int, dtype: str, target: str) -> str:
    """The call through all layers: "passed", or why it is not compared."""
    key = (name, dim, extent, number, dtype)
    call = call_of(*key)
    if call is None:
        return "PyTorch has no such call"
    try:
        q = quantized(*key, "ethos-u85-256" if "u85" in target else "ethos-u55-128")  # U65 is quantized as U55
        if dtype == "int32":
            call.climb(q, target)
        else:
            found = ladder.climbed(q, call[1][0], target)
            with torch.no_grad():
                found = found.beside(q.in_float64().output_codes(call[1][0]))
            assert not found.different, f"{found.different} elements differ between reference model and simulator"
            bound = (SPECS[name].bound if dtype == "int8" else SPECS[name].bound16) * STEEP.get(name, 1)
            tolerance = OUTLIERS * bound
            if dtype == "int8":  # of 400,000 elements of a composite in some more than one operator inside rounds to the other side
                tolerance = max(bound, SPECS[name].bound16) if SPECS[name].composite else bound
            assert found.rms_steps <= bound, f"{found.rms_steps:.2f} steps off (root mean square), {bound} allowed"
            assert found.steps_off <= tolerance, f"{found.steps_off} steps off, {tolerance} allowed"
    except Unsupported as refusal:
        return f"refused: {refusal.reason.id}"
    except QuantizationError as refusal:
        return f"refused: {refusal.id}"
    return "passed"


def cases() -> list[tuple[str, int, str]]:
    """An operator, a dim counted from the last, and a dtype each; the share that the environment asks for."""
    found = []
    for name, spec in SPECS.items():
        ranks = {len(kind.shape) for sample in spec.samples for kind in ladder.leaves(sample, KINDS)}
        found += [(name, dim, dtype) for dim in range(1, max(ranks, default=0) + 1) for dtype in DTYPES]
    share, seed = float(os.environ.get("EXTENTS_SHARE", 1)), int(os.environ.get("EXTENTS_SEED", 0))
    return found if share == 1 else sorted(random.Random(seed).sample(found, round(share * len(found))))


@pytest.fixture(scope="module")
def process() -> Iterator[Bounded]:
    bounded = Bounded(SECONDS, GIGABYTES)
    yield bounded
    bounded.close()


@pytest.mark.long
@pytest.mark.parametrize(("name", "dim", "dtype"), cases())
def test_every_operator(name: str, dim: int, dtype: str, process: Bounded) -> None:
    outcomes, failures = set(), []
    for extent in EXTENTS:
        try:
            found = process.call(samples, name, dim, extent)
        except (RuntimeError, MemoryError, TimeoutError) as error:
            outcomes.add(f"PyTorch: {error}")
            continue
        for number, sample in enumerate(found):
            for target in TARGETS:
                try:
                    outcomes.add(process.call(climb, name, dim, extent, number, dtype, target))
                except (RuntimeError, MemoryError, TimeoutError) as error:
                    failures.append(f"{target}: {sample}\n{error}")
                    if isinstance(error, TimeoutError):  # longer ones take as long
                        pytest.fail("\n\n".join(failures))
    assert not failures, "\n\n".join(failures)
    if "passed" not in outcomes:
        pytest.skip(", ".join(sorted(outcomes)) or "PyTorch has no such call, or it has too many elements")
