"""The cycle model reproduces Vela's figures on Vela's own streams."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from itertools import product
from pathlib import Path
from unittest.mock import patch

import pytest

from bench.cycles import TARGETS, Comparison, VelaStream, compare, compare_network, read_result
from bench.implementation import memory_for
from bench.models import ALL_MODELS

#: Allowed deviation of a network's total, and least share of operators within 5 % (issue: cycle model).
TOTAL, SHARE = 0.02, 0.95


@cache
def compile_network(model: str, target: str) -> tuple[VelaStream, ...]:
    """Compile a network with ethorch and return the streams that Vela returned to it."""
    from ethosu import regor

    from ethorch.models.load import UserModel
    from ethorch.program.build import build_program, single_method
    from ethorch.targets.settings import Settings

    case, results, real = ALL_MODELS[model], [], regor.compile

    def record(*arguments, **named):
        results.append(real(*arguments, **named))
        return results[-1]

    system_config, memory_mode = memory_for(target)
    user = UserModel(case.build(), case.example_inputs(), case.calibration(2))
    with patch.object(regor, "compile", record):
        memory = {"system_config": system_config, "memory_mode": memory_mode}
        build_program(single_method(user), Settings(target, **memory, stream="vela", arena="fast"))
    return tuple(read_result(result) for result in results)


def rate_regions(target: str):
    from ethorch.targets.compile_spec import EthosUCompileSpec
    from ethorch.targets.memory_rates import read_memory_rates

    system_config, memory_mode = memory_for(target)
    return read_memory_rates(EthosUCompileSpec(target, system_config=system_config, memory_mode=memory_mode))


def check(result: Comparison) -> None:
    distant = [row for row in result.rows if not row.is_close]
    assert abs(result.ratio - 1) <= TOTAL, distant
    assert result.close_share >= SHARE, distant


@pytest.mark.parametrize(
    ("model", "target"),
    [*product(["ds_cnn", "llama"], TARGETS), ("lstm", "ethos-u85-256"), ("bert", "ethos-u85-256")],  # tables of chains; no stripes
)
def test_small_networks(model, target):
    for stream in compile_network(model, target):
        check(compare(stream, rate_regions(target)))


@pytest.mark.parametrize(
    "target", [pytest.param("ethos-u55-32", marks=pytest.mark.long), "ethos-u55-256", "ethos-u65-512", "ethos-u85-1024"]
)
def test_other_sizes(target):
    for stream in compile_network("ds_cnn", target):
        check(compare(stream, rate_regions(target)))


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", ALL_MODELS)
def test_networks(model, target):
    check(compare_network("ethorch", model, target))


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", ALL_MODELS)
def test_networks_of_the_incumbent(model, target):
    """Both implementations cannot share a process."""
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "bench.cycles", "--impl", "arm", "--models", model, "--targets", target]
    output = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    cells = [cell.strip() for cell in output.splitlines()[-1].strip("|").split("|")]
    assert abs(float(cells[5]) - 1) <= TOTAL
    assert float(cells[7]) >= 100 * SHARE
