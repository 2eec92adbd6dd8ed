"""The Rewriter knows producers, readers, uses and order while it edits, and names what it adds."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.insert_copies import copy_value
from ethorch.lower.rewrite.rewriter import Names, Rewriter
from ethorch.tosa.ir import Graph, Op, Value
from ethorch.tosa.text import from_text, to_text
from ethorch.tosa.verify import verify


def line(*names: str) -> Graph:
    """Operators that read each other; the last is the output."""
    attrs = {"CLAMP": {"min_val": -9, "max_val": 9}, "REVERSE": {"axis": 0}, "ABS": {}}
    b = Builder()
    value = b.input("x", (2, 3), "INT8")
    for name in names:
        value = b.emit(name, value, **attrs[name])
    b.graph.outputs.append(value)
    return b.graph


def names(r: Rewriter) -> list[str]:
    return [op.name for op in r]


def test_producers_readers_and_uses() -> None:
    graph = line("CLAMP", "REVERSE")
    clamp, reverse = graph.ops
    r = Rewriter(graph)
    assert r.producer(graph.inputs[0]) is None
    assert r.producer(clamp.result) is clamp
    assert r.producer(clamp.result, "REVERSE", "TABLE") is None
    assert r.readers(clamp.result) == (reverse,)
    assert r.uses(reverse.result) == 1, "the output"
    graph = line("CLAMP")
    graph.outputs.append(graph.ops[0].result)
    r = Rewriter(graph)
    assert r.uses(graph.ops[0].result) == 2
    assert r.producer(graph.ops[0].result, "CLAMP", sole=True) is None


def test_a_replacement_takes_over_name_and_readers() -> None:
    graph = line("CLAMP", "REVERSE", "CLAMP")
    output, reverse = graph.outputs[0], graph.ops[1]
    r = Rewriter(graph)
    made = reverse.result
    r.replace(reverse, r.before(reverse).again(reverse, axis=1))
    assert [op.name for op in graph.ops] == names(r) == ["CLAMP", "REVERSE", "CLAMP"]
    replaced = r.producer(made, "REVERSE")
    assert replaced is not None
    assert (replaced.attrs["axis"], replaced.result) == (1, made)
    last = r.finish().ops[-1]
    r.replace(last, r.before(last).again(last, min_val=0))
    assert r.finish().outputs == [output]
    verify(graph)
    with pytest.raises(AssertionError, match="expected an unused value"):
        r.replace(graph.ops[-1], graph.ops[0].result)


def test_a_bypass_leaves_an_output_its_operator() -> None:
    graph = line("CLAMP", "REVERSE", "CLAMP")
    r = Rewriter(graph)
    r.bypass(graph.ops[1], graph.ops[0].result)
    verify(r.finish())
    assert names(r) == ["CLAMP", "CLAMP"]
    with pytest.raises(AssertionError, match="is not an output"):
        r.bypass(graph.ops[-1], graph.ops[0].result)


def test_what_is_inserted_stands_between() -> None:
    graph = line("CLAMP", "REVERSE")
    clamp, reverse = graph.ops
    r = Rewriter(graph)
    r.insert_after(clamp, lambda at, value: at.emit("ABS", value))
    r.insert_before(reverse, 0, copy_value)
    verify(r.finish())
    assert names(r) == ["CLAMP", "ABS", "RESHAPE", "MAX_POOL2D", "RESHAPE", "REVERSE"]
    r.insert_after(reverse, lambda at, value: at.emit("ABS", value))
    verify(r.finish())
    assert graph.ops[-1].name == "ABS"
    assert graph.outputs == [graph.ops[-1].result], "the output keeps its name"


def test_iteration_is_over_what_was_there() -> None:
    graph = line("CLAMP", "REVERSE", "REVERSE")
    r = Rewriter(graph)
    seen = []
    for op in r:
        seen.append(op.name)
        if len(seen) == 1:
            r.insert_after(op, lambda at, value: at.emit("ABS", value))
            r.bypass(graph.ops[1], op.result)
    assert seen == ["CLAMP", "REVERSE"]
    assert names(r) == ["CLAMP", "ABS", "REVERSE"]


def test_names_are_new_in_all_regions() -> None:
    graph = line("CLAMP")
    inner = line("CLAMP", "CLAMP")
    inner.name = "inner"
    shared = Names(graph)
    first, second = Rewriter(graph, shared), Rewriter(inner, shared, is_region=True)
    made = [r.before(r.graph.ops[0]).emit("ABS", r.graph.inputs[0]) for r in (first, second, second)]
    assert [value.name for value in made] == ["clamp_abs", "clamp_abs_1", "clamp_abs_2"]
    assert first.before(graph.ops[0]).constant(np.zeros(2, np.int8), "INT8").name == "clamp_const"


def test_shapes_come_from_the_opset() -> None:
    graph = line("CLAMP")
    at = Rewriter(graph).before(graph.ops[0])
    assert at.emit("TRANSPOSE", graph.inputs[0], perms=(1, 0)).shape == (3, 2)
    with pytest.raises(AssertionError, match=r"TRANSPOSE: expected attributes \['perms'\]"):
        at.emit("TRANSPOSE", graph.inputs[0], axis=0)
    with pytest.raises(AssertionError, match="RESHAPE of"):
        at.reshape(graph.inputs[0], 4)


def test_what_is_dead_stays_until_it_is_dropped() -> None:
    graph = line("CLAMP", "REVERSE", "ABS")
    r = Rewriter(graph)
    r.read(graph.ops[2], 0, graph.inputs[0])
    assert len(names(r)) == 3
    r.drop_dead()
    assert names(r) == ["ABS"]


def consistent(r: Rewriter) -> None:
    """What ``r`` knows is what a new one finds."""
    verify(r.finish())
    new = Rewriter(r.graph)
    values = [value for op in r for value in (*op.operands, *op.results)]
    for value in values:
        assert r.producer(value) is new.producer(value)
        assert Counter(r.readers(value)) == Counter(new.readers(value))
        assert r.uses(value) == new.uses(value)
    text = to_text(r.graph, constants=True, origins=False)
    assert to_text(from_text(text), constants=True) == text, "two values have one name"


def test_what_is_known_is_found_anew_after_a_change() -> None:
    r, calls = Rewriter(line("CLAMP", "REVERSE", "ABS")), list[int]()

    def count(r: Rewriter) -> int:
        calls.append(len(list(r)))
        return calls[-1]

    assert r.analyze(count) == r.analyze(count) == 3 and len(calls) == 1
    r.insert_before(next(r.select("ABS")), 0, copy_value)
    assert r.analyze(count) == len(list(r)) > 3 and len(calls) == 2


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_any_sequence_of_edits(seed: int) -> None:
    draw = random.Random(seed)
    graph = line("CLAMP", "REVERSE", "CLAMP", "ABS", "REVERSE")
    graph.outputs.append(graph.ops[2].result)
    r = Rewriter(graph)

    def reversed_twice(at, value: Value) -> Value:
        return at.emit("REVERSE", at.emit("REVERSE", value, axis=1), axis=1)

    for _ in range(12):
        op: Op = draw.choice(list(r))
        edit = draw.randrange(6)
        if edit == 0:
            r.replace(op, r.before(op).again(op))
        elif edit == 1 and not r.is_output(op.result) and op.result.shape == op.operands[0].shape:
            r.bypass(op, op.operands[0])
        elif edit == 2:
            r.insert_before(op, 0, draw.choice([copy_value, reversed_twice]))
        elif edit == 3:
            r.insert_after(op, draw.choice([copy_value, reversed_twice]))
        elif edit == 4:
            r.read(op, 0, r.before(op).emit("ABS", op.operands[0]))
        else:
            r.drop_dead()
        consistent(r)
