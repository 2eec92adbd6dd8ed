"""Programs of one method merged: bytes once, shared buffers in one place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ethorch.formats import pte
from ethorch.formats.pte_merge import SHARED_MEMORY, merge
from ethorch.formats.pte_types import Chain, Extra, Method, Program, Value
from ethorch.formats.pte_writer import write
from ethorch.support.errors import ProgramError

CONSTANT = Value("tensor", "int8", (4,), (0,), data=1)
INPUT = Value("tensor", "int8", (4,), (0,), place=(1, 0))


def kept(name: str, size: int, at: int, data: int = 0, dtype: str = "int8") -> Value:
    return Value("tensor", dtype, (size,), (0,), place=(SHARED_MEMORY, at), data=data, extra=Extra(name=name))


def program(*values: Value, constants: tuple[bytes, ...] = (b"",), mutable: tuple[bytes, ...] = (b"",), named=None) -> Program:
    method = Method("forward", (INPUT, *values), (0,), (0,), (), (), (Chain(()),), (0, 16, 64), ("a", "b"))
    return Program({"forward": method}, constants, (mutable,) if len(mutable) > 1 else (), named or {})


def test_contents_are_stored_once() -> None:
    one = program(CONSTANT, constants=(b"", b"same"))
    two = program(CONSTANT, replace(CONSTANT, data=2), constants=(b"", b"else", b"same"))
    found = merge({"a": one, "b": two}, {})
    assert found.constants == (b"", b"same", b"else")
    assert [v.data for v in found.methods["a"].values] == [0, 1]
    assert [v.data for v in found.methods["b"].values] == [0, 2, 1]
    assert found.methods["b"].name == "b"
    assert found.methods["a"].memories == (0, 16, 64)  # nothing of it lies in the memory that is shared
    assert pte.read(write(found)).methods.keys() == {"a", "b"}


def test_a_shared_buffer_has_one_place_and_one_begin() -> None:
    one = program(kept("m.x", 20, 0, data=1), mutable=(b"", bytes(20)))
    two = program(kept("y", 5, 0, data=1), kept("x", 20, 16, data=2), mutable=(b"", b"12345", bytes(20)))
    found = merge({"a": one, "b": two}, {"a": {"m.x": "x"}, "b": {"x": "x", "y": "y"}})
    (x,), (y, same) = found.methods["a"].values[1:], found.methods["b"].values[1:]
    assert x == same
    assert (x.place, y.place) == ((SHARED_MEMORY, 0), (SHARED_MEMORY, 32))
    assert found.mutable == ((b"", bytes(20), b"12345"),)
    assert [method.memories for method in found.methods.values()] == [(0, 16, 48)] * 2


def test_what_is_not_shared_keeps_apart() -> None:
    found = merge({name: program(kept("x", 4, 0)) for name in "ab"}, {})
    places = [method.values[1].place for method in found.methods.values()]
    assert places == [(SHARED_MEMORY, 0), (SHARED_MEMORY, 16)]
    assert [method.values[1].extra.name for method in found.methods.values()] == ["a.x", "b.x"]  # type: ignore[union-attr]


def test_figures_of_a_method_have_its_name() -> None:
    one = program()
    figure = Method("input0_scale", (Value("double", number=0.5),), (), (0,), (), (), (Chain(()),))
    one = replace(one, methods={**one.methods, "input0_scale": figure})
    assert merge({"a": one, "b": program()}, {}).methods.keys() == {"a", "a_input0_scale", "b"}


@pytest.mark.parametrize(
    ("one", "two", "words"),
    [
        (program(kept("x", 4, 0)), program(kept("x", 8, 0)), r"buffer x is int8\[4\] in method 'a' and int8\[8\] in 'b'"),
        (program(kept("x", 4, 0)), program(kept("x", 4, 0, dtype="uint8")), r"int8\[4\] in method 'a' and uint8\[4\]"),
        (
            program(kept("x", 4, 0, 1), mutable=(b"", b"1234")),
            program(kept("x", 4, 0, 1), mutable=(b"", b"4321")),
            "buffer x has different initial values in methods 'a' and 'b'",
        ),
        (program(named={"w": b"1"}), program(named={"w": b"2"}), "different data under the name 'w'"),
        (program(replace(INPUT, data=1), mutable=(b"", b"1234")), program(), "memory is overwritten by the next call"),
    ],
)
def test_what_cannot_be_one_program_is_named(one: Program, two: Program, words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        merge({"a": one, "b": two}, {name: {"x": "x"} for name in "ab"})


def test_a_part_of_a_buffer_goes_with_it() -> None:
    row = Value("tensor", "int8", (4,), (0,), place=(SHARED_MEMORY, 24))
    one = program(kept("x", 4, 0), kept("y", 12, 16), row)
    found = merge({"a": program(kept("z", 100, 0)), "b": one}, {})
    *_, y, part = found.methods["b"].values
    assert y.place == (SHARED_MEMORY, 112 + 16)
    assert part.place == (SHARED_MEMORY, 112 + 16 + 8)
    with pytest.raises(
        ProgramError, match=r"method 'b' stores int8\[4\] at byte 24 of memory 2, outside the buffers of the method"
    ):
        merge({"a": program(), "b": program(kept("x", 4, 0), row)}, {})
