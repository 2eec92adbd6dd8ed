from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ethorch.models.load import UserModel, in_eval_mode

_CONVOLUTIONS = nn.Conv1d, nn.Conv2d, nn.Conv3d
_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d


def narrow_convolution(user: UserModel, name: str, channels: int) -> UserModel | None:
    """Return a copy of the model with ``channels`` output channels in convolution ``name``, to estimate savings before training.

    Layers that read these channels (convolutions, batch norms, linear layers) are adapted. Return None if ``name`` is not an
    ungrouped convolution with more output channels, or if the narrowed model fails, e.g. because of a residual addition or a view.
    """
    module = copy.deepcopy(user.module)
    conv = dict(module.named_modules()).get(name)
    if not isinstance(conv, _CONVOLUTIONS) or conv.groups != 1 or not 0 < channels < conv.out_channels:
        return None
    _keep_channels(conv, channels)
    conv.out_channels = channels
    hooks = [part.register_forward_pre_hook(_fit_to_input) for part in module.modules()]
    try:
        with torch.no_grad(), in_eval_mode(module):
            module(*user.example_inputs)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None
    finally:
        for hook in hooks:
            hook.remove()
    return replace(user, module=module)


def _fit_to_input(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    x = inputs[0] if inputs else None
    if not isinstance(x, Tensor) or x.dim() < 2:
        return
    if isinstance(module, _CONVOLUTIONS) and x.dim() == module.weight.dim() and x.shape[1] < module.in_channels:
        if module.groups == 1:
            _set_tensor(module, "weight", module.weight[:, : x.shape[1]])
        elif module.groups == module.in_channels:  # depthwise: reduce the outputs as well
            outputs = x.shape[1] * module.out_channels // module.groups
            _keep_channels(module, outputs)
            module.groups, module.out_channels = x.shape[1], outputs
        module.in_channels = x.shape[1]
    elif isinstance(module, _NORMS) and x.shape[1] < module.num_features:
        _keep_channels(module, x.shape[1])
        module.num_features = x.shape[1]
    elif isinstance(module, nn.Linear) and x.shape[-1] < module.in_features:
        _set_tensor(module, "weight", module.weight[:, : x.shape[-1]])
        module.in_features = x.shape[-1]


def _keep_channels(module: nn.Module, count: int) -> None:
    for name in ("weight", "bias", "running_mean", "running_var"):
        value = getattr(module, name, None)
        if isinstance(value, Tensor):
            _set_tensor(module, name, value[:count])


def _set_tensor(module: nn.Module, name: str, value: Tensor) -> None:
    copied = value.detach().clone()
    setattr(module, name, nn.Parameter(copied) if name in module._parameters else copied)
