"""Matrix products compiled by Vela, and their streams before and after the attention pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from ethorch import npu
from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.npu.ir import Stream, decode
from ethorch.npu.ir.image import Image
from ethorch.npu.passes.context import Context
from ethorch.targets.compile_spec import VELA, EthosUCompileSpec
from ethorch.targets.memory_rates import read_memory_rates
from ethorch.tosa.ir import Graph
from ethorch.tosa.serialize import serialize
from ethorch.vela.compiled_model import CompiledModel
from ethorch.vela.compiler import compile

TARGETS = ("ethos-u55-32", "ethos-u55-64", "ethos-u55-128", "ethos-u55-256", "ethos-u65-256", "ethos-u65-512")


@dataclass(frozen=True)
class Shape:
    """Batches of [rows, depth] x [depth, columns]."""

    batches: int
    rows: int
    columns: int
    depth: int


def draw_product(shape: Shape, zero_point: int, dtype: str) -> Graph:
    """Return the TOSA graph of ``x @ y.T`` whose operand ``y`` has a zero point. The result is not scaled if it is INT32."""
    b = Builder()
    x = b.input("x", (shape.batches, shape.rows, shape.depth), "INT8")
    y = b.input("y", (shape.batches, shape.columns, shape.depth), "INT8")
    product = b.emit("MATMUL", x, b.emit("TRANSPOSE", y, perms=[0, 2, 1]), a_zp=3, b_zp=zero_point)
    if dtype == "INT8":
        product = b.rescale(product, 1 / (160 * shape.depth**0.5), output_zp=-4, dtype=dtype)
    elif dtype == "INT16":
        product = b.rescale(product, 1 / (2 * shape.depth**0.5), dtype=dtype)
    b.graph.outputs.append(product)
    return b.graph


@cache
def compile_product(shape: Shape, target: str, zero_point: int = -1, dtype: str = "INT8") -> tuple[Stream, Context]:
    """Return Vela's stream of a product, and the context of passes."""
    spec = EthosUCompileSpec(target, stream=VELA)
    graph = rewrite(draw_product(shape, zero_point, dtype), tuning=spec.target.tuning)
    return decode_model(compile(serialize(graph), spec)), Context(read_memory_rates(spec))


def decode_model(model: CompiledModel) -> Stream:
    sizes = {number: size for number, size in ((1, model.scratch_bytes), (2, model.scratch_fast_bytes)) if size}
    inputs, outputs = (
        tuple((tensor.region, tensor.offset, tensor.offset + tensor.nbytes) for tensor in tensors)
        for tensors in (model.inputs, model.outputs)
    )
    return decode(model.command_stream, Image(np.frombuffer(model.constants, np.uint8), sizes, inputs, outputs))


def run(payload: bytes, image: Image, seed: int, noise: int) -> list[bytes]:
    """Return the outputs for random inputs, in memory that contains other random bytes."""
    program = npu.Program(payload, image.constants)
    machine = npu.Machine(program, scratch_bytes=image.sizes.get(1, 0), scratch_fast_bytes=image.sizes.get(2, 0))
    rng, other = np.random.default_rng(seed), np.random.default_rng(noise)
    for region in image.sizes:
        memory = machine.region(region)
        memory[:] = other.integers(0, 256, memory.size)
    for region, low, high in image.inputs:
        machine.region(region)[low:high] = rng.integers(0, 256, high - low)
    machine.run()
    return [machine.region(region)[low:high].tobytes() for region, low, high in image.outputs]
