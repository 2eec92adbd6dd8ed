"""Emitter: what is made once, and what a refused attempt takes back."""

from __future__ import annotations

import pytest

from ethorch.support.errors import Unsupported
from ethorch.tosa.emitter import Emitter
from ethorch.tosa.ir import Value

pytestmark = pytest.mark.core


def reversed_once(b: Emitter, x: Value) -> Value:
    return b.once(("reversed", x), lambda: b.emit("REVERSE", x, axis=0))


def test_what_is_made_once_is_emitted_once() -> None:
    b = Emitter()
    x, y = b.input("x", (3,), "INT8"), b.input("y", (3,), "INT8")
    assert reversed_once(b, x) is reversed_once(b, x)
    assert reversed_once(b, y) is not reversed_once(b, x)
    assert [op.operands for op in b.graph.ops] == [(x,), (y,)]


def test_a_refused_attempt_leaves_nothing_behind() -> None:
    b = Emitter()
    x, y = b.input("x", (3,), "INT8"), b.input("y", (3,), "INT8")
    first = reversed_once(b, x)
    with pytest.raises(Unsupported), b.attempt():
        reversed_once(b, x)
        taken_back = reversed_once(b, y)
        raise b.refuse("test.refusal", "it does not go on", "Stop here.")
    assert reversed_once(b, x) is first
    assert reversed_once(b, y) is not taken_back
    assert [op.result for op in b.graph.ops] == [first, reversed_once(b, y)]


def test_an_attempt_that_succeeds_is_kept() -> None:
    b = Emitter()
    x = b.input("x", (3,), "INT8")
    with b.attempt():
        made = reversed_once(b, x)
    assert reversed_once(b, x) is made
    assert len(b.graph.ops) == 1
