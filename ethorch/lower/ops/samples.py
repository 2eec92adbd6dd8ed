"""Operator samples and their tensor arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class I8:
    """A quantized activation, uniform in ``low..high``. Its dtype is int8, or int16 if the test selects int16."""

    shape: tuple[int, ...]
    low: float = -3.0
    high: float = 3.0

    def __init__(self, *shape: int, low: float = -3.0, high: float = 3.0):
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)


@dataclass(frozen=True)
class Ints:
    """A tensor of plain integers, uniform in ``low..high``."""

    shape: tuple[int, ...]
    low: int
    high: int
    dtype: str

    def __init__(self, *shape: int, low: int = -1000, high: int = 1000, dtype: str = "int32"):
        for name, value in (("shape", shape), ("low", low), ("high", high), ("dtype", dtype)):
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Bools:
    """A tensor of truth values that are True with probability ``chance``."""

    shape: tuple[int, ...]
    chance: float

    def __init__(self, *shape: int, chance: float = 0.5):
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "chance", chance)


@dataclass(frozen=True)
class W:
    """A parameter, uniform in ``low..low + 1``."""

    shape: tuple[int, ...]
    low: float = -0.5

    def __init__(self, *shape: int, low: float = -0.5):
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "low", low)

    def positive(self) -> W:
        """Return a parameter of the same shape in the range 0.5..1.5, e.g. for a variance."""
        return W(*self.shape, low=0.5)


@dataclass(frozen=True)
class Sample:
    """An operator call for tests and documentation. I8, Ints, Bools and W represent random tensors."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    overload: str = ""

    def __init__(self, *args: Any, **kwargs: Any):
        object.__setattr__(self, "args", args)
        object.__setattr__(self, "kwargs", kwargs)

    def of(self, overload: str) -> Sample:
        """Return a copy of this sample that calls ``overload``, another ATen name of the operator."""
        sample = Sample(*self.args, **self.kwargs)
        object.__setattr__(sample, "overload", overload)
        return sample

    def __str__(self) -> str:
        def show(arg: Any) -> str:
            if isinstance(arg, (I8, Ints, Bools, W)):
                return f"{type(arg).__name__}({', '.join(map(str, arg.shape))})"
            return "[" + ", ".join(map(show, arg)) + "]" if isinstance(arg, (list, tuple)) else str(arg)

        return ", ".join([*map(show, self.args), *(f"{k}={show(v)}" for k, v in self.kwargs.items())])
