"""An operator is defined in one place: its spec is frozen, and all functions of it stand in the file that names it."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ethorch
from ethorch.lower.ops import OPS, OpSpec

SPECS = {spec.name: spec for spec in OPS.values()}
PACKAGE = Path(ethorch.__file__).parent


def parts(spec: OpSpec) -> dict[str, Callable[..., Any]]:
    """The functions of a spec, by field; adapters by their spelling."""
    fields = {name: getattr(spec, name) for name in ("lower", "check", "floats", "decompose", "quant")}
    return {name: part for name, part in {**fields, **spec.adapters}.items() if callable(part)}


def home(spec: OpSpec) -> str:
    """The module that names the operator."""
    return "ethorch." + spec.source.partition(":")[0].removesuffix(".py").replace("/", ".")


def test_all_of_an_operator_is_in_the_file_that_names_it() -> None:
    """A function of another file is one that operators of several files share; spec.py wraps the formulas of tables."""
    users: dict[tuple[str, str], set[str]] = {}
    for spec in SPECS.values():
        for part in parts(spec).values():
            users.setdefault((part.__module__, part.__qualname__), set()).add(home(spec))
    strangers = [
        f"{spec.name}: {field} is {part.__module__}.{part.__qualname__}"
        for spec in SPECS.values()
        for field, part in parts(spec).items()
        if part.__module__ not in (home(spec), "ethorch.lower.ops.spec") and len(users[part.__module__, part.__qualname__]) == 1
    ]
    assert strangers == []


def test_nothing_changes_an_operator_afterwards() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        OPS["aten.add.Tensor"].lower = None  # type: ignore[misc]


def test_each_kind_has_the_functions_it_is_known_for() -> None:
    for spec in SPECS.values():
        if spec.kind == "composite":
            assert spec.lower is None and spec.decompose is not None, spec.name
        else:
            assert spec.kind == "table" or spec.lower is not None, spec.name


def test_documentation_starts_with_a_whole_sentence() -> None:
    """docs/ops.md shows the first paragraph; of tables that is a formula."""
    starts = {spec.name: spec.doc.partition("\n\n")[0] for spec in SPECS.values()}
    assert [name for name, start in starts.items() if not start or (SPECS[name].kind != "table" and start[-1] != ".")] == []


def test_every_function_has_a_name_for_the_traceback() -> None:
    nameless = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.strip("_")
    ]
    assert nameless == []
