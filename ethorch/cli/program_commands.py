"""Subcommands that run or disassemble a compiled program: run, disassemble, generate."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

from ethorch.cli import options, sources
from ethorch.cli.answers import Answer
from ethorch.cli.command import command, option
from ethorch.support.errors import EthorchError, SpecError

PANEL = "A program"


@command("run", PANEL)
def run(
    program: options.Pte,
    inputs: options.Inputs = None,
    output: Annotated[Path | None, option("--output", "-o", help="File for the outputs [none].", metavar="FILE.npz")] = None,
    seed: Annotated[int, option(help="Seed of random inputs [0].", min=0)] = 0,
    method: options.Method = None,
) -> Answer:
    """Run a program on the host, in ExecuTorch's runtime with a bit-exact simulator of the NPU."""
    from ethorch.program.saving import check_file

    if output is not None:
        check_file(output)
    from ethorch.cli.model_options import inputs_for
    from ethorch.models import arrays
    from ethorch.models.sample_files import describe_image
    from ethorch.program.program import host_of, record_of, select

    loaded = sources.read_program(program, method)
    arguments = inputs_for(loaded, inputs) if inputs else arrays.random_inputs(record_of(loaded).description, seed)
    for path in inputs or ():
        if note := describe_image(path, [info.shape for info in loaded.inputs]):
            print(f"note: {note}.", file=sys.stderr)
    chosen, filled = select(loaded, arguments)
    host = host_of(chosen)
    started = time.perf_counter()
    outputs = record_of(loaded).crop(host.arrays(*filled), arguments)
    seconds = time.perf_counter() - started
    if output is not None:
        arrays.save_outputs(str(output), outputs)
    descriptions = [arrays.describe(x) for x in outputs]
    data = {
        "outputs": descriptions,
        "seconds": seconds,
        "random_inputs": not inputs,
        "milliseconds": loaded.estimate.milliseconds,
        "target": loaded.target,
    }

    def text() -> str:
        rows = [f"output {number}  {x['dtype']}{x['shape']}  {x['text']}" for number, x in enumerate(descriptions)]
        note = f"simulated in {seconds:.3f} s on the host"
        if not inputs:
            note += f" with random inputs (seed {seed}; use --inputs to read files)"
        if loaded.estimate.milliseconds is not None:
            note += f". Estimated time on the device: {loaded.estimate.milliseconds:.3f} ms"
        return "\n".join([*rows, f"{note}."])

    return Answer(data, text)


@command("disassemble", PANEL, alias="dis")
def disassemble(program: options.Pte, method: options.Method = None) -> Answer:
    """List the NPU commands. For a saved folder, also list the operator of each command."""
    loaded = sources.read_program(program, method)
    from ethorch.formats.payload import BACKEND_ID
    from ethorch.npu import Program, disassembly
    from ethorch.program.program import record_of
    from ethorch.vela import artifacts

    delegates = [delegate for delegate in record_of(loaded).description.delegates if delegate.id == BACKEND_ID]
    payloads = [delegate.payload for delegate in delegates]
    if not payloads:
        raise EthorchError(
            f"expected a program with an Ethos-U delegate; method {record_of(loaded).method!r} of {program} runs on the CPU only."
        )
    streams = [Program(payload.commands, payload.weights) for payload in payloads]
    folder = program / "delegates" if (program / "delegates").is_dir() else None
    operators = [
        None if folder is None else artifacts.sources(folder, payload, delegate.compile_specs)
        for payload, delegate in zip(payloads, delegates, strict=True)
    ]
    pairs = list(zip(streams, operators, strict=True))
    rows = [{"target": stream.config.name, "operations": disassembly.rows(stream, names)} for stream, names in pairs]
    return Answer(rows, lambda: "\n".join(disassembly.text(stream, names) for stream, names in pairs).rstrip())


@command("generate", PANEL)
def generate(
    program: options.Pte,
    tokenizer: Annotated[
        Path, option(help="A tokenizer.json, a folder that contains one, or a JSON file of characters.", metavar="FILE|DIR")
    ],
    prompt: Annotated[str, option(help="Beginning of the text.")],
    tokens: Annotated[int, option(help="Maximum number of tokens to generate [50].", min=1)] = 50,
    temperature: Annotated[float, option(help="Divisor of the logits; 0 always selects the most likely token [0].")] = 0.0,
    top_k: Annotated[int, option(help="Sample from this number of most likely tokens; 0 samples from all tokens [0].")] = 0,
    seed: Annotated[int, option(help="Seed for sampling [0].")] = 0,
    context: Annotated[
        int | None, option(help="Number of tokens that fit in the caches [read from the cache shapes].", min=2)
    ] = None,
    stop: Annotated[
        str,
        option(
            help="Text whose first token stops generation [eos_token_id of the tokenizer's generation_config.json or config.json]."
        ),
    ] = "",
) -> Answer:
    """Generate text with a compiled language model, which has a decode method and an optional prefill method."""
    from ethorch.language import Characters, Choice, Speaker, end_tokens, load_tokenizer

    choice = Choice(temperature, top_k, seed)
    words = load_tokenizer(tokenizer)
    speaker = Speaker.of_program(sources.read_program(program), context=context)
    if not prompt:
        raise SpecError("--prompt: expected at least one token, got an empty string.")
    if isinstance(words, Characters) and (unknown := words.unknown(prompt)):
        raise SpecError(
            f"--prompt: expected characters in the vocabulary of {tokenizer} ({words.characters[:-1]!r}), got {unknown!r}."
        )
    ids = words.encode(prompt)
    ends = words.part(stop)[:1] if stop else end_tokens(tokenizer)
    generated = list(speaker.generate(ids, tokens, choice, ends))
    text = words.decode([*ids, *generated])
    return Answer({"prompt": prompt, "text": text, "tokens": generated, "calls": speaker.calls}, lambda: text)
