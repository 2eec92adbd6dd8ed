"""Test the table of CPU operators against its readers."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from ethorch.backend.emit.cpu_operators import REPLACEMENTS
from ethorch.deploy.firmware.operators import KERNELS
from ethorch.figures.cpu_rates import RATES, rate_of
from ethorch.targets import cpu_operators
from ethorch.targets.cpu_operators import CPU_OPERATORS, FORMS, base_name

SIMPLE_FORMS = {"unchanged", "promoted", "promoted_to_float", "view", "cast", "clone"}


def rows() -> list[dict[str, str]]:
    with Path(cpu_operators.__file__).with_suffix(".csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows_are_sorted_and_agree() -> None:
    keys = [(row["rate"], row["operator"], row["complex"], row["form"]) for row in rows()]
    assert keys == sorted(set(keys))
    for row in rows():
        assert row["complex"] in ("", "yes") and bool(row["form"]) == bool(row["overloads"]), row
        assert all(
            base_name(name if name.count(".") == 2 else f"aten.{name}.") == row["operator"] for name in row["overloads"].split()
        )
    features = {(row["operator"], row["rate"], row["complex"]) for row in rows()}
    assert len(features) == len(CPU_OPERATORS)
    assert sum(len(row["overloads"].split()) for row in rows()) == len(FORMS)


def test_rates_and_forms_exist() -> None:
    assert {operator.rate for operator in CPU_OPERATORS.values()} <= RATES.keys()
    assert set(FORMS.values()) == SIMPLE_FORMS | REPLACEMENTS.keys()


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_each_kernel_of_firmware_has_a_rate(kernel: str) -> None:
    assert rate_of(kernel).name != "other"


def test_names_have_no_namespace_and_overload() -> None:
    for name in ("aten::view_copy.out", "aten.view.default", "aten::view_copy", "view"):
        assert base_name(name) == "view"
    assert base_name("dim_order_ops::_to_dim_order_copy.out") == "to_dim_order"
