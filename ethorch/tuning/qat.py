"""Quantization-aware training."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule
from torchao.quantization.pt2e import allow_exported_model_train_eval, disable_observer
from torchao.quantization.pt2e.quantize_pt2e import prepare_qat_pt2e

from ethorch.lower.fx.export import export_module
from ethorch.lower.fx.node import op_name
from ethorch.models.load import UserModel
from ethorch.quantization.config import QuantizationConfig
from ethorch.quantization.constrained_weights import constrain_prepared, settle, take_out
from ethorch.quantization.prepare import convert
from ethorch.quantization.schemes import quantizer_for
from ethorch.quantization.trained_batch_norms import fold_trained_batch_norms
from ethorch.support.errors import QuantizationError
from ethorch.support.exclusive import exclusive
from ethorch.targets.settings import Settings

#: Position of the ``training`` argument of each batch normalization operator.
_TRAINING = {"aten.batch_norm.default": 5, "aten._native_batch_norm_legit.default": 5, "aten.cudnn_batch_norm.default": 5}


@exclusive()
def prepare_qat(
    model: nn.Module,
    example_inputs: Any,
    *,
    scheme: str | QuantizationConfig | None = None,
    target: str | None = None,
    settings: Settings | None = None,
) -> GraphModule:
    """Return a trainable graph that computes the model with the NPU's rounding.

    Train the graph like the float model, with a smaller learning rate. Training also changes ``model``, because the graph shares
    the model's parameters and buffers. Call ``freeze_qat`` before the last epochs, and ``convert_qat`` after training. Constraints
    of ``ethorch.tuning.compress.constrain`` remain in effect.

    Args:
        model: Float model, which is set to training mode.
        example_inputs: One training batch. ``convert_qat`` may use another batch size.
        scheme: A name in ``ethorch.targets.settings.SCHEMES``, or a QuantizationConfig with ``is_qat=True``.
        settings: Compilation settings. Arguments ``scheme`` and ``target`` take precedence.

    Raises:
        QuantizationError: The QuantizationConfig has ``is_qat=False``.
        UserCodeError: The model does not run with these inputs, or cannot be exported.
    """
    settings = (settings or Settings()).with_(scheme=scheme, target=target)
    if settings.config is not None and not settings.config.is_qat:
        raise QuantizationError("config.not_qat", "expected a QuantizationConfig with is_qat=True, got is_qat=False")
    user = UserModel(model, example_inputs)
    graph = export_module(user.module.train(), user.example_inputs, any_batch=True).module(check_guards=False)
    rules = take_out(graph)
    prepared: GraphModule = prepare_qat_pt2e(graph, quantizer_for(settings, user.module, is_qat=True))
    constrain_prepared(prepared, rules)
    allow_exported_model_train_eval(prepared)
    return prepared


def freeze_qat(prepared: GraphModule, *, batch_norm: bool = True, ranges: bool = True) -> GraphModule:
    """Freeze observers and batch norm statistics, so that the last epochs train with the deployed quantization parameters.

    Args:
        prepared: Graph module from ``prepare_qat``, changed in place.
        batch_norm: Whether to freeze batch norms' mean and variance.
        ranges: Whether to freeze scales and zero points.
    """
    if ranges:
        prepared.apply(disable_observer)
    if batch_norm:
        train = prepared.train

        def train_frozen(mode: bool = True) -> GraphModule:
            train(mode)
            _freeze_batch_norm(prepared)
            return prepared

        prepared.train = train_frozen  # type: ignore[method-assign]
        _freeze_batch_norm(prepared)
    return prepared


def _freeze_batch_norm(prepared: GraphModule) -> None:
    for node in prepared.graph.nodes:
        position = _TRAINING.get(op_name(node.target)) if node.op == "call_function" else None
        if position is not None:
            node.args = (*node.args[:position], False, *node.args[position + 1 :])
    prepared.recompile()


@exclusive()
def convert_qat(prepared: GraphModule, example_inputs: Any = None) -> GraphModule:
    """Return the trained model as a quantized model in evaluation mode, for ``ethorch.compile``.

    Args:
        prepared: Trained graph module from ``prepare_qat``, which must not be used afterwards.
        example_inputs: Inputs of one inference. Required if the batch size differs from training.
    """
    prepared.eval()
    settle(prepared)
    fold_trained_batch_norms(prepared)
    converted = convert(prepared)
    if example_inputs is None:
        return converted
    inputs = UserModel(converted, example_inputs).example_inputs
    with torch.no_grad():
        exported: GraphModule = export_module(converted, inputs).module(check_guards=False)
    return exported
