"""From handwritten digits to firmware that classifies them on a virtual board.

Trains and compiles the network of digits.py, writes a C project around it whose self-test is every held-out image, builds it with
the clang that the Python package ziglang brings, and runs the ELF on a virtual Corstone-300: a Cortex-M in an emulator, and the
simulated Ethos-U behind its registers. ``make demo-firmware`` runs it.
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
    parser.add_argument("--target", default="ethos-u55-128")
    parser.add_argument("--out", type=Path, default=Path("demo_out/firmware"), help="the project's folder; default: %(default)s")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--images", type=int, default=None, help="how many held-out images; default: all")
    parser.add_argument("--seed", type=int, default=0)
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
    done = subprocess.run([sys.executable, str(options.out / "run.py"), "--json"], capture_output=True, text=True)
    if done.returncode not in (0, 1) or not done.stdout:
        print(done.stderr.strip(), file=sys.stderr)
        return 1
    found = json.loads(done.stdout)
    rows = found["outputs"]
    right = sum(row["largest"] == int(label) for row, label in zip(rows, labels, strict=True))
    equal = sum(row["equal"] for row in rows)
    print(f"code of the firmware, self-test included: {found['code_bytes']} bytes")
    print(f"{len(labels)} held-out digits on the board: {right / len(labels):.2%} right")
    print(f"{equal} of {len(rows)} outputs equal the desk's")
    print("PASS" if found["passed"] else f"FAIL: {'; '.join(found['faults']) or found['text'][-300:]}")
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
