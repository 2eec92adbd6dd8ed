"""Masks that a program gets as a float input: numbers that mask, such as -inf, among numbers to add.

Only the calibration inputs tell such a mask from any other tensor that is added to scores. Where they do, the input's lowest
code stands for a number that takes every score below the range of the sum, and the sum has room below its scores.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import FakeQuantizeBase

from ethorch.lower.ops.arithmetic import add
from ethorch.lower.ops.softmax import softmax
from ethorch.lower.ops.spec import find
from ethorch.quantization.activation_observer import ROOM_INT8, ActivationObserver, leading
from ethorch.quantization.passes.mask_tensors import MOVERS, SOFTMAX, SUNK

#: How far below all other numbers training lets an input's masked numbers be: it does not know the range of the scores.
_DEPTH = 64.0


def tell_mask_inputs(model: GraphModule, observers: dict[Any, Any]) -> None:
    """Let the observers of float inputs that are added to what a softmax reads, and those of the sums, look for masks.

    Args:
        model: the annotated graph.
        observers: (argument, node) or node -> its observer, as torchao's ``prepare`` holds them.
    """
    for node in model.graph.nodes:
        if node.op == "call_function" and find(node.target) is softmax:
            scores = leading(observers.get((node.args[0], node)))
            if isinstance(scores, ActivationObserver):
                scores.may_mask = True
    for source in model.graph.find_nodes(op="placeholder"):
        for moved in _moved(source):
            for total in filter(_is_sum, moved.users):
                keys = (total, *((total, user) for user in total.users))
                _tell(observers.get((moved, total)), [observers.get(key) for key in keys])


def _tell(mask: Any, sums: list[Any]) -> None:
    """Make one input's observer, or fake-quantize, look for a mask, and those of a sum it is part of."""
    if isinstance(mask, FakeQuantizeBase):
        mask.register_forward_pre_hook(partial(lift_masked, depth=_DEPTH))
    leader = leading(mask)
    for total in sums:
        reader = leading(total)
        if isinstance(reader, ActivationObserver):
            reader.may_mask = True
            if isinstance(leader, ActivationObserver):
                leader.may_mask = True
                leader.sums.append(reader)
        elif isinstance(total, FakeQuantizeBase):
            total.register_forward_pre_hook(lift_masked)


def _moved(source: Node) -> list[Node]:
    """A node and all that only moves its elements."""
    found = [source]
    for node in found:
        found += [user for user in node.users if user not in found and user.op == "call_function" and find(user.target) in MOVERS]
    return found


def _is_sum(node: Node) -> bool:
    """Does a softmax read this sum, moved or not?"""
    if node.op != "call_function" or find(node.target) is not add:
        return False
    readers = [user for moved in _moved(node) for user in moved.users if user.op == "call_function"]
    return any(find(user.target) in SOFTMAX for user in readers)


def lift_masked(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...], depth: float = ROOM_INT8) -> tuple[torch.Tensor, ...]:
    """Scores for a fake-quantize in training: masked ones lie ``depth`` below the others, which keeps the range small."""
    x = inputs[0]
    seen = x.detach()[x.detach() > SUNK]
    return (torch.where(x <= SUNK, seen.min() - depth, x), *inputs[1:]) if seen.numel() else inputs
