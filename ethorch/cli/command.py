"""The Typer application, and the decorator ``command``, which registers subcommands.

Exit statuses: 0 success; 1 failure (reason on stderr); 2 wrong usage, e.g. an unknown name; 3 negative result, e.g. an
exceeded budget; 130 interrupted.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_args, get_type_hints

import typer

from ethorch.cli.answers import Answer, Status, give
from ethorch.support.errors import EthorchError, SpecError
from ethorch.support.progress import Silence, listening
from ethorch.support.quiet import quiet

app = typer.Typer(
    name="ethorch",
    help="Compile PyTorch models for Arm Ethos-U NPUs, and run the programs in a bit-exact simulator.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 success, 1 failure, 2 wrong usage, 3 negative result, 130 interrupted. All subcommands accept --json.",
)

#: Common parameters with flags and help. A flag that a subcommand defines itself is omitted.
_COMMON = (
    ("as_json", ("--json",), "Print the result as JSON."),
    ("verbose", ("--verbose", "-v"), "Print details on stderr."),
    ("quietly", ("--quiet", "-q"), "Print only errors on stderr, and no progress."),
    ("with_traceback", ("--traceback",), "Print the Python traceback of an error."),
)

Function = Callable[..., Answer]
#: Every subcommand by name.
COMMANDS: dict[str, Function] = {}


def option(*names: str, help: str, **more: Any) -> Any:
    """Return a Typer option. Brackets in the help are escaped for Rich."""
    return typer.Option(*names, help=help.replace("[", "\\["), show_default=False, **more)


def command(name: str, panel: str, alias: str | None = None) -> Callable[[Function], Function]:
    """Register a function as the subcommand ``name``.

    The function's docstring becomes the help, and each parameter becomes an argument or option. Each field of a dataclass
    parameter becomes an option. ``alias`` is a second, hidden name.
    """

    def register(function: Function) -> Function:
        @functools.wraps(function)
        def run(*, as_json: bool, verbose: bool, quietly: bool, with_traceback: bool, **arguments: Any) -> None:
            call = functools.partial(function, **_combine_fields(function, arguments))
            raise typer.Exit(_run(name, call, as_json, verbose, quietly, with_traceback))

        signature = parameters(function)
        used_flags = {
            flag for p in signature for option in get_args(p.annotation)[1:] for flag in getattr(option, "param_decls", None) or ()
        }
        common = [
            inspect.Parameter(
                key, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_flag(*names, used_flags=used_flags, help=text)
            )
            for key, names, text in _COMMON
        ]
        run.__signature__ = inspect.Signature([*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in signature), *common])  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in (*signature, *common)}
        app.command(name, rich_help_panel=panel)(run)
        if alias is not None:
            app.command(alias, hidden=True)(run)
        COMMANDS[name] = function
        return function

    return register


def parameters(function: Function) -> list[inspect.Parameter]:
    """Return the parameters of a subcommand, with dataclass parameters replaced by their fields."""
    expanded = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        kind = parameter.annotation
        if not is_dataclass(kind):
            expanded.append(parameter)
            continue
        hints = get_type_hints(kind, include_extras=True)
        expanded += [
            parameter.replace(name=field.name, annotation=hints[field.name], default=field.default) for field in fields(kind)
        ]
    return expanded


def _combine_fields(function: Function, arguments: Mapping[str, Any]) -> dict[str, Any]:
    combined = dict(arguments)
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        kind = parameter.annotation
        if is_dataclass(kind) and isinstance(kind, type):
            combined[parameter.name] = kind(**{field.name: combined.pop(field.name) for field in fields(kind)})
    return combined


def _flag(*names: str, used_flags: set[str], help: str) -> Any:
    return Annotated[bool, typer.Option(*(name for name in names if name not in used_flags), help=help)]


def _run(name: str, function: Callable[[], Answer], as_json: bool, verbose: bool, quietly: bool, with_traceback: bool) -> Status:
    try:
        with messages(logging.DEBUG if verbose else logging.ERROR if quietly else logging.WARNING), _progress(quietly):
            answer = function()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return Status.INTERRUPTED
    except Exception as error:
        if with_traceback:
            traceback.print_exception(error)
            _print_graph(error)
        message = sentence(error, with_traceback)
        print(f"ethorch {name}: {message}", file=sys.stderr)
        if as_json:
            print(
                json.dumps(
                    {"error": {"type": type(error).__name__, "id": getattr(error, "id", None), "message": message}}, indent=2
                )
            )
        return Status.USAGE if isinstance(error, SpecError) else Status.FAILED
    give(answer, as_json)
    return answer.status


def _print_graph(error: BaseException) -> None:
    seen: BaseException | None = error
    while seen is not None:
        if (graph := getattr(seen, "partial_fx_graph", None)) is not None:
            print(f"The graph before torch.export failed:\n{graph}", file=sys.stderr)
            return
        seen = seen.__cause__


def sentence(error: Exception, with_traceback: bool = False) -> str:
    """Return the message to print for an error."""
    _, of_torch, detail = str(error).partition("can't allocate memory")  # of a RuntimeError
    if isinstance(error, MemoryError) or of_torch:
        detail = (detail or str(error)).strip(": ").partition(". ")[0]
        return f"not enough memory ({detail or 'unknown size'}). Use smaller inputs, or a computer with more memory."
    if not isinstance(error, (EthorchError, OSError)):
        from ethorch.models.user_code import first_sentence

        return f"{first_sentence(error)} This is a bug in ethorch. Please report the output of --traceback."
    message = str(error)
    if error.__cause__ is not None and not with_traceback:
        message += " (Use --traceback for details.)"
    return message


@contextmanager
def _progress(quietly: bool) -> Iterator[None]:
    if quietly:
        with listening(Silence()):
            yield
        return
    if not sys.stderr.isatty():
        yield
        return
    from ethorch.support.progress_display import display_progress

    with display_progress(True):
        yield


@contextmanager
def messages(level: int) -> Iterator[None]:
    """Print each distinct ethorch log message of at least ``level`` on stderr, and silence other libraries."""
    package = logging.getLogger("ethorch")
    before = package.level, package.propagate
    handler = logging.StreamHandler(sys.stderr)
    printed: set[str] = set()

    def first_time(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        new = text not in printed
        printed.add(text)
        return new

    handler.addFilter(first_time)
    package.setLevel(level)
    package.propagate = False
    package.addHandler(handler)
    try:
        with quiet():
            yield
    finally:
        package.removeHandler(handler)
        package.level, package.propagate = before


def _versions(enabled: bool) -> None:
    if enabled:
        from ethorch.support.versions import versions

        print("\n".join(f"{name} {version}" for name, version in versions().items()))
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[bool, typer.Option("--version", callback=_versions, is_eager=True, help="Print versions and exit.")] = False,
) -> None:
    pass
