"""Sweeps over many networks, each in a process that may crash or take too long without ending the sweep."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar
from unittest import mock

from ethorch.lower.rewrite import vela_bugs
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.lower.rewrite.vela_bugs import BY_ID
from ethorch.support.errors import QuantizationError
from ethorch.targets.npus import TARGETS
from ethorch.tosa.ir import Op
from tests.helpers.bounded import Bounded
from tests.helpers.random_networks import network
from tests.helpers.random_networks.network import Network
from tests.helpers.random_networks.runs import PASS_COUNTS, Case, Delegate, Subject, cases, outcome
from tests.helpers.random_networks.shrink import runs_in_bounds, shrunk

T = TypeVar("T")
SECONDS, GIGABYTES = 300, 8
#: One of this many networks is also run as a ``.pte`` in ExecuTorch's runtime.
WHOLE_PROGRAM_EVERY = 40
_ENDED = (RuntimeError, MemoryError, TimeoutError)  # what a call of ``Bounded`` raises


@dataclass(frozen=True)
class Found:
    """A failure: seed, configuration, kind, text, and the shrunk network.

    The network is None if memory or time is exhausted while it is drawn.
    """

    seed: int
    case: Case
    kind: str
    text: str
    smallest: Network | None

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.case}: {self.kind}\n{self.text}\n{self.smallest or ''}"


@dataclass
class Result:
    """Counts of outcomes, CPU seconds, and failures."""

    first: int
    networks: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    failures: list[Found] = field(default_factory=list)

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(self.outcomes.items()))
        return f"{self.networks} networks from seed {self.first}: {counts}; {self.seconds:.0f} CPU s"


def sweep(first: int, count: int, configurations: int, say: Callable[[str], None], shrink: bool = True) -> Result:
    """Compile and compare ``count`` networks, ``configurations`` times each.

    Args:
        say: Called with each failure, and with the counts after every 100 networks.
        shrink: Shrink the failures.
    """
    process = Bounded(SECONDS, GIGABYTES)
    result = Result(first)
    for seed in range(first, first + count):
        try:
            outcomes, seconds = process.call(_outcomes, seed, configurations)
        except _ENDED as error:
            outcomes, seconds = _one_by_one(process, seed, configurations), 0.0
            if not any(kind.startswith("failure") for _, kind, _ in outcomes):
                outcomes.append((cases(seed, configurations)[0], f"failure {type(error).__name__}", f"of all together: {error}"))
        result.networks += 1
        result.seconds += seconds
        kinds = set()
        for case, kind, text in outcomes:
            result.outcomes[kind] += 1
            if kind == "repaired":
                say(f"seed {seed}, {case}: repaired")
            if kind.startswith("failure") and (kind, case.family) not in kinds:
                kinds.add((kind, case.family))
                takes_long = "TimeoutError" in kind or "MemoryError" in kind
                smallest = _smallest(process, seed, case, kind if shrink and not takes_long else None)
                found = Found(seed, case, kind, text, smallest)
                result.failures.append(found)
                say(str(found))
        if result.networks % 100 == 0:
            say(str(result))
    process.close()
    return result


def first_failures(ids: Sequence[str], first: int, most: int, configurations: int, say: Callable[[str], None]) -> dict[str, int]:
    """Return the number of networks after which each of these rows of ``VELA_BUGS`` is missed, up to ``most``.

    A network counts if the row applies to one of its delegates and Vela's commands are wrong without it.
    """
    process, left, found = Bounded(SECONDS, GIGABYTES), list(ids), dict[str, int]()
    for seed in range(first, first + most):
        for id in process.call(missed, seed, configurations, left):
            left.remove(id)
            found[id] = seed - first + 1
            say(f"{id}: network {found[id]}, seed {seed}")
        if not left:
            break
    process.close()
    return found


def missed(seed: int, configurations: int, ids: Sequence[str]) -> list[str]:
    """Return the rows that network ``seed`` needs."""
    subject, found = Subject(network(seed)), []
    for case in cases(seed, configurations):
        try:
            delegates = subject.delegates(case) or []
        except QuantizationError:
            break
        for id in ids:
            if id not in found and BY_ID[id].concerns(case.family) and any(_applies(id, one, case) for one in delegates):
                with without_row(id):
                    if outcome(subject, case)[0].startswith(("failure", "repaired")):
                        found.append(id)
    return found


def _applies(id: str, delegate: Delegate, case: Case) -> bool:
    """Return True if the row changes the delegate."""
    applied: list[Op] = []
    with without_row(id, applied.append):
        rewrite(delegate.graph.copy(), TARGETS[case.target].tuning)
    return bool(applied)


@contextmanager
def without_row(id: str, instead: Callable[[Op], None] = lambda op: None) -> Iterator[None]:
    """Replace the workaround of a row of ``VELA_BUGS`` by ``instead``, which receives the operators that the row finds."""
    rows = tuple(replace(bug, instead=lambda r, op: instead(op)) if bug.id == id else bug for bug in vela_bugs.VELA_BUGS)
    with mock.patch.object(vela_bugs, "VELA_BUGS", rows):
        yield


def _smallest(process: Bounded, seed: int, case: Case, kind: str | None) -> Network | None:
    """Return the network of a seed, shrunk if ``kind`` is a failure; None if it cannot be drawn again.

    This process does not draw or run networks, because a crash would end the sweep.
    """

    def fails(candidate: Network) -> bool:
        return _outcome_of(process, case, _fresh_outcome, candidate)[0] == kind

    def runs(candidate: Network) -> bool:
        try:
            return bool(process.call(runs_in_bounds, candidate))
        except _ENDED:
            return False

    try:
        drawn: Network = process.call(_drawn, seed)
    except _ENDED:
        return None
    return drawn if kind is None else shrunk(drawn, fails, runs=runs)


def _drawn(seed: int) -> Network:
    return network(seed)


def _outcomes(seed: int, configurations: int) -> tuple[list[tuple[Case, str, str]], float]:
    started = time.process_time()
    subject = Subject(network(seed))
    chosen = cases(seed, configurations)
    whole = seed % WHOLE_PROGRAM_EVERY == 0
    PASS_COUNTS.clear()
    found = [(case, *outcome(subject, case, whole_program=whole and case == chosen[0])) for case in chosen]
    found += [(chosen[0], f"changed by {name}", "") for name in PASS_COUNTS.elements()]
    return found, time.process_time() - started


def _one_by_one(process: Bounded, seed: int, configurations: int) -> list[tuple[Case, str, str]]:
    return [(case, *_outcome_of(process, case, _outcome_of_seed, seed)) for case in cases(seed, configurations)]


def _outcome_of(process: Bounded, case: Case, function: Callable[[T, Case], tuple[str, str]], subject: T) -> tuple[str, str]:
    try:
        found: tuple[str, str] = process.call(function, subject, case)
        return found
    except _ENDED as error:
        return f"failure {type(error).__name__}", str(error)


def _fresh_outcome(candidate: Network, case: Case) -> tuple[str, str]:
    return outcome(Subject(candidate), case)


def _outcome_of_seed(seed: int, case: Case) -> tuple[str, str]:
    return outcome(Subject(network(seed)), case)
