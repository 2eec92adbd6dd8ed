"""Render the images of the README and of the documentation: ``python -m tools.screenshots [--site site/]``.

Headless Chromium renders the report of MobileNetV2 (random weights, ethos-u55-128) 1300 and 400 pixels wide, to
``docs/img/report.png`` and ``docs/img/report-400.png``. ``--site`` also renders the landing page of a built site.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "img"
#: Width in pixels -> height in pixels.
SIZES = {1300: 1000, 400: 900}
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
#: Chromium's narrowest window is 500 pixels wide, so narrower pages are rendered in a frame.
_FRAME = """<!doctype html><body style="margin:0">
<iframe src="{page}" style="border:0;width:{width}px;height:{height}px"></iframe>"""


def take(page: Path, image: Path, width: int, height: int) -> None:
    """Render the first ``height`` pixels of an HTML file, ``width`` pixels wide, to a PNG file.

    Raises:
        SystemExit: Chromium is not installed.
        subprocess.CalledProcessError: Chromium failed.
    """
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise SystemExit("Chromium is not installed: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        frame = Path(folder) / "frame.html"
        frame.write_text(_FRAME.format(page=page.resolve().as_uri(), width=width, height=height), encoding="utf-8")
        options = [
            "--headless",
            "--disable-gpu",
            "--hide-scrollbars",
            "--allow-file-access-from-files",
            "--virtual-time-budget=30000",
        ]
        options += [f"--user-data-dir={folder}/profile", f"--window-size={width},{height}", f"--screenshot={image}"]
        if os.geteuid() == 0:
            options.append("--no-sandbox")  # Chromium refuses to start as root otherwise
        subprocess.run([browser, *options, frame.as_uri()], check=True, capture_output=True, timeout=300)


def mobilenet_report(folder: Path) -> Path:
    """Compile MobileNetV2 and return its report as an HTML file in ``folder``."""
    import ethorch
    from bench.models import ALL_MODELS

    case = ALL_MODELS["mobilenet_v2"]
    settings = ethorch.Settings(io="int8")
    program = ethorch.compile(case.build(), case.example_inputs(), calibration=case.calibration(), settings=settings)
    return program.report(folder / "report.html")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("tools.screenshots", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--site", type=Path, help="folder of a built site; its landing page is also rendered")
    parser.add_argument("-o", "--output", type=Path, default=IMAGES, help="output folder; default: docs/img")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        pages = {"report": mobilenet_report(Path(folder))}
        if options.site:
            pages["site"] = options.site / "index.html"
        for name, page in pages.items():
            for width, height in SIZES.items():
                image = options.output / (f"{name}.png" if width > 1000 else f"{name}-{width}.png")
                take(page, image.resolve(), width, height)
                print(image)
    return 0


if __name__ == "__main__":
    sys.exit(main())
