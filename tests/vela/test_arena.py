"""How the arena's size is searched: what is free is taken, a limit holds where it can, and the bits stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ethorch import vela
from ethorch.support.errors import SpecError, VelaError
from ethorch.targets.compile_spec import FREE, EthosUCompileSpec
from ethorch.vela import arena
from ethorch.vela.compiled_model import CompiledModel
from tests.helpers.npu_graphs import Graph
from tests.helpers.tosa_runs import run_compiled


def wide() -> bytes:
    """Four convolutions on int8[1,48,48,16], whose maps need not all be there at once."""
    g = Graph(5)
    x = g.input(1, 48, 48, 16)
    for channels in (32, 32, 16, 16):
        x = g.conv(x, channels, pad=(1, 1, 1, 1))
    g.output(x)
    return g.serialize()


TOSA = wide()


@pytest.fixture(scope="module")
def model() -> CompiledModel:
    return vela.compile(TOSA, EthosUCompileSpec("ethos-u55-128"))


def drawn(
    model: CompiledModel, sizes: Mapping[int | None, tuple[int, int]]
) -> tuple[list[int | None], Callable[..., CompiledModel]]:
    """A compiler that knows some wishes: wish -> (bytes, cycles); between two it is as below. Also what it was asked."""
    asked: list[int | None] = []

    def again(wish: int | None) -> CompiledModel:
        asked.append(wish)
        below = [known for known in sizes if known is not None and wish is not None and known <= wish]
        if wish is not None and not below:
            raise VelaError("no schedule")
        size, cycles = sizes[None] if wish is None else sizes[max(below)]
        return replace(model, scratch_bytes=size, performance=replace(model.performance, total_cycles=cycles))

    return asked, again


def first(model: CompiledModel, size: int, cycles: int) -> CompiledModel:
    return replace(model, scratch_bytes=size, performance=replace(model.performance, total_cycles=cycles))


def test_the_smallest_schedule_is_taken_where_it_costs_nothing(model: CompiledModel) -> None:
    asked, again = drawn(model, {None: (300_000, 1_004)})
    found, wish = arena.minimize_arena(first(model, 900_000, 1_000), again)
    assert (found.scratch_bytes, wish, asked) == (300_000, 0, [None])


def test_from_the_smallest_upwards_the_first_that_is_free(model: CompiledModel) -> None:
    asked, again = drawn(model, {None: (300_000, 1_100), 300_000: (300_000, 1_050), 400_000: (390_000, 1_003)})
    found, wish = arena.minimize_arena(first(model, 900_000, 1_000), again)
    assert (found.scratch_bytes, wish) == (390_000, asked[-1]) and asked[:2] == [None, 300_000]
    assert found.performance.total_cycles == 1_003


@pytest.mark.parametrize(
    ("largest", "sizes", "asked_of"),
    [
        (900_000, {None: (880_000, 1_000)}, 1),  # nothing worth having
        (8_192, {None: (100, 1_000)}, 0),  # nobody has to save on that
        (900_000, {None: (300_000, 2_000), 0: (500_000, 2_000)}, 6),  # nothing is free
    ],
)
def test_what_is_not_worth_it_stays(
    model: CompiledModel, largest: int, sizes: dict[int | None, tuple[int, int]], asked_of: int
) -> None:
    asked, again = drawn(model, sizes)
    start = first(model, largest, 1_000)
    assert arena.minimize_arena(start, again) == (start, None) and len(asked) == asked_of


def test_a_smaller_staging_memory_is_not_paid_for_with_more_scratch(model: CompiledModel) -> None:
    start = replace(first(model, 2_000_000, 1_000), scratch_fast_bytes=380_000)
    for scratch, taken in ((2_030_000, True), (2_031_000, False)):
        other = replace(first(model, scratch, 1_000), scratch_fast_bytes=350_000)
        found, wish = arena.minimize_arena(start, lambda _, other=other: other)  # type: ignore[misc]
        assert (found, wish) == ((other, 0) if taken else (start, None))


def test_under_a_limit_the_fastest_is_taken(model: CompiledModel) -> None:
    _, again = drawn(model, {None: (300_000, 1_500), 0: (320_000, 1_200), 360_000: (350_000, 1_050), 400_000: (400_000, 1_100)})
    found, wish = arena.fit_arena(400_000, first(model, 900_000, 1_000), again)
    assert (found.scratch_bytes, found.performance.total_cycles, wish) == (350_000, 1_050, 360_000)
    start = first(model, 100, 1_000)
    assert arena.fit_arena(400_000, start, again) == (start, None)


def test_where_no_schedule_holds_the_smallest_arena_is_taken_at_its_fewest_cycles(model: CompiledModel) -> None:
    _, again = drawn(model, {None: (300_000, 1_500), 0: (300_000, 1_400), 290_000: (300_000, 1_200)})
    found, _ = arena.fit_arena(100_000, first(model, 900_000, 1_000), again)
    assert (found.scratch_bytes, found.performance.total_cycles) == (300_000, 1_200)


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-256", "ethos-u85-256"])
def test_a_smaller_arena_keeps_the_bits(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETHORCH_CACHE_DIR", str(tmp_path))
    x = np.random.default_rng(0).integers(-128, 128, (1, 48, 48, 16), np.int8)
    fast = vela.compile(TOSA, EthosUCompileSpec(target))
    whole = arena.arena_bytes(fast)
    (wanted,) = run_compiled(fast, [x])
    found = {kept: arena.compile_with_arena(TOSA, EthosUCompileSpec(target, arena=kept)) for kept in (FREE, whole // 2)}
    for kept, made in found.items():
        assert arena.arena_bytes(made) < whole or kept == FREE
        np.testing.assert_array_equal(run_compiled(made, [x])[0], wanted)
    assert found[FREE].performance.total_cycles <= fast.performance.total_cycles * (1 + arena.TOLERANCE)


def test_a_search_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETHORCH_CACHE_DIR", str(tmp_path))
    asked = []
    compile_once = arena.compile
    monkeypatch.setattr(arena, "compile", lambda *args: asked.append(args) or compile_once(*args))
    spec = EthosUCompileSpec("ethos-u55-128", arena=FREE)
    made = arena.compile_with_arena(TOSA, spec)
    first_time = len(asked)
    assert first_time > 1 and arena.compile_with_arena(TOSA, spec).payload == made.payload and len(asked) == first_time + 1
    (kept,) = (tmp_path / "arenas").iterdir()
    kept.write_text("{}")  # a damaged cache is none
    assert arena.compile_with_arena(TOSA, spec).payload == made.payload and len(asked) == 2 * first_time + 1
    kept.unlink()
    (tmp_path / "arenas").rmdir()
    (tmp_path / "arenas").write_text("no folder")  # nor is one that cannot be written to
    assert arena.compile_with_arena(TOSA, spec).payload == made.payload


def test_flags_of_vela_go_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETHORCH_CACHE_DIR", str(tmp_path))
    spec = EthosUCompileSpec("ethos-u55-128", extra_flags=["--optimise=Size"], arena=FREE)
    assert arena.compile_with_arena(TOSA, spec).payload == vela.compile(TOSA, spec).payload and not (tmp_path / "arenas").exists()


def test_the_list_form_keeps_the_arena() -> None:
    for kept in (FREE, 65_536):
        spec = EthosUCompileSpec("ethos-u85-256", arena=kept)
        assert EthosUCompileSpec.from_list(spec.to_list()) == spec and spec.arena == kept
    assert "ethorch_arena" not in [item.key for item in EthosUCompileSpec("ethos-u85-256").to_list()]
    for wrong in ("small", 0, -1, True, 1.5):
        with pytest.raises(SpecError, match="expected 'fast', 'free' or a number of bytes"):
            EthosUCompileSpec("ethos-u85-256", arena=wrong)
