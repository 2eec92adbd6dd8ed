"""Subcommands that begin with a finished program: run, dis."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ethorch.cli import options
from ethorch.cli.answers import Answer
from ethorch.cli.command import command
from ethorch.support.errors import EthorchError

PANEL = "A program"


@command("run", PANEL)
def run(
    program: options.Pte,
    inputs: options.Inputs = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the outputs there.", metavar="FILE.npz")] = None,
    seed: Annotated[int, typer.Option(help="Of random inputs.")] = 0,
    method: options.Method = None,
    dump: options.Dump = None,
) -> Answer:
    """Run a .pte here: ExecuTorch's runtime, the NPU simulated bit for bit."""
    from ethorch.program.saving import check_folder

    if output is not None:
        check_folder(output)
    from ethorch.cli.model_options import inputs_for
    from ethorch.models import arrays

    loaded = options.load_program(program, method, dump)
    taken = inputs_for(loaded, inputs) if inputs else arrays.random_inputs(loaded.description, seed)
    chosen, filled = loaded.chosen(taken)
    host = chosen.host
    started = time.perf_counter()
    outputs = loaded.cropped(host.arrays(*filled), taken)
    seconds = time.perf_counter() - started
    if output is not None:
        arrays.save_outputs(str(output), outputs)
    found = [arrays.describe(x) for x in outputs]
    data = {
        "outputs": found,
        "seconds": seconds,
        "random_inputs": not inputs,
        "milliseconds": loaded.milliseconds,
        "target": loaded.target,
    }

    def text() -> str:
        rows = [f"output {number}  {x['dtype']}{x['shape']}  {x['text']}" for number, x in enumerate(found)]
        note = f"simulated in {seconds:.3f} s on this computer"
        if not inputs:
            note += f", on random inputs (seed {seed}); --inputs takes files"
        if loaded.milliseconds is not None:
            note += f". The NPU takes {loaded.milliseconds:.3f} ms by the estimate"
        return "\n".join([*rows, f"{note}."])

    return Answer(data, text)


@command("dis", PANEL)
def dis(program: options.Pte, method: options.Method = None, dump: options.Dump = None) -> Answer:
    """The NPU commands in a .pte, readable."""
    loaded = options.load_program(program, method)
    from ethorch.formats.payload import BACKEND_ID
    from ethorch.npu import Program, disassembly
    from ethorch.vela import artifacts

    delegates = [delegate for delegate in loaded.description.delegates if delegate.id == BACKEND_ID]
    payloads = [delegate.payload for delegate in delegates]
    if not payloads:
        raise EthorchError(f"method {loaded.method!r} of {program} has no Ethos-U delegate.")
    streams = [Program(payload.commands, payload.weights) for payload in payloads]
    sources = [
        artifacts.sources(dump, payload, delegate.compile_specs) if dump else None
        for payload, delegate in zip(payloads, delegates, strict=True)
    ]
    listed = [
        {"target": one.config.name, "operations": disassembly.rows(one, known)} for one, known in zip(streams, sources, strict=True)
    ]
    return Answer(
        listed, lambda: "\n".join(disassembly.text(one, known) for one, known in zip(streams, sources, strict=True)).rstrip()
    )
