"""``exploration_page``: the plain data of an exploration -> one HTML file that needs no network: a table and a plot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ethorch.report.page.page import check_page, rendered
from ethorch.support.errors import FormatError

Data = Mapping[str, Any]
_SETTINGS, _FRONT, _OTHER = "settings", "#0072B2", "#9CA3AF"
_NAMED = 6  # points up to which each has its name beside it; with more, names lie over each other


def exploration_page(data: Data, title: str = "") -> str:
    """The page of ``Exploration.to_json``.

    Raises:
        FormatError: the data is something else.
        EthorchError: the plotting library is not installed.
    """
    check_page()
    try:
        variants = list(data["variants"])
        axes = list(dict.fromkeys(axis for one in variants for axis in one[_SETTINGS]))
        made = [one for one in variants if not one["error"] and one["milliseconds"] is not None]
        charts = {"front": _plot(made)} if made else {}
        cheapest = None if data["cheapest"] is None else name_of(data["cheapest"])
        rows = [(one, [one[_SETTINGS].get(axis) for axis in axes]) for one in variants]
        budgets = dict(data["budgets"])
        return rendered(
            "exploration.html",
            charts,
            title=title or "Exploration",
            axes=axes,
            rows=rows,
            budgets=budgets,
            limited=any(one["fits"] is not None for one in variants),
            cheapest=cheapest,
            interrupted=data["interrupted"],
            versions=sorted(data["versions"].items()),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"not the data of an exploration: {type(error).__name__}: {error}.") from error


def name_of(variant: Data) -> str:
    """What is varied, in a word or two."""
    return " ".join(str(value) for value in variant[_SETTINGS].values() if value is not None) or "as it is"


def _plot(variants: list[Data]) -> dict[str, Any]:
    """Time against RAM; the size of a point is the flash, its text what it is."""
    most = max(one["flash_bytes"] for one in variants) or 1
    traces = []
    for front, name, colour in ((True, "Pareto front", _FRONT), (False, "others", _OTHER)):
        group = [one for one in variants if bool(one["front"]) is front]
        if not group:
            continue
        accuracy = [f"{one['sqnr_db']:.1f} dB" if one["sqnr_db"] is not None else "accuracy not known" for one in group]
        traces.append(
            {
                "type": "scatter",
                "x": [one["milliseconds"] for one in group],
                "y": [one["ram_bytes"] / 1024 for one in group],
                "text": [name_of(one) for one in group],
                "customdata": [[one["flash_bytes"] / 1024, dB] for one, dB in zip(group, accuracy, strict=True)],
                "hovertemplate": "%{text}<br>%{x:.3f} ms, %{y:.1f} KiB RAM, %{customdata[0]:.1f} KiB flash, %{customdata[1]}"
                "<extra></extra>",
                "mode": "markers+text" if len(variants) <= _NAMED else "markers",
                "textposition": "top center",
                "name": name,
                "marker": {"color": colour, "size": [10 + 18 * one["flash_bytes"] / most for one in group]},
            }
        )
    highest = 1.25 * max(one["milliseconds"] for one in variants)  # room for names
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
