"""A program that tests the stream passes on a board."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ethorch.formats import pte
from ethorch.formats.pte_merge import merge
from ethorch.formats.pte_writer import write
from ethorch.models.load import Inputs, UserModel
from ethorch.npu.arithmetic import ceil_div
from ethorch.npu.passes.names import PASSES
from ethorch.program.build import FORWARD, lower_method, quantize, record_of, single_method
from ethorch.program.program import Program
from ethorch.support.exclusive import exclusive
from ethorch.support.progress import stage
from ethorch.support.progress_display import display_progress
from ethorch.targets.compile_spec import OPTIMIZED, VELA
from ethorch.targets.settings import Settings

RUNS = 1000  # of each stream
_SAMPLES = 8
_TOKENS, _HEADS, _HEAD_DEPTH = 32, 4, 16
_CHANNELS, _SIZE, _STEPS = 32, 16, 6


@dataclass(frozen=True)
class Probe:
    """A network compiled to one method per stream variant, and the calls that the firmware repeats."""

    program: Program
    calls: tuple[tuple[str, Inputs], ...]
    repeats: int


class _Network(nn.Module):
    """Attention, convolutions and a recurrent layer, so that most passes change the stream."""

    def __init__(self) -> None:
        super().__init__()
        depth, half = _HEADS * _HEAD_DEPTH, _CHANNELS // 2
        self.query, self.key = nn.Linear(depth, depth), nn.Linear(depth, depth)
        self.first = nn.Conv2d(8, _CHANNELS, 3, padding=1)
        self.depthwise = nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1, groups=_CHANNELS)
        self.last = nn.Conv2d(_CHANNELS, half, 3, stride=2, padding=1)
        self.recurrent = nn.GRU(half, half, batch_first=True)

    def forward(self, tokens: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
        query, key = (self._split_heads(layer(tokens)) for layer in (self.query, self.key))
        weights = torch.softmax(query @ key.transpose(-1, -2) / _HEAD_DEPTH**0.5, -1)
        attended = (weights @ key).transpose(1, 2).flatten(2)
        features = torch.relu(self.last(torch.relu(self.depthwise(torch.relu(self.first(image))))))
        states, _ = self.recurrent(features.flatten(2).transpose(1, 2)[:, :_STEPS])
        return attended, states

    @staticmethod
    def _split_heads(projected: Tensor) -> Tensor:
        heads: Tensor = projected.unflatten(2, (_HEADS, _HEAD_DEPTH))
        return heads.transpose(1, 2)


def build_probe(settings: Settings, runs: int = RUNS) -> Probe:
    """Compile the network with Vela's stream, with each pass that changes it, and with all passes.

    Args:
        settings: Target, board and memory system. Other settings are ignored.
        runs: Minimum number of runs of each stream.
    """
    chosen = Settings(
        target=settings.target,
        board=settings.board,
        system_config=settings.system_config,
        memory_mode=settings.memory_mode,
        config_ini=settings.config_ini,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = _Network().eval()
        images = torch.randn(_SAMPLES, 1, 8, _SIZE, _SIZE).cumsum(-1) / _SIZE**0.5
        samples = [(torch.randn(1, _TOKENS, _HEADS * _HEAD_DEPTH), image) for image in images]
    methods = single_method(UserModel(network, samples[0], calibration=samples))
    user = methods.models[FORWARD]
    with exclusive(), display_progress(None):
        quantized = quantize(methods, chosen)
        builds = {}
        with stage("compile streams", len(PASSES) + 2) as step:
            for name in (VELA, *PASSES, OPTIMIZED):
                build = lower_method(user, quantized[FORWARD], replace(chosen, stream=name))
                if name == VELA or any(delegate.compiled.passes for delegate in build.delegates):
                    builds[name.replace("-", "_")] = build  # names of C functions
                step()
    data = write(merge({name: pte.read(build.pte) for name, build in builds.items()}, {}))
    named = replace(methods, models=dict.fromkeys(builds, user))
    program = Program(record_of(data, builds, named, dict.fromkeys(builds, quantized[FORWARD]), chosen))
    calls = tuple((name, sample) for name in builds for sample in samples)
    return Probe(program, calls, max(ceil_div(runs, _SAMPLES), 2))  # without repeats, the firmware prints each run
