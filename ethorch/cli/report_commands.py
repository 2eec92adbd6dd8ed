"""Subcommands that make files to look at, or compare them: report, trace, compare-reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ethorch.cli import options
from ethorch.cli.answers import Answer, Status
from ethorch.cli.command import command
from ethorch.cli.model_commands import compiled
from ethorch.report.reproduce import MODEL
from ethorch.support.errors import SpecError
from ethorch.support.wording import counted

PANEL = "Reports"

Source = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|FILE",
        help="A model as `ethorch compile` takes it, a .pte, a saved folder, or what --json printed (.json).",
    ),
]


def data_of(source: str, method: str | None = None) -> Mapping[str, Any] | None:
    """The plain data of a finished program's method: JSON, a saved folder, a .pte. None of anything else: a model then."""
    from ethorch.report.program_data import is_program_data, read_program_data

    if is_program_data(source):
        data = read_program_data(source)
        if method not in (None, data["method"]):
            raise SpecError(f"{source} is about method {data['method']!r}, not {method!r}.")
        return data
    if source.endswith(".pte") or Path(source).is_dir():
        return options.load_program(Path(source), method).to_json()
    return None


@command("report", PANEL)
def report(
    model: Source,
    samples: options.Samples,
    quantization: options.Quantization,
    compiler: options.Compiler,
    budget: options.Budget,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page to write; default: report.html.", metavar="FILE.html")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a summary in GitHub's Markdown; no page without --output.")
    ] = False,
    inputs: options.Inputs = None,
    method: options.Method = None,
) -> Answer:
    """One HTML page of all that is known: verdict, layers, cycles, time line, memory, roofline, accuracy, advice.

    With --inputs, of a model, each operator is compared with the float model.
    """
    from ethorch.program.saving import check_folder
    from ethorch.report.page.page import check_page

    chosen = options.settings_of(quantization, compiler, budget)
    target_file = output or (None if markdown else Path("report.html"))
    if target_file is not None:
        check_folder(target_file)
        check_page()
    data, comparison = data_of(model, method), None
    named = [MODEL] if data is not None else [Path(model).name, *samples.words()]
    if data is None:
        program = compiled(chosen, model, samples)
        program = program[method or program.method]
        _ = program.accuracy  # measured now, so that to_json has it
        data = program.to_json()
        if inputs:
            from ethorch.cli.model_options import inputs_from

            assert program.model is not None
            comparison = program.compare(*inputs_from(inputs, program.model.example_inputs, program.open_dims)).to_json()
    elif inputs:
        raise SpecError(f"--inputs compares operators with the float model, which {model} does not hold: give the model.")
    title = Path(model).name
    if target_file is not None:
        from ethorch.formats.files import write_whole
        from ethorch.report.page import page

        write_whole(target_file, page(data, comparison, title, named).encode())

    def text() -> str:
        if markdown:
            from ethorch.report.markdown import markdown as summarized

            return summarized(data, title, named)
        from ethorch.report.verdict import verdicts

        return "\n".join([*(f"{one.question} {one.answer}" for one in verdicts(data)), f"wrote {target_file}"])

    from ethorch.report.advice import advice

    found = [one.to_json() for one in advice(data)]
    return Answer({**data, "output": None if target_file is None else str(target_file), "advice": found}, text)


@command("trace", PANEL)
def trace(
    model: Source,
    samples: options.Samples,
    quantization: options.Quantization,
    compiler: options.Compiler,
    output: Annotated[Path, typer.Option("--output", "-o", help="The trace to write.", metavar="FILE.json")] = Path("trace.json"),
) -> Answer:
    """The estimated time line of NPU, DMA and CPU, for Perfetto (ui.perfetto.dev) or chrome://tracing."""
    from ethorch.program.saving import check_folder

    chosen = options.settings_of(quantization, compiler)
    check_folder(output)
    import json

    from ethorch.figures import Layer, trace_events
    from ethorch.formats.files import write_whole

    data = data_of(model)
    if data is None:
        data = compiled(chosen, model, samples).to_json()
    events = trace_events([Layer.from_json(layer) for layer in data["layers"]], data["core_clock_hz"])
    write_whole(output, json.dumps(events).encode())
    count = sum(event["ph"] == "X" for event in events["traceEvents"])
    return Answer(
        {"output": str(output), "events": count}, lambda: f"wrote {output}: {counted(count, 'event')}. Open it in ui.perfetto.dev."
    )


@command("import-profile", PANEL)
def import_profile(
    model: Annotated[
        str, typer.Argument(metavar="MODEL|FILE", help="What ran: a .pte, a saved folder, or the model it is made of.")
    ],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="MEASURED...",
            help="Logs with the NPU's counters; CSV of qread_bytes,samples; CSV of milliseconds. May be several.",
        ),
    ],
    samples: options.Samples,
    quantization: options.Quantization,
    compiler: options.Compiler,
    method: options.Method = None,
    dump: options.Dump = None,
) -> Answer:
    """What a board or an FVP measured beside the estimate: of the whole program, and by operator from samples of QREAD."""
    chosen = options.settings_of(quantization, compiler)
    if model.endswith(".pte") or Path(model).is_dir():
        program = options.load_program(Path(model), method, dump)
    else:
        program = compiled(chosen, model, samples)
        program = program[method or program.method]
    found = program.import_profile(*files)
    return Answer(found.to_json(), found.rich)


@command("compare-reports", PANEL)
def compare_reports(
    before: Annotated[str, typer.Argument(metavar="A", help="The build before: .json, a saved folder, or a .pte.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The build after, likewise.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print GitHub's Markdown.")] = False,
    fail_on_regression: Annotated[
        float | None,
        typer.Option(
            help="Exit with 1 if a total is worse by more than so many percent, or a budget is lost.", min=0, metavar="PERCENT"
        ),
    ] = None,
) -> Answer:
    """What changed between two builds: totals, settings, versions, and cycles per layer."""
    from ethorch.report.builds import compare_builds

    sides = [data_of(source) for source in (before, after)]
    for source, data in zip((before, after), sides, strict=True):
        if data is None:
            raise SpecError(f"{source} is no build: give what --json printed (.json), a saved folder, or a .pte.")
    first, second = sides
    assert first is not None and second is not None
    found = compare_builds(first, second)
    worse = [] if fail_on_regression is None else found.regressions(fail_on_regression)

    def text() -> Any:
        if markdown:
            from ethorch.report.markdown import text as escaped

            return "\n".join([found.to_markdown(), *(f"- ❌ {escaped(line)}" for line in worse)])
        return options.stacked(found.rich(), "\n".join(f"WORSE: {line}" for line in worse)) if worse else found.rich()

    return Answer({**found.to_json(), "regressions": worse}, text, Status.COULD_NOT if worse else Status.DONE)
