"""A small network as runnable Python text."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Line = tuple[str, str]  # a name (or names, separated by commas) and an expression


@dataclass(frozen=True)
class Network:
    """A module's text.

    Attributes:
        seed: The seed of its parameters and inputs.
        inputs: Name and expression of each input, e.g. ``("x0", "torch.randn(1, 4, 8)")``.
        layers: Name and expression of each attribute of the module.
        lines: Name and expression of each statement of ``forward``.
        outputs: Names of the values that are returned.
    """

    seed: int
    inputs: tuple[Line, ...]
    layers: tuple[Line, ...]
    lines: tuple[Line, ...]
    outputs: tuple[str, ...]

    def source(self) -> str:
        """Return runnable Python that defines ``model`` and ``samples``, a list of input tuples."""
        names = ", ".join(name for name, _ in self.inputs)
        layers = "".join(f"        self.{name} = {expression}\n" for name, expression in self.layers)
        lines = "".join(f"        {name} = {expression}\n" for name, expression in self.lines)
        inputs = "".join(f"{expression}, " for _, expression in self.inputs)
        return (
            "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"
            "class Net(nn.Module):\n"
            f"    def __init__(self):\n        super().__init__()\n{layers}\n"
            f"    def forward(self, {names}):\n{lines}        return {', '.join(self.outputs)}\n\n\n"
            f"torch.manual_seed({self.seed})\n"
            "model = Net().eval()\n"
            f"samples = [({inputs.rstrip()}) for _ in range(2)]\n"
        )

    def build(self) -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
        """Run ``source`` and return its ``model`` and ``samples``. Torch's random state does not change.

        Functions of the class do not reference the model, which would otherwise stay alive until the next garbage collection.
        """
        names: dict[str, Any] = {}
        with torch.random.fork_rng(devices=()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(self.source(), "network.py", "exec"), names)
        return names.pop("model"), names.pop("samples")

    def pruned(self) -> Network:
        """Return the network without lines, layers and inputs that no output depends on. At least one input remains."""
        read = set(self.outputs)
        lines = []
        for targets, expression in reversed(self.lines):
            if read & {target.strip() for target in targets.split(",")}:
                lines.append((targets, expression))
                read |= names_in(expression)
        inputs = tuple(line for line in self.inputs if line[0] in read) or self.inputs[:1]
        layers = tuple(line for line in self.layers if line[0] in read)
        return replace(self, inputs=inputs, layers=layers, lines=tuple(reversed(lines)))

    def __str__(self) -> str:
        return self.source()


#: The names that expressions may use besides values.
NAMESPACE = {"torch": torch, "F": F, "nn": nn}


def names_in(expression: str) -> set[str]:
    """Return the names of values and layers that an expression reads."""
    code = compile(expression, "expression", "eval")
    return set(code.co_names)
