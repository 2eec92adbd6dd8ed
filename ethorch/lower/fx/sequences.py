"""Sequences of recurrent layers, which are refused when they are too long: before torch.export, which takes minutes for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ethorch.support.errors import QuantizationError

#: Most steps of a sequence. Each is some ten operators of the program; exporting, calibrating and compiling many takes hours.
MOST_STEPS = 4096


def refuse_long_sequence(steps: int) -> None:
    """Nothing, of at most ``MOST_STEPS``.

    Raises:
        QuantizationError: ``recurrent.steps``, of more.
    """
    if steps > MOST_STEPS:
        raise QuantizationError(
            "recurrent.steps",
            f"a recurrent layer over {steps} steps, each of which becomes operators of its own; allowed are {MOST_STEPS}. Give "
            "the model a part of the sequence at a time, and the state that the last part returned.",
        )


@contextmanager
def short_sequences(module: nn.Module) -> Iterator[None]:
    """While it lasts, each recurrent layer in ``module`` raises what ``refuse_long_sequence`` does, instead of running."""
    hooks = [layer.register_forward_pre_hook(_checked) for layer in module.modules() if isinstance(layer, nn.RNNBase)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _checked(layer: nn.RNNBase, inputs: tuple[Any, ...]) -> None:
    sequence = inputs[0] if inputs else None
    if isinstance(sequence, Tensor):
        steps = sequence.shape[1 if layer.batch_first and sequence.dim() == 3 else 0]
        if isinstance(steps, int):  # else it may be any number
            refuse_long_sequence(steps)
