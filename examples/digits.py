"""Train a digit classifier, compile it for an Ethos-U, and classify digits in the simulator.

The network is a small CNN, trained on the digits of scikit-learn (scanned 8x8 images). The compiled program classifies every
held-out image in the ExecuTorch runtime, with a bit-exact simulation of the NPU. The example prints a comparison with the float
model. ``make demo`` runs it in less than a minute.
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
    """A depthwise 3x3 and a pointwise convolution, each with batch norm and ReLU6.

    float[N,I,H,W] -> float[N,O,H/stride,W/stride]
    """

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
    """A network that computes ten logits of an 8x8 image with convolutions, a residual, a global average and a linear layer."""

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
    """Load the 1797 digits of scikit-learn, and hold out a stratified quarter."""
    from sklearn.datasets import load_digits as load
    from sklearn.model_selection import train_test_split

    data = load()
    images = torch.from_numpy(data.images.astype(np.float32) / 8 - 1)[:, None]
    labels = torch.from_numpy(data.target.astype(np.int64))
    train, held_out = train_test_split(np.arange(len(labels)), test_size=0.25, random_state=seed, stratify=labels)
    return Digits(images[train], labels[train], images[held_out], labels[held_out])


class Progress:
    """A recorder of the seconds of each step, which displays the current step if stderr is a terminal."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.is_visible = sys.stderr.isatty()

    @contextmanager
    def step(self, name: str) -> Iterator[Callable[[int, int], None]]:
        self._show(name)
        start = time.perf_counter()
        yield lambda done, total: self._show(f"{name} {done}/{total}")
        self.seconds[name] = time.perf_counter() - start
        self._show("")

    def _show(self, text: str) -> None:
        if self.is_visible:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()


def train(model: nn.Module, data: Digits, epochs: int, seed: int, report: Callable[[int, int], None]) -> None:
    """Train with Adam and a one-cycle learning rate."""
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
    """Return the share of images whose largest logit belongs to the correct label."""
    return float((logits.argmax(1) == labels).double().mean())


def format_results(results: dict[str, Any]) -> str:
    """Format the results as text."""
    npu, program = results["npu"], results["program"]
    lines = [
        f"{results['images']} held-out digits on {results['target']}, simulated bit for bit",
        "",
        f"  {'':<16}{'accuracy':>10}{'SQNR against float':>20}{'same class as NPU':>20}",
        f"  {'float':<16}{results['float']['accuracy']:>10.2%}{'':>20}{results['float']['agreement']:>20.2%}",
        f"  {'fake-quantized':<16}{results['fake_quant']['accuracy']:>10.2%}{results['fake_quant']['sqnr_db']:>17.1f} dB"
        f"{results['fake_quant']['agreement']:>20.2%}",
        f"  {'NPU':<16}{npu['accuracy']:>10.2%}{npu['sqnr_db']:>17.1f} dB",
        "",
        f"  operators    {program['operators']['npu']} on the NPU, {program['operators']['cpu']} on the CPU",
        f"  cycles       {program['total_cycles']:,} on the NPU (estimated by Vela), {program['cpu_cycles']:,} on the CPU",
        f"  memory       {program['ram_bytes'] / 1024:.1f} KiB RAM, {program['flash_bytes'] / 1024:.1f} KiB flash in total",
        "  seconds      " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in results["seconds"].items()),
        "  wrote        " + ", ".join(results["files"]),
        "",
        f"  next: ethorch explain {results['files'][0]}",
    ]
    return "\n".join(lines)


def draw(path: Path, data: Digits, float_logits: Tensor, npu_logits: Tensor) -> None:
    """Draw the confusion matrix of the NPU and 28 images with the predicted classes, misclassified images first."""
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
    axes.set(xticks=range(10), yticks=range(10), xlabel="class predicted on the NPU", ylabel="digit")
    left.suptitle(f"{len(labels)} held-out digits: {accuracy(npu_logits, labels):.1%} classified correctly")
    is_wrong = (by_npu != labels) | (by_npu != by_float)
    image_indices = torch.cat([is_wrong.nonzero()[:, 0], (~is_wrong).nonzero()[:, 0]])[:28].tolist()
    for cell, index in zip(right.subplots(4, 7).flat, image_indices, strict=True):
        cell.imshow(data.held_out_images[index, 0], cmap="gray_r")
        cell.set_axis_off()
        answers = f"float {by_float[index]}, NPU {by_npu[index]}"
        cell.set_title(f"digit {labels[index]}\n{answers}", fontsize=9, color="firebrick" if is_wrong[index] else "black")
    right.suptitle(
        f"digit and predicted classes; red: the {int(is_wrong.sum())} misclassified on the NPU or classified differently in float"
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def run(target: str, directory: Path, epochs: int, seed: int, progress: Progress) -> dict[str, Any]:
    """Train and compile the network, classify every held-out image, write the files, and return all figures."""
    directory.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the network is too small for several threads
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
    parser.add_argument("--target", default="ethos-u55-128", help="NPU to compile for; default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("demo_out"), help="folder of the results; default: %(default)s")
    parser.add_argument("--epochs", type=int, default=20, help="epochs of training; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="seed of the training; default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args(arguments)
    try:
        check_installed("examples/digits.py", ("sklearn", "matplotlib"), 'pip install -e ".[demo]"')
        results = run(options.target, options.out, options.epochs, options.seed, Progress())
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except (EthorchError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(results, indent=2) if options.json else format_results(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
