"""Constants of a command stream put elsewhere: which bytes of region 0 it reads, and the stream that reads them at other places."""

from __future__ import annotations

import bisect
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ethorch.npu import stream
from ethorch.npu.prepared import PREPARE
from ethorch.npu.registers import Npu
from ethorch.npu.runs import READ_BASES, Run, read_by
from ethorch.npu.stream_writer import with_commands, written
from ethorch.support.errors import MachineFault

CONSTANTS_REGION = 0
#: Constants lie on multiples of this: weight streams and bricks do (npu-reference 3.2, 4.2), other constants by Vela's choice.
CONSTANTS_ALIGNMENT = 16


@dataclass(frozen=True)
class Relocated:
    """A payload that reads its constants elsewhere.

    Attributes:
        payload: the driver payload.
        inserted: byte offset, from the first command word of the old stream, of each command in front of which another one is now.
    """

    payload: bytes
    inserted: tuple[int, ...]


def constants_of(payload: bytes) -> tuple[tuple[int, int], ...]:
    """What the stream of a driver payload reads of region 0: pieces that do not overlap, in order.

    Returns:
        (first address, the one behind the last) of each.

    Raises:
        MachineFault: the payload is malformed, or its stream branches.
    """
    reads = [run for op in _operations(*_commands(payload)) for run in op.reads]
    return _merged([(run.low, run.high) for run in reads if run.region == CONSTANTS_REGION])


def relocated(payload: bytes, moves: Mapping[tuple[int, int], int]) -> Relocated:
    """The payload with its stream reading each piece of its constants at another address.

    A command that writes an address writes the new one. Where Vela left a command out because the register held the address
    already, which was that of another region, one is inserted.

    Args:
        payload: a driver payload.
        moves: piece, as of ``constants_of``, -> its new address.

    Raises:
        MachineFault: as of ``constants_of``; what the new stream reads is not what the old one read, run by run; or commands would
            have to be inserted into a payload of another kind than COP1.
    """
    header, commands = _commands(payload)
    operations = _operations(header, commands)
    pieces = sorted(moves)
    starts = [start for start, _ in pieces]

    def moved(address: int) -> int:
        piece = pieces[bisect.bisect_right(starts, address) - 1]
        return moves[piece] + address - piece[0]

    def expected(run: Run) -> Run:
        low = moved(run.low) if run.region == CONSTANTS_REGION else run.low
        return replace(run, base=run.base + low - run.low, low=low, high=run.high + low - run.low)

    words, inserted = _rewritten(payload[header.start : header.stop], header.npu, commands, operations, moved)
    result = with_commands(payload, words)
    after = _operations(*_commands(result))
    if [op.reads for op in after] != [[expected(run) for run in op.reads] for op in operations]:
        raise MachineFault("the stream reads constants by addresses that no register holds")
    return Relocated(result, tuple(inserted))


def _rewritten(
    data: bytes, npu: Npu, commands: Sequence[stream.Command], operations: Sequence[Reading], moved: Callable[[int], int]
) -> tuple[list[int], list[int]]:
    """The command words with new addresses, and where some were inserted."""
    wanted: dict[int, dict[str, int]] = {}
    for op in operations:
        wanted[op.index] = {name: moved(address) if here else address for name, (address, here) in op.bases.items()}
    last: dict[str, int] = {}
    first: dict[int, int] = {}  # index of a command that writes an address -> what the first operation that reads by it wants there
    for command in commands:
        last.update((name, command.index) for name in command.values if name in READ_BASES)
        for name, address in wanted.get(command.index, {}).items():
            if name in last:
                first.setdefault(last[name], address)
    words = struct.unpack(f"<{len(data) // 4}I", data)
    current: dict[str, int] = {}
    made, inserted = list[int](), list[int]()
    for number, command in enumerate(commands):
        stop = commands[number + 1].offset if number + 1 < len(commands) else len(data)
        for name, address in wanted.get(command.index, {}).items():
            if current.get(name, 0) != address:  # Vela had no need of a command: the register held the old address
                made += written(npu, name, address)
                inserted.append(command.offset)
                current[name] = address
        base = next((name for name in command.values if name in READ_BASES), None)
        if base is None:
            made += words[command.offset // 4 : stop // 4]
        else:
            current[base] = first.get(command.index, command.values[base])
            made += written(npu, base, current[base])
    return made, inserted


@dataclass(frozen=True)
class Reading:
    """An operation's index among the commands, and what it reads.

    Attributes:
        bases: register of an address that it reads by -> (address, whether that is in region 0).
    """

    index: int
    reads: list[Run]
    bases: Mapping[str, tuple[int, bool]]


def _commands(payload: bytes) -> tuple[stream.Header, list[stream.Command]]:
    header = stream.parse_header(payload)
    commands = stream.commands(payload, header)
    if any(command.row.name == "NPU_OP_BRANCH" for command in commands):
        raise MachineFault("the stream branches: which address an operation reads depends on data")
    return header, commands


def _operations(header: stream.Header, commands: list[stream.Command]) -> list[Reading]:
    found = []
    for op in stream.operations(header.npu, commands):
        prepare = PREPARE.get((op.name, op.npu.family))
        if prepare is not None:
            reads = list(read_by(prepare(op)))
            bases = {run.register: (run.base, run.region == CONSTANTS_REGION) for run in reads}
            found.append(Reading(op.index, reads, bases))
    return found


def _merged(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ranges that overlap as one."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if found and start < found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((start, stop))
    return tuple(found)
