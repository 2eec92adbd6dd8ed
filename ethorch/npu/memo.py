"""Thread-safe caches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(eq=False)
class Memo(Generic[Value]):
    """A cache that computes each value once."""

    values: dict[Hashable, Value] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        with self.lock:
            if key not in self.values:
                self.values[key] = make()
            return self.values[key]
