"""Errors for mistyped keyword arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from ethorch.support.wording import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])


def suggest_keywords(function: F) -> F:
    """Decorate a function or class to suggest similar names in the TypeError for an unknown keyword argument."""
    if isinstance(function, type):
        cls: Any = function
        cls.__init__ = suggest_keywords(cls.__init__)
        return function
    names = [parameter.name for parameter in inspect.signature(function).parameters.values()]

    @functools.wraps(function)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        for name in keywords.keys() - set(names):
            similar = did_you_mean(name, [known for known in names if known != "self"])
            raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}.{similar}")
        return function(*arguments, **keywords)

    return checked  # type: ignore[return-value]
