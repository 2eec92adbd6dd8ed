from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from ethorch.lower.fx.node import attribute, flat, tensor_of
from ethorch.models.open_sizes import OpenSize
from ethorch.tosa.limits import Limits

#: Key of ``Node.meta`` for the name and target of the user's operator. Settings match this operator.
MADE_FOR = "ethorch_made_for"
#: Keys of ``Node.meta`` with the location in the user's code.
INHERITED = ("nn_module_stack", "stack_trace", "source_fn_stack", "from_node")


class AtenBuilder:
    """A builder of nodes that replace ``node``: ``builder(aten.mul.Tensor, x, y)`` inserts an operator before ``node``.

    Args:
        model: Graph module in which constants are registered.
        node: Node of the composite operator, with a fake tensor in its metadata. New nodes inherit its source location.
        limits: Limits of the target for each TOSA operator. Default: TOSA's limits.
        calibrated: Whether the new nodes are calibrated later and must have finite values.
    """

    def __init__(self, model: GraphModule, node: Node, limits: Mapping[str, Limits] | None = None, *, calibrated: bool = True):
        self.model = model
        self.calibrated = calibrated
        self.node = node
        self.limits = limits or {}
        self.meta = {key: node.meta[key] for key in INHERITED if key in node.meta}
        self.meta[MADE_FOR] = node.meta.get(MADE_FOR, (node.name, node.target))

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Insert an operator with one result."""
        node = self._insert(target, args, kwargs)
        assert isinstance(node, Node), f"{target}: expected one result, got several"
        return node

    def results(self, target: Any, *args: Any, **kwargs: Any) -> list[Node]:
        """Insert an operator with several results."""
        nodes = self._insert(target, args, kwargs)
        assert isinstance(nodes, list), f"{target}: expected several results, got one"
        return nodes

    def _insert(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node | list[Node]:
        if any(isinstance(arg, torch.SymInt) for arg in flat([*args, *kwargs.values()])):
            raise OpenSize(f"expected fixed sizes in {self.node.name} for {target}, got a dynamic size")
        graph = self.model.graph
        with graph.inserting_before(self.node):
            node = graph.call_function(target, args, kwargs)
            node.meta = dict(self.meta)
            fake_args, fake_kwargs = torch.fx.map_arg((args, kwargs), value_of)
            with self.fake_mode():
                node.meta["val"] = value = target(*fake_args, **fake_kwargs)
            if not isinstance(value, (tuple, list)):
                return node
            items = []
            for index, part in enumerate(value):
                item = graph.call_function(operator.getitem, (node, index))
                item.meta = {**self.meta, "val": part}
                items.append(item)
            return items

    def fake_mode(self) -> FakeTensorMode:
        value = self.node.meta["val"]
        mode = detect_fake_mode(value if isinstance(value, (tuple, list)) else [value])
        assert mode is not None, f"{self.node.format_node()} has no fake value"
        return mode

    def constant(self, tensor: torch.Tensor) -> Node:
        with self.model.graph.inserting_before(self.node):
            return constant(self.model, tensor, self.fake_mode(), self.meta)

    def before(self, node: Node) -> AtenBuilder:
        return AtenBuilder(self.model, node, self.limits, calibrated=self.calibrated)

    def is_read(self, result: int) -> bool:
        """Return True if the graph uses result number ``result`` of the node."""
        return any(user.args[1] == result and user.users for user in self.node.users)

    def absent(self, operator: str) -> bool:
        return operator in self.limits and not self.limits[operator].present

    def number(self, x: Any) -> float | None:
        """Return the value of a number or one-element constant, or None for any other argument."""
        if isinstance(x, (int, float)):
            return float(x)
        tensor = tensor_of(self.model, x) if isinstance(x, Node) else None
        if tensor is not None and tensor.numel() == 1 and not isinstance(tensor, torch.nn.Parameter):
            return float(tensor)
        return None

    def transpose_parameter(self, weight: Node) -> Node:
        """Insert the transpose of a parameter of shape [I, O]."""
        return self.parameter(weight, lambda data: data.t().contiguous())

    def flatten_parameter(self, weight: Node) -> Node:
        return self.parameter(weight, lambda data: data.flatten())

    def parameter(self, original: Node, change: Callable[[torch.Tensor], torch.Tensor]) -> Node:
        """Insert a parameter or buffer computed from ``original``.

        If ``original`` is neither, insert the operators of ``change``.
        """
        if tensor_of(self.model, original) is None:
            return cast(Node, self.inline(change, original))
        return self._derive(attribute(self.model, original), change)

    def combine(self, first: Node, second_node: Node, change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Node:
        if any(tensor_of(self.model, node) is None for node in (first, second_node)):
            return cast(Node, self.inline(change, first, second_node))
        second = attribute(self.model, second_node).detach()
        return self._derive(attribute(self.model, first), lambda data: change(data, second))

    def is_zero(self, x: Node) -> bool:
        tensor = tensor_of(self.model, x)
        return tensor is not None and not isinstance(tensor, torch.nn.Parameter) and not bool(tensor.any())

    def _derive(self, tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> Node:
        node = self.constant(change(tensor.detach()))
        if isinstance(tensor, torch.nn.Parameter):
            name = str(node.target)
            data = getattr(self.model, name)
            delattr(self.model, name)
            self.model.register_parameter(name, torch.nn.Parameter(data, requires_grad=tensor.requires_grad))
        return node

    def inline(
        self,
        function: Callable[..., Any],
        *args: Node,
        table: Mapping[Any, Callable[..., Any]] | None = None,
        where: Callable[[Graph], bool] = lambda graph: True,
    ) -> Any:
        """Trace ``function(*args)``, insert the traced nodes, and return the results.

        If ``where`` rejects the traced graph, insert nothing and return None. ``table`` contains additional decompositions.
        """
        with self.fake_mode():
            traced = make_fx(function, decomposition_table=dict(table or {}))(*map(value_of, args))
        if not where(traced.graph):
            return None
        env: dict[Node, Any] = {}
        inputs = iter(args)
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                env[node] = next(inputs)
            elif node.op == "get_attr":
                env[node] = self.constant(getattr(traced, node.target))
            elif node.target is operator.getitem:
                env[node] = env[node.args[0]][node.args[1]]
            elif node.target is torch.ops.aten._to_copy.default and isinstance(node.args[0], (int, float)):
                env[node] = self._insert(torch.ops.aten.scalar_tensor.default, node.args, {"dtype": node.meta["val"].dtype})
            elif node.op == "call_function":
                env[node] = self._insert(node.target, torch.fx.map_arg(node.args, env.get), torch.fx.map_arg(node.kwargs, env.get))
            else:
                return torch.fx.map_arg(node.args[0], env.get)
        raise AssertionError("expected an output node in the traced graph")


def value_of(node: Any) -> Any:
    """Return the fake tensor of a node, or any other value unchanged."""
    return node.meta["val"] if isinstance(node, Node) else node


def shape_of(node: Node) -> tuple[int, ...]:
    """Return the shape of a node's single result. Inside ``suppress_guards``, a dynamic size is a SymInt."""
    return tuple(map(_number, node.meta["val"].shape))


def _number(extent: Any) -> Any:
    try:
        return int(extent)
    except OpenSize:
        return extent


def constant(model: GraphModule, tensor: torch.Tensor, mode: FakeTensorMode | None, meta: dict[str, Any]) -> Node:
    """Insert a get_attr node for a new buffer at the graph's insertion point.

    The buffer is contiguous or channels-last, because other memory layouts require compilation with ExecuTorch.
    """
    assert mode is not None, "no node of the graph has a fake value"
    number = 0
    while hasattr(model, f"_constant_{number}"):
        number += 1
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    last = tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()])
    expanded = 0 in tensor.stride()  # ExecuTorch does not support stride 0
    data = tensor.detach().clone(memory_format=torch.preserve_format if last and not expanded else torch.contiguous_format)
    model.register_buffer(f"_constant_{number}", data)
    node = model.graph.get_attr(f"_constant_{number}")
    node.meta = {**meta, "val": mode.from_tensor(data, static_shapes=True)}
    return node
