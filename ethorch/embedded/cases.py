"""The self-test's inputs, and the outputs that ExecuTorch's runtime gives on the desk, as the bytes that firmware has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ethorch import host
from ethorch.errors import HostError
from ethorch.formats.pte_types import Method, Value

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Case:
    """One run: the bytes of each input, and of each output."""

    inputs: tuple[bytes, ...] = field(repr=False)
    outputs: tuple[bytes, ...] = field(repr=False)

    @property
    def padded(self) -> bytes:
        """All of them one after the other, each padded to whole 16 bytes."""
        return b"".join(data + bytes(-len(data) % 16) for data in (*self.inputs, *self.outputs))


def cases(pte: bytes, method: Method, samples: Sequence[Sequence[Any]]) -> list[Case]:
    """Run samples one after the other from the beginning, state kept between them.

    Raises:
        HostError, MachineFault: a sample does not fit, or the simulator stopped.
    """
    if not samples:
        raise HostError("the self-test needs at least one sample.")
    runtime = host.load(pte, method.name)
    found = []
    for sample in samples:
        outputs = runtime(*sample)
        found.append(
            Case(
                tuple(tensor_bytes(x, method.values[i]) for x, i in zip(_flat(sample), method.inputs, strict=True)),
                tuple(tensor_bytes(x, method.values[i]) for x, i in zip(outputs, method.outputs, strict=True)),
            )
        )
    return found


def _flat(sample: Sequence[Any]) -> list[Any]:
    from torch.utils import _pytree

    leaves: list[Any] = _pytree.tree_leaves(tuple(sample))
    return leaves


def tensor_bytes(tensor: torch.Tensor, value: Value) -> bytes:
    """The bytes of a tensor in the order of dimensions that the program has it in."""
    import torch

    laid = tensor.detach().permute(value.dim_order).contiguous()
    return bytes(laid.reshape(-1).view(torch.uint8).numpy().tobytes())
