"""Pickle and copy the records of programs.

Models are unpickled on first use, so that a process that only runs a program does not require the user's modules.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ethorch.formats import pte
from ethorch.targets.settings import CUSTOM

#: Attributes that are unpickled on first use, because unpickling them requires the user's modules.
DEFERRED = ("model", "quantized", "config", "sessions")


class Deferred:
    """The pickled models of all methods in a file."""

    def __init__(self, content: bytes):
        self.content = content

    @cached_property
    def models(self) -> Mapping[str, Mapping[str, Any]]:
        """The deferred attributes of each method, by method name and attribute name."""
        from ethorch.lower.fx import pickles  # importing torch takes 2 seconds

        models: Mapping[str, Mapping[str, Any]] = pickles.loads(self.content)
        return models

    def __reduce__(self) -> tuple[type, tuple[bytes]]:
        return type(self), (self.content,)


class Methods(dict[str, Any]):
    """The records of all methods in a file, by method name."""

    def __reduce__(self) -> tuple[Any, ...]:
        from ethorch.lower.fx import pickles  # importing torch takes 2 seconds

        states = {name: _state(record) for name, record in self.items()}
        deferred = next((value for record in self.values() if (value := record.__dict__.get("_deferred")) is not None), None)
        if deferred is None:
            models = {name: {key: getattr(record, key) for key in DEFERRED} for name, record in self.items()}
            deferred = Deferred(pickles.dumps(models))
        return _restore, (type(next(iter(self.values()))), states, deferred)

    def __deepcopy__(self, memo: dict[int, Any]) -> Methods:
        states = {name: _state(record) for name, record in self.items()}
        models = {name: {key: getattr(record, key) for key in DEFERRED} for name, record in self.items()}
        result = _restore(type(next(iter(self.values()))), states, None)
        memo[id(self)] = result
        for name, values in copy.deepcopy(models, memo).items():
            result[name].__dict__.update(values)
        return result


def _state(record: Any) -> dict[str, Any]:
    cached = {name for name in dir(type(record)) if isinstance(getattr(type(record), name), cached_property)}
    dropped = {*DEFERRED, "methods_by_name", "_deferred", "_parsed", *cached}
    state = {name: value for name, value in record.__dict__.items() if name not in dropped}
    if record.settings is not None and record.settings.config is not None:  # the QuantizationConfig is deferred
        state["settings"] = record.settings.with_(scheme=CUSTOM)
    return state


def _restore(kind: type[Any], states: Mapping[str, Mapping[str, Any]], deferred: Deferred | None) -> Methods:
    result = Methods()
    for name, state in states.items():
        record = result[name] = object.__new__(kind)
        record.__dict__.update(state)
        record.__dict__.update(methods_by_name=result, _parsed=pte.read(record.pte))
        if deferred is not None:
            record.__dict__["_deferred"] = deferred
    return result


def method_of(methods: Methods, name: str, selects: bool = False) -> Any:
    """Return the record of a method.

    Args:
        selects: Whether the record selects the method by the shapes of the inputs.
    """
    return methods[name].selecting() if selects else methods[name]
