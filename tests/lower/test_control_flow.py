"""torch.cond and while_loop on the NPU: every path of a .pte against the quantized model, the machine against TOSA's reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from torch import Tensor, nn
from torch.fx.passes.operator_support import OperatorSupportBase

import ethorch.tosa
from ethorch import EthosUCompileSpec, EthosUPartitioner, EthosUQuantizer, runtime
from ethorch.arm import TosaCompileSpec, TOSAPartitioner, TOSAQuantizer
from ethorch.arm.quantizer import get_symmetric_a16w8_quantization_config, get_symmetric_quantization_config
from ethorch.formats.payload import DelegatePayload
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.npu import Program, Sources, disassembly
from ethorch.program.measure.ladder import Recorder
from ethorch.tosa.serialize import serialize
from ethorch.tosa.text import from_text, to_text
from ethorch.tosa.verify import verify
from tests.helpers.ladder import machine, reference
from tests.helpers.quantized import lower

YES, NO = torch.tensor(True), torch.tensor(False)
Inputs = tuple[Tensor, ...]


class Convolutions(nn.Module):
    """Operators before and behind, the condition an input."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.one, self.two = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 8, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.behind = nn.Linear(8, 4)

    def forward(self, p: Tensor, x: Tensor) -> Tensor:
        y = torch.cond(p, lambda x: self.one(x).relu(), lambda x: self.two(x) * 0.5, (self.before(x),))
        return self.behind(y.mean((2, 3)))


class TwoResults(nn.Module):
    """The condition is computed; a result that is an operand, and a constant one."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.cond(
            x.sum() > 0,
            lambda x, y: (x + torch.sin(y), x.clone(), torch.zeros(3)),
            lambda x, y: (x - torch.cos(y), y * 2, torch.ones(3)),
            (x, y),
        )


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, p: Tensor, x: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            return torch.cond(x.mean() > 0, lambda x: self.a(x), lambda x: self.b(x).relu(), (x,))

        return torch.cond(p, inner, lambda x: self.c(x) * 2, (x,)) + 1


class Composites(nn.Module):
    """What ExecuTorch would decompose, inside of branches."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, p: Tensor, x: Tensor) -> Tensor:
        def gated(x: Tensor) -> Tensor:
            return nn.functional.silu(self.norm(x))

        return torch.cond(p, gated, lambda x: nn.functional.hardswish(torch.softmax(self.linear(x), -1)), (x,))


class Integers(nn.Module):
    def forward(self, p: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cond(p, lambda i: (i + 1, i > 0), lambda i: (i * 2, i < 5), (i,))


class Loop(nn.Module):
    """As many rounds as the input says; a counter, and a map that stays NHWC."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, n: Tensor, x: Tensor) -> Tensor:
        def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return i + 1, torch.tanh(self.again(y))

        start = torch.tensor([0], dtype=torch.int32)  # PyTorch 2.13 decomposes i + 1 to int64 where i has no axis
        return torch.while_loop(lambda i, y: (i < n).reshape(()), body, (start, self.first(x)))[1]


class CondInLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return i + 1, torch.cond(y.sum() > 0, lambda y: self.a(y).tanh(), lambda y: self.b(y).tanh(), (y,))

        return torch.while_loop(lambda i, y: i < 3, body, (torch.tensor(0), x))[1]


class Sorted(nn.Module):
    """topk runs on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, p: Tensor, x: Tensor) -> Tensor:
        return torch.cond(p, lambda x: torch.topk(self.linear(x), 8).values, lambda x: x * 2, (x,)) * 0.5


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def paths(model: type[nn.Module]) -> list[Inputs]:
    """Inputs for each path through the model."""
    x, image = drawn(3, 8), drawn(1, 3, 6, 7)
    ints = torch.arange(-6, 6, dtype=torch.int32).reshape(3, 4)
    return {
        Convolutions: [(YES, image), (NO, image)],
        TwoResults: [(x.abs(), x), (-x.abs(), x)],
        Nested: [(YES, x.abs()), (YES, -x.abs()), (NO, x)],
        Composites: [(YES, x), (NO, x)],
        Integers: [(YES, ints), (NO, ints)],
        Loop: [(torch.tensor([n], dtype=torch.int32), image) for n in (3, 0, 1)],
        CondInLoop: [(x.abs(),), (-x.abs(),)],
        Sorted: [(YES, x), (NO, x)],
    }[model]


def with_branches(model: type[nn.Module], spec: Any, config: Any = None) -> torch.fx.GraphModule:
    """A model whose branches are quantized with it."""
    torch.manual_seed(0)
    samples = paths(model)
    graph = torch.export.export(model().eval(), samples[0]).module(check_guards=False)
    quantizer = (EthosUQuantizer if isinstance(spec, EthosUCompileSpec) else TOSAQuantizer)(spec)
    quantizer.set_global(config or get_symmetric_quantization_config())
    return quantizer.quantize_with_submodules(graph, samples)


def flat(results: Any) -> list[Tensor]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def off(found: list[Tensor], wanted: list[Tensor], module: torch.fx.GraphModule) -> float:
    """The largest difference, in steps of the output's scale; plain integers must be equal."""
    largest = 0.0
    for got, want, node in zip(found, wanted, flat(module.graph.output_node().args[0]), strict=True):
        step = node.args[1] if want.dtype.is_floating_point else 0.5
        largest = max(largest, float((got.double() - want.double()).abs().max()) / step)
    return largest


@pytest.mark.parametrize(
    ("model", "target", "config"),
    [
        (CondInLoop, "ethos-u85-1024", None),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [
                (Convolutions, "ethos-u85-256", None),
                (TwoResults, "ethos-u85-256", None),
                (Nested, "ethos-u85-512", None),
                (Composites, "ethos-u85-256", None),
                (Integers, "ethos-u85-256", None),
                (Loop, "ethos-u85-128", None),
                (CondInLoop, "ethos-u85-256", get_symmetric_a16w8_quantization_config),
                (Convolutions, "ethos-u85-2048", get_symmetric_a16w8_quantization_config),
            ]
        ),
    ],
)
def test_on_the_npu(model: type[nn.Module], target: str, config: Callable[[], Any] | None, tmp_path: Path) -> None:
    """One delegate; each path gives what the quantized model gives, and bit for bit what TOSA's reference model gives."""
    spec = EthosUCompileSpec(target).dump_intermediate_artifacts_to(tmp_path)
    module = with_branches(model, spec, config() if config else None)
    partitioner = EthosUPartitioner(spec)
    recorders: list[Recorder] = []

    def recorded(payload: Any) -> Recorder:
        recorders.append(Recorder(payload))
        return recorders[-1]

    program = runtime.load(lower(module, paths(model)[0], partitioner), machine=recorded)
    assert not partitioner.report.refusals and len(program.delegates) == 1
    (recorder,) = recorders
    tosa, text = (tmp_path / "delegate_0.tosa").read_bytes(), (tmp_path / "delegate_0.txt").read_text()
    inputs = from_text("\n".join(line for line in text.splitlines() if line.startswith("input "))).inputs
    seen = []
    for sample in paths(model):
        found, wanted = program(*sample), flat(module(*sample))
        assert off(found, wanted, module) <= (2.01 if config else 1.01)  # int16: four operators round, each by a step at most
        dtypes = {"INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "BOOL": np.bool_}
        arrays = [raw.view(dtypes[v.dtype]).reshape(v.shape) for raw, v in zip(recorder.inputs, inputs, strict=True)]
        for wanted_bits, raw in zip(reference(tosa, arrays), recorder.outputs, strict=True):
            np.testing.assert_array_equal(raw.view(wanted_bits.dtype).reshape(wanted_bits.shape), wanted_bits)
        seen.append(found[0])
    assert not any(torch.equal(seen[0], other) for other in seen[1:])  # the paths differ


@pytest.mark.long
@pytest.mark.parametrize("text", ["TOSA-1.0+INT+cf", "TOSA-1.0+INT+int16+cf", "TOSA-1.0+FP+cf"])
@pytest.mark.parametrize("model", [Convolutions, CondInLoop])
def test_as_tosa(model: type[nn.Module], text: str) -> None:
    spec = TosaCompileSpec(text)
    if "FP" in text:
        torch.manual_seed(0)
        module = torch.export.export(model().eval(), paths(model)[0]).module(check_guards=False)
    else:
        module = with_branches(model, spec, get_symmetric_a16w8_quantization_config() if "int16" in text else None)
    delegate, codes = as_tosa(module, spec, paths(model)[0])
    for sample in paths(model):
        (found,) = reference(delegate, codes(sample))
        (wanted,) = flat(module(*sample))
        if "FP" in text:
            np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-5, atol=1e-6)
        else:
            scale, zero = module.graph.output_node().all_input_nodes[0].args[1:3]
            steps = 2.01 if "int16" in text else 1.01  # as in test_on_the_npu
            np.testing.assert_allclose((found.astype(np.float64) - zero) * scale, wanted.detach().numpy(), atol=steps * scale)


def as_tosa(
    module: torch.fx.GraphModule, spec: TosaCompileSpec, sample: Inputs
) -> tuple[bytes, Callable[[Inputs], list[np.ndarray]]]:
    """The flatbuffer of a module that is one delegate, and a function that makes its inputs of the program's."""
    partitioner = TOSAPartitioner(spec)
    edge = to_edge_transform_and_lower(
        torch.export.export(module, sample),
        partitioner=[partitioner],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    assert not partitioner.report.refusals, partitioner.report.refusals
    program = edge.exported_program()
    (delegate,) = [child for _, child in program.graph_module.named_children()]
    (call,) = [node for node in program.graph.nodes if "call_delegate" in str(node.target)]
    placeholders = [arg if arg.op == "placeholder" else arg.all_input_nodes[0] for arg in call.args[1:]]  # behind a quantize
    order = [program.graph_signature.user_inputs.index(node.name) for node in placeholders]
    quantize = next((n for n in module.graph.nodes if "quantize_per_tensor" in str(n.target)), None)

    def codes(value: Tensor) -> np.ndarray:
        if quantize is None or not value.dtype.is_floating_point:
            return value.numpy()
        return quantize.target(value, *quantize.args[1:]).numpy()

    return delegate.processed_bytes, lambda values: [codes(values[index]) for index in order]


@pytest.mark.long
def test_no_rescale_between_a_branch_and_what_is_around_it() -> None:
    """The quantizer gives a tensor one scale on its way in and one on its way out."""
    module = with_branches(Convolutions, EthosUCompileSpec("ethos-u85-256"))
    (cond,) = [node for node in module.graph.nodes if str(node.target) == "cond"]
    outside = next(user for user in cond.users).users
    for name in ("true_graph_0", "false_graph_0"):
        branch = module.get_submodule(name)
        placeholder = next(iter(branch.graph.nodes))
        (reader,) = placeholder.users
        assert reader.args[1:3] == cond.args[3][0].args[1:3]
        assert branch.graph.output_node().args[0][0].args[1:3] == next(iter(outside)).args[1:3]


@pytest.mark.parametrize("target", [pytest.param("ethos-u55-128"), pytest.param("ethos-u65-256", marks=pytest.mark.long)])
def test_where_the_npu_has_none_the_cpu_takes_the_right_branch(target: str) -> None:
    module = with_branches(Convolutions, EthosUCompileSpec(target))
    partitioner = EthosUPartitioner(EthosUCompileSpec(target))
    program = runtime.load(lower(module, paths(Convolutions)[0], partitioner))
    assert [(r.origin.target, r.reason.id) for r in partitioner.report.refusals] == [("cond", "COND_IF.absent")]
    assert len(program.delegates) == 2
    for sample in paths(Convolutions):
        assert off(program(*sample), flat(module(*sample)), module) <= 1.01


def test_an_operator_inside_that_cannot_run_is_named() -> None:
    module = with_branches(Sorted, EthosUCompileSpec("ethos-u85-256"))
    partitioner = EthosUPartitioner(EthosUCompileSpec("ethos-u85-256"))
    program = runtime.load(lower(module, paths(Sorted)[0], partitioner))
    (refusal,) = partitioner.report.refusals
    assert (refusal.origin.target, refusal.reason.id) == ("cond", "control_flow.branch")
    assert "the true branch contains aten.topk.default" in refusal.reason.text and "[operator.unknown]" in refusal.reason.text
    for sample in paths(Sorted):
        assert off(program(*sample), flat(module(*sample)), module) <= 1.01


class NoTanh(OperatorSupportBase):
    def is_node_supported(self, submodules: Any, node: torch.fx.Node) -> bool:
        return "tanh" not in str(node.target)


@pytest.mark.long
@pytest.mark.parametrize(
    ("partitioner", "model", "reason"),
    [
        (EthosUPartitioner(EthosUCompileSpec("ethos-u55-128")), Loop, "WHILE_LOOP.absent"),
        (TOSAPartitioner(TosaCompileSpec("TOSA-1.0+INT")), Loop, "WHILE_LOOP.absent"),
        (TOSAPartitioner(TosaCompileSpec("TOSA-1.0+INT")), Convolutions, "COND_IF.absent"),
        (EthosUPartitioner(EthosUCompileSpec("ethos-u85-256"), [NoTanh()]), CondInLoop, "control_flow.branch"),
    ],
)
def test_refusals(partitioner: Any, model: type[nn.Module], reason: str) -> None:
    module = with_branches(model, partitioner.compile_spec)
    program = torch.export.export(module, paths(model)[0])
    _, refused = partitioner.dry_run(program)
    found = [refused[node] for node in program.graph.nodes if node in refused and str(node.target) in ("cond", "while_loop")]
    assert [r.id for r in found] == [reason]
    if reason == "control_flow.branch":
        assert found[0].text.count("[user.check]") == 1 and "the loop body contains cond" in found[0].text
    if isinstance(partitioner, EthosUPartitioner):
        assert "to_executorch cannot write a while_loop" in found[0].remedy


@pytest.mark.long
def test_text_and_disassembly_show_the_regions(tmp_path: Path) -> None:
    spec = EthosUCompileSpec("ethos-u85-256").dump_intermediate_artifacts_to(tmp_path)
    lower(with_branches(Convolutions, spec), paths(Convolutions)[0], EthosUPartitioner(spec))
    text = (tmp_path / "delegate_0.txt").read_text()
    assert "{then_graph='cond_then', else_graph='cond_else'}" in text
    assert "\nregion cond_then\n  input %" in text and "\nregion cond_else\n  input %" in text
    payload = (tmp_path / "delegate_0.payload").read_bytes()
    unpacked = DelegatePayload.unpack(payload)
    sources = Sources.from_json((tmp_path / "delegate_0.sources.json").read_text())
    shown = disassembly.text(Program(unpacked.commands, unpacked.weights), sources)
    assert shown.count(" BRANCH ") == 4
    (section,) = [part for part in shown.split("\n\n") if part.startswith("; If cond")]
    assert section.count(" CONV WEIGHTS") == 2 and section.count("kernel 3x3") == 2 and section.count(" BRANCH ") == 3


def test_what_a_condition_sees_is_one_truth_value() -> None:
    """A graph whose regions do not fit its operator is no graph."""
    from ethorch.lower.builder.builder import Builder

    b = Builder()
    x = b.input("x", (2, 3), "INT8")
    regions = []
    for name in ("then", "else"):
        inner = b.region(name)
        inner.graph.outputs.append(inner.emit("IDENTITY", inner.input("y", (2, 3), "INT8")))
        regions.append(inner.graph)
    condition = b.input("p", (1,), "BOOL")
    b.graph.outputs.append(b.emit("COND_IF", condition, x, then_graph=regions[0], else_graph=regions[1]))
    verify(b.graph)
    again = from_text(to_text(b.graph, constants=True))
    verify(again)
    assert to_text(again) == to_text(b.graph)
    for wrong in ((b.input("q", (2,), "BOOL"), x), (condition, b.input("z", (3, 2), "INT8")), (condition,)):
        with pytest.raises(AssertionError, match="COND_IF"):
            b.emit("COND_IF", *wrong, then_graph=regions[0], else_graph=regions[1])
    other = dataclasses.replace(regions[1], name="then")
    b.graph.ops[-1].attrs["else_graph"] = other
    with pytest.raises(AssertionError, match="the same name"):
        verify(b.graph)


def looped() -> ethorch.tosa.ir.Graph:
    """x = table of an input; x beside what two rounds of another table make of it."""
    from ethorch.lower.builder.builder import Builder

    rng = np.random.default_rng(1)
    b = Builder()

    def table(b: Builder, x: Any) -> Any:
        return b.emit("TABLE", x, b.const(rng.permutation(np.arange(-128, 128)).astype(np.int8)))

    x = table(b, b.input("a", (1, 5, 5, 8), "INT8"))
    condition, body = b.region("condition"), b.region("body")
    for inner in (condition, body):
        inner.input("n", (1,), "INT32")
        inner.input("x", x.shape, "INT8")
    one, two = (b.const(np.array([number], np.int32)) for number in (1, 2))
    condition.graph.outputs.append(condition.emit("GREATER", two, condition.graph.inputs[0]))
    body.graph.outputs += [body.emit("ADD", body.graph.inputs[0], one), table(body, body.graph.inputs[1])]
    b.emit("WHILE_LOOP", b.const(np.zeros(1, np.int32)), x, cond_graph=condition.graph, body_graph=body.graph)
    b.graph.outputs.append(b.emit("CONCAT", x, b.graph.ops[-1].results[1], axis=1))
    return b.graph


def test_what_a_loop_starts_with_can_be_read_behind_it() -> None:
    spec = EthosUCompileSpec("ethos-u85-256")
    codes = [np.random.default_rng(0).integers(-128, 128, (1, 5, 5, 8)).astype(np.int8)]
    (wanted,) = reference(serialize(looped()), codes)
    made = serialize(rewrite(looped(), tuning=spec.target.tuning))
    np.testing.assert_array_equal(reference(made, codes)[0], wanted)
    np.testing.assert_array_equal(machine(made, codes, spec)[0].reshape(wanted.shape), wanted)
