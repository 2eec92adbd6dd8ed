"""The site in a browser: nothing on the console, nothing from the network, nothing wider than a phone."""

from __future__ import annotations

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ethorch.lower.ops.spec import OPS
from tests.docs.test_site import FOLDER
from tests.helpers.tools import find_tool

BROWSER = find_tool("browser")
pytestmark = [pytest.mark.long, pytest.mark.tools("browser")]

#: Loads a page of the same server into a frame of some width, and writes down how wide the page is.
FRAME = """<!doctype html><body style="margin:0">
<iframe src="{page}" style="border:0;width:{width}px;height:900px"></iframe><pre></pre>
<script>
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => setTimeout(() => {{
  document.querySelector("pre").textContent = "width " + frame.contentDocument.documentElement.scrollWidth;
}}, 1000));
</script>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of the built site, and its folder."""
    folder = tmp_path_factory.mktemp("browser") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    subprocess.run(command, cwd=FOLDER.parent, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", folder
    server.shutdown()


def opened(address: str, profile: Path) -> str:
    """The page once its scripts have run; asserts that the console stays empty."""
    assert BROWSER is not None
    options = ["--headless", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=20000", "--dump-dom"]
    options += [f"--user-data-dir={profile}", "--window-size=1280,900", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    child = subprocess.run([BROWSER, *options, address], capture_output=True, text=True, timeout=300)
    assert [line for line in child.stderr.splitlines() if "CONSOLE" in line] == []
    return child.stdout


PAGES = ["", "ops/", "targets/", "reference/api/", "reference/cli/", "guides/profile/", "guides/compress/", "reference/messages/"]


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_quiet_and_as_wide_as_the_window(site: tuple[str, Path], page: str, width: int, tmp_path: Path) -> None:
    address, folder = site
    (folder / "frame.html").write_text(FRAME.format(page=f"/{page}", width=width))
    found = re.search(r"width (\d+)", opened(f"{address}/frame.html", tmp_path / "profile"))
    assert found and int(found[1]) <= width


def test_every_operator_is_on_its_page_and_nothing_comes_from_elsewhere(site: tuple[str, Path], tmp_path: Path) -> None:
    address, folder = site
    text = opened(f"{address}/ops/", tmp_path / "profile")
    assert [spec.name for spec in OPS.values() if spec.name not in text] == []
    for page in folder.rglob("*.html"):
        loaded = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?://[^\"> ]+)", page.read_text())
        assert [each for each in loaded if "127.0.0.1" not in each and 'rel="canonical"' not in each] == [], page
