"""Specs of torchao's, made to fit one operand: a range that is known, a weight whose channels lie on another axis."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torchao.quantization.pt2e.quantizer import (
    FixedQParamsQuantizationSpec,
    QuantizationSpec,
    QuantizationSpecBase,
    SharedQuantizationSpec,
)

from ethorch.quantization.activation_observer import ActivationObserver, known_qparams
from ethorch.quantization.config import QuantizationConfig
from ethorch.quantization.weight_observer import WeightObserver
from ethorch.support.errors import QuantizationError

#: Key of ``Node.meta`` under which torchao looks for a node's annotation.
ANNOTATION = "quantization_annotation"


def is_annotated(node: Node) -> bool:
    """Return True if a quantizer has annotated the node."""
    return ANNOTATION in node.meta and bool(node.meta[ANNOTATION]._annotated)


@dataclass(frozen=True)
class KnownRange(QuantizationSpec):  # type: ignore[misc]  # torchao has no annotations
    """A spec whose range mathematics knows; the observer is told. See ``ActivationObserver.known``."""

    known: tuple[float, float] = (0.0, 1.0)


def fixed_spec(known: tuple[float, float], like: QuantizationSpec, is_qat: bool) -> QuantizationSpecBase:
    """The spec of a result whose real range is ``known``.

    An ``ActivationObserver`` is told the range. Where the model trains, or the spec's observer is another, the qparams are fixed.

    Args:
        like: the spec of other results. All codes of its dtype are used where it gives no bounds, as torchao's observers do.
    """
    if not is_qat and _class_of(like.observer_or_fake_quant_ctr) is ActivationObserver:
        return KnownRange(**{f.name: getattr(like, f.name) for f in dataclasses.fields(like)}, known=known)
    codes = torch.iinfo(like.dtype)
    low = codes.min if like.quant_min is None else like.quant_min
    high = codes.max if like.quant_max is None else like.quant_max
    scale, zero = known_qparams(known, like.dtype, low, high)
    return FixedQParamsQuantizationSpec(
        dtype=like.dtype, scale=scale, zero_point=zero, quant_min=low, quant_max=high, qscheme=torch.per_tensor_affine
    )


def check_int32(config: QuantizationConfig) -> None:
    """Check that int32 activations have no zero point.

    Raises:
        QuantizationError: they may have one: ExecuTorch's CPU kernel subtracts it in 32 bits, which overflows.
    """
    for spec in (config.input_activation, config.output_activation):
        if spec is not None and spec.dtype == torch.int32 and spec.qscheme != torch.per_tensor_symmetric:
            raise QuantizationError(
                "config.int32_zero_point",
                f"int32 activations are quantized by {spec.qscheme}, whose zero point overflows in ExecuTorch's CPU kernel; "
                "expected torch.per_tensor_symmetric",
            )


def _class_of(maker: Any) -> Any:
    """The observer or fake-quantize class that ``maker`` makes: a class, or what its ``with_args`` returns."""
    partial = getattr(maker, "p", None)
    return partial.func if isinstance(partial, functools.partial) else maker


def per_tensor(spec: QuantizationSpec, maker: Any) -> QuantizationSpec:
    """A weight's spec with one scale for all of it; ``maker`` makes its observer, a ``WeightObserver`` where it is None."""
    return dataclasses.replace(
        spec, qscheme=torch.per_tensor_symmetric, ch_axis=None, observer_or_fake_quant_ctr=maker or WeightObserver
    )


def on_axis(spec: QuantizationSpec, axis: int) -> QuantizationSpec:
    """A weight's spec with a scale for each place of ``axis``."""
    maker = spec.observer_or_fake_quant_ctr
    partial = getattr(maker, "p", None)
    if isinstance(partial, functools.partial):  # torchao reads the name of partial.func, which with_args would hide
        maker = type(maker)(functools.partial(partial.func, *partial.args, **{**partial.keywords, "ch_axis": axis}))
    return dataclasses.replace(spec, ch_axis=axis, observer_or_fake_quant_ctr=maker)


def dtype_of(qspec: QuantizationSpecBase) -> torch.dtype | None:
    """The dtype that a spec ends up with, followed through sharing."""
    for _ in range(10_000):
        if not isinstance(qspec, SharedQuantizationSpec):
            return getattr(qspec, "dtype", None)
        shared = qspec.edge_or_node
        if isinstance(shared, tuple):
            qspec = shared[1].meta[ANNOTATION].input_qspec_map[shared[0]] if ANNOTATION in shared[1].meta else None
        else:
            qspec = shared.meta[ANNOTATION].output_qspec
        if qspec is None:
            return None
    raise QuantizationError("quantize.shared_circle", "annotations share in a circle")
