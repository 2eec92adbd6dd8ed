"""Compare quantized and float state: RAM of buffers, and bytes that the CPU moves in each call.

``python -m bench.state [--json]``

Each model has mutable buffers: the state of a recurrent layer, histories of convolutions, or attention caches. The model is
quantized once and compiled to two programs: with float buffers (the graph of ``convert_pt2e``, lowered by ExecuTorch) and with
quantized buffers. Both programs run the same ten steps, and their outputs must be equal bit for bit.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bench.compile import markdown_row, provenance
from ethorch import EthosUCompileSpec, QuantizationConfig, runtime
from ethorch.arm.quantizer import get_symmetric_a16w8_quantization_config, get_symmetric_quantization_config
from ethorch.backend.build import build_pte
from ethorch.backend.through_executorch import lower_by_executorch
from ethorch.deploy.firmware.plan import plan
from ethorch.deploy.firmware.steps import Copy, Kernel, Plan
from ethorch.figures.cpu_rates import RATES, estimate
from ethorch.formats import pte
from ethorch.formats.payload import DelegatePayload
from ethorch.formats.pte_types import Method, Value
from ethorch.models.load import UserModel
from ethorch.quantization.calibrate import quantize

STEPS = 10
_CONFIGS: dict[str, Callable[[], QuantizationConfig]] = {
    "int8": get_symmetric_quantization_config,
    "16x8": get_symmetric_a16w8_quantization_config,
}


class Denoiser(nn.Module):
    """A network that computes a gain for each of 64 bands of a frame, with a GRU of size 128."""

    h: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.into, self.cell, self.out = nn.Linear(64, 128), nn.GRUCell(128, 128), nn.Linear(128, 64)
        self.register_buffer("h", torch.zeros(1, 128))

    def forward(self, frame: Tensor) -> Tensor:
        self.h.copy_(self.cell(torch.relu(self.into(frame)), self.h))
        return frame * torch.sigmoid(self.out(self.h))


class Streaming(nn.Module):
    """A depthwise TCN of 64 channels with dilations 1, 2, 4 and 8, whose blocks store earlier frames."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.dilations = (1, 2, 4, 8)
        self.depthwise = nn.ModuleList(nn.Conv1d(channels, channels, 3, dilation=d, groups=channels) for d in self.dilations)
        self.pointwise = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in self.dilations)
        for number, dilation in enumerate(self.dilations):
            self.register_buffer(f"history_{number}", torch.zeros(1, channels, 2 * dilation))

    def forward(self, x: Tensor) -> Tensor:
        for number, (depthwise, pointwise) in enumerate(zip(self.depthwise, self.pointwise, strict=True)):
            history = self.get_buffer(f"history_{number}")
            seen = torch.cat([history, x], 2)
            history.copy_(seen[:, :, 1:])
            x = x + torch.relu(pointwise(depthwise(seen)))
        return x


class Attention(nn.Module):
    """An attention layer with 4 heads of size 32 and a cache of 256 tokens."""

    keys: Tensor
    values: Tensor
    places: Tensor

    def __init__(self, length: int = 256, heads: int = 4, width: int = 32) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.qkv, self.out = nn.Linear(heads * width, 3 * heads * width), nn.Linear(heads * width, heads * width)
        self.register_buffer("keys", torch.zeros(1, length, heads * width))
        self.register_buffer("values", torch.zeros(1, length, heads * width))
        self.register_buffer("places", torch.arange(length, dtype=torch.int32))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        self.keys.index_copy_(1, position, k)
        self.values.index_copy_(1, position, v)
        q, k, v = (t.reshape(1, -1, self.heads, self.width).transpose(1, 2) for t in (q, self.keys, self.values))
        scores = (q @ k.transpose(2, 3) * self.width**-0.5).masked_fill(self.places > position.to(torch.int32), -100.0)
        out: Tensor = self.out((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(1, 1, -1))
        return out


def _frame(*shape: int) -> Callable[[int], tuple[Any, ...]]:
    return lambda number: (torch.randn(*shape),)


MODELS: dict[str, tuple[Callable[[], nn.Module], str, Callable[[int], tuple[Any, ...]]]] = {
    "GRU denoiser": (Denoiser, "ethos-u55-128", _frame(1, 64)),
    "depthwise TCN": (Streaming, "ethos-u55-128", _frame(1, 64, 1)),
    "attention, 256 tokens": (
        Attention,
        "ethos-u85-256",
        lambda number: (torch.randn(1, 1, 128), torch.tensor([number], dtype=torch.int32)),
    ),
}


@dataclass(frozen=True)
class Costs:
    """Costs of one program.

    Attributes:
        state_bytes: RAM of the mutable buffers.
        planned_bytes: RAM of the whole memory plan, including buffers.
        moved_bytes: Bytes per call that CPU operators write, and that ExecuTorch's EthosUBackend copies to and from its memory.
        cpu_cycles: CPU cycles to move these bytes, estimated by ``figures.cpu_rates``.
        firmware_bytes: RAM of generated firmware: arena and tensors.
        firmware_moved_bytes: ``moved_bytes`` for generated firmware.
    """

    state_bytes: int
    planned_bytes: int
    moved_bytes: int
    cpu_cycles: int
    firmware_bytes: int
    firmware_moved_bytes: int


@dataclass(frozen=True)
class Row:
    """One model in one precision, with float and with quantized state."""

    model: str
    target: str
    scheme: str
    floats: Costs
    codes: Costs


def costs(content: bytes) -> Costs:
    """Return the costs of a program, excluding the NPU."""
    program = pte.read(content)
    method = program.methods["forward"]
    state = sum(v.nbytes for v in method.values if v.extra and v.extra.name and v.planned)
    moved = cycles = 0
    for call in method.calls:
        tensors = [method.values[arg] for arg in call.args if method.values[arg].kind == "tensor"]
        if call.delegate is not None:
            payload = DelegatePayload.unpack(method.delegates[call.delegate].blob)
            copied = sum(tensor.nbytes for tensor in (*payload.inputs, *payload.outputs))
            moved, cycles = moved + copied, cycles + round(RATES["copy"].cycles * copied)
        else:
            moved += _count_written_bytes(call.operator, method, call.args)
            cycles += estimate(call.operator, tensors[:-1], tensors[-1:], 0)
    layout = plan(program, method)
    return Costs(
        state, sum(method.memories), moved, cycles, layout.arena_bytes + layout.tensors_bytes, _count_firmware_bytes(layout)
    )


def _count_firmware_bytes(layout: Plan) -> int:
    moved = 0
    for step in (*layout.convert_in, *layout.body, *layout.convert_out):
        if isinstance(step, Kernel):
            moved += _count_written_bytes(step.operator, layout.method, step.args)
        else:
            moved += sum(copied.nbytes for copied in ((step,) if isinstance(step, Copy) else (*step.before, *step.after)))
    return moved


def _count_written_bytes(operator: str, method: Method, args: Sequence[int]) -> int:
    """Return the bytes that an operator writes: its output, or only the updated rows of a buffer."""
    tensors: list[Value] = [method.values[arg] for arg in args if method.values[arg].kind == "tensor"]
    return tensors[-2].nbytes if operator == "aten::index_put_" else tensors[-1].nbytes


def measure(name: str, scheme: str) -> Row:
    """Compile both programs, compare their outputs, and return their costs.

    Raises:
        AssertionError: The outputs differ.
    """
    make, target, step = MODELS[name]
    torch.manual_seed(0)
    steps = [step(number) for number in range(STEPS)]
    spec = EthosUCompileSpec(target)
    module = quantize(UserModel(make().eval(), steps[0], steps), spec, _CONFIGS[scheme]())
    floats, codes = lower_by_executorch(module, steps[0], spec), build_pte(module, steps[0], spec)
    programs = [runtime.load(build.pte) for build in (floats, codes)]
    for number, inputs in enumerate(steps):
        one, other = (program(*inputs)[0] for program in programs)
        assert torch.equal(one, other), f"{name}, {scheme}: step {number} differs"
    return Row(name, target, scheme, costs(floats.pte), costs(codes.pte))


def table(rows: Sequence[Row]) -> str:
    """Format a Markdown table. Each cell contains the values for float state and for quantized state."""
    head = ["model", "NPU", "scheme", "RAM of state", "planned RAM", "bytes the CPU moves", "cycles of the CPU"]
    head += ["RAM of firmware", "bytes it moves"]
    lines = [markdown_row(head), markdown_row(["---"] * 3 + ["---:"] * 6)]
    for row in rows:
        pairs = zip(asdict(row.floats).values(), asdict(row.codes).values(), strict=True)
        lines.append(markdown_row([row.model, row.target, row.scheme, *(f"{a:,} / {b:,}" for a, b in pairs)]))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser("python -m bench.state", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    wanted = parser.parse_args()
    rows = [measure(name, scheme) for name in MODELS for scheme in _CONFIGS]
    print(json.dumps([asdict(row) for row in rows], indent=1) if wanted.json else f"{table(rows)}\n\n{provenance()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
