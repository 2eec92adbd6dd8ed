"""Render the data of a program as one HTML file without network access."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from ethorch.figures.layer import Layer
from ethorch.figures.memory_report import MemoryReport
from ethorch.report.page import view
from ethorch.report.page.charts import charts
from ethorch.report.page.svg import Chart, draw
from ethorch.report.reproduce import MODEL
from ethorch.support.errors import FormatError
from ethorch.support.wording import count_noun

if TYPE_CHECKING:
    import jinja2

Data = Mapping[str, Any]


def page(data: Data, comparison: Data | None = None, title: str = "", model: Sequence[str] = (MODEL,)) -> str:
    """Return the report of a program.

    The page depends on the arguments only. Text of the program is escaped, and the page forbids the browser to load anything or to
    run other scripts.

    Args:
        data: Data of ``Program.to_json``.
        comparison: Data of ``Comparison.to_json``, with the accuracy of each operator.
        title: Name of the program, to which the page adds the target. Defaults to the model's name.
        model: Arguments that name the model and its samples, for the line that reproduces the program.

    Raises:
        FormatError: ``data`` has an unexpected format.
    """
    try:
        layers = [Layer.from_json(layer) for layer in data["layers"]]
        memory = MemoryReport.from_json(data["memory"])
        if memory.layer_count != len(layers):
            raise FormatError(
                f"not the data of a program: its memory counts {memory.layer_count} layers, and {len(layers)} are there."
            )
        system = data.get("memory_system")
        if system is not None and not all(rate > 0 for rate in (system["macs_per_cycle"], *system["bytes_per_cycle"].values())):
            raise FormatError("not the data of a program: a rate of its memory_system is not positive.")
        variables = view.view(data, layers, memory, comparison, model)
        drawn = charts(data, layers, memory, comparison)
        name, target = title or data.get("model"), data["target"] or "no NPU"
        return render("page.html", drawn, title=f"{name} on {target}" if name else target, **variables)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise FormatError(f"not the data of a program: {type(error).__name__}: {error}.") from error


def render(name: str, charts_by_name: Mapping[str, Chart], **values: Any) -> str:
    """Render a template of this package with its charts.

    Args:
        name: Template, which extends ``base.html``.
        charts_by_name: Charts of the page.
        values: Variables; all are escaped.
    """
    from markupsafe import Markup  # of Jinja, which only pages need

    script = _text("page.js")
    return _template(name).render(
        charts={chart_name: Markup(draw(chart)) for chart_name, chart in charts_by_name.items()},
        style=_text("page.css"),
        script=script,
        script_hash=_hash(script),
        **values,
    )


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _with_options(text: str) -> Any:
    """Return escaped text with command line options as code that does not break after dashes."""
    from markupsafe import Markup, escape  # of Jinja, which only pages need

    return Markup(re.sub(r"(?<![\w-])(--[a-z][a-z-]*)", r"<code>\1</code>", str(escape(text))))


@cache
def _template(name: str) -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.globals["counted"] = count_noun
    environment.filters["with_options"] = _with_options
    return environment.get_template(name)
