"""The ``ethorch`` command: parse, call the library, print.

Nothing heavy is imported before a subcommand runs, so ``--help``, ``targets`` and ``dis`` answer at once. Every
subcommand returns what it found as plain data and as text; ``--json`` prints the former.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ethorch.errors import EthorchError

if TYPE_CHECKING:
    from torch.nn import Module

    from ethorch.flow import Build
    from ethorch.model_files import UserModel
    from ethorch.target.compile_spec import EthosUCompileSpec


@dataclass(frozen=True)
class Answer:
    """What a subcommand found: plain data for ``--json``, text for a reader, and the exit status."""

    data: Any
    text: str
    status: int = 0


@dataclass(frozen=True)
class Subcommand:
    """A row of the command line."""

    name: str
    help: str
    arguments: tuple[Callable[[argparse.ArgumentParser], None], ...]
    run: Callable[[argparse.Namespace], Answer]


SUBCOMMANDS: dict[str, Subcommand] = {}


def argument(*names: str, **options: Any) -> Callable[[argparse.ArgumentParser], None]:
    """One argument, to be added to a parser."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(*names, **options)

    return add


def subcommand(
    name: str, help: str, *arguments: Callable[[argparse.ArgumentParser], None]
) -> Callable[[Callable[[argparse.Namespace], Answer]], Callable[[argparse.Namespace], Answer]]:
    """Decorator: the function is the subcommand ``name``."""

    def register(run: Callable[[argparse.Namespace], Answer]) -> Callable[[argparse.Namespace], Answer]:
        SUBCOMMANDS[name] = Subcommand(name, help, arguments, run)
        return run

    return register


MODEL = argument(
    "model",
    metavar="FILE.py:NAME|FILE.pt2",
    help="NAME() returns (module, inputs[, calibration]), or NAME is a module whose file has example_inputs; inputs: tuple or dict",
)
TARGET = argument("--target", default="ethos-u55-128", help="see `ethorch targets`; default: %(default)s")
CHOICES = (
    argument("--system-config", help="a section of vela.ini; default: the target's"),
    argument("--memory-mode", help="a section of vela.ini; default: the target's"),
    argument("--config-ini", help="your own vela.ini"),
    argument("--vela-flag", action="append", default=[], metavar="FLAG", help="a flag of Vela's; may be repeated"),
    argument("--nhwc-io", action="store_true", help="inputs and outputs of the program in NHWC, without transposes on the NPU"),
)


def _spec(options: argparse.Namespace) -> EthosUCompileSpec:
    from ethorch.target.compile_spec import EthosUCompileSpec

    spec = EthosUCompileSpec(
        options.target,
        system_config=options.system_config,
        memory_mode=options.memory_mode,
        config_ini=options.config_ini,
        extra_flags=options.vela_flag or None,
    )
    for flag, why in spec.flags_without_effect.items():
        print(f"ethorch {options.command}: the flag {flag} has no effect: {why}", file=sys.stderr)
    return spec


def columns(rows: Sequence[Sequence[object]], indent: str = "") -> str:
    """Rows as aligned columns."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in texts)
    return "\n".join(indent + line for line in lines)


# from a model --------------------------------------------------------------------------------------------------------


def _build(options: argparse.Namespace, dump: str | None = None) -> tuple[UserModel, Module, Build]:
    """(the user's model, quantized, the finished program)"""
    from ethorch.user_code import find

    spec = _spec(options)
    find(options.model)  # what is wrong with either is said before the seconds that the imports below take
    from ethorch import flow, model_files

    if dump is not None:
        spec.dump_intermediate_artifacts_to(dump)
    model = model_files.load_model(options.model)
    if options.nhwc_io:
        model = flow.with_nhwc_io(model)
    quantized = flow.quantize(model, spec)
    return model, quantized, flow.build(quantized, model.example_inputs, spec)


def _check_output(path: str) -> None:
    """EthorchError, before anything is computed, when a file cannot be written there."""
    folder = Path(path).absolute().parent
    if not os.access(folder, os.W_OK) or Path(path).is_dir():
        raise EthorchError(f"cannot write {path}: {folder} is not a directory one may write to.")


@subcommand(
    "compile",
    "make a .pte from a PyTorch model",
    MODEL,
    TARGET,
    *CHOICES,
    argument("-o", "--output", required=True, help="the .pte to write"),
    argument("--dump", metavar="DIRECTORY", help="keep TOSA graphs and payloads there"),
)
def compile_(options: argparse.Namespace) -> Answer:
    _check_output(options.output)
    made = _build(options, options.dump)[-1]
    from ethorch.formats.files import write_whole
    from ethorch.report import build as report

    write_whole(options.output, made.pte)
    text = f"{report.to_text(made)}\nwrote {options.output}, {len(made.pte):,} bytes"
    return Answer({"output": options.output, **report.to_json(made)}, text)


@subcommand("explain", "why is an operator on the NPU, or not?", MODEL, TARGET, *CHOICES)
def explain(options: argparse.Namespace) -> Answer:
    made = _build(options)[-1]
    from ethorch.report import build as report

    return Answer(report.to_json(made), report.to_text(made))


@subcommand(
    "compare",
    "is the result right? float, quantized, TOSA reference and NPU on one input",
    MODEL,
    TARGET,
    *CHOICES,
    argument("--inputs", nargs="+", metavar="FILE", help=".npy files, or one .npz or .pt; default: the model's own"),
)
def compare(options: argparse.Namespace) -> Answer:
    model, quantized, made = _build(options)
    from ethorch.model_files import load_inputs
    from ethorch.report.compare import compare as ladder

    inputs = load_inputs(options.inputs) if options.inputs else model.example_inputs
    found = ladder(model.module, quantized, made, inputs)
    return Answer(found.to_json(), found.to_text(), 0 if found.bit_exact else 1)


# from a file ---------------------------------------------------------------------------------------------------------

PTE = argument("program", metavar="FILE.pte")
METHOD = argument("--method", default="forward", help="entry point; default: %(default)s")
DUMP = argument("--dump", metavar="DIRECTORY", help="written by `compile --dump`: names each command's operator")


@subcommand(
    "run",
    "run a .pte here: ExecuTorch's runtime, the NPU simulated bit for bit",
    PTE,
    METHOD,
    DUMP,
    argument("--inputs", nargs="+", metavar="FILE", help=".npy files, or one .npz or .pt; default: random"),
    argument("--seed", type=int, default=0, help="of random inputs; default: %(default)s"),
    argument("-o", "--output", metavar="FILE.npz", help="write the outputs there"),
)
def run(options: argparse.Namespace) -> Answer:
    if options.output:
        _check_output(options.output)
    from ethorch import host, model_files

    device = host.load(options.program, options.method, sources=options.dump)
    inputs = (
        model_files.load_inputs(options.inputs) if options.inputs else model_files.random_inputs(device.description, options.seed)
    )
    started = time.perf_counter()
    outputs = device(*inputs)
    seconds = time.perf_counter() - started
    if options.output:
        model_files.save_outputs(options.output, outputs)
    found = [model_files.describe(x) for x in outputs]
    rows = [(f"output {number}", x["dtype"], x["shape"], x["text"]) for number, x in enumerate(found)]
    text = f"{columns(rows)}\nsimulated in {seconds:.3f} s"
    if not options.inputs:
        text += f", on random inputs (seed {options.seed}); --inputs takes files"
    return Answer({"outputs": found, "seconds": seconds, "random_inputs": not options.inputs}, text)


@subcommand(
    "dis",
    "the NPU commands in a .pte, readable",
    PTE,
    METHOD,
    DUMP,
)
def dis(options: argparse.Namespace) -> Answer:
    from ethorch.formats import pte
    from ethorch.formats.payload import DelegatePayload
    from ethorch.npu import Program, disassembly
    from ethorch.vela import artifacts

    methods = pte.read(_read(options.program)).methods
    if options.method not in methods:
        raise EthorchError(f"{options.program} has no method {options.method!r}; it has {', '.join(sorted(methods))}.")
    delegates = [delegate for delegate in methods[options.method].delegates if delegate.id == "EthosUBackend"]
    payloads = [DelegatePayload.unpack(delegate.blob) for delegate in delegates]
    if not payloads:
        raise EthorchError(f"method {options.method!r} of {options.program} has no Ethos-U delegate.")
    streams = [Program(payload.commands, payload.weights) for payload in payloads]
    sources = [
        artifacts.sources(options.dump, payload, delegate.compile_specs) if options.dump else None
        for payload, delegate in zip(payloads, delegates, strict=True)
    ]
    return Answer(
        [
            {"target": one.config.name, "operations": disassembly.rows(one, known)}
            for one, known in zip(streams, sources, strict=True)
        ],
        "\n".join(disassembly.text(one, known) for one, known in zip(streams, sources, strict=True)).rstrip(),
    )


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise EthorchError(f"cannot read {path}: {error.strerror}.") from None


# tables --------------------------------------------------------------------------------------------------------------


@subcommand(
    "ops",
    "the operators ethorch knows",
    argument("pattern", nargs="?", default="*", help="part of a name, or with wildcards; default: all"),
)
def ops(options: argparse.Namespace) -> Answer:
    from ethorch.report import listings

    found = listings.operators(options.pattern)
    if not found:
        raise EthorchError(f"no operator is called {options.pattern!r}; `ethorch ops` lists all.")
    return Answer(found, listings.operators_text(found))


@subcommand(
    "targets",
    "the NPUs ethorch knows",
    argument("--diff", nargs=2, metavar=("A", "B"), help="what differs between two targets"),
)
def targets(options: argparse.Namespace) -> Answer:
    from ethorch.report import listings

    if options.diff:
        differences = listings.target_differences(*options.diff)
        rows = [("", *options.diff), *((name, *values) for name, values in differences.items())]
        return Answer(differences, columns(rows))
    found = listings.targets()
    return Answer(found, columns([tuple(found[0]), *(tuple(row.values()) for row in found)]))


def parser() -> argparse.ArgumentParser:
    """The command line, from SUBCOMMANDS."""
    top = argparse.ArgumentParser(
        prog="ethorch", description="Compile PyTorch models for Arm Ethos-U NPUs, and run them in the simulator."
    )
    top.add_argument("--version", action="store_true", help="print versions and exit")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    for command in SUBCOMMANDS.values():
        sub = commands.add_parser(command.name, help=command.help, description=command.help)
        for add in command.arguments:
            add(sub)
        sub.add_argument("--json", action="store_true", help="print plain data as JSON")
        sub.add_argument("--traceback", action="store_true", help="where an error comes from, frame by frame")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 done; 1 it could not be done, the reason is on stderr; 2 wrong usage; 130 interrupted."""
    top = parser()
    options = top.parse_args(_joined(sys.argv[1:] if arguments is None else arguments))
    if options.version:
        print("\n".join(f"{name} {found}" for name, found in _versions()))
        return 0
    if options.command is None:
        top.print_help()
        return 2
    try:
        with _messages():
            answer = SUBCOMMANDS[options.command].run(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        _complain(options, error)
        return 1
    try:
        print(json.dumps(answer.data, indent=2) if options.json else answer.text, flush=True)
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return answer.status


def _joined(arguments: Sequence[str]) -> list[str]:
    """The arguments, with ``--vela-flag --optimise=Size`` as ``--vela-flag=--optimise=Size``: argparse takes no value like that."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] == "--vela-flag":
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def _complain(options: argparse.Namespace, error: Exception) -> None:
    """One sentence on stderr; frames of the stack only for ``--traceback``."""
    said = str(error)
    if not isinstance(error, (EthorchError, OSError)):
        from ethorch.user_code import first_sentence

        said = f"{first_sentence(error)} This is a bug of ethorch; please report it with what --traceback shows."
    elif error.__cause__ is not None and not options.traceback:
        said += " (--traceback shows where.)"
    if options.traceback:
        traceback.print_exception(error)
    print(f"ethorch {options.command}: {said}", file=sys.stderr)


@contextmanager
def _messages() -> Iterator[None]:
    """What is said on stderr meanwhile: ethorch's messages, summaries included, and of torch and torchao errors alone."""
    package = logging.getLogger("ethorch")
    levels = {package: logging.INFO}
    levels |= {logging.getLogger(name): logging.ERROR for name in ("torchao", "torch.utils._pytree", "torch.export")}
    before = {logger: logger.level for logger in levels}
    handler = logging.StreamHandler(sys.stderr)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        for logger, level in levels.items():
            logger.setLevel(level)
        package.addHandler(handler)
        try:
            yield
        finally:
            package.removeHandler(handler)
            for logger, level in before.items():
                logger.setLevel(level)


def _versions() -> list[tuple[str, str]]:
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for name in ("ethorch", "torch", "executorch", "ethos-u-vela", "tosa-tools"):
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            found.append((name, "is not installed"))
    return found


if __name__ == "__main__":
    sys.exit(main())
