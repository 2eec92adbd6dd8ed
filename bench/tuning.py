"""Measure the choices of ``Tuning``: cycles of a graph with the tuning of its target, and with one choice changed.

``python -m bench.tuning [--fields a,b] [--write docs/measurements.md]``
``python -m bench.tuning --steps``
``python -m bench.tuning --network unet --target ethos-u85-256 --choice transpose_conv=TRANSPOSE_CONV2D``

Prints a row per measurement, with Vela's estimates for the system configuration and memory mode of the benchmarks. ``--write``
replaces the table of that file. All measurements need about a minute of one core.

``--steps`` compares ``TransposeCost`` with Vela's estimates of single steps. ``--network`` estimates a network of the benchmarks
with a different choice, which is a word, ``None``, ``True``, ``False`` or a number.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from bench.implementation import memory_for
from ethorch import EthosUCompileSpec
from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QParams, QTensor
from ethorch.lower.ops.sums import sum_over
from ethorch.targets import TARGETS, TUNING, Target, Tuning
from ethorch.tosa.ir import Graph
from ethorch.vela.delegate import builder_for, compile_lowered

#: Fills the graph of a Builder of the target, as it is tuned.
Fill = Callable[[Builder], Graph]
HEADER = ("| field | graph | NPU | selected value, cycles | alternative, cycles |", "|---|---|---|---|---|")


@dataclass(frozen=True)
class Measurement:
    """One graph on one or more targets.

    Attributes:
        field: Field of ``Tuning``.
        graph: Description of the graph.
        fill: Function that builds the graph.
        others: Choice to compare with, by target.
    """

    field: str
    graph: str
    fill: Fill
    others: Mapping[str, Any]

    def cycles(self, name: str) -> tuple[int, int]:
        """Return Vela's estimates with the target's tuning, and with the other choice of the field.

        Planar inputs are used only if the field selects them, because they would hide the effect of other choices.
        """
        target, tuning = TARGETS[name], TARGETS[name].tuning
        if self.field != "read_planes":
            tuning = replace(tuning, read_planes=None)
        tunings = tuning, replace(tuning, **{self.field: self.others[name]})
        tuned, instead = (cycles(replace(target, tuning=each), self.fill) for each in tunings)
        return tuned, instead

    def rows(self) -> Iterator[str]:
        """Return a row of the table of docs/measurements.md for each target."""
        for name, other in self.others.items():
            chosen = getattr(TARGETS[name].tuning, self.field)
            tuned, instead = self.cycles(name)
            found = f"{_words(chosen, other)}{tuned:,} | {_words(other, chosen)}{instead:,}"
            yield f"{self.key(name)} {found} |"

    def key(self, target: str) -> str:
        """Return the start of the row, which does not depend on Vela."""
        return f"| `{self.field}` | {self.graph} | {target} |"


def _words(choice: Any, base: Any) -> str:
    """Format a choice for a cell. If a choice consists of numbers, only numbers that differ from ``base`` are included."""
    if is_dataclass(choice) and type(choice) is type(base):
        pairs = [(field.name, getattr(choice, field.name)) for field in fields(choice)]
        return ", ".join(f"{name}={value}" for name, value in pairs if value != getattr(base, name)) + ": "
    if is_dataclass(choice):
        return f"{type(choice).__name__}: "
    return f"{choice:g}: " if isinstance(choice, float) else f"{choice}: "


def cycles(target: Target, fill: Fill) -> int:
    """Return Vela's estimate of a graph with the tuning of the target."""
    spec = EthosUCompileSpec(target.name, *memory_for(target.name))
    return compile_lowered(fill(builder_for(target)), target.tuning, spec).performance.total_cycles


def network_cycles(model: str, target: str, field: str, alternative: Any) -> tuple[int, int]:
    """Return Vela's total estimates for the delegates of a network, with the target's tuning and with the alternative choice."""
    from bench.models import ALL_MODELS
    from ethorch.backend.build import build_pte
    from ethorch.models.load import UserModel
    from ethorch.quantization.calibrate import quantize

    case, (system_config, memory_mode) = ALL_MODELS[model], memory_for(target)
    user = UserModel(case.build(), case.example_inputs(), case.calibration())
    spec = EthosUCompileSpec(target, system_config, memory_mode)
    quantized, row = quantize(user, spec), TARGETS[target]
    found = []
    for tuning in (row.tuning, replace(row.tuning, **{field: alternative})):
        with patch("ethorch.targets.compile_spec.lookup", return_value=replace(row, tuning=tuning)):
            built = build_pte(quantized, user.example_inputs, EthosUCompileSpec(target, system_config, memory_mode))
        found.append(sum(delegate.compiled.performance.total_cycles for delegate in built.delegates))
    return found[0], found[1]


def _choice(text: str) -> tuple[str, Any]:
    """Parse ``field=value`` to (field, value)."""
    field, _, value = text.partition("=")
    if field not in {known.name for known in fields(Tuning)} or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not a choice of Tuning. Use the form transpose_conv=phases.")
    try:
        return field, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return field, value


def of_module(make: Callable[[], Any], *shape: int, bits: int = 8) -> Fill:
    """Return the graph of a torch module with one random input, quantized to int8, or to int16 with int8 weights."""

    def fill(b: Builder) -> Graph:
        import torch
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

        from ethorch import EthosUQuantizer
        from ethorch.arm.quantizer import get_symmetric_a16w8_quantization_config, get_symmetric_quantization_config
        from ethorch.lower.walk import lower_program

        torch.manual_seed(0)
        module, inputs = make().eval(), (torch.randn(shape),)
        config = get_symmetric_quantization_config if bits == 8 else get_symmetric_a16w8_quantization_config
        quantizer = EthosUQuantizer(EthosUCompileSpec(b.target)).set_global(config(is_per_channel=True))
        prepared = prepare_pt2e(torch.export.export(module, inputs).module(check_guards=False), quantizer)
        prepared(*inputs)
        return lower_program(torch.export.export(convert_pt2e(prepared), inputs), b)

    return fill


def of_operator(dtype: str, shape: Sequence[int], emit: Callable[[Builder, Any], Any]) -> Fill:
    """Return a graph of one or a few operators on one input."""

    def fill(b: Builder) -> Graph:
        b.graph.outputs.append(emit(b, b.input("x", shape, dtype)))
        return b.graph

    return fill


def _torch(name: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    def make() -> Any:
        import torch

        return getattr(torch.nn, name)(*args, **kwargs)

    return make


def _end() -> Any:
    """Return the last layers of a network like mobilenet_v2."""
    from torch import nn

    return nn.Sequential(nn.Conv2d(64, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 10))


def _classifier() -> Any:
    """Return the last layers of a network like mobilenet_v3."""
    from torch import nn

    return nn.Sequential(nn.Linear(576, 1024), nn.Hardswish(), nn.Linear(1024, 1000))


def _product() -> Any:
    """Return a product of the transposed first 16 columns of a matrix and the other columns."""
    import torch

    class Product(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :, :16].transpose(1, 2) @ x[:, :, 16:]

    return Product()


def _multiply_rows(b: Builder, x: Any) -> Any:
    """Multiply each pair of rows of a matrix, with the zero point that the quantizer selects for the second operand."""
    written = b.tuning.written_weights
    columns, zero_point = b.emit("TRANSPOSE", x, perms=[0, 2, 1]), 0 if written is None else written.zero_point
    return b.rescale(b.emit("MATMUL", x, columns, a_zp=zero_point, b_zp=zero_point), 0.001, dtype="INT8")


def _scores() -> Any:
    """Return a product of the first row of each head and all other rows, like a query and keys."""
    import torch

    class Scores(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :, :1] @ x[:, :, 1:].transpose(2, 3)

    return Scores()


def _enlarge() -> Any:
    """Return the last layers of a network for super-resolution."""
    from torch import nn

    return nn.Sequential(nn.Conv2d(8, 12, 3, padding=1), nn.PixelShuffle(2))


def _shuffle() -> Any:
    """Return two units of shufflenet, which convolve one half of the channels, concatenate both halves and shuffle."""
    from torch import Tensor, cat, nn

    class Units(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = (nn.Conv2d(116, 116, 1) for _ in range(2))
            self.branches = nn.ModuleList(nn.Conv2d(58, 58, 1) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            y = self.before(x)
            for branch in self.branches:
                assert isinstance(branch, nn.Conv2d)
                one, other = y.chunk(2, 1)
                y = cat([one, branch(other)], 1).reshape(1, 2, 58, 28, 28).transpose(1, 2).reshape(1, 116, 28, 28)
            return self.after(y)

    return Units()


def _quotient() -> Any:
    import torch

    class Quotient(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x[:1].abs() / (x[1:].abs() + 0.5)

    return Quotient()


def _scale() -> Any:
    import torch

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("factor", torch.rand(128) + 0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.mul(x, self.get_buffer("factor"))

    return Scaled()


def _table(b: Builder, x: Any) -> Any:
    return b.emit("TABLE", x, b.const(np.arange(-128, 128)[::-1].astype(np.int8)))


def _rescale(b: Builder, x: Any) -> Any:
    return b.rescale(x, 0.4, input_zp=3, output_zp=-5)


U55, U65, U85 = "ethos-u55-128", "ethos-u65-256", "ethos-u85-256"
_STEM = _torch("Conv2d", 3, 64, 7, stride=2, padding=3)
_IN_STEPS = of_operator("INT8", (8, 7, 8, 7, 96), lambda b, x: b.emit("TRANSPOSE", x, perms=(0, 2, 1, 3, 4)))
_COPIES = of_operator("INT16", (1, 1), lambda b, x: b.emit("TILE", x, multiples=(1, 1000)))


def _sum(b: Builder, x: Any) -> Any:
    """Sum over the middle of three axes."""
    q = QParams((0.1,), (0,), -128, 127, "INT8")
    return sum_over(b, QTensor(x, ((0,), (1,), (2,)), q), [1], q, 1.0).value


_MAXIMA = of_operator(
    "INT8", (1, 1, 1024, 64), lambda b, x: b.emit("MAX_POOL2D", x, kernel=(1, 4), stride=(1, 4), pad=(0, 0, 0, 0))
)

MEASUREMENTS: tuple[Measurement, ...] = (
    Measurement(
        "transpose",
        "convolution 3x3 of NCHW [1,3,224,224] to 16 channels",
        of_module(_torch("Conv2d", 3, 16, 3), 1, 3, 224, 224),
        {U85: "folded", U55: "whole"},
    ),
    Measurement(
        "transpose_conv",
        "transposed convolution 2x2, stride 2, of [1,64,16,16] to 32 channels",
        of_module(_torch("ConvTranspose2d", 64, 32, 2, 2), 1, 64, 16, 16),
        {U55: "TRANSPOSE_CONV2D", U85: "TRANSPOSE_CONV2D"},
    ),
    Measurement(
        "transpose_conv",
        "transposed convolution 4x4, stride 2, of [1,64,16,16] to 32 channels",
        of_module(_torch("ConvTranspose2d", 64, 32, 4, 2, 1), 1, 64, 16, 16),
        {U55: "TRANSPOSE_CONV2D", U85: "TRANSPOSE_CONV2D"},
    ),
    Measurement(
        "crop",
        "convolution 3x3, stride 2, of NCHW [1,3,224,224] to 64 channels",
        of_module(_torch("Conv2d", 3, 64, 3, stride=2), 1, 3, 224, 224),
        {U85: "map", U55: "kernel"},
    ),
    Measurement(
        "mean",
        "convolution 1x1 of [1,64,7,7] to 1280 channels, ReLU6, mean over the map",
        of_module(_end, 1, 64, 7, 7),
        {U85: "sum", U55: "AVG_POOL2D"},
    ),
    Measurement(
        "largest_max_pool_in_turn_bytes",
        "max pool 5x5 of [1,64,32,32]",
        of_module(_torch("MaxPool2d", 5, 1, 2), 1, 64, 32, 32),
        {U55: None, U85: None},
    ),
    Measurement(
        "largest_max_pool_in_turn_bytes",
        "max pool 5x5 of [1,64,61,61]",
        of_module(_torch("MaxPool2d", 5, 1, 2), 1, 64, 61, 61),
        {U55: None, U85: math.inf},
    ),
    Measurement(
        "fewest_results_of_wide_stride", "max pool 1x4, stride 4, of 1024 columns and 64 channels", _MAXIMA, {U55: None, U85: None}
    ),
    Measurement(
        "most_places_before_sum",
        "sum over the middle axis of [8000,4,4]",
        of_operator("INT8", (8000, 4, 4), _sum),
        {U55: None, U65: None},
    ),
    Measurement(
        "fold_strides",
        "convolution 7x7, stride 2, of [1,3,224,224] to 64 channels",
        of_module(_STEM, 1, 3, 224, 224),
        {U55: None, U65: None, U85: None},
    ),
    Measurement(
        "fold_strides",
        "convolution 7x7, stride 2, of [1,3,96,96] to 64 channels",
        of_module(_STEM, 1, 3, 96, 96),
        {U55: None, U85: None},
    ),
    Measurement(
        "fold_strides",
        "convolution 7x7, stride 2, of [1,3,224,224] to 64 channels, INT16",
        of_module(_STEM, 1, 3, 224, 224, bits=16),
        {U85: None},
    ),
    Measurement(
        "fold_strides",
        "convolution 3x3, stride 2, of [1,3,224,224] to 32 channels",
        of_module(_torch("Conv2d", 3, 32, 3, stride=2, padding=1), 1, 3, 224, 224),
        {U55: None, U65: TUNING["u55"].fold_strides},
    ),
    Measurement(
        "read_planes",
        "convolution 3x3 of [1,3,96,96] to 16 channels",
        of_module(_torch("Conv2d", 3, 16, 3, padding=1), 1, 3, 96, 96),
        {U85: None},
    ),
    Measurement(
        "read_planes",
        "convolution 3x3, stride 2, of [1,3,96,96] to 16 channels",
        of_module(_torch("Conv2d", 3, 16, 3, 2, 1), 1, 3, 96, 96),
        {U85: None},
    ),
    Measurement(
        "read_planes",
        "convolution 3x3, stride 2, of [1,3,96,96] to 16 channels, INT16",
        of_module(_torch("Conv2d", 3, 16, 3, 2, 1), 1, 3, 96, 96, bits=16),
        {U85: None},
    ),
    Measurement(
        "repeats_channels",
        "depthwise convolution 3x3 of [1,64,28,28] to 128 channels",
        of_module(_torch("Conv2d", 64, 128, 3, padding=1, groups=64), 1, 64, 28, 28),
        {U55: False, U65: False, U85: False},
    ),
    Measurement(
        "repeats_channels",
        "depthwise convolution 3x3 of [1,128,14,14] to 256 channels, INT16",
        of_module(_torch("Conv2d", 128, 256, 3, padding=1, groups=128), 1, 128, 14, 14, bits=16),
        {U55: False, U65: False, U85: False},
    ),
    Measurement(
        "split_weights",
        "linear layers of [1,576] to 1024 and 1000 outputs",
        of_module(_classifier, 1, 576),
        {U85: None},
    ),
    Measurement(
        "largest_selection", "two units of shufflenet on [1,116,28,28]", of_module(_shuffle, 1, 116, 28, 28), {U55: None, U85: None}
    ),
    Measurement(
        "shuffles_by_nhwc",
        "convolution 3x3 of [1,8,32,32] to 12 channels, pixel shuffle to [1,3,64,64]",
        of_module(_enlarge, 1, 8, 32, 32),
        {U55: True, U65: False, U85: False},
    ),
    Measurement(
        "transpose_steps",
        "transpose (window partition) of [8,7,8,7,96] to [8,8,7,7,96]",
        _IN_STEPS,
        {U55: None, U85: None},
    ),
    Measurement("tile_steps", "1000 copies of an INT16 value", _COPIES, {U65: None, U85: None}),
    Measurement(
        "most_reciprocal_tables",
        "quotient of two positive tensors [1,64,64]",
        of_module(_quotient, 2, 64, 64),
        {U55: 0, U85: 4},
    ),
    Measurement(
        "copies_broadcast_constants",
        "product of [1,64,128] and a constant per channel",
        of_module(_scale, 1, 64, 128),
        {U55: False, U85: True},
    ),
    Measurement(
        "smallest_rescale_by_depthwise",
        "RESCALE of [1,32,32,16]",
        of_operator("INT8", (1, 32, 32, 16), _rescale),
        {U55: None, U65: None, U85: None},
    ),
    Measurement(
        "smallest_rescale_by_depthwise",
        "RESCALE of [1,2,2,16]",
        of_operator("INT8", (1, 2, 2, 16), _rescale),
        {U55: 1, U85: 1},
    ),
    Measurement(
        "tables_by_depthwise",
        "TABLE of [1,32,32,24]",
        of_operator("INT8", (1, 32, 32, 24), _table),
        {U55: True, U85: False},
    ),
    Measurement(
        "smallest_rescale_by_depthwise",
        "RESCALE of [1,96,96,32]",
        of_operator("INT8", (1, 96, 96, 32), _rescale),
        {U65: None},
    ),
    Measurement(
        "fewest_columns_turned",
        "matrix product of [16,32] and [32,1024]",
        of_module(_product, 1, 32, 1040),
        {U55: None},
    ),
    Measurement(
        "written_weights",
        "matrix product of [4,64,64] and its transpose",
        of_operator("INT8", (4, 64, 64), _multiply_rows),
        {U55: None, U65: None},
    ),
    Measurement(
        "turns_stored_transposes",
        "product of a query of 48 elements and 256 keys, in each of 6 heads",
        of_module(_scores, 1, 6, 257, 48),
        {U85: False},
    ),
)


#: [first, second, inner] bytes that a step of ``transpose_steps`` brings to [second, first, inner].
STEPS = ((24, 16, 40), (100, 7, 16), (6, 10, 320), (64, 64, 16), (3, 100, 16), (672, 14, 16), (14, 672, 16))


def step_table() -> Iterator[str]:
    """Format a table of steps with the cycles estimated by ``TransposeCost`` and by Vela."""
    yield "| bytes | NPU | cycles | estimate |"
    yield "| --- | --- | --- | --- |"
    for target, shape in itertools.product((U55, U85), STEPS):
        row = TARGETS[target]
        cost = row.tuning.transpose_steps
        assert cost is not None
        found = cycles(row, of_operator("INT8", shape, lambda b, x: b.emit("TRANSPOSE", x, perms=(1, 0, 2))))
        yield f"| {list(shape)} | {target} | {found:,} | {cost.cycles(*shape):,.0f} |"


def table(fields: Sequence[str] = ()) -> Iterator[str]:
    """Return the lines of the table: all measurements, or those of ``fields``."""
    yield from HEADER
    for measurement in MEASUREMENTS:
        if not fields or measurement.field in fields:
            yield from measurement.rows()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.tuning", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fields", default="", help="fields of Tuning, separated by commas; default: all")
    parser.add_argument("--write", type=Path, help="replace the table of this file")
    parser.add_argument("--steps", action="store_true", help="compare TransposeCost with Vela instead")
    parser.add_argument("--network", help="estimate this network of the benchmarks instead")
    parser.add_argument("--target", default="ethos-u55-128", help="NPU for --network; default: %(default)s")
    parser.add_argument("--choice", type=_choice, help="choice to compare with, e.g. transpose_conv=phases")
    options = parser.parse_args(arguments)
    if options.network:
        if options.choice is None:
            parser.error("--network needs a --choice")
        tuned, other = network_cycles(options.network, options.target, *options.choice)
        print(f"{options.network} on {options.target}: {tuned:,} cycles, with {'='.join(map(str, options.choice))} {other:,}")
        return 0
    lines = []
    for line in step_table() if options.steps else table([name for name in options.fields.split(",") if name]):
        print(line, flush=True)
        lines.append(line)
    if options.write:
        old = options.write.read_text().splitlines()
        first = old.index(HEADER[0])
        last = next((k for k in range(first, len(old)) if not old[k].startswith("|")), len(old))
        options.write.write_text("\n".join([*old[:first], *lines, *old[last:]]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
