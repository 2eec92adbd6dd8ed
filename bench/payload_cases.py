"""The cases of ``bench.payloads``: each route to a ``.pte``, the smallest and largest NPU of each family, and each operator.

A case is a key and a function that returns a ``.pte``. Cases use only public names, so that the package at another revision can
compile them. The networks are those of the current tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from bench.compile import DEFAULT_TARGETS
from bench.implementation import load_api, memory_for

if TYPE_CHECKING:
    from torch import Tensor, nn

TARGETS = (
    *(f"ethos-u55-{macs}" for macs in (32, 64, 128, 256)),
    *(f"ethos-u65-{macs}" for macs in (256, 512)),
    *(f"ethos-u85-{macs}" for macs in (128, 256, 512, 1024, 2048)),
)
#: The smallest and the largest configuration of each family.
EXTREMES = ("ethos-u55-32", "ethos-u55-256", "ethos-u65-256", "ethos-u65-512", "ethos-u85-128", "ethos-u85-2048")
SCHEMES = ("int8", "a16w8")
GROUPS = ("lowered", "compiled", "programs", "operators", "random")
#: Networks that compile in about a second: an image classifier, depthwise convolutions, two recurrent layers, attention.
SMALL = ("resnet8", "ds_cnn", "mobilenet_v1_025", "autoencoder", "lstm", "gru", "acoustic")
#: The first of the random networks' seeds, and their number.
FIRST_SEED, RANDOM_NETWORKS = 31_000_000, 300


@dataclass(frozen=True)
class PayloadCase:
    """A program to compile.

    Attributes:
        key: Group, network, target and scheme, separated by spaces. Keys are unique.
        compile: Function that returns the bytes of the ``.pte``.
    """

    key: str
    compile: Callable[[], bytes]

    @property
    def group(self) -> str:
        return self.key.partition(" ")[0]


def networks_lowered(models: list[str]) -> Iterator[PayloadCase]:
    """Yield the networks of the benchmarks through ``to_edge_transform_and_lower``."""
    for model in models:
        for target in DEFAULT_TARGETS:
            yield PayloadCase(f"lowered {model} {target} int8", partial(_lower, model, target))


def networks_compiled(models: list[str]) -> Iterator[PayloadCase]:
    """Yield the networks of the benchmarks through ``ethorch.compile``; small networks also for ``EXTREMES`` in both schemes."""
    for model in models:
        for target in DEFAULT_TARGETS:
            yield PayloadCase(f"compiled {model} {target} int8", partial(_compile_model, model, target, "int8"))
        if model in SMALL:
            for target in EXTREMES:
                for scheme in SCHEMES:
                    key = f"compiled {model} {target} {scheme}"
                    yield PayloadCase(key, partial(_compile_model, model, target, scheme))


def several_programs() -> Iterator[PayloadCase]:
    """Yield programs with several methods, state, operators on the CPU, separate activations, and selections."""
    programs = (
        methods_with_shared_weights,
        methods_by_shape,
        decoder_with_cache,
        float_head,
        float_middle,
        tokens,
        integer_io,
        clamps,
        selections,
    )
    for program in programs:
        for target in DEFAULT_TARGETS:
            for scheme in SCHEMES:
                key = f"programs {program.__name__} {target} {scheme}"
                yield PayloadCase(key, partial(_compile_program, program, target, scheme))


def operators() -> Iterator[PayloadCase]:
    """Yield every sample of every operator in int8, and the first sample in both schemes for all extremes."""
    from ethorch.lower.ops import OPS

    samples = [(spec.name, index) for spec in dict.fromkeys(OPS.values()) for index in range(len(spec.samples))]
    for name, index in samples:
        for target in DEFAULT_TARGETS:
            key = f"operators {name}-{index} {target} int8"
            yield PayloadCase(key, partial(_compile_operator, name, index, target, "int8"))
        if index == 0:
            target = EXTREMES[len(name) % len(EXTREMES)]
            key = f"operators {name}-{index} {target} a16w8"
            yield PayloadCase(key, partial(_compile_operator, name, index, target, "a16w8"))


def random_networks() -> Iterator[PayloadCase]:
    """Yield the random networks, which cycle through the 22 combinations of target and scheme."""
    combinations = [(target, scheme) for scheme in SCHEMES for target in TARGETS]
    for number in range(RANDOM_NETWORKS):
        seed = FIRST_SEED + number
        target, scheme = combinations[number % len(combinations)]
        yield PayloadCase(f"random {seed} {target} {scheme}", partial(_compile_random, seed, target, scheme))


def all_cases(models: list[str]) -> Iterator[PayloadCase]:
    """Yield the cases of all groups."""
    yield from networks_lowered(models)
    yield from networks_compiled(models)
    yield from several_programs()
    yield from operators()
    yield from random_networks()


def _lower(model: str, target: str, calibration: int = 8) -> bytes:
    import torch
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    from bench.models import ALL_MODELS

    api, case = load_api("ethorch"), ALL_MODELS[model]
    system_config, memory_mode = memory_for(target)
    spec = api.EthosUCompileSpec(
        target, system_config=system_config, memory_mode=memory_mode, extra_flags=["--optimise", "Performance"]
    )
    quantizer = api.EthosUQuantizer(spec).set_global(api.get_symmetric_quantization_config(is_per_channel=True))
    inputs = case.example_inputs()
    prepared = prepare_pt2e(torch.export.export(case.build(), inputs).module(check_guards=False), quantizer)
    with torch.no_grad():
        for sample in case.calibration(calibration):
            prepared(*sample)
    edge = to_edge_transform_and_lower(
        torch.export.export(convert_pt2e(prepared), inputs),
        partitioner=[api.EthosUPartitioner(spec)],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    return bytes(edge.to_executorch(config=ExecutorchBackendConfig(extract_delegate_segments=False)).buffer)


def _compile(model: Any, inputs: Any, target: str, scheme: str, **settings: Any) -> bytes:
    import ethorch

    calibration = settings.pop("calibration", None)
    chosen = ethorch.Settings(target, scheme).with_(verify=False, **settings)
    return bytes(ethorch.compile(model, inputs, calibration=calibration, settings=chosen, progress=False).pte)


def _compile_model(model: str, target: str, scheme: str) -> bytes:
    from bench.models import ALL_MODELS

    case = ALL_MODELS[model]
    return _compile(case.build(), case.example_inputs(), target, scheme, calibration=case.calibration(4))


def _compile_operator(name: str, index: int, target: str, scheme: str) -> bytes:
    from ethorch.lower.ops import OPS
    from ethorch.lower.ops.sample_calls import Call, inputs_for

    sample = next(spec for spec in OPS.values() if spec.name == name).samples[index]
    calibration = [inputs_for(sample, seed) for seed in range(2)]
    return _compile(Call(name, sample), calibration[0], target, scheme, calibration=calibration)


def _compile_random(seed: int, target: str, scheme: str) -> bytes:
    from tests.helpers.random_networks import network

    model, samples = network(seed, extended=False).build()
    return _compile(model, samples[0], target, scheme, calibration=samples)


def _compile_program(program: Callable[[], tuple[Any, Any, Mapping[str, Any]]], target: str, scheme: str) -> bytes:
    import torch

    torch.manual_seed(0)
    model, inputs, settings = program()
    return _compile(model, inputs, target, scheme, **settings)


Arguments = tuple[Any, Any, Mapping[str, Any]]  # model, example inputs, further arguments of ``compile``


def methods_with_shared_weights() -> Arguments:
    import torch
    from torch import nn

    table = nn.Linear(32, 32)
    encode, decode = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), table), nn.Sequential(table, nn.Linear(32, 8))
    inputs = {"encode": (torch.randn(4, 16),), "decode": (torch.randn(4, 32),)}
    sessions = [[("encode", (torch.randn(4, 16),)), ("decode", (torch.randn(4, 32),))] for _ in range(4)]
    return {"encode": encode.eval(), "decode": decode.eval()}, inputs, {"calibration": sessions}


def methods_by_shape() -> Arguments:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Conv1d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 4, 3, padding=1)).eval()
    samples = [(torch.randn(1, 4, 32),) for _ in range(4)]
    return model, samples[0], {"calibration": samples, "shapes": ["1x4x16", "1x4x32"]}


@cache
def _make_cached_attention() -> type[nn.Module]:
    import torch
    from torch import nn

    class CachedAttention(nn.Module):
        """One attention layer with a cache to which each step adds a row."""

        def __init__(self) -> None:
            super().__init__()
            self.to_query, self.to_key, self.to_value = (nn.Linear(16, 16) for _ in range(3))
            self.keys, self.values = (nn.Buffer(torch.zeros(1, 12, 16)) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            self.keys.copy_(torch.cat([self.keys[:, 1:], self.to_key(x)], 1))
            self.values.copy_(torch.cat([self.values[:, 1:], self.to_value(x)], 1))
            return nn.functional.scaled_dot_product_attention(self.to_query(x), self.keys, self.values)

    return CachedAttention


def decoder_with_cache() -> Arguments:
    import torch

    return (
        _make_cached_attention()().eval(),
        (torch.randn(1, 1, 16),),
        {"calibration": [(torch.randn(1, 1, 16),) for _ in range(6)]},
    )


def _classifier() -> nn.Module:
    from collections import OrderedDict

    from torch import nn

    layers = [("stem", nn.Conv2d(3, 8, 3)), ("middle", nn.Conv2d(8, 8, 3)), ("relu", nn.ReLU())]
    layers += [("pool", nn.AdaptiveAvgPool2d(1)), ("flat", nn.Flatten()), ("head", nn.Linear(8, 5)), ("prob", nn.Softmax(-1))]
    return nn.Sequential(OrderedDict(layers)).eval()


def float_head() -> Arguments:
    import torch

    samples = [(torch.randn(1, 3, 12, 12),) for _ in range(4)]
    return _classifier(), samples[0], {"calibration": samples, "modules": {"head": "float"}}


def float_middle() -> Arguments:
    import torch

    samples = [(torch.randn(1, 3, 12, 12),) for _ in range(4)]
    return _classifier(), samples[0], {"calibration": samples, "modules": {"middle": "float"}}


@cache
def _token_network() -> type[nn.Module]:
    import torch
    from torch import nn

    class TokenNetwork(nn.Module):
        """An embedding, a layer, and a maximum with its index, which an Ethos-U55 does not support."""

        def __init__(self) -> None:
            super().__init__()
            self.table, self.layer = nn.Embedding(20, 16), nn.Linear(16, 20)

        def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
            scores = self.layer(self.table(tokens))
            values, indices = torch.topk(scores, 3)
            return values, indices

    return TokenNetwork


def tokens() -> Arguments:
    import torch

    samples = [(torch.randint(0, 20, (1, 6)),) for _ in range(4)]
    return _token_network()().eval(), samples[0], {"calibration": samples}


def integer_io() -> Arguments:
    import torch

    samples = [(torch.randn(1, 3, 12, 12),) for _ in range(4)]
    return _classifier(), samples[0], {"calibration": samples, "io": "int8", "io_layout": "nhwc"}


def clamps() -> Arguments:
    """Return a residual block whose activations are operators of their own, because other operators read their inputs, too."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            z = y + self.second(nn.functional.relu(y))
            return z + self.second(nn.functional.silu(z))

    samples = [(torch.randn(1, 16, 16, 16),) for _ in range(4)]
    return Residual().eval(), samples[0], {"calibration": samples}


def selections() -> Arguments:
    """Return selections by masks of one tensor, of one row, and of a comparison."""
    import torch
    from torch import nn

    class Selections(nn.Module):
        def forward(self, mask: Tensor, row: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            return (
                torch.where(mask, x, y),
                torch.where(row, x, y),
                x.masked_fill(row, 1.5),
                x.masked_fill(row, -1.5),
                y.masked_fill(~mask & (x > 0), 0.5),
                torch.where(mask, 1.0, -1.0),
            )

    masks = torch.rand(1, 16, 16, 16) > 0.5, torch.rand(16) > 0.5
    samples = [(*masks, torch.randn(1, 16, 16, 16), torch.randn(1, 16, 16, 16) * 4) for _ in range(4)]
    return Selections().eval(), samples[0], {"calibration": samples}
