"""The last reads of a graph's mutable buffers."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from torch.fx import GraphModule, Node

from ethorch.lower.fx.node import is_in_place, op_name
from ethorch.targets.cpu_operators import FORMS


class Buffers:
    """The mutable buffers of a graph in which all writes to buffers are at the end."""

    def __init__(self, module: GraphModule, names: Collection[str]):
        self._places = {node: number for number, node in enumerate(module.graph.nodes)}
        self._last = dict.fromkeys(names, 0)
        for node in module.graph.nodes:
            name = str(node.target)
            if node.op == "get_attr" and name in self._last:
                self._last[name] = max(self._last[name], *(self._places[user] for user in _readers(node)), 0)

    def __contains__(self, name: object) -> bool:
        return name in self._last

    def is_free_after(self, name: str, node: Node) -> bool:
        """Return True if no node reads the buffer after ``node``."""
        return self._last[name] <= self._places[node]


def is_kept(node: Node) -> bool:
    """Return True if the elements of ``node`` are written to a buffer or returned."""
    return any(user.op == "output" or is_in_place(user) or (_passes_on(user) and is_kept(user)) for user in node.users)


def _readers(node: Node) -> Iterator[Node]:
    for user in node.users:
        if not _is_written(user, node):
            yield user
            if _passes_on(user):
                yield from _readers(user)


def _is_written(user: Node, node: Node) -> bool:
    if user.op != "call_function" or not user.args or user.args[0] is not node:
        return False
    return is_in_place(user) or (bool(user.users) and all(_is_written(reader, user) for reader in user.users))


def _passes_on(user: Node) -> bool:
    return user.op == "call_function" and FORMS.get(op_name(user.target)) in ("view", "cast", "clone")
