"""Compile models to TOSA, and save programs for TOSA and for the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import nn

from ethorch.backend.bundled import bundle_program
from ethorch.backend.other_programs import OtherProgram, lower_to_tosa
from ethorch.formats.files import write_whole
from ethorch.models.load import UserModel, in_eval_mode
from ethorch.program.saving import save_etrecord
from ethorch.quantization.calibrate import quantize
from ethorch.quantization.quantizer import TOSAQuantizer
from ethorch.quantization.schemes import CONFIGS
from ethorch.support.errors import EthorchError
from ethorch.support.quiet import quiet
from ethorch.targets.compile_spec import ArmCompileSpec
from ethorch.targets.tosa_spec import TosaCompileSpec


def compile_to_tosa(user: UserModel, spec: TosaCompileSpec, scheme: str, *, record: bool = False) -> OtherProgram:
    """Compile a model to TOSA delegates. If the TOSA specification has the profile INT, quantize the model first."""
    if spec.tosa_spec.support_integer():
        user = quantize_for(user, spec, scheme)
    with quiet(), in_eval_mode(user.module):
        return lower_to_tosa(user.module, user.example_inputs, spec, record=record)


def quantize_for(user: UserModel, spec: ArmCompileSpec, scheme: str) -> UserModel:
    """Quantize a model for any Ethos-U or TOSA compile spec."""
    with quiet(), in_eval_mode(user.module):
        quantizer = TOSAQuantizer(spec).set_global(CONFIGS[scheme](False))
        module: nn.Module = quantize(user, spec, quantizer=quantizer)
    return replace(user, module=module, quantized=True)


def save(program: OtherProgram, path: Path, record: Path | None = None) -> None:
    """Write a program as ``.pte``, ``.bpte`` or ``.tosa``. Write the ETRecord of a ``.pte`` or ``.bpte`` to ``record``, if set."""
    if path.suffix == ".tosa":
        write_whole(path, program.tosa())
        return
    if path.suffix not in (".pte", ".bpte"):
        raise EthorchError(f"expected a file name that ends in .pte, .bpte or .tosa, got {path}.")
    if record is None:
        data = program.pte()
    else:
        data, etrecord = program.with_record()
        save_etrecord(etrecord, record)
    if path.suffix == ".bpte":
        outputs = program.module(*program.inputs)
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        data = bundle_program(data, "forward", [(program.inputs, outputs)])
    write_whole(path, data)
