"""Memory accesses of operations, with their address registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.forms import Transfer
from ethorch.npu.memory import Access
from ethorch.npu.prepared import Prepared

#: Address registers of inputs (npu-reference 2.3).
READ_BASES = frozenset(
    (
        *(f"{feature_map}_BASE{tile}" for feature_map in ("IFM", "IFM2") for tile in range(4)),
        *(f"{stream}_BASE" for stream in ("WEIGHT", "WEIGHT1", "WEIGHT2", "WEIGHT3", "SCALE", "SCALE1")),
        "DMA0_SRC",
        "DMA0_IDX",
    )
)
_TRANSFER_BASES = ("DMA0_SRC", "DMA0_DST", "DMA0_IDX")


@dataclass(frozen=True)
class Run:
    """A contiguous access to the bytes [low, high), with its address register and the value of that register."""

    register: str
    region: int
    base: int
    low: int
    high: int


def iterate_reads(prepared: Prepared) -> Iterator[Run]:
    """Iterate over the byte ranges that an operation can read."""
    yield from _runs(prepared.reads)
    form = prepared.form
    if isinstance(form, Transfer) and form.is_indexed:
        yield _enclose("DMA0_SRC", form, form.source, form.by_source)
        region, base, step = form.index
        yield Run("DMA0_IDX", region, base, base, base + (form.outer - 1) * step + 4 * form.inner)


def iterate_writes(prepared: Prepared) -> Iterator[Run]:
    """Iterate over the byte ranges that an operation can write."""
    yield from _runs(prepared.writes)
    if isinstance(prepared.form, Transfer) and prepared.form.is_indexed:
        yield _enclose("DMA0_DST", prepared.form, prepared.form.target, prepared.form.by_target)


def _runs(accesses: tuple[Access, ...]) -> Iterator[Run]:
    for access in accesses:
        if isinstance(access, FeatureMap):
            if access.in_memory:
                for tile, (low, high) in zip(access.tiles, access.extents(), strict=True):
                    register = access.name if access.name in _TRANSFER_BASES else f"{access.name}_BASE{tile.number}"
                    yield Run(register, access.region, tile.base, low, high)
        elif access.size_bytes:
            register = access.name if access.name in _TRANSFER_BASES else f"{access.name}_BASE"
            yield Run(register, access.region, access.base, access.base, access.base + access.size_bytes)


def _enclose(register: str, form: Transfer, end: tuple[int, int, int, int], indexed: bool) -> Run:
    region, base, inner, outer = end
    reach = [(form.limit if indexed else form.inner - 1) * inner, (form.outer - 1) * outer]
    return Run(register, region, base, base + sum(min(0, r) for r in reach), base + sum(max(0, r) for r in reach) + form.length)
