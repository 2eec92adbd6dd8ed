"""No operator takes more than n log n time in the size n of its constants: indices, parameters, buffers and shapes.

A case is an operator's sample with one extent drawn out to ``SIZES``, and with each of its tensors a constant in turn. What is
compared is counted, not timed: calls of functions from the float module to the TOSA graph that Vela is given. Seconds have a
loose cap, for what one call of NumPy or of Vela may take.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ethorch import EthosUCompileSpec, vela
from ethorch.arm.quantizer import get_symmetric_quantization_config
from ethorch.lower.ops.samples import I8, Bools, Ints, Sample, W
from ethorch.support.errors import QuantizationError, Unsupported
from ethorch.tosa.serialize import serialize
from tests.helpers import ladder
from tests.helpers.bounded import Bounded
from tests.helpers.ladder import SPECS
from tests.lower.ops.test_constant_operands import WithConstant

SIZES = (4096, 32768)
#: How much more calls the larger size may take: n log n, and a tenth.
GROWTH = 1.1 * SIZES[1] * math.log(SIZES[1]) / (SIZES[0] * math.log(SIZES[0]))
#: Seconds of the CPU that the larger size may take beyond ``GROWTH`` times those of the smaller one.
SPARE_SECONDS = 5
MOST_ELEMENTS = 300_000
TARGETS = ("ethos-u55-128", "ethos-u85-256")


def extents_of(sample: Sample) -> list[int]:
    """Return the extents of a sample's tensors, each once."""
    shapes = [leaf.shape for leaf in ladder.leaves(sample, (I8, Ints, Bools, W, Tensor))]
    return sorted({extent for shape in shapes for extent in shape if extent > 1})


def stretched(sample: Sample, before: int, size: int, spread: Callable[[int], Tensor]) -> Sample:
    """Return ``sample`` with ``size`` in place of the extent ``before``; constant indices are ``spread`` over the extent."""

    def sizes(old: Any) -> tuple[int, ...]:
        return tuple(size if extent == before else extent for extent in old)

    def changed(arg: Any, listed: bool = False) -> Any:
        if isinstance(arg, I8):
            return I8(*sizes(arg.shape), low=arg.low, high=arg.high)
        if isinstance(arg, Ints):
            return Ints(*sizes(arg.shape), low=arg.low, high=arg.high, dtype=arg.dtype)
        if isinstance(arg, Bools):
            return Bools(*sizes(arg.shape), chance=arg.chance)
        if isinstance(arg, W):
            return W(*sizes(arg.shape), low=arg.low)
        if isinstance(arg, Tensor) and before in arg.shape:
            if math.prod(sizes(arg.shape)) > MOST_ELEMENTS:
                raise ValueError("an index is too long")
            numbers = spread(math.prod(sizes(arg.shape))).reshape(sizes(arg.shape))
            return numbers % 2 == 0 if arg.dtype == torch.bool else numbers.to(arg.dtype)
        if isinstance(arg, (list, tuple)):
            return [changed(each, True) for each in arg]
        return size if listed and type(arg) is int and arg == before else arg

    made = Sample(*map(changed, sample.args), **{key: changed(value) for key, value in sample.kwargs.items()})
    return made.of(sample.overload) if sample.overload else made


def _shuffled(count: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))


#: Numbers below ``count`` for a constant index: in orders without runs, and two numbers again and again.
SPREADS: dict[str, Callable[[int], Tensor]] = {
    "shuffled": _shuffled,
    "backward": lambda count: torch.arange(count - 1, -1, -1),
    "few": lambda count: torch.arange(count) % 2,
}


def module_of(name: str, sample: Sample, place: int | None) -> tuple[nn.Module, tuple[Tensor, ...]] | None:
    """Return the call and its inputs, of which that in ``place`` is a constant; None if PyTorch refuses, or it is too large.

    oneDNN's LSTM reads beyond parameters that are too short; PyTorch's own checks their shapes.
    """
    leaves = list(ladder.leaves(sample, (*ladder.INPUTS, W)))
    if any(math.prod(leaf.shape) > MOST_ELEMENTS for leaf in leaves):
        return None
    module: nn.Module = ladder.Call(name, sample)
    inputs = ladder.inputs_for(sample, 0)
    if place is not None:
        module, inputs = WithConstant(module, place, inputs[place]), inputs[:place] + inputs[place + 1 :]
    try:
        with warnings.catch_warnings(), torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
            warnings.simplefilter("ignore")
            results = torch.utils._pytree.tree_leaves(module(*inputs))
    except (RuntimeError, IndexError, NotImplementedError, ValueError):
        return None
    small = len(results) <= 64 and all(0 < result.numel() <= MOST_ELEMENTS for result in results)
    return (module.eval(), inputs) if small and inputs else None


def has_constants(sample: Sample, place: int | None) -> bool:
    return place is not None or any(True for _ in ladder.leaves(sample, (W, Tensor)))


Case = tuple[str, int, int, str, int | None]  #: operator, sample, extent, spread of indices, place of the constant


@functools.cache
def cases(name: str) -> list[Case]:
    """Return the calls of an operator that have constants and exist in both sizes."""
    found: list[Case] = []
    for number, sample in enumerate(SPECS[name].samples):
        inputs = len(list(ladder.leaves(sample, ladder.INPUTS)))
        for extent in extents_of(sample):
            for place in (None, *(range(inputs) if inputs > 1 else ())):
                for spread in SPREADS if any(True for _ in ladder.leaves(sample, Tensor)) else ("shuffled",):
                    case = (name, number, extent, spread, place)
                    if has_constants(sample, place) and all(_made(case, size) for size in SIZES):
                        found.append(case)
    return found


def _made(case: Case, size: int) -> tuple[nn.Module, tuple[Tensor, ...]] | None:
    name, number, extent, spread, place = case
    try:
        return module_of(name, stretched(SPECS[name].samples[number], extent, size, SPREADS[spread]), place)
    except ValueError:
        return None


def work(case: Case, size: int, target: str) -> tuple[int, float, str]:
    """Return the calls of functions, seconds of the CPU, and why it is refused, of compiling a call."""
    made = _made(case, size)
    assert made is not None
    return work_of(*made, target)


def work_of(module: nn.Module, inputs: tuple[Tensor, ...], target: str) -> tuple[int, float, str]:
    """Return what ``work`` does, of a module."""
    start, refusal = time.process_time(), ""
    with counted() as calls:
        try:
            q = ladder.quantized(module, [inputs], get_symmetric_quantization_config(), target)
            tosa = serialize(ladder.lowered(q.converted, target))
        except Unsupported as error:
            refusal = error.reason.id
        except QuantizationError as error:
            refusal = error.id
    if not refusal:
        vela.compile(tosa, EthosUCompileSpec(target))
    return len(calls), time.process_time() - start, refusal


@contextlib.contextmanager
def counted() -> Iterator[bytearray]:
    """Append a byte for each call of a function, of Python or C, inside the context."""
    calls = bytearray()

    def observe(frame: Any, event: str, arg: Any) -> None:
        if event in ("call", "c_call"):
            calls.append(0)

    before = sys.getprofile()
    sys.setprofile(observe)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def excess(case: Case, target: str, call: Callable[..., Any] = lambda function, *args: function(*args)) -> str:
    """Return how the work grows faster than n log n, or nothing."""
    (few, short, _), (many, long, _) = (call(work, case, size, target) for size in SIZES)
    if many > GROWTH * few:
        return f"{case} on {target}: {few} calls of {SIZES[0]}, {many} of {SIZES[1]}"
    if long > GROWTH * short + SPARE_SECONDS:
        return f"{case} on {target}: {short:.1f} s of {SIZES[0]}, {long:.1f} s of {SIZES[1]}"
    return ""


@pytest.fixture(scope="module")
def process() -> Iterator[Bounded]:
    bounded = Bounded(120, 12)
    yield bounded
    bounded.close()


@pytest.mark.long
@pytest.mark.parametrize("name", SPECS)
def test_every_operator(name: str, process: Bounded) -> None:
    failures = []
    for case in process.call(cases, name):
        for target in TARGETS:
            try:
                failures.append(excess(case, target, process.call))
            except (RuntimeError, MemoryError, TimeoutError) as error:
                failures.append(f"{case} on {target}: {error}")
    assert not any(failures), "\n".join(filter(None, failures))


#: Operators with indices or many pieces, each with a constant in an order without runs.
FEW = ("aten.index_copy.default", "aten.index_select.default", "aten.index.Tensor", "aten.bucketize.Tensor")


@pytest.mark.parametrize("name", FEW)
def test_a_few(name: str) -> None:
    """The calls are counted, so that a busy computer fails nothing."""
    case = cases(name)[0]
    (few, _, _), (many, _, _) = (work(case, size, "ethos-u55-128") for size in SIZES)
    assert many <= GROWTH * few, f"{case}: {few} calls of {SIZES[0]}, {many} of {SIZES[1]}"


@pytest.mark.parametrize(
    ("layer", "target"),
    [
        (nn.LSTM, TARGETS[0]),
        (nn.GRU, TARGETS[1]),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [(nn.LSTM, TARGETS[1]), (nn.GRU, TARGETS[0]), *((nn.RNN, target) for target in TARGETS)]
        ),
    ],
)
def test_recurrent_layers_of_many_features(layer: type[nn.RNNBase], target: str) -> None:
    """Their parameters are named by other sizes than the inputs', so that no sample of theirs can be stretched."""
    (few, _, refused), (many, _, _) = (
        work_of(layer(size, 2, batch_first=True).eval(), (torch.randn(1, 3, size),), target) for size in SIZES
    )
    assert not refused and many <= GROWTH * few, f"{few} calls of {SIZES[0]} features, {many} of {SIZES[1]}"


def test_cases_of_an_lstm_have_parameters_of_the_right_shapes() -> None:
    assert not module_of("aten.lstm.input", stretched(SPECS["aten.lstm.input"].samples[0], 6, SIZES[0], _shuffled), None)


def test_work_that_grows_with_the_square_is_noticed() -> None:
    def calls_of(count: int, exponent: int) -> int:
        with counted() as calls:
            for _ in range(count**exponent):
                len(())
        return len(calls)

    assert calls_of(800, 2) > GROWTH * calls_of(100, 2)
    assert calls_of(800, 1) <= GROWTH * calls_of(100, 1)
