"""Code under torch.no_grad() and torch.autocast() is part of the network, at any depth."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from torch import Tensor, nn
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantize_pt2e import prepare_qat_pt2e

from ethorch.arm import TosaCompileSpec, TOSAPartitioner
from ethorch.arm.quantizer import get_symmetric_quantization_config
from ethorch.quantization.passes.context import PassContext
from ethorch.quantization.passes.wrapped_graphs import inline_wrapped_graphs
from tests.helpers.networks import TARGETS, checked
from tests.helpers.quantized import exported, quantized, quantizer, samples

FREQUENCIES = torch.tensor([1.0, 0.3, 0.1, 0.03])


class Rotary(nn.Module):
    """Angles as language models compute them: constants, under no_grad and autocast at once."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", FREQUENCIES, persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(device_type=x.device.type, enabled=False):
            angles = (self.frequencies[None, :, None].float() @ places[:, None, :].float()).transpose(1, 2)
            angles = torch.cat((angles, angles), -1)
            return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Attention(nn.Module):
    """A query turned by ``Rotary``; the weights of ReLU attention under autocast, as in EfficientViT."""

    def __init__(self) -> None:
        super().__init__()
        self.angles, self.query = Rotary(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q = turned(self.query(x), *self.angles(x, torch.arange(x.shape[1])[None]))
        with torch.autocast("cpu", enabled=False):
            weights = torch.relu(q) @ torch.relu(x).transpose(1, 2)
        with torch.inference_mode():
            return weights @ x


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


@pytest.mark.parametrize("target", TARGETS)
def test_it_is_quantized_with_the_rest(target: str) -> None:
    torch.manual_seed(0)
    built = checked(Attention(), samples((2, 5, 8)), target)
    assert len(built.delegates) == 1 and not built.partition.refusals


def test_of_floats_too() -> None:
    torch.manual_seed(0)
    partitioner = TOSAPartitioner(TosaCompileSpec("TOSA-1.0+FP"))
    config = EdgeCompileConfig(_check_ir_validity=False)
    exported_program = torch.export.export(Attention().eval(), (torch.randn(2, 5, 8),))
    to_edge_transform_and_lower(exported_program, partitioner=[partitioner], compile_config=config)
    assert len(partitioner.report.delegated) == 1 and not partitioner.report.refusals


# --- the graph --------------------------------------------------------------------------------------------------------------


def nested(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x.sin()
        with torch.autocast("cpu", enabled=False):
            y = y * x
            with torch.enable_grad():
                y = y + 1
    return y * x


def several_results(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        left, right = x.chunk(2, 1)
        largest, where = left.max(1)
    return left + largest[:, None], right + where[:, None]


def written(x: Tensor) -> Tensor:
    y = x * 2
    with torch.no_grad():
        y[:, 2:] += 1
        y.clamp_(-1, 1)
    return y


def around_control_flow(x: Tensor) -> Tensor:
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        y = torch.cond(x.sum() > 0, lambda z: z * 2, lambda z: z - 1, (x.sin(),))
    return y + 1


def inside_a_branch(x: Tensor) -> Tensor:
    def then(z: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return z * 2

    return torch.cond(x.sum() > 0, then, lambda z: z - 1, (x,))


def without_reader(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.sin()
    return x + 1


class Lambda(nn.Module):
    def __init__(self, function: Callable[[Tensor], object]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> object:
        return self.function(x)


def wrapped(model: GraphModule) -> list[torch.fx.Node]:
    graphs = [module.graph for module in model.modules() if isinstance(module, GraphModule)]
    return [n for graph in graphs for n in graph.nodes if "wrap_with" in str(n.target) or "autocast" in str(n.target)]


@pytest.mark.parametrize("function", [nested, several_results, written, around_control_flow, inside_a_branch, without_reader])
def test_the_graph_computes_the_same(function: Callable[[Tensor], object]) -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    graph = exported(Lambda(function), (x,))
    assert wrapped(graph)
    inline_wrapped_graphs(graph, PassContext())
    assert not wrapped(graph)
    graph.graph.lint()
    for each in (x, -x):
        torch.testing.assert_close(graph(each.clone()), function(each.clone()))


def test_lower_precision_of_autocast_is_left_to_the_quantizer() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            early = x.to(torch.bfloat16)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.one(early)
                z = x.to(y.dtype) * y
                with torch.no_grad():
                    w = self.two(z).exp()
            return w + x, z

    torch.manual_seed(0)
    model, calibration = Model().eval(), samples((2, 8))
    graph = quantized(model, calibration).module
    found, wanted = graph(*calibration[0]), model(*calibration[0])
    assert [x.dtype for x in found] == [x.dtype for x in wanted] == [torch.float32, torch.bfloat16]
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=0.1, rtol=0.05)
    computed = {node.meta["val"].dtype for node in graph.graph.nodes if "linear" in str(node.target)}
    assert computed == {torch.float32}


def test_training_gets_no_gradient_through_no_grad() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fixed, self.trained = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                x = torch.relu(self.fixed(x))
            return self.trained(x)

    x = torch.randn(3, 4)
    graph = torch.export.export(Model().train(), (x,)).module(check_guards=False)
    prepared = prepare_qat_pt2e(graph, quantizer(get_symmetric_quantization_config(is_qat=True)))
    prepared(x).sum().backward()
    gradients = {name: parameter.grad is not None for name, parameter in prepared.named_parameters()}
    assert gradients["trained.weight"] and not gradients["fixed.weight"], gradients
