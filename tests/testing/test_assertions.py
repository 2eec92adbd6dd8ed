"""The one-line assertions: what they let pass, and each thing that they refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ethorch
from ethorch.program.program import Program, record_of
from ethorch.program.record import Record
from ethorch.support.errors import EthorchError
from ethorch.testing import assert_bit_exact, assert_runs_on_npu, record
from ethorch.testing.recording import recording
from tests.testing.networks import Net, OnlyTopk, TopkTwice, image, images


@pytest.fixture(scope="module")
def program() -> Program:
    return ethorch.compile(Net(), image(), "ethos-u55-128", calibration=images())


def test_a_model_within_its_limits_passes() -> None:
    limits = {"max_cycles": 100_000, "max_ram": "64K", "max_flash": "64K", "max_delegates": 1, "max_milliseconds": 10}
    found = assert_runs_on_npu(Net(), image(), "ethos-u85-256", calibration=images(), min_sqnr_db=25, scheme="a16w8", **limits)
    assert found.target == "ethos-u85-256" and found.settings is not None and found.settings.scheme == "a16w8"


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ({"max_cycles": 10}, "NPU cycles: "),
        ({"max_ram": "1K"}, "expected at most 1,024 bytes"),
        ({"max_flash": 16}, "flash: "),
        ({"max_milliseconds": 1e-6}, "inference time: "),
        ({"max_delegates": 0}, "delegates: expected at most 0, got 1"),
        ({"min_sqnr_db": 99}, "expected at least 99 dB"),
    ],
)
def test_each_limit_that_does_not_hold_is_said(program: Program, limit: dict[str, float | str], said: str) -> None:
    with pytest.raises(AssertionError) as error:
        assert_runs_on_npu(program, **limit)
    assert str(error.value).startswith("Net on ethos-u55-128 does not meet the limits.\n") and said in str(error.value)
    assert len(str(error.value).splitlines()) == 2


def test_operators_on_the_cpu_are_listed_with_reason_and_way_out() -> None:
    with pytest.raises(AssertionError) as error:
        assert_runs_on_npu(TopkTwice(), image())
    text = str(error.value)
    assert "operators on the CPU: expected at most 0, got 2:" in text
    assert "aten.topk.default (networks.py:" in text and text.count("[operator.unknown]") == 1
    assert record_of(assert_runs_on_npu(TopkTwice(), image(), max_cpu_ops=2)).payloads


def test_a_model_without_any_npu_operator_fails_whatever_is_allowed() -> None:
    with pytest.raises(AssertionError, match="operators on the NPU: expected at least 1, got 0"):
        assert_runs_on_npu(OnlyTopk(), image(), max_cpu_ops=99)


def test_a_file_is_judged_as_far_as_it_tells(program: Program) -> None:
    loaded = ethorch.load(program.pte)
    assert assert_runs_on_npu(loaded, max_ram="64K") is loaded
    with pytest.raises(EthorchError, match=r"SQNR .* is unknown"):
        assert_runs_on_npu(loaded, min_sqnr_db=1)
    with pytest.raises(EthorchError, match=r"inference time .* is unknown"):
        assert_runs_on_npu(loaded, max_milliseconds=1)
    with pytest.raises(EthorchError, match="loaded from a file without TOSA graphs"):
        assert_bit_exact(loaded)


def test_bit_exact(program: Program) -> None:
    assert_bit_exact(program)
    for sample in images():
        assert_bit_exact(program, sample[0])
    assert_bit_exact(ethorch.compile(Net(), image(), io="int8", calibration=images()))


def test_a_delegate_that_computes_something_else_is_not_bit_exact(program: Program) -> None:
    other = ethorch.compile(Net(seed=1), image(), "ethos-u55-128", calibration=images())
    assert record_of(program).build is not None and record_of(other).build is not None
    (delegate,), (wrong,) = record_of(program).build.delegates, record_of(other).build.delegates
    swapped = replace(record_of(program).build, delegates=(replace(delegate, tosa=wrong.tosa),))
    broken = Program(Record(program.pte, settings=program.settings, build=swapped, model=record_of(program).model))
    with pytest.raises(AssertionError) as error:
        assert_bit_exact(broken)
    assert "delegate 0, output 0 of " in str(error.value) and "at head (networks.py:" in str(error.value)
    assert "of 4 elements differ, the first at [0, " in str(error.value) and "reference " in str(error.value)


def test_programs_are_recorded_once_and_only_inside_of_a_test(program: Program) -> None:
    assert record(program) is program
    with recording() as programs:
        assert_bit_exact(program)
        assert_runs_on_npu(program)
    assert programs == [program]
