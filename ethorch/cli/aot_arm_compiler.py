"""``ethorch aot-arm-compiler``: the options of ExecuTorch's Arm script, so that existing scripts go on working."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ethorch.cli import options
from ethorch.cli.answers import Answer
from ethorch.cli.app import command
from ethorch.errors import SpecError

PANEL = "A model"
#: What may follow -q in some of the script's versions: the scheme.
SCHEMES = {"INT8": "int8", "A16W8": "a16w8"}
#: The script's names of networks that torchvision has under another.
_NAMES = {"mv2": "mobilenet_v2", "mv3": "mobilenet_v3_small", "ic3": "inception_v3", "vit": "vit_b_16"}


def with_mode(arguments: Sequence[str]) -> list[str]:
    """``-q A16W8`` as ``-q --quant_mode A16W8``: the script has had ``-q`` with and without a value."""
    found: list[str] = []
    for argument in arguments:
        if found and found[-1] in ("-q", "--quantize") and argument.upper() in SCHEMES:
            found.append("--quant_mode")
        found.append(argument)
    return found


@command("aot-arm-compiler", PANEL)
def aot_arm_compiler(
    model: Annotated[
        str, typer.Option("--model_name", "-m", help="As MODEL of `compile`, or torchvision's name.", metavar="MODEL")
    ],
    model_input: Annotated[Path | None, typer.Option("--model_input", help="A file of example inputs.", metavar="FILE")] = None,
    delegate: Annotated[bool, typer.Option("--delegate", "-d", help="Use the NPU.")] = False,
    quantize: Annotated[bool, typer.Option("--quantize", "-q", help="Quantize the model; INT8 or A16W8 may follow.")] = False,
    quant_mode: Annotated[str, typer.Option("--quant_mode", help="INT8 or A16W8.")] = "INT8",
    target: Annotated[str, typer.Option("--target", "-t", help="NPU, e.g. ethos-u55-128.")] = "ethos-u55-128",
    calibration_data: Annotated[
        Path | None, typer.Option("--calibration_data", help="Representative inputs.", metavar="DIR|FILE")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="File or folder; default: here.")] = "",
    intermediates: Annotated[str, typer.Option("--intermediates", "-i", help="Keep TOSA graphs there.", metavar="DIR")] = "",
    bundleio: Annotated[bool, typer.Option("--bundleio", help="Write a .bpte with inputs and expected outputs.")] = False,
    etrecord: Annotated[
        bool, typer.Option("--etrecord", help="Write ExecuTorch's ETRecord beside the program, as NAME_etrecord.bin.")
    ] = False,
    system_config: Annotated[str | None, typer.Option("--system_config", help="A section of vela.ini.")] = None,
    memory_mode: Annotated[str | None, typer.Option("--memory_mode", help="A section of vela.ini.")] = None,
    config: Annotated[str | None, typer.Option("--config", help="Your own vela.ini.")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Accepted; use --verbose.")] = False,
    non_strict_export: Annotated[bool, typer.Option("--non_strict_export", help="Accepted; export always is.")] = False,
) -> Answer:
    """Compile as ExecuTorch's Arm script does, with its options."""
    from ethorch.program.saving import check_folder, check_writable
    from ethorch.user_code import find

    if not delegate:
        raise SpecError("without --delegate nothing would run on the NPU, and ExecuTorch alone can make such a program: add -d.")
    if quant_mode.upper() not in SCHEMES:
        raise SpecError(f"--quant_mode is {quant_mode!r}; it can be {' or '.join(SCHEMES)}.")
    name = model if ":" in model or "." in model else f"torchvision:{_NAMES.get(model, model)}"
    file = f"{_stem(model)}_arm_delegate_{target}.{'bpte' if bundleio else 'pte'}"
    path = Path(output) if Path(output).suffix in (".pte", ".bpte") else Path(output) / file
    chosen = options.settings_of(
        options.Quantization(target=target, scheme=SCHEMES[quant_mode.upper()]),
        options.Compiler(system_config=system_config, memory_mode=memory_mode, config_ini=config),
    )
    made = path.parent == Path(output) and not path.parent.exists()  # made, as the script does, when there is something to write
    if made:
        check_folder(path.parent)
    else:
        check_writable(path)
    find(name)
    from ethorch.program.compile import compile as compiled
    from ethorch.program.compile import user_model
    from ethorch.program.model_options import inputs_from, loaded

    user = user_model(loaded(name))
    if not quantize and not user.quantized:
        raise SpecError("the NPU computes in integers: add -q to quantize the model, or name one that is quantized.")
    if model_input is not None:
        user = user_model(user, inputs_from([model_input], user.example_inputs))
    calibration = None if calibration_data is None else str(calibration_data)
    record = path.with_name(f"{path.stem}_etrecord.bin") if etrecord else None
    if made and etrecord:
        path.parent.mkdir(parents=True)
    program = compiled(user, settings=chosen, calibration=calibration, dump=intermediates or None, etrecord=record)
    path.parent.mkdir(parents=True, exist_ok=True)
    program.save(path)
    return Answer({"output": str(path), **program.to_json()}, lambda: options.stacked(program.rich(), f"wrote {path}"))


def _stem(model: str) -> str:
    """What the script calls a model's files."""
    place, _, name = model.rpartition(":")
    return name if place and not name.endswith(".py") else Path(model).stem
