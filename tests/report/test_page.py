"""The report as a function: plain data -> one HTML page."""

from __future__ import annotations

import base64
import copy
import gzip
import html
import json
import math
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plotly.graph_objects
import pytest

import ethorch
from ethorch.program.program import record_of
from ethorch.report.markdown import markdown
from ethorch.report.page import page
from ethorch.support.errors import EthorchError, FormatError
from tests.report.conftest import repeated

SECTIONS = ("verdict", "summary", "advice", "cycles", "timeline", "memory", "roofline", "map", "accuracy", "layers", "reproduce")


def embedded(text: str, name: str) -> str:
    """What the page holds packed: ``charts`` or ``library``."""
    (packed,) = re.findall(rf'id="{name}">([^<]*)</script>', text)
    return gzip.decompress(base64.b64decode(packed)).decode()


def rows(text: str) -> list[list[str]]:
    """The cells of the table of layers."""
    body = text.partition('id="layer-table"')[2].partition("<tbody>")[2].partition("</tbody>")[0]
    return [
        [html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in re.findall(r"<tr.*?</tr>", body, re.S)
    ]


def test_it_has_every_section_and_every_layer(data: dict[str, Any]) -> None:
    text = page(data, title="both")
    assert re.findall(r'<section id="(\w+)">', text) == list(SECTIONS)
    assert all(f'href="#{name}"' in text for name in SECTIONS)
    found = rows(text)
    assert [int(row[0]) for row in found] == [layer["index"] for layer in data["layers"]]
    assert [row[3] for row in found] == [layer["module"] for layer in data["layers"]]
    assert [row[5] for row in found] == [f"{layer['op_cycles']:,}" for layer in data["layers"]]
    assert text.count("Content-Security-Policy") == 1 and "<title>both: ethorch report</title>" in text


def test_it_is_a_function_of_the_data_alone(data: dict[str, Any]) -> None:
    assert page(data) == page(json.loads(json.dumps(data)))


def test_the_charts_show_what_the_data_says(data: dict[str, Any]) -> None:
    charts = json.loads(embedded(page(data), "charts"))
    regions = {f"region_{tensor['region']}" for tensor in data["memory"]["tensors"]}
    assert set(charts) == {"largest", "in_order", "treemap", "timeline", "memory", "roofline"} | regions
    cycles = {x: y for trace in charts["in_order"]["data"] for x, y in zip(trace["x"], trace["y"], strict=True)}
    assert cycles == {layer["index"]: layer["op_cycles"] for layer in data["layers"] if layer["op_cycles"]}
    (areas,) = charts["treemap"]["data"]
    assert areas["values"][0] == data["total_cycles"] + data["cpu_cycles"]
    for parent, value in zip(areas["ids"], areas["values"], strict=True):
        assert sum(v for p, v in zip(areas["parents"], areas["values"], strict=True) if p == parent) <= value
    for trace in charts["memory"]["data"]:
        assert max(trace["y"]) * 1024 <= data["memory"]["regions"][trace["name"]]
    roofs = {trace.get("name"): trace for trace in charts["roofline"]["data"]}
    for x, y in zip(roofs["Sram, 8 bytes a cycle"]["x"], roofs["Sram, 8 bytes a cycle"]["y"], strict=True):
        assert y <= min(128, 8 * x) * 1.000001


HOSTILE = "</script><img src=x onerror=alert(1)>\"'&{{ 7 * 7 }}|%{x}\u2028"


def test_text_of_the_program_is_escaped(data: dict[str, Any]) -> None:
    for layer in data["layers"]:
        layer |= {
            "module": HOSTILE,
            "source": HOSTILE,
            "name": HOSTILE,
            "operators": [HOSTILE],
            "operator": HOSTILE,
            "bound": HOSTILE,
        }
    for tensor in data["memory"]["tensors"]:
        tensor |= {"name": HOSTILE, "module": HOSTILE, "source": HOSTILE, "region": HOSTILE, "dtype": HOSTILE}
    data["memory"]["regions"] = {HOSTILE: 4096}
    for refusal in data["cpu"]:
        refusal |= dict.fromkeys(refusal, HOSTILE)
    data |= {"target": HOSTILE, "versions": {HOSTILE: HOSTILE}}
    data["settings"] |= {"vela_flags": [HOSTILE], "modules": {HOSTILE: HOSTILE}, "target": HOSTILE}
    text = page(data, title=HOSTILE)
    assert "<img" not in text and "49" not in text.partition("</title>")[0]
    assert len(re.findall("<script", text)) == 3 == len(re.findall("</script", text))
    charts = json.loads(embedded(text, "charts"))
    for ids in ("ids", "parents"):  # which nobody sees
        del charts["treemap"]["data"][0][ids]
    shown = json.dumps(list(charts.values()))
    assert "<img" not in shown and "&lt;img" in shown
    assert [row[4] for row in rows(text)] == [HOSTILE] * len(data["layers"])


def test_only_its_own_scripts_may_run(data: dict[str, Any]) -> None:
    text = page(data)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert "default-src 'none'" in policy and "unsafe" not in policy.partition("style-src")[0] and "form-action 'none'" in policy
    assert len(re.findall(r"'sha256-[\w+/]{43}='", policy)) == 2
    without_text = re.sub(r'id="(charts|library)">[^<]*', "", text)
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", without_text) and "http" not in without_text.replace(
        "http-equiv", ""
    )
    assert "plotly.js" in embedded(text, "library")[:200], "its license stands at its beginning"


def test_two_thousand_layers_are_less_than_5_mb(data: dict[str, Any]) -> None:
    many = repeated(data, 2000)
    text = page(many)
    assert len(rows(text)) == len(many["layers"]) >= 2000
    assert len(text.encode()) < 5_000_000


def test_what_is_not_known_is_said(program: ethorch.Program) -> None:
    text = page(ethorch.load(program.pte).to_json())
    assert (
        "Cycles are not known" in text
        and "no time line" in text
        and "no roofline" in text
        and "The accuracy was not measured" in text
    )
    assert "The settings are not known" in text


def test_data_of_an_earlier_release_has_no_memory_system(data: dict[str, Any]) -> None:
    del data["memory_system"]
    assert "there is no roofline" in page(data)


def test_accuracy_of_each_operator(data: dict[str, Any]) -> None:
    layer = {
        "node": "conv2d", "operator": "aten.conv2d.default", "fused": ["aten.pad.default"], "module": "stem.0", 
        "source": "net.py:3",
        "on_npu": True, "dtype": "int8", "scale": 0.1, "elements": 64, "float_fake_db": 40.25, "fake_npu_db": None,
        "float_npu_db": 39.5, "own_db": 41.0, "steps": 2.0, "own_steps": 2.0,
        "allowed_steps": 1, "saturated": 0.01, "range_used": 0.9,
    }  # fmt: skip
    other = {**layer, "node": "relu", "operator": "aten.relu.default", "own_steps": 0.0, "own_db": None, "float_npu_db": None}
    comparison = {
        "samples": 3, "missing": "", "bit_exact": True, "first_divergence": "conv2d", "largest_loss": "conv2d",
        "outputs": [{"quantized_db": 38.0, "npu_db": 37.5, "agreement_db": None}], "layers": [layer, other],
    }  # fmt: skip
    text = page(data, comparison)
    section = text.partition('<section id="accuracy">')[2].partition("</section>")[0]
    assert "3 samples" in section and "pad+conv2d" in section and "39.5" in section and "part first at conv2d at stem.0" in section
    assert 'class="n no" data-v="2.0"' in section and 'class="n" data-v="0.0"' in section
    npu = json.loads(embedded(text, "charts"))["accuracy"]["data"][0]
    assert npu["y"] == [39.5, None]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to everything that is neither a list nor a dict; of a list to its first three."""
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(min(3, len(value))):
            yield from leaves(value[key], (*path, key))
    else:
        yield path


def test_a_value_of_another_type_is_shown_or_refused(data: dict[str, Any]) -> None:
    """Nothing but FormatError comes out of a file that somebody changed."""
    paths = list(leaves(data))
    for _ in range(60):
        broken = copy.deepcopy(data)
        *way, last = random.choice(paths)
        place: Any = broken
        for key in way:
            place = place[key]
        place[last] = random.choice([None, "x", -1, 0, 10**9, 1e30, math.nan, [], {}, True])
        for function in (page, markdown):
            try:
                assert function(broken)
            except FormatError as error:
                assert str(error).startswith("not ")


@pytest.mark.parametrize("broken", [{}, {"layers": 3}, {"layers": [{}], "memory": {}}, {"layers": [], "memory": {"tensors": []}}])
def test_other_data_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match=r"^not (the data of a program|a )"):
        page(broken)


def test_modules_nested_without_end_are_cut(data: dict[str, Any]) -> None:
    data["layers"][1]["module"] = ".".join(["deep"] * 5000)
    assert page(data).count("<details") < 40


def test_plotly_accepts_each_figure(data: dict[str, Any]) -> None:
    """The page writes figures without Plotly's Python package, which checks each attribute of theirs here."""
    for figure in json.loads(embedded(page(data), "charts")).values():
        assert plotly.graph_objects.Figure(figure).to_plotly_json()["data"]


def test_a_missing_library_is_named(data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(EthorchError, match=r'pip install "ethorch\[report\]"'):
        page(data)


def test_program_report_with_samples(program: ethorch.Program, tmp_path: Path) -> None:
    assert record_of(program).model is not None
    text = program.report(tmp_path / "both.html", samples=record_of(program).model.calibration[:2]).read_text(encoding="utf-8")
    section = text.partition('<section id="accuracy">')[2].partition("</section>")[0]
    comparison = program.compare(samples=record_of(program).model.calibration[:2])
    assert "2 samples" in section and "agree in every bit" in section
    names = [layer.module for layer in comparison.layers if layer.module]
    assert "head" in names and all(f"<td>{name}</td>" in section for name in names)
    shown = json.loads(embedded(text, "charts"))["accuracy"]["data"][0]["y"]
    assert shown == pytest.approx([layer["float_npu_db"] for layer in comparison.to_json()["layers"]])


def test_program_report(program: ethorch.Program, tmp_path: Path) -> None:
    written = program.report(tmp_path / "both.html", title="both")
    assert written.read_text(encoding="utf-8") == page(json.loads(json.dumps(program.to_json())), title="both")
    with pytest.raises(EthorchError, match="cannot write"):
        program.report(tmp_path / "missing" / "both.html")
