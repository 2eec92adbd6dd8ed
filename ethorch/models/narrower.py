"""The same model with fewer channels in one convolution: what reads them is cut to size where it is met, when the model runs."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ethorch.models.load import UserModel, in_eval_mode

_CONVOLUTIONS = nn.Conv1d, nn.Conv2d, nn.Conv3d
_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d


def narrowed(user: UserModel, name: str, channels: int) -> UserModel | None:
    """A copy of the model whose convolution ``name`` has so many output channels, to see what that is worth; it has to be trained.

    Convolutions, batch norms and linear layers that get fewer channels than they have lose the last ones, too. None where the
    model does not run with that: where what is added to those channels has as many as before, or a view counts on them.
    """
    module = copy.deepcopy(user.module)
    conv = dict(module.named_modules()).get(name)
    if not isinstance(conv, _CONVOLUTIONS) or conv.groups != 1 or not 0 < channels < conv.out_channels:
        return None
    _keep(conv, channels)
    conv.out_channels = channels
    hooks = [each.register_forward_pre_hook(_fit) for each in module.modules()]
    try:
        with torch.no_grad(), in_eval_mode(module):
            module(*user.example_inputs)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None
    finally:
        for hook in hooks:
            hook.remove()
    return replace(user, module=module)


def _fit(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Cuts the module to the channels that it gets."""
    x = inputs[0] if inputs else None
    if not isinstance(x, Tensor) or x.dim() < 2:
        return
    if isinstance(module, _CONVOLUTIONS) and x.dim() == module.weight.dim() and x.shape[1] < module.in_channels:
        if module.groups == 1:
            _set(module, "weight", module.weight[:, : x.shape[1]])
        elif module.groups == module.in_channels:  # depthwise: its outputs are fewer, too
            outputs = x.shape[1] * module.out_channels // module.groups
            _keep(module, outputs)
            module.groups, module.out_channels = x.shape[1], outputs
        module.in_channels = x.shape[1]
    elif isinstance(module, _NORMS) and x.shape[1] < module.num_features:
        _keep(module, x.shape[1])
        module.num_features = x.shape[1]
    elif isinstance(module, nn.Linear) and x.shape[-1] < module.in_features:
        _set(module, "weight", module.weight[:, : x.shape[-1]])
        module.in_features = x.shape[-1]


def _keep(module: nn.Module, count: int) -> None:
    """The first channels of all that the module has for each."""
    for name in ("weight", "bias", "running_mean", "running_var"):
        value = getattr(module, name, None)
        if isinstance(value, Tensor):
            _set(module, name, value[:count])


def _set(module: nn.Module, name: str, value: Tensor) -> None:
    kept = value.detach().clone()
    setattr(module, name, nn.Parameter(kept) if name in module._parameters else kept)
