"""Build small TOSA graphs, compile them with Vela in process, and run them in the reference model and the machine.

A case is a function that builds a graph on a ``Graph`` and returns the names of its outputs. ``check`` compiles it for one target
and compares every output byte on full-range random inputs.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import tosa_serializer as ts
from ethosu import regor

from tests.helpers.both_ways import run_both_ways

TARGETS = {
    "u55-32": ("EthosU55", 32, 1),
    "u55-64": ("EthosU55", 64, 1),
    "u55-128": ("EthosU55", 128, 1),
    "u55-256": ("EthosU55", 256, 1),
    "u65-256": ("EthosU65", 256, 1),
    "u65-512": ("EthosU65", 256, 2),
    "u85-128": ("EthosU85", 128, 1),
    "u85-256": ("EthosU85", 256, 1),
    "u85-512": ("EthosU85", 512, 1),
    "u85-1024": ("EthosU85", 1024, 1),
    "u85-2048": ("EthosU85", 2048, 1),
}
SYSTEMS = {  # family: (system config, memory mode)
    "u55": ("Ethos_U55_High_End_Embedded", "Shared_Sram"),
    "u65": ("Ethos_U65_High_End", "Dedicated_Sram"),
    "u85": ("Ethos_U85_SYS_DRAM_Mid", "Dedicated_Sram_384KB"),
}
NUMPY = {"INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT48": np.int64, "BOOL": np.bool_, "SHAPE": np.int64}
ATTRIBUTE = {"MATMUL": "MatMul", "ARGMAX": "ArgMax", "INTDIV": "IntDiv", "CONST_SHAPE": "ConstShape"}


class Refused(Exception):
    """Vela refuses this graph for this target."""


class Tensor(str):
    """Name, shape and TOSA type of a tensor."""

    shape: tuple[int, ...]
    dtype: str


class Graph:
    """A TOSA graph under construction. One seeded generator draws all values."""

    def __init__(self, seed: int = 0):
        self.ser = ts.TosaSerializer("")
        self.rng = np.random.default_rng(seed)
        self.inputs: list[tuple[tuple[int, ...], str, tuple[int, int]]] = []
        self.outputs: list[Tensor] = []
        self.count = 0

    def _name(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def _tensor(self, name: str, shape, dtype: str) -> Tensor:
        t = Tensor(name)
        t.shape, t.dtype = tuple(shape), dtype
        return t

    def input(self, *shape: int, dtype: str = "INT8", low: int | None = None, high: int | None = None) -> Tensor:
        info = np.iinfo(NUMPY[dtype]) if dtype != "BOOL" else None
        bounds = (0, 1) if info is None else (int(info.min), int(info.max))
        self.inputs.append((shape, dtype, (bounds[0] if low is None else low, bounds[1] if high is None else high)))
        name = self._name()
        tensor = ts.TosaSerializerTensor(name, list(shape), getattr(ts.DType, dtype), None)
        self.ser.addInputTensor(tensor)
        return self._tensor(name, shape, dtype)

    def const(self, values, dtype: str = "INT8") -> Tensor:
        values = np.asarray(values, NUMPY[dtype])
        name = self._name()
        shape = list(values.shape)
        self.ser.addConst(shape, getattr(ts.DType, dtype), values.ravel() if dtype != "SHAPE" else values, name=name)
        return self._tensor(name, shape, dtype)

    def random(self, *shape: int, dtype: str = "INT8", low: int = -127, high: int = 127) -> Tensor:
        return self.const(self.rng.integers(low, high + 1, shape), dtype)

    def op(self, kind: str, inputs: list, shape, dtype: str, **attributes) -> Tensor:
        name = self._name()
        self.ser.currRegion.currBasicBlock.addTensor(name, [int(s) for s in shape], getattr(ts.DType, dtype))
        attribute = ts.TosaSerializerAttribute()
        camel = ATTRIBUTE.get(kind) or "".join(word.capitalize() for word in kind.split("_"))
        getattr(attribute, f"{camel}Attribute")(**attributes)
        self.ser.addOperator(getattr(ts.Op, kind), [str(i) for i in inputs], [name], attribute)
        return self._tensor(name, shape, dtype)

    def output(self, *tensors: Tensor) -> None:
        for t in tensors:
            self.ser.addOutputTensor(ts.TosaSerializerTensor(str(t), list(t.shape), getattr(ts.DType, t.dtype), None))
            self.outputs.append(t)

    # Operations of most cases.

    def zero(self, dtype: str, value: int = 0) -> Tensor:
        return self.const([value], dtype)

    def rescale(
        self,
        x: Tensor,
        dtype: str = "INT8",
        scale=1.0,
        zp_in: int = 0,
        zp_out: int = 0,
        rounding: str = "SINGLE_ROUND",
        unsigned=(False, False),
    ) -> Tensor:
        """x * scale, one scale or one per channel of the last axis."""
        scale32 = x.dtype != "INT48"
        bits = 31 if scale32 else 15
        pairs = [multiplier_shift(s, bits) for s in np.atleast_1d(scale)]
        multiplier = self.const([m for m, _ in pairs], "INT32" if scale32 else "INT16")
        shift = self.const([s for _, s in pairs], "INT8")
        return self.op(
            "RESCALE",
            [x, multiplier, shift, self.zero(x.dtype, zp_in), self.zero(dtype, zp_out)],
            x.shape,
            dtype,
            scale32=scale32,
            rounding_mode=getattr(ts.RoundingMode, rounding),
            per_channel=np.ndim(scale) > 0,
            input_unsigned=unsigned[0],
            output_unsigned=unsigned[1],
        )

    def conv(
        self,
        x: Tensor,
        out: int,
        kernel=(3, 3),
        stride=(1, 1),
        pad=(0, 0, 0, 0),
        dilation=(1, 1),
        zp: int = 0,
        depthwise: bool = False,
        weights=None,
        rescale: str | None = "INT8",
        zp_out: int = 0,
        per_channel: bool = True,
    ) -> Tensor:
        """CONV2D or DEPTHWISE_CONV2D (out = multiplier), then a RESCALE that spreads sums over the output range."""
        n, h, w, c = x.shape
        oh = (h + pad[0] + pad[1] - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
        ow = (w + pad[2] + pad[3] - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1
        shape = (*kernel, c, out) if depthwise else (out, *kernel, c)
        depth = c * out if depthwise else out
        if weights is None:
            weights = np.clip(self.rng.normal(0, 40, shape).round(), -127, 127)
        weight = self.const(weights, "INT8")
        acc = "INT48" if x.dtype == "INT16" else "INT32"
        bias = self.random(depth, dtype=acc, low=-3000, high=3000)
        result = self.op(
            "DEPTHWISE_CONV2D" if depthwise else "CONV2D",
            [x, weight, bias, self.zero(x.dtype, zp), self.zero("INT8")],
            (n, oh, ow, depth),
            acc,
            pad=list(pad),
            stride=list(stride),
            dilation=list(dilation),
            local_bound=False,
            acc_type=getattr(ts.DType, acc),
        )
        if rescale is None:
            return result
        return self.spread(result, kernel[0] * kernel[1] * (1 if depthwise else c), x.dtype, rescale, zp_out, per_channel)

    def spread(
        self,
        acc: Tensor,
        taps: int,
        source: str,
        dtype: str,
        zp_out: int = 0,
        per_channel: bool = True,
        sigma: float = 40.0,
    ) -> Tensor:
        """RESCALE sums of ``taps`` products so that about three of their deviations fill ``dtype``."""
        deviation = math.sqrt(taps) * sigma * (74 if source == "INT8" else 18900)
        unit = {"INT8": 127, "INT16": 32767, "INT32": 2**24}[dtype] / (2.5 * deviation)
        scale = unit * self.rng.uniform(0.5, 1.5, acc.shape[-1]) if per_channel else unit
        return self.rescale(acc, dtype, scale, zp_out=zp_out)

    def serialize(self) -> bytes:
        return bytes(self.ser.serialize())


def multiplier_shift(scale: float, bits: int = 31) -> tuple[int, int]:
    """Return (m, s) with scale ~ m / 2**s and m of ``bits`` bits. TOSA requires 2 <= s <= 62."""
    mantissa, exponent = math.frexp(scale)
    m, s = round(mantissa * (1 << (bits - 1))), bits - 1 - exponent
    if m == 1 << (bits - 1):
        m, s = m >> 1, s - 1
    while s > 62:
        m, s = m >> 1, s - 1
    while s < 2:
        m, s = m << 1, s + 1
    return m, s


@cache
def _vela_ini() -> str:
    import ethosu

    return (Path(next(iter(ethosu.__path__))) / "config_files/Arm/vela.ini").read_text()


def compile_graph(tosa: bytes, target: str, options: str = "", memory_mode: str | None = None, fmt: str = "TOSA"):
    """Return Vela's CompiledRawModel for a serialized TOSA graph or TFLite model. Raise Refused if Vela refuses it."""
    arch, macs, cores = TARGETS[target]
    system, memory = SYSTEMS[target[:3]]
    sysconfig = (
        f"[architecture]\nmacs={macs}\ncores={cores}\n"
        f"[vela]\nsystem_config_name={system}\nmemory_mode_name={memory_mode or memory}\n{_vela_ini()}"
    )
    if "[compiler]" not in options:
        options = "[compiler]\noutput_format=Raw\ncop_format=COP1\n[scheduler]\noptimize=Performance\n" + options
    try:
        return regor.compile(arch, tosa, fmt, sysconfig, options, False)
    except Exception as error:
        assert "Validation error" not in str(error), f"the graph is not valid TOSA: {error}"
        raise Refused(str(error)) from None


def _serve(connection: Connection, parents: Connection) -> None:
    import tosa_reference_model

    parents.close()  # the end of the parent process is the end of this one
    with contextlib.suppress(EOFError):
        while True:
            outputs, status = tosa_reference_model.run(*connection.recv())
            connection.send((outputs, str(status)))


@cache
def _reference_model() -> Connection:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    context.Process(target=_serve, args=(there, here), daemon=True).start()
    there.close()
    return here


def reference(tosa: bytes, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Run the reference model in a forked child, because it aborts its process on invalid graphs. One child runs many graphs."""
    connection = _reference_model()
    try:
        connection.send((tosa, arrays))
        outputs, status = connection.recv()
    except (EOFError, ConnectionError):
        _reference_model.cache_clear()
        raise AssertionError("the reference model died") from None
    assert "VALID" in status, status
    return outputs


def run_machine(model, arrays: list[np.ndarray], machine=None, **options) -> list[np.ndarray]:
    """Run a CompiledRawModel on the machine."""
    from ethorch.npu import Program

    if machine is None:
        machine = make_machine(Program(model.command_stream, np.frombuffer(model.read_only.data, np.uint8)), model, **options)
    fill(machine, model, arrays)
    machine.run()
    results = []
    for spec in model.outputs:
        dtype = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}[spec.element_size]
        size = int(np.prod(spec.shape)) * spec.element_size
        raw = machine.region(spec.region)[spec.address : spec.address + size]
        results.append(raw.view(dtype).reshape(spec.shape).copy())
    return results


def fill(machine, model, arrays: list[np.ndarray]) -> None:
    """Write the inputs to memory."""
    for spec, array in zip(model.inputs, arrays, strict=True):
        data = np.ascontiguousarray(array).view(np.uint8).ravel()
        machine.region(spec.region)[spec.address : spec.address + data.size] = data
        machine.mark_written(spec.region, spec.address, data.size)


def make_machine(program, model, **options):
    """Create a machine with the memory of a CompiledRawModel, including separate regions of inputs and outputs."""
    from ethorch.npu import Machine

    sizes: dict[int, int] = {}
    for spec in (*model.inputs, *model.outputs):
        if spec.region > 2:
            sizes[spec.region] = max(sizes.get(spec.region, 0), -(-(spec.address + spec.size) // 16) * 16)
    regions = {region: np.zeros(size, np.uint8) for region, size in sizes.items()}
    fast = model.scratch_fast.size if model.scratch_fast.region else 0
    return Machine(program, model.scratch.size, fast, regions=regions, **options)


def draw(graph: Graph, seed: int) -> list[np.ndarray]:
    """Draw random inputs over each input's range, including its limits."""
    rng = np.random.default_rng(seed)
    arrays = []
    for shape, dtype, (low, high) in graph.inputs:
        x = rng.integers(low, high + 1, shape).astype(NUMPY[dtype])
        if x.size >= 2:
            x.ravel()[:2] = low, high
        arrays.append(x)
    return arrays


def check(build: Callable[[Graph], None], target: str, seed: int = 1, least: int = 2, **compile_options) -> None:
    """Build, compile, run twice on both sides and compare; then run as a plan and compare all memory.

    Args:
        least: Required number of distinct output values.
    """
    graph = Graph(seed)
    build(graph)
    tosa = graph.serialize()
    model = compile_graph(tosa, target, **compile_options)
    from ethorch.npu import Program

    program = Program(model.command_stream, np.frombuffer(model.read_only.data, np.uint8))
    machine = make_machine(program, model, checks=("uninitialized", "overlap"))
    for run in range(2):
        arrays = draw(graph, seed + run)
        wanted = reference(tosa, arrays)
        got = run_machine(model, arrays, machine)
        for w, g in zip(wanted, got, strict=True):
            w = np.asarray(w).view(np.int8) if w.dtype == np.bool_ else np.asarray(w)
            assert w.size == g.size
            assert len(np.unique(w)) >= min(least, w.size), "the case's output hardly varies"
            different = np.count_nonzero(w.ravel() != g.ravel().astype(w.dtype))
            assert not different, f"{different} of {w.size} values differ"
    plan = run_both_ways(lambda c: make_machine(program, model, compiled=c), lambda m: fill(m, model, draw(graph, seed)), runs=2)
    assert plan is None or not plan.reasons, sorted(set(plan.reasons.values()))
