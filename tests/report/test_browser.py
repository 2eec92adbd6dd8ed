"""The report in a browser: nothing on the console, charts drawn, tables that sort and filter, wide and narrow."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import ethorch
from ethorch.report.page import page
from tests.helpers.tools import find_tool
from tests.report.conftest import repeated
from tests.report.test_page import HOSTILE

BROWSER = find_tool("browser")
pytestmark = pytest.mark.tools("browser")

#: Script that runs in the page; BODY returns an object.
PROBE = """
(async () => {
  const failures = [];
  addEventListener("error", (event) => failures.push(event.message));
  addEventListener("unhandledrejection", (event) => failures.push(String(event.reason)));
  addEventListener("securitypolicyviolation", (event) => failures.push(event.violatedDirective));
  const visible = () => [...document.querySelectorAll("#layer-table tbody tr")].filter((row) => row.offsetParent !== null);
  const column = (number) => visible().map((row) => row.cells[number].textContent);
  const head = (number) => document.querySelectorAll("#layer-table th button")[number];
  const set = (id, value) => {
    const field = document.getElementById(id);
    field.value = value;
    field.dispatchEvent(new Event("input", { bubbles: true }));
  };
  const found = await (async () => { BODY })();
  parent.postMessage(JSON.stringify({ ...found, failures }), "*");
})();
"""
FRAME = """<!doctype html><body style="margin:0"><iframe src="page.html" style="border:0;width:{width}px;height:900px"></iframe>
<pre></pre><script>addEventListener("message", (event) => document.querySelector("pre").textContent = event.data)</script>"""


def looked_at(text: str, body: str, tmp_path: Path, width: int = 1280) -> dict[str, Any]:
    """What a script finds in the page; asserts that nothing went wrong."""
    script = PROBE.replace("BODY", body)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    probed = text.replace("script-src ", f"script-src 'sha256-{allowed}' ").replace("</body>", f"<script>{script}</script></body>")
    (tmp_path / "page.html").write_text(probed, encoding="utf-8")
    (tmp_path / "frame.html").write_text(FRAME.format(width=width))
    options = ["--headless", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=60000", "--dump-dom"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={max(width, 500)},900"]
    if os.geteuid() == 0:
        options.append("--no-sandbox")  # Chromium refuses to run as root with one
    assert BROWSER is not None
    child = subprocess.run([BROWSER, *options, (tmp_path / "frame.html").as_uri()], capture_output=True, text=True, timeout=300)
    said = [line for line in child.stderr.splitlines() if "CONSOLE" in line]
    assert not said, "\n".join(said)
    answer = re.search(r"<pre>(.+)</pre>", child.stdout, re.S)
    assert answer, child.stderr[-2000:]
    found: dict[str, Any] = json.loads(html.unescape(answer[1]))
    assert found["failures"] == []
    return found


@pytest.mark.parametrize("width", [400, 1300])
def test_every_chart_is_drawn(data: dict[str, Any], tmp_path: Path, width: int) -> None:
    found = looked_at(
        page(data),
        "const size = (x) => x.getBoundingClientRect();"
        "const charts = [...document.querySelectorAll('.plot > svg')].map((x) => [size(x).width, size(x).height]);"
        "return { charts, rows: column(0), bars: [...document.querySelectorAll('#chart-in_order rect')]"
        ".filter((x) => size(x).width > 0 && size(x).height > 0).length }",
        tmp_path,
        width,
    )
    assert len(found["charts"]) >= 7
    assert all(width / 3 < chart_width < width and height >= 50 for chart_width, height in found["charts"])
    assert found["rows"] == [str(layer["index"]) for layer in data["layers"]]
    assert found["bars"] == sum(bool(layer["op_cycles"]) for layer in data["layers"])


def test_columns_sort(data: dict[str, Any], tmp_path: Path) -> None:
    found = looked_at(
        page(data),
        "head(5).click(); const down = column(5); head(5).click(); const up = column(5);"
        "const said = head(5).closest('th').ariaSort;"
        "head(3).click(); return { down, up, said, modules: column(3) };",
        tmp_path,
    )
    cycles = sorted(layer["op_cycles"] for layer in data["layers"])
    assert found["up"] == [f"{n:,}" for n in cycles] and found["down"] == found["up"][::-1] and found["said"] == "ascending"
    assert found["modules"] == sorted(layer["module"] for layer in data["layers"])


def test_layers_filter(data: dict[str, Any], tmp_path: Path) -> None:
    found = looked_at(
        page(data),
        "const count = () => document.getElementById('count').textContent;"
        "set('search', 'CONV2D head'); const words = [column(0), count()]; set('search', '');"
        "set('where', 'CPU'); const cpu = [column(0), count()]; set('where', '');"
        "set('bound', document.getElementById('bound').options[1].value);"
        "const bound = [column(0), document.getElementById('bound').value];"
        "set('bound', ''); set('search', 'no such layer'); return { words, cpu, bound, none: count() };",
        tmp_path,
    )
    layers, total = data["layers"], len(data["layers"])

    def indices(wanted: Any) -> list[str]:
        return [str(layer["index"]) for layer in layers if wanted(layer)]

    conv = indices(lambda layer: layer["operators"] == ["aten.conv2d.default"] and layer["module"] == "head")
    cpu = indices(lambda layer: layer["where"] == "CPU")
    assert conv and found["words"] == [conv, f"{len(conv)} of {total} layers"]
    assert cpu and found["cpu"] == [cpu, f"{len(cpu)} of {total} layers"]
    assert found["bound"][0] == indices(lambda layer: layer["bound"] == found["bound"][1])
    assert found["none"] == f"0 of {total} layers"


@pytest.mark.parametrize("width", [390, pytest.param(768, marks=pytest.mark.long), 1280])
def test_nothing_is_wider_than_the_window(data: dict[str, Any], tmp_path: Path, width: int) -> None:
    for layer in data["layers"]:
        layer["module"] = "a_module_of_a_very_long_name." * 6 + layer["module"]
    found = looked_at(
        page(data, title="a_file_of_a_long_name" * 8), "return { width: document.documentElement.scrollWidth }", tmp_path, width
    )
    assert found["width"] <= width


def test_hostile_text_stays_text(data: dict[str, Any], tmp_path: Path) -> None:
    for layer in data["layers"]:
        layer |= {"module": HOSTILE, "source": HOSTILE, "name": HOSTILE, "operators": [HOSTILE], "operator": HOSTILE}
    found = looked_at(
        page(data, title=HOSTILE),
        "return { images: document.images.length, links: document.querySelectorAll('svg a').length, modules: column(3) }",
        tmp_path,
    )
    assert found["images"] == found["links"] == 0
    assert {" ".join(module.split()) for module in found["modules"]} == {" ".join(HOSTILE.split())}


def test_a_file_without_cycles(program: ethorch.Program, tmp_path: Path) -> None:
    assert looked_at(page(ethorch.load(program.pte).to_json()), "return { rows: column(0) }", tmp_path)["rows"]


@pytest.mark.long
def test_two_thousand_layers(data: dict[str, Any], tmp_path: Path) -> None:
    many = repeated(data, 2000)
    found = looked_at(page(many), "head(5).click(); return { rows: column(5) }", tmp_path)
    assert len(found["rows"]) == len(many["layers"])
    assert found["rows"][0] == f"{max(layer['op_cycles'] for layer in many['layers']):,}"
