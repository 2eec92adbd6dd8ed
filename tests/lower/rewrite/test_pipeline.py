"""Every rewrite rule fires where it should, and never changes a bit."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ethorch.targets.tuning
from ethorch import EthosUCompileSpec, vela
from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite import pipeline
from ethorch.lower.rewrite.pipeline import PIPELINE, Repeat, Step, always, dump_to, rewrite
from ethorch.lower.rewrite.rewriter import Rewriter
from ethorch.targets.npus import TUNING
from ethorch.targets.tuning import UNTUNED, Tuning
from ethorch.tosa.ir import Graph
from ethorch.tosa.serialize import serialize
from ethorch.tosa.text import to_text
from ethorch.tosa.verify import verify
from tests.helpers.ladder import machine, reference, run_compiled

SHAPE = (1, 6, 5, 4)


def table(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-128, 128, 256).astype(np.int8)


def convolution(b: Builder, x, zp: int):
    weight = b.const(np.random.default_rng(2).integers(-127, 128, (3, 3, 3, x.shape[3])).astype(np.int8))
    acc = b.emit(
        "CONV2D",
        x,
        weight,
        b.const(np.zeros(3, np.int32)),
        pad=(1, 0, 0, 1),
        stride=(1, 1),
        dilation=(1, 1),
        input_zp=zp,
        weight_zp=0,
    )
    return b.rescale(acc, 0.003, output_zp=2)


def reshapes(b, x):
    return b.emit("RESHAPE", b.emit("RESHAPE", b.emit("RESHAPE", x, shape=(30, 4)), shape=(120,)), shape=SHAPE[::-1])


def transposes(b, x):
    return b.emit("TRANSPOSE", b.emit("TRANSPOSE", x, perms=(0, 3, 1, 2)), perms=(0, 1, 3, 2))


def cancelling_transposes(b, x):
    y = b.emit("TRANSPOSE", b.emit("TRANSPOSE", x, perms=(0, 3, 1, 2)), perms=(0, 2, 3, 1))
    return b.emit("CLAMP", y, min_val=-9, max_val=44)


def slices(b, x):
    rows = b.emit("SLICE", x, start=(0, 1, 0, 0), size=(1, 4, 5, 4))
    columns = b.emit("SLICE", rows, start=(0, 0, 3, 1), size=(1, 4, 2, 2))
    return b.emit("SLICE", columns, start=(0, 1, 0, 0), size=(1, 2, 2, 2))


def clamps(b, x):
    return b.emit("CLAMP", b.emit("CLAMP", x, min_val=-100, max_val=30), min_val=-20, max_val=90)


def disjoint_clamps(b, x):
    return b.emit("CLAMP", b.emit("CLAMP", x, min_val=-100, max_val=-30), min_val=20, max_val=90)


def tables(b, x):
    return b.emit("TABLE", b.emit("TABLE", x, b.const(table(0))), b.const(table(1)))


def pad_convolution(b, x):
    return convolution(b, b.emit("PAD", x, padding=(0, 0, 0, 1, 1, 0, 0, 0), pad_const=7), 7)


def pad_with_another_value(b, x):
    return convolution(b, b.emit("PAD", x, padding=(0, 0, 0, 1, 1, 0, 0, 0), pad_const=8), 7)


def reshaped_pad_convolution(b, x):
    """The PAD is the convolution's own only once the RESHAPEs are gone, not merely unread."""
    padded = b.emit("PAD", x, padding=(0, 0, 0, 1, 1, 0, 0, 0), pad_const=7)
    return convolution(b, b.reshape(b.emit("RESHAPE", padded, shape=(7, 24)), padded.shape), 7)


CASES = {
    reshapes: 1, transposes: 1, cancelling_transposes: 1, slices: 2, clamps: 1, disjoint_clamps: 2, tables: 1, pad_convolution: 2,
    pad_with_another_value: 3, reshaped_pad_convolution: 2,
}  # fmt: skip


def built(*parts) -> Graph:
    b = Builder()
    value = b.input("x", SHAPE, "INT8")
    for part in parts:
        value = part(b, value)
    b.graph.outputs.append(value)
    return b.graph


@pytest.mark.parametrize("part", CASES, ids=lambda part: part.__name__)
def test_rule(part) -> None:
    before, after = built(part), rewrite(built(part))
    verify(after)
    assert len(after.ops) == CASES[part], to_text(after)
    x = np.random.default_rng(3).integers(-128, 128, SHAPE).astype(np.int8)
    np.testing.assert_array_equal(reference(serialize(after), [x])[0], reference(serialize(before), [x])[0])


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("axes", [(0,), (2,), (4,), (1, 3), (0, 2, 4)])
def test_slice_of_five_axes_is_slices_of_three(target: str, axes: tuple[int, ...]) -> None:
    """Vela's bug ``vela.slice-of-five-axes``."""
    b = Builder()
    x = b.input("x", (2, 3, 4, 3, 4), "INT8")
    size = tuple(1 if k in axes else extent for k, extent in enumerate(x.shape))
    parts = [b.emit("SLICE", x, start=tuple(first if k in axes else 0 for k in range(5)), size=size) for first in (1, 0)]
    parts = [b.reshape(part, (size[0] * size[1], *size[2:])) for part in parts]
    b.graph.outputs.append(b.emit("CONCAT", *parts, axis=1))
    before, after = serialize(b.graph), rewrite(copy.deepcopy(b.graph))
    verify(after)
    assert [op.result.rank for op in after.ops if op.name == "SLICE"] == [3] * 2 * len(axes)
    codes = [np.random.default_rng(3).integers(-128, 128, x.shape).astype(np.int8)]
    (wanted,) = reference(before, codes)
    np.testing.assert_array_equal(reference(serialize(after), codes)[0], wanted)
    (found,) = machine(serialize(after), codes, EthosUCompileSpec(target))
    np.testing.assert_array_equal(found.ravel(), wanted.ravel())


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("axis", range(5))
def test_concat_of_five_axes_is_one_of_four(target: str, axis: int) -> None:
    """Vela's bug ``vela.concat-of-five-axes``."""
    b = Builder()
    x = b.input("x", (2, 3, 4, 6), "INT8")
    cut = max(axis - 1, 0)
    size = tuple(1 if k == cut else extent for k, extent in enumerate(x.shape))
    starts = [tuple(first if k == cut else 0 for k in range(4)) for first in (1, 0)]
    parts = [b.reshape(b.emit("SLICE", x, start=start, size=size), (1, *size)) for start in starts]
    b.graph.outputs.append(b.emit("CONCAT", *parts, axis=axis))
    before, after = serialize(b.graph), rewrite(copy.deepcopy(b.graph))
    verify(after)
    assert max(op.result.rank for op in after.ops if op.name == "CONCAT") == 4
    codes = [np.random.default_rng(3).integers(-128, 128, x.shape).astype(np.int8)]
    (wanted,) = reference(before, codes)
    np.testing.assert_array_equal(reference(serialize(after), codes)[0], wanted)
    (found,) = machine(serialize(after), codes, EthosUCompileSpec(target))
    np.testing.assert_array_equal(found.ravel(), wanted.ravel())


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_tables_pass_transposes_and_meet(target: str) -> None:
    """Vela's bug ``vela.table-between-transposes``."""
    b = Builder()
    value = x = b.input("x", (1, 6, 5, 4), "INT8")
    for seed in (0, 1):
        value = b.emit("TRANSPOSE", b.emit("TABLE", value, b.const(table(seed))), perms=(0, 2, 1, 3))
        value = b.reshape(b.reshape(value, (120,)), value.shape)
    b.graph.outputs.append(b.emit("TRANSPOSE", value, perms=(0, 3, 1, 2)))
    before, after = serialize(b.graph), rewrite(copy.deepcopy(b.graph))
    verify(after)
    assert [op.name for op in after.ops if op.name == "TABLE"] == ["TABLE"]
    codes = [np.random.default_rng(3).integers(-128, 128, x.shape).astype(np.int8)]
    (wanted,) = reference(before, codes)
    (found,) = machine(serialize(after), codes, EthosUCompileSpec(target))
    np.testing.assert_array_equal(found.ravel(), wanted.ravel())


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-256", "ethos-u85-256"])
@pytest.mark.parametrize(("channels", "last"), [(3, "TABLE"), (12, "TRANSPOSE")])
def test_a_table_of_few_channels_goes_behind_the_transposes(channels: int, last: str, target: str) -> None:
    """Vela makes it no part of a convolution of fewer than 8 channels, where it takes a pass over the map."""
    b = Builder()
    x = b.input("x", SHAPE, "INT8")
    weight = b.const(np.random.default_rng(2).integers(-127, 128, (channels, 1, 1, 4)).astype(np.int8))
    bias, window = b.const(np.zeros(channels, np.int32)), {"pad": (0, 0, 0, 0), "stride": (1, 1), "dilation": (1, 1)}
    value = b.rescale(b.emit("CONV2D", x, weight, bias, **window, input_zp=7, weight_zp=0), 0.003, output_zp=2)
    value = b.emit("TABLE", b.reshape(value, (6, 5, channels)), b.const(table(0)))
    b.graph.outputs.append(b.emit("TRANSPOSE", value, perms=(2, 0, 1)))
    before, after = serialize(b.graph), rewrite(copy.deepcopy(b.graph))
    assert [op.name for op in after.ops if op.name != "RESHAPE"][-1] == last
    codes = [np.random.default_rng(3).integers(-128, 128, SHAPE).astype(np.int8)]
    (wanted,) = reference(before, codes)
    (found,) = machine(serialize(after), codes, EthosUCompileSpec(target))
    np.testing.assert_array_equal(found.ravel(), wanted.ravel())


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_transposes_that_cancel_over_a_reshape_are_a_reshape(target: str) -> None:
    """Vela cancels them, too, and loses the CLAMP behind a TABLE."""
    b = Builder()
    x = b.input("x", (1, 1, 3, 5), "INT8")
    value = b.emit("TRANSPOSE", b.emit("TABLE", x, b.const(table(0))), perms=(1, 0, 3, 2))
    value = b.emit("TRANSPOSE", b.reshape(value, (1, 5, 3)), perms=(0, 2, 1))
    b.graph.outputs.append(b.emit("CLAMP", value, min_val=-100, max_val=90))
    before, after = serialize(b.graph), rewrite(copy.deepcopy(b.graph))
    verify(after)
    assert sorted(op.name for op in after.ops) == ["CLAMP", "RESHAPE", "TABLE"]
    codes = [np.random.default_rng(3).integers(-128, 128, x.shape).astype(np.int8)]
    (wanted,) = reference(before, codes)
    (found,) = machine(serialize(after), codes, EthosUCompileSpec(target))
    np.testing.assert_array_equal(found.ravel(), wanted.ravel())


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-256", "ethos-u85-256"])
@pytest.mark.parametrize("dtype", ["INT8", "INT16"])
@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 48), (1, 32, 48)], ids=["scalar", "channels", "whole"])
def test_constants_of_elementwise_operators_stay_narrow_and_near(shape, name: str, dtype: str, target: str) -> None:
    """A product of codes is one operation; on U55 and U65 a constant that is broadcast is copied out of flash first."""
    tuning = TUNING[target.split("-")[1]]
    b = Builder(tuning=tuning)
    x = b.input("x", (1, 32, 48), dtype)
    kind, zero = (np.int8, 3) if dtype == "INT8" else (np.int16, 0)
    factor = b.const(np.random.default_rng(5).integers(-90, 90, shape).astype(kind))
    units = (1.0, 1.0) if name == "MUL" else (2.0**16, 51_000.0)
    wide = [b.rescale(v, unit, input_zp=zero, dtype="INT32") for v, unit in zip((x, factor), units, strict=True)]
    acc = b.emit(name, *wide, **({"shift": 0} if name == "MUL" else {}))
    b.graph.outputs.append(b.rescale(acc, 0.013 if name == "MUL" else 0.7 * 2.0**-16, output_zp=zero and -2, dtype=dtype))
    before, after = serialize(b.graph), rewrite(copy.deepcopy(b.graph), tuning=tuning)
    verify(after)
    copies = [op for op in after.ops if op.name == "MAX_POOL2D"]
    assert len(copies) == (shape == (1, 1, 48) and "u85" not in target)
    codes = [np.random.default_rng(3).integers(-128, 128, x.shape).astype(kind)]
    (wanted,) = reference(before, codes)
    compiled = vela.compile(serialize(after), EthosUCompileSpec(target))
    (found,) = run_compiled(compiled, codes)
    np.testing.assert_array_equal(found.ravel(), wanted.ravel())
    if name == "MUL":
        assert len([row for row in compiled.rows() if row.operator != "MaxPool"]) == 1


def test_an_intermediate_that_is_an_output_survives() -> None:
    b = Builder()
    x = b.input("x", SHAPE, "INT8")
    first = b.emit("TABLE", x, b.const(table(0)))
    b.graph.outputs += [b.emit("TABLE", first, b.const(table(1))), first]
    graph = rewrite(copy.deepcopy(b.graph))
    verify(graph)
    assert len(graph.ops) == 2


def test_what_nobody_reads_goes() -> None:
    b = Builder()
    x = b.input("x", SHAPE, "INT8")
    b.emit("TABLE", x, b.const(table(0)))
    b.graph.outputs.append(b.emit("CLAMP", x, min_val=0, max_val=5))
    assert [op.name for op in rewrite(b.graph).ops] == ["CLAMP"]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from([transposes, cancelling_transposes, clamps, disjoint_clamps, tables]), min_size=1, max_size=5))
def test_any_sequence_keeps_its_bits(parts) -> None:
    shape_kept = [part for part in parts if part is not transposes]
    before, after = built(*shape_kept, transposes), rewrite(built(*shape_kept, transposes))
    verify(after)
    assert len(after.ops) <= len(before.ops)
    x = np.random.default_rng(4).integers(-128, 128, SHAPE).astype(np.int8)
    np.testing.assert_array_equal(reference(serialize(after), [x])[0], reference(serialize(before), [x])[0])


def steps() -> list[Step]:
    return [step for entry in PIPELINE for step in (entry.steps if isinstance(entry, Repeat) else (entry,))]


def test_each_step_has_a_name_of_its_own_and_a_reason_for_its_place() -> None:
    assert len({step.name for step in steps()}) == len(steps())
    assert all(entry.why_here.endswith(".") for entry in (*PIPELINE, *steps()))


def test_every_rewrite_of_a_tuning_is_a_step() -> None:
    """Each field that names a rewrite makes some step do something else."""
    read = set()

    class Recorder:
        def __getattribute__(self, name: str):
            read.add(name)
            return getattr(UNTUNED, name)

    for step in steps():
        step.run(Rewriter(Graph()), Recorder())
    comments = (Path(ethorch.targets.tuning.__file__).read_text()).split("# --- which rewrites run")[1]
    assert read == set(re.findall(r"^    (\w+): ", comments, re.M))


def test_a_step_that_leaves_no_tosa_is_the_last(monkeypatch) -> None:
    """The graph is verified right after the step."""

    def damage(r: Rewriter, tuning: Tuning) -> None:
        r.insert_before(next(iter(r)), 0, lambda at, value: at.reshape(value, *value.shape))
        next(iter(r)).attrs["shape"] = (7,)

    monkeypatch.setattr(pipeline, "PIPELINE", (Step("damage", damage, ""), Step("later", always(lambda r: pytest.fail()), "")))
    with pytest.raises(AssertionError, match="RESHAPE of"):
        rewrite(built(tables))


def test_the_graph_can_be_dumped_after_each_step(tmp_path: Path) -> None:
    b = Builder(tuning=TUNING["u55"])
    x = b.input("x", (1, 32, 32, 8), "INT8")
    b.graph.outputs.append(b.rescale(b.reshape(b.reshape(x, (32, 256)), (64, 128)), 0.5))
    graph = rewrite(b.graph, TUNING["u55"], dump=dump_to(tmp_path / "steps"))
    found = sorted((tmp_path / "steps").iterdir())
    names = ["00_as_lowered.txt", "01_merge_neighbours.txt", "02_rescale_by_depthwise_convolutions.txt"]
    assert [path.name for path in found] == names
    assert ["DEPTHWISE_CONV2D" in path.read_text() for path in found] == [False, False, True]
    assert found[-1].read_text() == to_text(graph)
