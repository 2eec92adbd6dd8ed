"""The floors of a network's cycles are of Vela's own figures."""

from __future__ import annotations

from bench.floors import measure, table


def test_a_network_that_waits_for_its_weights() -> None:
    found = measure("autoencoder", "ethos-u55-128")
    assert found.total == found.npu + found.waits  # an operation takes the longer of computing and reading
    assert found.products < found.npu < found.weights == found.reachable < found.total
    assert found.classes == {"Conv2D": 1.0}
    cells = table([found], found.target).splitlines()[-1].split(" | ")
    assert (
        cells[0] == "| autoencoder" and cells[-1] == "Conv2D 100% |" and float(cells[6]) == round(found.reachable / found.total, 2)
    )
