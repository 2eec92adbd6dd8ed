"""Cyclic garbage is collected later, and afterwards as before."""

from __future__ import annotations

import gc

import pytest

from ethorch.support import garbage
from ethorch.support.garbage import delay_collection, reduce_collection


def test_collections_wait_and_go_on() -> None:
    with delay_collection():
        assert not gc.isenabled()
        with delay_collection():
            pass
        assert not gc.isenabled()  # the inner one leaves it to the outer one
    assert gc.isenabled()


def test_who_had_turned_them_off_keeps_them_off() -> None:
    gc.disable()
    try:
        with delay_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_thresholds_come_back_after_an_error() -> None:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    try:
        with pytest.raises(RuntimeError), reduce_collection():
            assert gc.get_threshold()[0] > 700
            raise RuntimeError
        assert gc.get_threshold() == (700, 10, 10)
    finally:
        gc.set_threshold(*before)


def test_what_was_made_meanwhile_is_in_the_oldest_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next collections of the young generations would look through all of it."""
    monkeypatch.setattr(garbage, "_has_frozen_objects", False)
    gc.unfreeze()  # tests/conftest.py froze what it imported
    try:
        with delay_collection():
            made: list[list[int]] = [[] for _ in range(1000)]
        young = {id(value) for generation in (0, 1) for value in gc.get_objects(generation)}
        assert not young & {id(value) for value in made}
    finally:
        gc.freeze()


def test_what_the_user_froze_stays_frozen() -> None:
    frozen: list[object] = []  # other threads may free frozen objects, so their count may fall
    gc.freeze()
    with delay_collection():
        pass
    assert gc.get_freeze_count() > 0
    assert not any(tracked is frozen for tracked in gc.get_objects())


def test_frozen_objects_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting visits each of them."""
    monkeypatch.setattr(garbage, "_has_frozen_objects", False)
    counts: list[int] = []

    def count() -> int:
        counts.append(1)
        return 1

    monkeypatch.setattr(gc, "get_freeze_count", count)
    for _ in range(3):
        with delay_collection():
            pass
    assert len(counts) == 1
