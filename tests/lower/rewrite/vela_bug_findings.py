"""What the installed Vela makes of the graphs in ``GRAPHS``, as they stand and as ethorch gives them to it.

``python -m tests.lower.rewrite.vela_bug_findings [ID ...]`` prints it.
"""

from __future__ import annotations

import copy
import faulthandler
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt

from ethorch import EthosUCompileSpec, vela
from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.lower.rewrite.vela_bugs import BY_ID, VELA_BUGS, VelaBug
from ethorch.support.errors import MachineFault, VelaError
from ethorch.targets.npus import TARGETS
from ethorch.tosa.ir import Graph, Value
from ethorch.tosa.serialize import serialize
from ethorch.vela.compiler import compile_unchecked
from tests.helpers.tosa_runs import reference, run_compiled
from tests.lower.rewrite.vela_bug_graphs import GRAPHS
from tests.lower.rewrite.vela_bug_makers import Avoided, Make

#: The NPU that stands for its family, and the one of those with a small SHRAM.
NPUS = {"u55": "ethos-u55-128", "u65": "ethos-u65-256", "u85": "ethos-u85-256"}
SMALL_SHRAM = "ethos-u55-64"


def npu_of(bug: VelaBug, family: str) -> str:
    """Return the NPU of ``family`` that shows ``bug``."""
    return SMALL_SHRAM if bug.small_shram else NPUS[family]


def built(make: Make, npu: str) -> Graph:
    b = Builder(tuning=TARGETS[npu].tuning)
    made = make(b)
    b.graph.outputs += made if isinstance(made, tuple) else (made,)
    return b.graph


def compile_unchanged(graph: Make | Avoided, npu: str) -> str:
    """What Vela makes of a graph: "equal", or what is wrong with it. In a child process: it may die."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(False)
    made = built(graph.make if isinstance(graph, Avoided) else graph, npu)
    child = context.Process(target=_send_outcome, args=(send, made, npu))
    child.start()
    send.close()
    try:
        return str(receive.recv())
    except EOFError:
        return "the process died"
    finally:
        child.join()


def _send_outcome(send: Connection, graph: Graph, npu: str) -> None:
    faulthandler.disable()  # pytest has it print where the process died
    send.send(_outcome(graph, npu, compile_unchecked))


def compile_rewritten(graph: Make | Avoided, npu: str) -> tuple[str, int]:
    """As ``compile_unchanged``, of what ethorch gives Vela instead; and how many operators that has more."""
    before = built(graph.instead if isinstance(graph, Avoided) else graph, npu)
    after = rewrite(copy.deepcopy(before), TARGETS[npu].tuning)
    return _outcome(after, npu, vela.compile), len(after.ops) - len(before.ops)


def _outcome(graph: Graph, npu: str, compile: Callable[[bytes, EthosUCompileSpec], vela.CompiledModel]) -> str:
    tosa, codes = serialize(graph), [_codes(value, seed) for seed, value in enumerate(graph.inputs)]
    try:
        model = compile(tosa, EthosUCompileSpec(npu))
    except VelaError as error:
        return str(error)
    for kind, values, tensors in (("input", graph.inputs, model.inputs), ("output", graph.outputs, model.outputs)):
        if [(*(1,) * (6 - value.rank), *value.shape) for value in values] != [tensor.shape for tensor in tensors]:
            return f"{kind}s of other shapes: {[tensor.shape for tensor in tensors]} for {values}"
    try:
        found = run_compiled(model, codes)
    except (MachineFault, AssertionError) as error:  # the second: a feature map that leaves its region
        return str(error)
    wanted = [array.ravel().astype(np.int64) for array in reference(tosa, codes)]
    different = sum(int((a != b.ravel()).sum()) for a, b in zip(wanted, found, strict=True))
    return f"{different} elements differ" if different else "equal"


def _codes(value: Value, seed: int) -> npt.NDArray[np.generic]:
    kinds: Mapping[str, type[np.generic]] = {"BOOL": np.bool_, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32}
    low, high = (0, 2) if value.dtype == "BOOL" else (-60, 60)
    return np.random.default_rng(seed + 3).integers(low, high, value.shape).astype(kinds[value.dtype])


def findings(bug: VelaBug) -> Iterator[tuple[str, str, str]]:
    """Family, graph, and what the installed Vela makes of it as it stands."""
    for family in bug.families:
        for name, graph in GRAPHS[bug.id].items():
            yield family, name, compile_unchanged(graph, npu_of(bug, family))


def main(ids: list[str]) -> None:
    print(f"ethos-u-vela {version('ethos-u-vela')}")
    for bug in [BY_ID[id] for id in ids] or VELA_BUGS:
        for family, name, found in findings(bug) if bug.id in GRAPHS else ():
            avoided, _ = compile_rewritten(GRAPHS[bug.id][name], npu_of(bug, family))
            print(f"{bug.id:40} {name:24} {family}  without the row: {found[:60]:60}  with it: {avoided[:60]}")


if __name__ == "__main__":
    main(sys.argv[1:])
