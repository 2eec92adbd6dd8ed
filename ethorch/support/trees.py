"""Flatten nested values and recognize tensors without importing torch.

Until torch is imported, only lists, tuples and dicts are flattened.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def is_tensor(value: Any) -> bool:
    """Return True if the value is a ``torch.Tensor``, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def flatten(nest: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """Return a nested value's leaves in order, and a function that builds the same structure from other leaves."""
    if "torch" in sys.modules:
        from torch.utils import _pytree as pytree

        leaves, spec = pytree.tree_flatten(nest)
        return leaves, lambda values: pytree.tree_unflatten(list(values), spec)
    leaves = []
    build = _builder(nest, leaves)
    return leaves, lambda values: build(iter(values))


def leaves(nest: Any) -> list[Any]:
    return flatten(nest)[0]


def order_like(nest: Any, example: Any) -> Any:
    """Return the nest with the mappings in the order of ``example``, or None if their keys differ."""
    if isinstance(nest, Mapping) and isinstance(example, Mapping):
        if nest.keys() != example.keys():
            return None
        ordered = {key: order_like(nest[key], part) for key, part in example.items()}
        return None if any(ordered[key] is None is not nest[key] for key in nest) else ordered
    if type(nest) in (list, tuple) and isinstance(example, (list, tuple)) and len(nest) == len(example):
        parts = [order_like(value, part) for value, part in zip(nest, example, strict=True)]
        return None if any(part is None is not value for part, value in zip(parts, nest, strict=True)) else type(nest)(parts)
    return nest


def _builder(nest: Any, leaves: list[Any]) -> Callable[[Any], Any]:
    if type(nest) is dict:
        parts = {key: _builder(value, leaves) for key, value in nest.items()}
        return lambda values: {key: part(values) for key, part in parts.items()}
    if type(nest) in (list, tuple):
        kind, builders = type(nest), [_builder(value, leaves) for value in nest]
        return lambda values: kind([build(values) for build in builders])
    leaves.append(nest)
    return next
