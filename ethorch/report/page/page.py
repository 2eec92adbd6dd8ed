"""``page``: the plain data of a program -> one HTML file that needs no network."""

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
from ethorch.support.wording import counted

if TYPE_CHECKING:
    import jinja2

Data = Mapping[str, Any]


def page(data: Data, comparison: Data | None = None, title: str = "", model: Sequence[str] = (MODEL,)) -> str:
    """The report of a program.

    It is a function of its arguments alone: no clock, no path, no network. Text of the program is escaped, and the page forbids the
    browser to load anything or to run any script but its own two.

    Args:
        data: of ``Program.to_json``, now or from a file.
        comparison: of ``Comparison.to_json``: accuracy for each operator.
        title: a name for the program; its target stands for it otherwise.
        model: what names the model and its samples on a command line, for the line that makes the program again.

    Raises:
        FormatError: the data is something else.
        EthorchError: the plotting library is not installed.
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
        shown = view.view(data, layers, memory, comparison, model)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"not the data of a program: {type(error).__name__}: {error}.") from error
    check_page()
    drawn = charts(data, layers, memory, comparison)
    return rendered("page.html", drawn, title=title or data["target"] or "program without an NPU", **shown)


def rendered(name: str, figures: Mapping[str, Any], **values: Any) -> str:
    """A page of this package's templates, with its charts.

    Args:
        name: of the template; it extends ``base.html``.
        figures: name of a chart -> Plotly's figure as plain data.
        values: what the template shows; all of it is escaped.
    """
    library, own = _library(), _text("page.js")
    return _template(name).render(
        chart_names=list(figures),
        charts=_packed(json.dumps(figures, separators=(",", ":"))),
        library=_packed(library),
        style=_text("page.css"),
        script=own,
        hashes=[_hash(own), _hash(library)],
        **values,
    )


def check_page() -> None:
    """Check, before anything is computed, that the package with plotly.js is installed.

    Raises:
        EthorchError: It is not.
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
    """Return the source of plotly.js. Line ends are those that a browser reads, since the hash is of what it reads."""
    return _library_file().read_text(encoding="utf-8").replace("\r\n", "\n")


@lru_cache(maxsize=2)
def _packed(text: str) -> str:
    """gzip in base64, which the browser unpacks: 4.6 MB of library are 2, and no text can end the element it stands in.

    Level 9 makes 4 % less of it, and takes 0.1 s longer.
    """
    return base64.b64encode(gzip.compress(text.encode(), 4, mtime=0)).decode()


def _hash(script: str) -> str:
    """As a Content-Security-Policy names a script that it allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _with_options(text: str) -> Any:
    """Escaped text whose options of a command line are code, which does not break behind the dashes."""
    from markupsafe import Markup, escape  # of Jinja, which only pages need

    return Markup(re.sub(r"(?<![\w-])(--[a-z][a-z-]*)", r"<code>\1</code>", str(escape(text))))


@cache
def _template(name: str) -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.globals["counted"] = counted
    environment.filters["with_options"] = _with_options
    return environment.get_template(name)
