from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ethorch.support.errors import QuantizationError

#: Maximum number of steps. Each step adds about ten operators; longer sequences take hours to compile.
MOST_STEPS = 4096


def refuse_long_sequence(steps: int) -> None:
    """Raise QuantizationError (reason ``recurrent.steps``) if a sequence has more than ``MOST_STEPS`` steps."""
    if steps > MOST_STEPS:
        raise QuantizationError(
            "recurrent.steps",
            f"expected at most {MOST_STEPS} steps of a recurrent layer, got {steps}; each step becomes a separate set of "
            "operators. Call the model with one section of the sequence at a time, and pass the returned state to the next call.",
        )


@contextmanager
def short_sequences(module: nn.Module) -> Iterator[None]:
    """Check the sequence length of recurrent layers called within the context."""
    hooks = [layer.register_forward_pre_hook(_check_length) for layer in module.modules() if isinstance(layer, nn.RNNBase)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _check_length(layer: nn.RNNBase, inputs: tuple[Any, ...]) -> None:
    sequence = inputs[0] if inputs else None
    if isinstance(sequence, Tensor):
        steps = sequence.shape[1 if layer.batch_first and sequence.dim() == 3 else 0]
        if isinstance(steps, int):  # a dynamic size is not checked
            refuse_long_sequence(steps)
