"""The registry of cases. A case draws on the ``Graph`` it gets and marks its outputs."""

from __future__ import annotations

from collections.abc import Callable

from tests.helpers.npu_graphs import Graph

CASES: dict[str, Callable[[Graph], None]] = {}


def case(name: str, *args, **kwargs):
    """Register a function as a case; stacked, one function gives several cases with different arguments."""

    def register(build):
        assert name not in CASES, name
        CASES[name] = lambda g: build(g, *args, **kwargs)
        return build

    return register
