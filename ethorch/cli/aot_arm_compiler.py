"""The subcommand ``aot-arm-compiler``, with the options of ExecuTorch's Arm script."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ethorch.cli import options
from ethorch.cli.answers import Answer, stack
from ethorch.cli.command import command
from ethorch.support.errors import SpecError

if TYPE_CHECKING:
    from ethorch.models.load import UserModel

PANEL = "A model"
#: Schemes by option value. Some versions of the script accept these values after -q.
SCHEMES = {"INT8": "int8", "A16W8": "a16w8"}
#: For each option with an optional value: the accepted values, and the option that sets the value.
_OPTIONAL = {
    "-q": (tuple(SCHEMES), "--quant_mode"),
    "--quantize": (tuple(SCHEMES), "--quant_mode"),
    "-e": (("GENERIC", "MV2", "DEIT_TINY", "RESNET18"), "--evaluate_kind"),
    "--evaluate": (("GENERIC", "MV2", "DEIT_TINY", "RESNET18"), "--evaluate_kind"),
}


def with_mode(arguments: Sequence[str]) -> list[str]:
    """Convert the optional values of flags to separate options, e.g. ``-q A16W8`` to ``-q --quant_mode A16W8``."""
    words: list[str] = []
    for argument in arguments:
        values, option = _OPTIONAL.get(words[-1], ((), "")) if words else ((), "")
        if argument.upper() in values:
            words.append(option)
        words.append(argument)
    return words


@command("aot-arm-compiler", PANEL)
def aot_arm_compiler(
    model: Annotated[
        str,
        typer.Option(
            "--model_name",
            "-m",
            help="MODEL as in `compile`, or the name of a model in ExecuTorch's examples or torchvision.",
            metavar="MODEL",
        ),
    ],
    model_input: Annotated[
        Path | None, typer.Option("--model_input", help="File that contains example inputs.", metavar="FILE")
    ] = None,
    delegate: Annotated[bool, typer.Option("--delegate", "-d", help="Delegate operators to the NPU or to TOSA.")] = False,
    quantize: Annotated[
        bool, typer.Option("--quantize", "-q", help="Quantize the model. The optional value, INT8 or A16W8, sets --quant_mode.")
    ] = False,
    quant_mode: Annotated[
        str | None,
        typer.Option(
            "--quant_mode", help="Quantization mode, INT8 or A16W8. Default: A16W8 for targets with int16, otherwise INT8."
        ),
    ] = None,
    target: Annotated[
        str,
        typer.Option("--target", "-t", help="An NPU, TOSA-1.0+INT, TOSA-1.0+INT+int16, TOSA-1.0+FP, or a CPU such as cortex-m55."),
    ] = "ethos-u55-128",
    calibration_data: Annotated[
        Path | None,
        typer.Option("--calibration_data", help="Folder or file of representative inputs for calibration.", metavar="DIR|FILE"),
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="Output file or folder. Default: the current directory.")] = "",
    intermediates: Annotated[
        str, typer.Option("--intermediates", "-i", help="Write TOSA graphs to this folder.", metavar="DIR")
    ] = "",
    bundleio: Annotated[bool, typer.Option("--bundleio", help="Write a .bpte with inputs and expected outputs.")] = False,
    etrecord: Annotated[
        bool,
        typer.Option("--etrecord", help="Also write ExecuTorch's ETRecord, as NAME_etrecord.bin in the folder of the program."),
    ] = False,
    system_config: Annotated[
        str | None, typer.Option("--system_config", help="Name of a System_Config section in vela.ini.")
    ] = None,
    memory_mode: Annotated[str | None, typer.Option("--memory_mode", help="Name of a Memory_Mode section in vela.ini.")] = None,
    config: Annotated[str | None, typer.Option("--config", help="Path of a custom vela.ini.")] = None,
    so_library: Annotated[
        Path | None,
        typer.Option("--so_library", "-s", help="Library of custom operators to load before the model.", metavar="FILE"),
    ] = None,
    enable_debug_mode: Annotated[
        str | None,
        typer.Option(
            "--enable_debug_mode", help="Also write TOSA graphs, with source lines. MODE is json or tosa.", metavar="MODE"
        ),
    ] = None,
    explicit_layout: Annotated[
        bool,
        typer.Option(
            "--cortex-m-explicit-layout", help="For Cortex-M, insert permutations instead of using the channels-last memory format."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Ignored; use --verbose.")] = False,
    non_strict_export: Annotated[bool, typer.Option("--non_strict_export", help="Ignored; export is always non-strict.")] = False,
    evaluate: Annotated[bool, typer.Option("--evaluate", "-e", help="Ignored; use `ethorch evaluate`.")] = False,
    evaluate_kind: Annotated[
        str | None, typer.Option("--evaluate_kind", help="Ignored; receives the optional value of -e.")
    ] = None,
    evaluate_config: Annotated[str | None, typer.Option("--evaluate_config", "-c", help="Ignored; use `ethorch evaluate`.")] = None,
    enable_qdq_fusion_pass: Annotated[
        bool, typer.Option("--enable_qdq_fusion_pass", help="Ignored, as in ExecuTorch's script.")
    ] = False,
    direct_drive: Annotated[bool, typer.Option("--direct_drive", help="Not supported.")] = False,
) -> Answer:
    """Compile a model with the options of ExecuTorch's Arm script."""
    from ethorch.models.user_code import find
    from ethorch.models.zoos import zoo_of
    from ethorch.program.saving import check_folder, check_writable

    if target == "vgf":
        raise SpecError("VGF output is not supported; use -t TOSA-1.0+INT or -t TOSA-1.0+FP to write TOSA.")
    if direct_drive:
        raise SpecError("--direct_drive is not supported. Remove --direct_drive.")
    if enable_debug_mode not in (None, "json", "tosa"):
        raise SpecError(f"--enable_debug_mode: expected json or tosa, got {enable_debug_mode!r}.")
    mode = quant_mode or ("A16W8" if "int16" in target else "INT8")
    if mode.upper() not in SCHEMES:
        raise SpecError(f"--quant_mode: expected {' or '.join(SCHEMES)}, got {mode!r}.")
    if calibration_data is not None and not quantize:
        raise SpecError("--calibration_data requires -q. Add -q, or remove --calibration_data.")
    if evaluate or evaluate_config is not None:
        print("--evaluate and --evaluate_config have no effect. Use `ethorch evaluate`.", file=sys.stderr)
    if enable_qdq_fusion_pass:
        print("--enable_qdq_fusion_pass has no effect, as in ExecuTorch's script.", file=sys.stderr)
    on_cpu = target.startswith("cortex-m") or not delegate
    name = model if ":" in model or "." in model else f"{zoo_of(model)}:{model}"
    file = f"{_stem(model)}_arm_{'' if on_cpu else 'delegate_'}{target}.{'bpte' if bundleio else 'pte'}"
    path = Path(output) if Path(output).suffix in (".pte", ".bpte") else Path(output) / file
    if path.suffix != (".bpte" if bundleio else ".pte"):
        option = "with --bundleio" if bundleio else "without --bundleio"
        raise SpecError(f"--output: expected the suffix {Path(file).suffix} {option}, got {output}.")
    if enable_debug_mode and not intermediates:
        intermediates = str(path.with_suffix("")) + "_debug"
    chosen = None
    if target.startswith("ethos-u"):
        flags = ["--enable-debug-db"] if enable_debug_mode else None
        chosen = options.settings_of(quantization=options.Quantization(target=target, scheme=SCHEMES[mode.upper()])).with_(
            system_config=system_config, memory_mode=memory_mode, config_ini=config, vela_flags=flags, etrecord=etrecord
        )
    is_new_folder = (
        path.parent == Path(output) and not path.parent.exists()
    )  # like the script, create the folder only before writing to it
    if is_new_folder:
        check_folder(path.parent)
    else:
        check_writable(path)
    find(name)
    from ethorch.cli.model_options import inputs_from, load_with_weights
    from ethorch.formats.files import write_folder
    from ethorch.program.compile import compile as compiled
    from ethorch.program.compile import user_model
    from ethorch.program.saving import delegate_files, save_etrecord

    if so_library is not None:
        import torch

        try:
            torch.ops.load_library(str(so_library))
        except OSError as error:
            raise SpecError(f"--so_library: cannot load {so_library}: {error}.") from error
    user = user_model(load_with_weights(name))
    if chosen is not None and delegate and not quantize and not user.quantized:
        raise SpecError("the NPU requires a quantized model, got a float model. Use -q to quantize the model.")
    if model_input is not None:
        user = user_model(user, inputs_from([model_input], user.example_inputs))
    record = path.with_name(f"{path.stem}_etrecord.bin") if etrecord else None
    calibration = None if calibration_data is None else str(calibration_data)
    if is_new_folder and etrecord:
        path.parent.mkdir(parents=True)
    if chosen is None or not delegate:
        user = user_model(user, calibration=calibration)
        answer_data = _compile_other_target(
            user, target, SCHEMES[mode.upper()], path, record, quantize, delegate, intermediates, explicit_layout
        )
        return Answer(answer_data, lambda: f"{answer_data['summary']}Saved {path}")
    program = compiled(user, settings=chosen, calibration=calibration)
    path.parent.mkdir(parents=True, exist_ok=True)
    program.save(path)
    from ethorch.program.program import record_of

    build = record_of(program).build
    assert build is not None
    if intermediates:
        write_folder(Path(intermediates), delegate_files(build.delegates), obsolete=["delegate_*"])
    if record is not None:
        save_etrecord(build.etrecord, record)
    return Answer({"output": str(path), **program.to_json()}, lambda: stack(program.__rich__(), f"Saved {path}"))


def _compile_other_target(
    user: UserModel,
    target: str,
    scheme: str,
    path: Path,
    record: Path | None,
    quantize: bool,
    delegate: bool,
    intermediates: str,
    explicit_layout: bool,
) -> dict[str, Any]:
    from ethorch.backend.other_programs import lower_for_cortex_m, lower_for_cpu, lower_to_tosa
    from ethorch.program.other_targets import quantize_for, save
    from ethorch.targets.compile_spec import EthosUCompileSpec
    from ethorch.targets.tosa_spec import TosaCompileSpec

    inputs, with_record = user.example_inputs, record is not None
    if target.startswith("cortex-m"):
        if explicit_layout and not quantize:
            raise SpecError("--cortex-m-explicit-layout requires a quantized model. Add -q.")
        samples = list(user.calibration) or [inputs]
        user.module.eval()
        program = lower_for_cortex_m(
            user.module, inputs, target, samples, quantize=quantize, explicit_layout=explicit_layout, record=with_record
        )
    else:
        spec = TosaCompileSpec(target) if target.startswith("TOSA") else EthosUCompileSpec(target)
        if quantize:
            user = quantize_for(user, spec, scheme)
        if delegate and isinstance(spec, TosaCompileSpec):
            spec.dump_intermediate_artifacts_to(intermediates or None)
            program = lower_to_tosa(user.module, inputs, spec, record=with_record)
        else:
            program = lower_for_cpu(user.module, inputs, record=with_record)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(program, path, record)
    return {"output": str(path), "target": target, "summary": "" if program.report is None else f"{program.report.summary()}\n"}


def _stem(model: str) -> str:
    place, _, name = model.rpartition(":")
    return name if place and not name.endswith(".py") else Path(model).stem
