"""The Typer application and ``command``, the decorator of subcommands: what all of them take, messages and exit statuses.

Exit status: 0 done; 1 failed, the reason is on stderr; 2 wrong usage, unknown names included; 3 done, and the answer is no, such as
a budget that does not hold; 130 interrupted.
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
    help="Compile PyTorch models for Arm Ethos-U NPUs, and run them bit for bit in the simulator.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 done, 1 failed, 2 wrong usage, 3 the answer is no, 130 interrupted. Every subcommand takes --json.",
)

#: What every subcommand takes: parameter, flags, help. A flag that the subcommand has for something else is left out.
_COMMON = (
    ("as_json", ("--json",), "Print plain data as JSON."),
    ("verbose", ("--verbose", "-v"), "Say more on stderr."),
    ("quietly", ("--quiet", "-q"), "Say nothing on stderr but errors; no progress."),
    ("with_traceback", ("--traceback",), "Where an error comes from, frame by frame."),
)

Function = Callable[..., Answer]
#: Every subcommand by name.
COMMANDS: dict[str, Function] = {}


def option(*names: str, help: str, **more: Any) -> Any:
    """Return a Typer option; the help may have defaults in brackets, which Rich would take for markup."""
    return typer.Option(*names, help=help.replace("[", "\\["), show_default=False, **more)


def command(name: str, panel: str, alias: str | None = None) -> Callable[[Function], Function]:
    """Decorator: the function is the subcommand ``name``; its docstring is the help, its parameters are the arguments.

    A parameter that is a dataclass stands for its fields, each an option of its own. ``alias`` is a second name, not listed.
    """

    def register(function: Function) -> Function:
        @functools.wraps(function)
        def run(*, as_json: bool, verbose: bool, quietly: bool, with_traceback: bool, **arguments: Any) -> None:
            given = functools.partial(function, **_bundled(function, arguments))
            raise typer.Exit(_answered(name, given, as_json, verbose, quietly, with_traceback))

        own = parameters(function)
        taken = {flag for p in own for option in get_args(p.annotation)[1:] for flag in getattr(option, "param_decls", None) or ()}
        common = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_flag(*names, taken=taken, help=text))
            for key, names, text in _COMMON
        ]
        run.__signature__ = inspect.Signature([*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *common])  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in (*own, *common)}
        app.command(name, rich_help_panel=panel)(run)
        if alias is not None:
            app.command(alias, hidden=True)(run)
        COMMANDS[name] = function
        return function

    return register


def parameters(function: Function) -> list[inspect.Parameter]:
    """Return the parameters of a subcommand; a parameter that is a dataclass is replaced by its fields."""
    found = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        kind = parameter.annotation
        if not is_dataclass(kind):
            found.append(parameter)
            continue
        hints = get_type_hints(kind, include_extras=True)
        found += [parameter.replace(name=one.name, annotation=hints[one.name], default=one.default) for one in fields(kind)]
    return found


def _bundled(function: Function, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as the function takes them: those that are fields of a dataclass together."""
    found = dict(arguments)
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        kind = parameter.annotation
        if is_dataclass(kind) and isinstance(kind, type):
            found[parameter.name] = kind(**{one.name: found.pop(one.name) for one in fields(kind)})
    return found


def _flag(*names: str, taken: set[str], help: str) -> Any:
    return Annotated[bool, typer.Option(*(name for name in names if name not in taken), help=help)]


def _answered(
    name: str, function: Callable[[], Answer], as_json: bool, verbose: bool, quietly: bool, with_traceback: bool
) -> Status:
    """Run a subcommand and print its answer or its error."""
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
        said = sentence(error, with_traceback)
        print(f"ethorch {name}: {said}", file=sys.stderr)
        if as_json:
            print(
                json.dumps({"error": {"type": type(error).__name__, "id": getattr(error, "id", None), "message": said}}, indent=2)
            )
        return Status.USAGE if isinstance(error, SpecError) else Status.FAILED
    give(answer, as_json)
    return answer.status


def _print_graph(error: BaseException) -> None:
    """The graph of the model as far as torch.export came, on stderr, where an error or one of its causes holds it."""
    seen: BaseException | None = error
    while seen is not None:
        if (graph := getattr(seen, "partial_fx_graph", None)) is not None:
            print(f"The graph as far as torch.export came:\n{graph}", file=sys.stderr)
            return
        seen = seen.__cause__


def sentence(error: Exception, with_traceback: bool = False) -> str:
    """Return the message for an error, in one or two sentences."""
    if not isinstance(error, (EthorchError, OSError)):
        from ethorch.models.user_code import first_sentence

        return f"{first_sentence(error)} This is a bug of ethorch; please report it with what --traceback shows."
    said = str(error)
    if error.__cause__ is not None and not with_traceback:
        said += " (--traceback shows where.)"
    return said


@contextmanager
def _progress(quietly: bool) -> Iterator[None]:
    """Progress on stderr, if it is a terminal and nobody wants quiet."""
    if quietly:
        with listening(Silence()):
            yield
        return
    if not sys.stderr.isatty():
        yield
        return
    from ethorch.support.progress_display import shown

    with shown(True):
        yield


@contextmanager
def messages(level: int) -> Iterator[None]:
    """Inside, ethorch's messages of this level go to stderr, each line once; of other libraries errors alone."""
    package = logging.getLogger("ethorch")
    before = package.level, package.propagate
    handler = logging.StreamHandler(sys.stderr)
    said: set[str] = set()

    def first_time(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        new = text not in said
        said.add(text)
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


def _versions(wanted: bool) -> None:
    if wanted:
        from ethorch.support.versions import versions

        print("\n".join(f"{name} {found}" for name, found in versions().items()))
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[bool, typer.Option("--version", callback=_versions, is_eager=True, help="Print versions and exit.")] = False,
) -> None:
    pass
