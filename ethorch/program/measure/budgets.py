"""Compare the figures of a program with the budgets in the settings and with the board's memories."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ethorch.figures.memory_use import MEMORY
from ethorch.program.attempt import Attempt
from ethorch.program.facts import Budget
from ethorch.program.measure.accuracy import accuracy
from ethorch.program.record import Record


class Budgets(tuple[Budget, ...]):
    """The budgets of a program.

    Attributes:
        attempts: Programs that the budget search compiled. The first was compiled with the original settings.
    """

    attempts: tuple[Attempt, ...]

    def __new__(cls, rows: Iterable[Budget], attempts: tuple[Attempt, ...] = ()) -> Budgets:
        budgets = super().__new__(cls, tuple(rows))
        budgets.attempts = attempts
        return budgets

    @property
    def met(self) -> bool:
        """True unless a budget is known to be exceeded."""
        return all(budget.holds is not False for budget in self)


def budgets(record: Record) -> Budgets:
    """Return a row for each budget in the settings and for each board memory that the NPU uses.

    Accuracy is measured if the settings contain ``min_sqnr_db``.
    """
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
    """Return a lower bound on the RAM of a program with these input shapes: one byte for each element."""
    return sum(math.prod(shape) for shape in shapes)


def is_ram_possible(record: Record) -> bool:
    """Return True if the settings contain no RAM budget, or if the budget is at least ``least_ram`` of the inputs."""
    limit = None if record.settings is None else record.settings.ram_limit
    return limit is None or limit >= least_ram(info.shape for info in record.inputs)


def fits(record: Record) -> bool:
    """Return True unless a budget is known to be exceeded."""
    return budgets(record).met
