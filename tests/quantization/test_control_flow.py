"""torch.cond and while_loop: every branch is calibrated, converted, and right, with a warning if no sample reached it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from ethorch import EthosUCompileSpec, EthosUQuantizer, compile, sqnr_db
from ethorch.arm.quantizer import get_symmetric_quantization_config
from ethorch.support.errors import EthorchError, QuantizationError


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        def large(x: Tensor) -> Tensor:
            return self.one(x).relu() * 2

        def small(x: Tensor) -> Tensor:
            return self.two(x) - 1

        return torch.cond(x.sum() > 0, large, small, (x,)) + 1


class Nested(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            return torch.cond(x.sum() > -100, lambda x: x * 3, lambda x: torch.sin(x), (x,))

        return torch.cond(x.sum() > 0, inner, lambda x: torch.cos(x), (x,))


class Chosen(nn.Module):
    def forward(self, x: Tensor, choice: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            return torch.cond(x.sum() > -100, lambda x: x * 3, lambda x: torch.sin(x), (x,))

        return torch.cond(choice, inner, lambda x: torch.cos(x), (x,))


class Loop(nn.Module):
    def __init__(self, rounds: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.rounds = nn.Linear(8, 8), rounds

    def forward(self, x: Tensor) -> Tensor:
        def condition(i: Tensor, x: Tensor) -> Tensor:
            return i < self.rounds

        def body(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return i + 1, torch.tanh(self.linear(x))

        return torch.while_loop(condition, body, (torch.tensor(0), x))[1] * 2


def quantizer() -> EthosUQuantizer:
    return EthosUQuantizer(EthosUCompileSpec("ethos-u85-256")).set_global(get_symmetric_quantization_config())


def positive_and_negative() -> tuple[Tensor, Tensor]:
    """Two tensors of one range, of sums above and below 0."""
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(4)) + 0.3
    other = (-x).clamp(x.min(), x.max())
    assert x.sum() > 0 > other.sum() and other.min() >= x.min() and other.max() <= x.max()
    return x, other


def test_both_branches_of_cond() -> None:
    x = torch.rand(3, 8, generator=torch.Generator().manual_seed(3))
    graph = torch.export.export(Branches(), (x,)).module(check_guards=False)
    model = copy.deepcopy(graph)
    converted = quantizer().quantize_with_submodules(graph, [(x,), (-x,), (x / 2,), (-x / 2,)])
    for sample in (x, -x):
        assert sqnr_db(model(sample), converted(sample)) > 22
    for branch in converted.children():
        if isinstance(branch, torch.fx.GraphModule):
            assert any("quantize_per_channel" in str(n.target) for n in branch.graph.nodes)
    torch.export.export(converted, (x,))


def test_a_branch_that_no_sample_reached_is_observed_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    x, other = positive_and_negative()
    graph = torch.export.export(Branches(), (x,)).module(check_guards=False)
    model = copy.deepcopy(graph)
    converted = quantizer().quantize_with_submodules(graph, [(x,), (x / 2,)])
    assert "the 2 calibration samples never reached false_graph_0 (the false branch of cond). " in caplog.text
    assert "[submodules.unreached_branch]" in caplog.text
    assert sqnr_db(model(other), converted(other)) > 22 and sqnr_db(model(x), converted(x)) > 22


@pytest.mark.parametrize(("sign", "name"), [(1, "false_graph_0"), (-1, "true_graph_0")])
def test_a_branch_of_constants_that_no_sample_reached(sign: int, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is quantized in it, but its result is, outside."""
    x = torch.rand(3, 8, generator=torch.Generator().manual_seed(3)) * sign
    graph = torch.export.export(Constants(), (x,)).module(check_guards=False)
    model = copy.deepcopy(graph)
    converted = quantizer().quantize_with_submodules(graph, [(x,)])
    assert f"reached {name} " in caplog.text
    assert sqnr_db(model(x), converted(x)) > 22


def test_an_inner_branch_that_no_sample_reached_is_named_with_its_path(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.rand(3, 8, generator=torch.Generator().manual_seed(3))
    graph = torch.export.export(Nested(), (x,)).module(check_guards=False)
    model = copy.deepcopy(graph)
    converted = quantizer().quantize_with_submodules(graph, [(x,), (-x,)])
    assert "reached true_graph_0.false_graph_0 (the false branch of cond). " in caplog.text
    assert sqnr_db(model(-x), converted(-x)) > 22


def test_a_body_that_no_sample_reached_takes_what_its_condition_took(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.rand(3, 8, generator=torch.Generator().manual_seed(3))
    graph = torch.export.export(Loop(rounds=0), (x,)).module(check_guards=False)
    model = copy.deepcopy(graph)
    converted = quantizer().quantize_with_submodules(graph, [(x,)])
    assert "reached while_loop_body_graph_0 (the loop body of while_loop)" in caplog.text
    assert sqnr_db(model(x), converted(x)) > 22


def test_control_flow_in_a_branch_that_no_sample_reached(caplog: pytest.LogCaptureFixture) -> None:
    x, other = positive_and_negative()
    yes, no = torch.tensor(True), torch.tensor(False)
    graph = torch.export.export(Chosen(), (x, yes)).module(check_guards=False)
    model = copy.deepcopy(graph)
    converted = quantizer().quantize_with_submodules(graph, [(other, no)])
    assert "reached true_graph_0 (the true branch of cond); true_graph_0.false_graph_0 (" in caplog.text
    for choice in (yes, no):
        assert sqnr_db(model(x, choice), converted(x, choice)) > 21


def test_branches_prepared_for_training() -> None:
    """Each branch is prepared, observed and converted; with a weight of 1 the moving averages are those of the last sample."""
    x = torch.rand(3, 8, generator=torch.Generator().manual_seed(3))
    graph = torch.export.export(Branches(), (x,)).module(check_guards=False)
    model = copy.deepcopy(graph)
    config = get_symmetric_quantization_config(is_qat=True, averaging_constant=1.0)
    q = EthosUQuantizer(EthosUCompileSpec("ethos-u85-256")).set_global(config)
    converted = q.quantize_with_submodules(graph, [(x,), (-x,)], is_qat=True)
    assert sqnr_db(model(-x), converted(-x)) > 20
    for name in ("true_graph_0", "false_graph_0"):
        targets = [str(n.target) for n in getattr(converted, name).graph.nodes]
        assert any("dequantize_per_channel" in target for target in targets)


def test_while_loop() -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))
    graph = torch.export.export(Loop(), (x,)).module(check_guards=False)
    model = copy.deepcopy(graph)
    converted = quantizer().quantize_with_submodules(graph, [(x,), (x * 0.7,)])
    assert sqnr_db(model(x), converted(x)) > 20  # x, up to 2.4, and results up to 0.6 have one scale; 20.9..27.1 for 8 seeds
    body = converted.while_loop_body_graph_0
    assert any("quantize_per_channel" in str(n.target) for n in body.graph.nodes)


def test_no_samples_is_an_error() -> None:
    graph = torch.export.export(Loop(), (torch.randn(4, 8),)).module(check_guards=False)
    with pytest.raises(QuantizationError, match=r"\[quantize\.no_samples\]"):
        quantizer().quantize_with_submodules(graph, [])


class Constants(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda: torch.zeros(4), lambda: torch.ones(4), [])


def test_branches_without_arguments() -> None:
    x = torch.rand(3, 8, generator=torch.Generator().manual_seed(3))
    graph = torch.export.export(Constants(), (x,)).module(check_guards=False)
    converted = quantizer().quantize_with_submodules(graph, [(x,), (-x,)])
    (result,) = converted.graph.output_node().all_input_nodes  # quantized: rounding is all that may differ
    program = torch.export.export(converted, (x,)).run_decompositions({})
    for sample in (x, -x):
        torch.testing.assert_close(program.module()(sample), Constants()(sample), rtol=0, atol=result.args[1] / 2)


def test_compiling_a_loop_without_quantizing_it_has_a_remedy() -> None:
    with pytest.raises(EthorchError, match=r"Unroll the loop in Python, or .* EthosUQuantizer\.quantize_with_submodules"):
        compile(Loop(), torch.randn(2, 8), "ethos-u85-256", progress=False)
