"""Run the methods of a .pte in ExecuTorch's C++ runtime, without PyTorch."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ethorch.formats.pte_types import DTYPES, Method
from ethorch.runtime.elements import Elements
from ethorch.runtime.library import load_executor

_NONE, _INT, _DOUBLE, _BOOL, _TENSOR, _STRING, _OTHER = range(7)
_CODES = {name: code for code, (name, _) in DTYPES.items()}


class _Item(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("integer", ctypes.c_int64),
        ("real", ctypes.c_double),
        ("sizes", ctypes.POINTER(ctypes.c_int32)),
        ("order", ctypes.POINTER(ctypes.c_uint8)),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
    )


class Executor:
    """The loaded methods of one program. They share planned memories, each with the largest size that a method requires.

    A failed call raises RuntimeError with ExecuTorch's error code. ``HostBackend.calling`` adds ExecuTorch's messages.
    """

    def __init__(self, data: bytes, methods: Mapping[str, Method]):
        self._library = load_executor()
        sizes = [method.memories[1:] for method in methods.values()]
        planned = [max(size[k] for size in sizes if k < len(size)) for k in range(max(map(len, sizes)))]
        error = ctypes.c_int()
        self._handle = self._library.ethorch_executor_load(
            data, len(data), len(planned), (ctypes.c_uint64 * max(len(planned), 1))(*planned), ctypes.byref(error)
        )
        weakref.finalize(self, self._library.ethorch_executor_free, self._handle)
        _check("load the program", error.value)
        self._outputs = {name: len(method.outputs) for name, method in methods.items()}
        for name in methods:
            _check(f"load method {name!r}", self._library.ethorch_executor_load_method(self._handle, name.encode()))
        self._inputs: list[Any] = []

    def execute(self, method: str, inputs: Sequence[Any]) -> list[Any]:
        """Run a method.

        Args:
            inputs: Numbers, bools, None, or ``Elements`` in the program's storage order.

        Returns:
            The outputs: numbers, bools, None, strings or ``Elements``.
        """
        self._inputs = list(inputs)  # the runtime can access the inputs until the next call
        input_items = (_Item * max(len(inputs), 1))(*map(_to_item, inputs))
        output_items = (_Item * max(self._outputs[method], 1))()
        _check("execute", self._library.ethorch_executor_run(self._handle, method.encode(), input_items, len(inputs), output_items))
        return [_from_item(item) for item in output_items[: self._outputs[method]]]


def operator_names() -> set[str]:
    """Return the names of all operators with a kernel in the runtime."""
    return set(load_executor().ethorch_executor_operators().decode().split())


def backend_names() -> set[str]:
    return set(load_executor().ethorch_executor_backends().decode().split())


def _check(action: str, error: int) -> None:
    if error:
        raise RuntimeError(f"failed to {action}: " + (f"error code {error:#x}" if error > 0 else "a check in ExecuTorch failed"))


def _to_item(value: Any) -> _Item:
    if isinstance(value, Elements):
        rank = len(value.shape)
        return _Item(
            _TENSOR,
            _CODES[value.dtype],
            rank,
            sizes=(ctypes.c_int32 * max(rank, 1))(*value.shape),
            order=(ctypes.c_uint8 * max(rank, 1))(*value.order),
            data=value.data.ctypes.data,
            bytes=value.data.nbytes,
        )
    if isinstance(value, bool):
        return _Item(_BOOL, integer=value)
    if isinstance(value, int):
        return _Item(_INT, integer=value)
    return _Item(_DOUBLE, real=value) if isinstance(value, float) else _Item(_NONE)


def _from_item(item: _Item) -> Any:
    if item.kind == _TENSOR:
        data = np.frombuffer(ctypes.string_at(item.data, item.bytes) if item.bytes else b"", np.uint8).copy()
        return Elements(DTYPES[item.dtype][0], tuple(item.sizes[: item.rank]), tuple(item.order[: item.rank]), data)
    if item.kind == _STRING:
        return ctypes.string_at(item.data, item.bytes).decode(errors="replace")
    return {_INT: item.integer, _DOUBLE: item.real, _BOOL: bool(item.integer)}.get(item.kind)
