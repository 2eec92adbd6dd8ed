"""Constants of a command stream put elsewhere: which bytes of region 0 it reads, and the stream that reads them at other places."""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ethorch.errors import MachineFault
from ethorch.npu import stream
from ethorch.npu.forms import Transfer
from ethorch.npu.memory import Span
from ethorch.npu.prepared import PREPARE, Prepared

CONSTANTS_REGION = 0
#: Constants lie on multiples of this: weight streams and bricks do (npu-reference 3.2, 4.2), other constants by Vela's choice.
CONSTANTS_ALIGNMENT = 16
#: Registers that hold addresses -> the value that says in which region (npu-reference 2.3).
_BASES: Mapping[str, str] = {
    **{f"IFM_BASE{tile}": "IFM_REGION" for tile in range(4)},
    **{f"IFM2_BASE{tile}": "IFM2_REGION" for tile in range(4)},
    **dict.fromkeys(("WEIGHT_BASE", "WEIGHT1_BASE", "WEIGHT2_BASE", "WEIGHT3_BASE"), "WEIGHT_REGION"),
    **dict.fromkeys(("SCALE_BASE", "SCALE1_BASE"), "SCALE_REGION"),
    "DMA0_SRC": "DMA0_SRC_REGION.region",
    "DMA0_IDX": "DMA0_IDX_REGION",
}
_HIGH_BITS = 0x00FF0000  # of an address, in the first word of its command


@dataclass(frozen=True)
class Constants:
    """What a stream reads of region 0.

    Attributes:
        pieces: (first address, the one behind the last) of runs of bytes that belong together, in order; none overlap.
        writes: byte offset, from the first command word, of each command that writes an address in region 0 -> the address.
    """

    pieces: tuple[tuple[int, int], ...]
    writes: Mapping[int, int]


def constants_of(payload: bytes) -> Constants:
    """What the stream of a driver payload reads of region 0.

    Raises:
        MachineFault: the payload is malformed; its stream branches; or one command writes an address that is in region 0 for one
            operation and in another region for the next.
    """
    ranges: list[tuple[int, int]] = []
    inside: dict[int, int] = {}
    outside: set[int] = set()
    for last, op, reads in _operations(payload):
        ranges += [(run.low, run.high) for run in reads if run.region == CONSTANTS_REGION]
        bases = {(run.region, run.base) for run in reads}
        for name, region in _BASES.items():
            if name in last and region in op.state and (op[region], op[name]) in bases:
                if op[region] == CONSTANTS_REGION:
                    inside[last[name]] = op[name]
                else:
                    outside.add(last[name])
    if both := sorted(outside & inside.keys()):
        raise MachineFault(f"the command at byte {both[0]:#x} writes an address for region 0 and for another one")
    return Constants(_merged(ranges), inside)


def relocated(payload: bytes, moves: Mapping[tuple[int, int], int]) -> bytes:
    """The payload with its stream reading each piece of its constants at another address.

    Args:
        payload: a driver payload.
        moves: piece, as of ``constants_of``, -> its new address.

    Raises:
        MachineFault: as of ``constants_of``; or what the new stream reads is not what the old one read, piece by piece.
    """
    found = constants_of(payload)
    starts = [start for start, _ in found.pieces]
    start = stream.parse_header(payload).start
    words = bytearray(payload)

    def moved(address: int) -> int:
        piece = found.pieces[bisect.bisect_right(starts, address) - 1]
        return moves[piece] + address - piece[0]

    for offset, address in found.writes.items():
        new, at = moved(address), start + offset
        (first,) = struct.unpack_from("<I", words, at)
        struct.pack_into("<II", words, at, first & ~_HIGH_BITS | new >> 32 << 16, new & 0xFFFFFFFF)
    result = bytes(words)
    before = [run for *_, reads in _operations(payload) for run in reads]
    after = [run for *_, reads in _operations(result) for run in reads]

    def expected(run: Run) -> Run:
        low = moved(run.low) if run.region == CONSTANTS_REGION else run.low
        return replace(run, base=run.base + low - run.low, low=low, high=run.high + low - run.low)

    if after != [expected(run) for run in before]:
        raise MachineFault("the stream reads constants by addresses that are not the first of what it reads")
    return result


@dataclass(frozen=True)
class Run:
    """What an operation reads in one run: the address that a register holds, the lowest and the one behind the highest."""

    region: int
    base: int
    low: int
    high: int


def _operations(payload: bytes) -> Iterator[tuple[Mapping[str, int], stream.Operation, list[Run]]]:
    """(register -> byte offset of the command that wrote it last, operation, what it reads) of each."""
    header = stream.parse_header(payload)
    commands = stream.commands(payload, header)
    if any(command.row.name == "NPU_OP_BRANCH" for command in commands):
        raise MachineFault("the stream branches: which address an operation reads depends on data")
    last: dict[str, int] = {}
    at = 0
    for op in stream.operations(header.npu, commands):
        for command in commands[at : op.index]:
            last.update((name, command.offset) for name in command.values if name in _BASES)
        at = op.index + 1
        prepare = PREPARE.get((op.name, op.npu.family))
        if prepare is not None:
            yield last, op, list(_runs(prepare(op)))


def _runs(prepared: Prepared) -> Iterator[Run]:
    for access in prepared.reads:
        if isinstance(access, Span):
            if access.size_bytes:
                yield Run(access.region, access.base, access.base, access.base + access.size_bytes)
        elif access.in_memory:
            for tile, (low, high) in zip(access.tiles, access.extents(), strict=True):
                yield Run(access.region, tile.base, low, high)
    if isinstance(prepared.form, Transfer):
        yield from _transferred(prepared.form)


def _transferred(form: Transfer) -> Iterator[Run]:
    """What a DMA of several runs can read: of a source that is looked up, all that an index may name."""
    region, base, inner, outer = form.source
    reach = [(form.limit if form.by_source else form.inner - 1) * inner, (form.outer - 1) * outer]
    yield Run(region, base, base + sum(min(0, r) for r in reach), base + sum(max(0, r) for r in reach) + form.length)
    if form.by_source or form.by_target:
        region, base, step = form.index
        yield Run(region, base, base, base + (form.outer - 1) * step + 4 * form.inner)


def _merged(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ranges that overlap as one."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if found and start < found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((start, stop))
    return tuple(found)
