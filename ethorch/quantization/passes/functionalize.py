"""Replace in-place operators with functional operators: ``y[:, :4] += 1`` computes a new y for later readers of y and its views.

Quantize and dequantize operators create copies, so writes through views would have no effect in a quantized model.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch.fx import GraphModule, Node

from ethorch.lower.fx.aten_builder import shape_of
from ethorch.lower.fx.node import is_in_place
from ethorch.quantization.passes.context import PassContext
from ethorch.quantization.passes.state_buffers import read_through_clone
from ethorch.quantization.passes.view_steps import (
    RESHAPE_IN_PLACE,
    ViewStep,
    allow_other_strides,
    functional_of,
    name_of,
    one_way_step,
    split_steps,
    view_step,
)
from ethorch.support.errors import QuantizationError

aten = torch.ops.aten

#: Pointwise operators whose functional form always returns bool.
_TRUTHS = {
    "eq_", "ne_", "lt_", "le_", "gt_", "ge_", "not_equal_", "less_", "less_equal_", "greater_", "greater_equal_", "logical_and_",
    "logical_or_", "logical_xor_", "logical_not_",
}  # fmt: skip


def functionalize(graph_module: GraphModule, context: PassContext) -> None:
    """Replace in-place operators in the graph and its control-flow subgraphs. The caller must recompile the graph.

    Updates of batch norm counters are not replaced. All writes to a buffer become one ``copy_`` at the end of the graph.
    Readers of a written buffer read a ``clone``. Inputs remain unchanged.

    Raises:
        QuantizationError: An in-place operator has no functional form, writes to an argument other than the first, or writes
            through a view that cannot be inverted.
    """
    for _, child in list(graph_module.named_children()):
        if isinstance(child, GraphModule) and not str(type(child).__name__).startswith("GuardsFn"):
            functionalize(child, context)
            child.recompile()
    for node in filter(is_in_place, graph_module.graph.nodes):
        if (counter := _counter(node)) is not None:  # torchao expects each batch norm to update its counter directly
            node.update_arg(0, counter)
    if any(_is_write(node) for node in graph_module.graph.nodes):
        _Functionalizer(graph_module).run()
        graph_module.graph.eliminate_dead_code()


def _is_write(node: Node) -> bool:
    return is_in_place(node) and _counter(node) is None


def _counter(node: Node) -> Node | None:
    written = node.args[0] if node.args else None
    while isinstance(written, Node) and is_in_place(written):  # a batch norm that is called twice has two updates
        written = written.args[0]
    counts = isinstance(written, Node) and written.op == "get_attr" and _is_only_written(written)
    return written if counts and isinstance(written, Node) else None


def _is_only_written(value: Node) -> bool:
    return all(is_in_place(user) and user.args[0] is value and _is_only_written(user) for user in value.users)


@dataclass
class _Memory:
    root: Node
    version: int = 0
    values: dict[tuple[Any, ...], tuple[int, Node]] = field(default_factory=dict)


@dataclass(frozen=True)
class _View:
    memory: _Memory
    steps: tuple[ViewStep, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple(step.key for step in self.steps)


class _Functionalizer:
    """A pass in graph order. ``views`` maps original nodes to views of memory. ``current`` returns a node's current value."""

    def __init__(self, model: GraphModule):
        self.graph = model.graph
        self.views: dict[Node, _View] = {}
        self.lists: dict[Node, list[tuple[_View, int] | None]] = {}
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
            if memory.version and memory.root.op == "get_attr":
                value = self.value(_View(memory))
                if memory.root.users:
                    read_through_clone(memory.root)
                self.emit(aten.copy_.default, memory.root, value)
        for node in reversed(self.dead):
            self.graph.erase_node(node)

    # --- reading ------------------------------------------------------------------------------------------------------

    def place(self, node: Node) -> _View:
        if node not in self.views:
            memory = _Memory(node)
            memory.values[()] = (0, node)
            self.views[node] = _View(memory)
        return self.views[node]

    def current(self, node: Node) -> Node:
        view = self.views.get(node)
        return node if view is None else self.value(view)

    def read(self, node: Node) -> None:
        if node not in self.dead and any(arg in self.views for arg in node.all_input_nodes):
            node.args, node.kwargs = torch.fx.map_arg(node.args, self.current), torch.fx.map_arg(node.kwargs, self.current)
            allow_other_strides(node)  # those of the new values of written tensors

    def value(self, view: _View) -> Node:
        memory = view.memory
        version, node = memory.values.get(view.key, (-1, memory.root))
        if version < memory.version:
            node = view.steps[-1].take(self.value(_View(memory, view.steps[:-1])))
            memory.values[view.key] = (memory.version, node)
        return node

    # --- views --------------------------------------------------------------------------------------------------------

    def view(self, node: Node) -> None:
        sources = self.shares_memory_with(node)
        if isinstance(node.meta.get("val"), (tuple, list)):
            if any(sources):
                self.lists[node] = self.parts(node, sources)
        elif sources and sources[0]:
            place = self.place(sources[0])
            self.enter(node, _View(place.memory, (*place.steps, self.step(node, sources[0]))), place.memory.version)

    def enter(self, node: Node, view: _View, version: int) -> None:
        last, _ = view.memory.values.get(view.key, (-1, node))
        if last < version == view.memory.version:
            view.memory.values[view.key] = (version, node)
        self.views[node] = view

    def item(self, node: Node) -> None:
        source, index = node.args
        if isinstance(source, Node) and source in self.lists:
            assert isinstance(index, int)
            part = self.lists[source][index]
            if part is not None:
                self.enter(node, *part)

    def parts(self, node: Node, sources: list[Node | None]) -> list[tuple[_View, int] | None]:
        first = sources[0]
        steps = split_steps(node, shape_of(self.current(first)), self.emit) if first is not None else None
        parts: list[tuple[_View, int] | None] = []
        for index, source in enumerate(sources):
            if source is None:
                parts.append(None)
                continue
            place = self.place(source)
            step = steps[index] if steps else one_way_step(node, source, self.emit, self.refuse_origin, index)
            parts.append((_View(place.memory, (*place.steps, step)), place.memory.version))
        return parts

    def step(self, node: Node, source: Node) -> ViewStep:
        return view_step(node, source, shape_of(self.current(source)), self.emit, self.refuse_origin)

    def refuse_origin(self, why: str) -> NoReturn:
        self.refuse(self.origin, why)

    def shares_memory_with(self, node: Node) -> list[Node | None]:
        """Run ``node`` on meta tensors and return, for each output, the argument that shares its memory, or None."""
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or not node.all_input_nodes:
            return []
        annotated = any(result.alias_info is not None for result in target._schema.returns)
        if not annotated and not target._can_decompose():
            return []
        standins: dict[Node, Any] = {}

        def standin(arg: Node) -> Any:
            if arg not in standins:
                standins[arg] = torch.utils._pytree.tree_map_only(torch.Tensor, _without_data, self.current(arg).meta.get("val"))
            return standins[arg]

        try:
            result = target(*torch.fx.map_arg(node.args, standin), **torch.fx.map_arg(node.kwargs, standin))
        except Exception:  # without a kernel for meta tensors, rely on the schema of the operator
            return [node.all_input_nodes[0]] if annotated else []
        owners = {tensor.untyped_storage()._cdata: arg for arg, tensor in standins.items() if isinstance(tensor, torch.Tensor)}
        results = result if isinstance(result, (tuple, list)) else [result]
        return [owners.get(each.untyped_storage()._cdata) if isinstance(each, torch.Tensor) else None for each in results]

    # --- writing ------------------------------------------------------------------------------------------------------

    def write(self, node: Node) -> None:
        """Replace ``dest.op_(...)`` with ``new = op(dest, ...)``, and write ``new`` to the tensors of which ``dest`` is a view."""
        schema, name = node.target._schema, name_of(node)  # type: ignore[union-attr]
        written = [i for i, argument in enumerate(schema.arguments) if argument.alias_info and argument.alias_info.is_write]
        dest = node.args[0] if node.args else None
        if written != [0] or not isinstance(dest, Node) or not name.endswith("_"):
            self.refuse(node, "the operator writes to an argument other than the first")
        place = self.place(dest)
        if name in RESHAPE_IN_PLACE:
            node.target = functional_of(node.target)
            self.reshape_in_place(node, dest)
            return
        new = self.new_value(node, name, dest)
        memory = place.memory
        if new is not node:
            self.dead.append(node)
        self.views[node] = place
        if new is self.value(place):
            return  # Python executes y[0] = y[0] after the in-place addition for y[0] += 1
        memory.version += 1
        memory.values[place.key] = (memory.version, new)
        for depth in range(len(place.steps) - 1, -1, -1):
            outer = _View(memory, place.steps[:depth])
            new = place.steps[depth].put(self.before(outer), new)
            memory.values[outer.key] = (memory.version, new)

    def before(self, view: _View) -> Node:
        view.memory.version -= 1
        node = self.value(view)
        view.memory.version += 1
        return node

    def reshape_in_place(self, node: Node, dest: Node) -> None:
        place = self.place(dest)
        view = _View(place.memory, (*place.steps, self.step(node, dest)))
        self.read(node)
        self.enter(node, view, view.memory.version)
        self.views[dest] = view

    def new_value(self, node: Node, name: str, dest: Node) -> Node:
        self.read(node)
        value = node.args[0].meta["val"]  # type: ignore[union-attr]
        if name == "copy_":
            source = node.args[1]
            assert isinstance(source, Node)
            return self.convert_like(source, value)
        if name in ("fill_", "zero_"):
            filled = node.args[1] if name == "fill_" else 0
            if not isinstance(filled, Node):
                return self.emit(
                    aten.full.default, list(value.shape), filled, dtype=value.dtype, device=value.device, pin_memory=False
                )
            return self.convert_like(filled, value)
        functional = functional_of(node.target)
        if functional is None:
            self.refuse(node, f"aten.{name} has no functional form")
        keeps = _keeps_type(node, name)
        defaults = {each.name: each.default_value for each in node.target._schema.arguments if each.has_default_value()}  # type: ignore[union-attr]
        required = [each for each in functional._schema.arguments[len(node.args) :] if not each.has_default_value()]
        node.args = (*node.args, *(defaults[each.name] for each in required if each.name in defaults))  # bernoulli_() has a default
        node.target = functional
        if not keeps:
            node.meta["val"] = _run(node.target, node.args, node.kwargs)
        self.here = node.next
        return self.convert_like(node, value)

    def convert_like(self, node: Node, like: torch.Tensor) -> Node:
        value = node.meta["val"]
        if value.dtype != like.dtype:
            node = self.emit(aten.to.dtype, node, like.dtype)
        if tuple(value.shape) != tuple(like.shape):
            node = self.emit(aten.expand.default, node, list(like.shape))
        return node

    # --- nodes --------------------------------------------------------------------------------------------------------

    def emit(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        with self.graph.inserting_before(self.here):
            node = self.graph.call_function(target, args, kwargs)
        for key in ("nn_module_stack", "stack_trace", "source_fn_stack", "torch_fn"):
            if key in self.origin.meta:
                node.meta[key] = self.origin.meta[key]
        node.meta["val"] = _run(target, args, kwargs)
        return node

    @staticmethod
    def refuse(node: Node, why: str) -> NoReturn:
        trace = (node.meta.get("stack_trace") or "").strip().splitlines()
        line = f" ({trace[-1].strip()})" if trace else ""
        raise QuantizationError(
            "quantize.in_place",
            f"{node.format_node()}{line}: {why}, so the quantized model would differ from the float model. "
            "Use a functional operator instead.",
        )


def _keeps_type(node: Node, name: str) -> bool:
    if torch.Tag.pointwise not in node.target.tags or name in _TRUTHS:  # type: ignore[union-attr]
        return False
    values = [arg.meta.get("val") for arg in node.all_input_nodes]
    return len({value.dtype for value in values if isinstance(value, torch.Tensor)}) == 1


def _without_data(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="meta")


def _run(target: Any, args: Any, kwargs: Any) -> Any:
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
    nodes: list[Node] = []
    torch.fx.map_arg(args, lambda node: nodes.append(node) or node)  # type: ignore[func-returns-value]
    return nodes
