"""Axes so long that an operation for each index, or a matrix of their square, would take Vela minutes: few, or a reason."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ethorch import EthosUCompileSpec, QuantizationConfig, vela
from ethorch.arm.quantizer import get_symmetric_a16w8_quantization_config, get_symmetric_quantization_config
from ethorch.lower.builder.qparams import QParams, QTensor, Result
from ethorch.lower.fx import sequences
from ethorch.lower.fx.node import constants_of
from ethorch.lower.ops import OPS
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.lower.walk import Walk
from ethorch.support.errors import QuantizationError
from ethorch.targets.npus import TARGETS as TARGETS_BY_NAME
from ethorch.tosa.layout import contiguous
from ethorch.tosa.serialize import serialize
from ethorch.vela.delegate import builder_for
from tests.helpers.ladder import climb, climbed, machine, refusal_ids
from tests.helpers.quantized import quantized

TARGETS = ["ethos-u55-128", "ethos-u85-256"]


class Running(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(x, self.dim)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("shape", "dim"), [((2, 2049), 1), ((5000, 3), 0), ((2, 32_767, 2), -2)], ids=str)
def test_running_sums_of_long_dims(shape: tuple[int, ...], dim: int, target: str) -> None:
    inputs = (torch.rand(shape) - 0.3,)
    graph, _ = climb(quantized(Running(dim), [inputs], target=target), inputs, target)
    assert max(value.data.size for op in graph.ops for value in op.operands if value.data is not None) <= 1 << 16


def test_running_sums_of_long_dims_of_int16_are_refused() -> None:
    inputs = (torch.rand(2, 2049),)
    program = quantized(Running(1), [inputs], get_symmetric_a16w8_quantization_config()).converted
    assert refusal_ids(program, "ethos-u55-128") == {"cumsum.extent"}


@pytest.mark.parametrize("target", TARGETS)
def test_linear_layers_of_many_outputs(target: str) -> None:
    """Vela's time for one convolution of more than 65,536 channels grows with the square of them."""
    inputs = (torch.randn(2, 8),)
    graph, _ = climb(quantized(nn.Linear(8, 70_000), [inputs], target=target), inputs, target)
    channels = [op.result.shape[-1] for op in graph.ops if op.name == "CONV2D"]
    assert max(channels) <= 65_536 and sum(channels) == 70_000


@pytest.mark.parametrize("target", TARGETS)
def test_softmax_of_many_nearly_equal_elements(target: str) -> None:
    """The sum of 66,000 exponentials of 15 bits would exceed int32."""
    inputs = (torch.rand(1, 66_000) * 0.01,)
    climb(quantized(nn.Softmax(-1), [inputs], target=target), inputs, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "highest", "most"), [("INT8", 127, 1.1), ("INT16", 32767, 150)])
def test_softmax_of_rows_with_a_quotient_far_above_the_range(dtype: str, highest: int, most: float, target: str) -> None:
    """The quotient is up to 23 times the range. Only it saturates; the other results of its row are correct."""
    rng = np.random.default_rng(0)
    zp, low = (-128, -128) if dtype == "INT8" else (0, -32767)
    step = 16 / (highest - low)
    codes = rng.normal(0, 0.3, (4, 1000)) / step
    codes[:3, 7] = np.array([1.0, 2.3, 3.0]) / step
    codes = np.rint(codes).astype(np.int8 if dtype == "INT8" else np.int16)
    b = builder_for(EthosUCompileSpec(target).target)
    out = QParams((0.0008 / (highest - zp),), (zp,), low, highest, dtype)
    x = QTensor(b.input("x", codes.shape, dtype), contiguous(codes.shape), QParams((step,), (0,), low, highest, dtype))
    b.graph.outputs.append(OPS["aten.softmax.int"].lower(b, x, 1, out=Result(codes.shape, "FP32", out)).value)  # type: ignore[misc]
    (found,) = machine(serialize(rewrite(b.graph, tuning=b.tuning)), [codes], EthosUCompileSpec(target))
    exact = torch.softmax(torch.from_numpy(codes * step), 1).numpy() / out.step + zp
    assert (exact[:3, 7] > highest).all()
    assert np.abs(found.reshape(exact.shape) - exact.clip(low, highest)).max() < most


class Total(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("extent", [65_537, 131_074])
def test_sums_over_extents_with_small_divisors(extent: int, target: str) -> None:
    """Sums of two, each rounded to fit the sum of them all, drifted by 36 steps of int16."""
    inputs = (torch.rand(2, extent) - 0.4,)
    config = get_symmetric_a16w8_quantization_config()
    climb(quantized(Total(), [inputs], config, target=target), inputs, target, tolerance=1)


class Spread(nn.Module):
    def __init__(self, name: str):
        super().__init__()
        self.function = getattr(torch, name)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, 1)


@pytest.mark.parametrize("config", [get_symmetric_quantization_config, get_symmetric_a16w8_quantization_config])
@pytest.mark.parametrize("name", ["sum", "mean", "std", "norm"])
def test_sums_behind_many_places(name: str, config: Callable[[], QuantizationConfig]) -> None:
    """Vela makes an operation of each of the 5,000: 100 KB of commands for a sum, and more for a deviation."""
    inputs = (torch.rand(5000, 3, 2) - 0.3,)
    module = Spread(name) if name != "norm" else Lengths()
    graph, _ = climb(quantized(module, [inputs], config()), inputs, tolerance=2)
    assert len(vela.compile(serialize(graph), EthosUCompileSpec("ethos-u55-128")).command_stream) < 40_000


class Lengths(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, dim=1)


class Normed(nn.Module):
    def __init__(self, norm: str):
        super().__init__()
        self.norm = getattr(nn.functional, norm)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x, x.shape[-1:])


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("extent", [4608, 4099])
def test_norms_of_long_rows_of_int16(norm: str, extent: int) -> None:
    """Large elements were 37 steps off, those of a row beside one with elements 200 times larger 11,646."""
    inputs = (torch.randn(2, extent) * torch.tensor([[1.0], [0.005]]),)
    q = quantized(Normed(norm), [inputs], get_symmetric_a16w8_quantization_config())
    found = climbed(q, inputs)
    off = np.abs(found.fake_quantized[0] - found.reference[0].reshape(2, extent))
    assert not found.different
    assert off[0].max() <= 2
    assert off[1].max() <= 64


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("config", [get_symmetric_quantization_config, get_symmetric_a16w8_quantization_config])
def test_norms_over_more_than_65536_places(config: Callable[[], QuantizationConfig], target: str) -> None:
    """A group of 97,740 elements: what an NPU cannot sum at once is summed in parts."""
    inputs = (torch.randn(1, 6, 180, 181),)
    module = nn.GroupNorm(2, 6)
    climb(quantized(module, [inputs], config(), target=target), inputs, target, tolerance=2)


def test_norms_of_int16_whose_rows_differ_by_far() -> None:
    """A table of the smallest sums of squares met the largest: a RESCALE beyond 32 bits, which TOSA leaves open."""
    inputs = (torch.randn(2, 32_767) * torch.tensor([[1.0], [1e-4]]),)
    q = quantized(Normed("rms_norm"), [inputs], get_symmetric_a16w8_quantization_config())
    assert not climbed(q, inputs).different


def test_recurrent_layers_over_too_many_steps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "MOST_STEPS", 40)  # torch exports the layer step by step, before anybody is asked
    inputs = (torch.rand(1, 41, 2),)
    with pytest.raises(QuantizationError) as refusal:
        quantized(nn.RNN(2, 2, batch_first=True), [inputs])
    assert refusal.value.id == "recurrent.steps"


class Deviation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.std(1)


def test_deviations_of_long_rows_of_int16() -> None:
    """Deviations of more than 4,096 elements were rounded to eight codes: the smallest was 41 steps of 323 off."""
    inputs = (torch.randn(3, 8190) * torch.tensor([[1.0], [0.1], [0.01]]),)
    climb(quantized(Deviation(), [inputs], get_symmetric_a16w8_quantization_config()), inputs, tolerance=2)


class Variances(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.var((1, -1))


def test_variances_of_long_dims_with_others_behind() -> None:
    """Vela could not run the transposes behind sums of parts of such a dim."""
    inputs = (torch.rand(2, 32_767, 2, 2) - 0.3,)
    climb(quantized(Variances(), [inputs]), inputs)


class Enlarged(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.interpolate(x, (2, 12), mode="bilinear")


def test_float64_says_where_a_long_image_is_read() -> None:
    """PyTorch computes the places in float32: of 32,767 they are so far off that results are, the NPU's are not."""
    inputs = (torch.rand(1, 2, 2, 32_767),)
    q = quantized(Enlarged(), [inputs], get_symmetric_a16w8_quantization_config())
    found = climbed(q, inputs)
    assert found.steps_off > 8
    assert found.beside(q.in_float64().output_codes(inputs)).steps_off <= 1


class Product(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.bmm(x, y)


@pytest.mark.parametrize("config", [get_symmetric_quantization_config, get_symmetric_a16w8_quantization_config])
def test_products_of_few_rows_and_many_columns_are_turned(config: Callable[[], QuantizationConfig]) -> None:
    """Vela makes two operations of each column: of 32,769 and int16 24 MiB of commands, and a stream may have 16."""
    inputs = (torch.rand(2, 5, 3) - 0.4, torch.rand(2, 3, 4099) - 0.3)
    graph, _ = climb(quantized(Product(), [inputs], config()), inputs)
    assert len(vela.compile(serialize(graph), EthosUCompileSpec("ethos-u55-128")).command_stream) < 20_000


class Rows(nn.Module):
    def __init__(self, returned: bool):
        super().__init__()
        self.returned = returned

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        rows = torch.relu(x).unbind(0)
        return rows if self.returned else (rows[0] + rows[-1],)


@pytest.mark.parametrize("returned", [True, pytest.param(False, marks=pytest.mark.long)])
def test_more_results_than_vela_finds_places_for(returned: bool) -> None:
    """Of 514 results the last two are refused; 514 of which two are read are not."""
    inputs = (torch.rand(514, 4),)
    program = quantized(Rows(returned), [inputs], target="ethos-u55-128").converted
    walk = Walk(program.graph, constants_of(program), builder_for(TARGETS_BY_NAME["ethos-u55-128"]), strict=False).run()
    assert [reason.id for reason in walk.refusals.values()] == ["graph.returned_late"] * 2 * returned


class Pooled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.max_pool2d(x, 2)


class Products(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm(x, x)


@pytest.mark.parametrize(
    ("module", "shape", "target", "id"),
    [
        (Pooled(), (16_385, 1, 2, 2), "ethos-u55-128", "MAX_POOL2D.pictures"),
        (Pooled(), (16_385, 1, 2, 2), "ethos-u85-256", "MAX_POOL2D.pictures"),
        (nn.Conv2d(1, 1, 2), (16_385, 1, 2, 2), "ethos-u85-256", "CONV2D.pictures"),
        (Products(), (16_385, 2, 2), "ethos-u85-256", "MATMUL.pictures"),
    ],
)
def test_batches_of_which_vela_makes_an_operation_each(module: nn.Module, shape: tuple[int, ...], target: str, id: str) -> None:
    inputs = (torch.rand(shape),)
    assert id in refusal_ids(quantized(module, [inputs], target=target).converted, target)


class Antialiased(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.interpolate(x, size=(10, 2), mode="bilinear", antialias=True)


@pytest.mark.parametrize("target", TARGETS)
def test_a_long_map_is_resized_by_a_matrix_that_needs_no_identity(target: str) -> None:
    """Of 40,000 rows the identity that says what the matrix is would take 6.4 GB; ten rows of its transpose say it, too."""
    inputs = (torch.randn(1, 1, 40_000, 2),)
    climb(quantized(Antialiased(), [inputs], target=target), inputs, target, tolerance=2)


class Larger(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.interpolate(x, size=(6_000, 2), mode="bicubic")


def test_a_map_whose_matrix_is_too_large_stays_on_the_cpu() -> None:
    inputs = (torch.randn(1, 1, 5_000, 2),)
    assert refusal_ids(quantized(Larger(), [inputs]).converted, "ethos-u55-128") == {"operator.composite"}


class Middle(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1)


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-256"])
@pytest.mark.parametrize("shape", [(65_537, 3, 2), (300, 3, 2, 2), (140_000, 2, 2)], ids=str)
def test_sums_behind_very_many_places_are_few_operations(shape: tuple[int, ...], target: str) -> None:
    """Vela makes an operation of each place in front of what is summed: of 65,537 the simulator took over a minute."""
    inputs = (torch.randn(shape),)
    graph, _ = climb(quantized(Middle(), [inputs], target=target), inputs, target)
    spec = EthosUCompileSpec(target)
    assert len(vela.compile(serialize(graph), spec).command_stream) < 20_000


@pytest.mark.parametrize(
    ("config", "target"),
    [
        (get_symmetric_quantization_config, TARGETS[1]),
        (get_symmetric_a16w8_quantization_config, TARGETS[0]),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [(get_symmetric_quantization_config, TARGETS[0]), (get_symmetric_a16w8_quantization_config, TARGETS[1])]
        ),
    ],
)
def test_gamma_and_beta_of_more_than_65536_elements(config: Callable[[], QuantizationConfig], target: str) -> None:
    """They are a batch norm of so many channels, which is cut."""
    layer = nn.LayerNorm(65_600)
    torch.nn.init.uniform_(layer.weight, 0.5, 1.5)
    torch.nn.init.uniform_(layer.bias)
    inputs = (torch.randn(2, 65_600),)
    climb(quantized(layer, [inputs], config(), target=target), inputs, target, tolerance=2)


class Alike(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.cosine_similarity(x, x.flip(1) + 1, dim=1)


@pytest.mark.parametrize(
    ("module", "config"),
    [
        (Deviation(), get_symmetric_a16w8_quantization_config),
        (Alike(), get_symmetric_quantization_config),
        pytest.param(Deviation(), get_symmetric_quantization_config, marks=pytest.mark.long),
        pytest.param(Alike(), get_symmetric_a16w8_quantization_config, marks=pytest.mark.long),
    ],
)
def test_statistics_behind_very_many_places_are_few_operations(module: nn.Module, config: Callable[[], QuantizationConfig]) -> None:
    inputs = (torch.rand(65_537, 2, 2) + 0.5,)  # no row is next to 0, where its direction is noise
    found = climbed(quantized(module, [inputs], config()), inputs)
    assert not found.different and found.rms_steps <= 3  # the largest bound of these operators
    assert len(vela.compile(serialize(found.graph), EthosUCompileSpec("ethos-u55-128")).command_stream) < 60_000


class Shifted(nn.Module):
    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        return x >> by


def test_shifts_of_many_pictures_by_what_is_broadcast_are_few_operations() -> None:
    inputs = (torch.randint(-1000, 1000, (2_000, 2, 2, 2), dtype=torch.int32), torch.tensor([1, 3], dtype=torch.int32))
    graph, _ = climb(quantized(Shifted(), [inputs]), inputs, tolerance=0)
    assert len(vela.compile(serialize(graph), EthosUCompileSpec("ethos-u55-128")).command_stream) < 2_000


class Along(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(self.dim)


@pytest.mark.parametrize("shape", [(5000, 2, 1), (1, 5000, 2, 1, 1)])
def test_sums_over_an_axis_with_ones_behind_are_few_operations(shape: tuple[int, ...]) -> None:
    """Vela makes an operation of each of the 5,000 places unless the axis is the last: 100 KB of commands."""
    inputs = (torch.rand(shape) - 0.3,)
    graph, _ = climb(quantized(Along(len(shape) - shape[::-1].index(2) - 1), [inputs]), inputs)
    assert len(vela.compile(serialize(graph), EthosUCompileSpec("ethos-u55-128")).command_stream) < 2_000


BATCHES = {
    "conv2d": (nn.Conv2d(2, 3, 1), (70_000, 2, 1, 1)),
    "conv3d": (nn.Conv3d(2, 2, (3, 1, 1), dilation=3), (1, 2, 66_000, 1, 2)),
    "depthwise": (nn.Conv2d(2, 2, 1, groups=2), (5_000, 2, 1, 1)),
}


@pytest.mark.parametrize(
    ("name", "target"),
    [
        *((name, "ethos-u85-256") for name in BATCHES),
        *(pytest.param(name, "ethos-u55-128", marks=[pytest.mark.long] * (name != "depthwise")) for name in BATCHES),
    ],
)
def test_kernels_of_one_place_compute_a_large_batch_by_few_operations(name: str, target: str) -> None:
    """Vela makes an operation of each map of such a batch: of the conv3d 4 MB of commands in 80 s."""
    module, shape = BATCHES[name]
    inputs = (torch.rand(shape) - 0.3,)
    graph, _ = climb(quantized(module.eval(), [inputs]), inputs, target=target)
    assert len(vela.compile(serialize(graph), EthosUCompileSpec(target)).command_stream) < 40_000
