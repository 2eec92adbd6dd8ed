"""AtenBuilder: how a composite operator draws the small ATen graph that replaces it (see ethorch.quantization.passes.decompose)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from ethorch.lower.fx.node import attribute, flat, tensor_of
from ethorch.models.open_sizes import OpenSize
from ethorch.tosa.limits import Limits

#: Key of ``Node.meta``: (name, target) of the user's operator a node was made for; settings by name or target see that.
MADE_FOR = "ethorch_made_for"
#: Keys of ``Node.meta`` that say where in the user's code a node comes from.
INHERITED = ("nn_module_stack", "stack_trace", "source_fn_stack", "from_node")


class AtenBuilder:
    """Draws the nodes that replace ``node``: ``s(aten.mul.Tensor, x, y)`` appends one before it and returns it.

    Nodes carry the fake value that PyTorch gives them, and the place in the user's code of the node they replace.

    Args:
        model: the graph of ``node``, which receives the constants.
        node: the composite operator. It has to have a fake value.
        limits: what the target can run, by TOSA operator; none for TOSA as such.
        calibrated: what is drawn will be calibrated and quantized, so that no number in it may be infinite.
    """

    def __init__(self, model: GraphModule, node: Node, limits: Mapping[str, Limits] | None = None, *, calibrated: bool = True):
        self.model = model
        self.calibrated = calibrated
        self.node = node
        self.limits = limits or {}
        self.meta = {key: node.meta[key] for key in INHERITED if key in node.meta}
        self.meta[MADE_FOR] = node.meta.get(MADE_FOR, (node.name, node.target))

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """One operator with one result."""
        made = self._drawn(target, args, kwargs)
        assert isinstance(made, Node), f"{target} has several results"
        return made

    def results(self, target: Any, *args: Any, **kwargs: Any) -> list[Node]:
        """One operator with several results: a node for each of them."""
        made = self._drawn(target, args, kwargs)
        assert isinstance(made, list), f"{target} has one result"
        return made

    def _drawn(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node | list[Node]:
        if any(isinstance(arg, torch.SymInt) for arg in flat([*args, *kwargs.values()])):
            raise OpenSize(f"{target} was drawn for one size of {self.node.name}, which is open")
        graph = self.model.graph
        with graph.inserting_before(self.node):
            made = graph.call_function(target, args, kwargs)
            made.meta = dict(self.meta)
            fake_args, fake_kwargs = torch.fx.map_arg((args, kwargs), value_of)
            with self.fake_mode():
                made.meta["val"] = value = target(*fake_args, **fake_kwargs)
            if not isinstance(value, (tuple, list)):
                return made
            items = []
            for index, part in enumerate(value):
                item = graph.call_function(operator.getitem, (made, index))
                item.meta = {**self.meta, "val": part}
                items.append(item)
            return items

    def fake_mode(self) -> FakeTensorMode:
        """The mode that the fake values of the graph belong to."""
        value = self.node.meta["val"]
        mode = detect_fake_mode(value if isinstance(value, (tuple, list)) else [value])
        assert mode is not None, f"{self.node.format_node()} has no fake value"
        return mode

    def constant(self, tensor: torch.Tensor) -> Node:
        """A constant tensor, kept as a buffer of the model."""
        with self.model.graph.inserting_before(self.node):
            return constant(self.model, tensor, self.fake_mode(), self.meta)

    def before(self, node: Node) -> AtenBuilder:
        """An AtenBuilder for a node before this one."""
        return AtenBuilder(self.model, node, self.limits, calibrated=self.calibrated)

    def absent(self, operator: str) -> bool:
        """Has the target no such TOSA operator at all?"""
        return operator in self.limits and not self.limits[operator].present

    def number(self, x: Any) -> float | None:
        """A Python number, or the value of a constant tensor that holds one; else None."""
        if isinstance(x, (int, float)):
            return float(x)
        tensor = tensor_of(self.model, x) if isinstance(x, Node) else None
        if tensor is not None and tensor.numel() == 1 and not isinstance(tensor, torch.nn.Parameter):
            return float(tensor)
        return None

    def transposed(self, weight: Node) -> Node:
        """A parameter [I, O] as a parameter [O, I], which quantizes and trains as a linear layer's."""
        return self.parameter(weight, lambda data: data.t().contiguous())

    def flattened(self, weight: Node) -> Node:
        """A parameter with all its dims as one."""
        return self.parameter(weight, lambda data: data.flatten())

    def parameter(self, original: Node, change: Callable[[torch.Tensor], torch.Tensor]) -> Node:
        """A parameter made of another one, once; a buffer of a buffer."""
        return self._made_of(attribute(self.model, original), change)

    def combined(self, one: Node, other: Node, change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Node:
        """A parameter made of two."""
        second = attribute(self.model, other).detach()
        return self._made_of(attribute(self.model, one), lambda data: change(data, second))

    def is_zero(self, x: Node) -> bool:
        """Is that node a constant tensor of zeros?"""
        tensor = tensor_of(self.model, x)
        return tensor is not None and not isinstance(tensor, torch.nn.Parameter) and not bool(tensor.any())

    def _made_of(self, tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> Node:
        made = self.constant(change(tensor.detach()))
        if isinstance(tensor, torch.nn.Parameter):
            name = str(made.target)
            data = getattr(self.model, name)
            delattr(self.model, name)
            self.model.register_parameter(name, torch.nn.Parameter(data, requires_grad=tensor.requires_grad))
        return made

    def inline(
        self,
        function: Callable[..., Any],
        *args: Node,
        table: Mapping[Any, Callable[..., Any]] | None = None,
        where: Callable[[Graph], bool] = lambda graph: True,
    ) -> Any:
        """The operators that PyTorch itself would break ``function(*args)`` into.

        Args:
            table: of decompositions that PyTorch would not do by itself.
            where: does it break up into something useful? Nothing is drawn otherwise, and None returned.
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
                env[node] = self._drawn(torch.ops.aten.scalar_tensor.default, node.args, {"dtype": node.meta["val"].dtype})
            elif node.op == "call_function":
                env[node] = self._drawn(node.target, torch.fx.map_arg(node.args, env.get), torch.fx.map_arg(node.kwargs, env.get))
            else:
                return torch.fx.map_arg(node.args[0], env.get)
        raise AssertionError("a traced graph without output")


def value_of(node: Any) -> Any:
    """The fake tensor of a node; anything else as it is."""
    return node.meta["val"] if isinstance(node, Node) else node


def shape_of(node: Node) -> tuple[int, ...]:
    """The shape of a node's result, which is one tensor. Inside ``unguarded``, an open size is a SymInt."""
    return tuple(map(_number, node.meta["val"].shape))


def _number(extent: Any) -> Any:
    try:
        return int(extent)
    except OpenSize:
        return extent


def constant(model: GraphModule, tensor: torch.Tensor, mode: FakeTensorMode | None, meta: dict[str, Any]) -> Node:
    """A get_attr node for a new buffer that holds ``tensor``, at the graph's insertion point; ``meta`` is its metadata.

    It lies row by row, or channels last as a weight does: a transposed constant would keep a program from the short way past
    ExecuTorch. ``mode`` is what the fake values of the graph belong to.
    """
    assert mode is not None, "no node of the graph has a fake value"
    number = 0
    while hasattr(model, f"_constant_{number}"):
        number += 1
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    last = tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()])
    expanded = 0 in tensor.stride()  # one element may have that stride as well; ExecuTorch has none
    data = tensor.detach().clone(memory_format=torch.preserve_format if last and not expanded else torch.contiguous_format)
    model.register_buffer(f"_constant_{number}", data)
    node = model.graph.get_attr(f"_constant_{number}")
    node.meta = {**meta, "val": mode.from_tensor(data, static_shapes=True)}
    return node
