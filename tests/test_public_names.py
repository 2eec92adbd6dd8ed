"""What ``ethorch`` offers by name: each is documented, typed, and in the reference."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import ethorch
from tests.helpers import examples

REFERENCE = (Path(__file__).parent.parent / "docs" / "reference" / "api.md").read_text()
#: Packages that the pages under "Inside" and "Targets" describe.
ELSEWHERE = {"npu", "tosa", "vela"}


@pytest.mark.parametrize("name", ethorch.__all__)
def test_a_public_name_is_documented_and_typed(name: str) -> None:
    value = getattr(ethorch, name)
    assert name in dir(ethorch) and (inspect.getdoc(value) or "").partition("\n")[0].endswith((".", ":", "?"))
    if inspect.isfunction(value):
        assert {*inspect.signature(value).parameters, "return"} == set(value.__annotations__)
    if name not in ELSEWHERE:
        assert re.search(rf"\b{'errors' if name == 'EthorchError' else name}\b", REFERENCE)


def test_every_public_name_has_an_example_that_tests_run() -> None:
    """In a page, the README, a script or a notebook. Of a class that functions return: an example of such a function."""
    values = {name: value for name, value in examples.public().items() if not isinstance(value, ModuleType)}
    assert len(values) > 100
    assert sorted(values.keys() - examples.shown(values, examples.used())) == []
