"""Matrix products as convolutions: layouts of weight streams, results, and cases that remain as Vela compiles them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import ethorch
from bench.implementation import memory_for
from bench.models import ALL_MODELS
from ethorch.models.load import UserModel
from ethorch.npu.arithmetic import ceil_div
from ethorch.npu.ir import Stream, encode
from ethorch.npu.memory import INTERNAL
from ethorch.npu.passes import attention
from ethorch.npu.passes.attention.match import find_products
from ethorch.npu.passes.attention.tables import find_free_slots
from ethorch.npu.passes.attention.weights import (
    FIRST_HIGH,
    FIRST_LOW,
    LEAD,
    LINE,
    ZERO_POINT,
    Layout,
    build_end,
    build_header,
    build_tables,
)
from ethorch.npu.passes.context import Context
from ethorch.npu.verify import verify
from ethorch.npu.weights import decode as decoders
from ethorch.npu.weights.order import Order, positions
from ethorch.program.build import build_program, single_method
from ethorch.program.program import record_of
from ethorch.targets.memory_rates import read_memory_rates
from ethorch.targets.settings import Settings
from tests.npu.passes.products import TARGETS, Shape, compile_product, decode_model, run

#: Products of attention layers (tokens x heads x depth), of cross attention, and of few rows.
LAYERS = ((64, 4, 16), (197, 3, 64), (256, 4, 8), (300, 2, 64), (511, 1, 64), (63, 2, 24), (50, 2, 40), (31, 3, 96))
SHAPES = (
    *(Shape(heads, tokens, tokens, depth) for tokens, heads, depth in LAYERS),
    *(Shape(heads, tokens, depth, tokens) for tokens, heads, depth in LAYERS),
    Shape(4, 33, 70, 32), Shape(4, 33, 32, 70), Shape(2, 8, 600, 64), Shape(2, 8, 64, 600), Shape(1, 40, 9, 260),
    Shape(1, 20, 17, 64),
)  # fmt: skip
#: Lanes and outputs that need padding; several taps; several pieces.
SMALL = (Shape(2, 16, 24, 16), Shape(2, 9, 27, 64), Shape(1, 20, 11, 45))


@pytest.mark.parametrize("unit", [4, 8])
@pytest.mark.parametrize(
    ("outputs", "inputs", "has_taps"),
    [
        (8, 32, False), (8, 32, True), (24, 64, False), (24, 64, True), (13, 96, False), (13, 96, True),
        (3, 256, False), (3, 256, True), (5, 20, False), (37, 75, False), (64, 197, False), (16, 3, False),
    ],
)  # fmt: skip
def test_streams_decode_to_the_operand(outputs: int, inputs: int, unit: int, has_taps: bool) -> None:
    operand = np.random.default_rng(1).integers(-128, 128, (outputs, inputs))
    layout = Layout(outputs, inputs, unit, has_taps)
    stream = write_stream(layout, operand)
    kernel, depth = ((inputs // 32, 1), 32) if has_taps else ((1, 1), inputs)
    order = Order("DF", outputs, depth, kernel, (1, 1), 128, 8, unit)
    weights = np.zeros(outputs * inputs, np.int16)
    where = positions(order, "u55")
    decoded = decoders.decode_standard_numpy(stream)
    assert len(decoded) == len(where) == layout.weights
    weights[where[where >= 0]] = decoded[where >= 0]
    np.testing.assert_array_equal(weights.reshape(outputs, inputs), operand - ZERO_POINT)


def write_stream(layout: Layout, operand: np.ndarray) -> bytes:
    """Write a stream as the operations of the pass do, over bytes that are no weights."""
    index, low, high = (np.frombuffer(table, np.uint8) for table in build_tables())
    stream = np.full(layout.size_bytes, 0xAA, np.uint8)
    stream[:LINE] = np.frombuffer(build_header(layout.weights), np.uint8)
    stream[-LINE:] = np.frombuffer(build_end(), np.uint8)
    written = np.zeros(layout.size_bytes, np.int64)
    for boxes, is_padding in ((layout.list_gaps(), True), (layout.list_boxes(), False)):
        for box in boxes:
            for row, column, lane in np.ndindex(box.height, box.width, box.channels):
                output, first = box.output + row * box.output_step + column, box.input + row * box.input_step + lane
                at = box.offset + row * box.stride + 8 * column + lane
                stream[at] = 0 if is_padding else index[operand[output, first] + 128]
                written[at] += 1
    first = operand[0, 0] + 128
    stream[FIRST_LOW], stream[FIRST_HIGH] = low[first], high[first]
    assert (written[LEAD + 1 : LEAD + layout.weights] == 1).all()
    assert written.sum() == layout.weights - 1
    return stream.tobytes()


def check(stream: Stream, context: Context, seeds: int = 2) -> Stream:
    """Check that the pass changes a stream, and no byte of its results."""
    changed = attention.run(stream, context)
    assert changed is not None
    payload = encode(changed)
    assert verify(payload, changed.image) == []
    assert context.rate(changed) < context.rate(stream)
    for seed in range(seeds):
        wanted = run(encode(stream), stream.image, seed, noise=100 + seed)
        assert run(payload, changed.image, seed, noise=200 + seed) == wanted
    return changed


@pytest.mark.parametrize(
    ("target", "shape"),
    [*(("ethos-u55-128", shape) for shape in SMALL), *((target, SMALL[1]) for target in TARGETS if target != "ethos-u55-128")],
    ids=str,
)
def test_results_are_equal(target: str, shape: Shape) -> None:
    changed = check(*compile_product(shape, target))
    assert not list(find_products(changed.ops))
    assert sum(op.name == "NPU_OP_CONV" for op in changed.ops) >= shape.batches


def test_pieces_with_equal_layouts_share_header_and_end() -> None:
    """All pieces of a batch come before the next batch, so that the pass ``division`` can run batch by batch."""
    shape = Shape(3, 256, 256, 8)
    changed = check(*compile_product(shape, "ethos-u55-128"))
    lines = [op for op in changed.ops if op.is_dma and op.registers["DMA0_LEN"] == LINE]
    assert len(lines) == 2
    places = [op.registers["OFM_BASE0"] for op in changed.ops if op.name == "NPU_OP_CONV"]
    batches = [(place - min(places)) // (shape.rows * shape.columns) for place in places]
    assert len(places) >= 2 * shape.batches and batches == sorted(batches)


@pytest.mark.parametrize("dtype", ["INT16", "INT32"])
def test_wider_results_are_equal(dtype: str) -> None:
    check(*compile_product(SMALL[1], "ethos-u55-128", dtype=dtype))


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_results_of_layers_are_equal(target: str, shape: Shape) -> None:
    check(*compile_product(shape, target))


@pytest.mark.parametrize(
    ("shape", "zero_point"),
    [(Shape(2, 16, 24, 16), 0), (Shape(2, 16, 24, 16), -128), (Shape(1, 5, 3, 3), -1), (Shape(4, 1, 64, 16), -1)],
)
def test_other_products_remain(shape: Shape, zero_point: int) -> None:
    """Weights of other zero points do not cover all codes, and writing weights for few rows costs more than it saves."""
    stream, context = compile_product(shape, "ethos-u55-128", zero_point)
    assert attention.run(stream, context) is None


def test_the_stream_is_not_modified() -> None:
    stream, context = compile_product(SMALL[0], "ethos-u55-128")
    before, size = [(op.key, dict(op.registers)) for op in stream.ops], len(stream.image.constants)
    changed = attention.run(stream, context)
    assert changed is not None
    assert [(op.key, op.registers) for op in stream.ops] == before
    assert len(stream.image.constants) == size
    keys = [op.key for op in changed.ops]
    assert len(set(keys)) == len(keys)


def test_damaged_streams_are_rejected() -> None:
    """The verifier checks the constant parts of a written stream, and that it is staged."""
    stream, context = compile_product(SMALL[0], "ethos-u55-128")
    changed = attention.run(stream, context)
    assert changed is not None
    added = len(stream.image.constants)
    for byte in (0, 2, 6, 8, 9):
        constants = changed.image.constants.copy()
        headers = [at for at in range(added, len(constants), LINE) if constants[at : at + 4].tobytes() == build_header(512)[:4]]
        for at in headers:
            constants[at + byte] ^= 0x40
        assert headers
        assert "streams" in {rejection.rule for rejection in verify(encode(changed), replace(changed.image, constants=constants))}
    (staging, *_) = [op for op in changed.ops if op.is_dma and op.key < 0 and op.registers["DMA0_SRC_REGION"] == 1]
    convolution = next(op for op in changed.ops if op.name == "NPU_OP_CONV")
    for direct in ({"WEIGHT_BASE": staging.registers["DMA0_SRC"]}, {"WEIGHT_LENGTH": convolution.registers["WEIGHT_LENGTH"] - 16}):
        ops = [op.copy(**direct) if op is convolution else op for op in changed.ops]
        assert verify(encode(replace(changed, ops=ops)), changed.image)


class Attention(nn.Module):
    """Cross attention with tables before, between and after the products."""

    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(self.query(torch.tanh(x))), self.split(self.key(memory)), self.split(torch.tanh(self.value(memory)))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / 4
        result: torch.Tensor = self.output(torch.tanh(torch.matmul(scores.softmax(-1), v)).transpose(1, 2).flatten(2))
        return torch.sigmoid(result)


def compile_attention(target: str, stream: str) -> ethorch.Program:
    torch.manual_seed(0)
    samples = [(torch.randn(1, 24, 32), torch.randn(1, 40, 32)) for _ in range(4)]
    settings = Settings(target, stream=stream)
    return ethorch.compile(Attention().eval(), samples[0], calibration=samples, settings=settings)


@pytest.mark.parametrize(
    "target", ["ethos-u55-128", *(pytest.param(target, marks=pytest.mark.long) for target in TARGETS if target != "ethos-u55-128")]
)
def test_networks_use_the_pass(target: str) -> None:
    """The compiler compares the delegate with its TOSA graph in the simulator."""
    before, after = (record_of(compile_attention(target, stream)) for stream in ("vela", "attention"))
    streams = [decode_model(record.build.delegates[0].compiled) for record in (before, after)]
    products = [list(find_products(stream.ops)) for stream in streams]
    assert [product.b.zero_point for product in products[0]] == [ZERO_POINT, ZERO_POINT]
    assert products[1] == []
    for seed in range(2):
        payloads = [encode(stream) for stream in streams]
        wanted, found = (run(p, s.image, seed, noise) for p, s, noise in zip(payloads, streams, (5, 6), strict=True))
        assert wanted == found


def test_tables_of_the_network_keep_their_slots() -> None:
    stream = decode_model(record_of(compile_attention("ethos-u55-128", "vela")).build.delegates[0].compiled)
    for product in find_products(stream.ops):
        free = find_free_slots(stream.ops, product.first, product.last)
        base = stream.npu.lut_base
        loaded: dict[int, int] = {}
        for position, op in enumerate(stream.ops):
            for run_ in op.writes:
                if run_.region == INTERNAL:
                    loaded.update(dict.fromkeys(range((run_.low - base) // 256, ceil_div(run_.high - base, 256)), position))
            reads = [run_ for run_ in op.reads if run_.region == INTERNAL]
            if position > product.last and reads:
                slots = range((reads[0].low - base) // 256, ceil_div(reads[0].high - base, 256))
                assert all(slot not in free or loaded[slot] > product.last for slot in slots)


@pytest.mark.long
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-256"])
@pytest.mark.parametrize("model", ["llama", "bert", "deit"])
def test_benchmarks_are_equal(model: str, target: str) -> None:
    case, (system_config, memory_mode) = ALL_MODELS[model], memory_for(target)
    user = UserModel(case.build(), case.example_inputs(), case.calibration(2))
    settings = Settings(target, system_config=system_config, memory_mode=memory_mode, stream="vela")
    record = build_program(single_method(user), settings)
    assert record.build is not None
    context = Context(read_memory_rates(settings.spec))
    for delegate in record.build.delegates:
        changed = check(decode_model(delegate.compiled), context, seeds=1)
        assert not list(find_products(changed.ops))
