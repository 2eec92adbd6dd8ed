"""What a partitioner hands to ``preprocess``, and what a .pte keeps of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ethorch import EthosUCompileSpec
from ethorch.arm import TosaCompileSpec
from ethorch.backend.handover import attach, find_spec
from ethorch.support.errors import SpecError


@pytest.fixture
def program() -> torch.export.ExportedProgram:
    return torch.export.export(torch.nn.ReLU(), (torch.zeros(2),))


def test_the_spec_on_the_nodes_goes_before_the_list(program: torch.export.ExportedProgram) -> None:
    spec, other = EthosUCompileSpec("ethos-u55-128"), EthosUCompileSpec("ethos-u85-256")
    assert find_spec(EthosUCompileSpec, program, other.to_list()) == other
    attach([node for node in program.graph.nodes if node.op == "call_function"], spec)
    assert find_spec(EthosUCompileSpec, program, other.to_list()) is spec


def test_what_a_pte_keeps_names_no_folder(tmp_path: Path) -> None:
    ini = tmp_path / "mine.ini"
    ini.write_text(EthosUCompileSpec("ethos-u55-128").vela_config.text)
    spec = EthosUCompileSpec(
        "ethos-u55-128", config_ini=str(ini), extra_flags=["--optimise=Size", f"--output-dir={tmp_path}", "--timing"]
    )
    spec.dump_intermediate_artifacts_to(tmp_path).dump_debug_info("JSON")
    kept = spec.publish().to_list()
    assert str(tmp_path) not in str(kept)
    assert "--config=mine.ini" in str(kept)
    assert "--optimise=Size" in str(kept)
    assert (spec.path_for_intermediates, spec.config_files) == (str(tmp_path), (str(ini),))


def test_what_says_nothing_of_a_computer_is_kept() -> None:
    for spec in (EthosUCompileSpec("ethos-u65-256", extra_flags=["--optimise=Size"]), TosaCompileSpec("TOSA-1.0+INT")):
        assert spec.publish().to_list() == spec.to_list()


def test_debug_information_still_needs_a_folder() -> None:
    with pytest.raises(SpecError, match="requires a folder"):
        EthosUCompileSpec("ethos-u55-128").dump_debug_info("JSON").publish()
