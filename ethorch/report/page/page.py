"""Render the data of a program as one HTML file without network access."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ethorch.figures.layer import Layer
from ethorch.figures.memory_report import MemoryReport
from ethorch.report.page import view
from ethorch.report.page.charts import charts
from ethorch.report.reproduce import MODEL
from ethorch.support.errors import EthorchError, FormatError
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
        title: Name of the program; its target by default.
        model: Arguments that name the model and its samples, for the line that reproduces the program.

    Raises:
        FormatError: The data have another format.
        EthorchError: The plotting library is not installed.
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
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"not the data of a program: {type(error).__name__}: {error}.") from error
    check_page()
    figures = charts(data, layers, memory, comparison)
    return render("page.html", figures, title=title or data["target"] or "program without an NPU", **variables)


def render(name: str, figures: Mapping[str, Any], **values: Any) -> str:
    """Render a template of this package with its charts.

    Args:
        name: Template, which extends ``base.html``.
        figures: Plotly figures by name.
        values: Variables of the template; all are escaped.
    """
    library, script = _library(), _text("page.js")
    return _template(name).render(
        chart_names=list(figures),
        charts=_compress(json.dumps(figures, separators=(",", ":"))),
        library=_compress(library),
        style=_text("page.css"),
        script=script,
        hashes=[_hash(script), _hash(library)],
        **values,
    )


def check_page() -> None:
    """Check, before the computation, that the package with plotly.js is installed.

    Raises:
        EthorchError: It is missing.
    """
    _library_file()


def _library_file() -> Path:
    """Return the file of plotly.js in Plotly's Python package, which is not imported.

    Raises:
        EthorchError: The package is not installed, or has no such file.
    """
    package = find_spec("plotly")
    for folder in () if package is None else package.submodule_search_locations or ():
        if (file := Path(folder, "package_data", "plotly.min.js")).is_file():
            return file
    raise EthorchError(
        'the report needs the package plotly: pip install "ethorch[report]" (".[report]" in a checkout), or write a .md file.'
    )


@cache
def _library() -> str:
    """Return the source of plotly.js with the line ends that a browser reads, because the hash covers them."""
    return _library_file().read_text(encoding="utf-8").replace("\r\n", "\n")


@lru_cache(maxsize=2)
def _compress(text: str) -> str:
    """Return the text compressed with gzip in base64, which the browser unpacks: 2 MB instead of 4.6 MB.

    Level 9 saves 4 % more and takes 0.1 s longer.
    """
    return base64.b64encode(gzip.compress(text.encode(), 4, mtime=0)).decode()


def _hash(script: str) -> str:
    """Return the hash of a script for a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _with_options(text: str) -> Any:
    """Return escaped text with options of a command line as code, which does not break after the dashes."""
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
