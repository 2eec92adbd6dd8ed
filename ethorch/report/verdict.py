"""Verdicts on memory, time and accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from ethorch.support.wording import count_noun, kib

Data = Mapping[str, Any]
YES, NO, UNKNOWN, OPEN = "yes", "no", "unknown", "open"


@dataclass(frozen=True)
class Verdict:
    """The answer to one question about a program.

    Attributes:
        question: The question in a few words.
        state: ``yes``, ``no``, ``unknown`` (a limit without a figure), or ``open`` (no limit).
        answer: A sentence with the figures.
    """

    question: str
    state: str
    answer: str


def verdicts(data: Data) -> tuple[Verdict, Verdict, Verdict]:
    """Return the verdicts on memory, time and accuracy by the limits of the settings."""
    budgets = {row["name"]: row for row in data["budgets"]}
    return _memory(data, budgets), _time(data, budgets), _accuracy(data, budgets)


def _memory(data: Data, budgets: Mapping[str, Data]) -> Verdict:
    parts, states = [], []
    for name, key in (("ram", "ram_bytes"), ("flash", "flash_bytes")):
        word = "RAM" if name == "ram" else "flash"
        needs = f"{kib(data[key])} of {word}"
        if name in budgets:
            limit, holds = budgets[name]["limit"], budgets[name]["holds"]
            states.append(holds)
            left = limit - data[key]
            needs += f", {kib(abs(left))} {'less' if left >= 0 else 'MORE'} than the limit of {kib(limit)}"
        parts.append(needs)
    for name, row in budgets.items():
        if name.startswith("memory "):
            states.append(row["holds"])
            parts.append(_in_memory(name.removeprefix("memory "), row["found"], row["limit"]))
    answer = f"It needs {' and '.join(parts)}." if len(parts) == 2 else f"It needs {'; '.join(parts)}."
    if not states:
        answer += _compare_boards(data) + _no_limit(states, "--ram, --flash and --board set limits")
    return Verdict("Does it fit?", _state(states), answer)


def _compare_boards(data: Data) -> str:
    boards = data.get("boards") or ()
    fitting = [board["name"] for board in boards if _fits(data, board)]
    if not boards:
        return ""
    if not fitting:
        return f" That is more than {_join([board['name'] for board in boards])} {'has' if len(boards) == 1 else 'have'}."
    smallest = min(boards, key=lambda board: board["ram_bytes"])
    share = data["ram_bytes"] / smallest["ram_bytes"]
    if len(fitting) < len(boards):
        return f" It fits {_join(fitting)}, but not {_join([board['name'] for board in boards if board['name'] not in fitting])}."
    return f" It fits {_join(fitting)}, and takes {100 * share:.1f} % of the RAM of {smallest['name']}."


def _fits(data: Data, board: Data) -> bool:
    fits_flash = board["flash_bytes"] is None or data["flash_bytes"] <= board["flash_bytes"]
    return bool(data["ram_bytes"] <= board["ram_bytes"] and fits_flash)


def _join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _time(data: Data, budgets: Mapping[str, Data]) -> Verdict:
    milliseconds = data["milliseconds"]
    sentence = "The time of one inference is unknown, because a .pte does not record it."
    if milliseconds is not None:
        rate = f"{data['inferences_per_second']:,.1f} a second"
        sentence = f"One inference takes {milliseconds:.3f} ms by the estimate, {rate}.{_describe_measurements(data)}"
    if "latency_ms" not in budgets:
        return Verdict("Is it fast enough?", OPEN, sentence + _no_limit([], "--latency sets one"))
    limit = budgets["latency_ms"]["limit"]
    return Verdict("Is it fast enough?", _state([budgets["latency_ms"]["holds"]]), f"{sentence} The limit is {limit:g} ms.")


def _accuracy(data: Data, budgets: Mapping[str, Data]) -> Verdict:
    accuracy = data["accuracy"]
    sentence = "The accuracy was not measured."
    if accuracy:
        count = accuracy["samples"]
        is_finite = accuracy["sqnr_db"] is not None and isfinite(accuracy["sqnr_db"])
        figure = (
            f"have {accuracy['sqnr_db']:.1f} dB SQNR against the float model" if is_finite else "are equal to the float model's"
        )
        sentence = f"The outputs {figure}, over {count_noun(count, 'sample')}."
    set_limits = [budgets[name] for name in ("min_sqnr_db",) if name in budgets]
    if not set_limits:
        return Verdict("Is it accurate?", OPEN, sentence + _no_limit([], "--min-sqnr-db sets one"))
    if "min_sqnr_db" in budgets:
        sentence += f" The least is {budgets['min_sqnr_db']['limit']:g} dB."
    return Verdict("Is it accurate?", _state([row["holds"] for row in set_limits]), sentence)


def _in_memory(memory: str, used: int, size: int) -> str:
    """Return ``in sram 1,474.0 KiB of 8,192.0 KiB``, or the excess in bytes."""
    if used <= size:
        return f"in {memory} {kib(used)} of {kib(size)}"
    return f"in {memory} {used - size:,} bytes MORE than its {kib(size)}"


def _describe_measurements(data: Data) -> str:
    board = data.get("board")
    if not board:
        return ""
    seen = board["spread"]
    text = f" Measured, {seen['of']} took {seen['low']:.1f} to {seen['high']:.1f} times the estimate." if seen else ""
    return text + (" Some figures of its memories are assumed: see `ethorch boards`." if board["assumed"] else "")


def _no_limit(states: list[bool | None], hint: str) -> str:
    return "" if states else f" No limit was given; {hint}."


def _state(holds: list[bool | None]) -> str:
    if not holds:
        return OPEN
    return NO if False in holds else UNKNOWN if None in holds else YES
