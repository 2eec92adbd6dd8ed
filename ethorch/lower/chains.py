"""Chains of pointwise operators, each lowered to one table lookup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.fx import Node

from ethorch.lower.builder.qparams import QTensor
from ethorch.lower.fx.node import as_tensor, aten_call, flat
from ethorch.lower.ops.spec import OpSpec


@dataclass(frozen=True)
class OnCpu:
    """A value not available on the NPU."""

    node: Node


@dataclass(frozen=True)
class PointwiseChain:
    """A chain of pointwise operators on one quantized tensor.

    Attributes:
        source: The only non-constant operand of the chain.
        end: The last operator of the chain.
        steps: Whether the chain's function has discontinuities, across which a table must not interpolate.
    """

    source: QTensor
    end: Node
    steps: bool = False


def has_chain(args: Any) -> bool:
    return any(isinstance(value, PointwiseChain) for value in flat(args))


def chain_source(node: Node, spec: OpSpec, env: Mapping[Node, Any], shape: tuple[int, ...], *, quantized: bool) -> QTensor | None:
    """Return the quantized tensor that a table for ``node`` would read, or None if no table can compute ``node``.

    Args:
        env: Lowered values of earlier nodes.
        shape: Shape of the result. The returned tensor must have this shape, because a table does not broadcast.
        quantized: Whether a quantize node reads the result.
    """
    if not spec.pointwise:
        return None
    source: QTensor | None = None
    for arg in (*node.args, *node.kwargs.values()):
        x = env[arg] if isinstance(arg, Node) else arg
        if isinstance(x, np.ndarray) and x.size == 1:
            continue
        if isinstance(x, QTensor) and x.value.data is not None and x.value.data.size == 1:
            continue
        if isinstance(x, PointwiseChain):
            x = x.source
        if isinstance(x, QTensor):
            if not x.is_quantized or (source is not None and source != x):
                return None
            if x.qparams.dtype not in spec.table_dtypes and (spec.lower is not None or not quantized):
                return None
            source = x
        elif isinstance(arg, Node):
            return None
    if source is None or source.value.is_const or source.shape != shape:
        return None
    return source


def entries(chain: PointwiseChain, env: Mapping[Node, Any]) -> npt.NDArray[np.float32]:
    """Evaluate the chain for each input in ``chain.source.qparams.table_inputs``."""
    codes = torch.from_numpy(chain.source.qparams.table_inputs)
    results: dict[Node, Any] = {}

    def run(node: Node) -> Any:
        if node not in results:
            inside = node is chain.end or isinstance(env[node], PointwiseChain)
            results[node] = call(node) if inside else _leaf(env[node], codes)
        return results[node]

    def call(node: Node) -> Any:
        target, keywords = aten_call(node)
        fresh = target._schema.is_mutable  # an in-place operator must not change the operands of other operators

        def value(arg: Any) -> Any:
            result = run(arg) if isinstance(arg, Node) else arg
            return result.clone() if fresh and isinstance(result, torch.Tensor) else result

        with torch.no_grad():
            return target(*map(value, node.args), **{key: value(arg) for key, arg in keywords.items()})

    reals: npt.NDArray[np.float32] = run(chain.end).expand(codes.shape).to(torch.float32).numpy()
    return reals


def _leaf(x: Any, codes: torch.Tensor) -> torch.Tensor:
    if isinstance(x, np.ndarray):
        return as_tensor(x).reshape(())
    if x.value.data is not None:
        return torch.from_numpy(x.qparams.dequantize(x.value.data.astype(np.int32))).reshape(())
    return codes
