"""Call functions in worker processes that can import the user's classes.

A joblib worker inherits neither the import path of the user's file nor log levels.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from ethorch.support.orphans import end_worker_with, lifeline
from ethorch.support.quiet import quiet


@dataclass(frozen=True)
class Task:
    """A call that another process can execute.

    Attributes:
        content: Pickled function with its bound objects. It is loaded only by the creator's worker processes.
        folders: Folders from which the user's classes are imported.
        creator: Id of the process that assigns the call. Workers end when this process ends.
        pipe: The creator's ``lifeline``.
    """

    content: bytes
    folders: tuple[str, ...]
    creator: int
    pipe: int

    @staticmethod
    def of(function: Callable[..., Any], *users: object) -> Task:
        """Create a task that calls ``function``. ``users`` are bound objects whose classes are defined by the user."""
        names = {cls.__module__ for user in users for cls in type(user).__mro__}
        return Task(cloudpickle.dumps(function), tuple(sorted(_folders(names))), os.getpid(), lifeline(os.getpid()))

    def __call__(self, *arguments: Any) -> Any:
        end_worker_with(self.creator, self.pipe)
        with quiet():
            sys.path += [folder for folder in self.folders if folder not in sys.path]
            return cloudpickle.loads(self.content)(*arguments)


def _folders(names: Iterable[str]) -> set[str]:
    folders = set()
    for name in names:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None or name == "__main__":
            continue
        path = Path(file).resolve()
        parents = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        folders.add(str(path.parents[len(parents)]))
    return folders
