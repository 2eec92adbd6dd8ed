"""Flatten nested values and recognize tensors without importing torch.

Until torch is imported, only lists, tuples and dicts are flattened.
"""

from __future__ import annotations

import builtins
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import EnumMeta
from typing import Any


def is_tensor(value: Any) -> bool:
    """Return True if the value is a ``torch.Tensor``, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def flatten(nest: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """Return a nested value's ordered leaves, and a function that builds its structure from other leaves."""
    if "torch" in sys.modules:
        from torch.utils import _pytree as pytree

        leaves, spec = pytree.tree_flatten(nest)
        return leaves, lambda values: pytree.tree_unflatten(list(values), spec)
    leaves = []
    build = _builder(nest, leaves)
    return leaves, lambda values: build(iter(values))


def leaves(nest: Any) -> list[Any]:
    return flatten(nest)[0]


#: Remedy for an input that is a constant of the compiled program.
TO_VARY = "Compile the model with the other value, or with a tensor, e.g. torch.tensor(2.0), for an input that varies."


def is_constant(nest: Any) -> bool:
    """Return True if the nest contains only numbers, strings and None."""
    return all(isinstance(leaf, (bool, int, float, str, type(None))) for leaf in leaves(nest))


def check_constant(subject: str, argument: Any, constant: Any, error: type[Exception]) -> None:
    """Raise ``error`` if a constant of numbers and strings has another value in a call."""
    if argument is constant or not is_constant(constant) or (is_constant(argument) and argument == constant):
        return
    raise error(f"{subject}: expected {constant!r:.80} like the example input, got {argument!r:.80}. {TO_VARY}")


def has_keys_of(nest: Any, example: Any) -> bool:
    """Return True if mappings at the same place have the same keys."""
    if isinstance(nest, Mapping) and isinstance(example, Mapping):
        return nest.keys() == example.keys() and all(has_keys_of(nest[key], part) for key, part in example.items())
    if _are_sequences(nest, example):
        return all(map(has_keys_of, nest, example))
    return True


def order_like(nest: Any, example: Any) -> Any:
    """Return the nest with mappings in the order of ``example``, whose keys must be the same."""
    if isinstance(nest, Mapping) and isinstance(example, Mapping):
        return {key: order_like(nest[key], part) for key, part in example.items()}
    return type(nest)(map(order_like, nest, example)) if _are_sequences(nest, example) else nest


def find_import(serialized: str) -> str | None:
    """Return the name of a type in a serialized pytree that may run code when loaded, or None."""
    pending: list[Any] = [serialized]
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            try:
                pending.append(json.loads(part))
            except (ValueError, RecursionError):  # not JSON, which torch does not load either
                continue
        elif isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            if "__enum__" in part and not _is_loaded_enum(str(part.get("fqn"))):
                return str(part.get("fqn"))
            module, factory = part.get("default_factory_module", "builtins"), str(part.get("default_factory_name", "dict"))
            if module != "builtins" or not isinstance(vars(builtins).get(factory), type):
                return f"{module}.{factory}"
            pending += part.values()
    return None


def _is_loaded_enum(name: str) -> bool:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for attribute in path.split("."):
        found = getattr(found, "__dict__", {}).get(attribute)
    return isinstance(found, EnumMeta)


def _are_sequences(nest: Any, example: Any) -> bool:
    return type(nest) in (list, tuple) and isinstance(example, (list, tuple)) and len(nest) == len(example)


def _builder(nest: Any, leaves: list[Any]) -> Callable[[Any], Any]:
    if type(nest) is dict:
        parts = {key: _builder(value, leaves) for key, value in nest.items()}
        return lambda values: {key: part(values) for key, part in parts.items()}
    if type(nest) in (list, tuple):
        kind, builders = type(nest), [_builder(value, leaves) for value in nest]
        return lambda values: kind([build(values) for build in builders])
    leaves.append(nest)
    return next
