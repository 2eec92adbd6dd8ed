"""What depends on no input becomes a constant of the graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch.formats import pte
from ethorch.program.program import record_of
from ethorch.quantization.passes.constants import fold_constants
from ethorch.quantization.passes.context import PassContext
from tests.helpers.quantized import exported

TARGETS = ("ethos-u55-128", "ethos-u85-256")


class Filled(nn.Module):
    """Writes to memory that nobody has set, as the attention of DeepSeek-V3 does."""

    def forward(self, x: Tensor) -> Tensor:
        made = x.new_empty(2, 8)
        return torch.slice_scatter(torch.slice_scatter(made, x, 1, 0, 4), x, 1, 4, 8)


def test_memory_that_nobody_has_set_is_zeros() -> None:
    torch.use_deterministic_algorithms(True)  # fills such memory with NaN
    try:
        graph = exported(Filled(), (torch.ones(2, 4),))
        fold_constants(graph, PassContext())
    finally:
        torch.use_deterministic_algorithms(False)
    folded = dict(graph.named_buffers())
    assert folded and not any(bool(buffer.any()) for buffer in folded.values())


class Promoted(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x + torch.arange(10.0).reshape(2, 5, 1), x * 0.5, x * y, torch.where(y > 0, y, x), torch.cat([x, y], 1)


def test_int64_that_meets_floats_is_quantized_as_they_are() -> None:
    """An integer input that PyTorch casts to float costs a cast and a quantize node on the CPU, and no operator."""
    torch.manual_seed(0)
    inputs = (torch.randint(-9, 9, (2, 5, 3)), torch.randn(2, 5, 3))
    program = ethorch.compile(Promoted(), inputs, "ethos-u55-128", progress=False)
    assert record_of(program).build is not None
    assert len(record_of(program).build.delegates) == 1
    assert {refusal.reason.id for refusal in record_of(program).build.partition.refusals} <= {"graph.int64_input"}

    for wanted, found in zip(Promoted()(*inputs), program(*inputs), strict=True):
        assert ethorch.sqnr_db(wanted, found) > 40


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return 3 - self.linear(x).softmax(-1) + 1


def test_whole_numbers_of_what_stays_float_are_not_cast_whenever_the_program_runs() -> None:
    quantizer = ethorch.EthosUQuantizer(ethorch.EthosUCompileSpec("ethos-u85-256")).set_global(None)
    quantizer.set_module_type(nn.Linear, ethorch.arm.quantizer.get_symmetric_quantization_config())
    inputs = (torch.randn(2, 4),)
    converted = quantizer.quantize_with_submodules(exported(Shifted(), inputs), [inputs])
    program = ethorch.compile(converted, inputs, "ethos-u85-256")
    operators = [call.operator for method in pte.read(program.pte).methods.values() for call in method.calls]
    assert "aten::_softmax.out" in operators and not any("to_dim_order_copy" in name for name in operators)


class Negated(nn.Module):
    """Returns a negated row of a table beside a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(5, 7), nn.Linear(4, 4)
        self.indices = nn.Buffer(torch.tensor([[0, 3, 1]]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return -self.table(self.indices), self.layer(x)


class Attending(nn.Module):
    """Returns attention over rows of a table beside a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(5, 2), nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(2, 2, batch_first=True)
        self.indices = nn.Buffer(torch.tensor([[0, 3]]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.table(self.indices)
        return self.attention(rows, rows, rows, need_weights=False)[0], self.layer(x)


class Padded(nn.Module):
    """Returns what a convolution computes of its padding alone, and the maximum of that with itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.layer = nn.Conv1d(1, 1, 1, stride=2, padding=1), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(x[:, None, :1])
        return torch.maximum(y, y), self.layer(x)


class Transposed(nn.Module):
    """Returns a transposed convolution of a buffer, which has no kernel in ExecuTorch, beside a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.layer = nn.ConvTranspose2d(2, 32, 3, stride=2, padding=1), nn.Linear(4, 4)
        self.image = nn.Buffer(torch.randn(1, 2, 1, 27))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.conv(self.image), self.layer(x)


@pytest.mark.parametrize(
    ("network", "target"),
    [
        pytest.param(network, target, marks=[pytest.mark.long] * (target != default))
        for network, default in zip((Negated, Attending, Padded, Transposed), 2 * TARGETS, strict=True)
        for target in TARGETS
    ],
)
def test_results_that_depend_on_no_input(network: type[nn.Module], target: str) -> None:
    torch.manual_seed(0)
    model, x = network().eval(), torch.randn(1, 4)
    program = ethorch.compile(model, x, target, progress=False)
    assert record_of(program).build is not None and not record_of(program).build.partition.refusals
    for found, wanted in zip(program(x), model(x), strict=True):
        assert ethorch.sqnr_db(wanted, found) > 35


class Returned(nn.Module):
    """Returns a constant that it also adds to the result of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.offset = nn.Linear(4, 4), nn.Buffer(torch.randn(1, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        offset = -self.offset
        return offset, self.layer(x) + offset


def quantize(x: Tensor, codes: dict[str, Any]) -> Tensor:
    return (x / codes["scale"] + codes["zero_point"]).round().clamp(-128, 127).to(torch.int8)


@pytest.mark.parametrize("io", ["float32", "int8"])
def test_a_constant_can_be_an_output_and_an_operand(io: str) -> None:
    torch.manual_seed(0)
    model, x = Returned().eval(), torch.randn(8, 1, 4)
    program = ethorch.compile(model, x[0], "ethos-u55-128", io=io, calibration=list(x), progress=False)
    inputs, outputs = (program.to_json()[side] for side in ("inputs", "outputs"))
    sample = x[0] if io == "float32" else quantize(x[0], inputs[0]["codes"])
    for result, expected, info in zip(program(sample), model(x[0]), outputs, strict=True):
        codes = info["codes"]
        values = result if io == "float32" else (result.float() - codes["zero_point"]) * codes["scale"]
        assert ethorch.sqnr_db(expected, values) > 30


class OfIntegers(nn.Module):
    """Arithmetic of integers and real numbers."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return x * 9.5, torch.div(x, 9.5, rounding_mode="floor"), x + 0.5, 0.5 - x, x.sqrt(), x / 4


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_that_meet_real_numbers_are_quantized(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = OfIntegers(), (torch.rand(4, 8) * 100).to(dtype)
    for target in ("ethos-u55-128", "ethos-u85-256"):
        program = ethorch.compile(model, x, target, progress=False)
        assert record_of(program).build is not None and not record_of(program).build.partition.refusals
        for found, wanted in zip(program(x), model(x), strict=True):
            assert ethorch.sqnr_db(wanted, found) > 20


class JoinedWithNothing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x + x, torch.zeros(1, 0, dtype=torch.int64)], 1)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int16, torch.int32, torch.int64, torch.float32])
def test_an_empty_tensor_determines_the_dtype_of_a_cat(dtype: torch.dtype) -> None:
    model, x = JoinedWithNothing(), torch.ones(1, 4, dtype=dtype)
    found, wanted = ethorch.compile(model, x, "ethos-u55-128", progress=False)(x), model(x)
    assert found.dtype == wanted.dtype and torch.allclose(found, wanted, atol=0.02)


def test_an_interpolation_by_a_huge_matrix_is_refused() -> None:
    model = nn.Upsample(scale_factor=2, mode="linear", align_corners=True)
    program = ethorch.compile(nn.Sequential(model, nn.ReLU()), torch.rand(1, 1, 20_000), "ethos-u55-128", progress=False)
    assert record_of(program).build is not None
    (refusal,) = record_of(program).build.partition.refusals
    assert refusal.reason.id == "upsample.matrix" and "20,000 elements to 40,000" in refusal.reason.text


class FilledWithAnItem(nn.Module):
    """The strides of a detector's grid, as ultralytics writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("strides", torch.tensor([8.0, 16.0]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x * x.new_full((1, 4), stride.item()) for stride in self.strides])


class Nothing(nn.Module):
    """Rows of no places go through a layer, and are written to no places."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("places", torch.zeros(0, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        return x.index_copy(0, self.places, self.linear(x[self.places])).relu()


@pytest.mark.parametrize("module", [FilledWithAnItem(), Nothing()], ids=["item", "nothing"])
def test_what_holds_constants_is_one_delegate(module: nn.Module) -> None:
    inputs = (torch.randn(3, 4),)
    program = ethorch.compile(module, inputs, "ethos-u55-128", progress=False)
    assert record_of(program).build is not None
    assert len(record_of(program).build.delegates) == 1
    assert not record_of(program).build.partition.refusals
    assert ethorch.sqnr_db(module(*inputs), program(*inputs)) > 35


def test_a_number_out_of_a_constant_is_folded() -> None:
    graph = exported(FilledWithAnItem(), (torch.randn(3, 4),))
    fold_constants(graph, PassContext())
    assert not any("aten.item" in str(node.target) for node in graph.graph.nodes if node.users)
    torch.testing.assert_close(graph(torch.ones(3, 4)), FilledWithAnItem()(torch.ones(3, 4)))


class Cached(nn.Module):
    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, ...]:
        joined = torch.cat([past, 2 * x], 1)
        return joined + 1, joined, past


@pytest.mark.parametrize("shape", [(1, 0, 4), (0,)])
def test_empty_inputs_are_constants(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(1, 3, 4), torch.empty(shape))
    program = ethorch.compile(Cached(), inputs, "ethos-u55-128", progress=False)
    assert len(program.delegates) == 1 and len(program.inputs) == 2
    *found, past = program(*inputs)
    assert past.shape == shape
    for wanted, result in zip(Cached()(*inputs)[:2], found, strict=True):
        assert ethorch.sqnr_db(wanted, result) > 30
