"""Measure task accuracy on handwritten digits: in float, after calibration alone, and after quantized training.

``python -m bench.digits [--seeds 3] [--json]``

A residual network of 4000 weights is trained on 1200 of scikit-learn's 8x8 digits. The table lists the percentage of correct
answers on the other 576 digits, as the mean over seeds. Each implementation quantizes the same trained network in a separate
process.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
from importlib import import_module
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.accuracy import CONFIGS
from bench.compile import provenance
from bench.implementation import IMPLEMENTATIONS, load_api, run_in_child, stdout_for_json
from bench.signals import _digits

BATCH, TRAINED_ON = 48, 1200
#: Column -> (config function, its arguments, trained).
COLUMNS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "int8": ("get_symmetric_quantization_config", {}, False),
    "16x8": ("get_symmetric_a16w8_quantization_config", {}, False),
    "4-bit weights": ("get_symmetric_quantization_config", {"weight_qmin": -7, "weight_qmax": 7}, False),
    "3-level weights": ("get_symmetric_quantization_config", {"weight_qmin": -1, "weight_qmax": 1}, False),
    "3-level weights, trained": ("get_symmetric_quantization_config", {"weight_qmin": -1, "weight_qmax": 1}, True),
}


class Digits(nn.Module):
    """A classifier for images float[N,1,8,8] with two convolutions, batch normalization and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(12, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12))
        self.head = nn.Linear(12 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = torch.relu(self.second(x) + x)
        return self.head(nn.functional.avg_pool2d(x, 2).flatten(1))


class Data:
    """Images float[1797,1,8,8] and labels in random order."""

    def __init__(self, seed: int):
        from sklearn.datasets import load_digits

        order = torch.randperm(1797, generator=torch.Generator().manual_seed(seed))
        self.images = torch.from_numpy(np.ascontiguousarray(_digits()))[:, None][order]
        self.labels = torch.from_numpy(load_digits().target)[order]

    def train(self, model: nn.Module, epochs: int, rate: float) -> None:
        optimizer = torch.optim.Adam(model.parameters(), rate)
        for epoch in range(epochs):
            order = torch.randperm(TRAINED_ON, generator=torch.Generator().manual_seed(epoch))
            for batch in order.split(BATCH):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(self.images[batch]), self.labels[batch]).backward()
                optimizer.step()

    def percent_right(self, model: nn.Module) -> float:
        images, labels = self.images[TRAINED_ON:].split(BATCH)[:12], self.labels[TRAINED_ON : TRAINED_ON + 12 * BATCH]
        with torch.no_grad():
            return 100 * float((torch.cat([model(x).argmax(1) for x in images]) == labels).float().mean())


def measure(impl: str, seeds: int) -> dict[str, list[float]]:
    """Return the percentages of correct answers by column, one for each seed. Columns that fail are omitted."""
    from torchao.quantization.pt2e import allow_exported_model_train_eval
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e

    torch.set_num_threads(1)
    api, configs = load_api(impl), import_module(CONFIGS[impl])
    spec = api.EthosUCompileSpec("ethos-u85-256")
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        torch.manual_seed(seed)
        data, model = Data(seed), Digits()
        data.train(model.train(), 8, 3e-3)
        found.setdefault("float", []).append(data.percent_right(model.eval()))
        for column, (name, arguments, trained) in COLUMNS.items():
            config = getattr(configs, name)(is_qat=trained, **arguments)
            quantizer = api.EthosUQuantizer(spec).set_global(config)
            example = (data.images[:BATCH],)
            mode = copy.deepcopy(model).train(trained)
            graph = torch.export.export(mode, example).module(check_guards=False)
            try:
                if trained:
                    prepared = prepare_qat_pt2e(graph, quantizer)
                    allow_exported_model_train_eval(prepared)
                    prepared.train()
                    data.train(prepared, 6, 2e-3)
                    prepared.eval()
                else:
                    prepared = prepare_pt2e(graph, quantizer)
                    with torch.no_grad():
                        for images in data.images[: 10 * BATCH].split(BATCH):
                            prepared(images)
                found.setdefault(column, []).append(data.percent_right(convert_pt2e(prepared)))
            except Exception as error:
                print(f"{impl} {column}: {type(error).__name__}: {error}", file=sys.stderr)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.digits", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--impl", choices=IMPLEMENTATIONS, help="measure one implementation in this process")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.impl:
        with stdout_for_json() as stdout:
            os.write(stdout, json.dumps(measure(options.impl, options.seeds)).encode())
        return 0
    results = {impl: run_in_child("bench.digits", ["--impl", impl, "--seeds", str(options.seeds)]) for impl in IMPLEMENTATIONS}
    if options.json:
        print(json.dumps({"provenance": provenance(), "percent_right": results}, indent=2))
        return 0
    head = ["", "float", *COLUMNS]
    print("| " + " | ".join(head) + " |\n|---" + "|--:" * (len(head) - 1) + "|")
    for impl, name in zip(IMPLEMENTATIONS, ("ethorch", "Arm backend"), strict=True):
        cells = [f"{fmean(results[impl][column]):.1f}" if results[impl].get(column) else "fails" for column in head[1:]]
        print("| " + " | ".join([name, *cells]) + " |")
    print(f"\n{provenance()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
