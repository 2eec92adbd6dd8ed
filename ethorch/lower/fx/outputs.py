"""Serializable outputs of graph modules."""

from __future__ import annotations

import copy
from typing import Any

from torch.fx import GraphModule
from torch.utils import _pytree as pytree


def with_serializable_outputs(module: GraphModule) -> GraphModule:
    """Return ``module`` or, if PyTorch cannot serialize its outputs, e.g. named tuples, a copy that returns plain tuples."""
    structure = getattr(module, "_out_spec", None)
    if structure is None or _is_serializable(structure):
        return module
    nest = pytree.tree_unflatten(list(range(structure.num_leaves)), structure)
    graph = copy.deepcopy(module.graph)
    codegen: Any = graph._codegen
    codegen.pytree_info = codegen.pytree_info._replace(out_spec=pytree.tree_structure(_plain(nest)))
    result = GraphModule(module, graph)
    result.meta.update(module.meta)
    return result


def _is_serializable(structure: pytree.TreeSpec) -> bool:
    try:
        pytree.treespec_dumps(structure)
    except NotImplementedError:
        return False
    return True


def _plain(nest: Any) -> Any:
    if isinstance(nest, tuple):
        return tuple(map(_plain, nest))
    if isinstance(nest, list):
        return list(map(_plain, nest))
    return {key: _plain(value) for key, value in nest.items()} if type(nest) is dict else nest
