"""A summary of a program in GitHub-flavored Markdown, for pull requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ethorch.figures.layer import Layer
from ethorch.lower.partition_report import group_refusals
from ethorch.report.advice import advice
from ethorch.report.reproduce import MODEL, command
from ethorch.report.summary import BUDGET_COLUMNS, budget_rows, head, rows
from ethorch.report.verdict import verdicts
from ethorch.support.errors import FormatError
from ethorch.support.wording import count_noun

Data = Mapping[str, Any]
_LARGEST = 10  # maximum number of layers in the table
_SPECIAL = re.compile(r"([\\`*_\[\]|~#$])")
_STATES = {"yes": "✅", "no": "❌", "unknown": "❔", "open": "➖"}


def text(value: object) -> str:
    """Format a value on one line, with Markdown and HTML escaped."""
    return escape(_SPECIAL.sub(r"\\\1", " ".join(str(value).split())), quote=False)


def table(heads: Sequence[str], body: Iterable[Sequence[object]], right: Sequence[int] = ()) -> list[str]:
    """Return the lines of a Markdown table.

    Args:
        body: Rows of cells, which are escaped.
        right: Indices of right-aligned columns.
    """
    lines = [f"| {' | '.join(map(text, heads))} |"]
    lines.append(f"| {' | '.join('---:' if number in right else '---' for number in range(len(heads)))} |")
    return lines + [f"| {' | '.join(map(text, row))} |" for row in body]


def markdown(data: Data, title: str = "", model: Sequence[str] = (MODEL,)) -> str:
    """Return Markdown with verdicts, figures, budgets, refusals, the largest layers, advice, and the compile command.

    Args:
        data: Result of ``Program.to_json``.
        title: Heading. Default: the target's name.
        model: Command-line arguments that name the model and the calibration samples.

    Raises:
        FormatError: ``data`` has an unexpected format.
    """
    try:
        return "\n".join(_lines(data, title, model))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"expected the result of Program.to_json, got invalid data ({type(error).__name__}: {error}).") from error


def _lines(data: Data, title: str, model: Sequence[str]) -> list[str]:
    layers = [Layer.from_json(layer) for layer in data["layers"]]
    lines = [f"## {text(title or data['target'] or 'program')}", "", text(head(data)), ""]
    lines += table(("", "", ""), ((v.question, _STATES[v.state], v.answer) for v in verdicts(data)))
    lines += ["", *table(("", "figure", ""), rows(data), right=(1,))]
    if data["budgets"]:
        lines += ["", *table(BUDGET_COLUMNS, budget_rows(data), right=(1, 2))]
    if refused := group_refusals((*data["cpu"], *data["without_kernel"])):
        lines += ["", "### On the CPU", ""]
        lines += table(
            ("count", "operator", "first module", "source", "reason", "remedy"),
            ((x["count"], x["operator"], x["module"], x["source"], f"{x['reason']} ({x['id']})", x["remedy"]) for x in refused),
            right=(0,),
        )
    largest = sorted((layer for layer in layers if layer.cycles), key=lambda layer: -(layer.cycles or 0))[:_LARGEST]
    if largest:
        lines += ["", f"<details><summary>The {len(largest)} largest of {count_noun(len(layers), 'layer')}</summary>", ""]
        lines += table(
            ("layer", "on", "operator", "module", "cycles", "share", "bound by"),
            (
                (
                    layer.index,
                    layer.where,
                    ", ".join(layer.operators) or layer.operator,
                    layer.module,
                    f"{layer.cycles:,}",
                    "" if layer.share is None else f"{layer.share:.1%}",
                    layer.bound,
                )
                for layer in largest
            ),
            right=(0, 4, 5),
        )
        lines += ["", "</details>"]
    if entries := advice(data):
        lines += ["", "<details><summary>Advice</summary>", ""]
        lines += [f"- **{text(entry.figure)}**: {text(entry.text)}" for entry in entries]
        lines += ["", "</details>"]
    if data["settings"] is not None:
        lines += ["", f"    {' '.join(command(data['settings'], model).split())}"]
    return lines
