"""Operators that move elements, and quantize and dequantize: the C gives the bits of ExecuTorch's runtime."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ethorch import runtime as host
from tests.helpers.c_kernels import Library, Loaded, Program, both, exported, floats, inputs_of, only, programs_of, same_bits

Q = torch.ops.quantized_decomposed
CODES = {
    torch.int8: (-128, 127),
    torch.uint8: (0, 255),
    torch.int16: (-32768, 32767),
    torch.uint16: (0, 65535),
    torch.int32: (-(2**31), 2**31 - 1),
}


class State(nn.Module):
    """A buffer that a call leaves for the next."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.arange(6.0).reshape(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.sum.copy_(torch.cat([self.sum[:, 1:], x], 1))
        return self.sum.transpose(0, 1).clone()


def _quantized(dtype: torch.dtype) -> Callable[[Tensor], tuple[Tensor, ...]]:
    low, high = CODES[dtype]

    def function(x: Tensor) -> tuple[Tensor, ...]:
        wide = Q.quantize_per_tensor(x, 0.1, min(3, high), low, high, dtype)
        narrow = Q.quantize_per_tensor(x, 0.0078125, low // 2 + high // 2, low // 2, high // 2, dtype)
        return wide, narrow, Q.dequantize_per_tensor(wide, 0.1, min(3, high), low, high, dtype)

    return function


def _of_channels(dtype: torch.dtype) -> Callable[[Tensor], tuple[Tensor, ...]]:
    low, high = CODES[dtype]
    scales = torch.tensor([0.1, 0.02, 7.0], dtype=torch.float64)
    zeros = torch.tensor([3, 0, 5])

    def function(x: Tensor) -> tuple[Tensor, ...]:
        image = x.reshape(4, 3, 5, 2)
        codes = Q.quantize_per_channel(image, scales, zeros, 1, low, high, dtype)
        last = Q.quantize_per_channel(x.reshape(40, 3), scales, zeros, 1, low, high, dtype)
        dequantized = Q.dequantize_per_channel(codes, scales, zeros, 1, low, high, dtype)
        return codes, last, dequantized, Q.dequantize_per_channel(codes, scales.float(), zeros, 1, low, high, dtype)

    return function


def _moved(x: Tensor) -> tuple[Tensor, ...]:
    return (
        x.permute(0, 2, 3, 1).contiguous(),
        x.permute(3, 1, 0, 2).contiguous(),
        x.transpose(1, 2).clone(),
        x.reshape(x.shape[0], -1)[:, 3:-2:4].clone(),
        x[:, 1],
        x[..., -1],
        x[:, :, 1:3],
        x[:, :, :, ::2],
        torch.cat([x, x[:, :1], x], 1),
        torch.cat([x, x[..., :2]], -1),
        torch.stack([x, x.flip(0)], 2),
        x[:, :, :1].expand(-1, -1, 3, -1).clone(),
        x.repeat(2, 1, 3, 2),
        x[0, 0].repeat(2, 1, 1, 2),
        x.flip(1, 3),
        *x.split(2, 1),
        *x.split([1, 3], 1),
        *x.unbind(3),
        x.unfold(2, 2, 1),
        torch.nn.functional.pad(x, (1, 2, 0, 3)),
        torch.nn.functional.pad(x, (1, 2, 1, 0, 3, 1), value=1),
        torch.nn.functional.pixel_shuffle(x, 2),
        x.unsqueeze(-1).clone(),
        x.to(memory_format=torch.channels_last),
        torch.diagonal(x, 0, 2, 3).clone(),
        torch.slice_scatter(x, x[:, :, :2], 2, 1, 3),
        x[:, :0],
        torch.zeros(2, 3, dtype=x.dtype).fill_(x[0, 0, 0, 1]),
        torch.full((2, 3), 7, dtype=x.dtype),
        torch.arange(2, 9, 3, dtype=torch.int32),
    )


def _cast(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.to(dtype) for dtype in DTYPES if dtype != x.dtype)


DTYPES = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64, torch.bool)
CASES: dict[str, tuple[Callable[..., Tensor | tuple[Tensor, ...]], Callable[[], Tensor]]] = {
    **{f"codes_{dtype}".replace("torch.", ""): (_quantized(dtype), lambda: floats(7, 13)) for dtype in CODES},
    **{f"channels_{dtype}".replace("torch.", ""): (_of_channels(dtype), lambda: floats(120)) for dtype in CODES},
    "moved_float32": (_moved, lambda: floats(2, 4, 3, 5)),
    "moved_int8": (_moved, lambda: torch.randint(-128, 128, (2, 4, 3, 5), dtype=torch.int8)),
    "moved_int16": (_moved, lambda: torch.randint(-(2**15), 2**15, (2, 4, 3, 5), dtype=torch.int16)),
    "moved_int64": (_moved, lambda: torch.randint(-(2**62), 2**62, (2, 4, 3, 5))),
    "cast_float32": (_cast, lambda: floats(9, 7)),
    "cast_float64": (_cast, lambda: floats(9, 7).double()),
    "cast_int8": (_cast, lambda: torch.randint(-128, 128, (9, 7), dtype=torch.int8)),
    "cast_uint8": (_cast, lambda: torch.randint(0, 256, (9, 7), dtype=torch.uint8)),
    "cast_int16": (_cast, lambda: torch.randint(-(2**15), 2**15, (9, 7), dtype=torch.int16)),
    "cast_int32": (_cast, lambda: torch.randint(-(2**31), 2**31, (9, 7), dtype=torch.int32)),
    "cast_int64": (_cast, lambda: torch.randint(-(2**63), 2**63 - 1, (9, 7))),
    "cast_bool": (_cast, lambda: torch.rand(9, 7) > 0.5),
    "moved_bool": (_moved, lambda: torch.rand(2, 4, 3, 5) > 0.5),
}


@lru_cache(maxsize=1)
def programs(names: frozenset[str] = frozenset(CASES)) -> dict[str, Program]:
    return programs_of(only(CASES, names))


#: Signed and unsigned codes, elements of one byte and of several, and casts from floats, integers and truth values.
FEW = (
    "codes_int8", "codes_uint16", "channels_int16", "moved_float32", "moved_int8", "cast_float32", "cast_int64", "cast_bool",
)  # fmt: skip


@pytest.mark.parametrize("name", [name if name in FEW else pytest.param(name, marks=pytest.mark.long) for name in CASES])
def test_the_c_gives_the_bits_of_the_runtime(name: str, library: Loaded) -> None:
    found = both(library, name, inputs_of(CASES, name))
    different = [number for number, (got, want) in enumerate(found) if not same_bits(got, want)]
    assert not different, [found[n] for n in different]


def test_a_buffer_keeps_what_a_call_left(tmp_path: Path) -> None:
    program = Program.of("state", exported(State(), [torch.zeros(2, 1)]))
    c, runtime = Library([program], tmp_path), host.load(program.data)
    for _ in range(4):
        x = torch.randn(2, 1)
        _, (got,) = c.run(program, [x])
        assert same_bits(got, runtime(x)[0])
