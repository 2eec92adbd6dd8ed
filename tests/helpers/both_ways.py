"""Run a program as a plan and in NumPy, with the same bytes in every region, the same faults and the same counters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ethorch.npu import Machine
from ethorch.npu.plan import Plan
from ethorch.npu.plan.library import library
from ethorch.support.errors import MachineFault


def run_both_ways(make: Callable[[bool], Machine], fill: Callable[[Machine], None], runs: int = 1) -> Plan | None:
    """Run both kinds of machine on the data that ``fill`` writes. Raise AssertionError if they differ.

    Args:
        make: Factory of a machine with its own memory and the given ``compiled``.

    Returns:
        The plan. None without a compiler, with branches, or with operations out of proportion to memory.
    """
    machines = [make(True), make(False)]
    program = machines[0].program
    faults: list[str | None] = []
    for machine in machines:
        fault = None
        try:
            for _ in range(runs):
                fill(machine)
                machine.run()
        except MachineFault as error:
            fault = str(error)
        faults.append(fault)
    assert faults[0] == faults[1], f"as a plan: {faults[0]}; in NumPy: {faults[1]}"
    planned, numpy = machines
    if faults[0] is None:
        for number, region in numpy.regions.items():
            different = np.flatnonzero(region != planned.regions[number])
            assert not different.size, f"region {number}: {different.size} bytes differ, the first at {different[0]:#x}"
        done = [{k: (c.runs, c.macs, c.read_bytes, c.written_bytes) for k, c in m.counters.items()} for m in machines]
        assert done[0] == done[1]
    if library() is not None and not program.has_branches and faults[0] is None:
        assert planned.plan is not None
    return planned.plan
