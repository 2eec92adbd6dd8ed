"""Run each compiled delegate on random inputs, and insert copies if its results differ from those of its TOSA graph.

This handles Vela bugs that ``lower.rewrite.vela_bugs`` does not avoid.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch import runtime
from ethorch.lower.rewrite.insert_copies import copy_value
from ethorch.lower.rewrite.rewriter import Names, Rewriter
from ethorch.support.errors import MachineFault, PayloadError, VelaError, VerificationError
from ethorch.support.progress import stage
from ethorch.tosa import interpreter
from ethorch.tosa.ir import DTYPES, Graph, Op, Value
from ethorch.vela.lowered import Lowered
from ethorch.vela.verification import as_bytes, check_outputs, delegate_arrays

Array = npt.NDArray[Any]

logger = logging.getLogger(__name__)

_MOST_COMPILATIONS, _MOST_SECONDS = 60, 120.0  # limits per delegate. CPU time does not depend on other processes.
_DISTANCES = (0, 1, 2, 4)  # distances from the wrong operator to try before the whole graph
_NARROW = ("INT8", "INT16", "BOOL")  # dtypes that are cheap to copy
#: Exclusive upper limits of random (int8 and int16, int32) inputs. None is the range of the dtype. Inputs may be shift amounts,
#: or indices into short axes. A graph without a result for these inputs uses the next entry.
_LIMITS = ((None, 8), (None, 1), (8, 8), (1, 1))


@dataclass(frozen=True)
class _Operand:
    reader: str
    place: int | None


def repair_delegate(lowered: Lowered, compile_graph: Callable[[Graph], Lowered]) -> Lowered:
    """Return the delegate. If its results differ from those of its TOSA graph, first omit stream passes or insert copies.

    A delegate is not compared if it contains a loop, its graph cannot be evaluated on random inputs, or the simulator cannot
    load it.

    Raises:
        VerificationError: The results differ, even with copies.
    """
    inputs = random_inputs(lowered)
    if inputs is None:
        return lowered
    arrays, expected = inputs
    outputs = _run(lowered, arrays)
    if outputs is None or _equal(outputs, expected):
        return lowered
    if (plain := _without_passes(lowered)) is not None and _equal(_run(plain, arrays), expected):
        logger.warning(
            "passes (%s) change the result of a command stream. Vela's command stream is used instead. "
            "Please report this, and attach the model. [stream.wrong]",
            ", ".join(effect.name for effect in lowered.compiled.passes),
        )
        return plain
    try:
        check_outputs(lowered, "a delegate", arrays, outputs)
    except VerificationError as error:
        with stage("repair"):
            mended = _Repair(lowered, compile_graph, arrays, expected).find(error.value)
        if mended is None:
            raise
        logger.warning(
            "Vela's commands for %s compute a wrong result. To correct it, ethorch inserted %s at %s. "
            "Please report this, and attach the model. [vela.repaired]",
            error.operator or "an operator",
            "a tensor copy" if len(mended.repairs) == 1 else f"{len(mended.repairs)} tensor copies",
            ", ".join(dict.fromkeys(mended.repairs)),
        )
        return mended
    raise AssertionError("the outputs differ from the expected bytes, but check_outputs found no difference")


def _without_passes(lowered: Lowered) -> Lowered | None:
    before = lowered.compiled.before_passes
    return None if before is None else replace(lowered, compiled=before)


def random_inputs(lowered: Lowered) -> tuple[list[Array], list[Array]] | None:
    """Return random inputs and the expected outputs as bytes, or None if the delegate cannot be compared."""
    source = lowered.source
    has_loop = any(op.name == "WHILE_LOOP" for region in source.regions() for op in region.ops)
    if has_loop or len(lowered.inputs) != len(lowered.compiled.inputs):
        return None
    for narrow, wide in _LIMITS:
        generator = np.random.default_rng(0)
        arrays = [as_bytes(_random(value, generator, narrow, wide)) for value in lowered.inputs]
        try:
            return arrays, [as_bytes(x) for x in interpreter.run(source, delegate_arrays(lowered, arrays))]
        except (ArithmeticError, IndexError):
            continue
    return None


def _random(value: Value, generator: np.random.Generator, narrow: int | None, wide: int) -> Array:
    if value.dtype in ("INT8", "INT16") and narrow is None:
        numbers = np.iinfo(value.dtype.lower())
        return generator.integers(numbers.min, numbers.max + 1, value.shape).astype(numbers.dtype)
    most = {"INT8": narrow, "INT16": narrow, "BOOL": 2}.get(value.dtype, wide)
    return generator.integers(0, most, value.shape).astype(DTYPES[value.dtype])


def _run(lowered: Lowered, inputs: Sequence[Array]) -> list[Array] | MachineFault | None:
    try:
        payload = lowered.payload
    except PayloadError as error:  # a tensor exceeds its region
        return MachineFault(str(error))
    try:
        machine = runtime.npu_machine(payload)
    except MachineFault:
        return None
    try:
        noise = np.random.default_rng(1)
        for index in machine.regions:
            if index:  # the constants are region 0
                region = machine.region(index)
                region[:] = noise.integers(0, 256, region.size, dtype=np.uint8)
        for tensor, data in zip(payload.inputs, inputs, strict=True):
            machine.region(tensor.region)[tensor.offset : tensor.offset + tensor.nbytes] = data
        machine.run()
    except MachineFault as fault:
        return fault
    return [machine.region(t.region)[t.offset : t.offset + t.nbytes].copy() for t in payload.outputs]


def _equal(outputs: Sequence[Array] | MachineFault | None, expected: Sequence[Array]) -> bool:
    return outputs is not None and not isinstance(outputs, MachineFault) and all(map(np.array_equal, outputs, expected))


class _Repair:
    def __init__(self, lowered: Lowered, compile_graph: Callable[[Graph], Lowered], inputs: list[Array], expected: list[Array]):
        self._lowered, self._compile, self._inputs, self._expected = lowered, compile_graph, inputs, expected
        self._left, self._end = _MOST_COMPILATIONS, time.thread_time() + _MOST_SECONDS

    @property
    def _is_over(self) -> bool:
        return self._left <= 0 or time.thread_time() > self._end

    def find(self, suspect: str) -> Lowered | None:
        """Return a correct delegate with few copies, or None if the search fails.

        Args:
            suspect: Name of the first wrong value, or an empty string if a rewrite caused the error.
        """
        if not suspect:
            return None
        for operands in _candidates(self._lowered.graph, suspect):
            if self._is_over:
                return None
            if (mended := self._with_copies(operands)) is not None:
                fewest = self._fewest(operands, [])
                return mended if len(fewest) == len(operands) else self._with_copies(fewest) or mended
        return None

    def _with_copies(self, operands: Sequence[_Operand]) -> Lowered | None:
        self._left -= 1
        graph = self._lowered.graph.copy()
        repairs = insert_copies(graph, operands)
        try:
            compiled = self._compile(graph)
        except VelaError:
            return None
        if not _equal(_run(compiled, self._inputs), self._expected):
            return None
        return replace(compiled, source=self._lowered.source, repairs=repairs)

    def _fewest(self, operands: Sequence[_Operand], base: Sequence[_Operand]) -> list[_Operand]:
        if len(operands) == 1 or self._is_over:
            return list(operands)
        middle = len(operands) // 2
        first, second = list(operands[:middle]), list(operands[middle:])
        for half in (first, second):
            if self._with_copies([*base, *half]) is not None:
                return self._fewest(half, base)
        left = self._fewest(first, [*base, *second])
        return [*left, *self._fewest(second, [*base, *left])]


def insert_copies(graph: Graph, operands: Sequence[_Operand]) -> tuple[str, ...]:
    """Copy each operand or, if its ``place`` is None, the result of its reader. Return descriptions of the readers."""
    names, readers = Names(graph), []
    for region in list(graph.regions()):
        r = Rewriter(region, names, is_region=region is not graph)
        ops = {op.result.name: op for op in region.ops}
        for operand in operands:
            if (op := ops.get(operand.reader)) is None:
                continue
            readers.append(f"{op.name} of {op.result.origin}")
            if operand.place is None:
                r.insert_after(op, copy_value)
            else:
                r.insert_before(op, operand.place, copy_value)
        r.finish()
    return tuple(readers)


def _candidates(graph: Graph, suspect: str) -> Iterator[list[_Operand]]:
    distances = _distances(graph, suspect)
    entries = [(distance, wide, operand) for op, distance in distances for wide, operand in _operands(graph, op)]
    seen: list[list[_Operand]] = []
    for most in (*_DISTANCES, len(distances)):
        for with_wide in (False, True):
            chosen = [operand for distance, wide, operand in entries if distance <= most and (with_wide or not wide)]
            if chosen and chosen not in seen:
                seen.append(chosen)
                yield chosen
    for _, _, operand in sorted(entries, key=lambda entry: entry[:2]):
        yield [operand]


def _distances(graph: Graph, suspect: str) -> list[tuple[Op, int]]:
    distances: list[tuple[Op, int]] = []
    for region in graph.regions():
        producers = {id(value): op for op in region.ops for value in op.results}
        neighbors: dict[int, list[Op]] = {id(op): [] for op in region.ops}
        for op in region.ops:
            for value in op.operands:
                if (before := producers.get(id(value))) is not None:
                    neighbors[id(op)].append(before)
                    neighbors[id(before)].append(op)
        steps = {id(op): 0 for op in region.ops if any(value.name == suspect for value in op.results)}
        queue = deque(op for op in region.ops if id(op) in steps)
        while queue:
            op = queue.popleft()
            for neighbor in neighbors[id(op)]:
                if id(neighbor) not in steps:
                    steps[id(neighbor)] = steps[id(op)] + 1
                    queue.append(neighbor)
        distances += [(op, steps.get(id(op), len(graph.ops))) for op in region.ops]
    return distances


def _operands(graph: Graph, op: Op) -> Iterator[tuple[bool, _Operand]]:
    for place, value in enumerate(op.operands):
        if not value.is_const and value.dtype in (*_NARROW, "INT32"):
            yield value.dtype not in _NARROW, _Operand(op.result.name, place)
    if any(op.result is value for region in graph.regions() for value in region.outputs) and op.result.dtype in (*_NARROW, "INT32"):
        yield op.result.dtype not in _NARROW, _Operand(op.result.name, None)
