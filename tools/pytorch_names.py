"""How users of PyTorch write an operator: ``torch.softmax``, ``Tensor.softmax``, ``F.softmax``, ``nn.Softmax``."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
from torch import nn

from ethorch.lower.ops.samples import I8, Bools, Ints, Sample, W


def names(aten: Iterable[str]) -> list[str]:
    """Public functions, methods and modules of PyTorch with the names of these ATen operators; in-place forms count as theirs."""
    found: list[str] = []
    for packet in dict.fromkeys(name.split(".")[1] for name in aten if name.startswith("aten.")):
        if packet.startswith("_"):
            continue
        for prefix, owner in (("torch", torch), ("Tensor", torch.Tensor), ("F", nn.functional)):
            if callable(getattr(owner, packet, None)):
                found.append(f"{prefix}.{packet}")
        found += [f"nn.{name}" for name in _modules().get(packet.replace("_", "").lower(), ())]
    return found


@functools.cache
def _modules() -> dict[str, list[str]]:
    """Name of a module's class in small letters -> the class."""
    classes = [name for name, value in vars(nn).items() if isinstance(value, type) and issubclass(value, nn.Module)]
    return {name.lower(): [name] for name in sorted(classes) if not name.startswith("Lazy")}


def example(name: str, sample: Sample) -> tuple[str, str]:
    """(the call, what its tensors are): ``torch.ops.aten.softmax.int(x, -1)``, ``x: float[2, 5, 21]``."""
    tensors: list[str] = []

    def show(arg: object) -> str:
        if isinstance(arg, (I8, Ints, Bools, W)):
            dtype = "float" if isinstance(arg, (I8, W)) else arg.dtype if isinstance(arg, Ints) else "bool"
            letter = "w" if isinstance(arg, W) else "x"
            label = f"{letter}{sum(text.startswith(letter) for text in tensors) or ''}"
            tensors.append(f"{label}: {dtype}[{', '.join(map(str, arg.shape))}]")
            return label
        if isinstance(arg, (list, tuple)):
            return "[" + ", ".join(map(show, arg)) + "]"
        return str(arg)

    arguments = [show(arg) for arg in sample.args]
    arguments += [f"{key}={f'torch.{value}' if key == 'dtype' else show(value)}" for key, value in sample.kwargs.items()]
    return f"torch.ops.{sample.overload or name}({', '.join(arguments)})", ", ".join(tensors)
