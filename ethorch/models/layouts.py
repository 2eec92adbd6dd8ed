"""NHWC at the program's boundary, for cameras and other sources that deliver pixels that way.

On the NPU maps are NHWC. A contiguous NCHW input therefore costs a transpose there (mobilenet_v2: 6 % of its cycles on
u85-256); ``channels_last`` inputs cost none, and neither do those of a model wrapped here, whose bytes are the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ethorch.models.load import UserModel
from ethorch.support.errors import EthorchError
from ethorch.tosa.layout import nhwc_axis


def to_nhwc(value: Any) -> Any:
    """A [N, C, H, W] tensor as [N, H, W, C], [N, C, D, H, W] as [N, D, H, W, C]; anything else as it is."""
    return value.permute(0, *range(2, value.dim()), 1) if isinstance(value, Tensor) and value.dim() in (4, 5) else value


def from_nhwc(value: Any) -> Any:
    """The inverse of ``to_nhwc``."""
    mapped = isinstance(value, Tensor) and value.dim() in (4, 5)
    return value.permute(0, value.dim() - 1, *range(1, value.dim() - 1)) if mapped else value


class NhwcIo(nn.Module):
    """A model whose inputs and outputs of rank 4 and 5 have their channels last in the shape: [N, H, W, C], [N, D, H, W, C].

    Wrap before ``torch.export``; the permutes it adds move no data on the NPU. Calibrate with inputs of the new shape:
    ``ethorch.models.layouts.nhwc_inputs(inputs)`` makes them.
    """

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any) -> Any:
        """The module's results for inputs in NHWC, in NHWC."""
        return pytree.tree_map(to_nhwc, self.module(*pytree.tree_map(from_nhwc, inputs)))


def nhwc_inputs(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Inputs of the wrapped model from inputs of the model, contiguous."""
    return tuple(pytree.tree_map(lambda x: to_nhwc(x).contiguous() if isinstance(x, torch.Tensor) else x, inputs))


def with_nhwc_io(model: UserModel) -> UserModel:
    """The model with inputs and outputs in NHWC (see ``ethorch.models.layouts``).

    Raises:
        EthorchError: it is quantized already: wrap the float model.
    """
    if model.quantized:
        raise EthorchError(
            "the model is quantized already; wrap the float model in ethorch.models.layouts.NhwcIo before torch.export."
        )
    calibration = [nhwc_inputs(inputs) for inputs in model.calibration]
    wrapped = NhwcIo(model.module)
    wrapped.training = False  # not eval(): a module that torch.export made refuses it
    return UserModel(wrapped, nhwc_inputs(model.example_inputs), calibration, dynamic_shapes=_nhwc_dims(model))


def _nhwc_dims(model: UserModel) -> list[dict[int, Any]] | None:
    """The open dims of the model's inputs where they are in NHWC."""
    if model.dynamic_shapes is None:
        return None
    tensors = [leaf for leaf in pytree.tree_leaves(model.example_inputs) if isinstance(leaf, Tensor)]
    dims = zip(tensors, model.dynamic_shapes, strict=True)
    return [{nhwc_axis(axis, x.dim()): size for axis, size in sizes.items()} for x, sizes in dims]
