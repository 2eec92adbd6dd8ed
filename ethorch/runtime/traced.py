"""Run the methods of a .pte and record events, with ExecuTorch's Python bindings, which require torch."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from ethorch.runtime.elements import Elements
from ethorch.support import trees
from ethorch.support.garbage import delay_collection


class Traced:
    """The loaded methods of one program, with event recording enabled.

    Attributes:
        program: ``executorch.runtime.Program``.
    """

    def __init__(self, data: bytes, methods: Iterable[str]):
        with warnings.catch_warnings(), delay_collection():
            warnings.simplefilter("ignore")  # "this API is experimental"
            from executorch.runtime import Runtime, Verification

        self.program: Any = Runtime.get().load_program(data, verification=Verification.InternalConsistency, enable_etdump=True)
        self._methods = {name: self.program.load_method(name) for name in methods}

    def execute(self, method: str, inputs: Sequence[Any]) -> list[Any]:
        tensors = [value.tensor() if isinstance(value, Elements) else value for value in inputs]
        return [_to_elements(value) if trees.is_tensor(value) else value for value in self._methods[method].execute(tensors)]


def _to_elements(tensor: Any) -> Elements:
    order = sorted(range(tensor.dim()), key=lambda axis: (-tensor.stride(axis), axis))
    return Elements.of(tensor, order)
