"""Encode operations as a driver payload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ethorch.npu.ir.stream import STOP, Op, Stream, group_chains, write_words
from ethorch.npu.memory import INTERNAL
from ethorch.npu.registers import U55, U65, U85
from ethorch.npu.runs import Run
from ethorch.npu.stream_writer import operation, with_commands

#: Maximum number of unfinished operations; all earlier ones have finished. These are the limits that Vela's generator uses
#: (MaxOutstandingKernelOps, MaxOutstandingDMAOps in regor's EthosU55, EthosU65 and EthosU85).
MOST_KERNELS = 2
MOST_TRANSFERS = {U55: 1, U65: 2, U85: 4}
MOST_BLOCKDEP = {U55: 3, U65: 3, U85: 7}
#: NPUs whose kernels use the banks of tables for other data (regor's ethos_u55.cpp: SHRAM of 16 banks).
SHARED_BANKS = ("ethos-u55-32", "ethos-u55-64")
_STREAMS = ("WEIGHT", "SCALE")


@dataclass(frozen=True)
class Wait:
    """A command that waits until at most ``count`` transfers (if ``is_dma``) or kernels are outstanding."""

    is_dma: bool
    count: int


@dataclass(frozen=True)
class Encoded:
    payload: bytes
    offsets: dict[int, int]  # byte offset of each command by the operation's key


def encode(stream: Stream) -> bytes:
    """Return the driver payload of a stream. See ``encode_with_offsets``."""
    return encode_with_offsets(stream).payload


def encode_with_offsets(stream: Stream) -> Encoded:
    """Encode a stream.

    Raises:
        MachineFault: The payload is not COP1, or an operation has invalid registers.
    """
    family = stream.npu.family
    state: dict[str, int] = {}
    words: list[int] = []
    offsets: dict[int, int] = {}
    blockdeps = derive_blockdeps(stream.ops)
    for op, waits in zip(stream.ops, derive_waits(stream.ops), strict=True):
        registers = op.registers if op.is_dma else {**op.registers, "BLOCKDEP": blockdeps[op.key]}
        for name, raw in registers.items():
            if state.get(name, 0) != raw:
                words += write_words(family, name, raw)
                state[name] = raw
        for wait in waits:
            words += operation(stream.npu, "NPU_OP_DMA_WAIT" if wait.is_dma else "NPU_OP_KERNEL_WAIT", wait.count)
        offsets[op.key] = 4 * len(words)
        words += operation(stream.npu, op.name, op.parameter)
    words += operation(stream.npu, STOP, stream.stop)
    return Encoded(with_commands(stream.payload, words), offsets)


def derive_blockdeps(ops: Sequence[Op]) -> dict[int, int]:
    """Return BLOCKDEP for each kernel, keyed by ``Op.key``.

    A chain keeps its decoded values if each of its kernels follows the same kernel as in the decoded stream. In other chains,
    all kernels have the same value: 0 if the chain conflicts with the kernel before it, or else the maximum.
    """
    blockdeps: dict[int, int] = {}
    before: Op | None = None
    for group in group_chains(ops):
        chain = [op for op in group if not op.is_dma]
        earlier = [before, *chain[:-1]]
        if all(op.before is not None and (b is None or b.key == op.before) for b, op in zip(earlier, chain, strict=False)):
            blockdeps.update((op.key, op.registers["BLOCKDEP"]) for op in chain)
        else:
            has_conflict = before is not None and any(
                _overlap(before.writes, op.reads) or _overwrites_table(before, op) for op in chain
            )
            blockdeps.update((op.key, 0 if has_conflict else MOST_BLOCKDEP[op.npu.family]) for op in chain)
        before = chain[-1] if chain else before
    return blockdeps


def derive_waits(ops: Sequence[Op]) -> list[list[Wait]]:
    """Return the waits that must precede each operation (npu-reference 7)."""
    running: dict[bool, list[Op]] = {True: [], False: []}  # unfinished operations: transfers, kernels
    waits: list[list[Wait]] = []
    for op in ops:
        waits.append([])
        for is_dma, others in running.items():
            last = next((n for n in reversed(range(len(others))) if must_finish(others[n], op)), None)
            if last is not None:
                waits[-1].append(Wait(is_dma, len(others) - 1 - last))
                del others[: last + 1]
        same_kind = running[op.is_dma]
        same_kind.append(op)
        del same_kind[: -(MOST_TRANSFERS[op.npu.family] if op.is_dma else MOST_KERNELS)]
    return waits


def must_finish(first: Op, second: Op) -> bool:
    """Return True if the first operation must finish before the second one starts."""
    if first.is_dma or second.is_dma:
        return has_conflict(first, second) or _share_banks(first, second)
    return _overlap(first.writes, [run for run in second.reads if run.register.startswith(_STREAMS)])


def has_conflict(first: Op, second: Op) -> bool:
    return _overlap(first.writes, second.reads) or _overlap(first.reads, second.writes) or _overlap(first.writes, second.writes)


def _share_banks(first: Op, second: Op) -> bool:
    transfers = [op for op in (first, second) if op.is_dma]
    is_shared = len(transfers) == 1 and first.npu.name in SHARED_BANKS
    return is_shared and any(run.region == INTERNAL for run in transfers[0].writes)


def _overwrites_table(first: Op, second: Op) -> bool:
    if first.npu.name not in SHARED_BANKS:
        return False
    return any(run.region == INTERNAL for run in first.reads) and not any(run.region == INTERNAL for run in second.reads)


def _overlap(first: Sequence[Run], second: Sequence[Run]) -> bool:
    return any(a.region == b.region and a.low < b.high and b.low < a.high for a in first for b in second)
