"""Structs for DMA transfers."""

from __future__ import annotations

from ethorch.npu.forms import Copy, Transfer
from ethorch.npu.plan import layout
from ethorch.npu.plan.packing import Context, NotKnown, region_index


def pack_copy(c: Context, form: Copy) -> layout.Copy:
    c.memory.span(form.source)
    c.memory.writable(form.target)
    _check_writable(c, form.target.region)
    ends = region_index(form.source.region), region_index(form.target.region)
    return layout.Copy(*ends, form.source.base, form.target.base, form.source.size_bytes)


def pack_transfer(c: Context, form: Transfer) -> layout.Transfer:
    """Pack a transfer. Addresses that depend on indices are checked at run time."""
    (source, *from_), (target, *to) = form.source, form.target
    index_region, index, index_outer = form.index
    if target == 0:
        raise NotKnown("the transfer writes to region 0")
    _check_writable(c, target)
    indexed = form.by_source or form.by_target
    sizes = [c.memory.region(region).size for region in (source, target, index_region if indexed else source)]
    regions = region_index(source), region_index(target), region_index(index_region if indexed else source)
    return layout.Transfer(
        *regions, form.by_source, form.by_target, 0, form.length, form.inner, form.outer, *from_, *to, index,
        index_outer, form.limit, *sizes,
    )  # fmt: skip


def _check_writable(c: Context, region: int) -> None:
    if not c.memory.region(region).flags.writeable:
        raise NotKnown("the target region is read-only")
