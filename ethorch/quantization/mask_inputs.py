"""Detect additive masks passed as float inputs.

Such an input mixes masking values, such as -inf, with ordinary biases. Only calibration distinguishes masks from other inputs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import FakeQuantizeBase

from ethorch.lower.ops.arithmetic import add
from ethorch.lower.ops.softmax import log_softmax, softmax
from ethorch.lower.ops.spec import find
from ethorch.quantization.activation_observer import EXTENSION, ROOM_INT8, ActivationObserver, find_leader
from ethorch.quantization.passes.mask_tensors import MOVERS, SOFTMAX, SUNK

#: Difference between the lowest unmasked value and masked values in training.
_DEPTH = 64.0


def mark_mask_inputs(model: GraphModule, observers: dict[Any, Any]) -> None:
    """Enable mask detection for inputs of softmax, results of log_softmax, program inputs added to scores, and these sums.

    Their ranges are extended, so that masked scores are always below unmasked scores.
    """
    for node in model.graph.nodes:
        spec = find(node.target) if node.op == "call_function" else None
        places: list[Any] = [(node.args[0], node)] if spec in (softmax, log_softmax) else []
        if spec is log_softmax:
            places += [node, *((node, user) for user in node.users)]
        for place in places:
            scores = find_leader(observers.get(place))
            if isinstance(scores, ActivationObserver):
                scores.may_mask = True
    for source in model.graph.find_nodes(op="placeholder"):
        for moved in _find_moved(source):
            for total in filter(_is_sum, moved.users):
                keys = (total, *((total, user) for user in total.users))
                _mark(observers.get((moved, total)), [observers.get(key) for key in keys])


def _mark(mask: Any, sums: list[Any]) -> None:
    if isinstance(mask, FakeQuantizeBase):
        mask.register_forward_pre_hook(partial(lift_masked, depth=_DEPTH))
    leader = find_leader(mask)
    for total in sums:
        reader = find_leader(total)
        if isinstance(reader, ActivationObserver):
            reader.may_mask = True
            if isinstance(leader, ActivationObserver):
                leader.may_mask = True
                leader.sums.append(reader)
        elif isinstance(total, FakeQuantizeBase):
            total.register_forward_pre_hook(lift_masked)


def _find_moved(source: Node) -> list[Node]:
    moved = [source]
    for node in moved:
        moved += [user for user in node.users if user not in moved and user.op == "call_function" and find(user.target) in MOVERS]
    return moved


def _is_sum(node: Node) -> bool:
    if node.op != "call_function" or find(node.target) is not add:
        return False
    readers = [user for moved in _find_moved(node) for user in moved.users if user.op == "call_function"]
    return any(find(user.target) in SOFTMAX for user in readers)


def lift_masked(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...], depth: float = ROOM_INT8) -> tuple[torch.Tensor, ...]:
    """Replace masked scores in the input with the lowest unmasked score minus ``depth``."""
    x = inputs[0]
    seen = x.detach()[x.detach() > SUNK]
    return (torch.where(x <= SUNK, seen.min() - depth, x), *inputs[1:]) if seen.numel() else inputs


def lift_excluded(source: FakeQuantizeBase, _: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Replace excluded scores with a number slightly below the range of ``source``."""
    low, high = ((end - source.zero_point) * source.scale for end in (source.quant_min, source.quant_max))
    return torch.where(inputs[0] <= SUNK, low - EXTENSION * (high - low), inputs[0]), *inputs[1:]
