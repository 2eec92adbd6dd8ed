"""The cycles of a decode call, and lower bounds."""

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
#: Bytes that one stream reads per memory latency in Vela 5.2's estimate of long reads, for any burst length. Determined by
#: varying single values of a system configuration.
_BYTES_IN_FLIGHT = 1638.4
_WITH_WEIGHTS = ("CONV2D", "DEPTHWISE_CONV2D", "FULLY_CONNECTED")  # TOSA operators whose second operand is a constant
_PRODUCT = "MatMul"  # a Vela operator that may have a constant operand


@dataclass(frozen=True)
class OperatorCost:
    """The total cost of the layers that share a key in ``DecodeCost.operators``. See ``DecodeCost``."""

    cycles: int
    floor: int
    weight_bytes: int
    macs: int


@dataclass(frozen=True)
class DecodeCost:
    """The cost of decoding one token, estimated by Vela.

    Attributes:
        cycles: NPU cycles.
        floor: Sum over layers of the minimum cycles to read the weights once with one memory stream or to compute the
            multiply-accumulates, whichever is longer.
        peak_floor: Minimum cycles at the full memory speed, which a single stream does not reach in Vela's estimate.
        weight_bytes: Unencoded size, at 4 or 8 bits per weight, of the weights read for one token.
        constant_bytes: Size of the constants encoded by Vela: weights, lookup tables, embeddings.
        state_bytes: Size of the mutable buffers.
        copied_bytes: Bytes of mutable buffers that generated firmware and the simulator copy to the NPU for each token.
            ExecuTorch's EthosUBackend copies all mutable buffers.
        arena_bytes: Size of the feature maps, including copies of mutable buffers, as allocated by ExecuTorch's EthosUBackend.
        cpu: Number of calls to each CPU kernel.
        operators: Cost by PyTorch operator, most expensive first. If an operator has weights, its key includes the last part of the
            module path.
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
        """Return the number of tokens per second at an NPU clock. The memory speed is assumed to scale with the clock."""
        return clock_hz / self.cycles

    def line(self) -> str:
        """Return a one-line summary."""
        rates = ", ".join(f"{self.tokens_per_second(clock):,.0f} at {clock / 1e6:,.0f} MHz" for clock in _CLOCKS_HZ)
        return (
            f"{self.target}: {self.cycles:,} cycles per token, {self.cycles / self.floor:.2f} times the minimum; tokens/s: {rates}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        return asdict(self)

    def rich(self) -> RenderableType:
        """Return a table of the operators, followed by the memory sizes and CPU kernels."""
        from rich.console import Group

        table = tables.table()
        table.add_column("operator")
        for name in ("cycles", "minimum", "weights, bytes"):
            table.add_column(name, justify="right")
        for name, cost in self.operators.items():
            table.add_row(name, f"{cost.cycles:,}", f"{cost.floor:,}", f"{cost.weight_bytes:,}")
        table.add_row("total", f"{self.cycles:,}", f"{self.floor:,}", f"{self.weight_bytes:,}", style="bold")
        kernels = ", ".join(f"{count} x {name}" for name, count in self.cpu.items()) or "nothing"
        state = f"mutable buffers {self.state_bytes:,}, of which {self.copied_bytes:,} are copied to the NPU"
        sizes = f"constants {self.constant_bytes:,} bytes, {state}, arena {self.arena_bytes:,}"
        return Group(table, "", f"{sizes}; on the CPU: {kernels}")

    def __str__(self) -> str:
        return as_text(self.rich())

    def _repr_html_(self) -> str:
        return as_html(self.rich())


def decode_cost(program: Program) -> DecodeCost:
    """Return the cost of one decode call, in total and for each operator.

    Args:
        program: Decode method of a program returned by ``ethorch.compile``.

    Raises:
        EthorchError: The program was loaded from a file, which does not record Vela's estimates.
    """
    spec = record_of(program).spec
    if record_of(program).build is None or spec is None:
        raise EthorchError("expected a program returned by ethorch.compile, got a .pte, which does not record Vela's estimates.")
    memory = spec.memory_system.const_area
    peak = spec.bytes_per_cycle[memory]
    latency = spec.vela_config.read_latencies(spec.system_config).get(memory, 0.0)
    speed = min(peak, _BYTES_IN_FLIGHT / latency) if latency else peak
    cost_by_name: dict[str, OperatorCost] = {}
    cpu: dict[str, int] = {}
    quantized = record_of(program).quantized
    bits: dict[str, int] = {}
    product_modules: set[str] = set()
    if isinstance(quantized, GraphModule):
        bits, product_modules = _find_weight_bits(quantized), _find_constant_readers(quantized)
    for layer in record_of(program).layers:
        if layer.where != "NPU":
            cpu[layer.operator] = cpu.get(layer.operator, 0) + 1
            continue
        has_weights = any(name in layer.tosa_operators for name in _WITH_WEIGHTS)
        has_weights |= layer.operator == _PRODUCT and layer.module in product_modules
        weights = layer.macs * bits.get(layer.module, 8) // 8 if has_weights else 0
        floor = round(max(weights / speed, layer.macs / spec.target.macs))
        name = _name_operator(layer, bool(weights))
        previous = cost_by_name.get(name, OperatorCost(0, 0, 0, 0))
        cost_by_name[name] = OperatorCost(
            previous.cycles + (layer.cycles or 0),
            previous.floor + floor,
            previous.weight_bytes + weights,
            previous.macs + layer.macs,
        )
    ordered = dict(sorted(cost_by_name.items(), key=lambda named_cost: -named_cost[1].cycles))
    return DecodeCost(
        spec.target.name,
        spec.system_config,
        spec.memory_mode,
        sum(cost.cycles for cost in cost_by_name.values()),
        sum(cost.floor for cost in cost_by_name.values()),
        round(sum(max(cost.weight_bytes / peak, cost.macs / spec.target.macs) for cost in cost_by_name.values())),
        sum(cost.weight_bytes for cost in cost_by_name.values()),
        sum(len(payload.weights) for payload in record_of(program).payloads),
        sum(value.nbytes for value in states(program).values()),
        sum(state.to_npu_bytes for state in program.explain().states if not state.in_place),
        sum(payload.scratch_bytes for payload in record_of(program).payloads),
        cpu,
        ordered,
    )


def _find_weight_bits(graph: GraphModule) -> dict[str, int]:
    bits: dict[str, int] = {}
    for node in graph.graph.nodes:
        if op_name(node.target) == "quantized_decomposed.dequantize_per_channel.default":
            lowest, highest = node.args[4:6]
            bits |= {origin_of(user).module: int(highest - lowest).bit_length() for user in node.users}
    return bits


def _find_constant_readers(graph: GraphModule) -> set[str]:
    constants = constants_of(Converted(graph))
    derived: set[Node] = set()
    for node in graph.graph.nodes:
        array = constants(node)
        if array is not None:
            derived |= {node} if array.ndim > 1 else set()
        elif len(node.all_input_nodes) == 1 and node.all_input_nodes[0] in derived:
            derived.add(node)
    return {origin_of(node).module for node in graph.graph.nodes if node not in derived and derived & set(node.all_input_nodes)}


def _name_operator(layer: Layer, has_weights: bool) -> str:
    name = layer.operators[0].removesuffix(".default") if layer.operators else layer.operator
    return f"{name} {layer.module.rpartition('.')[2]}" if has_weights else name
