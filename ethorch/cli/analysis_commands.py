"""Subcommands that analyze a program: evaluate, explain, compare, report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ethorch.cli import options, sources
from ethorch.cli.answers import Answer, Status, stack, write_output
from ethorch.cli.command import command, option
from ethorch.support.errors import SpecError

if TYPE_CHECKING:
    from ethorch.program.program import Program

PANEL = "A program"
#: Formats of ``report`` for each file suffix, longest suffix first.
FORMATS = {".trace.json": "trace", ".html": "html", ".htm": "html", ".md": "md", ".json": "json"}


@command("evaluate", PANEL)
def evaluate(
    program: options.Source,
    data: Annotated[
        list[Path],
        option("--data", "-d", help="Samples: a folder with one subfolder per class, or files; repeatable.", metavar="DIR|FILE"),
    ],
    choices: options.Choices,
    metric: Annotated[
        str | None,
        option(help="map, or a function that receives outputs and labels [top-1 and top-5].", metavar="map|FILE.py:NAME"),
    ] = None,
    mean: options.Mean = None,
    std: options.Std = None,
    max_samples: options.MaxSamples = None,
    batch: Annotated[int, option(help="Number of samples in one batch [32].", min=1)] = 32,
    jobs: Annotated[int | None, option(help="Number of worker processes [threads instead of processes].", min=1)] = None,
    method: options.Method = None,
) -> Answer:
    """Measure accuracy on a data set: of the simulated NPU and, if available, of the float and quantized models."""
    from ethorch.targets.settings import Settings

    flags = {"mean": options.numbers_of("--mean", mean), "std": options.numbers_of("--std", std), "max_samples": max_samples}
    chosen = Settings() if sources.is_program(program) else options.settings_of(choices)
    normalization = {name: value for name, value in chosen.samples.items() if name in ("mean", "std")}
    normalization |= {name: value for name, value in flags.items() if value is not None}
    samples = sources.read_samples(Settings(samples=normalization), data)
    function: Any = metric
    if metric not in (None, "map"):
        from ethorch.cli.search_commands import read_function

        function = read_function(str(metric))
    subject = sources.program_of(program, choices, method)
    from ethorch.program.evaluate import evaluate as run_data
    from ethorch.program.program import record_of

    if method is None and len(subject.methods) > 1 and record_of(subject).selection is None:
        raise SpecError(f"expected one method; {program} has {', '.join(subject.methods)}. Use --method NAME.")

    evaluation = run_data(subject, samples, metric=function, batch=batch, jobs=jobs)
    return Answer(evaluation.to_json(), evaluation.rich, Status.INTERRUPTED if evaluation.interrupted else Status.DONE)


@command("explain", PANEL)
def explain(
    program: options.Source,
    choices: options.Choices,
    operator: Annotated[str | None, option(help="List only operators whose name contains NAME.", metavar="NAME")] = None,
    cpu: Annotated[bool, option("--cpu", help="List only operators on the CPU.")] = False,
    memory: Annotated[
        bool, option("--memory", help="Print RAM and flash for each component, and the memory pools for ExecuTorch.")
    ] = False,
    suggest: Annotated[bool, option("--suggest", help="Compile modified models and print how much each change saves.")] = False,
    method: options.Method = None,
) -> Answer:
    """List the operators on the NPU and the CPU, with costs, reasons and remedies."""
    if suggest and sources.is_program(program):
        settings = Path(program) / "settings.toml"
        options_text = f" --settings {settings}" if settings.is_file() else ""
        raise SpecError(
            f"--suggest compiles modified versions of the model, but {program} does not contain the model. Pass the model, "
            f"e.g. `ethorch explain net.py:net --suggest{options_text}`."
        )
    subject = sources.program_of(program, choices, method)
    if memory:
        return _explain_memory(subject)
    if suggest:
        tried = subject.suggest()
        return Answer(tried.to_json(), tried.rich)
    from ethorch.program.program import record_of

    explanation = subject.explain(operator=operator, cpu_only=cpu)
    others = [name for name in subject.methods if name != record_of(subject).method] if method is None else []
    if not others:
        return Answer(explanation.to_json(), explanation.rich)
    note = f"Method: {record_of(subject).method}. Use --method to explain another method: {', '.join(others)}."
    return Answer(explanation.to_json(), lambda: stack(explanation.rich(), note))


def _explain_memory(program: Program) -> Answer:
    from ethorch.figures.pools import pools

    memory_pools = pools(program.pte)
    memory = program.memory
    data = {"memory": memory.to_json(), "pools": [pool.to_json() for pool in memory_pools]}
    return Answer(data, lambda: stack(memory.rich(), "", *map(str, memory_pools)))


@command("compare", PANEL)
def compare(
    program: options.Source, choices: options.Choices, inputs: options.Inputs = None, method: options.Method = None
) -> Answer:
    """Compare the float model, the quantized model and the NPU, operator by operator. Exit status 3: the NPU is not bit-exact."""
    subject = sources.program_of(program, choices, method)
    comparison = subject.compare(*_inputs(subject, inputs))
    return Answer(comparison.to_json(), comparison.to_text, Status.DONE if comparison.bit_exact else Status.NO)


def _inputs(program: Program, paths: Sequence[Path] | None) -> tuple[Any, ...]:
    if not paths:
        return ()
    from ethorch.cli.model_options import inputs_for, inputs_from
    from ethorch.program.program import record_of

    record = record_of(program)
    if record.model is None:
        return inputs_for(program, paths)
    return inputs_from(paths, record.model.example_inputs, record.open_dims, record.model.keywords)


@command("report", PANEL)
def report(
    program: Annotated[
        str,
        typer.Argument(metavar="PROGRAM|MODEL", help="A .pte, a saved folder, JSON printed by --json, or a model to compile."),
    ],
    choices: options.Choices,
    output: Annotated[
        Path | None,
        option(
            "--output", "-o", help="Report file: .html, .md, .json, .trace.json, or - for standard output [none].", metavar="FILE"
        ),
    ] = None,
    format: Annotated[str | None, option(help="Format [selected by the suffix of --output].", metavar="html|md|json|trace")] = None,
    inputs: options.Inputs = None,
    method: options.Method = None,
    profile: Annotated[
        list[Path] | None,
        option(
            help="Measurements: a board's log, or CSV with columns qread_bytes and samples, or milliseconds; repeatable.",
            metavar="FILE",
        ),
    ] = None,
    baseline: Annotated[str | None, option(help="Earlier build to compare the program with.", metavar="PROGRAM")] = None,
    fail_on_regression: Annotated[
        float | None,
        option(help="Exit with status 3 if a total is more than PERCENT worse than in --baseline.", min=0, metavar="PERCENT"),
    ] = None,
) -> Answer:
    """Write a report: verdict, layers, cycles, timeline, memory, roofline, accuracy, advice.

    --inputs compares each operator with the float model. --profile compares the estimates with measurements on a board.
    --baseline compares the program with an earlier build.
    """
    if profile:
        flags = {"--output": output, "--inputs": inputs, "--baseline": baseline}
        if unused := [flag for flag in flags if flags[flag]]:
            raise SpecError(f"--profile only prints its comparison (with --json, as JSON). Remove {' and '.join(unused)}.")
        from ethorch.program.measure.profile import import_profile
        from ethorch.program.program import record_of

        measurements = import_profile(record_of(sources.program_of(program, choices, method)), *profile)
        return Answer(measurements.to_json(), measurements.rich)
    if baseline is not None:
        if inputs:
            raise SpecError("--baseline compares two builds without running them. Remove --inputs.")
        if output is not None:
            _check_output(output)
            if (kind := _format(output, format)) not in ("md", "json"):
                raise SpecError(
                    f"--output: expected format md or json for a comparison of builds, got {kind}. Use the suffix .md or .json."
                )
        builds = [read_methods(source, choices, method) for source in (baseline, program)]
        return _compare_builds(builds[0], builds[1], output, format, fail_on_regression)
    if fail_on_regression is not None:
        raise SpecError("--fail-on-regression requires an earlier build. Use --baseline PROGRAM.")
    kind = _format(output, format)
    if output is not None:
        _check_output(output)
    data, comparison = read_data(program, choices, method), None
    if data is None:
        subject = sources.program_of(program, choices, method)
        _ = subject.accuracy  # measure accuracy now, so that to_json contains it
        data = subject.to_json()
        if inputs:
            comparison = subject.compare(*_inputs(subject, inputs)).to_json()
    elif inputs:
        raise SpecError(f"--inputs requires the float model, but {program} does not contain the model. Pass the model.")
    from ethorch.report.advice import advice
    from ethorch.report.verdict import verdicts

    advised = [entry.to_json() for entry in advice(data)]
    answer = {**data, "output": None if output is None else str(output), "advice": advised}
    raw = None if output is None else write_output(output, _contents(kind, data, comparison, program, answer))
    lines = [f"{verdict.question} {verdict.answer}" for verdict in verdicts(data)]
    return Answer(answer, lambda: "\n".join(lines if output is None else [*lines, f"Saved {output}"]), raw=raw)


def _format(output: Path | None, format: str | None) -> str:
    if format is not None:
        if format not in FORMATS.values():
            raise SpecError(f"--format: expected one of {', '.join(dict.fromkeys(FORMATS.values()))}, got {format!r}.")
        return format
    if output is None or str(output) == "-":
        return "md"
    for suffix, kind in FORMATS.items():
        if output.name.endswith(suffix):
            return kind
    raise SpecError(f"--output: expected one of the suffixes {', '.join(FORMATS)}, got {output}. Use --format for other suffixes.")


def _check_output(output: Path) -> None:
    from ethorch.program.saving import check_file

    if str(output) != "-":
        check_file(output)


def _contents(kind: str, data: Mapping[str, Any], comparison: Any, source: str, answer: Mapping[str, Any]) -> str:
    from ethorch.report.reproduce import MODEL

    title = Path(source).name
    named = [MODEL] if sources.is_program(source) or source.endswith(".json") else [title]
    if kind == "html":
        from ethorch.report.page import page

        return page(data, comparison, title, named)
    if kind == "md":
        from ethorch.report.markdown import markdown

        return markdown(data, title, named)
    if kind == "trace":
        from ethorch.figures import Layer, trace_events

        trace_layers = [Layer.from_json(layer) for layer in data["layers"]]
        return json.dumps(trace_events(trace_layers, data["core_clock_hz"], data["cpu_clock_hz"]))
    return json.dumps(answer, indent=2) + "\n"


def read_data(source: str, choices: options.Choices, method: str | None = None) -> Mapping[str, Any] | None:
    """Return a method's JSON-compatible data from a .json, folder or .pte, or None for a model."""
    from ethorch.report.program_data import is_program_data, read_program_data

    if is_program_data(source):
        data = _with_accuracy(Path(source), read_program_data(source, method))
        if method in (None, data.get("method")):
            return data
        if not sources.is_program(source):
            raise SpecError(f"{source}: expected data of method {method!r}, got {data.get('method')!r}.")
    return sources.program_of(source, choices, method).to_json() if sources.is_program(source) else None


def _with_accuracy(folder: Path, data: Mapping[str, Any]) -> Mapping[str, Any]:
    folder = folder.parent if folder.name == "program.json" else folder
    if data.get("accuracy") is not None or not folder.is_dir():
        return data
    from ethorch.program.comparison_file import accuracy_of, read_comparisons
    from ethorch.support.text_files import finite

    comparison = read_comparisons(folder).get(str(data.get("method")))
    accuracy = None if comparison is None else accuracy_of(comparison)
    return data if accuracy is None else {**data, "accuracy": finite(asdict(accuracy))}


def read_methods(source: str, choices: options.Choices, method: str | None = None) -> dict[str, Mapping[str, Any]]:
    """Return the JSON-compatible data of each method of a build, or of ``method`` only. Keys are method names.

    Raises:
        SpecError: The source is a model.
    """
    from ethorch.report.program_data import is_program_data, read_methods_data

    if not is_program_data(source) and not sources.is_program(source):
        raise SpecError(f"expected JSON printed by --json, a saved folder, or a .pte; got {source}.")
    if method is not None:
        return {method: read_data(source, choices, method) or {}}
    if is_program_data(source):
        return {str(name): data for name, data in read_methods_data(source).items()}
    program = sources.program_of(source, choices)
    return {name: program[name].to_json() for name in program.methods}


def _compare_builds(
    before: Mapping[str, Any], after: Mapping[str, Any], output: Path | None, format: str | None, most: float | None
) -> Answer:
    from ethorch.report.builds import compare_programs

    comparison = compare_programs(before, after)
    worse = [] if most is None else comparison.regressions(most)
    answer = {**comparison.to_json(), "regressions": worse}
    raw = None
    if output is not None:
        is_markdown = _format(output, format) == "md"
        raw = write_output(output, comparison.to_markdown(worse) if is_markdown else json.dumps(answer, indent=2) + "\n")

    def text() -> Any:
        saved = [] if output is None else [f"Saved {output}"]
        return stack(comparison.rich(), *(f"WORSE: {line}" for line in worse), *saved)

    return Answer(answer, text, Status.NO if worse else Status.DONE, raw)
