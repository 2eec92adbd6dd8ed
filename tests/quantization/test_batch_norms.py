"""Batch norms are folded as torchao folds them, with one look for dead code."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule
from torchao.quantization.pt2e.utils import _fuse_conv_bn_

import ethorch
from ethorch.program.program import record_of
from ethorch.quantization.passes.batch_norms import fold_batch_norms


class Normalized(nn.Module):
    """Convolutions with and without bias, a transposed one, and a batch norm that follows none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 4, 3, bias=False), nn.Conv2d(4, 4, 1)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(5))
        for norm in self.norms:
            norm.running_mean.uniform_(-1, 1)
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](self.first(x)).relu()
        x = self.norms[2](self.norms[1](self.second(x)).relu())
        out: Tensor = self.norms[4](self.norms[3](self.up(x)).relu())
        return out


def graph() -> GraphModule:
    return torch.export.export(Normalized().eval(), (torch.randn(1, 3, 8, 8),)).module(check_guards=False)


def test_nodes_and_weights_are_torchaos(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = graph(), graph()
    calls: list[Graph] = []
    search = Graph.eliminate_dead_code
    monkeypatch.setattr(Graph, "eliminate_dead_code", lambda graph, *args: calls.append(graph) or search(graph, *args))
    _fuse_conv_bn_(theirs)
    often = len(calls)
    calls.clear()
    fold_batch_norms(ours)
    assert len(calls) < often and len(calls) <= 1
    assert ours.code == theirs.code and "batch_norm" in ours.code
    for (name, one), (other, two) in zip(ours.state_dict().items(), theirs.state_dict().items(), strict=True):
        assert name == other and torch.equal(one, two)
    x = torch.randn(1, 3, 8, 8)
    torch.testing.assert_close(ours(x), Normalized().eval()(x))


def test_a_graph_without_batch_norms_stays_as_it_is() -> None:
    ours = torch.export.export(nn.Conv2d(3, 4, 3).eval(), (torch.randn(1, 3, 8, 8),)).module(check_guards=False)
    before = copy.deepcopy(ours)
    fold_batch_norms(ours)
    assert ours.code == before.code


class Heads(nn.Module):
    """One convolution for three levels, two of which share a batch norm; and once without any."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norms = nn.Conv2d(4, 4, 1, bias=bias), nn.ModuleList(nn.BatchNorm2d(4) for _ in range(2))
        for norm in self.norms:
            norm.running_mean.uniform_(-1, 1)
            norm.running_var.uniform_(0.5, 2)
            norm.weight.data.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](self.conv(x)).relu()
        out: Tensor = self.norms[0](self.conv(y)).relu() - self.norms[1](self.conv(y)) + self.conv(y)
        return out


@pytest.mark.parametrize("bias", [True, False])
def test_convolutions_that_share_a_weight_keep_their_own_batch_norms(bias: bool) -> None:
    model, data = Heads(bias).eval(), [(torch.randn(1, 4, 6, 6),) for _ in range(4)]
    folded = torch.export.export(model, data[0]).module(check_guards=False)
    fold_batch_norms(folded)
    assert "batch_norm" not in folded.code
    for inputs in data:
        torch.testing.assert_close(folded(*inputs), model(*inputs))
    program = ethorch.compile(model, data[0], calibration=data, progress=False)
    with torch.no_grad():
        assert ethorch.sqnr_db([model(*x) for x in data], [program(*x) for x in data]) > 25


class Residual(nn.Module):
    """A convolution, or its batch norm, that another batch norm reads and a sum, as the transformer blocks of NextViT."""

    def __init__(self, normalized: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, padding=1)
        self.norms, self.normalized = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(2)), normalized
        for norm in self.norms:
            norm.running_mean.uniform_(-1, 1)
            norm.running_var.uniform_(0.1, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](self.first(x)) if self.normalized else self.first(x)
        out: Tensor = x + self.second(self.norms[1](x))
        return out


@pytest.mark.parametrize("normalized", [False, True])
def test_a_batch_norm_stays_where_others_read_its_convolution(normalized: bool) -> None:
    """torchao folds it, and the sum reads the normalized values: NextViT had 10 dB in float."""
    model, data = Residual(normalized).eval(), [(torch.randn(1, 3, 6, 6),) for _ in range(4)]
    folded = torch.export.export(model, data[0]).module(check_guards=False)
    fold_batch_norms(folded)
    for inputs in data:
        torch.testing.assert_close(folded(*inputs), model(*inputs))
    program = ethorch.compile(model, data[0], calibration=data, progress=False)
    with torch.no_grad():
        assert ethorch.sqnr_db([model(*x) for x in data], [program(*x) for x in data]) > 25


@pytest.mark.parametrize("groups, outputs, bias", [(2, 2, False), (2, 6, True), (4, 4, False), (1, 3, True)])
def test_batch_norms_of_transposed_convolutions_in_groups(groups: int, outputs: int, bias: bool) -> None:
    """PyTorch scales such a weight as if there were one group, and it no longer fits its bias."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose2d(4, outputs, 3, groups=groups, bias=bias), nn.BatchNorm2d(outputs)).eval()
    model[1].running_mean.uniform_(-1, 1)
    model[1].running_var.uniform_(0.1, 2)
    data = [(torch.randn(1, 4, 6, 5),) for _ in range(4)]
    folded = torch.export.export(model, data[0]).module(check_guards=False)
    fold_batch_norms(folded)
    assert "batch_norm" not in folded.code
    torch.testing.assert_close(folded(*data[0]), model(*data[0]))
    program = ethorch.compile(model, data[0], calibration=data, progress=False)
    with torch.no_grad():
        assert ethorch.sqnr_db([model(*x) for x in data], [program(*x) for x in data]) > 25


class Computed(nn.Module):
    """A batch norm of a convolution by a weight that is an input, or is computed from one."""

    def __init__(self, scaled: bool) -> None:
        super().__init__()
        self.norm, self.scaled = nn.BatchNorm2d(4), scaled

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        out: Tensor = self.norm(nn.functional.conv2d(x, weight * 2 if self.scaled else weight))
        return out


@pytest.mark.parametrize("scaled", [False, True])
def test_a_batch_norm_stays_behind_a_weight_that_is_no_constant(scaled: bool) -> None:
    model, data = Computed(scaled).eval(), [(torch.randn(1, 2, 6, 6), torch.randn(4, 2, 3, 3)) for _ in range(4)]
    program = ethorch.compile(model, data[0], calibration=data, progress=False)
    with torch.no_grad():
        assert ethorch.sqnr_db([model(*x) for x in data], [program(*x) for x in data]) > 25


def test_a_batch_norm_behind_a_parametrized_weight() -> None:
    torch.manual_seed(0)
    conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))
    model, data = nn.Sequential(conv, nn.BatchNorm2d(4)).eval(), [(torch.randn(1, 3, 6, 6),) for _ in range(4)]
    program = ethorch.compile(model, data[0], calibration=data, progress=False)
    with torch.no_grad():
        assert ethorch.sqnr_db([model(*x) for x in data], [program(*x) for x in data]) > 25


def test_convolutions_that_share_a_weight_train_with_their_own_batch_norms() -> None:
    """torchao scales the weight by each of them, and failed where the products were observed as one. It stays one parameter.

    A batch norm that is called twice counts its batches twice, which nothing reads: no operator of the program.
    """
    model, batch = Heads(True), torch.randn(16, 4, 6, 6, generator=torch.Generator().manual_seed(0))
    prepared = ethorch.tuning.prepare_qat(copy.deepcopy(model), batch)
    assert len(list(prepared.parameters())) == len(list(model.parameters()))
    prepared(batch).square().mean().backward()
    assert all(parameter.grad is not None for parameter in prepared.parameters())
    assert not [node for node in prepared.graph.nodes if "copy_" in str(node.target)]


@pytest.mark.long
@pytest.mark.parametrize(
    "model", [Residual(False), Residual(True), Heads(True), Heads(False)], ids=lambda model: type(model).__name__
)
def test_what_was_trained_has_the_batch_norms_of_the_model(model: nn.Module) -> None:
    batch = torch.randn(16, 3 if isinstance(model, Residual) else 4, 6, 6, generator=torch.Generator().manual_seed(0))
    prepared = ethorch.tuning.prepare_qat(copy.deepcopy(model), batch)
    prepared.eval()
    with torch.no_grad():
        for _ in range(300):  # moving averages
            prepared(batch)
        trained, wanted = prepared(batch), copy.deepcopy(model).eval()(batch)
        converted = ethorch.tuning.convert_qat(prepared, batch[:1])
        singly = torch.cat([converted(x[None]) for x in batch])
    assert ethorch.sqnr_db(wanted, trained) > 30 and ethorch.sqnr_db(trained, singly) > 50
    program = ethorch.compile(converted, batch[:1], progress=False)
    assert record_of(program).build is not None and not record_of(program).build.partition.refusals
    assert ethorch.sqnr_db(singly, program(batch)) > 40


class Conditional(nn.Module):
    """A convolution and a batch norm whose parameters depend on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm, self.layer = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, affine=False), nn.Linear(3, 12)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.layer(x.mean((0, 2, 3))).chunk(2)
        running = self.norm.running_mean, self.norm.running_var
        return nn.functional.batch_norm(self.convolution(x), *running, weight + 1, bias)


NOT_FOLDED: dict[str, Callable[[], nn.Module]] = {
    "no running statistics": lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, track_running_stats=False), nn.ReLU()),
    "computed parameters": Conditional,
}


@pytest.mark.parametrize("name", NOT_FOLDED)
def test_batch_norms_that_are_not_constant_are_not_folded(name: str) -> None:
    torch.manual_seed(0)
    model, samples = NOT_FOLDED[name]().eval(), [(torch.randn(2, 3, 8, 8),) for _ in range(4)]
    program = ethorch.compile(model, samples[0], "ethos-u55-128", calibration=samples)
    assert ethorch.sqnr_db(model(*samples[0]), program(*samples[0])) > 30 and len(program.delegates) == 1
