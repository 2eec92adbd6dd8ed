"""The plan: the same bytes as NumPy on every instruction set of this CPU, and what it must not be trusted with.

``tests.helpers.both_ways`` compares plan and NumPy wherever tests run a stream; here is what that does not reach.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from ethorch.npu import Machine, Program
from ethorch.npu.memory import Span
from ethorch.npu.plan import layout, library
from ethorch.npu.plan.constants import Constants
from ethorch.npu.plan.ranges import exact_in_double, scale_range
from ethorch.support.errors import HostError, MachineFault
from tests.helpers.both_ways import run_both_ways
from tests.helpers.npu_graphs import Graph, Refused, compile_graph, draw, fill, make_machine
from tests.npu.cases import CASES

ROOT = Path(__file__).parent.parent.parent
needs_compiler = pytest.mark.tools("c++")
# What runs as all of them: every kind of step, sums of all widths, all tables.
EVERY_KIND = (
    "conv_3x3_stride2", "conv16_3x3", "conv_dynamic_weights", "depthwise_3x3", "depthwise16_3x3", "max_pool_3x3_padded",
    "average_pool_3x3_padded", "reduce_sum_c", "argmax_c", "add_int8", "add_int32", "mul_int16_to_int32", "abs_int32", "asr_round",
    "intdiv", "table_fused", "table_int16", "table_int16_to_int16", "rescale_32_per_channel", "rescale_double_round",
    "transpose_nhwc", "reverse_c", "resize_bilinear_x2", "gather_batch", "scatter", "matmul_batch", "matmul_int16",
    "residual_block", "transpose_conv_stride2", "conv_5x5_dilated",
)  # fmt: skip


def compiled(name: str, target: str):
    graph = Graph(1)
    CASES[name](graph)
    model = compile_graph(graph.serialize(), target)
    return Program(model.command_stream, np.frombuffer(model.read_only.data, np.uint8)), model, draw(graph, 3)


def compiled_cases(names: Iterable[str], target: str):
    """(name, program, model, arrays) of each operator graph that Vela takes for a target."""
    for name in names:
        try:
            yield name, *compiled(name, target)
        except Refused:
            continue


@needs_compiler
@pytest.mark.long
@pytest.mark.parametrize("level", library.levels())
@pytest.mark.parametrize("target", ["u55-128", "u85-256"])
def test_every_instruction_set(level, target, monkeypatch):
    """The levels are built as they are for their CPUs; what one CPU has, it runs one after the other."""
    found = library.declare(library.native.load(lambda: library.build(level)))
    work = library.Buffers(found)
    for module in ("library", "plan", "planned", "elementwise"):
        module = importlib.import_module(f"ethorch.npu.plan.{module}")
        if hasattr(module, "library"):
            monkeypatch.setattr(module, "library", lambda: found)
        if hasattr(module, "buffers"):
            monkeypatch.setattr(module, "buffers", lambda: work)
    seen = set()
    for name, program, model, arrays in compiled_cases(EVERY_KIND, target):
        plan = run_both_ways(
            lambda c, p=program, m=model: make_machine(p, m, compiled=c), lambda m, a=arrays, d=model: fill(m, d, a)
        )
        assert plan is not None and not plan.reasons and plan.library is found, name
        seen.add(name)
    assert len(seen) >= 20


def machine_with(name: str, target: str, **options):
    program, model, arrays = compiled(name, target)
    machine = make_machine(program, model, **options)
    fill(machine, model, arrays)
    return machine


@needs_compiler
def test_who_looks_at_single_operations_gets_numpy():
    for options in ({"trace": lambda t: None}, {"checks": ("overlap",)}, {"compiled": False}):
        machine = machine_with("conv_3x3_stride2", "u55-128", **options)
        machine.run()
        assert machine.plan is None
    machine = machine_with("conv_3x3_stride2", "u55-128")
    machine.run()
    assert machine.plan is not None and machine.plan.is_whole and machine.plan.share == 1


@needs_compiler
def test_products_that_nobody_reads_are_not_stored():
    """A matrix product on U55: sums of products in one step each, but for the last, whose products stay in memory."""
    program, model, arrays = compiled("matmul_deep", "u55-128")
    plan = run_both_ways(lambda c: make_machine(program, model, compiled=c), lambda m: fill(m, model, arrays))
    kinds = [struct.kind for part in plan.parts for struct in part.structs]
    dots = kinds.count(layout.KINDS[layout.Dot])
    assert dots > 1 and kinds.count(layout.KINDS[layout.Nothing]) == dots
    assert any(kind == layout.KINDS[layout.Elementwise] for kind in kinds)


@needs_compiler
def test_regions_that_share_bytes_get_numpy():
    program, model, arrays = compiled("conv_3x3_stride2", "u55-128")
    memory = np.zeros(model.scratch.size + 64, np.uint8)
    machine = Machine(program, regions={1: memory[64:], 2: memory[:128]})
    fill(machine, model, arrays)
    machine.run()
    assert machine.plan is None


@needs_compiler
def test_constants_of_the_callers_are_not_trusted():
    """Region 0 given as memory may change between runs, so weights are decoded in each."""
    program, model, arrays = compiled("conv_3x3_stride2", "u55-128")
    own = program.constants.copy()
    machine = Machine(program, model.scratch.size, regions={0: own})
    fill(machine, model, arrays)
    machine.run()
    assert machine.plan is not None and machine.plan.share < 1
    before = machine.region(1).copy()
    other = Machine(program, model.scratch.size)
    fill(other, model, arrays)
    other.run()
    np.testing.assert_array_equal(before, other.region(1))


@needs_compiler
def test_data_that_an_operation_may_not_meet():
    """A shift by too much, in the middle of a plan: NumPy's fault, and the steps before have run."""
    program, model, arrays = compiled("asr", "u85-256")
    arrays[1] = np.full_like(arrays[1], 100)
    faults = []
    for c in (True, False):
        machine = make_machine(program, model, compiled=c)
        fill(machine, model, arrays)
        with pytest.raises(MachineFault) as fault:
            machine.run()
        faults.append(str(fault.value))
    assert faults[0] == faults[1]


def test_what_is_known_to_be_constant():
    constants = Constants(np.arange(100, dtype=np.uint8))

    def read(region, base, size):
        found = constants.read(Span("", region, base, size))
        return None if found is None else found.tolist()

    assert read(0, 90, 10) == list(range(90, 100)) and read(0, 95, 10) is None and read(1, 0, 4) is None
    constants.copy(Span("", 0, 10, 20), Span("", 1, 50, 20))
    assert read(1, 55, 10) == list(range(15, 25))
    constants.copy(Span("", 1, 60, 10), Span("", 2, 0, 10))  # a copy of a copy
    constants.copy(Span("", 0, 0, 4), Span("", 1, 70, 4))
    assert read(1, 68, 6) == [28, 29, 0, 1, 2, 3]  # two copies side by side
    constants.invalidate(1, 60, 61)
    assert read(1, 55, 10) is None and read(1, 55, 5) == [15, 16, 17, 18, 19] and read(1, 61, 9) == list(range(21, 30))
    assert read(2, 0, 10) == list(range(20, 30))
    constants.copy(Span("", 1, 55, 10), Span("", 2, 5, 10))  # of what is known only in part
    assert read(2, 0, 10) == [20, 21, 22, 23, 24, 15, 16, 17, 18, 19] and read(2, 10, 1) is None


@pytest.mark.parametrize(
    "rounding", ["NATURAL", "DOUBLE_SYMMETRIC", "DOUBLE_ASYMMETRIC", "SYMMETRIC", "TRUNCATE_TO_ZERO", "TRUNCATE_TO_LOWER"]
)
def test_addends_say_what_rounding_does(rounding):
    """A scaling is one floor with two addends; where float64 is said to be exact, it is, and ranges hold all values."""
    from ethorch.npu.arithmetic import Scaling

    rng = np.random.default_rng(5)
    said = 0
    for _ in range(400):
        s = Scaling(np.int64(rng.integers(1, 1 << 31)), np.int64(rng.integers(0, 63)), rounding, int(rng.integers(0, 22)))
        most = int(rng.integers(1, 1 << int(rng.integers(2, 33))))
        v = np.unique(np.r_[-most, -1, 0, most, rng.integers(-most, most + 1, 50)]).astype(np.int64)
        above, below = s.addends
        wanted = s(v)
        np.testing.assert_array_equal((v * s.multiplier + np.where(v >= 0, above, below)) >> s.shift, wanted)
        low, high = scale_range((-most, most), s)
        assert low <= wanted.min() and wanted.max() <= high
        if exact_in_double(most, s, 77):
            said += 1
            unit = np.ldexp(1.0, int(s.shift))
            found = np.floor(v * (s.multiplier / unit) + (np.where(v >= 0, above, below) / unit + 77))
            np.testing.assert_array_equal(found, wanted + 77)
    assert said > 50


def test_structs_that_differ_from_the_header_are_refused():
    class Other:
        def ethorch_size(self, number):
            return 8

    with pytest.raises(HostError, match="structs have sizes"):
        library.declare(Other())


@pytest.mark.parametrize("variables", [{"ETHORCH_NPU_NUMPY": "1"}, {"PATH": "/nowhere", "CXX": "", "ETHORCH_CACHE_DIR": "EMPTY"}])
def test_without_compiled_code_numpy_does_it(variables, tmp_path):
    """Switched off, or no compiler and nothing in the cache."""
    script = "from ethorch.npu.plan.library import library; print(library())"
    env = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    if env.get("ETHORCH_CACHE_DIR") == "EMPTY":
        env["ETHORCH_CACHE_DIR"] = str(tmp_path)
    child = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120)
    assert child.stdout.strip() == "None", child.stderr


SANITIZED = """
import importlib, sys
library = importlib.import_module("ethorch.npu.plan.library")
library.FLAGS += ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
import numpy as np
if sys.argv[1] == "beyond":  # the sanitizer is at work: a row beyond the end of what it was given
    found = library.library()
    weights, packed = np.zeros(64, np.int8), np.zeros(1 << 14, np.uint8)
    found.ethorch_pack_weights(weights.ctypes.data, 1, 1, 64, 64, 2, packed.ctypes.data)
if sys.argv[1] == "cases":
    from tests.npu import test_plan
    test_plan.run_cases(sys.argv[2])
else:
    from tests.npu import fuzzing
    sys.exit(fuzzing.main(sys.argv[1:]))
"""


def run_cases(target: str) -> int:
    """Every operator graph that Vela takes for a target, both ways; how many there are."""
    count = 0
    for _, program, model, arrays in compiled_cases(CASES, target):
        run_both_ways(lambda c, p=program, m=model: make_machine(p, m, compiled=c), lambda m, a=arrays, d=model: fill(m, d, a))
        count += 1
    return count


def sanitized(*arguments: str) -> subprocess.CompletedProcess[str]:
    runtimes = [
        subprocess.run(["g++", f"-print-file-name=lib{name}.so"], capture_output=True, text=True).stdout.strip()
        for name in ("asan", "ubsan")
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": " ".join(runtimes)}
    env["ASAN_OPTIONS"] = "detect_leaks=0:allocator_may_return_null=1"
    return subprocess.run([sys.executable, "-c", SANITIZED, *arguments], cwd=ROOT, env=env, capture_output=True, text=True)


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize("arguments", [("cases", "u55-128"), ("cases", "u85-256"), ("--first", "2000000", "--count", "30000")])
def test_addresses_and_undefined_behaviour(arguments):
    """Sanitizers find nothing in what Vela emits, nor in damaged and made-up streams."""
    child = sanitized("beyond")
    assert child.returncode and "AddressSanitizer: heap-buffer-overflow" in child.stderr, child.stderr[-2000:]
    child = sanitized(*arguments)
    assert child.returncode == 0, child.stdout[-2000:] + child.stderr[-2000:]


PREBUILT = """
import sys
from pathlib import Path
from ethorch.support import native
native.PREBUILT = Path(sys.argv[1])
from ethorch.npu.plan import library
from ethorch.npu.weights import compiled
assert library.library() is not None and compiled.library() is not None
from tests.npu import test_plan
program, model, arrays = test_plan.compiled("residual_block", "u55-128")
machine = test_plan.make_machine(program, model)
machine.run()
assert machine.plan.share == 1 and not Path(sys.argv[2]).exists()
"""


@pytest.mark.long
@needs_compiler
def test_a_wheels_libraries_run_where_there_is_no_compiler(tmp_path):
    """What ``make wheel`` puts into a wheel, in a process that finds no compiler and no cache."""
    made, cache = tmp_path / "prebuilt", tmp_path / "cache"
    static = {**os.environ, "CXX": "g++ -static-libstdc++ -static-libgcc"}
    subprocess.run([sys.executable, "-m", "ethorch.npu.prebuild", str(made)], cwd=ROOT, env=static, check=True)
    assert len(list(made.glob("*.so"))) == 1 + len(library.LEVELS)
    env = {**os.environ, "PATH": "/nowhere", "CXX": "", "ETHORCH_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    child = subprocess.run(
        [sys.executable, "-c", PREBUILT, str(made), str(cache)], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr[-2000:]
