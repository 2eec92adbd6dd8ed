"""Count output elements of a .pte that differ from the fake-quantized module, by operator, for both implementations.

``python -m bench.differences [--targets T,T] [--scheme int8|a16w8] [--operators a,b] [--json]``

Each operator is a small module. Each implementation quantizes the module with four random inputs in a separate process, compiles
it, and runs eight other inputs in ``ethorch.runtime``. An element differs if its integer value differs from that of fake
quantization. The table also lists the SQNR of the .pte against the float module. Fake quantization rounds after each operator of a
composite. A more precise lowering therefore differs, but has a better SQNR.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.accuracy import CONFIGS, FUNCTIONS, SCHEMES
from bench.compile import DEFAULT_TARGETS, markdown_row, provenance
from bench.implementation import IMPLEMENTATIONS, convert_in_steps, flat, load_api, memory_for, run_in_child, stdout_for_json

Record = dict[str, Any]
Shape = tuple[int, ...]


class Of(nn.Module):
    """A module that applies a function to its inputs."""

    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


class First(nn.Module):
    """A module that returns the first result of another module."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.module(*inputs)[0]


class Residual(nn.Module):
    """A module that adds its input to the result of another module."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return x + self.module(x)


@dataclass(frozen=True)
class Case:
    """An operator.

    Attributes:
        create: Function that creates the module.
        shapes: Input shapes.
        low: Lower bound of uniform inputs up to 1. None selects normally distributed inputs.
    """

    create: Callable[[], nn.Module]
    shapes: Sequence[Shape]
    low: float | None = None

    def inputs(self, seed: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        if self.low is None:
            return tuple(torch.randn(shape, generator=generator) for shape in self.shapes)
        return tuple(self.low + (1 - self.low) * torch.rand(shape, generator=generator) for shape in self.shapes)


def _of(function: Callable[..., Tensor], *shapes: Shape, low: float | None = None) -> Case:
    return Case(lambda: Of(function), shapes, low)


def _build_inverted_residual() -> nn.Module:
    layers = [nn.Conv2d(16, 64, 1), nn.ReLU6(), nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.ReLU6(), nn.Conv2d(64, 16, 1)]
    return Residual(nn.Sequential(*layers))


MAP, ROWS, VECTOR = (1, 8, 16, 16), (1, 16, 64), (1, 64)

CASES: dict[str, Case] = {
    "conv2d": Case(lambda: nn.Conv2d(8, 16, 3, padding=1), [MAP]),
    "conv2d, relu": Case(lambda: nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU()), [MAP]),
    "conv2d, relu6": Case(lambda: nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU6()), [MAP]),
    "conv2d, batch_norm, hardswish": Case(lambda: nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.Hardswish()), [MAP]),
    "depthwise, relu6": Case(lambda: nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), nn.ReLU6()), [MAP]),
    "conv_transpose2d": Case(lambda: nn.ConvTranspose2d(8, 8, 2, 2), [MAP]),
    "conv1d": Case(lambda: nn.Conv1d(16, 16, 5), [ROWS]),
    "linear": Case(lambda: nn.Linear(64, 32), [ROWS]),
    "inverted residual": Case(_build_inverted_residual, [(1, 16, 16, 16)]),
    "add": _of(lambda x, y: x + 3 * y, MAP, MAP),
    "add of itself": _of(lambda x: x + x.flip(-1), MAP),
    "sub": _of(torch.sub, MAP, MAP),
    "mul": _of(torch.mul, MAP, (1, 8, 1, 1)),
    "div": _of(torch.div, MAP, MAP, low=0.2),
    "matmul": _of(lambda x, y: x @ y.transpose(1, 2), ROWS, ROWS),
    "minimum": _of(torch.minimum, MAP, MAP),
    "cat": _of(lambda x, y: torch.cat([x, 2 * y], 1), MAP, MAP),
    "where": _of(lambda x, y: torch.where(x > 0, x, 2 * y), MAP, MAP),
    "mean": _of(lambda x: x.mean((2, 3)), MAP),
    "mean of rows": _of(lambda x: x.mean(-1), ROWS),
    "sum": _of(lambda x: x.sum(-1), ROWS),
    "var": _of(lambda x: x.var(-1), ROWS),
    "amax": _of(lambda x: x.amax(-1), ROWS),
    "cumsum": _of(lambda x: x.cumsum(-1), (1, 4, 16)),
    "fold": _of(lambda x: F.fold(x, (16, 16), 3, padding=1), (1, 27, 256)),
    "affine_grid": _of(lambda x: F.affine_grid(x, [1, 3, 12, 16], align_corners=False), (1, 2, 3)),
    "avg_pool2d": Case(lambda: nn.AvgPool2d(3, 2, 1), [MAP]),
    "adaptive_avg_pool2d": Case(lambda: nn.AdaptiveAvgPool2d(1), [MAP]),
    "max_pool2d": Case(lambda: nn.MaxPool2d(2), [MAP]),
    "interpolate, bilinear": _of(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), MAP),
    "interpolate, nearest": _of(lambda x: F.interpolate(x, scale_factor=2), MAP),
    "pixel_shuffle": _of(lambda x: F.pixel_shuffle(x, 2), MAP),
    "relu": _of(F.relu, MAP),
    "relu6": _of(F.relu6, MAP),
    "clamp": _of(lambda x: x.clamp(-0.5, 1.5), MAP),
    "leaky_relu": _of(F.leaky_relu, MAP),
    "prelu": Case(lambda: nn.PReLU(8), [MAP]),
    "abs": _of(torch.abs, MAP),
    "sigmoid": _of(torch.sigmoid, MAP),
    "tanh": _of(torch.tanh, MAP),
    "gelu": _of(F.gelu, MAP),
    "silu": _of(F.silu, MAP),
    "hardswish": _of(F.hardswish, MAP),
    "hardsigmoid": _of(F.hardsigmoid, MAP),
    "exp": _of(torch.exp, MAP),
    "log": _of(torch.log, MAP, low=0.1),
    "sqrt": _of(torch.sqrt, MAP, low=0.0),
    "rsqrt": _of(torch.rsqrt, MAP, low=0.1),
    "reciprocal": _of(torch.reciprocal, MAP, low=0.1),
    "pow": _of(lambda x: x**2, MAP),
    "sin": _of(torch.sin, MAP),
    "erf": _of(torch.erf, MAP),
    "softmax": _of(lambda x: x.softmax(-1), ROWS),
    "softmax of channels": _of(lambda x: x.softmax(1), MAP),
    "log_softmax": _of(lambda x: x.log_softmax(-1), ROWS),
    "layer_norm": Case(lambda: nn.LayerNorm(64), [ROWS]),
    "rms_norm": Case(lambda: nn.RMSNorm(64), [ROWS]),
    "group_norm": Case(lambda: nn.GroupNorm(2, 8), [MAP]),
    "instance_norm": Case(lambda: nn.InstanceNorm2d(8), [MAP]),
    "batch_norm": Case(lambda: nn.BatchNorm2d(8), [MAP]),
    "norm": _of(lambda x: F.normalize(x, dim=-1), ROWS),
    "cosine_similarity": _of(lambda x, y: F.cosine_similarity(x, y, -1), ROWS, ROWS),
    "scaled_dot_product_attention": _of(F.scaled_dot_product_attention, *[(1, 4, 16, 16)] * 3),
    "MultiheadAttention": Case(lambda: First(nn.MultiheadAttention(64, 4, batch_first=True)), [ROWS, ROWS, ROWS]),
    "TransformerEncoderLayer": Case(lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), [ROWS]),
    "Transformer": Case(lambda: nn.Transformer(32, 2, 1, 1, 64, batch_first=True), [(1, 8, 32), (1, 8, 32)]),
    "GRU": Case(lambda: First(nn.GRU(64, 16, batch_first=True)), [(1, 6, 64)]),
    "LSTM": Case(lambda: First(nn.LSTM(64, 16, batch_first=True)), [(1, 6, 64)]),
}


def measure(impl: str, target: str, scheme: str, names: Sequence[str]) -> Record:
    """Measure the operators with one implementation in this process, and return name -> record."""
    from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

    torch.set_num_threads(1)
    api = load_api(impl)
    config = getattr(import_module(CONFIGS[impl]), FUNCTIONS[scheme])
    prepare = import_module("ethorch.quantization.prepare").prepare if impl == "ethorch" else prepare_pt2e
    system_config, memory_mode = memory_for(target)
    spec = api.EthosUCompileSpec(target, system_config=system_config, memory_mode=memory_mode)
    records: Record = {}
    for name in names:
        try:
            records[name] = measure_case(api, spec, config(), prepare, name)
        except Exception as error:
            records[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
        print(target, impl, name, records[name], file=sys.stderr, flush=True)
    return records


def measure_case(api: Any, spec: Any, config: Any, prepare: Any, name: str) -> Record:
    """Return the elements, the differing elements, the largest difference in steps, and both SQNRs against float."""
    from contextlib import nullcontext

    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower

    from ethorch.support.metrics import sqnr_db

    case = CASES[name]
    torch.manual_seed(zlib.crc32(name.encode()))
    model = case.create().eval()
    graph = torch.export.export(model, case.inputs(0)).module(check_guards=False)
    quantizer = api.EthosUQuantizer(spec).set_global(config)
    converted = convert_in_steps(graph, quantizer, map(case.inputs, range(4)), lambda step: nullcontext(), prepare)
    edge = to_edge_transform_and_lower(
        torch.export.export(converted, case.inputs(0)),
        partitioner=[api.EthosUPartitioner(spec)],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    delegates = sum("executorch_call_delegate" in str(node.target) for node in edge.exported_program().graph.nodes)
    program = edge.to_executorch(config=ExecutorchBackendConfig(extract_delegate_segments=False))
    host = import_module("ethorch.runtime").load(program.buffer)  # after the backend's work: both have one name
    fresh = [case.inputs(seed) for seed in range(100, 108)]
    with torch.no_grad():
        wanted = torch.cat([flat(model(*x)) for x in fresh])
        fake = torch.cat([flat(converted(*x)) for x in fresh])
    found = torch.cat([flat([y for y in host(*x) if isinstance(y, Tensor)]) for x in fresh])
    steps = ((found - fake).abs() / _step(converted)).round()
    return {
        "delegates": delegates,
        "elements": steps.numel(),
        "different": int((steps > 0).sum()),
        "steps": int(steps.max()),
        "pte_sqnr_db": sqnr_db(wanted, found),
        "fake_sqnr_db": sqnr_db(wanted, fake),
    }


def _step(converted: Any) -> float:
    """Return the scale of the output."""
    (last,) = converted.graph.output_node().all_input_nodes
    assert "dequantize_per_tensor" in str(last.target), f"the output is {last.format_node()}"
    return float(last.args[1])


def table(records: dict[str, Record]) -> str:
    """Format a row for each operator: share of differing elements, largest difference in steps, and SQNR of each implementation."""
    head = ["operator"]
    for impl in ("ethorch", "Arm backend"):
        head += [f"{impl}: differ, %", "steps at most", ".pte dB", "fake-quantized dB"]
    lines = [markdown_row(head), markdown_row(["---", *["--:"] * (len(head) - 1)])]
    for name in records["ethorch"]:
        cells = [name]
        for impl in IMPLEMENTATIONS:
            found = records[impl].get(name, {"error": "none"})
            if "error" in found or not found["delegates"]:
                cells += ["fails" if "error" in found else "CPU", "", "", ""]
                continue
            share = 100 * found["different"] / found["elements"]
            cells += [f"{share:.2f}", str(found["steps"]), f"{found['pte_sqnr_db']:.1f}", f"{found['fake_sqnr_db']:.1f}"]
        lines.append(markdown_row(cells))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.differences", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", default=",".join(DEFAULT_TARGETS), help="comma-separated")
    parser.add_argument("--operators", help=f"separated by semicolons; default: {'; '.join(CASES)}")
    parser.add_argument("--scheme", choices=SCHEMES, default="int8")
    parser.add_argument("--impl", choices=IMPLEMENTATIONS, help="measure one implementation for the first target, in this process")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    names = [name.strip() for name in options.operators.split(";")] if options.operators else list(CASES)
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"unknown operators {', '.join(unknown)}; known: {'; '.join(CASES)}")
    targets = options.targets.split(",")
    if options.impl:
        with stdout_for_json() as stdout:
            os.write(stdout, (json.dumps(measure(options.impl, targets[0], options.scheme, names)) + "\n").encode())
        return 0
    results: dict[str, dict[str, Record]] = {}
    for target in targets:
        common = ["--targets", target, "--scheme", options.scheme, "--operators", ";".join(names)]
        results[target] = {impl: run_in_child("bench.differences", ["--impl", impl, *common]) for impl in IMPLEMENTATIONS}
    if options.json:
        print(json.dumps({"provenance": provenance(), "results": results}, indent=1))
        return 0
    for target, records in results.items():
        print(f"### {target}, {options.scheme}\n\n{table(records)}\n")
    print(provenance())
    return 0


if __name__ == "__main__":
    sys.exit(main())
