"""What a TOSA flatbuffer declares, as Vela's results are compared with it."""

from __future__ import annotations

import pytest

from ethorch.lower.builder.builder import Builder
from ethorch.support.errors import VelaError
from ethorch.tosa.serialize import serialize
from ethorch.vela.declared import Declared


def sliced(dtype: str) -> bytes:
    b = Builder()
    x = b.input("x", (2, 3), dtype)
    b.input("unread", (), "INT8")
    b.graph.outputs += [b.emit("SLICE", x, start=(0, 1), size=(2, 2)), b.emit("REVERSE", x, axis=0)]
    return serialize(b.graph)


def test_inputs_and_outputs_in_order() -> None:
    declared = Declared.of(sliced("INT8"))
    assert declared.inputs == (("x", (2, 3)), ("unread", ()))
    assert declared.outputs == (("slice", (2, 2)), ("reverse", (2, 3)))


@pytest.mark.parametrize("dtype", ["INT8", "INT16", "INT32"])
def test_slices_of_int32(dtype: str) -> None:
    assert Declared.of(sliced(dtype)).cuts_int32 == (dtype == "INT32")


def test_slices_in_regions_count() -> None:
    b = Builder()
    x, condition = b.input("x", (2, 3), "INT32"), b.input("c", (1,), "BOOL")
    branches = [b.region(name) for name in ("then", "else")]
    for branch in branches:
        branch.graph.outputs.append(branch.emit("SLICE", branch.input("x", x.shape, x.dtype), start=(0, 1), size=(2, 2)))
    b.graph.outputs.append(b.emit("COND_IF", condition, x, then_graph=branches[0].graph, else_graph=branches[1].graph))
    assert Declared.of(serialize(b.graph)).cuts_int32


@pytest.mark.parametrize("size", [0, 4, 12, 100])
def test_a_file_that_ends_early_is_damaged(size: int) -> None:
    with pytest.raises(VelaError, match="damaged"):
        Declared.of(sliced("INT8")[:size])
