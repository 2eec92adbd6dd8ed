"""Display the stages of long-running work on a terminal's stderr."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from ethorch.support.tables import NARROW


class _ProgressText(ProgressColumn):
    def render(self, task: Task) -> Text:
        passed = _clock(task.elapsed)
        if task.total is None:
            return Text(passed)
        left = "" if task.time_remaining is None else f", {_clock(task.time_remaining)} left"
        return Text(f"{task.completed:.0f}/{task.total:.0f}  {passed}{left}")


def _clock(seconds: float | None) -> str:
    minutes, rest = divmod(int(seconds or 0), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


class ProgressBar:
    """A Listener that displays one line per running stage."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        name = TextColumn("{task.description}", table_column=Column(no_wrap=True))
        bar = [BarColumn()] if console.width >= NARROW else []
        self._bars = Progress(SpinnerColumn(), name, *bar, _ProgressText(Column(no_wrap=True)), console=console, transient=True)
        self._tasks: list[TaskID] = []

    def __enter__(self) -> ProgressBar:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begin(self, name: str, total: int | None) -> None:
        self._tasks.append(self._bars.add_task(name, total=total))

    def step(self, name: str) -> None:
        self._bars.advance(self._tasks[-1])

    def end(self, name: str) -> None:
        self._bars.remove_task(self._tasks.pop())
