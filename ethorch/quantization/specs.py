"""Create and check torchao specs."""

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

from ethorch.lower.ops.quant_rules import QuantRule
from ethorch.quantization.activation_observer import ActivationObserver, compute_range_qparams
from ethorch.quantization.config import QuantizationConfig
from ethorch.quantization.weight_observer import WeightObserver
from ethorch.support.errors import QuantizationError

#: Key of ``Node.meta`` at which torchao stores a node's annotation.
ANNOTATION = "quantization_annotation"


def is_annotated(node: Node) -> bool:
    return ANNOTATION in node.meta and bool(node.meta[ANNOTATION]._annotated)


@dataclass(frozen=True)
class FixedRangeSpec(QuantizationSpec):  # type: ignore[misc]  # torchao has no annotations
    """A spec with a fixed range that limits the observer. See ``ActivationObserver``."""

    fixed_range: tuple[float, float] = (0.0, 1.0)


def fixed_spec(rule: QuantRule, like: QuantizationSpec, is_qat: bool) -> QuantizationSpecBase:
    """Return the spec of an output with the known range of ``rule``.

    The range limits an ``ActivationObserver``. In training, and for other observers, it determines the quantization parameters.

    Args:
        like: Spec of outputs without a known range. Its integer limits default to those of its dtype.
    """
    codes = torch.iinfo(like.dtype)
    assert rule.fixed_range is not None and rule.most_int8 is not None
    fixed_range = (rule.fixed_range[0], rule.most_int8) if codes.bits == 8 else rule.fixed_range
    if not is_qat and _class_of(like.observer_or_fake_quant_ctr) is ActivationObserver:
        fields = {f.name: getattr(like, f.name) for f in dataclasses.fields(like)}
        return FixedRangeSpec(**fields, fixed_range=fixed_range)
    low = codes.min if like.quant_min is None else like.quant_min
    high = codes.max if like.quant_max is None else like.quant_max
    scale, zero = compute_range_qparams(fixed_range, like.dtype, low, high)
    return FixedQParamsQuantizationSpec(
        dtype=like.dtype, scale=scale, zero_point=zero, quant_min=low, quant_max=high, qscheme=torch.per_tensor_affine
    )


def check_int32(config: QuantizationConfig) -> None:
    """Check that int32 activations are symmetric.

    Raises:
        QuantizationError: A nonzero zero point, which would overflow in ExecuTorch's CPU kernel, is possible.
    """
    for spec in (config.input_activation, config.output_activation):
        if spec is not None and spec.dtype == torch.int32 and spec.qscheme != torch.per_tensor_symmetric:
            raise QuantizationError(
                "config.int32_zero_point",
                f"expected torch.per_tensor_symmetric for int32 activations, got {spec.qscheme}. A nonzero zero point "
                "would overflow in ExecuTorch's CPU kernel.",
            )


def _class_of(maker: Any) -> Any:
    partial = getattr(maker, "p", None)
    return partial.func if isinstance(partial, functools.partial) else maker


def per_tensor(spec: QuantizationSpec, maker: Any) -> QuantizationSpec:
    """Return a weight spec with one scale. The observer factory ``maker`` defaults to ``WeightObserver``."""
    return dataclasses.replace(
        spec, qscheme=torch.per_tensor_symmetric, ch_axis=None, observer_or_fake_quant_ctr=maker or WeightObserver
    )


def on_axis(spec: QuantizationSpec, axis: int) -> QuantizationSpec:
    """Return a weight spec with one scale for each index of ``axis``."""
    maker = spec.observer_or_fake_quant_ctr
    partial = getattr(maker, "p", None)
    if isinstance(partial, functools.partial):  # torchao reads the name of partial.func, which with_args hides
        maker = type(maker)(functools.partial(partial.func, *partial.args, **{**partial.keywords, "ch_axis": axis}))
    return dataclasses.replace(spec, ch_axis=axis, observer_or_fake_quant_ctr=maker)


def dtype_of(qspec: QuantizationSpecBase) -> torch.dtype | None:
    """Return the dtype of a spec, resolving shared specs, or None if the spec has no dtype."""
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
    raise QuantizationError(
        "quantize.shared_circle",
        "expected SharedQuantizationSpecs that lead to another spec, got a cycle. Check the quantizer's annotations.",
    )
