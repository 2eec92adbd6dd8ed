"""Change the block sizes of kernels, so that reading, computing and writing overlap better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

from ethorch.npu.arithmetic import ceil_div
from ethorch.npu.cycles.hardware import Size
from ethorch.npu.cycles.model import RatedOperator
from ethorch.npu.cycles.operators import Operator
from ethorch.npu.cycles.work import volume
from ethorch.npu.ir import Op, Stream
from ethorch.npu.ir.stream import group_chains
from ethorch.npu.passes.context import Context
from ethorch.npu.registers import U85
from ethorch.npu.verify import blocks_u85, check_operation, collect_forms, shram
from ethorch.npu.verify.blockdep import largest_blockdep
from ethorch.npu.verify.instruction import describe

_WORTH = 0.99  # maximum cycles of an operator, relative to its current cycles
_SIMILAR = 1.02  # cycles up to which a larger block is preferred, because the cycle model ignores the start of a block
_MOST_TRIES = 100  # blocks of one operator whose legality is checked
_PARTS = 4  # of one axis
_AXES = ("HEIGHT", "WIDTH", "DEPTH")
#: Registers whose values other than 0 restrict the block in ways that the verifier does not check.
_RESTRICTING = ("ACC_FORMAT.input", "ACC_FORMAT.output", "IFM_UPSCALE", "OFM_PRECISION.reverse")

Kernels = Mapping[int, Op]  # by position
Axes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def run(stream: Stream, context: Context) -> Stream | None:
    """Return the stream with changed block sizes that reduce its cycles, or None."""
    search = _Search(stream, context)
    changes: dict[int, Op] = {}
    for rated in context.rate_operators(stream):
        changes |= search.change_blocks(rated.operator)
    if not changes:
        return None
    changed = replace(stream, ops=_update_blockdeps(stream.ops, changes))
    return changed if context.rate(changed) < context.rate(stream) else None


class _Search:
    def __init__(self, stream: Stream, context: Context):
        self.stream, self.context = stream, context
        self.forms = collect_forms(map(describe, stream.ops))
        self._chosen: dict[object, Size | None] = {}

    def change_blocks(self, operator: Operator) -> Kernels:
        kernels = {position: op for position in operator.positions if not (op := self.stream.ops[position]).is_dma}
        if operator.compound is not None or not operator.works or any(map(_has_fixed_block, kernels.values())):
            return {}
        sizes = {shram.block_size(describe(kernel)) for kernel in kernels.values()}
        if len(sizes) != 1:
            return {}
        axes = _list_axes(list(kernels.values()), *sizes)
        weights = tuple(replace(transfer, position=0) for transfer in operator.weights)
        key = (operator.works, operator.last_slice, operator.slices, operator.home, operator.is_shared, weights, axes)
        if key not in self._chosen:
            self._chosen[key] = self._choose(operator, kernels, axes)
        block = self._chosen[key]
        return {} if block is None else self._set_block(kernels, block)

    def _choose(self, operator: Operator, kernels: Kernels, axes: Axes) -> Size | None:
        most_cycles, most_elements = _WORTH * self._rate(operator), volume(operator.works[0].block)
        blocks = [block for block in product(*axes) if volume(block) <= most_elements]
        cycles = {block: self._rate(_with_block(operator, block)) for block in blocks}
        faster = sorted((block for block in blocks if cycles[block] <= most_cycles), key=lambda block: (cycles[block], block))
        fastest = self._find_legal(kernels, faster)
        if fastest is None:
            return None
        similar = [block for block in faster if cycles[block] <= _SIMILAR * cycles[fastest]]
        return self._find_legal(kernels, sorted(similar, key=lambda block: (-volume(block), block))) or fastest

    def _find_legal(self, kernels: Kernels, blocks: Sequence[Size]) -> Size | None:
        return next((block for block in blocks[:_MOST_TRIES] if self._set_block(kernels, block)), None)

    def _rate(self, operator: Operator) -> int:
        rated = RatedOperator(operator, 0)
        accesses = rated.access_cycles(self.stream.npu, self.context.regions, 0)
        return max([operator.computation.cycles, *accesses.values()])

    def _set_block(self, kernels: Kernels, block: Size) -> Kernels:
        """Return the kernels with block size ``block``, or {} if it is illegal."""
        changed = {}
        for position, kernel in kernels.items():
            op = _set_layout(kernel.copy(**{f"OFM_BLK_{axis}_M1": n - 1 for axis, n in zip(_AXES, block, strict=True)}))
            if op is None or any(check_operation(describe(op), position, self.stream.image, self.forms)):
                return {}
            changed[position] = op
        return changed


def _has_fixed_block(op: Op) -> bool:
    values, facts = op.values, describe(op)
    if op.name == "NPU_OP_RESIZE" or facts.mode == "NONE" or any(values.get(name) for name in _RESTRICTING):
        return True
    return bool(values.get("OFM_PRECISION.transpose")) and bool(values["OFM_PRECISION.format"])


def _with_block(operator: Operator, block: Size) -> Operator:
    return replace(operator, works=tuple(work.change_block(block) for work in operator.works), _slack=None)


def _list_axes(kernels: Sequence[Op], current: Size) -> Axes:
    """Return candidate block heights, widths and depths. Convolutions keep their depth, which determines the order of weights."""
    facts = describe(kernels[0])
    rules = blocks_u85 if facts.npu.family == U85 else shram
    ofm = [max(describe(kernel).values[f"OFM_{axis}"] for kernel in kernels) for axis in _AXES]
    heights, widths, depths = map(_divide, ofm, rules.block_units(facts), rules.largest_block(facts))
    if any(kernel.name in ("NPU_OP_CONV", "NPU_OP_DEPTHWISE") for kernel in kernels):
        return heights, widths, (current[2],)
    return heights, widths, tuple(depth for depth in depths if shram.splits_at_bricks(depth, ofm[2]))


def _divide(size: int, unit: int, most: int) -> tuple[int, ...]:
    parts = {ceil_div(ceil_div(size, count), unit) * unit for count in range(1, _PARTS + 1)}
    powers = {unit << shift for shift in range(ceil_div(size, unit).bit_length())}
    return tuple(sorted(part for part in parts | powers if part <= most))


def _set_layout(op: Op) -> Op | None:
    """Return the kernel with the SHRAM layout of its block, or None if SHRAM is too small."""
    if op.npu.family == U85:
        return op
    facts = describe(op)
    if facts.prepared is None:
        return None
    layouts = shram.find_layouts(facts)
    if not layouts:
        return None
    layout = layouts[0]
    registers = {"AB_START": layout.ab_start, "IFM_IB_END": layout.ib_end}
    if shram.is_binary(facts):
        registers["IFM2_IB_START"] = layout.ib2_start
    return op.copy(**registers)


def _update_blockdeps(ops: Sequence[Op], changes: Kernels) -> list[Op]:
    changed, keys = [changes.get(position, op) for position, op in enumerate(ops)], {op.key for op in changes.values()}
    result: list[Op] = []
    before: Op | None = None
    for group in group_chains(changed):
        kernels = [op for op in group if not op.is_dma]
        if before is not None and any(op.key in keys for op in (before, *kernels)):
            largest = min((largest_blockdep(describe(before), describe(op)) for op in kernels), default=0)
            group = [op if op.is_dma else op.copy(BLOCKDEP=largest) for op in group]
        result += group
        before = kernels[-1] if kernels else before
    return result
