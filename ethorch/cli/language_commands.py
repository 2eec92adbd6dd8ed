"""The subcommand ``generate``: text from a language model on the simulated NPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ethorch.cli import options
from ethorch.cli.answers import Answer
from ethorch.cli.command import command
from ethorch.support.errors import SpecError

PANEL = "A program"


@command("generate", PANEL)
def generate(
    program: options.Pte,
    tokenizer: Annotated[
        Path, typer.Option(help="tokenizer.json, a folder with one, or JSON with characters.", metavar="FILE|DIR")
    ],
    prompt: Annotated[str, typer.Option(help="What the text begins with.")],
    tokens: Annotated[int, typer.Option(help="Tokens to write at most.", min=1)] = 50,
    temperature: Annotated[float, typer.Option(help="Logits are divided by it; 0: always the likeliest token.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Draw from that many of the likeliest; 0: from all.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    context: Annotated[int | None, typer.Option(help="Tokens that the caches hold; default: as their shapes say.", min=2)] = None,
    stop: Annotated[
        str,
        typer.Option(
            help="Stop behind the first token of this text; default: an end that is in a config.json beside the tokenizer."
        ),
    ] = "",
) -> Answer:
    """Text from a language model: a program with a method decode, and prefill for prompts, as ethorch.language makes them."""
    from ethorch.language import Characters, Choice, Speaker, end_tokens, load_tokenizer

    choice = Choice(temperature, top_k, seed)
    words = load_tokenizer(tokenizer)
    speaker = Speaker.of_program(options.load_program(program), context=context)
    if not prompt:
        raise SpecError("--prompt is empty: a text begins with at least one token.")
    if isinstance(words, Characters) and (unknown := words.unknown(prompt)):
        raise SpecError(f"--prompt has characters that {tokenizer} has not: {unknown!r}. It has {words.characters[:-1]!r}.")
    ids = words.encode(prompt)
    ends = words.part(stop)[:1] if stop else end_tokens(tokenizer)
    found = list(speaker.generate(ids, tokens, choice, ends))
    text = words.decode([*ids, *found])
    return Answer({"prompt": prompt, "text": text, "tokens": found, "calls": speaker.calls}, lambda: text)
