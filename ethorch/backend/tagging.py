"""Delegation tags: which nodes form one partition."""

from __future__ import annotations

import operator
from collections.abc import Container, Mapping

from torch.export import ExportedProgram
from torch.fx import Node

from ethorch.lower.fx.control_flow import is_control_flow
from ethorch.lower.fx.node import ASSERTIONS, DEQUANTIZE, QUANTIZE, Converted, constants_of, op_name


def plumbing(node: Node) -> bool:
    """Quantize and dequantize nodes and tuple access: they go where their operators go."""
    return op_name(node.target) in QUANTIZE | DEQUANTIZE or node.target is operator.getitem


def constant_nodes(program: ExportedProgram | Converted, among: Container[Node]) -> set[Node]:
    """Operators of ``among`` that depend on constants alone: the lowering folds them, in each delegate that reads one."""
    constants = constants_of(program)
    found: set[Node] = set()
    for node in program.graph.nodes:
        if node not in among or node.op != "call_function" or is_control_flow(node):
            continue
        if all(arg in found or constants(arg) is not None for arg in node.all_input_nodes):
            found.add(node)
    return found


def requantizes(node: Node, supported: Container[Node], tagged: Container[Node]) -> bool:
    """Does the quantize node give codes that the CPU made another scale? Its delegate does that better, if it reads the codes."""
    source = node.all_input_nodes[0] if op_name(node.target) in QUANTIZE and node in supported else None
    return source is not None and op_name(source.target) in DEQUANTIZE and source in supported and node not in tagged


def tag_with_readers(program: ExportedProgram | Converted, node: Node) -> None:
    """Put a dequantize node, or one of constants, into the delegate that reads it; where several do, each gets a copy."""
    readers: dict[str | None, list[Node]] = {}
    for user in node.users:
        readers.setdefault(user.meta.get("delegation_tag"), []).append(user)
    tags = [tag for tag in readers if tag is not None]
    for tag in tags:
        own = node
        if len(readers) > 1:
            with program.graph.inserting_before(node):
                own = program.graph.node_copy(node)
            for user in readers[tag]:
                user.replace_input_with(node, own)
        own.meta["delegation_tag"] = tag
    if not node.users:
        program.graph.erase_node(node)


def without_asserted(program: ExportedProgram | Converted, tagged: Container[Node]) -> set[Node]:
    """Return the tagged nodes without those that only assertions read, unless they read another: they would return nothing."""
    asserted: set[Node] = set()
    for node in reversed(program.graph.nodes):
        if op_name(node.target) in ASSERTIONS or (node.users and all(user in asserted for user in node.users)):
            asserted.add(node)
    found: set[Node] = set()
    for node in program.graph.nodes:
        if node in tagged and (node not in asserted or any(behind_dequantize(arg) in found for arg in node.all_input_nodes)):
            found.add(node)
    return found


def partitions(
    program: ExportedProgram | Converted,
    tagged: set[Node],
    inner: Container[Node] = (),
    later: Mapping[Node, int] | None = None,
) -> list[list[Node]]:
    """The tagged nodes in as few groups as have no path out of a group and back into it, each in graph order.

    Greedy over levels: a node's level counts the CPU stretches on the longest path before it; nodes of one level form one
    delegate, since no path leads from one of them over the CPU to another. Dequantize nodes belong to whoever reads them.

    Args:
        inner: casts that do, too: no delegate can give what they return.
        later: operators that begin a group, and by how many stretches they count as if the CPU stood before them.
    """
    level: dict[Node, int] = {}
    for node in program.graph.nodes:
        if op_name(node.target) in DEQUANTIZE or node in inner:
            continue
        before = 0
        for arg in (behind_dequantize(arg, inner) for arg in node.all_input_nodes):
            crosses = arg in tagged and node not in tagged
            before = max(before, level[arg] + (1 if crosses else 0))
        level[node] = before + (later or {}).get(node, 0)
    groups: dict[int, list[Node]] = {}
    for node in program.graph.nodes:
        if node in tagged:
            groups.setdefault(level[node], []).append(node)
    return [groups[key] for key in sorted(groups)]


def behind_dequantize(node: Node, inner: Container[Node] = ()) -> Node:
    """What a dequantize node is made of, or one of ``inner``."""
    while op_name(node.target) in DEQUANTIZE or node in inner:
        node = node.all_input_nodes[0]
    return node
