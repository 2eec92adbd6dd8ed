"""Load the program of a project and select the calls of its self-test."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from ethorch.backend.emit.build import Build
from ethorch.deploy.firmware.cases import Call
from ethorch.figures.layer import Layer
from ethorch.figures.subject import Subject, subject
from ethorch.formats import pte
from ethorch.models import arrays
from ethorch.support.errors import EthorchError
from ethorch.support.wording import shorten

if TYPE_CHECKING:
    from ethorch.models.load import UserModel  # importing torch for a type takes 1 second

STATEFUL_RUNS = 3  # calls per method in the self-test of a stateful model


@dataclass(frozen=True)
class ProgramMethod:
    """A method with its compile-time information."""

    subject: Subject
    cycles: dict[int, int]  # NPU cycles by delegate number; empty if unknown
    explain: Callable[[str], str] = field(repr=False)  # CPU operator -> its location in the user's code, or ""


@dataclass(frozen=True)
class ProjectProgram:
    pte: bytes
    methods: dict[str, ProgramMethod]
    calls: tuple[Call, ...]  # of the self-test, in order
    has_user_calls: bool  # if False, a single stateless method is called only once


class Compiled(Protocol):
    """The interface of ``ethorch.program``'s class ``Record``, which this package must not import."""

    pte: bytes
    build: Build | None
    model: UserModel | None
    sessions: Sequence[Sequence[tuple[str, tuple[Any, ...]]]]

    @property
    def layers(self) -> tuple[Layer, ...]: ...

    def __getitem__(self, method: str) -> Compiled: ...

    def as_taken(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]: ...


def open_program(
    source: Any, method: str | Sequence[str] | None, inputs: Sequence[Any] | None, *, is_repeated: bool = False
) -> ProjectProgram:
    """Open a Program, a build, or a .pte (path or contents). See :func:`ethorch.firmware`.

    If ``is_repeated`` is True, include a session of several methods only once, because the firmware repeats it.
    """
    record: Compiled | None = getattr(source, "_record", None)  # an ethorch.Program, which this package must not import
    if isinstance(source, (str, os.PathLike)):
        data = pte.contents(source)
    else:
        data = bytes(source.pte if hasattr(source, "pte") else source)
    parsed = pte.read(data)
    requested = [method] if isinstance(method, str) else method
    entries = [name for name, parsed_method in parsed.methods.items() if not pte.is_figure(parsed_method)]
    names = [pte.entry_point(parsed, name) for name in dict.fromkeys(entries if requested is None else requested)]
    if not names:
        raise EthorchError("methods: expected at least one method, got an empty list. Omit the argument to select all methods.")
    build = source if isinstance(source, Build) else None
    methods = {name: _method(build, data, name) if record is None else _open_method(record[name], name) for name in names}
    calls = _calls(record, methods, inputs, is_repeated)
    return ProjectProgram(data, methods, tuple(calls), inputs is not None)


def _open_method(record: Compiled, name: str) -> ProgramMethod:
    program_method = _method(record.build, record.pte, name)
    for layer in record.layers:
        if layer.delegate is not None and layer.cycles is not None:
            program_method.cycles[layer.delegate] = program_method.cycles.get(layer.delegate, 0) + int(layer.cycles)
    return program_method


def _method(build: Build | None, data: bytes, name: str) -> ProgramMethod:
    method_subject = subject(build or data, name)
    refusals = () if method_subject.partition is None else method_subject.partition.refusals

    def explain(operator: str) -> str:
        plain = operator.split("::")[-1].split(".")[0]
        places = [r.origin for r in refusals if "." in r.origin.target and r.origin.target.split(".")[1].strip("_") in plain]
        return f" ({places[0]})" if places else ""

    return ProgramMethod(method_subject, {}, explain)


def _calls(
    record: Compiled | None, methods: dict[str, ProgramMethod], inputs: Sequence[Any] | None, is_repeated: bool
) -> list[Call]:
    """Return one call per sample for a single method, or a session for several methods.

    Unless ``is_repeated`` is True, the session is included twice, with a reset in between.
    """
    if len(methods) == 1:
        (name,) = methods
        return [Call(name, tuple(sample)) for sample in _samples(record, methods[name].subject, name, inputs)]
    if inputs is not None:
        session = _check_session(inputs, methods)
    else:
        session = _read_session(record, methods)
        called = {name for name, _ in session}
        session += [
            (name, arrays.random_inputs(methods[name].subject.method, seed))
            for name in methods
            if name not in called
            for seed in range(1 if name == next(iter(methods)) else STATEFUL_RUNS)
        ]
    calls = [Call(name, tuple(sample)) for name, sample in session]
    return calls if is_repeated else [*calls, *(replace(call, reset=number == 0) for number, call in enumerate(calls))]


def _read_session(record: Compiled | None, methods: dict[str, ProgramMethod]) -> list[tuple[str, Sequence[Any]]]:
    seen = Counter[str]()
    session: list[tuple[str, Sequence[Any]]] = []
    if record is None or not record.sessions:
        return session
    for name, sample in record.sessions[0]:
        seen[name] += 1
        if name in methods and seen[name] <= STATEFUL_RUNS:
            session.append((name, record[name].as_taken(sample)))
    return session


def _samples(record: Compiled | None, method_subject: Subject, name: str, inputs: Sequence[Any] | None) -> Sequence[Sequence[Any]]:
    if inputs is not None:
        return inputs
    if record is not None and (model := record[name].model) is not None:
        calibrated = model.calibration or [model.example_inputs]
        return [record[name].as_taken(sample) for sample in calibrated[:STATEFUL_RUNS]]
    return [arrays.random_inputs(method_subject.method, seed) for seed in range(STATEFUL_RUNS)]


def _check_session(inputs: Sequence[Any], methods: dict[str, ProgramMethod]) -> list[tuple[str, Sequence[Any]]]:
    for number, call in enumerate(inputs):
        if not (isinstance(call, (tuple, list)) and len(call) == 2 and isinstance(call[0], str) and call[0] in methods):
            raise EthorchError(
                f"sample {number}: expected (method, inputs) with one of the methods {', '.join(methods)}, got {shorten(call)}. "
                "Pass a session of (method, inputs) calls, or select one method."
            )
    return [(call[0], call[1]) for call in inputs]
