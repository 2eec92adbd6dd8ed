"""The fifty drawn networks of five public libraries: every byte of every delegate equals the TOSA reference model's."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from bench.zoo.draw import DRAWN, LISTS, PER_LIBRARY

_PACKAGES = {
    "diffusers": "diffusers",
    "smp": "segmentation_models_pytorch",
    "pyg": "torch_geometric",
    "ultralytics": "ultralytics",
    "transformers": "transformers",
}
#: Networks that PyTorch itself cannot call with tensors or export, and why.
NOT_EXPORTABLE = {
    "drawn/diffusers/MotionAdapter": "only holds modules for another network",
    "drawn/pyg/WLConv": "a dictionary of hashes in Python",
    "drawn/transformers/longcat_flash": "loops over the experts that a batch selects",
}
NAMES = [f"drawn/{library}/{name}" for library, names in DRAWN.items() for name in names]


def test_fifty_different_networks_are_drawn() -> None:
    assert list(DRAWN) == list(LISTS)
    assert all(len(set(names)) == PER_LIBRARY for names in DRAWN.values())
    assert set(NOT_EXPORTABLE) < set(NAMES)


@pytest.mark.long
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_EXPORTABLE])
def test_every_delegate_equals_the_reference(name: str, target: str) -> None:
    package = _PACKAGES[name.split("/")[1]]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed; make test-long installs it")
    from bench.zoo.drawn import CASES
    from bench.zoo.run import run

    [case] = [case for case in CASES if case.name == name]
    [record] = run(case, [target], ["int8"], inputs=2)
    assert record["status"] == "ok", record
    assert record["delegates"] >= 1
