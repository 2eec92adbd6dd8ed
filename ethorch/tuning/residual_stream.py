"""Find the residual streams of transformers in an exported graph.

A stream starts with rows of an embedding. Layers add to it, and each normalization that precedes a linear layer reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn
from torch.fx import GraphModule, Node

from ethorch.lower.fx.node import arguments, first_value, op_name
from ethorch.tuning.smoothing_sites import ADDMM, LINEAR, READERS, Finder, Parameter, find_users

#: Operators that select whole rows along the axis in their second argument.
_PICKS = frozenset({"aten.index_select.default", "aten.slice.Tensor", "aten.select.int"})
_INDEX, _SWAP = "aten.index.Tensor", "aten.transpose.int"
_SQUARES = {"aten.pow.Tensor_Scalar", "aten.square.default"}
_SUMS = {"aten.mean.dim", "aten.sum.dim_IntList"}


@dataclass(frozen=True, eq=False)
class Reader:
    """A linear layer that reads the stream.

    Attributes:
        weight: Weight of the layer. Products are summed along ``weight.axis``.
        owner: Path of the module that computes the layer.
    """

    weight: Parameter
    bias: Parameter | None
    owner: str


@dataclass(frozen=True, eq=False)
class Norm:
    """A normalization of the stream.

    Attributes:
        weight: Factors of the channels, or None if all factors are 1.
        centers: Whether the normalization subtracts the mean.
    """

    weight: Parameter | None
    bias: Parameter | None
    centers: bool
    readers: tuple[Reader, ...]


@dataclass(eq=False)
class Stream:
    """A residual stream.

    Attributes:
        tables: Embedding tables whose rows are the stream's initial values, with channels along axis 1.
        writers: Weights and biases of layers that add to the stream, with output channels along ``Parameter.axis``.
        refused: Reason why the stream cannot be rotated, or an empty string.
    """

    width: int
    tables: list[Parameter] = field(default_factory=list)
    writers: list[Parameter] = field(default_factory=list)
    norms: list[Norm] = field(default_factory=list)
    refused: str = ""

    @property
    def readers(self) -> Iterator[Reader]:
        for norm in self.norms:
            yield from norm.readers

    def parameters(self) -> Iterator[Parameter]:
        """Iterate over the parameters that a rotation changes, yielding each parameter once per use."""
        yield from (*self.tables, *self.writers)
        for norm in self.norms:
            yield from (parameter for parameter in (norm.weight, norm.bias) if parameter is not None)
        for reader in self.readers:
            yield from (parameter for parameter in (reader.weight, reader.bias) if parameter is not None)

    def refuse(self, why: str) -> None:
        """Record that the stream cannot be rotated. Only the first reason is stored."""
        self.refused = self.refused or why

    def merge(self, stream: Stream) -> None:
        self.tables += stream.tables
        self.writers += stream.writers
        self.norms += stream.norms
        self.refused = self.refused or stream.refused


def find_streams(graph: GraphModule, module: nn.Module) -> tuple[list[Stream], Mapping[int, int]]:
    """Return the streams of an exported graph, and the number of readers of each parameter, keyed by ``data_ptr()``."""
    finder = Finder(graph, {parameter.data_ptr(): name for name, parameter in module.named_parameters()})
    return _Streams(finder).find(graph.graph.nodes), finder.uses()


class _Streams:
    def __init__(self, finder: Finder):
        self._finder = finder
        self._of: dict[Node, Stream] = {}

    def find(self, nodes: Iterable[Node]) -> list[Stream]:
        for node in nodes:
            if node.op == "call_function" and op_name(node.target) == "aten.embedding.default":
                self._begin(node)
                continue
            reading = [arg for arg in node.all_input_nodes if arg in self._of]
            if not reading:
                continue
            if node.op == "call_function" and node in find_users(reading[0]):
                self._read(node, reading)
            elif node.op == "output":
                for arg in reading:
                    self._of[arg].refuse("the model returns the residual stream")
        return list({id(stream): stream for stream in self._of.values()}.values())

    def _begin(self, node: Node) -> None:
        table = self._finder.parameter(node.args[0], 1)
        value = first_value(node)
        if table is not None and value is not None:
            self._of[node] = Stream(value.shape[-1], tables=[table])

    def _read(self, node: Node, reading: Sequence[Node]) -> None:
        name, x, stream = op_name(node.target), node.args[0], self._of[reading[0]]
        if isinstance(x, Node) and x in self._of and (self._finder.moves(node) or self._picks(node, name)):
            self._of[node] = stream
        elif name == "aten.add.Tensor":
            self._add(node, reading)
        elif name == "aten.type_as.default" and x not in self._of:
            pass  # reads only the dtype of the stream
        elif self._is_square(node, name):
            if any(
                op_name(user.target) not in _SUMS or user.args[1] not in ([-1], [self._last(node)]) for user in find_users(node)
            ):
                stream.refuse(f"{node} computes squares of the stream that are not summed over channels")
        elif name in ("aten.mul.Tensor", "aten.div.Tensor"):
            self._multiply(node, reading[0])
        elif name in ("aten.layer_norm.default", "aten.rms_norm.default"):
            self._normalize(node, name)
        elif name in (LINEAR, ADDMM) and x is not None and reading == [node.args[0 if name == LINEAR else 1]]:
            self._norm(stream, node, None, None, False, self._readers([node], reading[0]))
        else:
            stream.refuse(f"{node} ({name}) reads the stream, but is not an addition, a norm or a linear layer")

    def _last(self, node: Node) -> int:
        value = first_value(node)
        return -1 if value is None else value.dim() - 1

    def _picks(self, node: Node, name: str) -> bool:
        value = first_value(node.args[0]) if node.args and isinstance(node.args[0], Node) else None
        if value is None or name not in (*_PICKS, _INDEX, _SWAP):
            return False
        axes: list[object] = [node.args[1]] if name in _PICKS else list(node.args[1:3])
        if name == _INDEX:  # supported: one list of indices, for any axis except the last
            axes = [axis for axis, index in enumerate(node.args[1]) if index is not None]  # type: ignore[arg-type]
            if len(axes) > 1:
                return False
        return all(isinstance(axis, int) and axis % value.dim() != value.dim() - 1 for axis in axes)

    def _is_square(self, node: Node, name: str) -> bool:
        if name in _SQUARES:
            return name != "aten.pow.Tensor_Scalar" or bool(node.args[1] == 2)
        return name == "aten.mul.Tensor" and node.args[0] is node.args[1]

    def _add(self, node: Node, reading: Sequence[Node]) -> None:
        stream = self._of[reading[0]]
        for arg in node.args[:2]:
            if isinstance(arg, Node) and arg in self._of:
                if (merged := self._of[arg]) is not stream:
                    stream.merge(merged)
                    self._of.update({member: stream for member, member_stream in self._of.items() if member_stream is merged})
                continue
            writer = self._find_writers(arg, node)
            if node.kwargs or not writer:
                stream.refuse(f"{node} adds a value that is not the output of linear layers")
                return
            stream.writers += writer
        self._of[node] = stream

    def _find_writers(self, node: object, reader: Node) -> tuple[Parameter, ...]:
        parameters = self._finder.rows(node, reader)
        if not parameters and isinstance(node, Node) and op_name(node.target) == "aten.add.Tensor" and find_users(node) == [reader]:
            parts = [self._find_writers(arg, node) for arg in node.args[:2]]
            parameters = tuple(parameter for part in parts for parameter in part) if all(parts) and not node.kwargs else ()
        return parameters

    def _multiply(self, node: Node, x: Node) -> None:
        stream = self._of[x]
        factor = node.args[1] if node.args[0] is x else node.args[0]
        value = first_value(factor) if isinstance(factor, Node) else None
        if isinstance(factor, (int, float)) or (value is not None and (not value.dim() or value.shape[-1] == 1)):
            self._of[node] = stream
            return
        weight = self._finder.vector(factor, node)
        if weight is None or op_name(node.target) != "aten.mul.Tensor":
            stream.refuse(f"{node} scales the channels of the stream by a factor that is not a constant vector")
            return
        self._norm(stream, node, weight, None, False, self._readers(find_users(node), node))

    def _normalize(self, node: Node, name: str) -> None:
        args, _ = arguments(node)
        stream = self._of[args[0]]
        weight, bias = self._finder.parameter(args[2]), None
        centers = name == "aten.layer_norm.default"
        if centers and args[3] is not None:
            bias = self._finder.parameter(args[3])
        missing = (weight is None) != (args[2] is None) or (centers and (bias is None) != (args[3] is None))
        if missing or list(args[1]) != [stream.width]:
            stream.refuse(
                f"{node} does not normalize all {stream.width} channels, or its weight or bias is not a parameter of the model"
            )
            return
        self._norm(stream, node, weight, bias, centers, self._readers(find_users(node), node))

    def _readers(self, users: Sequence[Node], value: Node) -> tuple[Reader, ...]:
        readers: list[Reader] = []
        waiting = [(value, user) for user in users]
        while waiting:
            read, user = waiting.pop(0)
            name = op_name(user.target) if user.op == "call_function" else ""
            if user.args and user.args[0] is read and (self._finder.moves(user) or self._picks(user, name)):
                waiting += [(user, further) for further in find_users(user)]
                continue
            if name not in READERS:
                return ()
            args, _ = arguments(user)
            x, weight, axis = READERS[name]
            weight_parameter = self._finder.parameter(args[weight], axis) if args[x] is read else None
            bias_argument = args[0] if name == ADDMM else args[2]
            bias = self._finder.parameter(bias_argument)
            if weight_parameter is None or (bias_argument is not None and bias is None) or user.kwargs:
                return ()
            stack = list(user.meta.get("nn_module_stack", {}).values())
            readers.append(Reader(weight_parameter, bias, stack[-1][0] if stack else ""))
        return tuple(readers)

    def _norm(
        self,
        stream: Stream,
        node: Node,
        weight: Parameter | None,
        bias: Parameter | None,
        centers: bool,
        readers: tuple[Reader, ...],
    ) -> None:
        if not readers:
            stream.refuse(f"an operator other than a linear layer reads {node}")
        elif bias is not None and bias.tensor.any() and any(reader.bias is None for reader in readers):
            stream.refuse(f"{node} has a bias, but a linear layer that reads its result has no bias")
        else:
            stream.norms.append(Norm(weight, bias, centers, readers))
