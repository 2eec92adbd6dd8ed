"""Write docs/cpu-kernels.md with measured sizes and instruction counts: ``python -m tests.helpers.kernel_page``.

Sizes are those of clang in the package ziglang for a Cortex-M33 at -Os. Unicorn counts instructions. The count of a call with half
as many elements is subtracted from that with twice as many, to remove the overhead of a call.
"""

from __future__ import annotations

import tempfile
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ethorch.deploy.firmware.kernels import list_kernels
from ethorch.formats.files import write_whole
from ethorch.formats.pte_types import Value
from tests.helpers.c_kernels import CortexM33, Program, compile_kernels
from tests.helpers.made_calls import Made, T

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "cpu-kernels.md"

#: Largest differences from ExecuTorch's runtime, in units of the last place. Tests of the kernels check them.
STEPS = {
    "exp, log, log1p, pow": 1,
    "expm1, log2, log10, tanh, sigmoid, sin, cos, erf, elu": 2,
    "tan, sums, means and products of floats, convolution, bilinear resizing": 4,
    "softmax, log_softmax": 8,
}


F, I8 = "float32", "int8"


@dataclass(frozen=True)
class Cost:
    """A call with a measured cost: name, operator, arguments for n units of work, unit."""

    name: str
    operator: str
    arguments: Callable[[int], Sequence[object]]
    unit: str = "element"
    units: int = 1


def _unary(name: str, dtype: str = F) -> Cost:
    return Cost(name, f"aten::{name}.out", lambda n: (T(dtype, n), T(dtype, n)))


def _q(dtype: str, low: int, high: int) -> list[Cost]:
    namespace = "quantized_decomposed"
    return [
        Cost(
            f"quantize to {dtype}", f"{namespace}::quantize_per_tensor.out", lambda n: (T(F, n), 0.1, 3, low, high, 1, T(dtype, n))
        ),
        Cost(
            f"dequantize {dtype}",
            f"{namespace}::dequantize_per_tensor.out",
            lambda n: (T(dtype, n), 0.1, 3, low, high, 1, None, T(F, n)),
        ),
    ]


COSTS: tuple[Cost, ...] = (
    *_q(I8, -128, 127),
    *_q("int16", -32768, 32767),
    Cost("copy of contiguous elements", "aten::alias_copy.out", lambda n: (T(I8, n), T(I8, n)), "byte"),
    Cost("permute of int8, 8 channels", "aten::permute_copy.out", lambda n: (T(I8, 8, n), (1, 0), T(I8, n, 8)), units=8),
    Cost("cat of rows of 32 bytes", "aten::cat.out", lambda n: ((T(I8, n, 32), T(I8, n, 32)), 1, T(I8, n, 64)), "byte", 64),
    Cost("cast of int64 to int32", "dim_order_ops::_to_dim_order_copy.out", lambda n: (T("int64", n), False, None, T("int32", n))),
    Cost("cast of float32 to int8", "dim_order_ops::_to_dim_order_copy.out", lambda n: (T(F, n), False, None, T(I8, n))),
    Cost("add of float32", "aten::add.out", lambda n: (T(F, n), T(F, n), 1, T(F, n))),
    Cost("add of int8, converted", "aten::add.out", lambda n: (T(I8, n), T(I8, n), 1, T(I8, n))),
    Cost("div of float32", "aten::div.out", lambda n: (T(F, n), T(F, n), T(F, n))),
    Cost("where of float32", "aten::where.self_out", lambda n: (T("bool", n), T(F, n), T(F, n), T(F, n))),
    *map(_unary, ("relu", "sqrt", "exp", "log", "sigmoid", "tanh", "sin", "erf")),
    Cost("gelu", "aten::gelu.out", lambda n: (T(F, n), "none", T(F, n))),
    Cost("pow", "aten::pow.Tensor_Scalar_out", lambda n: (T(F, n), 2.5, T(F, n))),
    Cost("softmax of 32", "aten::_softmax.out", lambda n: (T(F, n, 32), 1, False, T(F, n, 32)), units=32),
    Cost("mean of 64", "aten::mean.out", lambda n: (T(F, n, 64), (1,), False, None, T(F, n)), units=64),
    Cost("amax of int8, converted, 64", "aten::amax.out", lambda n: (T(I8, n, 64), (1,), False, T(I8, n)), units=64),
    Cost("argmax of int8", "aten::argmax.out", lambda n: (T(I8, n), None, False, T("int64"))),
    Cost("topk, 5 of 64", "aten::topk.values",
         lambda n: (T(F, n, 64), 5, 1, True, True, T(F, n, 5), T("int64", n, 5)), units=64),
    Cost("embedding of 64 bytes", "aten::embedding.out",
         lambda n: (T(I8, 4, 64), T("int64", n), -1, False, False, T(I8, n, 64)), "row"),
    Cost("gather of float32", "aten::gather.out", lambda n: (T(F, n), 0, T("int64", n), False, T(F, n))),
    Cost("cumsum of int64", "aten::cumsum.out", lambda n: (T("int64", n), 0, None, T("int64", n))),
    Cost("layer norm of 64", "aten::native_layer_norm.out",
         lambda n: (T(F, n, 64), (64,), T(F, 64), T(F, 64), 1e-5, T(F, n, 64), T(F, n, 1), T(F, n, 1)), units=64),
    Cost("nearest, twice as large", "aten::upsample_nearest2d.vec_out",
         lambda n: (T(I8, 1, n, 8, 8), None, (2.0, 2.0), T(I8, 1, n, 16, 16)), units=256),
    Cost("bilinear, twice as large", "aten::upsample_bilinear2d.vec_out",
         lambda n: (T(F, 1, n, 8, 8), None, False, (2.0, 2.0), T(F, 1, n, 16, 16)), units=256),
    Cost("convolution, 3 x 3 of 8 channels", "aten::convolution.out",
         lambda n: (T(F, 1, 8, n + 2, 10), T(F, 8, 8, 3, 3), T(F, 8), (1, 1), (0, 0), (1, 1), False, (0, 0), 1, T(F, 1, 8, n, 8)),
         "multiply-add", 8 * 8 * 72),
    Cost("max pool, 2 x 2 of int8", "aten::max_pool2d_with_indices.out",
         lambda n: (T(I8, 1, n, 8, 8), (2, 2), (2, 2), (0, 0), (1, 1), False, T(I8, 1, n, 4, 4), T("int64", 1, n, 4, 4)), units=64),
    Cost("product of matrices", "aten::mm.out", lambda n: (T(F, n, 64), T(F, 64, 8), T(F, n, 8)), "multiply-add", 512),
    Cost("product of int8 matrices", "cortex_m::quantized_batch_matmul.out",
         lambda n: (T(I8, 1, n, 64), 3, T(I8, 1, 8, 64), -8, 2, 1518500250, -9, T(I8, 32), T(I8, 1, n, 8)), "multiply-add", 512),
)  # fmt: skip


def make_program(cost: Cost, n: int, number: int) -> Program:
    made = Made()
    made.call(cost.operator, cost.arguments(n))
    return Program(f"p{number}", b"", made.method(), (b"",), ())


def _random(value: Value) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, value.dtype)
    if dtype.is_floating_point:
        return torch.rand(value.shape) * 3 + 0.1
    if dtype is torch.bool:
        return torch.rand(value.shape) > 0.5
    return torch.randint(0, 4, value.shape, dtype=dtype)


def instructions() -> dict[str, float]:
    """Return the instructions per unit of work on a Cortex-M33, for each of COSTS."""
    torch.manual_seed(0)
    few, many = 16, 32
    programs = [make_program(cost, n, 2 * k + (n == many)) for k, cost in enumerate(COSTS) for n in (few, many)]
    with tempfile.TemporaryDirectory() as folder:
        c = CortexM33(programs, Path(folder))
        counts = []
        for program in programs:
            status, _ = c.run(program, [_random(program.method.values[index]) for index in program.method.inputs])
            assert status == 0
            counts.append(c.count(program))
    return {cost.name: (counts[2 * k + 1] - counts[2 * k]) / (many - few) / cost.units for k, cost in enumerate(COSTS)}


def page() -> str:
    """Return the page's text."""
    lines = [
        "# Operators on the CPU, in C",
        "",
        "Firmware of `ethorch firmware` computes CPU operators without ExecuTorch, by C functions of",
        "`ethorch/deploy/firmware/c/kernels`. They are C11 without heap and without writable data, and use only `memcpy` and",
        "`memset` of the C library. Shapes, strides and scales are constants in flash. A program links only the functions that it",
        "calls (`-ffunction-sections`, `--gc-sections`). `python -m tests.helpers.kernel_page` writes this page.",
        "",
        "## Accuracy",
        "",
        "These operators equal ExecuTorch's runtime on x86-64 bit for bit, including NaN and infinities: quantize, dequantize,",
        "casts, data movement, integers, comparisons, booleans, basic float arithmetic, rounding, square roots, extremes and their",
        "indices, pooling, layer norm. Tests run each operator on this computer and on an emulated Cortex-M33 and compare.",
        "",
        "The largest differences of the others, in units of the last place of a float32:",
        "",
        "| operators | units |",
        "| --- | --- |",
        *(f"| {names} | {steps} |" for names, steps in STEPS.items()),
        "| gelu | 2, of its argument |",
        "| batch norm | 4, of its largest term |",
        "",
        "Intended differences and limits:",
        "",
        "- `x / 0` of integers returns 0; ExecuTorch's runtime stops.",
        "- An index that is out of range fails the call without a memory access.",
        "- `topk` returns equal elements in the order of their indices; the runtime's order is undefined.",
        "- `div`, `floor` and similar operators of integers are exact; the runtime computes them in float, inexactly beyond 2^24",
        "  or 2^53.",
        "- A cast of a float beyond an integer's range returns the smallest integer, as the runtime does on x86-64.",
        "- Quantization saturates as in PyTorch: +inf becomes the largest integer value, -inf the smallest, and NaN 0.",
        "  ExecuTorch's kernel does the same on Arm. On x86-64 it returns the smallest value for +inf and above 2^63 steps, which",
        "  `ethorch.runtime` corrects.",
        "- `remainder` of integers has the sign of the dividend.",
        "- float16, bfloat16 and float64 can be moved, and float64 can be cast; arithmetic is not supported.",
        "",
        "## Operators",
        "",
        f"{len(list_kernels())} operators are supported. `ethorch firmware` refuses others, with the name and a remedy.",
    ]
    by_namespace: dict[str, list[str]] = {}
    for name in list_kernels():
        namespace, _, rest = name.partition("::")
        by_namespace.setdefault(namespace, []).append(rest)
    for namespace, names in by_namespace.items():
        text = textwrap.wrap(", ".join(names), 130, break_on_hyphens=False, break_long_words=False)
        lines += ["", f"`{namespace}`:", "", "```", *text, "```"]
    lines += [
        "",
        "## Instructions",
        "",
        "Instructions of a Cortex-M33 with single precision, compiled by clang at -Os and counted in emulation. Assume one cycle",
        "per instruction on a Cortex-M55 without its vector unit.",
        "",
        "| operation | instructions | per |",
        "| --- | --- | --- |",
    ]
    counted = instructions()
    lines += [f"| {cost.name} | {counted[cost.name]:.1f} | {cost.unit} |" for cost in COSTS]
    lines += [
        "",
        "## Sizes",
        "",
        "Bytes of code for a Cortex-M33, compiled by clang at -Os.",
        "",
        "| source | functions | smallest | largest | all |",
    ]
    lines += ["| --- | --- | --- | --- | --- |"]
    sizes: dict[str, dict[str, int]] = {}
    for name, function in compile_kernels().items():
        sizes.setdefault(function.source, {})[name] = function.size_bytes
    for source, functions in sizes.items():
        small, large = min(functions, key=functions.__getitem__), max(functions, key=functions.__getitem__)
        total = sum(functions.values())
        lines.append(f"| `{source}` | {len(functions)} | `{small}` {functions[small]} | `{large}` {functions[large]} | {total} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    write_whole(PAGE, page().encode())
