"""The walk's way with control flow: torch.cond becomes COND_IF, while_loop WHILE_LOOP; each graph they hold is a region.

A region reads its own inputs only: what is computed outside of it and read inside. Constants are written into the regions
that read them. TOSA 1.0, control flow operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule, Node

from ethorch.branches import Held, held
from ethorch.errors import Reason, Unsupported
from ethorch.layout import contiguous
from ethorch.limits import NO_LOOP_ON_CPU
from ethorch.lower import Chain, Missing, Walk
from ethorch.nodes import INT64_INPUT, NOT_OUTPUT_QUANTIZED, QUANTIZE, TOSA_DTYPE, as_array, origin_of
from ethorch.ops.logic import as_tensor, widened
from ethorch.ops.spec import op_name
from ethorch.qparams import QParams, QTensor
from ethorch.tosa.builder import Builder
from ethorch.tosa.ir import REGIONS, Value

DIFFERENT_SCALES = Reason(
    "control_flow.scales", "its branches return one result in different scales, and nothing quantizes it behind them",
    "Quantize with quantize_with_submodules.",
)  # fmt: skip

FLOAT_LOOP = Reason(
    "control_flow.float", "it starts with a float tensor that was not quantized",
    "Quantize with quantize_with_submodules.",
)  # fmt: skip


class Regions:
    """Lowers the control flow that ``walk`` meets."""

    def __init__(self, walk: Walk):
        self.walk = walk
        self.b = walk.b

    def lower(self, node: Node) -> list[QTensor]:
        """The results of a torch.cond or while_loop.

        Raises:
            Unsupported: the target has no such operator; an operator inside cannot run, which the Reason names; or the CPU
                reads a result that has to stay on the NPU.
        """
        name = "COND_IF" if node.target is torch.ops.higher_order.cond else "WHILE_LOOP"
        refusal = self.b.limits[name].refuse(name, "BOOL", {}, self.b.target) if name in self.b.limits else None
        if refusal:
            raise Unsupported(refusal)
        for user in node.users:
            if user in self.walk.refusals:
                raise Unsupported(self.walk.refusals[user])
        before = len(self.b.graph.ops)
        try:
            walks, operands, results = self.cond(node) if name == "COND_IF" else self.loop(node)
        except Unsupported:
            del self.b.graph.ops[before:]
            raise
        regions = {key: inner.b.graph for key, inner in zip(REGIONS[name], walks, strict=True)}
        self.b.emit(name, *operands, **regions)
        for inner in walks:
            self.walk.inside |= inner.inside | inner.supported
        self.walk.supported.update(part.attribute for part in held(node))
        return [QTensor(value, x.dims, x.q) for value, x in zip(self.b.graph.ops[-1].results, results, strict=False)]

    def cond(self, node: Node) -> tuple[list[Walk], list[Value], list[QTensor]]:
        """The walks of the branches, the COND_IF's operands, and its results as the branch for true has them."""
        args: Any = node.args
        parts = held(node)
        condition, given = self.condition(args[0]), self.operands(args[3], parts, 0)
        walks = [self.walked(part, given, 0) for part in parts]
        readers = {user.args[1]: user for user in node.users}
        pairs: list[list[QTensor]] = []
        for index, pair in enumerate(zip(*map(_returned, walks), strict=True)):
            q = self.walk.output_qparams(readers[index]) if index in readers else None
            pairs.append(_alike(walks, [_result(inner, x, q) for inner, x in zip(walks, pair, strict=True)]))
        for number, inner in enumerate(walks):
            _finish(inner.b, [pair[number].value for pair in pairs])
        return walks, [condition, *_tensors(given)], [pair[0] for pair in pairs]

    def loop(self, node: Node) -> tuple[list[Walk], list[Value], list[QTensor]]:
        """The walks of condition and body, the WHILE_LOOP's operands, and what it carries as it returns it."""
        args: Any = node.args
        parts = held(node)
        body = _placeholders(parts[1].of(self.module))
        carried = [self.start(arg, inside) for arg, inside in zip(args[2], body, strict=False)]
        given = [*carried, *self.operands(args[3], parts, len(carried))]
        walks = [self.walked(part, given, len(carried)) for part in parts]
        condition, inner = walks
        (again,) = _returned(condition)
        _finish(condition.b, [_result(condition, again, None).value])
        results = [_result(inner, x, start.q) for x, start in zip(_returned(inner), carried, strict=True)]
        values = [_stored_like(inner.b, x, start) for x, start in zip(results, carried, strict=True)]
        _finish(inner.b, [*values, *inner.b.graph.inputs[len(carried) :]])
        return walks, [*(x.value for x in carried), *_tensors(given[len(carried) :])], carried

    # --- what goes in -------------------------------------------------------------------------------------------------

    @property
    def module(self) -> GraphModule:
        module = self.walk.graph.owning_module
        assert module is not None
        return module

    def condition(self, arg: Any) -> Value:
        """The truth value that decides between the branches."""
        x = self.operand(arg)
        x = as_tensor(self.b, x.astype(np.bool_)) if isinstance(x, np.ndarray) else x
        if not isinstance(x, QTensor) or x.value.dtype != "BOOL":
            raise Unsupported(Reason("control_flow.condition", f"its condition {arg} is no truth value on the NPU"))
        return x.value

    def operands(self, args: Sequence[Any], parts: Sequence[Held], first: int) -> list[Any]:
        """What the placeholders from number ``first`` on stand for; Missing where no graph reads one."""
        places = zip(*(_placeholders(part.of(self.module))[first:] for part in parts), strict=True)
        read = [any(place.users for place in alike) for alike in places]
        return [self.operand(arg) if wanted else Missing(arg) for arg, wanted in zip(args, read, strict=True)]

    def operand(self, arg: Any) -> Any:
        """An operand: a tensor, a constant's array, or Missing."""
        x = self.walk.plain(self.walk.env[arg]) if isinstance(arg, Node) else np.asarray(arg)
        if isinstance(x, Chain):
            return self.walk.floats.operand(x) if self.b.floats else Missing(x.end)
        return x

    def start(self, arg: Any, inside: Node) -> QTensor:
        """What a loop carries before its first round, in the qparams that the body wants it in."""
        x, readers = self.operand(arg), [op_name(user.target) in QUANTIZE for user in inside.users]
        wanted = {self.walk.qparams_of(user) for user in inside.users if op_name(user.target) in QUANTIZE}
        q = wanted.pop() if len(wanted) == 1 and all(readers) else None
        if isinstance(x, Missing):
            value = x.node.meta.get("val")
            integer = isinstance(value, torch.Tensor) and value.dtype == torch.int64
            raise Unsupported(INT64_INPUT if integer else FLOAT_LOOP)
        if isinstance(x, np.ndarray):
            x = _constant(self.walk, x, q, inside)
        assert isinstance(x, QTensor)
        if x.q is not None and q is not None:
            x = self.b.requantized(x, q)
        elif x.q is not None and self.b.floats:
            x = self.walk.floats.operand(x)
        return x if _is_plain(x) else QTensor(self.b.logical(x), contiguous(x.shape), x.q)

    # --- the graphs ---------------------------------------------------------------------------------------------------

    def walked(self, part: Held, given: Sequence[Any], carried: int) -> Walk:
        """The walk of one graph, its results still to be finished. The first ``carried`` of ``given`` change: no constants."""
        module = part.of(self.module)
        inner_b = self.b.region(f"{part.node.name}_{part.role}")
        env: dict[Node, Any] = {}
        for index, (place, x) in enumerate(zip(_placeholders(module), given, strict=True)):
            inner_b.origin = origin_of(place)
            env[place] = Missing(place) if isinstance(x, Missing) else x
            if isinstance(x, QTensor) and (index < carried or not x.value.is_const):
                env[place] = QTensor(inner_b.input(place.name, x.value.shape, x.value.dtype), x.dims, x.q)
        inner = Walk(module.graph, _constants(module, env), inner_b, refused=self.walk.refusals, given=env)
        try:
            return inner.run()
        except Unsupported as refusal:
            reason = refusal.reason
            text = f"{part.what} holds {inner_b.origin}, which cannot run: {reason.text} [{reason.id}]"
            way_out = reason.way_out
            if part.node.target is torch.ops.higher_order.while_loop:
                way_out = f"{way_out} {NO_LOOP_ON_CPU}.".strip()
            raise Unsupported(Reason("control_flow.branch", text, way_out)) from refusal


def _placeholders(module: GraphModule) -> list[Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _constants(module: GraphModule, env: Mapping[Node, Any]) -> Callable[[Node], np.ndarray | None]:
    """FX node -> the constant it stands for: an argument that is one, or a tensor that the graph holds itself."""

    def lookup(node: Node) -> np.ndarray | None:
        if node.op == "get_attr":
            value: Any = module
            for part in str(node.target).split("."):
                value = getattr(value, part)
            return as_array(value) if isinstance(value, torch.Tensor) else None
        given = env.get(node)
        return given if isinstance(given, np.ndarray) else None

    return lookup


def _tensors(given: Sequence[Any]) -> list[Value]:
    return [x.value for x in given if isinstance(x, QTensor) and not x.value.is_const]


# --- what comes out ---------------------------------------------------------------------------------------------------------


def _returned(walk: Walk) -> list[Node]:
    results: Any = walk.graph.output_node().args[0]
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _result(walk: Walk, node: Node, q: QParams | None) -> QTensor:
    """What a graph returns, in ``q`` where that is known."""
    x = walk.plain(walk.env[node])
    walk.b.origin = origin_of(node)
    if isinstance(x, np.ndarray):
        x = _constant(walk, x, q, node)
    if walk.b.floats and (q is None or isinstance(x, Chain)):
        x = walk.floats.output(node, x)
    if not isinstance(x, QTensor):
        raise Unsupported(NOT_OUTPUT_QUANTIZED)
    return walk.b.requantized(x, q) if x.q is not None and q is not None else x


def _constant(walk: Walk, array: np.ndarray, q: QParams | None, node: Node) -> QTensor:
    if array.dtype.kind in "iub":
        return as_tensor(walk.b, array, TOSA_DTYPE.get(node.meta["val"].dtype, "INT32"))
    if q is not None and not q.is_real:
        return QTensor(walk.b.const(q.quantize(array), q.dtype), contiguous(array.shape), q)
    if walk.b.floats:
        return walk.floats.constant(array)
    raise Unsupported(NOT_OUTPUT_QUANTIZED)


def _alike(walks: Sequence[Walk], pair: list[QTensor]) -> list[QTensor]:
    """One result of both branches, of the same dtype and scale and stored alike."""
    first, second = pair
    if first.q != second.q:
        raise Unsupported(DIFFERENT_SCALES)
    if first.value.dtype != second.value.dtype:
        first, second = (QTensor(widened(w.b, x.value), x.dims, x.q) for w, x in zip(walks, pair, strict=True))
    if (first.dims, first.value.shape) != (second.dims, second.value.shape):
        if not _is_plain(first):
            first = QTensor(walks[0].b.logical(first), contiguous(first.shape), first.q)
        second = QTensor(_stored_like(walks[1].b, second, first), first.dims, second.q)
    return [first, second]


def _is_plain(x: QTensor) -> bool:
    """Is each logical dimension one stored axis?"""
    return x.rank == x.value.rank and all(len(axes) == 1 for axes in x.dims)


def _stored_like(b: Builder, x: QTensor, like: QTensor) -> Value:
    """``x`` with its axes in the order of ``like``, which is plain."""
    if (x.dims, x.value.shape) == (like.dims, like.value.shape):
        return x.value
    return b.stored_as(x, [(dim,) for dim in sorted(range(x.rank), key=lambda dim: like.dims[dim])])


def _finish(b: Builder, values: Sequence[Value]) -> None:
    """Make ``values`` the region's outputs, each computed by an operator of its own."""
    for value in values:
        if value.is_const or value in b.graph.inputs or value in b.graph.outputs:
            value = b.emit("IDENTITY", value)
        b.graph.outputs.append(value)
