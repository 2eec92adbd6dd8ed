"""Cycles of a decode step, beside the least that its weights allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch.fx import GraphModule, Node

from ethorch.figures import Layer
from ethorch.language.speaker import states
from ethorch.lower.fx.node import Converted, constants_of, op_name, origin_of
from ethorch.program.program import Program, record_of
from ethorch.support import tables
from ethorch.support.errors import EthorchError
from ethorch.support.rendering import as_html, as_text

if TYPE_CHECKING:
    from rich.console import RenderableType

_CLOCKS_HZ = (1e9, 400e6)
#: Bytes of one stream that Vela 5.2 estimates to be on their way at a time: its estimate of long reads is a latency for each of
#: so many, whatever the bursts. Found by changing one figure of a system configuration after the other.
_ON_THEIR_WAY = 1638.4
_WITH_WEIGHTS = ("CONV2D", "DEPTHWISE_CONV2D", "FULLY_CONNECTED")  # TOSA operators whose second operand is a constant
_PRODUCT = "MatMul"  # an operator of Vela's: one of its operands may be one


@dataclass(frozen=True)
class OperatorCost:
    """Of all layers of one kind: cycles, and the least that their weights and products allow."""

    cycles: int
    floor: int
    weight_bytes: int
    macs: int


@dataclass(frozen=True)
class DecodeCost:
    """What one token costs, by Vela's estimate.

    Attributes:
        target, system_config, memory_mode: of the estimate.
        cycles: of the NPU.
        floor: the least: each weight comes once from the memory where weights lie, as fast as Vela estimates one stream of it, or
            each product is one of the MAC array's, whatever takes longer.
        peak_floor: the same at the memory's full speed, which no single stream has by that estimate.
        weight_bytes: of the weights that one token reads, a byte or half a byte each, before Vela's encoding.
        constant_bytes: of all constants of the delegate, as Vela encodes them: weights, tables, embeddings.
        state_bytes: of buffers that are kept from token to token.
        copied_bytes: of these, what generated firmware and the desk copy to the NPU for each token; the rest is read in place.
            ExecuTorch's delegate copies all.
        arena_bytes: of the NPU's feature maps, with room for copies of the state, as ExecuTorch's delegate allocates it.
        cpu: name of a kernel on the CPU -> how often it is called.
        operators: PyTorch operator, with its module's last name for those with weights -> their cost, dearest first.
    """

    target: str
    system_config: str
    memory_mode: str
    cycles: int
    floor: int
    peak_floor: int
    weight_bytes: int
    constant_bytes: int
    state_bytes: int
    copied_bytes: int
    arena_bytes: int
    cpu: Mapping[str, int]
    operators: Mapping[str, OperatorCost]

    def tokens_per_second(self, clock_hz: float) -> float:
        """At that clock of the NPU, its memories as much slower."""
        return clock_hz / self.cycles

    def line(self) -> str:
        """One line of text."""
        rates = ", ".join(f"{self.tokens_per_second(clock):,.0f} at {clock / 1e6:,.0f} MHz" for clock in _CLOCKS_HZ)
        return f"{self.target}: {self.cycles:,} cycles a token, {self.cycles / self.floor:.2f} of the floor; tokens/s: {rates}"

    def to_json(self) -> dict[str, Any]:
        """As plain data; keys are the attributes' names."""
        return asdict(self)

    def rich(self) -> RenderableType:
        """A table of Rich: a row for each operator, and the bytes."""
        from rich.console import Group

        table = tables.table()
        table.add_column("operator")
        for name in ("cycles", "floor", "weights, bytes"):
            table.add_column(name, justify="right")
        for name, cost in self.operators.items():
            table.add_row(name, f"{cost.cycles:,}", f"{cost.floor:,}", f"{cost.weight_bytes:,}")
        table.add_row("all", f"{self.cycles:,}", f"{self.floor:,}", f"{self.weight_bytes:,}", style="bold")
        kernels = ", ".join(f"{count} x {name}" for name, count in self.cpu.items()) or "nothing"
        state = f"state {self.state_bytes:,} of which {self.copied_bytes:,} are copied to the NPU"
        sizes = f"constants {self.constant_bytes:,} bytes, {state}, arena {self.arena_bytes:,}"
        return Group(table, "", f"{sizes}; on the CPU: {kernels}")

    def __str__(self) -> str:
        return as_text(self.rich())

    def _repr_html_(self) -> str:
        return as_html(self.rich())


def decode_cost(program: Program) -> DecodeCost:
    """What one call of a program costs on the NPU, by operator, against the floor of its weights.

    Args:
        program: the decode method, of ``ethorch.compile``: of a file, Vela's estimates are not known.

    Raises:
        EthorchError: it is a file's.
    """
    spec = record_of(program).spec
    if record_of(program).build is None or spec is None:
        raise EthorchError(
            "the cost of a token is Vela's estimate, which a file does not keep: take what ethorch.compile returned."
        )
    memory = spec.memory_system.const_area
    peak = spec.bytes_per_cycle[memory]
    latency = spec.vela_config.read_latencies(spec.system_config).get(memory, 0.0)
    speed = min(peak, _ON_THEIR_WAY / latency) if latency else peak
    found: dict[str, OperatorCost] = {}
    cpu: dict[str, int] = {}
    quantized = record_of(program).quantized
    bits: dict[str, int] = {}
    read: set[str] = set()
    if isinstance(quantized, GraphModule):
        bits, read = _bits_of_weights(quantized), _reading_constants(quantized)
    for layer in record_of(program).layers:
        if layer.where != "NPU":
            cpu[layer.operator] = cpu.get(layer.operator, 0) + 1
            continue
        weighted = any(name in layer.tosa_operators for name in _WITH_WEIGHTS)
        weighted |= layer.operator == _PRODUCT and layer.module in read
        weights = layer.macs * bits.get(layer.module, 8) // 8 if weighted else 0
        floor = round(max(weights / speed, layer.macs / spec.target.macs))
        name = _name(layer, bool(weights))
        before = found.get(name, OperatorCost(0, 0, 0, 0))
        found[name] = OperatorCost(
            before.cycles + (layer.cycles or 0), before.floor + floor, before.weight_bytes + weights, before.macs + layer.macs
        )
    ordered = dict(sorted(found.items(), key=lambda item: -item[1].cycles))
    return DecodeCost(
        spec.target.name,
        spec.system_config,
        spec.memory_mode,
        sum(cost.cycles for cost in found.values()),
        sum(cost.floor for cost in found.values()),
        round(sum(max(cost.weight_bytes / peak, cost.macs / spec.target.macs) for cost in found.values())),
        sum(cost.weight_bytes for cost in found.values()),
        sum(len(payload.weights) for payload in record_of(program).payloads),
        sum(value.nbytes for value in states(program).values()),
        sum(state.to_npu_bytes for state in program.explain().states if not state.in_place),
        sum(payload.scratch_bytes for payload in record_of(program).payloads),
        cpu,
        ordered,
    )


def _bits_of_weights(graph: GraphModule) -> dict[str, int]:
    """Module -> bits of each of its weights."""
    found: dict[str, int] = {}
    for node in graph.graph.nodes:
        if op_name(node.target) == "quantized_decomposed.dequantize_per_channel.default":
            lowest, highest = node.args[4:6]
            found |= {origin_of(user).module: int(highest - lowest).bit_length() for user in node.users}
    return found


def _reading_constants(graph: GraphModule) -> set[str]:
    """The modules of operators that read a constant of several dims as they read an activation."""
    constants = constants_of(Converted(graph))
    held: set[Node] = set()
    for node in graph.graph.nodes:
        array = constants(node)
        if array is not None:
            held |= {node} if array.ndim > 1 else set()
        elif len(node.all_input_nodes) == 1 and node.all_input_nodes[0] in held:
            held.add(node)
    return {origin_of(node).module for node in graph.graph.nodes if node not in held and held & set(node.all_input_nodes)}


def _name(layer: Layer, weights: bool) -> str:
    name = layer.operators[0].removesuffix(".default") if layer.operators else layer.operator
    return f"{name} {layer.module.rpartition('.')[2]}" if weights else name
