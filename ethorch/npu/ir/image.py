"""Memory contents for a command stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ethorch.npu.arrays import Bytes

CONSTANTS = 0  # region (npu-reference 1.4)
#: (region, first address, end address) of a tensor of the host.
Place = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Image:
    """The regions, constants and host tensors of a command stream."""

    constants: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))  # contents of region 0
    sizes: Mapping[int, int] = field(default_factory=dict)  # bytes of the other regions
    inputs: tuple[Place, ...] = ()
    outputs: tuple[Place, ...] = ()

    @property
    def allocated(self) -> dict[int, int]:
        """``sizes`` without empty regions."""
        return {region: size for region, size in self.sizes.items() if size}

    def size_bytes(self, region: int) -> int | None:
        return len(self.constants) if region == CONSTANTS else self.sizes.get(region) or None
