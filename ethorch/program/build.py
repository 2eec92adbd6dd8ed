"""One quantized model to the record of its program, by the settings as they are."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch.fx import GraphModule

from ethorch.models.load import (
    UserModel,
    in_eval_mode,
)
from ethorch.program.methods import built, check_modules, in_layout
from ethorch.program.record import Record
from ethorch.program.saving import save_etrecord
from ethorch.quantization.calibrate import quantize as quantize_model
from ethorch.quantization.config import QuantizationConfig
from ethorch.quantization.schemes import quantizer_for
from ethorch.support.errors import EthorchError
from ethorch.support.exclusive import exclusive
from ethorch.support.metrics import Metric
from ethorch.targets.settings import Settings


def quantize_user_model(user: UserModel, settings: Settings, config: QuantizationConfig | None) -> GraphModule:
    """Return the model with quantize and dequantize operators, by the settings' scheme or by ``config``."""
    if not user.quantized:
        check_modules([user.module], settings)
    quantized = quantize_model(user, settings.spec, quantizer=quantizer_for(settings, config))
    if isinstance(quantized, GraphModule):
        return quantized
    raise EthorchError(f"the quantized model is {type(quantized).__name__}, not the graph module that convert_pt2e returns.")


def quantized_for(user: UserModel, settings: Settings) -> GraphModule:
    """The model quantized as the settings say, in the layout they say."""
    return quantize_user_model(*in_layout(user, settings), None)


def compile_once(user: UserModel, quantized: GraphModule, settings: Settings) -> Record:
    """The program of a model that ``quantized_for`` quantized by the same settings; budgets are compared and not searched for."""
    return build_record(user, quantized, settings, None)


def compile_beside(record: Record) -> Callable[[UserModel, Settings], Record]:
    """Compiles as ``compile`` does, without a search for budgets; what ``record`` has of the same model is not done again."""

    def once(user: UserModel, settings: Settings) -> Record:
        assert record.settings is not None
        with exclusive(), in_eval_mode(user.module):
            changed = replace(record.settings, arena=settings.arena, constants=settings.constants)
            same = record.model is user and changed == settings
            quantized = record.quantized if same else quantize_user_model(*in_layout(user, settings), None)
            assert isinstance(quantized, GraphModule)
            return build_record(user, quantized, settings, None, record.metric)

    return once


def build_record(
    user: UserModel,
    quantized: GraphModule,
    settings: Settings,
    config: QuantizationConfig | None,
    metric: Metric | None = None,
    dump: str | None = None,
    etrecord: str | os.PathLike[str] | None = None,
) -> Record:
    """Return the record of the program of one quantized model; budgets are compared and not searched for.

    Args:
        user: The model, with its channels as it has them.
        dump: A folder for TOSA graphs and payloads.
        etrecord: The file for ExecuTorch's ETRecord.
    """
    user, _ = in_layout(user, settings)
    build = built(user, quantized, settings, dump, etrecord=etrecord is not None)
    if etrecord is not None:
        save_etrecord(build.etrecord, Path(etrecord))
    return Record(build.pte, settings=settings, build=build, model=user, quantized=quantized, config=config, metric=metric)
