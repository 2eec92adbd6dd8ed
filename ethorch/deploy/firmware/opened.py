"""What a project is made from: the methods, what is known of each, and the calls of the self-test."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ethorch.deploy.firmware.cases import Call
from ethorch.figures.layer import NPU
from ethorch.figures.subject import Subject, subject
from ethorch.formats import pte
from ethorch.models import load
from ethorch.support.errors import EthorchError

STATEFUL_RUNS = 3  # of each method in the self-test of one that keeps state: the first, one after it, and one more


@dataclass(frozen=True)
class OpenedMethod:
    """A method, and what is known of it.

    Attributes:
        cycles: by delegate, where they are known.
        explain: what is known of an operator on the CPU by its name: a place in the user's code, or nothing.
    """

    subject: Subject
    cycles: dict[int, int]
    explain: Callable[[str], str] = field(repr=False)


@dataclass(frozen=True)
class Opened:
    """What a project is made from.

    Attributes:
        calls: of the self-test, in order.
        given: did the user give them? Else those behind the first of a method without state say nothing more.
    """

    pte: bytes
    methods: dict[str, OpenedMethod]
    calls: tuple[Call, ...]
    given: bool


def opened_of(source: Any, method: str | Sequence[str] | None, inputs: Sequence[Any] | None) -> Opened:
    """Open a Program, a build, or a .pte by path or contents.

    Args:
        method, inputs: as of ``ethorch.firmware``.
    """
    program = source if hasattr(source, "pte") else None  # ethorch.Program, or a Build, which this package may not import
    data = pte.contents(source) if isinstance(source, (str, os.PathLike)) else bytes(source if program is None else program.pte)
    parsed = pte.read(data)
    wanted = [method] if isinstance(method, str) else method
    entries = [name for name, found in parsed.methods.items() if not pte.is_figure(found)]
    names = [pte.entry_point(parsed, name) for name in dict.fromkeys(entries if wanted is None else wanted)]
    if not names:
        raise EthorchError("a project is of at least one method; method names none.")
    several = hasattr(program, "methods")
    methods = {name: _method(program[name] if several and program is not None else program, data, name) for name in names}
    return Opened(data, methods, tuple(_calls(program, methods, inputs)), inputs is not None)


def _method(program: Any, data: bytes, name: str) -> OpenedMethod:
    found = subject(getattr(program, "build", None) or data, name)
    known: dict[int, int] = {}
    for layer in getattr(program, "layers", ()):
        if layer.where == NPU and layer.cycles is not None:
            known[layer.delegate] = known.get(layer.delegate, 0) + int(layer.cycles)
    refusals = getattr(found.partition, "refusals", ())

    def explain(operator: str) -> str:
        plain = operator.split("::")[-1].split(".")[0]
        places = [r.origin for r in refusals if "." in r.origin.target and r.origin.target.split(".")[1].strip("_") in plain]
        return f" ({places[0]})" if places else ""

    return OpenedMethod(found, known, explain)


def _calls(program: Any, methods: dict[str, OpenedMethod], inputs: Sequence[Any] | None) -> list[Call]:
    """The self-test's: one sample after the other of a sole method, a session of several, and after a reset the same again."""
    if len(methods) == 1:
        (name,) = methods
        return [Call(name, tuple(sample)) for sample in _samples(program, methods[name].subject, name, inputs)]
    if inputs is not None:
        session = _checked(inputs, methods)
    else:
        session = [(name, sample) for name, sample in next(iter(getattr(program, "sessions", ())), ()) if name in methods]
        session = [(name, program[name].as_taken(sample)) for name, sample in session]
        seen = Counter[str]()
        kept = []
        for name, sample in session:
            seen[name] += 1
            kept += [(name, sample)] if seen[name] <= STATEFUL_RUNS else []
        session = kept + [
            (name, load.random_inputs(methods[name].subject.method, seed))
            for name in methods
            if not seen[name]
            for seed in range(1 if name == next(iter(methods)) else STATEFUL_RUNS)
        ]
    again = [Call(name, tuple(sample), reset=number == 0) for number, (name, sample) in enumerate(session)]
    return [*(Call(name, tuple(sample)) for name, sample in session), *again]


def _samples(program: Any, found: Subject, name: str, inputs: Sequence[Any] | None) -> Sequence[Sequence[Any]]:
    if inputs is not None:
        return inputs
    of_method = program[name] if hasattr(program, "methods") else program
    model = getattr(of_method, "model", None)
    if model is not None:
        calibrated = model.calibration or [model.example_inputs]
        return [of_method.as_taken(sample) for sample in calibrated[:STATEFUL_RUNS]]
    return [load.random_inputs(found.method, seed) for seed in range(STATEFUL_RUNS)]


def _checked(inputs: Sequence[Any], methods: dict[str, OpenedMethod]) -> list[tuple[str, Sequence[Any]]]:
    """A session as the user gives it."""
    for number, call in enumerate(inputs):
        if not (isinstance(call, (tuple, list)) and len(call) == 2 and isinstance(call[0], str) and call[0] in methods):
            raise EthorchError(
                f"the self-test of several methods makes calls of (method, inputs), the method one of {', '.join(methods)}; call "
                f"{number} is not that. Give such calls, or the name of one method beside its inputs."
            )
    return [(call[0], call[1]) for call in inputs]
