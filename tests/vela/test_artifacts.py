"""Artifacts in a folder: whole files or none, under the first free number."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ethorch import vela
from ethorch.npu import Sources
from ethorch.support.errors import EthorchError
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.tosa.ir import Graph, Op, Value
from ethorch.vela import artifacts
from tests.helpers.npu_graphs import Graph as NpuGraph

GRAPH = Graph(inputs=[Value("x", (1, 8), "INT8")])


@pytest.fixture(scope="module")
def compiled() -> tuple[bytes, vela.CompiledModel]:
    g = NpuGraph()
    g.output(g.conv(g.input(1, 8, 8, 4), 8))
    tosa = g.serialize()
    return tosa, vela.compile(tosa, EthosUCompileSpec("ethos-u55-128"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_numbers_follow_each_other(tmp_path: Path, compiled: tuple[bytes, vela.CompiledModel]) -> None:
    tosa, model = compiled
    artifacts.write(tmp_path / "new", GRAPH, tosa)
    artifacts.write(tmp_path / "new", GRAPH, tosa, model.payload, Sources.from_schedule(model.rows()))
    assert names(tmp_path / "new") == [
        "delegate_0.tosa",
        "delegate_0.txt",
        "delegate_1.payload",
        "delegate_1.sources.json",
        "delegate_1.tosa",
        "delegate_1.txt",
    ]


def test_debug_information_of_all_delegates(tmp_path: Path, compiled: tuple[bytes, vela.CompiledModel]) -> None:
    tosa, _ = compiled
    x, y = Value("x", (1, 8), "INT8"), Value("y", (1, 8), "INT8")
    graph = Graph(inputs=[x], outputs=[y], ops=[Op("CLAMP", (x,), {"min_val": 0, "max_val": 9}, (y,))])
    for _ in range(2):
        artifacts.write(tmp_path / "json", graph, tosa, debug=EthosUCompileSpec.DebugMode.JSON)
    events = json.loads((tmp_path / "json" / "debug.json").read_text())
    assert [(event["event_id"], event["delegate"]) for event in events] == [(0, "delegate_0"), (1, "delegate_1")]
    assert (tmp_path / "json" / "delegate_1.tosa").read_bytes() == tosa
    artifacts.write(tmp_path / "tosa", graph, tosa, debug=EthosUCompileSpec.DebugMode.TOSA)
    assert b"event_id" in (tmp_path / "tosa" / "delegate_0.tosa").read_bytes()
    assert names(tmp_path / "tosa") == ["delegate_0.tosa", "delegate_0.txt"]


@pytest.mark.parametrize("at", range(4))
def test_an_interrupted_write_leaves_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: tuple[bytes, vela.CompiledModel], at: int
) -> None:
    tosa, model = compiled
    rename, count = os.replace, iter(range(100))

    def interrupted(source: Path, target: Path) -> None:
        if next(count) == at:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        artifacts.write(tmp_path, GRAPH, tosa, model.payload, Sources.from_schedule(model.rows()))
    assert len(names(tmp_path)) == at
    assert not (tmp_path / "delegate_0.tosa").exists()
    artifacts.write(tmp_path, GRAPH, tosa, model.payload, Sources.from_schedule(model.rows()))
    assert names(tmp_path) == ["delegate_0.payload", "delegate_0.sources.json", "delegate_0.tosa", "delegate_0.txt"]


def test_the_tosa_of_another_backend_is_compiled_again(tmp_path: Path, compiled: tuple[bytes, vela.CompiledModel]) -> None:
    tosa, model = compiled
    (tmp_path / "other.tosa").write_bytes(tosa)
    pairs = [(spec.key, spec.value) for spec in EthosUCompileSpec("ethos-u55-128").to_list()]
    found = artifacts.sources(tmp_path, model.payload, pairs)
    assert found.to_json() == Sources.from_schedule(model.rows()).to_json()
    pairs = [(spec.key, spec.value) for spec in EthosUCompileSpec("ethos-u55-256").to_list()]
    with pytest.raises(EthorchError, match="no graphs of this program"):
        artifacts.sources(tmp_path, model.payload, pairs)
