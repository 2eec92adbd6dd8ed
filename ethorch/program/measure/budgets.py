"""Limits of the settings and the board, with the figures of a program."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ethorch.figures.memory_use import MEMORY
from ethorch.program.attempt import Attempt
from ethorch.program.facts import Budget
from ethorch.program.measure.accuracy import accuracy
from ethorch.program.record import Record


class Budgets(tuple[Budget, ...]):
    """The budgets of a program, one per row.

    Attributes:
        attempts: Programs that the search for budgets compiled; the first follows the settings.
    """

    attempts: tuple[Attempt, ...]

    def __new__(cls, rows: Iterable[Budget], attempts: tuple[Attempt, ...] = ()) -> Budgets:
        budgets = super().__new__(cls, tuple(rows))
        budgets.attempts = attempts
        return budgets

    @property
    def met(self) -> bool:
        """True if no budget is known to be exceeded."""
        return all(budget.holds is not False for budget in self)


def budgets(record: Record) -> Budgets:
    """Return a row per limit of the settings and per memory of the board. Measure the accuracy if the settings limit it."""
    if record.settings is None:
        return Budgets(())
    settings, rows = record.settings, []
    needs = {"ram": record.memory.ram_bytes, "flash": record.memory.flash_bytes}
    for name, limit in (("ram", settings.ram_limit), ("flash", settings.flash_limit)):
        if limit is not None:
            rows.append(Budget(name, limit, needs[name], needs[name] <= limit))
    for use in record.memory_uses:
        rows.append(Budget(MEMORY + use.memory, use.size_bytes, use.needs_bytes, use.needs_bytes <= use.size_bytes))
    if settings.latency_ms is not None:
        time = record.milliseconds
        rows.append(Budget("latency_ms", settings.latency_ms, time, None if time is None else time <= settings.latency_ms))
    if settings.min_sqnr_db is not None:
        measured = accuracy(record)
        figure = None if measured is None else measured.sqnr_db
        rows.append(Budget("min_sqnr_db", settings.min_sqnr_db, figure, None if figure is None else figure >= settings.min_sqnr_db))
    return Budgets(rows, record.tried)


def least_ram(shapes: Iterable[Sequence[int]]) -> int:
    """Return a lower bound of the RAM of a program with inputs of these shapes, in bytes: one byte per element."""
    return sum(math.prod(shape) for shape in shapes)


def is_ram_possible(record: Record) -> bool:
    """Return False if the RAM limit is lower than ``least_ram``, so that no other settings can meet it."""
    limit = None if record.settings is None else record.settings.ram_limit
    return limit is None or limit >= least_ram(info.shape for info in record.inputs)


def fits(record: Record) -> bool:
    """Return True if no budget is known to be exceeded."""
    return budgets(record).met
