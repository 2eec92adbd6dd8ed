"""The report as a function: plain data -> one HTML page."""

from __future__ import annotations

import copy
import html
import json
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ethorch
from ethorch.program.program import record_of
from ethorch.report.markdown import markdown
from ethorch.report.page import page
from ethorch.report.page.svg import Axis, Box, Chart, Line, Point, draw, round_step
from ethorch.support.errors import EthorchError, FormatError
from tests.report.conftest import repeated

SECTIONS = ("verdict", "summary", "advice", "cycles", "timeline", "memory", "roofline", "map", "accuracy", "layers", "reproduce")


def chart(text: str, name: str) -> str:
    """The SVG of a chart."""
    found = re.search(rf'id="chart-{re.escape(name)}".*?>(<div class="legend">.*?</svg></div>)', text, re.S)
    assert found is not None, name
    return found[1]


def tooltips(text: str, name: str) -> list[str]:
    return [html.unescape(title) for title in re.findall(r"<title>(.*?)</title>", chart(text, name), re.S)]


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
    assert text.count("Content-Security-Policy") == 1 and "<title>both on ethos-u55-128: ethorch report</title>" in text


def test_it_is_a_function_of_the_data_alone(data: dict[str, Any]) -> None:
    assert page(data) == page(json.loads(json.dumps(data)))


def test_charts_show_the_figures_of_the_data(data: dict[str, Any]) -> None:
    text = page(data)
    regions = {f"region_{tensor['region']}" for tensor in data["memory"]["tensors"]}
    names = set(re.findall(r'id="chart-(\w+)"', text))
    assert names == {"largest", "in_order", "modules", "timeline", "memory", "roofline"} | regions
    with_cycles = [layer for layer in data["layers"] if layer["op_cycles"]]
    bars = tooltips(text, "in_order")
    assert [int(bar.partition(":")[0]) for bar in bars] == [layer["index"] for layer in with_cycles]
    assert all(f"{layer['op_cycles']:,} cycles" in bar for layer, bar in zip(with_cycles, bars, strict=True))
    heights = [float(x) for x in re.findall(r'height="([\d.]+)%"', chart(text, "in_order"))]
    most = max(layer["op_cycles"] for layer in with_cycles)
    assert heights == pytest.approx([100 / 1.05 * layer["op_cycles"] / most for layer in with_cycles], abs=0.01)
    assert f"program\n{data['total_cycles'] + data['cpu_cycles']:,} cycles, 100.0%" in tooltips(text, "modules")
    for region in data["memory"]["regions"]:
        assert len([tip for tip in tooltips(text, "memory") if tip.startswith(f"{region}, layer")]) == len(data["layers"])
    assert all("MACs per byte" in tip for tip in tooltips(text, "roofline")) and "Sram, 8 bytes per cycle" in chart(
        text, "roofline"
    )


def test_a_faster_cpu_takes_a_smaller_part_of_the_timeline(data: dict[str, Any]) -> None:
    def share(cpu_clock_hz: float) -> float:
        drawn = chart(page({**data, "cpu_clock_hz": cpu_clock_hz}), "timeline")
        widths = re.findall(r'width="([\d.]+)%"[^>]*><title>([^<]*)', drawn)
        return sum(float(width) for width, title in widths if "topk" in title)

    cycles = {where: sum(layer["op_cycles"] for layer in data["layers"] if layer["where"] == where) for where in ("CPU", "NPU")}
    topk = sum(layer["op_cycles"] for layer in data["layers"] if "topk" in layer["name"])
    for ratio in (1, 4):
        wanted = 100 * topk / ratio / (cycles["CPU"] / ratio + cycles["NPU"])
        assert share(ratio * data["core_clock_hz"]) == pytest.approx(wanted, abs=0.1)


def test_a_chart_places_marks_in_percent_of_its_axes() -> None:
    x, y = Axis("x", 0, 10), Axis("y", 1, 100, is_logarithmic=True)
    marks = (Box(2, 4, 1, 10, "#111", "a\nb"), Line([(0, 1), (10, 100)], "#222"), Point(5, 10, 3, "#333", label="<p>"))
    text = draw(Chart(x, y, marks, (("one", "#111"), ("two", "#222"))))
    assert '<rect x="20%" y="50%" width="20%" height="50%" fill="#111"><title>a\nb</title></rect>' in text
    assert '<line x1="0%" y1="100%" x2="100%" y2="0%" stroke="#222"' in text
    assert '<circle cx="50%" cy="50%" r="3"' in text and "&lt;p&gt;" in text and "<p>" not in text
    assert re.findall(r'class="tick".*?>([^<]+)</text>', text)[:9] == ["1", "10", "100", "0", "2", "4", "6", "8", "10"]
    assert [round_step(step) for step in (0.3, 1, 21, 7e5, 0, float("inf"))] == [0.5, 1, 50, 1e6, 1, 1]


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
    assert len(re.findall("<script", text)) == 1 == len(re.findall("</script", text))
    assert "&lt;img" in chart(text, "in_order")
    assert [row[4] for row in rows(text)] == [HOSTILE] * len(data["layers"])


def test_only_its_own_scripts_may_run(data: dict[str, Any]) -> None:
    text = page(data)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert "default-src 'none'" in policy and "unsafe" not in policy.partition("style-src")[0] and "form-action 'none'" in policy
    assert len(re.findall(r"'sha256-[\w+/]{43}='", policy)) == 1
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", text) and "http" not in text.replace("http-equiv", "")


def test_the_page_of_a_small_program_is_below_100_kb(data: dict[str, Any]) -> None:
    assert len(page(data).encode()) < 100_000


def test_two_thousand_layers_are_less_than_5_mb(data: dict[str, Any]) -> None:
    many = repeated(data, 2000)
    text = page(many)
    assert len(rows(text)) == len(many["layers"]) >= 2000
    assert len(text.encode()) < 5_000_000


def test_what_is_not_known_is_said(program: ethorch.Program) -> None:
    text = page(ethorch.load(program.pte).to_json())
    assert (
        "Cycles are unknown" in text
        and "A timeline requires" in text
        and "A roofline requires" in text
        and "The accuracy was not measured" in text
    )
    assert "The settings are unknown" in text


def test_data_of_an_earlier_release_has_no_memory_system(data: dict[str, Any]) -> None:
    del data["memory_system"]
    assert "A roofline requires" in page(data)


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
    assert (
        "3 samples" in section and "pad+conv2d" in section and "39.5" in section and "first differ at conv2d at stem.0" in section
    )
    assert 'class="n no" data-v="2.0"' in section and 'class="n" data-v="0.0"' in section
    assert [tip.splitlines()[-1] for tip in tooltips(text, "accuracy")] == [
        "NPU 39.5 dB, fake-quantized 40.2 dB, operator alone 41.0 dB"
    ] * 2


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
                assert str(error).startswith("expected the result of Program.to_json, got ")


@pytest.mark.parametrize("broken", [{}, {"layers": 3}, {"layers": [{}], "memory": {}}, {"layers": [], "memory": {"tensors": []}}])
def test_other_data_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="expected "):
        page(broken)


def test_modules_nested_without_end_are_cut(data: dict[str, Any]) -> None:
    data["layers"][1]["module"] = ".".join(["deep"] * 5000)
    assert page(data).count("<details") < 40


def test_program_report_with_samples(program: ethorch.Program, tmp_path: Path) -> None:
    assert record_of(program).model is not None
    text = program.report(tmp_path / "both.html", samples=record_of(program).model.calibration[:2]).read_text(encoding="utf-8")
    section = text.partition('<section id="accuracy">')[2].partition("</section>")[0]
    comparison = program.compare(samples=record_of(program).model.calibration[:2])
    assert "2 samples" in section and "bit-exact" in section
    names = [layer.module for layer in comparison.layers if layer.module]
    assert "head" in names and all(f"<td>{name}</td>" in section for name in names)
    figures = [layer["float_npu_db"] for layer in comparison.to_json()["layers"]]
    assert chart(text, "accuracy").count('fill="#D55E00"') == len([figure for figure in figures if figure is not None])


def test_the_title_names_the_model_and_the_target(program: ethorch.Program, tmp_path: Path) -> None:
    text = program.report(tmp_path / "both.html").read_text(encoding="utf-8")
    assert "<h1>Both on ethos-u55-128</h1>" in text
    program.save(tmp_path / "folder")
    assert ethorch.load(tmp_path / "folder").to_json()["model"] == "Both"


def test_without_limits_the_page_compares_with_products(data: dict[str, Any]) -> None:
    data |= {"budgets": [], "boards": [{"name": "small", "ram_bytes": 1024, "flash_bytes": 4096}]}
    assert "The program does not fit on small." in page(data)
    data["boards"].append({"name": "large", "ram_bytes": 1 << 20, "flash_bytes": None})
    assert "The program fits on large, but not on small." in page(data)
    del data["boards"][0]
    assert f"The program fits on large, and uses {data['ram_bytes'] / (1 << 20):.1%} of the RAM of large." in page(data)


def test_program_report(program: ethorch.Program, tmp_path: Path) -> None:
    written = program.report(tmp_path / "both.html", title="both")
    assert written.read_text(encoding="utf-8") == page(json.loads(json.dumps(program.to_json())), title="both")
    with pytest.raises(EthorchError, match="cannot write"):
        program.report(tmp_path / "missing" / "both.html")
