from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from ethorch.lower.fx.node import ASSERTIONS, CASTS, arguments, first_value, op_name

#: ``data_ptr()`` of the first parameter of a site.
Key = int

#: Operators that do not change the last axis, if the shapes agree.
_MOVES = CASTS | {
    *(f"aten.{name}.default" for name in ("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "expand")),
    *(f"aten.{name}.default" for name in ("clone", "contiguous", "detach", "alias", "dropout", "type_as")),
    *("aten.squeeze.dim", "aten.squeeze.dims", "aten.to.dtype_layout"),
}
#: Positions of the weight and the bias of each operator.
_NORMS = {"aten.layer_norm.default": (2, 3), "aten.rms_norm.default": (2, None)}
LINEAR = "aten.linear.default"
ADDMM = "aten.addmm.default"
#: For each operator: positions of the input and the weight, and the axis over which the weight is summed.
READERS = {LINEAR: (0, 1, 1), ADDMM: (1, 2, 0)}


@dataclass(frozen=True, eq=False)
class Parameter:
    """A parameter to change.

    Attributes:
        axis: Channel axis.
        added: Constant added to the parameter before the multiplication, e.g. 1 in Gemma's norms.
    """

    name: str
    tensor: Tensor
    axis: int = 0
    added: float = 0.0

    def by_output(self) -> Tensor:
        """Return the weight as float32[outputs, inputs]."""
        weight = self.tensor.detach().float()
        return weight if self.axis else weight.t()

    def spread(self, factors: Tensor) -> Tensor:
        """Reshape channel factors for broadcasting with the parameter."""
        shape = [1] * self.tensor.dim()
        shape[self.axis] = -1
        return factors.to(self.tensor.dtype).reshape(shape)


@dataclass(frozen=True, eq=False)
class Site:
    """An activation whose channel factors can be folded into parameters.

    Attributes:
        sources: Parameters to divide by the factors. The first parameter identifies the site.
        readers: Weights of linear layers to multiply, along the input channel axis.
    """

    sources: tuple[Parameter, ...]
    readers: tuple[Parameter, ...]

    @property
    def key(self) -> Key:
        return self.sources[0].tensor.data_ptr()

    def merge_readers(self, site: Site) -> Site:
        """Return a copy of this site that also has the readers of ``site``."""
        memories = {reader.tensor.data_ptr() for reader in self.readers}
        return replace(self, readers=(*self.readers, *(r for r in site.readers if r.tensor.data_ptr() not in memories)))

    def parameter_axes(self) -> Iterator[tuple[int, int]]:
        for parameter in (*self.sources, *self.readers):
            yield parameter.tensor.data_ptr(), parameter.axis

    def fold(self, factors: Tensor) -> None:
        """Divide the sources and multiply the readers by channel factors."""
        for source in self.sources:
            by = source.spread(factors)
            if source.added:
                source.tensor.copy_((source.tensor + source.added) / by - source.added)
            else:
                source.tensor.div_(by)
        for reader in self.readers:
            reader.tensor.mul_(reader.spread(factors))


def find_sites(graph: GraphModule, module: nn.Module) -> tuple[list[tuple[Node, Site]], set[int]]:
    """Return (node, site) pairs of a graph, and the ``data_ptr()`` of each parameter that the graph reads.

    Args:
        graph: Graph from torch.export, not decomposed.
        module: The exported module, which owns the parameters.
    """
    finder = Finder(graph, {parameter.data_ptr(): name for name, parameter in module.named_parameters()})
    uses = finder.uses()
    sites = []
    for node in graph.graph.nodes:
        sources = finder.sources(node)
        readers = finder.readers(node) if sources else ()
        if readers and all(uses[parameter.tensor.data_ptr()] == 1 for parameter in (*sources, *readers)):
            sites.append((node, Site(sources, readers)))
    return sites, set(uses)


def find_users(node: Node) -> list[Node]:
    """Return the users of a node, except assertions."""
    return [user for user in node.users if user.op != "call_function" or op_name(user.target) not in ASSERTIONS]


class Finder:
    def __init__(self, graph: GraphModule, names: dict[int, str]):
        self._graph, self._own = graph, names
        self._tensors = dict(graph.named_parameters(remove_duplicate=False))

    def uses(self) -> Counter[int]:
        """Count the operators that read each parameter, keyed by ``data_ptr()``."""
        counts: Counter[int] = Counter()
        for node in self._graph.graph.nodes:
            if node.op == "get_attr" and find_users(node) and (tensor := self._tensors.get(str(node.target))) is not None:
                counts[tensor.data_ptr()] += len(find_users(node))
        return counts

    def sources(self, node: Node) -> tuple[Parameter, ...]:
        """Return the parameters that scale a node's result along its last axis, or () if no such parameters exist."""
        name = op_name(node.target) if node.op == "call_function" else ""
        if name in _NORMS:
            args, _ = arguments(node)
            weight, bias = _NORMS[name]
            if len(args[1]) != 1:
                return ()
            return self._all(args[weight], None if bias is None else args[bias])
        if name == "aten.mul.Tensor":
            left, right = node.args[:2]
            for vector, product in ((left, right), (right, left)):
                parameter = self.vector(vector, node)
                if parameter is not None and isinstance(product, Node):
                    return (parameter,)
            for factor in (right, left):  # silu(gate) * up: rows of `up`
                parameters = self.rows(factor, node)
                if parameters:
                    return parameters
        return ()

    def _all(self, weight: object, bias: object) -> tuple[Parameter, ...]:
        values = [value for value in (weight, bias) if value is not None]
        parameters = [parameter for value in values if (parameter := self.parameter(value))]
        return tuple(parameters) if len(parameters) == len(values) and weight is not None else ()

    def parameter(self, node: object, axis: int = 0) -> Parameter | None:
        if not isinstance(node, Node) or node.op != "get_attr":
            return None
        tensor = self._tensors.get(str(node.target))
        if tensor is None or tensor.data_ptr() not in self._own:
            return None
        return Parameter(self._own[tensor.data_ptr()], tensor, axis)

    def vector(self, node: object, product: Node) -> Parameter | None:
        """Return the 1D parameter from which views, casts and additions of constants compute ``node``, or None."""
        added = 0.0
        while isinstance(node, Node) and node.op == "call_function":
            name = op_name(node.target)
            if len(find_users(node)) != 1:
                return None
            if name in ("aten.add.Tensor", "aten.add.Scalar") and isinstance(node.args[1], (int, float)) and not node.kwargs:
                added += float(node.args[1])
            elif name not in _MOVES:
                return None
            node = node.args[0]
        parameter = self.parameter(node)
        value = first_value(product)
        if parameter is None or value is None or parameter.tensor.dim() != 1 or parameter.tensor.shape[0] != value.shape[-1]:
            return None
        return replace(parameter, added=added)

    def rows(self, node: object, reader: Node) -> tuple[Parameter, ...]:
        """Return the parameters of the linear layer that computes ``node``, or () if ``node`` has readers other than ``reader``."""
        while isinstance(node, Node) and len(find_users(node)) == 1 and self.moves(node):
            node = node.args[0]
        name = op_name(node.target) if isinstance(node, Node) and node.op == "call_function" else ""
        if not isinstance(node, Node) or name not in READERS or len(find_users(node)) != 1:
            return ()
        args, _ = arguments(node)
        value, product = first_value(node), first_value(reader)
        if value is None or product is None or value.shape[-1] != product.shape[-1] or node.kwargs:
            return ()
        _, weight, summed = READERS[name]
        bias = args[0] if name == ADDMM else args[2]
        parameters = [self.parameter(args[weight], 1 - summed), *([] if bias is None else [self.parameter(bias)])]
        return () if None in parameters else tuple(parameter for parameter in parameters if parameter is not None)

    def moves(self, node: Node) -> bool:
        """Return True if the node is a view or copy that preserves the dtype and the last axis."""
        if node.op != "call_function" or op_name(node.target) not in _MOVES or not isinstance(node.args[0], Node):
            return False
        value, before = first_value(node), first_value(node.args[0])
        if value is None or before is None or not value.dim() or not before.dim():
            return False
        return value.dtype == before.dtype and value.shape[-1] == before.shape[-1]

    def readers(self, node: Node) -> tuple[Parameter, ...]:
        """Return the weights of the linear layers that read a node's value, or () if any other operator reads it."""
        readers: list[Parameter] = []
        waiting = [(node, user) for user in find_users(node)]
        while waiting:
            reader, user = waiting.pop(0)
            if self.moves(user) and user.args[0] is reader:
                waiting += [(user, further) for further in find_users(user)]
                continue
            x, weight, axis = READERS.get(op_name(user.target) if user.op == "call_function" else "", (0, 0, 0))
            found_weight = self.parameter(user.args[weight], axis) if x != weight and user.args[x] is reader else None
            value = first_value(reader)
            if found_weight is None or value is None or value.dtype != torch.float32:
                return ()
            readers.append(found_weight)
        return tuple(readers)
