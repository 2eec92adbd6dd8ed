"""Move the constants that a command stream reads from region 0."""

from __future__ import annotations

import bisect
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ethorch.npu import stream
from ethorch.npu.prepared import PREPARE
from ethorch.npu.registers import Npu
from ethorch.npu.runs import READ_BASES, Run, iterate_reads
from ethorch.npu.stream_writer import with_commands, write_register
from ethorch.support.errors import MachineFault

CONSTANTS_REGION = 0
#: Alignment of constants, required by weight streams and bricks (npu-reference 3.2, 4.2) and used by Vela for all constants.
CONSTANTS_ALIGNMENT = 16


@dataclass(frozen=True)
class Relocated:
    """A payload that reads its constants from new addresses.

    Attributes:
        inserted: Byte offsets, relative to the old stream's first command word, at which commands were inserted.
    """

    payload: bytes
    inserted: tuple[int, ...]


def constants_of(payload: bytes) -> tuple[tuple[int, int], ...]:
    """Return the sorted, disjoint ranges [first address, end) that a stream reads in region 0.

    Raises:
        MachineFault: The payload is malformed, or its stream has branches.
    """
    reads = [run for op in _operations(*_commands(payload)) for run in op.reads]
    return _merge([(run.low, run.high) for run in reads if run.region == CONSTANTS_REGION])


def relocate(payload: bytes, moves: Mapping[tuple[int, int], int]) -> Relocated:
    """Rewrite a payload to read its constants from new addresses.

    Register writes that Vela omitted are inserted if the new addresses require them.

    Args:
        moves: New address of each range returned by :func:`constants_of`.

    Raises:
        MachineFault: The payload is malformed, its stream has branches, the new stream would not read the moved constants, or
            the payload is not COP1.
    """
    header, commands = _commands(payload)
    operations = _operations(header, commands)
    pieces = sorted(moves)
    starts = [start for start, _ in pieces]

    def move_address(address: int) -> int:
        piece = pieces[bisect.bisect_right(starts, address) - 1]
        return moves[piece] + address - piece[0]

    def move_run(run: Run) -> Run:
        low = move_address(run.low) if run.region == CONSTANTS_REGION else run.low
        return replace(run, base=run.base + low - run.low, low=low, high=run.high + low - run.low)

    words, inserted = _rewrite(payload[header.start : header.stop], header.npu, commands, operations, move_address)
    result = with_commands(payload, words)
    after = _operations(*_commands(result))
    if [op.reads for op in after] != [[move_run(run) for run in op.reads] for op in operations]:
        raise MachineFault("constants cannot be moved, because not all of their addresses are stored in registers")
    return Relocated(result, tuple(inserted))


def _rewrite(
    data: bytes, npu: Npu, commands: Sequence[stream.Command], operations: Sequence[Reading], move_address: Callable[[int], int]
) -> tuple[list[int], list[int]]:
    addresses: dict[int, dict[str, int]] = {}
    for op in operations:
        addresses[op.index] = {name: move_address(address) if here else address for name, (address, here) in op.bases.items()}
    last: dict[str, int] = {}
    first: dict[int, int] = {}  # index of a command that writes an address -> address required by its first reader
    for command in commands:
        last.update((name, command.index) for name in command.values if name in READ_BASES)
        for name, address in addresses.get(command.index, {}).items():
            if name in last:
                first.setdefault(last[name], address)
    words = struct.unpack(f"<{len(data) // 4}I", data)
    current: dict[str, int] = {}
    rewritten, inserted = list[int](), list[int]()
    for number, command in enumerate(commands):
        stop = commands[number + 1].offset if number + 1 < len(commands) else len(data)
        for name, address in addresses.get(command.index, {}).items():
            if current.get(name, 0) != address:  # Vela omitted the command because the register contained the old address
                rewritten += write_register(npu, name, address)
                inserted.append(command.offset)
                current[name] = address
        base = next((name for name in command.values if name in READ_BASES), None)
        if base is None:
            rewritten += words[command.offset // 4 : stop // 4]
        else:
            current[base] = first.get(command.index, command.values[base])
            rewritten += write_register(npu, base, current[base])
    return rewritten, inserted


@dataclass(frozen=True)
class Reading:
    """The byte ranges that an operation reads, and their address registers.

    Attributes:
        index: Index of the operation's command.
        bases: Address in each register, and whether the address is in region 0.
    """

    index: int
    reads: list[Run]
    bases: Mapping[str, tuple[int, bool]]


def _commands(payload: bytes) -> tuple[stream.Header, list[stream.Command]]:
    header = stream.parse_header(payload)
    commands = stream.commands(payload, header)
    if any(command.row.name == "NPU_OP_BRANCH" for command in commands):
        raise MachineFault("constants of a stream with branches cannot be moved, because their addresses can depend on data")
    return header, commands


def _operations(header: stream.Header, commands: list[stream.Command]) -> list[Reading]:
    readings = []
    for op in stream.operations(header.npu, commands):
        prepare = PREPARE.get((op.name, op.npu.family))
        if prepare is not None:
            reads = list(iterate_reads(prepare(op)))
            bases = {run.register: (run.base, run.region == CONSTANTS_REGION) for run in reads}
            readings.append(Reading(op.index, reads, bases))
    return readings


def _merge(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)
