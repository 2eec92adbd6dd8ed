"""Tensor data as bytes, independent of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ethorch.support import trees

#: NumPy dtype for each torch dtype that has a different name in NumPy.
_DTYPES: dict[str, Any] = {"bfloat16": ml_dtypes.bfloat16, "complex32": np.dtype((np.void, 4))}


def dtype_name(value: Any) -> str:
    """Return the dtype of a tensor or an array as a PyTorch name, e.g. ``float32``."""
    return str(value.dtype).removeprefix("torch.") if trees.is_tensor(value) else np.dtype(value.dtype).name


@dataclass(frozen=True)
class Elements:
    """The elements of a tensor in storage order.

    Attributes:
        dtype: PyTorch's name for the dtype.
        order: Axes in storage order, outermost first.
        data: Bytes of the elements in storage order.
    """

    dtype: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, value: Any, order: Sequence[int]) -> Elements:
        """Create elements in the given storage order from a tensor or an array, without a copy if possible."""
        name, shape = dtype_name(value), tuple(value.shape)
        if trees.is_tensor(value):
            import torch  # already imported

            stored = value.detach().resolve_conj().resolve_neg().permute(tuple(order)).contiguous()
            return cls(name, shape, tuple(order), stored.reshape(-1).view(torch.uint8).numpy())
        stored = np.ascontiguousarray(value.transpose(order), value.dtype.newbyteorder("="))
        return cls(name, shape, tuple(order), stored.reshape(-1).view(np.uint8))

    def array(self) -> npt.NDArray[Any]:
        """Return a NumPy array that shares memory with ``data``."""
        dtype = np.dtype(_DTYPES.get(self.dtype, self.dtype))
        return self.data.view(dtype).reshape(self._stored_shape).transpose(self._axes)

    def tensor(self) -> Any:
        """Return a PyTorch tensor that shares memory with ``data``."""
        import torch

        dtype = getattr(torch, self.dtype)
        elements = torch.from_numpy(self.data).view(dtype) if self.data.size else torch.empty(0, dtype=dtype)
        return elements.reshape(self._stored_shape).permute(self._axes)

    @property
    def _stored_shape(self) -> list[int]:
        return [self.shape[axis] for axis in self.order]

    @property
    def _axes(self) -> list[int]:
        return sorted(range(len(self.order)), key=self.order.__getitem__)
