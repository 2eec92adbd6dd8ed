"""Buffers that a graph of delegates and operators on the CPU keeps from call to call: who reads them where they lie, and when."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import GraphModule, Node

from ethorch.backend.emit.cpu_operators import CASTS, CLONES, VIEWS
from ethorch.lower.fx.node import changes_in_place, op_name, target_buffer


class Buffers:
    """The buffers that a graph writes; all writes stand at its end.

    Attributes:
        names: of them, in the order of the writes.
    """

    def __init__(self, module: GraphModule):
        self._places = {node: number for number, node in enumerate(module.graph.nodes)}
        written = [target_buffer(node) for node in module.graph.nodes if node.op == "call_function" and changes_in_place(node)]
        self.names = tuple(dict.fromkeys(str(node.target) for node in written if node is not None))
        self._last: dict[str, int] = {}
        for node in module.graph.nodes:
            if node.op == "get_attr" and str(node.target) in self.names:
                last = max((self._places[user] for user in _readers(node)), default=0)
                self._last[str(node.target)] = max(last, self._last.get(str(node.target), 0))

    def is_free_behind(self, name: str, node: Node) -> bool:
        """Does nothing read the buffer once ``node`` has run?"""
        return self._last[name] <= self._places[node]


def is_kept(node: Node) -> bool:
    """Does something hold the elements of ``node`` beyond the operators of its call: a write to a buffer, the program's output?"""
    return any(user.op == "output" or changes_in_place(user) or (_passes_on(user) and is_kept(user)) for user in node.users)


def _readers(node: Node) -> Iterator[Node]:
    """What reads ``node``, itself or in another shape. Writes into it, and views of it for them, are none."""
    for user in node.users:
        if not _is_written(user, node):
            yield user
            if _passes_on(user):
                yield from _readers(user)


def _is_written(user: Node, node: Node) -> bool:
    """Does ``user`` write into ``node``, or is it a view that is only written into?"""
    if user.op != "call_function" or not user.args or user.args[0] is not node:
        return False
    return changes_in_place(user) or (bool(user.users) and all(_is_written(one, user) for one in user.users))


def _passes_on(user: Node) -> bool:
    """May its result lie where its operand does?"""
    return user.op == "call_function" and op_name(user.target) in VIEWS | CLONES | CASTS
