"""One call of one operator through every layer: fake-quant PyTorch, the walk, TOSA reference model, Vela, NPU machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ethorch import EthosUCompileSpec, EthosUQuantizer, vela
from ethorch.backend import builder_for
from ethorch.lower import Walk, lower_program
from ethorch.nodes import DEQUANTIZE, QUANTIZE, constants_of, storage_order
from ethorch.npu import Machine, Program
from ethorch.ops.spec import I8, Ints, Sample, Truth, W, op_name
from ethorch.tosa.flatbuffer import serialize
from ethorch.tosa.ir import Graph
from ethorch.tosa.rewrite import rewrite
from ethorch.tosa.run import as_bits, from_bits

#: What becomes an input of a sample's module, in order.
INPUTS = (I8, Ints, Truth)


class Call(torch.nn.Module):
    """``torch.ops.<name>`` with a sample's arguments: W become parameters; I8, Ints and Truth inputs."""

    def __init__(self, name: str, sample: Sample, seed: int = 0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        namespace, packet, overload = (sample.overload or name).split(".")
        self.function = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
        self.sample = sample
        self.kinds: list[I8] = []
        for index, parameter in enumerate(_leaves(sample, W)):
            data = torch.rand(parameter.shape, generator=generator) + parameter.low
            setattr(self, f"w{index}", torch.nn.Parameter(data, requires_grad=False))

    def forward(self, *inputs: torch.Tensor) -> Any:
        tensors, counter = iter(inputs), iter(range(100))

        def fill(arg: Any) -> Any:
            if isinstance(arg, INPUTS):
                return next(tensors)
            if isinstance(arg, W):
                return getattr(self, f"w{next(counter)}")
            return [fill(a) for a in arg] if isinstance(arg, (list, tuple)) else arg

        keywords = {k: getattr(torch, a) if k == "dtype" else fill(a) for k, a in self.sample.kwargs.items()}
        result = self.function(*[fill(a) for a in self.sample.args], **keywords)
        result = result[0] if isinstance(result, tuple) else result
        if isinstance(result, list):  # split and its kin: every piece
            return tuple(result)
        return result.to(torch.int32) if result.dtype == torch.int64 else result  # indices leave the NPU as int32


def _leaves(arg: Any, kind: type | tuple[type, ...]) -> Iterator[Any]:
    if isinstance(arg, kind):
        yield arg
    elif isinstance(arg, (list, tuple)):
        for item in arg:
            yield from _leaves(item, kind)
    elif isinstance(arg, Sample):
        yield from _leaves([*arg.args, *arg.kwargs.values()], kind)


def inputs_for(sample: Sample, seed: int) -> tuple[torch.Tensor, ...]:
    """Uniform over each input's whole range, the ends included."""
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for kind in _leaves(sample, INPUTS):
        x = torch.rand(kind.shape, generator=generator)
        if isinstance(kind, Truth):
            tensors.append(x < kind.chance)
            continue
        x = x * (kind.high - kind.low) + kind.low
        flat = x.flatten()
        if flat.numel():
            flat[0], flat[-1] = kind.low, kind.high
        x = flat.reshape(kind.shape)
        tensors.append(x if isinstance(kind, I8) else x.round().to(getattr(torch, kind.dtype)))
    return tuple(tensors)


@dataclass
class Quantized:
    """A converted module, its program, and the qparams where it meets the world."""

    module: torch.nn.Module
    program: torch.export.ExportedProgram

    def input_codes(self, inputs: tuple[torch.Tensor, ...]) -> list[np.ndarray]:
        """What the first quantize nodes make of the inputs, in the TOSA graph's order of inputs."""
        placeholders = [
            n for n in self.program.graph.nodes if n.op == "placeholder" and n.name in self.program.graph_signature.user_inputs
        ]
        given = dict(zip(placeholders, inputs, strict=True))
        codes = [given[node].numpy() for node in placeholders if not given[node].dtype.is_floating_point]
        for node in self.program.graph.nodes:
            if node.op == "call_function" and op_name(node.target) in QUANTIZE and node.args[0] in given:
                codes.append(node.target(given[node.args[0]], *node.args[1:]).numpy())
        return codes

    def output_codes(self, inputs: tuple[torch.Tensor, ...]) -> list[np.ndarray]:
        """The fake-quantized outputs in codes of the last dequantize nodes; integers as they are."""
        results = self.module(*inputs)
        results = results if isinstance(results, (tuple, list)) else (results,)
        nodes = self.program.graph.output_node().args[0]
        codes = []
        for node, result in zip(nodes, results, strict=True):
            stored = result.permute(storage_order(node.meta["val"]))  # a permuted output keeps its strides
            if result.dtype.is_floating_point:
                assert op_name(node.target) in DEQUANTIZE, node.format_node()
                scale, zero = node.args[1:3]
                stored = torch.round(stored.to(torch.float64) / scale + zero)
            codes.append(stored.numpy().astype(np.int64))
        return codes


def quantized(
    module: torch.nn.Module, calibration: list[tuple[torch.Tensor, ...]], config: Any, target: str = "ethos-u55-128"
) -> Quantized:
    """Export, annotate, calibrate, convert, export again."""
    module.eval()
    graph_module = torch.export.export(module, calibration[0]).module(check_guards=False)
    prepared = prepare_pt2e(graph_module, EthosUQuantizer(EthosUCompileSpec(target)).set_global(config))
    for inputs in calibration:
        prepared(*inputs)
    converted = convert_pt2e(prepared)
    return Quantized(converted, torch.export.export(converted, calibration[0]))


def lowered(program: torch.export.ExportedProgram, target: str) -> Graph:
    """The whole program as one TOSA graph, rewritten and verified."""
    builder = builder_for(EthosUCompileSpec(target).target)
    graph = rewrite(lower_program(program, builder), forms=builder.forms)
    graph.verify()
    return graph


def refusal_ids(program: torch.export.ExportedProgram, target: str) -> set[str]:
    """Ids of the reasons a dry run over the program collects."""
    builder = builder_for(EthosUCompileSpec(target).target)
    return {reason.id for reason in Walk(program.graph, constants_of(program), builder, strict=False).run().refusals.values()}


def reference(tosa: bytes, codes: list[np.ndarray]) -> list[np.ndarray]:
    """The TOSA reference model's outputs; it must call the graph valid."""
    import tosa_reference_model

    outputs, status = tosa_reference_model.run(tosa, [as_bits(c) for c in codes])
    assert status == tosa_reference_model.GraphStatus.TOSA_VALID, status
    return [from_bits(output) for output in outputs]


def machine(tosa: bytes, codes: list[np.ndarray], spec: EthosUCompileSpec) -> list[np.ndarray]:
    """The outputs of Vela's command stream for the graph, run by the NPU machine."""
    return run_compiled(vela.compile(tosa, spec), codes)


def run_compiled(compiled: vela.CompiledModel, codes: list[np.ndarray], checks: tuple[str, ...] = ()) -> list[np.ndarray]:
    """One run of a compiled model on a fresh machine."""
    program = Program(compiled.command_stream, compiled.constants)
    m = Machine(program, compiled.scratch_bytes, compiled.scratch_fast_bytes, checks=checks)
    for tensor, array in zip(compiled.inputs, codes, strict=True):
        data = np.ascontiguousarray(array).view(np.uint8).ravel()
        m.region(tensor.region)[tensor.offset : tensor.offset + data.size] = data
        m.mark_written(tensor.region, tensor.offset, data.size)
    m.run()
    results = []
    for tensor in compiled.outputs:
        raw = m.region(tensor.region)[tensor.offset : tensor.offset + tensor.nbytes]
        results.append(raw.copy().view(f"int{8 * tensor.element_size}").reshape(tensor.shape))
    return results


def climb(
    q: Quantized, inputs: tuple[torch.Tensor, ...], target: str = "ethos-u55-128", tolerance: int = 1
) -> tuple[Graph, list[np.ndarray]]:
    """All layers on one input: asserts their agreement; returns the graph and the reference's outputs."""
    graph = lowered(q.program, target)
    tosa = serialize(graph)
    codes = q.input_codes(inputs)
    codes = [x.astype(np.int8) if value.dtype == "INT8" else x for x, value in zip(codes, graph.inputs, strict=True)]
    expected, found = q.output_codes(inputs), reference(tosa, codes)
    for want, got in zip(expected, found, strict=True):
        assert want.shape == got.shape
        assert np.abs(want - got.astype(np.int64)).max(initial=0) <= tolerance, (want.ravel()[:10], got.ravel()[:10])
    for want, got in zip(found, machine(tosa, codes, EthosUCompileSpec(target)), strict=True):
        np.testing.assert_array_equal(got.ravel(), want.ravel())
    return graph, found
