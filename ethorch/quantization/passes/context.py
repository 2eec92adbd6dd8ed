from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch.fx import Node

from ethorch.tosa.limits import Limits


@dataclass(frozen=True)
class PassContext:
    """The information that passes require in addition to the graph.

    Attributes:
        is_excluded: Predicate for nodes without a config, which passes must not change.
        limits: Limits of the target for each TOSA operator, or None if the target is unknown.
        trainable: Whether parameters may change later (QAT).
    """

    is_excluded: Callable[[Node], bool] = lambda node: False
    limits: Mapping[str, Limits] | None = None
    trainable: bool = True
