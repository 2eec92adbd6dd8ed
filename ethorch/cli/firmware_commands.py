"""Subcommands for firmware."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ethorch.cli import options, sources
from ethorch.cli.answers import Answer, Status
from ethorch.cli.command import command, option
from ethorch.support.errors import SpecError
from ethorch.support.wording import count_noun

if TYPE_CHECKING:
    from ethorch.deploy.virtual_board import Run
    from ethorch.program.program import Program

PANEL = "Firmware"
BARE, EXECUTORCH = RUNTIMES = "bare", "executorch"
CMAKE, CMSIS = BUILD_SYSTEMS = "cmake", "cmsis"
Board = Annotated[
    str,
    option("--board", "-b", help="Board name listed by `ethorch boards`, or a TOML file [corstone-300].", metavar="NAME|FILE"),
]


@command("firmware", PANEL)
def firmware(
    choices: options.Choices,
    output: Annotated[Path, option("--output", "-o", help="Folder for the project.", metavar="DIR")],
    program: Annotated[
        str | None, typer.Argument(metavar="[PROGRAM|MODEL]", help="A .pte, a saved folder, or a model to compile.")
    ] = None,
    board: options.Board = None,
    name: Annotated[str, option(help="Prefix for symbol and file names [model].")] = "model",
    embed: Annotated[str, option(help="Storage of the program: incbin (binary files) or arrays (C source) [incbin].")] = "incbin",
    runtime: Annotated[str, option(help="bare, or executorch to write only the sources of EthosUBackend [bare].")] = BARE,
    build_system: Annotated[str, option(help="cmake (also usable as a Zephyr module) or cmsis (AI layer) [cmake].")] = CMAKE,
    inputs: options.Inputs = None,
    method: Annotated[
        list[str] | None, option("--method", metavar="NAME", help="Entry point to include [all]; repeatable.")
    ] = None,
    probe: Annotated[bool, option("--probe", help="Test the command streams of ethorch on the board.")] = False,
) -> Answer:
    """Write a C project that runs a program on a Cortex-M with an Ethos-U. `python DIR/run.py` builds and runs the project.

    The default board is corstone-320 for the Ethos-U85, and corstone-300 otherwise. A project with several methods contains
    one function for each method (model_prefill_run, model_decode_run). The methods share state, and each weight is stored
    once. With a single --method, the function is model_run.
    """
    for flag, value, allowed in (("--runtime", runtime, RUNTIMES), ("--build-system", build_system, BUILD_SYSTEMS)):
        if value not in allowed:
            raise SpecError(f"{flag}: expected {' or '.join(allowed)}, got {value!r}.")
    if probe and (runtime, build_system, inputs, method) != (BARE, CMAKE, None, None):
        raise SpecError("--probe does not support --runtime, --build-system, --inputs and --method. Remove these options.")
    if runtime == EXECUTORCH:
        return _write_delegate(output)
    if board is not None and (program is None or not sources.is_program(program)):
        choices = options.Choices(choices.settings, [*(choices.set or ()), f"board={board}"])
    if probe:
        return _write_probe(program, output, choices, name, embed)
    if program is None:
        raise SpecError(
            "missing argument: expected a program or model. The argument is optional only with --probe or --runtime executorch."
        )
    subject = sources.program_of(program, choices, method[0] if method else None)
    if build_system == CMSIS:
        return _write_layer(subject, output, choices)
    from ethorch.deploy.firmware.firmware import firmware as write_project

    project = write_project(
        subject, output, board=board, name=name, methods=method, samples=_self_test(subject, inputs, method), embed=embed
    )
    others = [name for name in subject.methods if name not in project.methods]
    note = f"\nMethods not included in the project: {', '.join(others)}." if others else ""
    return Answer(project.to_json(), lambda: f"{project}{note}")


def _write_probe(program: str | None, output: Path, choices: options.Choices, name: str, embed: str) -> Answer:
    if program is not None:
        raise SpecError(
            "--probe writes its own program. Remove the argument, and select the NPU with --board or --set target=NAME."
        )
    from ethorch.deploy.firmware.firmware import firmware as write_project
    from ethorch.program.probe import build_probe

    settings = options.settings_of(choices)
    probe = build_probe(settings)
    project = write_project(
        probe.program, output, board=settings.board, name=name, samples=probe.calls, embed=embed, repeats=probe.repeats
    )
    return Answer(project.to_json(), lambda: str(project))


def _self_test(program: Program, inputs: list[Path] | None, method: list[str] | None) -> list[Any] | None:
    if not inputs:
        return None
    from ethorch.cli.model_options import inputs_for

    methods = method or program.methods
    if len(methods) > 1:
        raise SpecError(
            f"--inputs requires exactly one method, got {', '.join(methods)}. Use --method NAME, or call "
            "ethorch.firmware(program, folder, samples=[(method, inputs), ...])."
        )
    return [inputs_for(program[methods[0]], inputs)]


def _write_delegate(output: Path) -> Answer:
    from ethorch.deploy.firmware.delegate import write_delegate

    files = write_delegate(output)
    data = {"output": str(output), "files": [path.name for path in files]}
    return Answer(
        data,
        lambda: f"Saved {count_noun(len(files), 'file')} to {output}. CMakeLists.txt documents its use with add_subdirectory().",
    )


def _write_layer(program: Program, output: Path, choices: options.Choices) -> Answer:
    from ethorch.deploy.firmware import mlops

    npu_settings = mlops.make_default(program.target)
    if choices.settings is not None and choices.settings.suffix in (".yml", ".yaml"):
        npu_settings = mlops.read_mlops(choices.settings)
    files = mlops.write_ai_layer(program, output, npu_settings)
    return Answer({"output": str(output), "files": list(files)}, lambda: f"Saved {count_noun(len(files), 'file')} to {output}")


@command("run-firmware", PANEL)
def run_firmware(
    elf: Annotated[Path, typer.Argument(metavar="FILE.elf|DIR", help="Linked firmware, or the folder of a built project.")],
    board: Board = "corstone-300",
    npu: Annotated[str | None, option("--npu", "-n", help="NPU [the first NPU that the board supports].")] = None,
    backend: Annotated[str, option(help="Emulator: unicorn, qemu (Cortex-M55 with Helium) or fvp [unicorn].")] = "unicorn",
    timeout: Annotated[float, option(help="Maximum run time on the host in seconds [60].")] = 60.0,
    arguments: Annotated[str, option(help="Command line that the firmware reads through semihosting.")] = "",
    trace: Annotated[
        Path | None, option(help="File for a timeline of the run, for Perfetto or Chrome.", metavar="FILE.json")
    ] = None,
) -> Answer:
    """Run firmware on a virtual board with a bit-exact NPU, and report errors that silicon does not report."""
    from ethorch.deploy.virtual_board import run

    if elf.is_dir():
        linked = elf / "build" / "firmware.elf"
        if not linked.is_file():
            raise SpecError(
                f"folder {elf} does not contain {linked.relative_to(elf)}. Build the firmware with `python {elf / 'run.py'}`."
            )
        elf = linked
    if trace is not None:
        from ethorch.program.saving import check_file

        check_file(trace)
    outcome = run(elf, board, npu, backend, timeout=timeout, arguments=arguments)
    if trace is not None:
        outcome.trace(trace)
    return Answer(outcome.to_json(), lambda: _describe_run(outcome), Status.DONE if outcome.ok else Status.NO)


def _describe_run(run: Run) -> str:
    counts = []
    if run.instructions is not None:
        counts.append(f"{run.instructions} CPU instructions")
    if run.npu_cycles is not None:
        least = "at least " if run.is_lower_bound else ""
        by = "" if run.is_lower_bound or not any(inference.estimated_by for inference in run.inferences) else ", estimated by Vela"
        counts.append(f"{count_noun(len(run.inferences), 'NPU run')} with {least}{run.npu_cycles:,} cycles{by}")
    if run.measured_cycles is not None:
        counts.append(f"{run.measured_cycles} NPU cycles measured with the PMU")
    code = "" if run.exit_code is None else f", exit code {run.exit_code}"
    lines = [
        run.text.rstrip(),
        f"{run.board}, {run.npu}, {run.backend}: run ended ({run.ended}{code}); {'; '.join(counts) or 'no counts'}.",
    ]
    for region, row in run.bytes_by_region.items():
        lines.append(f"region {region}: the NPU read {row['read']} bytes and wrote {row['written']} bytes")
    lines += [f"FAULT: {fault}" for fault in run.faults]
    lines += [f"note: {note}" for note in run.notes]
    return "\n".join(lines)
