"""Evaluate constants during torch.export, which by default treats their values as unknown."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

_INDEXING = (Tensor.__getitem__, Tensor.__setitem__)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
#: Functions that depend only on the shape of their first argument.
_LIKE = {"empty_like", "full_like", "zeros_like", "ones_like", "new_empty", "new_full", "new_zeros", "new_ones"}
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class ConstantValues(TorchFunctionMode):
    """A mode that evaluates operators on constants while a module is traced with fake tensors.

    A data-dependent result, e.g. of ``mask.nonzero()``, becomes a constant of the trace if the operands are constant. A constant
    that is overwritten with an unknown value becomes unknown.

    Args:
        module: The traced module.
        skip: Names of buffers to treat as unknown.
    """

    def __init__(self, module: nn.Module, skip: Collection[str] = ()):
        super().__init__()
        self._module = module
        self._buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers() if name not in skip}
        self._values: Any = WeakIdKeyDictionary()
        self._lost: dict[int, Any] = {}  # storages by address; the reference prevents reuse of the address

    @contextmanager
    def inside_forward(self) -> Iterator[None]:
        """Enter the mode for each call of the module's ``forward``."""

        def enter(module: nn.Module, _: Any) -> None:
            self._values.clear()
            for name, buffer in module.named_buffers():
                if name in self._buffers:
                    self._values[buffer] = self._buffers[name]
            self.__enter__()  # type: ignore[no-untyped-call]

        def leave(*_: Any) -> None:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

        hooks = (self._module.register_forward_pre_hook(enter), self._module.register_forward_hook(leave, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @property
    def written(self) -> set[str]:
        """Names of the buffers that the module changed."""
        return {name for name, value in self._buffers.items() if value._version or self._is_lost(value)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _INDEXING:
            args = (args[0], self._index(args[1]), *args[2:])
        operands = self._without_contents(func, args)
        leaves = pytree.tree_leaves((operands, kwargs))
        if any(isinstance(leaf, _SYMBOLS) or (isinstance(leaf, Tensor) and self._value(leaf) is None) for leaf in leaves):
            self._lose(func, args, kwargs)
            return func(*args, **kwargs)
        try:
            value, depends, random = self._run(func, operands, kwargs)
        except Exception:  # the operator cannot be evaluated
            self._lose(func, args, kwargs)
            return func(*args, **kwargs)
        if depends and not _writes(func, kwargs):
            return pytree.tree_map_only(Tensor, self._constant, value)
        result = func(*args, **kwargs)
        traced, values = pytree.tree_leaves(result), pytree.tree_leaves(value)
        if not random and len(traced) == len(values):
            for fake, real in zip(traced, values, strict=True):
                if isinstance(fake, FakeTensor) and isinstance(real, Tensor) and fake.shape == real.shape:
                    self._values[fake] = real
        return result

    def _run(self, func: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, bool, bool]:
        args, kwargs = pytree.tree_map_only(Tensor, self._value, (args, kwargs))
        with _disable_tracing(), _Tags() as called:
            value = func(*args, **kwargs)
        depends = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & called.tags
        return value, bool(depends) or func is Tensor.tolist, torch.Tag.nondeterministic_seeded in called.tags

    def _without_contents(self, func: Any, args: Any) -> Any:
        first = args[0] if args else None
        if getattr(func, "__name__", "") not in _LIKE or not isinstance(first, Tensor) or self._value(first) is not None:
            return args
        if not all(isinstance(extent, int) for extent in first.shape):
            return args
        with _disable_tracing():
            return (torch.empty(tuple(first.shape), dtype=first.dtype), *args[1:])

    def _value(self, tensor: Tensor) -> Tensor | None:
        if not isinstance(tensor, FakeTensor):
            return tensor if type(tensor) is Tensor and not self._is_lost(tensor) else None
        value = self._values.get(tensor)
        return None if value is None or self._is_lost(value) else value

    def _is_lost(self, value: Tensor) -> bool:
        return value.untyped_storage()._cdata in self._lost

    def _lose(self, func: Any, args: Any, kwargs: Any) -> None:
        if _writes(func, kwargs):
            for tensor in pytree.tree_leaves((args[:1], kwargs.get("out"))):
                value = self._value(tensor) if isinstance(tensor, Tensor) else None
                if value is not None:
                    storage = value.untyped_storage()
                    self._lost[storage._cdata] = storage

    def _constant(self, value: Tensor) -> Tensor:
        with _disable_tracing():
            copied = value.clone()  # the value may change later
        constant: Tensor = torch.ops.aten.lift_fresh_copy.default(copied)
        self._values[constant] = value
        return constant

    def _index(self, index: Any) -> Any:
        if isinstance(index, tuple):
            return tuple(each for part in index for each in self._places(part))
        places = self._places(index)
        return places if len(places) != 1 else places[0]

    def _places(self, index: Any) -> tuple[Any, ...]:
        if isinstance(index, (tuple, list)):
            return (type(index)(self._number(each) for each in index),)
        if isinstance(index, slice):
            return (slice(*map(self._number, (index.start, index.stop, index.step))),)
        value = self._value(index) if isinstance(index, Tensor) and index.dtype == torch.bool and index.dim() else None
        if value is None:
            return (self._number(index),)
        with _disable_tracing():
            places = value.nonzero().unbind(1)
        return tuple(map(self._constant, places))

    def _number(self, index: Any) -> Any:
        if isinstance(index, Tensor) and index.dim() == 0 and index.dtype in _INTEGERS:
            value = self._value(index)
            if value is not None:
                with _disable_tracing():
                    return int(value)
        return index


@contextmanager
def _disable_tracing() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


class _Tags(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tags: set[torch.Tag] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.tags.update(func.tags)
        return func(*args, **(kwargs or {}))


def _writes(func: Any, kwargs: Any) -> bool:
    name = getattr(func, "__name__", "")
    if kwargs.get("out") is not None or name in ("__setitem__", "__set__"):
        return True
    if name.startswith("__"):  # __iadd__, but not __invert__
        return name[2:3] == "i" and name not in ("__index__", "__int__", "__invert__", "__iter__")
    return bool(name.endswith("_"))
