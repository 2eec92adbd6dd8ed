"""Small random graphs of the operators' samples: ``python -m tests.helpers.random_graphs --first 0 --count 2000``.

Each graph is a list of (sample, tensors that it reads), run in every layer and compared like one operator. The number determines
the graph; a new sample changes only a few graphs. Each failure is printed with its number and the steps needed to fail, and the
exit code is 1.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import hashlib
import math
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ethorch import EthosUCompileSpec
from ethorch.lower.fx.node import QUANTIZE, op_name
from ethorch.lower.ops import OPS
from ethorch.lower.ops.samples import I8, Bools, Ints, Sample
from ethorch.lower.ops.spec import find
from ethorch.support.errors import Unsupported
from ethorch.tosa.serialize import serialize
from tests.helpers import ladder
from tests.helpers.ladder import CONFIGS, REFUSED, TARGETS

#: Functions with jumps, or that PyTorch computes from rounded values: one input step may become any number of output steps.
WILD = {spec.name for spec in OPS.values() if spec.bound > 6 or spec.steps}
SAMPLES = [
    (spec.name, index)
    for spec in {spec.name: spec for spec in OPS.values()}.values()
    for index, sample in enumerate(spec.samples)
    if spec.name not in WILD and any(True for _ in ladder.leaves(sample, I8))
]
#: Bounds of int16 apply to operands that use their range. A norm of few codes may round deviations to two steps, for example.
WIDE = 4
FEWEST, MOST = 3, 12  # steps of a numbered graph
HANG_SECONDS = 600  # for one graph, wall-clock time
MOST_BYTES = 12 << 30  # of address space


@dataclass(frozen=True)
class Step:
    """One operator: its sample, and the previous tensors that it reads (modulo their number)."""

    name: str
    index: int
    reads: tuple[int, ...]

    @property
    def sample(self) -> Sample:
        return OPS[self.name].samples[self.index]

    @property
    def inputs(self) -> list[Any]:
        return list(ladder.leaves(self.sample, ladder.INPUTS))


class Drawn(nn.Module):
    """Consecutive steps. Results without readers are outputs."""

    def __init__(self, steps: Sequence[Step]):
        super().__init__()
        self.steps = steps
        self.calls = nn.ModuleList(ladder.Call(step.name, step.sample, seed) for seed, step in enumerate(steps))
        generator = torch.Generator().manual_seed(len(steps))
        for number, step in enumerate(steps):
            for place, kind in enumerate(step.inputs):
                if isinstance(kind, Ints):
                    ints = torch.randint(kind.low, kind.high + 1, kind.shape, generator=generator, dtype=getattr(torch, kind.dtype))
                    self.register_buffer(f"ints_{number}_{place}", ints)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        tensors, read, ends = [x], set(), []
        for number, (step, call) in enumerate(zip(self.steps, self.calls, strict=True)):
            arguments = []
            for place, (kind, chosen) in enumerate(zip(step.inputs, step.reads, strict=True)):
                if isinstance(kind, Ints):
                    arguments.append(getattr(self, f"ints_{number}_{place}"))
                    continue
                source = chosen % len(tensors)
                read.add(source)
                arguments.append(fitted(tensors[source], kind))
            result = call(*arguments)
            result = result[0] if isinstance(result, tuple) else result
            if result.dtype.is_floating_point:
                tensors.append(result)
            else:
                ends.append(result)
        return tuple([t for index, t in enumerate(tensors) if index not in read and index] + ends)


def fitted(x: Tensor, kind: I8 | Bools) -> Tensor:
    """Return ``x`` with the sample's shape and range: repeated, cut, viewed, bounded."""
    wanted = math.prod(kind.shape)
    if tuple(x.shape) != kind.shape:
        flat = x.flatten()
        if flat.numel() < wanted:
            flat = flat.repeat(-(-wanted // flat.numel()))
        x = flat[:wanted].view(kind.shape)
    if isinstance(kind, Bools):
        return x > 0
    if (kind.low, kind.high) != (-3.0, 3.0):
        return torch.sigmoid(x) * (kind.high - kind.low) + kind.low
    return torch.clamp(x, -3.0, 3.0)


class Jittered(torch.fx.Interpreter):
    """The quantized module with each operator's result off by one code, or a few for int16."""

    def __init__(self, module: torch.nn.Module, seed: int):
        super().__init__(module)  # type: ignore[arg-type]
        self.together = seed % 2  # all elements of an int16 result deviate in one direction
        self.generator = torch.Generator().manual_seed(seed)

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        made = n.args[0] if op_name(n.target) in QUANTIZE else None
        spec = find(made.target) if isinstance(made, torch.fx.Node) and made.op == "call_function" else None
        if spec is None or spec.rule(made).output == "same":  # not a quantize node, or its input was only moved
            return result
        low, high = n.args[3:5]
        shape = [1] * result.dim() if self.together and result.dtype == torch.int16 else result.shape
        off = torch.randint(-1, 2, shape, generator=self.generator, dtype=torch.int32)
        off = off * (WIDE * spec.bound16 if result.dtype == torch.int16 else 1)
        return torch.clamp(result.to(torch.int32) + off, low, high).to(result.dtype)


def amplified(q: ladder.Quantized, inputs: tuple[Tensor, ...]) -> list[np.ndarray]:
    """Return the largest deviation of each output's codes over a few runs with the usual deviation of all operators."""
    exact = q.output_codes(inputs)
    runs = [q.computed_by(Jittered(q.module, seed).run).output_codes(inputs) for seed in range(6)]
    return [np.max([np.abs(run[place] - want) for run in runs], axis=0) for place, want in enumerate(exact)]


def compare(q: ladder.Quantized, inputs: tuple[Tensor, ...], target: str, operators: int) -> str:
    """Compare like ``ladder.climb``. One step of an operator may become as many later steps as in the fake-quantized graph.

    For example, a norm of a nearly constant row amplifies steps. Returns "agrees" or "agrees, but amplifies".
    """
    graph = ladder.lowered(q.converted, target)
    tosa = serialize(graph)
    codes = q.input_codes(inputs)
    codes = [x.astype(np.int8) if value.dtype == "INT8" else x for x, value in zip(codes, graph.inputs, strict=True)]
    found = ladder.reference(tosa, codes)
    compiled = ladder.machine(tosa, codes, EthosUCompileSpec(target))
    for got, want in zip(compiled, found, strict=True):
        np.testing.assert_array_equal(got.ravel(), want.ravel())
    allowed: list[np.ndarray] | None = None
    for place, (want, got) in enumerate(zip(q.output_codes(inputs), found, strict=True)):
        assert want.shape == got.shape
        distance = np.abs(want - got.astype(np.int64))
        wide = 64 if got.dtype == np.int16 else 1
        if not astray(distance, 0, operators, wide):
            continue
        allowed = allowed or amplified(q, inputs)
        assert not astray(distance, allowed[place], operators, wide), (np.median(distance), want.ravel()[:10], got.ravel()[:10])
    return "agrees, but amplifies" if allowed else "agrees"


def astray(distance: np.ndarray, allowed: np.ndarray | int, operators: int, wide: int) -> bool:
    """Return True if an output's codes deviate more than ``operators`` explain and than ``allowed``."""
    usual = np.median(allowed)
    middle = np.median(distance) > max((1 + operators / 4) * wide, usual)
    return bool(middle or np.mean(distance > np.maximum(max((2 + operators) * wide, usual), allowed)) > 0.1)


def check(steps: Sequence[Step], target: str, activations: str) -> str:
    """Return the result of ``compare``, "refused", or "not finite" if floats fail. Errors propagate."""
    torch.manual_seed(0)
    module = Drawn(steps)
    samples = [(torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(seed)),) for seed in range(2)]
    results = module(*samples[0])
    if not results or not all(bool(torch.isfinite(result).all()) for result in results):
        return "not finite"
    q = ladder.quantized(module, samples, CONFIGS[activations](), target)
    try:
        return compare(q, samples[0], target, len(steps))
    except Unsupported as refusal:
        dtypes, families = REFUSED.get(refusal.reason.id, ((), ()))
        if activations not in dtypes or target.split("-")[1] not in families:
            raise
        return "refused"


def numbered(number: int) -> tuple[list[Step], str, str]:
    """Return steps, target and activations of graph ``number``."""

    def chosen(what: str, among: Sequence[Any]) -> Any:
        """Choose one of ``among``, mostly the same one after more are added."""
        return min(among, key=lambda one: hashlib.md5(f"{number} {what} {one}".encode()).digest())

    steps = []
    for place in range(chosen("count", range(FEWEST, MOST + 1))):
        name, index = chosen(f"step {place}", SAMPLES)
        reads = [chosen(f"step {place} reads {k}", (-3, -2, -1)) for k in range(len(Step(name, index, ()).inputs))]
        steps.append(Step(name, index, tuple(reads)))
    return steps, chosen("target", TARGETS), chosen("activations", sorted(CONFIGS))


def failure(steps: Sequence[Step], target: str, activations: str) -> Exception | None:
    """Return the error of the graph, if any."""
    try:
        check(steps, target, activations)
    except Exception as error:
        return error
    return None


def shrunk(steps: Sequence[Step], target: str, activations: str, kind: type) -> list[Step]:
    """Return the fewest steps with an error of this kind."""
    left = list(steps)
    place = len(left) - 1
    while place >= 0:
        fewer = [*left[:place], *left[place + 1 :]]
        if fewer and type(failure(fewer, target, activations)) is kind:
            left, place = fewer, len(fewer)
        place -= 1
    return left


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.helpers.random_graphs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    options = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    seen: Counter[str] = Counter()
    started = time.time()
    for done, number in enumerate(range(options.first, options.first + options.count)):
        graph = numbered(number)
        if done % 100 == 0:
            print(f"{number}: {dict(seen)}, {time.time() - started:.0f} s", flush=True)
            torch.compiler.reset()
            gc.collect()
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True, file=sys.__stderr__)
        try:
            seen[check(*graph)] += 1
        except Exception as error:
            seen["wrong"] += 1
            faulthandler.cancel_dump_traceback_later()
            where = [frame for frame in traceback.extract_tb(error.__traceback__) if "ethorch" in frame.filename][-1:]
            places = "".join(f" at {frame.filename}:{frame.lineno}" for frame in where)
            print(f"{number}: {graph[1]}, {graph[2]}: {type(error).__name__}: {' '.join(str(error).split())[:400]}{places}")
            for step in shrunk(*graph, type(error)):
                print(f"    {step.name} {step.index} {step.reads}", flush=True)
    faulthandler.cancel_dump_traceback_later()
    summary = ", ".join(f"{count} {what}" for what, count in sorted(seen.items()))
    print(f"{options.count} graphs: {summary}; {time.time() - started:.0f} s")
    return 1 if seen["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
