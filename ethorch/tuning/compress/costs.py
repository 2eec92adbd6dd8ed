"""The cycles and encoded bytes of each weight in a program compiled with Vela."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch.fx import GraphModule

from ethorch.backend.build import build_pte
from ethorch.npu import Program
from ethorch.npu.memory import Span
from ethorch.npu.prepared import PREPARE
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.tosa.ir import Origin
from ethorch.tosa.serialize import serialize_with_positions
from ethorch.tuning.compress.weights import Weight
from ethorch.tuning.sample_runs import Inputs
from ethorch.vela.compiled_model import ScheduledOp
from ethorch.vela.lowered import Lowered


@dataclass(frozen=True)
class Cost:
    """The cycles of the layers that read a weight, and the encoded bytes that these layers read from region 0 (constants)."""

    cycles: int
    bytes: int


@dataclass(frozen=True)
class Costs:
    """The costs of a program.

    Attributes:
        cycles: Total cycles of all delegates.
        flash_bytes: Size of the .pte.
        weight_bytes: Encoded bytes of weights and scales.
        weights: Cost of each weight.
    """

    cycles: int
    flash_bytes: int
    weight_bytes: int
    weights: tuple[Cost, ...]


#: TOSA operators that multiply by a weight.
_LAYERS = frozenset({"CONV2D", "CONV3D", "DEPTHWISE_CONV2D", "TRANSPOSE_CONV2D"})

#: A contiguous range of constants: (delegate, offset in region 0, size in bytes).
_Run = tuple[int, int, int]


def costs(graph: GraphModule, weights: Sequence[Weight], inputs: Inputs, spec: EthosUCompileSpec) -> Costs:
    """Compile a quantized graph from ``convert_pt2e`` and return its costs, in total and for each weight."""
    build = build_pte(graph, inputs, spec)
    cycles: dict[Origin, int] = defaultdict(int)
    runs: dict[Origin, set[_Run]] = defaultdict(set)
    for number, delegate in enumerate(build.delegates):
        _share_out(delegate, number, cycles, runs)
    owners = _owners(weights, cycles)
    spent, read = [0] * len(weights), [set[_Run]() for _ in weights]
    for origin, owner in owners.items():
        spent[owner] += cycles[origin]
        read[owner] |= runs[origin]
    each = tuple(Cost(spent[number], sum(size for _, _, size in read[number])) for number in range(len(weights)))
    total = sum(delegate.performance.total_cycles for delegate in build.delegates)
    return Costs(total, len(build.pte), sum(cost.bytes for cost in each), each)


def _owners(weights: Sequence[Weight], origins: Iterable[Origin]) -> dict[Origin, int]:
    nodes = {use.node.name: number for number, weight in enumerate(weights) for use in weight.uses}
    modules = {weight.name: number for number, weight in enumerate(weights)}
    owner_by_origin = {origin: nodes[origin.node] for origin in origins if origin.node in nodes}
    return owner_by_origin or {origin: modules[origin.module] for origin in origins if origin.module in modules}


def _share_out(delegate: Lowered, number: int, cycles: dict[Origin, int], runs: dict[Origin, set[_Run]]) -> None:
    _, positions = serialize_with_positions(delegate.graph)
    made_from = dict(zip(positions, delegate.graph.ops, strict=True))

    def layer_of(row: ScheduledOp | None) -> Origin | None:
        op = made_from.get(row.tosa_op) if row is not None and row.tosa_op is not None else None
        return op.result.origin if op is not None and op.name in _LAYERS else None

    for row in delegate.compiled.rows():
        if (origin := layer_of(row)) is not None:
            cycles[origin] += row.op_cycles
    copies: list[tuple[Span, Span]] = []  # DMA transfers out of region 0: (source, destination)
    for op in Program(delegate.compiled.command_stream, delegate.compiled.constants).operations():
        prepare = PREPARE.get((op.name, op.npu.family))
        if prepare is None:
            continue
        prepared = prepare(op)
        if op.name == "NPU_OP_DMA_START":
            for source, target in zip(prepared.reads, prepared.writes, strict=True):  # transfers of indexed rows contain no weights
                if isinstance(source, Span) and isinstance(target, Span):
                    copies = [pair for pair in copies if not _overlap(pair[1], target)]
                    if source.region == 0:
                        copies.append((source, target))
            continue
        origin = layer_of(delegate.compiled.op_at(op.offset))
        if origin is None:
            continue
        for access in prepared.reads:
            if isinstance(access, Span) and (base := _constant(access, copies)) is not None:
                runs[origin].add((number, base, access.size_bytes))


def _overlap(a: Span, b: Span) -> bool:
    return a.region == b.region and a.base < b.base + b.size_bytes and b.base < a.base + a.size_bytes


def _constant(access: Span, copies: Sequence[tuple[Span, Span]]) -> int | None:
    if access.region == 0:
        return access.base
    for source, target in copies:
        if target.region == access.region and target.base <= access.base < target.base + target.size_bytes:
            return source.base + access.base - target.base
    return None
