"""Sweeps over many networks, each in a process that may die or take too long without ending the sweep."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.bounded import Bounded
from tests.support.random_networks import network
from tests.support.random_networks.network import Network
from tests.support.random_networks.runs import Case, Subject, cases, outcome
from tests.support.random_networks.shrink import shrunk

SECONDS, GIGABYTES = 120, 12
#: One network in this many is run as a ``.pte`` in ExecuTorch's runtime, too.
WHOLE_PROGRAM_EVERY = 40


@dataclass(frozen=True)
class Found:
    """A failure: the seed and configuration, its kind and text, and the network that is left after shrinking."""

    seed: int
    case: Case
    kind: str
    text: str
    smallest: Network

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.case}: {self.kind}\n{self.text}\n{self.smallest}"


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
        except (RuntimeError, MemoryError, TimeoutError) as error:
            outcomes, seconds = _one_by_one(process, seed, configurations), 0.0
            if not any(kind.startswith("failure") for _, kind, _ in outcomes):
                outcomes.append((cases(seed, configurations)[0], f"failure {type(error).__name__}", f"of all together: {error}"))
        result.networks += 1
        result.seconds += seconds
        kinds = set()
        for case, kind, text in outcomes:
            result.outcomes[kind] += 1
            if kind.startswith("failure") and (kind, case.family) not in kinds:
                kinds.add((kind, case.family))
                smallest = _smallest(process, seed, case, kind) if shrink else network(seed)
                found = Found(seed, case, kind, text, smallest)
                result.failures.append(found)
                say(str(found))
        if result.networks % 100 == 0:
            say(str(result))
    process.close()
    return result


def _smallest(process: Bounded, seed: int, case: Case, kind: str) -> Network:
    return shrunk(network(seed), lambda candidate: _outcome_of(process, candidate, case)[0] == kind)


def _outcomes(seed: int, configurations: int) -> tuple[list[tuple[Case, str, str]], float]:
    started = time.process_time()
    subject = Subject(network(seed))
    chosen = cases(seed, configurations)
    whole = seed % WHOLE_PROGRAM_EVERY == 0
    found = [(case, *outcome(subject, case, whole_program=whole and case == chosen[0])) for case in chosen]
    return found, time.process_time() - started


def _one_by_one(process: Bounded, seed: int, configurations: int) -> list[tuple[Case, str, str]]:
    return [(case, *_outcome_of(process, network(seed), case)) for case in cases(seed, configurations)]


def _outcome_of(process: Bounded, candidate: Network, case: Case) -> tuple[str, str]:
    try:
        found: tuple[str, str] = process.call(_fresh_outcome, candidate, case)
        return found
    except (RuntimeError, MemoryError, TimeoutError) as error:
        return f"failure {type(error).__name__}", str(error)


def _fresh_outcome(candidate: Network, case: Case) -> tuple[str, str]:
    return outcome(Subject(candidate), case)
