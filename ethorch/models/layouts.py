"""Convert inputs and outputs to NHWC, e.g. for cameras.

NPU feature maps are NHWC, so a contiguous NCHW input requires a transpose. Inputs in ``channels_last`` format and inputs of
``NhwcIo`` do not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ethorch.models.load import UserModel, Wrapper
from ethorch.support.errors import EthorchError
from ethorch.tosa.layout import nhwc_axis


def to_nhwc(value: Any) -> Any:
    """Permute a tensor [N, C, H, W] or [N, C, D, H, W] to channels last. Return other values unchanged."""
    return value.permute(0, *range(2, value.dim()), 1) if isinstance(value, Tensor) and value.dim() in (4, 5) else value


def from_nhwc(value: Any) -> Any:
    """Invert :func:`to_nhwc`."""
    mapped = isinstance(value, Tensor) and value.dim() in (4, 5)
    return value.permute(0, value.dim() - 1, *range(1, value.dim() - 1)) if mapped else value


class NhwcIo(Wrapper):
    """A wrapper of a model, with inputs and outputs of shape [N, H, W, C] or [N, D, H, W, C].

    Wrap the model before ``torch.export``. The wrapper's permutes do not move data on the NPU. Convert calibration samples with
    ``ethorch.models.layouts.nhwc_inputs``.
    """

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any) -> Any:
        return pytree.tree_map(to_nhwc, self.module(*pytree.tree_map(from_nhwc, inputs)))


def nhwc_inputs(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Convert the inputs of a model to contiguous inputs of :class:`NhwcIo`."""
    return tuple(pytree.tree_map(lambda x: to_nhwc(x).contiguous() if isinstance(x, torch.Tensor) else x, inputs))


def with_nhwc_io(model: UserModel) -> UserModel:
    """Wrap a float model in :class:`NhwcIo`.

    Raises:
        EthorchError: The model is already quantized.
    """
    if model.quantized:
        raise EthorchError(
            "expected a float model, got a quantized model. Wrap the float model in ethorch.models.layouts.NhwcIo before export."
        )
    calibration = [nhwc_inputs(inputs) for inputs in model.calibration]
    wrapped = NhwcIo(model.module)
    wrapped.training = False  # not eval(), which exported modules do not support
    return UserModel(wrapped, nhwc_inputs(model.example_inputs), calibration, dynamic_shapes=_nhwc_dims(model))


def _nhwc_dims(model: UserModel) -> list[dict[int, Any]] | None:
    if model.dynamic_shapes is None:
        return None
    tensors = [leaf for leaf in pytree.tree_leaves(model.example_inputs) if isinstance(leaf, Tensor)]
    dims = zip(tensors, model.dynamic_shapes, strict=True)
    return [{nhwc_axis(axis, x.dim()): size for axis, size in sizes.items()} for x, sizes in dims]
