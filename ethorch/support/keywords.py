"""Errors for mistyped keyword arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from ethorch.support.wording import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])


def suggest_keywords(function: F) -> F:
    """Decorate a function or class so that a TypeError for an unknown keyword argument suggests a similar name.

    Python 3.13 and later do this by default.
    """
    if isinstance(function, type):
        cls: Any = function
        cls.__init__ = suggest_keywords(cls.__init__)
        return function
    names = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def check_and_call(*arguments: Any, **keywords: Any) -> Any:
        for name in keywords:
            if name not in names:
                similar = did_you_mean(name, names)
                raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}.{similar}")
        return function(*arguments, **keywords)

    return check_and_call  # type: ignore[return-value]
