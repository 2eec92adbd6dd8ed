"""Find the public names of operators in PyTorch: ``torch.softmax``, ``Tensor.softmax``, ``F.softmax``, ``nn.Softmax``."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
from torch import nn

from ethorch.lower.ops.samples import I8, Bools, Ints, Sample, W


def names(aten: Iterable[str]) -> list[str]:
    """Return the functions, methods and modules of PyTorch that have the names of these ATen operators."""
    public_names: list[str] = []
    for packet in dict.fromkeys(name.split(".")[1] for name in aten if name.startswith("aten.")):
        if packet.startswith("_"):
            continue
        for prefix, owner in (("torch", torch), ("Tensor", torch.Tensor), ("F", nn.functional)):
            if callable(getattr(owner, packet, None)):
                public_names.append(f"{prefix}.{packet}")
        public_names += [f"nn.{name}" for name in _modules().get(packet.replace("_", "").lower(), ())]
    return public_names


@functools.cache
def _modules() -> dict[str, list[str]]:
    """Return lower-case name -> class names of modules."""
    classes = [name for name, value in vars(nn).items() if isinstance(value, type) and issubclass(value, nn.Module)]
    return {name.lower(): [name] for name in sorted(classes) if not name.startswith("Lazy")}


def example(name: str, sample: Sample) -> tuple[str, str]:
    """Return a call and its tensors, e.g. ``torch.ops.aten.softmax.int(x, -1)`` and ``x: float[2, 5, 21]``."""
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
