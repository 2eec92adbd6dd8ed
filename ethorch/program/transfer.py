"""Programs in pickles and deep copies: what runs them is made anew, and the models are read on first use.

A process that only runs a program needs neither the user's modules nor what they import.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ethorch.formats import pte

if TYPE_CHECKING:
    from ethorch.program.program import Program  # 2 seconds of torch, for a type

#: What is read on first use: modules of the user and what was made of them.
DEFERRED = ("model", "quantized", "config", "metric", "sessions")
#: Results that took runs of the samples; others are cheap to compute again.
_MEASURED = ("accuracy", "metric_figure")


class Deferred:
    """The models of the methods of one program, in a pickle."""

    def __init__(self, content: bytes):
        self.content = content

    @cached_property
    def models(self) -> Mapping[str, Mapping[str, Any]]:
        """Method -> name of DEFERRED -> value."""
        from ethorch.lower.fx import pickles  # 2 seconds of torch, which a process that runs programs may not need

        found: Mapping[str, Mapping[str, Any]] = pickles.loads(self.content)
        return found

    def __reduce__(self) -> tuple[type, tuple[bytes]]:
        return type(self), (self.content,)


class Methods(dict[str, "Program"]):
    """The programs of one file by method, which share what is kept from call to call."""

    def __reduce__(self) -> tuple[Any, ...]:
        from ethorch.lower.fx import pickles  # 2 seconds of torch, which is there in a process that compiles

        states = {name: _state(program) for name, program in self.items()}
        deferred = next((found for program in self.values() if (found := program.__dict__.get("_deferred")) is not None), None)
        if deferred is None:
            models = {name: {key: getattr(program, key) for key in DEFERRED} for name, program in self.items()}
            deferred = Deferred(pickles.dumps(models))
        return _restored, (states, deferred)

    def __deepcopy__(self, memo: dict[int, Any]) -> Methods:
        states = {name: _state(program) for name, program in self.items()}
        models = {name: {key: getattr(program, key) for key in DEFERRED} for name, program in self.items()}
        result = _restored(states, None)
        memo[id(self)] = result
        for name, values in copy.deepcopy(models, memo).items():
            result[name].__dict__.update(values)
        return result


def _state(program: Program) -> dict[str, Any]:
    """All but the models and what belongs to this process; of computed figures those that were measured."""
    cached = {name for name in dir(type(program)) if isinstance(getattr(type(program), name), cached_property)}
    dropped = {*DEFERRED, "_others", "_deferred", "_parsed", *cached} - set(_MEASURED)
    return {name: value for name, value in program.__dict__.items() if name not in dropped}


def _restored(states: Mapping[str, Mapping[str, Any]], deferred: Deferred | None) -> Methods:
    from ethorch.program.program import Program  # 2 seconds of torch, for the type of what is restored

    result = Methods()
    for name, state in states.items():
        program = result[name] = Program.__new__(Program)
        program.__dict__.update(state)
        program.__dict__.update(_others=result, _parsed=pte.read(program.pte))
        if deferred is not None:
            program.__dict__["_deferred"] = deferred
    return result


def method_of(methods: Methods, name: str, selects: bool = False) -> Program:
    """Return one of the methods.

    Args:
        selects: The program calls the method that its inputs fit.
    """
    return methods[name].selecting() if selects else methods[name]
