"""Measure the accuracy of compressed weights on real data, in one shot and with training: digits and image denoising.

``python -m bench.compress [--tasks digits,denoise] [--recipes a,b] [--json]``

*digits*: classification of scikit-learn's 8x8 digits, as the percentage of correct answers on the 576 test images
(``bench.digits``). *denoise*: removal of noise with a standard deviation of 25 (of 255) from patches of 32x32 pixels. A network of
29,000 weights is trained on one photograph of scikit-learn, and PSNR is measured on the other photograph.

Each network is trained in float, quantized to int8, and compressed by each recipe. One-shot compression uses calibration samples.
Training uses ``ethorch.tuning.compress.constrain`` and ``ethorch.tuning.prepare_qat``. The row "as-is" has the same quantization
training without compression.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import ethorch
from bench.compile import DEFAULT_TARGETS, markdown_row, provenance
from bench.digits import BATCH, Data, Digits
from bench.implementation import memory_for
from bench.signals import _photographs
from ethorch.backend.build import build_pte
from ethorch.tuning import compress

RECIPES = ("32-values", "15-values", "8-values", "50%-zeros", "75%-zeros", "2:4", "2:4+15-values")
AS_IS = "as-is"
#: Size limit of the .pte with a recipe per weight, as a share of the uncompressed size.
SHARE = 0.7
_NOISE, _SIDE, _PATCHES = 25 / 255, 32, 64


class Denoiser(nn.Module):
    """A network that subtracts estimated noise from images float[N,3,H,W], with five convolutions."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
        self.noise = nn.Sequential(*layers, nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.noise(x)


class Patches:
    """Noisy and clean patches of the two photographs, float32[N, 3, 32, 32] in 0..1."""

    def __init__(self, seed: int):
        self.photographs = [torch.from_numpy(np.ascontiguousarray(photo.transpose(2, 0, 1))) for photo in _photographs()]
        self.draw = torch.Generator().manual_seed(seed)

    def patches(self, photograph: int, count: int) -> tuple[Tensor, Tensor]:
        """Draw new patches and return (noisy, clean)."""
        picture = self.photographs[photograph]
        corners = [(self._below(picture.shape[1] - _SIDE), self._below(picture.shape[2] - _SIDE)) for _ in range(count)]
        clean = torch.stack([picture[:, y : y + _SIDE, x : x + _SIDE] for y, x in corners])
        return clean + _NOISE * torch.randn(clean.shape, generator=self.draw), clean

    def _below(self, limit: int) -> int:
        return int(torch.randint(0, limit, (1,), generator=self.draw))


@dataclass(frozen=True)
class Task:
    """A network with its training and its evaluation.

    Attributes:
        unit: Unit of the figure. Larger is better.
        model: Untrained model.
        batch: Training inputs for ``prepare``.
        samples: Calibration samples of one image each.
        train: Function that trains a model in place, with the parameters model, rounds and learning rate.
        judge: Function that returns the figure of a model for single images.
        rounds, rate: Rounds and learning rate of the float training.
    """

    unit: str
    model: nn.Module
    batch: Tensor
    samples: Sequence[tuple[Tensor]]
    train: Callable[[nn.Module, int, float], None]
    judge: Callable[[nn.Module], float]
    rounds: int
    rate: float


def digits(seed: int) -> Task:
    """Return the task whose figure is the percentage of correct answers."""
    data = Data(seed)

    def judge(model: nn.Module) -> float:
        images, labels = data.images[1200:1776], data.labels[1200:1776]
        with torch.no_grad():
            return 100 * float((torch.cat([model(image[None]) for image in images]).argmax(1) == labels).float().mean())

    samples = [(image[None],) for image in data.images[:100]]
    return Task("% right", Digits(), data.images[:BATCH], samples, data.train, judge, 8, 3e-3)


def denoise(seed: int) -> Task:
    """Return the task whose figure is PSNR."""
    data = Patches(seed)
    tested = data.patches(1, _PATCHES)
    samples = [(image[None],) for image in data.patches(0, 24)[0]]

    def train(model: nn.Module, rounds: int, rate: float) -> None:
        steps = 100 * rounds
        optimizer = torch.optim.Adam(model.parameters(), rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            noisy, clean = data.patches(0, 8)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(noisy), clean).backward()
            optimizer.step()
            schedule.step()

    def judge(model: nn.Module) -> float:
        with torch.no_grad():
            found = torch.cat([model(image[None]) for image in tested[0]])
        return -10 * math.log10(float(((found.clamp(0, 1) - tested[1]) ** 2).mean()))

    return Task("dB PSNR", Denoiser(), data.patches(0, 8)[0], samples, train, judge, 4, 2e-3)


TASKS = {"digits": digits, "denoise": denoise}


@dataclass(frozen=True)
class Row:
    """The results of one recipe for one network.

    Attributes:
        figure, trained: Figure of the task in one shot and with training.
        cycles, weight_bytes: Target -> NPU cycles and encoded weight bytes, in one shot.
    """

    task: str
    recipe: str
    figure: float
    trained: float
    cycles: dict[str, int]
    weight_bytes: dict[str, int]


def measure(name: str, recipes: Sequence[str], seed: int = 0) -> tuple[str, float, list[Row]]:
    """Return the unit, the figure of the float model, and a row for each recipe."""
    torch.manual_seed(seed)
    task = TASKS[name](seed)
    task.train(task.model.train(), task.rounds, task.rate)
    model, inputs = task.model.eval(), list(task.samples)
    quantized = ethorch.quantize(model, inputs[0], calibration=inputs)
    specs = [_spec(target) for target in DEFAULT_TARGETS]
    whole = len(build_pte(quantized, inputs[0], specs[0]).pte)
    chosen: dict[str, dict[str, str]] = {AS_IS: {}, **{text: compress.everywhere(quantized, text) for text in recipes}}
    own = f"each its own, {SHARE:.0%} of the .pte"
    chosen[own] = compress.plan(quantized, specs[0], inputs, max_flash=int(SHARE * whole)).recipes
    rows = []
    for label, mine in chosen.items():
        print(f"{name} {label} ...", file=sys.stderr, flush=True)
        made = compress.apply(quantized, mine, inputs) if mine else quantized
        performances = [build_pte(made, inputs[0], spec).delegates[0].performance for spec in specs]
        rows.append(
            Row(
                name,
                label,
                task.judge(made),
                _measure_training(task, model, mine),
                {target: p.total_cycles for target, p in zip(DEFAULT_TARGETS, performances, strict=True)},
                {target: p.encoded_weight_bytes for target, p in zip(DEFAULT_TARGETS, performances, strict=True)},
            )
        )
    return task.unit, task.judge(model), rows


def _spec(target: str) -> ethorch.EthosUCompileSpec:
    system_config, memory_mode = memory_for(target)
    return ethorch.EthosUCompileSpec(target, system_config=system_config, memory_mode=memory_mode)


def _measure_training(task: Task, model: nn.Module, recipes: dict[str, str]) -> float:
    """Return the figure after quantization-aware training, with half the float rounds and a third of the float learning rate."""
    constrained = compress.constrain(copy.deepcopy(model).train(), recipes)
    prepared = ethorch.tuning.prepare_qat(constrained, task.batch)
    prepared.train()
    task.train(prepared, task.rounds // 2, task.rate / 3)
    converted: GraphModule = ethorch.tuning.convert_qat(prepared, task.samples[0])
    common = {name: recipe for name, recipe in recipes.items() if "one-scale" in recipe}
    return task.judge(compress.apply(converted, common, list(task.samples)) if common else converted)


def table(unit: str, floating: float, rows: Sequence[Row]) -> str:
    """Format a Markdown table."""
    head = ["recipe", f"one shot, {unit}", "trained"]
    head += [f"{target}: cycles, weight bytes" for target in DEFAULT_TARGETS]
    lines = [f"{rows[0].task}: {floating:.2f} {unit} in float", "", markdown_row(head), markdown_row(["---"] * len(head))]
    for row in rows:
        costs = [
            f"{row.cycles[target]:,} ({row.cycles[target] / rows[0].cycles[target]:.2f}), "
            f"{row.weight_bytes[target]:,} ({row.weight_bytes[target] / rows[0].weight_bytes[target]:.2f})"
            for target in DEFAULT_TARGETS
        ]
        lines.append(markdown_row([row.recipe, f"{row.figure:.2f}", f"{row.trained:.2f}", *costs]))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compress", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated")
    parser.add_argument("--recipes", default=",".join(RECIPES), help="comma-separated")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results: dict[str, Any] = {name: measure(name, options.recipes.split(",")) for name in options.tasks.split(",")}
    if options.json:
        data = {
            name: {"unit": unit, "float": figure, "rows": [asdict(row) for row in rows]}
            for name, (unit, figure, rows) in results.items()
        }
        json.dump({"provenance": provenance(), **data}, sys.stdout, indent=1)
        print()
        return 0
    print(provenance())
    for unit, figure, rows in results.values():
        print(f"\n{table(unit, figure, rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
