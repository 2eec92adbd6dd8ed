"""Mixtures of experts, as transformers exports them, run on the NPU as a whole; softmaxes that take off their maxima first do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ethorch import EthosUCompileSpec, EthosUQuantizer, runtime
from ethorch.arm.quantizer import get_symmetric_quantization_config
from ethorch.backend.build import build_pte
from ethorch.quantization.passes.cleanup import remove_softmax_shifts
from ethorch.quantization.passes.context import PassContext
from ethorch.quantization.passes.experts import lower_experts
from ethorch.support.metrics import sqnr_db

ROWS, EXPERTS, WIDTH, INSIDE = 6, 4, 16, 24


def _grouped_mm(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    begins = [0, *ends.tolist()[:-1]]
    return torch.cat([rows[a:b] @ w for a, b, w in zip(begins, ends.tolist(), weights, strict=True)])


try:  # transformers registers the operator itself
    import transformers.integrations.moe  # noqa: F401
except ImportError:
    torch.library.custom_op("transformers::grouped_mm_fallback", _grouped_mm, mutates_args=())
    fake = torch.library.register_fake("transformers::grouped_mm_fallback")
    fake(lambda rows, weights, ends: rows.new_empty(rows.shape[0], weights.shape[2]))


class Mixture(nn.Module):
    """Each row goes to ``k`` experts, and rows are sorted by them; ``chosen`` are fixed ones, None those of the greatest scores."""

    def __init__(self, k: int, *, biased: bool = False, transposed: bool = False, chosen: Tensor | None = None) -> None:
        super().__init__()
        self.k, self.biased, self.transposed, self.chosen = k, biased, transposed, chosen
        self.before, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, EXPERTS)
        self.up = nn.Parameter(torch.randn(EXPERTS, INSIDE, WIDTH) / 4)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, INSIDE) / 4)
        self.bias = nn.Parameter(torch.randn(EXPERTS, INSIDE) / 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        weights, experts = torch.topk(torch.softmax(self.gate(x), -1), self.k, -1)
        experts = experts if self.chosen is None else self.chosen
        ids, order = torch.sort(experts.reshape(-1))
        ends = torch.cumsum(torch.histc(ids.float(), EXPERTS, 0, EXPERTS - 1), 0, dtype=torch.int32)
        multiplied = torch.ops.transformers.grouped_mm_fallback
        up = self.up.transpose(1, 2) if self.transposed else self.up.transpose(1, 2).contiguous()
        y = multiplied(x[order // self.k], up, ends)
        y = torch.relu(y + self.bias[ids] if self.biased else y)
        y = multiplied(y, self.down.transpose(1, 2), ends) * weights.reshape(-1)[order].unsqueeze(-1)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.shape[0])
        return y[back].view(ROWS, self.k, WIDTH).sum(1)


def exported(model: nn.Module, *inputs: Tensor) -> torch.fx.GraphModule:
    return torch.export.export(model.eval(), inputs).module(check_guards=False)


@pytest.mark.parametrize(
    "model",
    [
        lambda: Mixture(2, transposed=True),
        lambda: Mixture(1, biased=True),
        lambda: Mixture(2, biased=True, chosen=torch.arange(ROWS * 2).reshape(ROWS, 2) * 7 % EXPERTS),
    ],
    ids=["two experts", "one, with biases", "fixed experts"],
)
def test_without_sorting_a_mixture_says_the_same(model):
    mixture, x = model(), torch.randn(ROWS, WIDTH)
    wanted, graph = mixture(x), exported(mixture, x)
    quantizer = EthosUQuantizer(EthosUCompileSpec("ethos-u55-128")).set_global(get_symmetric_quantization_config())
    graph = quantizer.transform_for_annotation(graph)
    left = {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
    gone = ["sort", "grouped_mm", "histc", "index_put"] + ["topk"] * (mixture.chosen is None)
    assert not [name for name in left if any(word in name for word in gone)]
    assert torch.allclose(graph(x), wanted, atol=1e-5)


def test_a_mixture_whose_rows_stay_sorted_is_left_alone():
    class Sorted(Mixture):
        def forward(self, x: Tensor) -> Tensor:
            ids, order = torch.sort(torch.argmax(self.gate(x), -1))
            ends = torch.cumsum(torch.histc(ids.float(), EXPERTS, 0, EXPERTS - 1), 0, dtype=torch.int32)
            return torch.ops.transformers.grouped_mm_fallback(x[order], self.up.transpose(1, 2), ends)

    mixture, x = Sorted(1), torch.randn(ROWS, WIDTH)
    graph = exported(mixture, x)
    lower_experts(graph, PassContext())
    assert any("sort" in str(node.target) for node in graph.graph.nodes)
    assert torch.allclose(graph(x), mixture(x), atol=1e-5)


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_a_mixture_is_one_delegate(target):
    mixture, samples = Mixture(2).eval(), [torch.randn(ROWS, WIDTH) for _ in range(8)]
    spec = EthosUCompileSpec(target)
    quantizer = EthosUQuantizer(spec).set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(exported(mixture, samples[0]), quantizer)
    for sample in samples:
        prepared(sample)
    quantized = convert_pt2e(prepared)
    build = build_pte(quantized, (samples[0],), spec)
    assert len(build.delegates) == 1 and not build.partition.refusals
    (found,) = runtime.load(build.pte)(samples[0])
    assert sqnr_db(quantized(samples[0]), torch.as_tensor(found)) > 25


@pytest.mark.parametrize(
    "shifted",
    [
        lambda x: x - x.amax(-1, keepdim=True),
        lambda x: x - x.max(-1, keepdim=True).values.detach(),
        lambda x: torch.sub(x, torch.amax(x, (1,), True)),
    ],
    ids=["amax", "max, detached", "sub"],
)
def test_softmax_takes_off_the_maxima_itself(shifted):
    class Shifted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(shifted(x), 1)

    x = torch.randn(3, 5)
    graph = exported(Shifted(), x)
    remove_softmax_shifts(graph, PassContext())
    graph.recompile()
    assert [str(node.target) for node in graph.graph.nodes if node.op == "call_function"] == ["aten.softmax.int"]
    assert torch.allclose(graph(x), torch.softmax(x, 1))


@pytest.mark.parametrize(
    "kept",
    [lambda x: x - x.amax(0, keepdim=True), lambda x: x - x.flip(0).amax(-1, keepdim=True), lambda x: x.amax(-1, keepdim=True) - x],
    ids=["of another axis", "of another tensor", "the other way round"],
)
def test_what_softmax_does_not_take_off_stays(kept):
    class Kept(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(kept(x), -1)

    graph = exported(Kept(), torch.randn(3, 5))
    remove_softmax_shifts(graph, PassContext())
    assert any(str(node.target).startswith("aten.sub") for node in graph.graph.nodes)
