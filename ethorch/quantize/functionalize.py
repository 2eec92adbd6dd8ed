"""In-place operators as values: ``y[:, :4] += 1`` becomes a new y, and whoever reads y or a view of it afterwards reads that.

Quantize and dequantize operators make copies, so a write through a view would be lost in a quantized model. Node names,
parameters and metadata stay as they are; a graph without in-place operators is not touched.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ethorch.errors import QuantizationError

logger = logging.getLogger(__name__)
aten = torch.ops.aten

_SAME_ORDER = {
    "view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as",
    "_reshape_alias", "ravel",
}  # fmt: skip
_PERMUTATIONS = {
    "permute", "transpose", "t", "movedim", "moveaxis", "swapaxes", "swapdims", "numpy_T", "matrix_H", "mT", "mH", "adjoint",
}  # fmt: skip
_IDENTITIES = {
    "alias", "detach", "contiguous", "to", "dropout", "feature_dropout", "alpha_dropout", "lift_fresh", "type_as", "positive",
    "resolve_conj", "resolve_neg", "expand", "expand_as", "atleast_1d",
}  # fmt: skip
_RESHAPE_IN_PLACE = {"squeeze_", "unsqueeze_", "transpose_", "t_", "swapaxes_", "swapdims_"}
#: Pointwise operators whose functional form returns bool, whatever it reads.
_TRUTHS = {
    "eq_", "ne_", "lt_", "le_", "gt_", "ge_", "not_equal_", "less_", "less_equal_", "greater_", "greater_equal_", "logical_and_",
    "logical_or_", "logical_xor_", "logical_not_",
}  # fmt: skip


def functionalize(model: GraphModule, recompile: bool = True) -> GraphModule:
    """Rewrite every in-place operator of ``model`` and of the graphs its control flow holds.

    Writes into a buffer or an input become one ``copy_`` at the end of the graph, so that state still changes.

    Args:
        model: changed in place.
        recompile: make the Python code of ``model`` anew; False where the caller does that after more changes.

    Raises:
        QuantizationError: an in-place operator has no functional form, or writes through a view that cannot be undone.
    """
    for _, child in list(model.named_children()):
        if isinstance(child, GraphModule) and not str(type(child).__name__).startswith("GuardsFn"):
            functionalize(child)
    if any(_is_write(node) for node in model.graph.nodes):
        _Functionalizer(model).run()
        model.graph.eliminate_dead_code()
        if recompile:
            model.recompile()
    return model


def _is_write(node: Node) -> bool:
    """An in-place operator whose effect someone can see; a counter that is only counted up is left as it is."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return False
    written = node.args[0] if node.args else None
    counter = isinstance(written, Node) and written.op == "get_attr" and not node.users and len(written.users) == 1
    return not counter


@dataclass(frozen=True)
class _Step:
    """One view: how to take it, and how to put a new value of it back into what it was taken from."""

    key: tuple[Any, ...]
    take: Callable[[Node], Node]
    put: Callable[[Node, Node], Node]


@dataclass
class _Memory:
    """One piece of memory: the node it came from, and the nodes that hold the present value of it and of its views."""

    root: Node
    version: int = 0
    values: dict[tuple[Any, ...], tuple[int, Node]] = field(default_factory=dict)


@dataclass(frozen=True)
class _View:
    """A node's tensor as a place in memory: the steps that lead there from the root."""

    memory: _Memory
    steps: tuple[_Step, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple(step.key for step in self.steps)


class _Functionalizer:
    """One pass in graph order. The graph's original nodes say where a tensor lies; what is read there is ``current``."""

    def __init__(self, model: GraphModule):
        self.graph = model.graph
        self.views: dict[Node, _View] = {}
        self.lists: dict[Node, tuple[int, list[_View]]] = {}
        self.origin = self.here = self.graph.output_node()
        self.dead: list[Node] = []

    def run(self) -> None:
        for node in list(self.graph.nodes):
            self.origin = self.here = node
            if node.op == "call_function" and _is_write(node):
                self.write(node)
                continue
            if node.op == "call_function" and node.target is operator.getitem:
                self.item(node)
            elif node.op == "call_function":
                self.view(node)
            if node.op in ("call_function", "call_module", "output"):
                self.read(node)
        self.here = self.graph.output_node()
        for memory in {id(view.memory): view.memory for view in self.views.values()}.values():
            if memory.version and memory.root.op in ("placeholder", "get_attr"):
                self.emit(aten.copy_.default, memory.root, self.value(_View(memory)))
        for node in reversed(self.dead):
            self.graph.erase_node(node)

    # --- reading ------------------------------------------------------------------------------------------------------

    def place(self, node: Node) -> _View:
        """Where the node's tensor lies; memory of its own unless it is known as a view."""
        if node not in self.views:
            memory = _Memory(node)
            memory.values[()] = (0, node)
            self.views[node] = _View(memory)
        return self.views[node]

    def current(self, node: Node) -> Node:
        """The node that holds what ``node`` would read now."""
        view = self.views.get(node)
        return node if view is None else self.value(view)

    def read(self, node: Node) -> None:
        """Let the node read present values."""
        if node not in self.dead and any(arg in self.views for arg in node.all_input_nodes):
            node.args, node.kwargs = torch.fx.map_arg(node.args, self.current), torch.fx.map_arg(node.kwargs, self.current)

    def value(self, view: _View) -> Node:
        memory = view.memory
        version, node = memory.values.get(view.key, (-1, memory.root))
        if version < memory.version:
            node = view.steps[-1].take(self.value(_View(memory, view.steps[:-1])))
            memory.values[view.key] = (memory.version, node)
        return node

    # --- views --------------------------------------------------------------------------------------------------------

    def view(self, node: Node) -> None:
        source = self.shares_memory_with(node)
        if source is None:
            return
        if isinstance(node.meta.get("val"), (tuple, list)):
            self.lists[node] = (self.place(source).memory.version, self.parts(node, source))
        else:
            place = self.place(source)
            self.enter(node, _View(place.memory, (*place.steps, self.step(node, source))), place.memory.version)

    def enter(self, node: Node, view: _View, taken_at: int) -> None:
        """Register the node as that view. It holds its value, unless it was written since or another node holds it."""
        version, _ = view.memory.values.get(view.key, (-1, node))
        if version < taken_at == view.memory.version:
            view.memory.values[view.key] = (taken_at, node)
        self.views[node] = view

    def item(self, node: Node) -> None:
        source, index = node.args
        if isinstance(source, Node) and source in self.lists:
            assert isinstance(index, int)
            taken_at, views = self.lists[source]
            self.enter(node, views[index], taken_at)

    def parts(self, node: Node, source: Node) -> list[_View]:
        """The views that split, chunk and unbind return, as slices and selects."""
        place, values = self.place(source), node.meta["val"]
        name = node.target._schema.name.split("::")[1]  # type: ignore[union-attr]
        shape = _shape(self.current(source))
        if name == "unbind":
            dim = _argument(node, "dim") % len(shape)
            return [_View(place.memory, (*place.steps, self.select(shape, dim, i))) for i in range(len(values))]
        if name not in ("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk"):
            raise self.refusal(node, "its results are views that cannot be written back")
        dim = _argument(node, "dim") % len(shape)
        views, start = [], 0
        for value in values:
            end = start + int(value.shape[dim])
            views.append(_View(place.memory, (*place.steps, self.slice(shape, dim, start, end, 1))))
            start = end
        return views

    def shares_memory_with(self, node: Node) -> Node | None:
        """The argument whose memory the result is, found by running the operator on tensors without data."""
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or not node.all_input_nodes:
            return None
        annotated = any(result.alias_info is not None for result in target._schema.returns)
        if not annotated and not target._can_decompose():
            return None
        standins: dict[Node, Any] = {}

        def standin(arg: Node) -> Any:
            if arg not in standins:
                standins[arg] = torch.utils._pytree.tree_map_only(torch.Tensor, _without_data, self.current(arg).meta.get("val"))
            return standins[arg]

        try:
            result = target(*torch.fx.map_arg(node.args, standin), **torch.fx.map_arg(node.kwargs, standin))
        except Exception:  # an operator that has no kernel for tensors without data: believe its schema
            return node.all_input_nodes[0] if annotated else None
        first = result[0] if isinstance(result, (tuple, list)) and result else result
        if not isinstance(first, torch.Tensor):
            return None
        memory = first.untyped_storage()._cdata
        for arg, tensor in standins.items():
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata == memory:
                return arg
        return None

    def step(self, node: Node, source: Node) -> _Step:
        """The view that ``node`` is of ``source``."""
        assert isinstance(node.target, torch._ops.OpOverload)
        name, shape = node.target._schema.name.split("::")[1], _shape(self.current(source))
        if name in _RESHAPE_IN_PLACE:
            name = name[:-1]
        if name in ("slice", "narrow"):
            dim = _argument(node, "dim") % len(shape)
            if name == "narrow":
                start, end, step = _argument(node, "start"), _argument(node, "start") + _argument(node, "length"), 1
                start, end = (start, end) if start >= 0 else (start + shape[dim], end + shape[dim])
            else:
                bounds = slice(_argument(node, "start"), _argument(node, "end"), _argument(node, "step"))
                start, end, step = bounds.indices(shape[dim])
            return self.slice(shape, dim, start, end, step)
        if name == "select":
            dim = _argument(node, "dim") % len(shape)
            return self.select(shape, dim, _argument(node, "index") % shape[dim])
        if name in _SAME_ORDER:
            wanted = list(_shape(node))
            return _Step(
                ("view", *wanted), lambda x: self.emit(aten.reshape.default, x, wanted),
                lambda _, new: self.emit(aten.reshape.default, new, list(shape)),
            )  # fmt: skip
        if name in _PERMUTATIONS:
            order = self.permutation(node, len(shape))
            back = [order.index(dim) for dim in range(len(order))]
            return _Step(
                ("permute", *order), lambda x: self.emit(aten.permute.default, x, order),
                lambda _, new: self.emit(aten.permute.default, new, back),
            )  # fmt: skip
        if name in _IDENTITIES and _shape(node) == shape:
            return _Step(("same",), lambda x: x, lambda _, new: new)
        if name == "diagonal":
            rest = [_argument(node, key) for key in ("offset", "dim1", "dim2")]
            return _Step(
                ("diagonal", *rest), lambda x: self.emit(aten.diagonal_copy.default, x, *rest),
                lambda old, new: self.emit(aten.diagonal_scatter.default, old, new, *rest),
            )  # fmt: skip
        target, args, kwargs = node.target, node.args, node.kwargs

        def take(x: Node) -> Node:
            def follow(arg: Node) -> Node:
                return x if arg is source else arg

            return self.emit(target, *torch.fx.map_arg(args, follow), **torch.fx.map_arg(kwargs, follow))

        def put(_: Node, __: Node) -> Node:
            raise self.refusal(self.origin, f"it writes through a view that {target} made")

        return _Step((str(target), str(args[1:]), str(kwargs)), take, put)

    @staticmethod
    def permutation(node: Node, rank: int) -> list[int]:
        """Source dimension of each result dimension, from running the operator on extents that all differ."""
        probe = torch.empty(tuple(range(2, 2 + rank)), device="meta")
        result = _functional(node.target)(probe, *node.args[1:], **node.kwargs)
        return [int(extent) - 2 for extent in result.shape]

    def slice(self, shape: Sequence[int], dim: int, start: int, end: int, step: int) -> _Step:
        end = max(start, end)

        def take(x: Node) -> Node:
            return self.emit(aten.slice.Tensor, x, dim, start, end, step)

        def put(old: Node, new: Node) -> Node:
            if step != 1:
                return self.emit(aten.slice_scatter.default, old, new, dim, start, end, step)
            parts = [self.emit(aten.slice.Tensor, old, dim, 0, start)] if start else []
            parts.append(new)
            if end < shape[dim]:
                parts.append(self.emit(aten.slice.Tensor, old, dim, end, shape[dim]))
            return self.emit(aten.cat.default, parts, dim) if len(parts) > 1 else new

        return _Step(("slice", dim, start, end, step), take, put)

    def select(self, shape: Sequence[int], dim: int, index: int) -> _Step:
        whole = self.slice(shape, dim, index, index + 1, 1)
        return _Step(
            ("select", dim, index), lambda x: self.emit(aten.select.int, x, dim, index),
            lambda old, new: whole.put(old, self.emit(aten.unsqueeze.default, new, dim)),
        )  # fmt: skip

    # --- writing ------------------------------------------------------------------------------------------------------

    def write(self, node: Node) -> None:
        """``dest.op_(...)`` -> ``new = op(dest, ...)``, and ``new`` put back into the memory dest is a view of."""
        schema = node.target._schema  # type: ignore[union-attr]
        name = schema.name.split("::")[1]
        written = [i for i, argument in enumerate(schema.arguments) if argument.alias_info and argument.alias_info.is_write]
        dest = node.args[0] if node.args else None
        if written != [0] or not isinstance(dest, Node) or not name.endswith("_"):
            raise self.refusal(node, "it writes into something other than its first argument")
        place = self.place(dest)
        if name in _RESHAPE_IN_PLACE:
            node.target = _functional(node.target)
            self.reshaped(node, dest)
            return
        new = self.new_value(node, name, dest)
        memory = place.memory
        if new is not node:
            self.dead.append(node)
        self.views[node] = place
        if new is self.value(place):
            return  # y[0] = y[0]: what Python makes of y[0] += 1, after the addition in place
        memory.version += 1
        memory.values[place.key] = (memory.version, new)
        for depth in range(len(place.steps) - 1, -1, -1):
            whole = _View(memory, place.steps[:depth])
            new = place.steps[depth].put(self.before(whole), new)
            memory.values[whole.key] = (memory.version, new)

    def before(self, view: _View) -> Node:
        """The value of ``view`` before the write that is being done."""
        view.memory.version -= 1
        node = self.value(view)
        view.memory.version += 1
        return node

    def reshaped(self, node: Node, dest: Node) -> None:
        """``x.unsqueeze_(0)`` changes what x is: from here on readers of x read the view."""
        place = self.place(dest)
        view = _View(place.memory, (*place.steps, self.step(node, dest)))
        self.read(node)
        self.enter(node, view, view.memory.version)
        self.views[dest] = view

    def new_value(self, node: Node, name: str, dest: Node) -> Node:
        """The node whose result is written: the operator's functional form, or simply the source of a copy."""
        self.read(node)
        value = node.args[0].meta["val"]  # type: ignore[union-attr]
        if name == "copy_":
            source = node.args[1]
            assert isinstance(source, Node)
            return self.fitted(source, value)
        if name in ("fill_", "zero_"):
            filled = node.args[1] if name == "fill_" else 0
            if not isinstance(filled, Node):
                return self.emit(
                    aten.full.default, list(value.shape), filled, dtype=value.dtype, device=value.device, pin_memory=False
                )
            return self.fitted(filled, value)
        functional = _functional(node.target)
        if functional is None:
            raise self.refusal(node, f"aten.{name} has no functional form")
        keeps = _keeps_type(node, name)
        node.target = functional
        if not keeps:
            node.meta["val"] = _run(node.target, node.args, node.kwargs)
        self.here = node.next
        return self.fitted(node, value)

    def fitted(self, node: Node, like: torch.Tensor) -> Node:
        """The value in the dtype and shape of what it is written into."""
        value = node.meta["val"]
        if value.dtype != like.dtype:
            node = self.emit(aten.to.dtype, node, like.dtype)
        if tuple(value.shape) != tuple(like.shape):
            node = self.emit(aten.expand.default, node, list(like.shape))
        return node

    # --- nodes --------------------------------------------------------------------------------------------------------

    def emit(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """A new node before the present one, with the metadata of the operator it stands for."""
        with self.graph.inserting_before(self.here):
            node = self.graph.call_function(target, args, kwargs)
        for key in ("nn_module_stack", "stack_trace", "source_fn_stack", "torch_fn"):
            if key in self.origin.meta:
                node.meta[key] = self.origin.meta[key]
        node.meta["val"] = _run(target, args, kwargs)
        return node

    @staticmethod
    def refusal(node: Node, why: str) -> QuantizationError:
        trace = (node.meta.get("stack_trace") or "").strip().splitlines()
        where = f" ({trace[-1].strip()})" if trace else ""
        return QuantizationError(
            "quantize.in_place",
            f"{node.format_node()}{where}: {why}, so the quantized model would not do what the float model does. "
            "Write this line without an in-place operator.",
        )


def _functional(target: Any) -> Any:
    """``aten.relu_.default`` -> ``aten.relu.default``, or None."""
    name = target._schema.name.split("::")[1]
    packet = getattr(aten, name.removesuffix("_"), None)
    overload = "int" if name == "transpose_" else target._overloadname
    return getattr(packet, overload, None) if packet is not None else None


def _keeps_type(node: Node, name: str) -> bool:
    """Has the functional form's result the shape and dtype of what the in-place form writes? Then nothing needs to be run."""
    if torch.Tag.pointwise not in node.target.tags or name in _TRUTHS:  # type: ignore[union-attr]
        return False
    values = [arg.meta.get("val") for arg in node.all_input_nodes]
    return len({value.dtype for value in values if isinstance(value, torch.Tensor)}) == 1


def _argument(node: Node, name: str) -> Any:
    """An argument by name, its default where the call leaves it out."""
    for index, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if argument.name == name:
            return node.args[index] if index < len(node.args) else node.kwargs.get(name, argument.default_value)
    raise KeyError(name)


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(int(extent) for extent in node.meta["val"].shape)


def _without_data(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="meta")


def _run(target: Any, args: Any, kwargs: Any) -> Any:
    """What the operator returns for the fake tensors of its arguments."""

    def fake(node: Node) -> Any:
        return node.meta.get("val")

    with torch.no_grad():
        tensors = [node.meta["val"] for node in _nodes(args) if isinstance(node.meta.get("val"), torch.Tensor)]
        mode = next((t.fake_mode for t in tensors if hasattr(t, "fake_mode")), None)
        if mode is None:
            return target(*torch.fx.map_arg(args, fake), **torch.fx.map_arg(kwargs, fake))
        with mode:
            return target(*torch.fx.map_arg(args, fake), **torch.fx.map_arg(kwargs, fake))


def _nodes(args: Any) -> list[Node]:
    found: list[Node] = []
    torch.fx.map_arg(args, lambda node: found.append(node) or node)  # type: ignore[func-returns-value]
    return found
