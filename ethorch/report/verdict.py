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
        state: ``yes``, ``no``, ``unknown`` (the figure was not measured), or ``open`` (no budget is set).
        answer: Sentences with the figures and the budget.
    """

    question: str
    state: str
    answer: str


def verdicts(data: Data) -> tuple[Verdict, Verdict, Verdict]:
    """Compare the figures in ``data`` with the budgets, and return the verdicts on memory, time and accuracy."""
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
            needs += f" ({kib(abs(left))} {'less' if left >= 0 else 'MORE'} than the limit of {kib(limit)})"
        parts.append(needs)
    for name, row in budgets.items():
        if name.startswith("memory "):
            states.append(row["holds"])
            parts.append(_in_memory(name.removeprefix("memory "), row["found"], row["limit"]))
    answer = f"The program requires {' and '.join(parts)}." if len(parts) == 2 else f"The program requires {'; '.join(parts)}."
    if not states:
        answer += _compare_boards(data) + _no_limit(states, "--ram, --flash or --board")
    return Verdict("Does it fit?", _state(states), answer)


def _compare_boards(data: Data) -> str:
    boards = data.get("boards") or ()
    fitting = [board["name"] for board in boards if _fits(data, board)]
    if not boards:
        return ""
    if not fitting:
        return f" The program does not fit on {_join([board['name'] for board in boards])}."
    smallest = min(boards, key=lambda board: board["ram_bytes"])
    share = data["ram_bytes"] / smallest["ram_bytes"]
    if len(fitting) < len(boards):
        others = _join([board["name"] for board in boards if board["name"] not in fitting])
        return f" The program fits on {_join(fitting)}, but not on {others}."
    return f" The program fits on {_join(fitting)}, and uses {share:.1%} of the RAM of {smallest['name']}."


def _fits(data: Data, board: Data) -> bool:
    fits_flash = board["flash_bytes"] is None or data["flash_bytes"] <= board["flash_bytes"]
    return bool(data["ram_bytes"] <= board["ram_bytes"] and fits_flash)


def _join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _time(data: Data, budgets: Mapping[str, Data]) -> Verdict:
    milliseconds = data["milliseconds"]
    sentence = "The time of one inference is unknown, because a .pte does not record it."
    if milliseconds is not None:
        rate = data["inferences_per_second"]
        rate_text = "" if rate is None else f" ({rate:,.1f} inferences per second)"
        sentence = f"One inference takes an estimated {milliseconds:.3f} ms{rate_text}.{_describe_measurements(data)}"
    if "latency_ms" not in budgets:
        return Verdict("Is it fast enough?", OPEN, sentence + _no_limit([], "--latency"))
    limit = budgets["latency_ms"]["limit"]
    return Verdict("Is it fast enough?", _state([budgets["latency_ms"]["holds"]]), f"{sentence} The limit is {limit:g} ms.")


def _accuracy(data: Data, budgets: Mapping[str, Data]) -> Verdict:
    accuracy = data["accuracy"]
    sentence = "The accuracy was not measured."
    if accuracy:
        count = accuracy["samples"]
        is_finite = accuracy["sqnr_db"] is not None and isfinite(accuracy["sqnr_db"])
        figure = (
            f"have an SQNR of {accuracy['sqnr_db']:.1f} dB relative to the float model"
            if is_finite
            else "are equal to the outputs of the float model"
        )
        sentence = f"The outputs {figure} ({count_noun(count, 'sample')})."
    set_limits = [budgets[name] for name in ("min_sqnr_db",) if name in budgets]
    if not set_limits:
        return Verdict("Is it accurate?", OPEN, sentence + _no_limit([], "--min-sqnr-db"))
    if "min_sqnr_db" in budgets:
        sentence += f" The limit is {budgets['min_sqnr_db']['limit']:g} dB."
    return Verdict("Is it accurate?", _state([row["holds"] for row in set_limits]), sentence)


def _in_memory(memory: str, used: int, size: int) -> str:
    if used <= size:
        return f"{kib(used)} of the {kib(size)} in {memory}"
    return f"{used - size:,} bytes MORE than the {kib(size)} in {memory}"


def _describe_measurements(data: Data) -> str:
    board = data.get("board")
    if not board:
        return ""
    seen = board["spread"]
    text = f" Measured times on {seen['of']} are {seen['low']:.1f} to {seen['high']:.1f} times the estimates." if seen else ""
    return text + (" Some clocks, bandwidths or latencies are assumed. See `ethorch boards`." if board["assumed"] else "")


def _no_limit(states: list[bool | None], hint: str) -> str:
    return "" if states else f" No limit is set. Use {hint}."


def _state(holds: list[bool | None]) -> str:
    if not holds:
        return OPEN
    return NO if False in holds else UNKNOWN if None in holds else YES
