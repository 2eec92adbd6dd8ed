"""The subcommand ``compile``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ethorch.cli import options, sources
from ethorch.cli.answers import Answer, Status, stack
from ethorch.cli.command import command, option
from ethorch.support.errors import SpecError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ethorch.targets.settings import Settings

PANEL = "A model"
#: Value of ``--output`` for standard output.
STDOUT = Path("-")
_REMEDIES = 3  # maximum number of suggestions if a budget is exceeded


@command("compile", PANEL)
def compile_(
    model: options.ModelName,
    samples: options.Samples,
    quantization: options.Quantization,
    budget: options.Budget,
    choices: options.Choices,
    output: Annotated[
        Path | None,
        option("--output", "-o", help="A .pte, .bpte or .tosa file, a folder, or - (stdout).", metavar="FILE"),
    ] = None,
) -> Answer:
    """Quantize a model, compile it for an NPU, and write a program. Exit status 3: a budget is exceeded."""
    from ethorch.program.saving import check_writable, describe_saved

    if (quantization.target or "").startswith("TOSA"):
        return _compile_to_tosa(model, samples, quantization, budget, choices, output)
    settings = options.settings_of(choices, samples=samples, quantization=quantization, budget=budget)
    if output not in (None, STDOUT):
        assert output is not None
        check_writable(output)
    program = sources.compile_model(model, settings)
    from ethorch.program.measure.budgets import is_ram_possible
    from ethorch.program.program import record_of

    status = Status.DONE if program.budgets.met else Status.NO
    if output == STDOUT:
        return Answer(None, lambda: "", status, program.pte)
    if output is not None:
        if output.suffix == ".tosa" and len(program.methods) > 1:
            raise SpecError(
                f"--output: a .tosa file contains one method, but {model} has {', '.join(program.methods)}. Use a folder, which "
                "contains a .tosa file for each delegate."
            )
        program.save(output)
    has_no_remedy = program.budgets.met or not is_ram_possible(record_of(program))
    tried = None if has_no_remedy else program.suggest(_REMEDIES)
    data = {
        "output": None if output is None else str(output),
        **program.to_json(),
        "suggestions": None if tried is None else tried.to_json(),
    }

    def text() -> RenderableType:
        parts = [program.__rich__()] if tried is None else [program.__rich__(), "", tried.rich()]
        return stack(*parts, *([] if output is None else [describe_saved(output)]))

    return Answer(data, text, status)


def _compile_to_tosa(
    model: str,
    samples: options.Samples,
    quantization: options.Quantization,
    budget: options.Budget,
    choices: options.Choices,
    output: Path | None,
) -> Answer:
    from ethorch.program.saving import check_writable, describe_saved
    from ethorch.targets.tosa_spec import TosaCompileSpec

    spec = TosaCompileSpec(quantization.target or "")
    flags = {**vars(quantization), **vars(budget)}
    if ignored := [f"--{name.replace('_', '-')}" for name in flags if flags[name] and name not in ("target", "scheme")]:
        raise SpecError(f"-t {quantization.target} supports the scheme and the samples, but not {', '.join(ignored)}. Remove them.")
    settings: Settings = options.settings_of(choices, samples=samples)
    if output is not None:
        if output.suffix not in (".tosa", ".pte", ".bpte"):
            raise SpecError(f"--output: expected the suffix .tosa, .pte or .bpte for -t {quantization.target}, got {output}.")
        check_writable(output)
    user = sources.read_one_model(model, settings)
    from ethorch.program.other_targets import compile_to_tosa, save

    program = compile_to_tosa(user, spec, quantization.scheme or "int8")
    if output is not None:
        save(program, output)
    assert program.report is not None
    summary = program.report.summary()
    data = {"output": None if output is None else str(output), "target": str(spec.tosa_spec), "summary": summary}
    return Answer(data, lambda: summary if output is None else f"{summary}\n{describe_saved(output)}")
