"""Compile a network for NPUs and compare every delegate in the simulator with the TOSA reference model.

A ``Case`` is a network with a target, a scheme and a memory system. ``Subject`` quantizes and lowers a network once for all
NPUs of a family and computes each delegate in the TOSA reference model before rewrites; each case then compiles and runs these
delegates. The reference model refuses arrays of more than ``MAX_RANK`` axes, which a lowering may contain; ethorch's own
interpreter then replaces it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import random
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from ethorch import EthosUCompileSpec
from ethorch.arm.quantizer import get_symmetric_a16w8_quantization_config, get_symmetric_quantization_config
from ethorch.backend.build import build_pte
from ethorch.backend.emit.partitions import Partition, call_delegate, partition_graph
from ethorch.lower.fx.states import with_codes, with_reads_first
from ethorch.models.load import UserModel
from ethorch.npu import Machine, Program
from ethorch.npu.ir import decode
from ethorch.npu.ir.image import Image
from ethorch.npu.passes import division
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.pipeline import Optimized, optimize
from ethorch.npu.verify import decode_instructions, verify_listing
from ethorch.program.measure.ladder import compare
from ethorch.quantization.calibrate import quantize
from ethorch.support.errors import MachineFault, QuantizationError, Reason
from ethorch.targets.npus import TARGETS
from ethorch.tosa import interpreter
from ethorch.tosa.ir import Graph
from ethorch.tosa.layout import MAX_RANK
from ethorch.tosa.serialize import serialize
from ethorch.vela import optimize as vela_optimize
from ethorch.vela.compiled_model import CompiledModel
from ethorch.vela.delegate import compile_lowered
from tests.helpers.random_networks.network import Network
from tests.helpers.tosa_runs import reference

SCHEMES = {"int8": get_symmetric_quantization_config, "16x8": get_symmetric_a16w8_quantization_config}
#: All configurations: each NPU with each scheme.
COMBINATIONS = tuple((target, scheme) for scheme in SCHEMES for target in TARGETS)
#: Family -> its system configurations and memory modes that Vela accepts.
MEMORIES = {
    "u55": [
        (system, mode)
        for system in ("Ethos_U55_High_End_Embedded", "Ethos_U55_Deep_Embedded")
        for mode in ("Shared_Sram", "Sram_Only")
    ],
    "u65": [("Ethos_U65_Embedded", mode) for mode in ("Shared_Sram", "Sram_Only")]
    + [
        ("Ethos_U65_High_End", mode)
        for mode in (
            "Dedicated_Sram",
            "Dedicated_Sram_256KB",
            "Dedicated_Sram_384KB",
            "Dedicated_Sram_512KB",
            "Shared_Sram",
            "Sram_Only",
        )
    ],
    "u85": [("Ethos_U85_SYS_Flash_High", mode) for mode in ("Shared_Sram", "Sram_Only")]
    + [
        ("Ethos_U85_SYS_DRAM_Mid", mode)
        for mode in (
            "Dedicated_Sram",
            "Dedicated_Sram_256KB",
            "Dedicated_Sram_384KB",
            "Dedicated_Sram_512KB",
            "Shared_Sram",
            "Sram_Only",
        )
    ],
}


@dataclass(frozen=True)
class Case:
    """A configuration to compile a network for."""

    target: str
    scheme: str
    system_config: str
    memory_mode: str

    @property
    def family(self) -> str:
        return TARGETS[self.target].family

    def spec(self) -> EthosUCompileSpec:
        return EthosUCompileSpec(self.target, self.system_config, self.memory_mode)

    def __str__(self) -> str:
        return f"{self.target} {self.scheme} {self.system_config} {self.memory_mode}"


def cases(seed: int, count: int) -> list[Case]:
    """Return ``count`` configurations, at most 5, for network ``seed``.

    They share scheme and quantization. Each combination occurs equally often in 22 consecutive networks.
    """
    group, turn = _TURNS[seed % len(_TURNS)]
    source = random.Random(f"memories {seed}")
    chosen = [group[(turn * count + place) % len(group)] for place in range(count)]
    return [Case(target, scheme, *source.choice(MEMORIES[TARGETS[target].family])) for target, scheme in chosen]


def quantized_as(target: str) -> str:
    """Return the family whose quantization ``target`` shares: U65 is quantized like U55."""
    return "u85" if TARGETS[target].family == "u85" else "u55"


def _turns() -> list[tuple[list[tuple[str, str]], int]]:
    """Return a group of combinations and a number for each of 22 networks. A group has as many turns as members."""
    groups = [
        [combination for combination in COMBINATIONS if (quantized_as(combination[0]), combination[1]) == (family, scheme)]
        for scheme in SCHEMES
        for family in ("u85", "u55")
    ]
    turns = [(turn / len(group), group, turn) for group in groups for turn in range(len(group))]
    return [(group, turn) for _, group, turn in sorted(turns, key=lambda entry: entry[0])]


_TURNS = _turns()


class Failure(Exception):
    """A wrong result. Failures with equal ``kind`` probably have the same cause."""

    def __init__(self, kind: str, text: str):
        super().__init__(f"{kind}: {text}")
        self.kind = kind


@dataclass(frozen=True)
class Delegate:
    """A lowered delegate, with the input of a run and the reference model's outputs."""

    graph: Graph
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]


class Subject:
    """A network that is quantized and lowered once per family and scheme."""

    def __init__(self, network: Network):
        self.network = network
        self._delegates: dict[tuple[str, str], list[Delegate] | None] = {}
        self._quantized: dict[tuple[str, str], GraphModule] = {}

    @cached_property
    def _built(self) -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
        return self.network.build()

    def user_model(self) -> UserModel:
        module, samples = self._built
        return UserModel(module, samples[0], samples)

    def quantized(self, case: Case) -> GraphModule:
        """Return the converted graph."""
        key = (quantized_as(case.target), case.scheme)
        if key not in self._quantized:
            spec = EthosUCompileSpec("ethos-u85-256" if key[0] == "u85" else "ethos-u55-128")
            with _quiet():
                self._quantized[key] = quantize(self.user_model(), spec, SCHEMES[case.scheme](is_per_channel=True))  # type: ignore
        return self._quantized[key]

    def delegates(self, case: Case) -> list[Delegate] | None:
        """Return the delegates for the case's family. None if only ExecuTorch can partition the graph."""
        key = (case.family, case.scheme)
        if key not in self._delegates:
            inputs = self._built[1][0]
            graph, _ = with_codes(self.quantized(case))
            with _quiet():
                self._delegates[key] = _collected(graph, inputs, EthosUCompileSpec(case.target))
        return self._delegates[key]


def _collected(module: GraphModule, inputs: tuple[Tensor, ...], spec: EthosUCompileSpec) -> list[Delegate] | None:
    graph = partition_graph(with_reads_first(module), spec)
    if isinstance(graph, Reason):
        return [] if graph.id == "writer.no_delegate" else None
    runner = _Runner(graph.module, graph.partitions)
    with torch.no_grad():
        runner.run(*inputs)
    return runner.delegates


def _delegate(captured: Partition, values: Sequence[Tensor]) -> Delegate:
    graph = captured.graph
    codes = [value.detach().contiguous().numpy() for value in values]
    codes = [
        x.astype(np.int32) if value.dtype == "INT32" and x.dtype == np.int64 else x
        for x, value in zip(codes, graph.inputs, strict=True)
    ]
    rank = max((value.rank for region in graph.regions() for op in region.ops for value in (*op.operands, *op.results)), default=0)
    return Delegate(graph, codes, interpreter.run(graph, codes) if rank > MAX_RANK else reference(serialize(graph), codes))


class _Runner(torch.fx.Interpreter):
    """Run a partitioned graph with the reference model in place of each delegate."""

    def __init__(self, module: GraphModule, partitions: Sequence[Partition]):
        super().__init__(module)
        self.partitions = partitions
        self.results = {node.args[1]: node.meta["val"] for node in module.graph.nodes if node.target is call_delegate}
        self.delegates: list[Delegate] = []

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is not call_delegate:
            return super().call_function(target, args, kwargs)
        delegate = _delegate(self.partitions[args[1]], args[0])
        self.delegates.append(delegate)
        results = zip(delegate.outputs, self.results[args[1]], strict=True)
        return [torch.from_numpy(array.copy()).reshape(value.shape) for array, value in results]


def check(subject: Subject, case: Case, *, whole_program: bool = False) -> str:
    """Compile the network for a case and compare.

    Returns:
        "equal"; "repaired", if Vela's commands were wrong and copies corrected them (``ethorch.vela.repair``); "refused", "on the
        CPU" or "through ExecuTorch".

    Args:
        whole_program: Also write the ``.pte`` and run it in ExecuTorch's runtime.

    Raises:
        Failure: The bytes differ, the simulator stops, Vela prints an error, or the verifier rejects the optimized commands.
        Exception: Any other error of compilation except refusals.
    """
    try:
        delegates = subject.delegates(case)
    except QuantizationError:
        return "refused"
    if delegates is None or whole_program:
        model = subject.user_model()
        with _nothing_printed():
            built = build_pte(subject.quantized(case), model.example_inputs, case.spec())
        ladder = compare(model.module, subject.quantized(case), built, model.calibration[0])
        if not ladder.bit_exact:
            raise Failure("differs", ladder.to_text())
        return "through ExecuTorch" if delegates is None else "equal"
    repaired = False
    for number, delegate in enumerate(delegates):
        with _nothing_printed(), mock.patch.object(vela_optimize, "optimize", _optimize):
            lowered = compile_lowered(delegate.graph.copy(), TARGETS[case.target].tuning, case.spec())
        repaired |= bool(lowered.repairs)
        found = simulated(lowered.compiled, delegate.inputs)
        for place, (got, wanted) in enumerate(zip(found, delegate.outputs, strict=True)):
            different = int((got.ravel() != np.asarray(wanted).ravel()).sum())
            if different:
                raise Failure("differs", f"{different} of {got.size} elements of output {place} of delegate {number}")
    return "repaired" if repaired else "equal" if delegates else "on the CPU"


#: Number of streams that each pass changed, in this process.
PASS_COUNTS: Counter[str] = Counter()
#: ``division.LEAST_BYTES`` for random networks, few of which need the memory of the default.
_LEAST_BYTES = 16 << 10


def _optimize(payload: bytes, image: Image, context: Context) -> Optimized | None:
    try:
        with mock.patch.object(division, "LEAST_BYTES", _LEAST_BYTES):
            optimized = optimize(payload, image, context)
    except MachineFault as fault:
        decode(payload, image)  # raises for streams that no pass can change
        if any(verify_listing(decode_instructions(payload), image)):
            return None  # Vela's stream is wrong, and is repaired
        raise Failure("rejected", f"a pass fails: {fault}") from fault
    if optimized is not None:
        PASS_COUNTS.update(effect.name for effect in optimized.effects)
    if optimized is not None and optimized.rejected:
        raise Failure("rejected", f"pass {optimized.rejected}: {optimized.rejections[0]}")
    return optimized


def simulated(compiled: CompiledModel, codes: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a compiled model once, with noise in memory."""
    machine = Machine(Program(compiled.command_stream, compiled.constants), compiled.scratch_bytes, compiled.scratch_fast_bytes)
    noise = np.random.default_rng(0)
    for number in (1, 2):
        if number in machine.regions:
            region = machine.region(number)
            region[:] = noise.integers(0, 256, region.size, dtype=np.uint8)
    for tensor, array in zip(compiled.inputs, codes, strict=True):
        data = np.ascontiguousarray(array).view(np.uint8).ravel()
        machine.region(tensor.region)[tensor.offset : tensor.offset + data.size] = data
    machine.run()
    results = []
    for tensor in compiled.outputs:
        raw = machine.region(tensor.region)[tensor.offset : tensor.offset + tensor.nbytes]
        results.append(raw.copy().view(f"int{8 * tensor.element_size}").reshape(tensor.shape))
    return results


@contextlib.contextmanager
def _nothing_printed() -> Iterator[None]:
    """Raise Failure if Python or C code prints anything in the context. Warnings and logs are discarded."""
    with _quiet() as printed:
        yield
    if printed():
        raise Failure("printed", printed())


@contextlib.contextmanager
def _quiet() -> Iterator[Callable[[], str]]:
    """Collect the output of Python and C code for the yielded function to return after the context. Discard warnings and logs."""
    text = io.StringIO()
    lines: list[str] = []
    kept = os.dup(1), os.dup(2)
    disabled = logging.root.manager.disable
    with (
        tempfile.TemporaryFile() as file,
        contextlib.redirect_stdout(text),
        contextlib.redirect_stderr(text),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield lambda: "".join(lines).strip()
        finally:
            logging.disable(disabled)
            for number, copy in enumerate(kept, 1):
                os.dup2(copy, number)
                os.close(copy)
            file.seek(0)
            lines += [text.getvalue(), file.read().decode(errors="replace")]


def outcome(subject: Subject, case: Case, **options: Any) -> tuple[str, str]:
    """Return (result of ``check``, "") or (kind, text) of a failure."""
    try:
        return check(subject, case, **options), ""
    except Failure as failure:
        return f"failure {failure.kind}", str(failure)
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "ethorch" in frame.filename]
        place = f"{os.path.basename(frames[-1].filename)}:{frames[-1].name}" if frames else ""
        words = " ".join(str(error).split())[:600]
        return f"failure {type(error).__name__} in {place}", words + "\n" + "".join(traceback.format_tb(error.__traceback__)[-3:])
