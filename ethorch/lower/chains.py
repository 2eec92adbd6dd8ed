"""Chains of pointwise operators on one quantized tensor: not computed until a quantize node turns one into a TABLE."""

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
    """A tensor that the NPU does not have: the CPU computes it, for the reason given where it is used."""

    node: Node


@dataclass(frozen=True)
class PointwiseChain:
    """Pointwise operators on one quantized tensor, not yet computed.

    Attributes:
        source: the quantized tensor that they all depend on, and nothing else that is not constant.
        end: the last operator.
        steps: what they compute jumps, so that interpolation between the entries of a table would round off the jumps.
    """

    source: QTensor
    end: Node
    steps: bool = False


def has_chain(args: Any) -> bool:
    """Is a chain among the arguments?"""
    return any(isinstance(value, PointwiseChain) for value in flat(args))


def chain_source(node: Node, spec: OpSpec, env: Mapping[Node, Any], shape: tuple[int, ...], *, quantized: bool) -> QTensor | None:
    """The one quantized tensor that a pointwise operator depends on, directly or through a chain.

    Args:
        env: what stands for each node before this one.
        shape: the result's shape, which the tensor must have: a table does not broadcast.
        quantized: a quantize node reads the result.

    Returns:
        None where there are several such tensors or none, or where a table of their dtype does not say what the operator does.
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
    """float32[entries]: the chain's operators, run on the real number of each of ``chain.source.qparams.table_inputs``.

    ``env`` says what stands for each node: a chain for those that belong to this one, a tensor or a constant for its leaves.
    """
    codes = torch.from_numpy(chain.source.qparams.table_inputs)
    results: dict[Node, Any] = {}

    def run(node: Node) -> Any:
        if node not in results:
            inside = node is chain.end or isinstance(env[node], PointwiseChain)
            results[node] = call(node) if inside else _leaf(env[node], codes)
        return results[node]

    def call(node: Node) -> Any:
        target, keywords = aten_call(node)
        fresh = target._schema.is_mutable  # an in-place form must not write into what others still read

        def value(arg: Any) -> Any:
            result = run(arg) if isinstance(arg, Node) else arg
            return result.clone() if fresh and isinstance(result, torch.Tensor) else result

        with torch.no_grad():
            return target(*map(value, node.args), **{key: value(arg) for key, arg in keywords.items()})

    reals: npt.NDArray[np.float32] = run(chain.end).expand(codes.shape).to(torch.float32).numpy()
    return reals


def _leaf(x: Any, codes: torch.Tensor) -> torch.Tensor:
    """What a chain's leaf is when the chain runs over its source's codes: the codes, or a constant."""
    if isinstance(x, np.ndarray):
        return as_tensor(x).reshape(())
    if x.value.data is not None:
        return torch.from_numpy(x.qparams.dequantize(x.value.data.astype(np.int32))).reshape(())
    return codes
