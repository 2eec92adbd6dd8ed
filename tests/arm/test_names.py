"""A script for the Arm backend changes one prefix: modules and names have the paths of ``executorch.backends.arm``."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import executorch
import pytest

import ethorch.arm

#: Modules of earlier releases, which executorch 1.5.1 has no more.
EARLIER = {"ethorch.arm.arm_backend", "ethorch.arm.ethosu_partitioner", "ethorch.arm.tosa_specification"}
#: Names that ethorch has beside theirs, or that earlier releases had.
OURS = {"TOSAQuantizationConfig", "get_symmetric_a8w4_quantization_config"}
MODULES = sorted(info.name for info in pkgutil.walk_packages(ethorch.arm.__path__, "ethorch.arm."))


def names_in(path: Path) -> set[str]:
    """Every name that a module's text defines, assigns or imports, and its strings, which may name what is imported late."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return names


def test_their_modules_name_what_ours_name() -> None:
    root = Path(executorch.__path__[0]) / "backends" / "arm"
    for name in (name for name in MODULES if name not in EARLIER):
        path = root.joinpath(*name.removeprefix("ethorch.arm.").split("."))
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        theirs = names_in(source) if source.exists() or not path.is_dir() else set()  # a folder alone is a package, too
        assert set(getattr(importlib.import_module(name), "__all__", ())) <= theirs | OURS, name


@pytest.mark.long
def test_modules_have_names_of_theirs() -> None:
    """In a process of its own, since their import registers operators."""
    names = [name for name in MODULES if name not in EARLIER]
    code = (
        "import importlib\n"
        "from ethorch.models.zoos import torchvision_models\n"
        "torchvision_models(needed=False)  # their evaluators import torchvision, whose extension may not load\n"
        f"for name in {names}:\n"
        "    ours = importlib.import_module(name)\n"
        "    theirs = importlib.import_module(name.replace('ethorch.arm', 'executorch.backends.arm'))\n"
        "    for each in getattr(ours, '__all__', ()):\n"
        f"        assert hasattr(theirs, each) or each in {OURS}, f'{{name}}: {{each}}'\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("name", MODULES)
def test_names_are_the_same_objects_everywhere(name: str) -> None:
    module = importlib.import_module(name)
    for each in getattr(module, "__all__", ()):
        if hasattr(ethorch.arm, each):
            assert getattr(module, each) is getattr(ethorch.arm, each)


def test_the_factory_makes_what_the_spec_is_for() -> None:
    from ethorch.arm.test.common import get_tosa_compile_spec, get_u55_compile_spec, get_u65_compile_spec, get_u85_compile_spec
    from ethorch.arm.util._factory import create_partitioner, create_quantizer, parse_compile_spec

    for spec in (
        get_u55_compile_spec(),
        get_u65_compile_spec(512),
        get_u85_compile_spec(256),
        get_tosa_compile_spec("TOSA-1.0+INT"),
    ):
        assert parse_compile_spec(spec.to_list()) == spec
        kind = "TOSA" if "Tosa" in type(spec).__name__ else "EthosU"
        assert type(create_partitioner(spec)).__name__ == f"{kind}Partitioner"
        assert type(create_quantizer(spec)).__name__ == f"{kind}Quantizer"
    for make in (create_partitioner, create_quantizer):
        with pytest.raises(ValueError, match="got str"):
            make("ethos-u55-128")


def test_a_version_may_be_written_with_more_zeros() -> None:
    specification = ethorch.arm.TosaSpecification.create_from_string("TOSA-1.00+INT")
    assert str(specification) == "TOSA-1.0+INT"
