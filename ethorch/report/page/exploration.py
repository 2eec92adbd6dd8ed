"""Render an exploration as one HTML file without network access: a table and a plot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ethorch.report.page.page import check_page, render
from ethorch.support.errors import FormatError

Data = Mapping[str, Any]
_SETTINGS, _FRONT, _OTHER = "settings", "#0072B2", "#9CA3AF"
_NAMED = 6  # points up to which each has its name beside it; with more, names lie over each other


def exploration_page(data: Data, title: str = "") -> str:
    """Return the page of ``Exploration.to_json``.

    Raises:
        FormatError: The data have another format.
        EthorchError: The plotting library is not installed.
    """
    check_page()
    try:
        variants = list(data["variants"])
        axes = list(dict.fromkeys(axis for variant in variants for axis in variant[_SETTINGS]))
        compiled = [variant for variant in variants if not variant["error"] and variant["milliseconds"] is not None]
        charts = {"front": _plot(compiled)} if compiled else {}
        cheapest = None if data["cheapest"] is None else name_of(data["cheapest"])
        rows = [(variant, [variant[_SETTINGS].get(axis) for axis in axes]) for variant in variants]
        budgets = dict(data["budgets"])
        return render(
            "exploration.html",
            charts,
            title=title or "Exploration",
            axes=axes,
            rows=rows,
            budgets=budgets,
            limited=any(variant["fits"] is not None for variant in variants),
            cheapest=cheapest,
            interrupted=data["interrupted"],
            versions=sorted(data["versions"].items()),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"not the data of an exploration: {type(error).__name__}: {error}.") from error


def name_of(variant: Data) -> str:
    """Return the varied settings in a few words."""
    return " ".join(str(value) for value in variant[_SETTINGS].values() if value is not None) or "as it is"


def _plot(variants: list[Data]) -> dict[str, Any]:
    """Return a plot of time against RAM; the size of a point is the flash."""
    most = max(variant["flash_bytes"] for variant in variants) or 1
    traces = []
    for front, name, colour in ((True, "Pareto front", _FRONT), (False, "others", _OTHER)):
        group = [variant for variant in variants if bool(variant["front"]) is front]
        if not group:
            continue
        accuracy = [f"{variant['sqnr_db']:.1f} dB" if variant["sqnr_db"] is not None else "accuracy not known" for variant in group]
        traces.append(
            {
                "type": "scatter",
                "x": [variant["milliseconds"] for variant in group],
                "y": [variant["ram_bytes"] / 1024 for variant in group],
                "text": [name_of(variant) for variant in group],
                "customdata": [[variant["flash_bytes"] / 1024, dB] for variant, dB in zip(group, accuracy, strict=True)],
                "hovertemplate": "%{text}<br>%{x:.3f} ms, %{y:.1f} KiB RAM, %{customdata[0]:.1f} KiB flash, %{customdata[1]}"
                "<extra></extra>",
                "mode": "markers+text" if len(variants) <= _NAMED else "markers",
                "textposition": "top center",
                "name": name,
                "marker": {"color": colour, "size": [10 + 18 * variant["flash_bytes"] / most for variant in group]},
            }
        )
    highest = 1.25 * max(variant["milliseconds"] for variant in variants)  # room for names
    layout = {
        "height": 460,
        "margin": {"l": 60, "r": 16, "t": 32, "b": 48},
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#1f2937"},
        "showlegend": len(traces) > 1,
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0},
        "xaxis": {**_axis("milliseconds by the estimate"), "range": [0, highest]},
        "yaxis": _axis("RAM of the whole application, KiB"),
    }
    return {"data": traces, "layout": layout}


def _axis(title: str) -> dict[str, Any]:
    return {"title": {"text": title}, "gridcolor": "#e5e7eb", "rangemode": "tozero", "automargin": True}
