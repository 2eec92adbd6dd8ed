"""What another process is given to do: a function with the user's objects in it, and where their classes are imported from.

A process that joblib starts knows neither the folder of the user's file nor that other libraries are to be kept quiet.
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
    """A call that another process can make.

    Attributes:
        content: the function and what is bound to it, pickled; it never leaves the processes of this program.
        folders: where the modules of the user's classes are found.
        creator: the process that hands it out; a worker that this process started ends with it.
        pipe: the creator's ``lifeline``.
    """

    content: bytes
    folders: tuple[str, ...]
    creator: int
    pipe: int

    @staticmethod
    def of(function: Callable[..., Any], *users: object) -> Task:
        """The call of a function to which objects of the user's classes ``users`` are bound."""
        names = {cls.__module__ for user in users for cls in type(user).__mro__}
        return Task(cloudpickle.dumps(function), tuple(sorted(_folders(names))), os.getpid(), lifeline(os.getpid()))

    def __call__(self, *arguments: Any) -> Any:
        """What the function returns."""
        end_worker_with(self.creator, self.pipe)
        with quiet():
            sys.path += [folder for folder in self.folders if folder not in sys.path]
            return cloudpickle.loads(self.content)(*arguments)


def _folders(names: Iterable[str]) -> set[str]:
    """The folders from which modules of these dotted names are imported."""
    found = set()
    for name in names:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None or name == "__main__":
            continue
        path = Path(file).resolve()
        inside = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        found.add(str(path.parents[len(inside)]))
    return found
