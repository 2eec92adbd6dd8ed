"""Render an exploration as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ethorch.report.page.page import render
from ethorch.report.page.svg import Axis, Chart, Point
from ethorch.support.errors import FormatError

Data = Mapping[str, Any]
_SETTINGS, _FRONT, _OTHER = "settings", "#0072B2", "#9CA3AF"
_NAMED = 6  # maximum number of points with labels; more labels would overlap


def exploration_page(data: Data, title: str = "") -> str:
    """Return the HTML page for the result of ``Exploration.to_json``.

    Raises:
        FormatError: ``data`` has an unexpected format.
    """
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
        raise FormatError(
            f"expected the result of Exploration.to_json, got invalid data ({type(error).__name__}: {error})."
        ) from error


def name_of(variant: Data) -> str:
    """Return a variant's name. See ``Variant.name``."""
    return " ".join(str(value) for value in variant[_SETTINGS].values() if value is not None) or "unchanged"


def _plot(variants: list[Data]) -> Chart:
    most = max(variant["flash_bytes"] for variant in variants) or 1
    points = [
        Point(
            variant["milliseconds"],
            variant["ram_bytes"] / 1024,
            5 + 9 * variant["flash_bytes"] / most,
            _FRONT if variant["front"] else _OTHER,
            _describe(variant),
            name_of(variant) if len(variants) <= _NAMED else "",
        )
        for variant in variants
    ]
    x = Axis("estimated time in ms", 0, 1.25 * max(point.x for point in points) or 1)  # space for labels
    y = Axis("RAM in KiB", 0, 1.15 * max(point.y for point in points) or 1)
    return Chart(x, y, tuple(points), (("Pareto front", _FRONT), ("other variants", _OTHER)), 400)


def _describe(variant: Data) -> str:
    accuracy = "accuracy unknown" if variant["sqnr_db"] is None else f"{variant['sqnr_db']:.1f} dB"
    return (
        f"{name_of(variant)}\n{variant['milliseconds']:.3f} ms, {variant['ram_bytes'] / 1024:.1f} KiB RAM, "
        f"{variant['flash_bytes'] / 1024:.1f} KiB flash, {accuracy}"
    )
