"""From handwritten digits to an NPU program that classifies them in the simulator.

Trains a small convolutional network on scikit-learn's digits (real 8x8 images), quantizes it, compiles it for an
Ethos-U, runs every held-out image through the real ExecuTorch runtime with the NPU simulated bit for bit, and says what
came of it. ``make demo`` runs it; it takes well under a minute.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ethorch
from ethorch import sqnr_db
from ethorch.support.errors import EthorchError
from ethorch.support.versions import check_installed


class SeparableBlock(nn.Module):
    """ReLU6(BN(1x1 of ReLU6(BN(3x3 depthwise of x)))), float[N,I,H,W] -> float[N,O,H/stride,W/stride]."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__()
        self.depthwise = nn.Conv2d(inputs, inputs, 3, stride, padding=1, groups=inputs, bias=False)
        self.depthwise_norm = nn.BatchNorm2d(inputs)
        self.pointwise = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.pointwise_norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.depthwise_norm(self.depthwise(x)))
        return F.relu6(self.pointwise_norm(self.pointwise(x)))


class DigitNet(nn.Module):
    """Ten logits for an 8x8 digit: convolution, separable blocks, a residual sum, global average, linear."""

    def __init__(self, channels: int = 32):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU6())
        self.widen = SeparableBlock(16, channels)
        self.residual = SeparableBlock(channels, channels)
        self.shrink = SeparableBlock(channels, 2 * channels, stride=2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(2 * channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.widen(self.stem(x))
        x = x + self.residual(x)
        return self.classifier(self.pool(self.shrink(x)).flatten(1))


@dataclass(frozen=True)
class Digits:
    """Images float[N,1,8,8] around 0 and labels int64[N], split with a fixed seed."""

    train_images: Tensor
    train_labels: Tensor
    held_out_images: Tensor
    held_out_labels: Tensor


def load_digits(seed: int) -> Digits:
    """scikit-learn's 1797 digits; a quarter is held out, every class in proportion."""
    from sklearn.datasets import load_digits as load
    from sklearn.model_selection import train_test_split

    data = load()
    images = torch.from_numpy(data.images.astype(np.float32) / 8 - 1)[:, None]
    labels = torch.from_numpy(data.target.astype(np.int64))
    train, held_out = train_test_split(np.arange(len(labels)), test_size=0.25, random_state=seed, stratify=labels)
    return Digits(images[train], labels[train], images[held_out], labels[held_out])


class Progress:
    """Seconds per step, and a line on stderr that says what is going on, where that is a terminal."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.visible = sys.stderr.isatty()

    @contextmanager
    def step(self, name: str) -> Iterator[Callable[[int, int], None]]:
        self._show(name)
        start = time.perf_counter()
        yield lambda done, total: self._show(f"{name} {done}/{total}")
        self.seconds[name] = time.perf_counter() - start
        self._show("")

    def _show(self, text: str) -> None:
        if self.visible:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()


def train(model: nn.Module, data: Digits, epochs: int, seed: int, report: Callable[[int, int], None]) -> None:
    """Adam with a one-cycle learning rate."""
    generator = torch.Generator().manual_seed(seed)
    batches = -(-len(data.train_labels) // 64)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=epochs * batches)
    model.train()
    for epoch in range(epochs):
        for batch in torch.randperm(len(data.train_labels), generator=generator).split(64):
            loss = F.cross_entropy(model(data.train_images[batch]), data.train_labels[batch], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        report(epoch + 1, epochs)
    model.eval()


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Share of the images whose largest logit is their label's."""
    return float((logits.argmax(1) == labels).double().mean())


def table(result: dict[str, Any]) -> str:
    """What came of it, for a reader."""
    npu, program = result["npu"], result["program"]
    lines = [
        f"{result['images']} held-out digits on {result['target']}, simulated bit for bit",
        "",
        f"  {'':<16}{'accuracy':>10}{'SQNR against float':>20}{'answers as the NPU':>20}",
        f"  {'float':<16}{result['float']['accuracy']:>10.2%}{'':>20}{result['float']['agreement']:>20.2%}",
        f"  {'fake-quantized':<16}{result['fake_quant']['accuracy']:>10.2%}{result['fake_quant']['sqnr_db']:>17.1f} dB"
        f"{result['fake_quant']['agreement']:>20.2%}",
        f"  {'NPU':<16}{npu['accuracy']:>10.2%}{npu['sqnr_db']:>17.1f} dB",
        "",
        f"  operators    {program['operators']['npu']} on the NPU, {program['operators']['cpu']} on the CPU",
        f"  estimated    {program['total_cycles']:,} cycles of the NPU, by Vela; {program['cpu_cycles']:,} of the CPU",
        f"  memory       {program['ram_bytes'] / 1024:.1f} KiB RAM, {program['flash_bytes'] / 1024:.1f} KiB flash, all in all",
        "  seconds      " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in result["seconds"].items()),
        "  wrote        " + ", ".join(result["files"]),
        "",
        f"  next: ethorch explain {result['files'][0]}",
    ]
    return "\n".join(lines)


def draw(path: Path, data: Digits, float_logits: Tensor, npu_logits: Tensor) -> None:
    """A confusion matrix of the NPU's answers beside images with the answers of both; mistakes come first."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels, by_float, by_npu = data.held_out_labels, float_logits.argmax(1), npu_logits.argmax(1)
    confusion = torch.bincount(labels * 10 + by_npu, minlength=100).reshape(10, 10)
    figure = pyplot.figure(figsize=(13, 6), layout="constrained")
    grid = figure.add_gridspec(1, 2, width_ratios=[1, 1.15])
    left, right = figure.add_subfigure(grid[0, 0]), figure.add_subfigure(grid[0, 1])
    axes = left.subplots()
    axes.imshow(confusion, cmap="Blues")
    for row, column in np.ndindex(10, 10):
        if count := int(confusion[row, column]):
            axes.text(column, row, str(count), ha="center", va="center", color="white" if row == column else "firebrick")
    axes.set(xticks=range(10), yticks=range(10), xlabel="answer of the NPU", ylabel="digit")
    left.suptitle(f"{len(labels)} held-out digits: {accuracy(npu_logits, labels):.1%} right")
    wrong = (by_npu != labels) | (by_npu != by_float)
    shown = torch.cat([wrong.nonzero()[:, 0], (~wrong).nonzero()[:, 0]])[:28].tolist()
    for cell, index in zip(right.subplots(4, 7).flat, shown, strict=True):
        cell.imshow(data.held_out_images[index, 0], cmap="gray_r")
        cell.set_axis_off()
        answers = f"float {by_float[index]}, NPU {by_npu[index]}"
        cell.set_title(f"digit {labels[index]}\n{answers}", fontsize=9, color="firebrick" if wrong[index] else "black")
    right.suptitle(f"the digit and both answers; in red the {int(wrong.sum())} where one is wrong or they differ")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def run(target: str, directory: Path, epochs: int, seed: int, progress: Progress) -> dict[str, Any]:
    """Trains, compiles, runs every held-out image, writes the files, and returns all figures."""
    directory.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the network is too small to share out, and threads that wait for each other are slow
    torch.manual_seed(seed)
    data = load_digits(seed)
    model = DigitNet()
    with progress.step("train") as report:
        train(model, data, epochs, seed, report)
    with progress.step("quantize and compile"):
        calibration = data.train_images[:64]
        program = ethorch.compile(model, data.train_images[:1], target, calibration=calibration, progress=False)
        quantized = ethorch.quantize(model, data.train_images[:1], target, calibration=calibration, progress=False)
    files = [program.save(directory / "digits.pte")]
    if len(program.delegates) == 1:
        files.append(program.save(directory / "digits.tosa"))
    with torch.no_grad():
        float_logits = model(data.held_out_images)
        fake_quant_logits = torch.cat([quantized(image) for image in data.held_out_images.split(1)])
    with progress.step("run on the simulated NPU"):
        npu_logits = program(data.held_out_images)
    files.append(directory / "digits.png")
    draw(files[-1], data, float_logits, npu_logits)

    labels, npu_answers = data.held_out_labels, npu_logits.argmax(1)
    figures = program.to_json()
    return {
        "target": target,
        "images": len(labels),
        "float": {
            "accuracy": accuracy(float_logits, labels),
            "agreement": accuracy(float_logits, npu_answers),
        },
        "fake_quant": {
            "accuracy": accuracy(fake_quant_logits, labels),
            "agreement": accuracy(fake_quant_logits, npu_answers),
            "sqnr_db": sqnr_db(float_logits, fake_quant_logits),
        },
        "npu": {"accuracy": accuracy(npu_logits, labels), "sqnr_db": sqnr_db(float_logits, npu_logits)},
        "program": figures,
        "seconds": progress.seconds,
        "files": [str(path) for path in files],
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="ethos-u55-128")
    parser.add_argument("--out", type=Path, default=Path("demo_out"), help="where files go; default: %(default)s")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    try:
        check_installed("examples/digits.py", ("sklearn", "matplotlib"), 'pip install -e ".[demo]"')
        result = run(options.target, options.out, options.epochs, options.seed, Progress())
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except (EthorchError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result, indent=2) if options.json else table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
