"""Render the result of ``Program.to_json`` as one self-contained HTML file."""

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
    """Return the HTML report about a program.

    All text in ``data`` is escaped. A content security policy allows only the page's own scripts, and blocks network access.

    Args:
        data: Result of ``Program.to_json``.
        comparison: Result of ``Comparison.to_json``, with the accuracy of each operator.
        title: Name of the program in the page title, before the target. Default: the model's name.
        model: Arguments for the model and the calibration samples in the displayed ``ethorch`` command.

    Raises:
        FormatError: ``data`` has an unexpected format.
    """
    try:
        layers = [Layer.from_json(layer) for layer in data["layers"]]
        memory = MemoryReport.from_json(data["memory"])
        if memory.layer_count != len(layers):
            raise FormatError(
                f"expected the result of Program.to_json with {memory.layer_count} layers (memory.layer_count), got {len(layers)}."
            )
        system = data.get("memory_system")
        if system is not None and not all(rate > 0 for rate in (system["macs_per_cycle"], *system["bytes_per_cycle"].values())):
            raise FormatError(f"memory_system: expected positive rates, got {system!r:.200}.")
        variables = view.view(data, layers, memory, comparison, model)
        drawn = charts(data, layers, memory, comparison)
        name, target = title or data.get("model"), data["target"] or "no NPU"
        return render("page.html", drawn, title=f"{name} on {target}" if name else target, **variables)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise FormatError(f"expected the result of Program.to_json, got invalid data ({type(error).__name__}: {error}).") from error


def render(name: str, charts_by_name: Mapping[str, Chart], **values: Any) -> str:
    """Render a template of this package.

    Args:
        name: File name of a template that extends ``base.html``.
        values: Variables of the template. Their values are escaped.
    """
    from markupsafe import Markup  # imported here because only pages require Jinja

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
    # Command-line options are formatted as code, so that lines do not break after dashes.
    from markupsafe import Markup, escape  # imported here because only pages require Jinja

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
