"""``ethorch aot-arm-compiler``, with the options of ExecuTorch's Arm script."""

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
#: Schemes, which some versions of the script accept after -q.
SCHEMES = {"INT8": "int8", "A16W8": "a16w8"}
#: Options with an optional value, their values, and the option that sets the value.
_OPTIONAL = {
    "-q": (tuple(SCHEMES), "--quant_mode"),
    "--quantize": (tuple(SCHEMES), "--quant_mode"),
    "-e": (("GENERIC", "MV2", "DEIT_TINY", "RESNET18"), "--evaluate_kind"),
    "--evaluate": (("GENERIC", "MV2", "DEIT_TINY", "RESNET18"), "--evaluate_kind"),
}


def with_mode(arguments: Sequence[str]) -> list[str]:
    """Expand the optional value of an option: ``-q A16W8`` becomes ``-q --quant_mode A16W8``."""
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
            "--model_name", "-m", help="As MODEL of `compile`, or a name of ExecuTorch's examples or torchvision.", metavar="MODEL"
        ),
    ],
    model_input: Annotated[Path | None, typer.Option("--model_input", help="A file of example inputs.", metavar="FILE")] = None,
    delegate: Annotated[bool, typer.Option("--delegate", "-d", help="Use the NPU, or write TOSA.")] = False,
    quantize: Annotated[bool, typer.Option("--quantize", "-q", help="Quantize the model; INT8 or A16W8 may follow.")] = False,
    quant_mode: Annotated[str | None, typer.Option("--quant_mode", help="INT8 (default) or A16W8.")] = None,
    target: Annotated[
        str, typer.Option("--target", "-t", help="NPU, TOSA-1.0+INT, TOSA-1.0+INT+int16, TOSA-1.0+FP, or cortex-m55.")
    ] = "ethos-u55-128",
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
    so_library: Annotated[
        Path | None, typer.Option("--so_library", "-s", help="A library of custom operators to load first.", metavar="FILE")
    ] = None,
    enable_debug_mode: Annotated[
        str | None, typer.Option("--enable_debug_mode", help="json or tosa: keep TOSA graphs with source lines.", metavar="MODE")
    ] = None,
    explicit_layout: Annotated[
        bool, typer.Option("--cortex-m-explicit-layout", help="For Cortex-M: permute tensors instead of channels last.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Accepted; use --verbose.")] = False,
    non_strict_export: Annotated[bool, typer.Option("--non_strict_export", help="Accepted; export always is.")] = False,
    evaluate: Annotated[bool, typer.Option("--evaluate", "-e", help="Accepted without effect; use `ethorch evaluate`.")] = False,
    evaluate_kind: Annotated[str | None, typer.Option("--evaluate_kind", help="Value of -e.")] = None,
    evaluate_config: Annotated[
        str | None, typer.Option("--evaluate_config", "-c", help="Accepted without effect; use `ethorch evaluate`.")
    ] = None,
    enable_qdq_fusion_pass: Annotated[
        bool, typer.Option("--enable_qdq_fusion_pass", help="Accepted without effect, as in the script.")
    ] = False,
    direct_drive: Annotated[bool, typer.Option("--direct_drive", help="Not supported.")] = False,
) -> Answer:
    """Compile as ExecuTorch's Arm script does, with its options."""
    from ethorch.models.user_code import find
    from ethorch.models.zoos import zoo_of
    from ethorch.program.saving import check_folder, check_writable

    if target == "vgf":
        raise SpecError("VGF output is not supported; write TOSA instead with -t TOSA-1.0+INT or -t TOSA-1.0+FP.")
    if direct_drive:
        raise SpecError("--direct_drive is not supported yet. Remove it.")
    if enable_debug_mode not in (None, "json", "tosa"):
        raise SpecError(f"--enable_debug_mode is {enable_debug_mode!r}; expected json or tosa.")
    mode = quant_mode or ("A16W8" if "int16" in target else "INT8")
    if mode.upper() not in SCHEMES:
        raise SpecError(f"--quant_mode is {mode!r}; it can be {' or '.join(SCHEMES)}.")
    if calibration_data is not None and not quantize:
        raise SpecError("--calibration_data requires -q. Add -q, or remove --calibration_data.")
    if evaluate or evaluate_config is not None:
        print(
            "--evaluate and --evaluate_config have no effect, as in ExecuTorch's script; use `ethorch evaluate`.", file=sys.stderr
        )
    if enable_qdq_fusion_pass:
        print("--enable_qdq_fusion_pass has no effect, as in ExecuTorch's script.", file=sys.stderr)
    on_cpu = target.startswith("cortex-m") or not delegate
    name = model if ":" in model or "." in model else f"{zoo_of(model)}:{model}"
    file = f"{_stem(model)}_arm_{'' if on_cpu else 'delegate_'}{target}.{'bpte' if bundleio else 'pte'}"
    path = Path(output) if Path(output).suffix in (".pte", ".bpte") else Path(output) / file
    if path.suffix != (".bpte" if bundleio else ".pte"):
        raise SpecError(f"--output is {output}; with{'' if bundleio else 'out'} --bundleio it has to end in {Path(file).suffix}.")
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
    )  # created only if there is something to write, as by the script
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
            raise SpecError(f"--so_library is {so_library}, which cannot be loaded: {error}.") from error
    user = user_model(load_with_weights(name))
    if chosen is not None and delegate and not quantize and not user.quantized:
        raise SpecError("the NPU computes in integers: add -q to quantize the model, or name one that is quantized.")
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
            raise SpecError("--cortex-m-explicit-layout needs a quantized model: add -q.")
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
