"""Programs of ``cortex_m::`` operators, and the results of the wheel's Python definitions for random inputs.

``python tests/helpers/cortex_m.py FOLDER NAME ...`` writes these files in a separate process, because the definitions import
ExecuTorch's Arm backend, whose delegate is also called EthosUBackend:

- operators: operators.pte, which calls each operator in several ways, and cases.pt: (name of each output, [(inputs, outputs)
  for each seed]);
- delegated, cortex_m55: a .pte by ``aot_arm_compiler`` for an Ethos-U or for a Cortex-M without one.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import executorch.backends.cortex_m.quantizer.quantizer  # noqa: F401  (defines the operators)
import torch
from executorch.exir import EdgeCompileConfig, to_edge
from torch import Tensor, nn

OPS = torch.ops.cortex_m
SEEDS = 6

Maker = Callable[[torch.Generator], Tensor]
Case = tuple[str, list[Maker], Callable[..., Tensor]]


def codes(*shape: int, dtype: torch.dtype = torch.int8, last: bool = False) -> Maker:
    """Return every code of the dtype, optionally as channels_last."""
    info = torch.iinfo(dtype)

    def make(generator: torch.Generator) -> Tensor:
        x = torch.randint(info.min, info.max + 1, shape, generator=generator).to(dtype)
        return x.contiguous(memory_format=torch.channels_last) if last else x

    return make


def numbers(*shape: int, low: int, high: int) -> Maker:
    return lambda generator: torch.randint(low, high, shape, generator=generator, dtype=torch.int32)


def reals(*shape: int, last: bool = False) -> Maker:
    def make(generator: torch.Generator) -> Tensor:
        x = torch.randn(shape, generator=generator) * 3
        return x.contiguous(memory_format=torch.channels_last) if last else x

    return make


def cases() -> Iterator[Case]:
    for dtype in (torch.int8, torch.uint8, torch.int16):
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        for scale, zero in ((0.0471, 7), (0.00113, low + 3), (1 / 3, high)):
            q = (scale, zero, low, high, dtype)
            yield f"quantize {dtype} {scale}", [reals(2, 3, 50)], lambda x, q=q: OPS.quantize_per_tensor(x, *q)
            yield f"dequantize {dtype} {scale}", [codes(2, 3, 50, dtype=dtype)], lambda x, q=q: OPS.dequantize_per_tensor(x, *q)
    yield (
        "quantize channels_last",
        [reals(2, 3, 4, 5, last=True)],
        lambda x: OPS.quantize_per_tensor(x, 0.03, 1, -128, 127, torch.int8),
    )
    same = [codes(2, 3, 5, 7), codes(2, 3, 5, 7)]
    wide = [codes(2, 3, 5, 7, last=True), codes(1, 3, 1, 1, last=True)]
    for name, tensors in (("", same), (" by channel", wide)):
        for a, b, out in ((-1, -2, -18), (0, -3, -16), (-5, 0, -20)):
            yield (
                f"add {a} {b} {out}{name}",
                tensors,
                lambda x, y, a=a, b=b, out=out: OPS.quantized_add(
                    x, 3, 1518500250, a, y, -7, 1991111111, b, -5, 1234567890, out, -100, 127
                ),
            )
        for shift in (-7, -3, 0):
            yield (
                f"mul {shift}{name}",
                tensors,
                lambda x, y, shift=shift: OPS.quantized_mul(x, 3, y, -11, 4, 1717986918, shift),
            )
    yield "div", same, lambda x, y: OPS.quantized_div(x, 3, y, -11, 4, 12.7)
    sixteen = [codes(4, 50, dtype=torch.int16), codes(4, 50, dtype=torch.int16)]
    yield "div int16", sixteen, lambda x, y: OPS.quantized_div(x, 0, y, 0, 0, 911.5)
    yield "activation", [codes(2, 3, 50), codes(256)], lambda x, table: OPS.quantized_activation(x, table)
    for name, op in (("minimum", OPS.minimum), ("maximum", OPS.maximum)):
        yield name, same, lambda x, y, op=op: op(x, y)
        yield f"{name} by a scalar", [codes(2, 3, 5, 7, last=True), codes(1)], lambda x, y, op=op: op(x, y)
        yield f"{name} broadcast", [codes(2, 1, 5), codes(3, 1)], lambda x, y, op=op: op(x, y)
    yield (
        "linear",
        [codes(2, 3, 40), codes(9, 40), numbers(9, low=-50000, high=50000)],
        lambda x, w, b: OPS.quantized_linear(x, w, b, None, 5, 0, -4, [1518500250], [-9], 127, -128),
    )
    yield (
        "linear with a kernel sum",
        [codes(3, 40), codes(9, 40), numbers(1, 9, low=-50000, high=50000)],
        lambda x, w, s: OPS.quantized_linear(x, w, None, s, 5, 2, -4, [1518500250], [-9], 100, -128),
    )
    yield (
        "linear without either",
        [codes(3, 40), codes(9, 40)],
        lambda x, w: OPS.quantized_linear(x, w, None, None, 128, 0, 0, [1999999999], [-10], 127, 0),
    )
    yield (
        "batch matmul",
        [codes(2, 5, 30), codes(2, 7, 30), codes(8)],
        lambda x, y, s: OPS.quantized_batch_matmul(x, 3, y, -8, 2, 1518500250, -9, s),
    )
    for dim in (-1, 1, 0):
        yield (
            f"softmax {dim}",
            [codes(2, 3, 20)],
            lambda x, dim=dim: OPS.softmax(x, dim, 4, -128, 1717986918, 22, -100),
        )
    yield "transpose", [codes(2, 3, 4, 5)], lambda x: OPS.transpose(x, [0, 2, 3, 1])
    yield "transpose int16", [codes(2, 3, 4, dtype=torch.int16)], lambda x: OPS.transpose(x, [2, 0, 1])
    for last in (False, True):
        yield f"pad last={last}", [codes(1, 3, 4, 5, last=last)], lambda x: OPS.pad(x, [0, 1, 2, 3], [0, 2, 0, 1], -7)
    yield "pad of one channel", [codes(1, 1, 4, 5)], lambda x: OPS.pad(x, [0, 1, 2, 0], [0, 2, 1, 0], -7)
    yield "pad of rank 2", [codes(4, 5)], lambda x: OPS.pad(x, [0, 0, 2, 3], [0, 0, 0, 1], 9)
    yield from image_cases()


def image_cases() -> Iterator[Case]:
    bias = numbers(6, low=-9000, high=9000)
    scales = [numbers(6, low=1 << 30, high=(1 << 31) - 1), numbers(6, low=-11, high=-5)]
    scratch = codes(4)
    for nhwc in (False, True):
        nc = "_nhwc" if nhwc else ""
        x = codes(2, 9, 8, 4) if nhwc else codes(2, 4, 9, 8, last=True)
        conv, depthwise = getattr(OPS, f"quantized_conv2d{nc}"), getattr(OPS, f"quantized_depthwise_conv2d{nc}")
        transposed = getattr(OPS, f"quantized_transpose_conv2d{nc}")
        average, largest = getattr(OPS, f"quantized_avg_pool2d{nc}"), getattr(OPS, f"quantized_max_pool2d{nc}")
        for stride, padding, dilation, inner in (
            ([1, 1], [1, 1], [1, 1], 4),
            ([2, 3], [0, 2], [1, 1], 2),
        ):  # the definitions do not support dilation
            yield (
                f"conv2d{nc} {stride}",
                [x, codes(6, 3, 2, inner), bias, *scales, scratch],
                lambda x, w, b, m, s, t, c=conv, a=(stride, padding, dilation): c(x, w, b, *a, 3, -5, m, s, -128, 120, t),
            )
        yield (
            f"conv2d{nc} without bias",
            [x, codes(6, 1, 1, 4), *scales, scratch],
            lambda x, w, m, s, t, c=conv: c(x, w, None, [1, 1], [0, 0], [1, 1], 128, 9, m, s, 9, 127, t),
        )
        y = codes(2, 9, 8, 3) if nhwc else codes(2, 3, 9, 8, last=True)
        for stride, padding, dilation in (([1, 1], [1, 1], [1, 1]), ([2, 1], [0, 1], [1, 1])):
            yield (
                f"depthwise{nc} {stride}",
                [y, codes(1, 3, 3, 6), bias, *scales, scratch],
                lambda x, w, b, m, s, t, c=depthwise, a=(stride, padding, dilation): c(x, w, b, *a, 2, 3, -5, m, s, -128, 127, t),
            )
            extra = [0, 0] if stride == [1, 1] else [1, 0]
            yield (
                f"transposed{nc} {stride}",
                [x, codes(6, 3, 3, 4), bias, *scales, scratch, scratch],
                lambda x, w, b, m, s, t, u, c=transposed, a=(stride, padding, extra, dilation): c(
                    x, w, b, *a, 3, -5, m, s, -128, 127, t, u
                ),
            )
        for kernel, stride, padding in (([2, 2], [2, 2], [0, 0]), ([3, 2], [1, 2], [1, 1]), ([3, 3], [2, 2], [1, 0])):
            for ceil in (False, True) if "ceil_mode" in str(average.default._schema) else ():
                yield (
                    f"average{nc} {kernel} {ceil}",
                    [x, scratch],
                    lambda x, t, a=(kernel, stride, padding, ceil), f=average: f(x, *a, 7, 1717986918, -4, t),
                )
            yield (
                f"max{nc} {kernel}",
                [x],
                lambda x, a=(kernel, stride, padding), f=largest: f(x, *a, [1, 1], False, 3, 3, -100, 110),
            )


class Calls(nn.Module):
    """All cases, each with its own inputs."""

    def __init__(self, found: list[Case]):
        super().__init__()
        self.found = found

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        tensors = iter(inputs)
        return [function(*(next(tensors) for _ in makers)) for _, makers, function in self.found]


class Digits(nn.Module):
    """Convolution, depthwise convolution, residual addition, pooling, linear: most operators of the Cortex-M backend."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Linear(32, 5)
        self.depthwise, self.pointwise = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 8, 1)
        self.pool = nn.AvgPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.nn.functional.max_pool2d(x + self.pointwise(torch.relu(self.depthwise(x))), 2)
        return torch.softmax(self.head(self.pool(x).flatten(1)), -1)


def by_script(folder: Path, *arguments: str) -> None:
    """Compile Digits with ``aot_arm_compiler``, as a user would; float.pt contains (inputs, the float model's outputs)."""
    from executorch.backends.arm.scripts import aot_arm_compiler

    torch.manual_seed(0)
    model, inputs = Digits().eval(), [(torch.randn(1, 3, 16, 16),) for _ in range(4)]
    torch.save((inputs, [model(*x).detach() for x in inputs]), folder / "float.pt")
    torch.save(model, folder / "digits.pt")
    torch.save(inputs[0], folder / "inputs.pt")
    sys.argv = ["aot_arm_compiler", "-m", f"{folder}/digits.pt", "--model_input", f"{folder}/inputs.pt", *arguments]
    aot_arm_compiler.main()


def operators(folder: Path) -> None:
    found = list(cases())
    model, makers = Calls(found), [make for _, makers, _ in found for make in makers]
    runs = []
    for seed in range(SEEDS):
        generator = torch.Generator().manual_seed(seed)
        inputs = tuple(make(generator) for make in makers)
        runs.append((inputs, model(*inputs)))
    config = EdgeCompileConfig(_check_ir_validity=False)
    edge = to_edge(torch.export.export(model, runs[0][0]), compile_config=config)
    (folder / "operators.pte").write_bytes(edge.to_executorch().buffer)
    torch.save(([name for name, _, _ in found], runs), folder / "cases.pt")


def main(folder: Path, *names: str) -> None:
    if "delegated" in names:
        by_script(folder, "-d", "-q", "-t", "ethos-u55-128", "-o", f"{folder}/delegated.pte")
    if "cortex_m55" in names:
        by_script(folder, "-q", "-t", "cortex-m55", "-o", f"{folder}/cortex_m55.pte")
    if "operators" in names:
        operators(folder)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), *sys.argv[2:])
