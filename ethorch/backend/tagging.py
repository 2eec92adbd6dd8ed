from __future__ import annotations

import operator
from collections.abc import Container, Mapping

from torch.export import ExportedProgram
from torch.fx import Node

from ethorch.lower.fx.control_flow import is_control_flow
from ethorch.lower.fx.node import ASSERTIONS, DEQUANTIZE, QUANTIZE, Converted, constants_of, op_name


def is_plumbing(node: Node) -> bool:
    """Return True if the node is a quantize, dequantize or getitem node. Such nodes belong to an adjacent operator's partition."""
    return op_name(node.target) in QUANTIZE | DEQUANTIZE or node.target is operator.getitem


def constant_nodes(program: ExportedProgram | Converted, among: Container[Node]) -> set[Node]:
    """Return the nodes in ``among`` that depend only on constants. The lowering folds these nodes."""
    constants = constants_of(program)
    folded: set[Node] = set()
    for node in program.graph.nodes:
        if node not in among or node.op != "call_function" or is_control_flow(node):
            continue
        if all(arg in folded or constants(arg) is not None for arg in node.all_input_nodes):
            folded.add(node)
    return folded


def requantizes(node: Node, supported: Container[Node], tagged: Container[Node]) -> bool:
    """Return True if ``node`` is an untagged requantization that can be moved into the delegate that reads its result."""
    source = node.all_input_nodes[0] if op_name(node.target) in QUANTIZE and node in supported else None
    return source is not None and op_name(source.target) in DEQUANTIZE and source in supported and node not in tagged


def tag_with_readers(program: ExportedProgram | Converted, node: Node) -> None:
    """Tag a node with the partition of its readers.

    If the readers are not all in one partition, each partition gets a copy. A node without readers is erased.
    """
    readers: dict[str | None, list[Node]] = {}
    for user in node.users:
        readers.setdefault(user.meta.get("delegation_tag"), []).append(user)
    tags = [tag for tag in readers if tag is not None]
    for tag in tags:
        copy = node
        if len(readers) > 1:
            with program.graph.inserting_before(node):
                copy = program.graph.node_copy(node)
            for user in readers[tag]:
                user.replace_input_with(node, copy)
        copy.meta["delegation_tag"] = tag
    if not node.users:
        program.graph.erase_node(node)


def drop_asserted(program: ExportedProgram | Converted, tagged: Container[Node]) -> set[Node]:
    """Return the tagged nodes, except nodes that only assertions read and whose inputs are not returned."""
    asserted: set[Node] = set()
    for node in reversed(program.graph.nodes):
        if op_name(node.target) in ASSERTIONS or (node.users and all(user in asserted for user in node.users)):
            asserted.add(node)
    remaining: set[Node] = set()
    for node in program.graph.nodes:
        if node in tagged and (node not in asserted or any(skip_dequantize(arg) in remaining for arg in node.all_input_nodes)):
            remaining.add(node)
    return remaining


def group_nodes(
    program: ExportedProgram | Converted,
    tagged: set[Node],
    inner: Container[Node] = (),
    later: Mapping[Node, int] | None = None,
) -> list[list[Node]]:
    """Partition the tagged nodes into the fewest groups such that no path leaves and reenters a group.

    A node's level is the largest number of transitions to the CPU on a path to the node. No path between nodes of one level
    contains CPU operators, so these nodes form a group. Groups are in order of level and contain no dequantize nodes.

    Args:
        inner: Casts whose results a delegate cannot return. A cast belongs to the partition of its readers.
        later: Operator that begins a group -> number added to its level.
    """
    level: dict[Node, int] = {}
    for node in program.graph.nodes:
        if op_name(node.target) in DEQUANTIZE or node in inner:
            continue
        before = 0
        for arg in (skip_dequantize(arg, inner) for arg in node.all_input_nodes):
            crosses = arg in tagged and node not in tagged
            before = max(before, level[arg] + (1 if crosses else 0))
        level[node] = before + (later or {}).get(node, 0)
    groups: dict[int, list[Node]] = {}
    for node in program.graph.nodes:
        if node in tagged:
            groups.setdefault(level[node], []).append(node)
    return [groups[key] for key in sorted(groups)]


def skip_dequantize(node: Node, inner: Container[Node] = ()) -> Node:
    """Return the first node, from ``node`` backward, that is neither a dequantize node nor in ``inner``."""
    while op_name(node.target) in DEQUANTIZE or node in inner:
        node = node.all_input_nodes[0]
    return node
