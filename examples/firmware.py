"""Train a digit classifier, generate its firmware, and run the firmware on a virtual board.

The network is the one of ``digits.py``. The self-test of the generated C project classifies every held-out image. The project is
built with clang from the Python package ziglang, and the ELF file runs on a virtual Corstone-300: an emulated Cortex-M with a
simulated Ethos-U. ``make demo-firmware`` runs this example.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
from digits import DigitNet, load_digits, train

import ethorch
from ethorch.support.errors import EthorchError
from ethorch.support.versions import check_installed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="ethos-u55-128", help="NPU to compile for; default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("demo_out/firmware"), help="folder of the C project; default: %(default)s")
    parser.add_argument("--epochs", type=int, default=20, help="epochs of training; default: %(default)s")
    parser.add_argument("--images", type=int, default=None, help="number of held-out images to classify; default: all")
    parser.add_argument("--seed", type=int, default=0, help="seed of the training; default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        modules = ("sklearn", "ziglang", "unicorn", "elftools")
        check_installed("examples/firmware.py", modules, 'pip install -e ".[demo,firmware]"')
    except EthorchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    data = load_digits(options.seed)
    model = DigitNet()
    train(model, data, options.epochs, options.seed, lambda done, total: None)
    images, labels = data.held_out_images[: options.images], data.held_out_labels[: options.images]
    try:
        calibration = data.train_images[:64]
        program = ethorch.compile(model, data.train_images[:1], options.target, calibration=calibration, progress=False)
        print(ethorch.firmware(program, options.out, name="digits", samples=[(image,) for image in images.split(1)]))
    except (EthorchError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    process = subprocess.run([sys.executable, str(options.out / "run.py"), "--json"], capture_output=True, text=True)
    if process.returncode not in (0, 1) or not process.stdout:
        print(process.stderr.strip(), file=sys.stderr)
        return 1
    outcome = json.loads(process.stdout)
    rows = outcome["outputs"]
    correct = sum(row["largest"] == int(label) for row, label in zip(rows, labels, strict=True))
    equal = sum(row["equal"] for row in rows)
    print(f"code size of the firmware with its self-test: {outcome['code_bytes']} bytes")
    print(f"{len(labels)} held-out digits on the board: {correct / len(labels):.2%} classified correctly")
    print(f"{equal} of {len(rows)} outputs equal those of the host simulator")
    print("PASS" if outcome["passed"] else f"FAIL: {'; '.join(outcome['faults']) or outcome['text'][-300:]}")
    return 0 if outcome["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
