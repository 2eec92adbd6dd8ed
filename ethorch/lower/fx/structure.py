"""Serializable structures of inputs and outputs."""

from __future__ import annotations

import copy
from typing import Any

from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from ethorch.support.errors import QuantizationError
from ethorch.support.trees import find_import


def with_serializable_structure(module: GraphModule) -> GraphModule:
    """Return the module, with plain tuples in place of inputs and outputs that PyTorch cannot serialize, e.g. named tuples."""
    structures = {key: getattr(module, f"_{key}", None) for key in ("in_spec", "out_spec")}
    changed = {key: plain for key, spec in structures.items() if spec is not None and (plain := serializable(spec)) is not spec}
    if not changed:
        return module
    graph = copy.deepcopy(module.graph)
    codegen: Any = graph._codegen
    codegen.pytree_info = codegen.pytree_info._replace(**changed)
    result = GraphModule(module, graph)
    result.meta.update(module.meta)
    return result


def serializable(structure: pytree.TreeSpec) -> pytree.TreeSpec:
    """Replace containers that PyTorch cannot serialize with tuples and dicts. Refuse keys that PyTorch cannot serialize."""
    if _is_serializable(structure):
        return structure
    return pytree.tree_structure(_plain(pytree.tree_unflatten(list(range(structure.num_leaves)), structure)))


def _is_serializable(structure: pytree.TreeSpec) -> bool:
    try:
        serialized = pytree.treespec_dumps(structure)
    except (AttributeError, NotImplementedError, TypeError):  # a defaultdict without a factory, an unknown type, or an invalid key
        return False
    return find_import(serialized) is None and pytree.treespec_loads(serialized) == structure


def _plain(nest: Any) -> Any:
    children, structure = pytree.tree_flatten(nest, is_leaf=lambda part: part is not nest)
    if structure.is_leaf():
        return nest
    parts = list(map(_plain, children))
    if _is_serializable(structure):
        return pytree.tree_unflatten(parts, structure)
    if not isinstance(nest, dict):
        return tuple(parts)
    for key in nest:
        if not _is_serializable(pytree.tree_structure({key: 0})):
            raise QuantizationError(
                "quantize.key",
                f"expected strings or numbers as keys of dicts in the model's inputs and outputs, got {key!r}. Convert the keys in "
                "a wrapper of the model, e.g. with str(key)",
            )
    return dict(zip(nest, parts, strict=True))
