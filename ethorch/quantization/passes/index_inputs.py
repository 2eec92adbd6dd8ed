"""Inputs that are read as indices (token ids, positions): as int32, once, and what is computed of a position as a table.

PyTorch's indices are int64, and the NPU has integers of 32 bits. What is somewhere read as an index is less than the extent that it
indexes, so it fits, and so does what a constant is added to for an index: one cast behind the input replaces one for each reader,
and shapes, sums and comparisons of the index follow to the NPU. A counter that is state is written as a cast of an int32, too, so
that its buffer can be of int32 (``lower.fx.states``).

Floats that are computed of a position (the angles of a rotary embedding and their cosines, a bias by distance) would be calibrated
like all floats: int8 has 256 codes for all positions, and a cosine of such an angle is noise. The extent says which positions there
are, so that all values are known: they become rows of a constant, of which the index picks one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.fx.node import is_float, is_in_place, is_int64, tensor_of
from ethorch.lower.ops.arithmetic import add, sub
from ethorch.lower.ops.cast import to
from ethorch.lower.ops.compare import COMPARISONS
from ethorch.lower.ops.rounding import integer_remainder, remainder
from ethorch.lower.ops.selection import masked_fill, where
from ethorch.lower.ops.spec import find
from ethorch.quantization.passes.context import PassContext

aten = torch.ops.aten

_LARGEST_TABLE = 1 << 23  #: elements of a table that is made; a larger one would cost more flash than computing costs accuracy
_WITHIN = (add, sub, where, masked_fill)  #: what computes a number of 32 bits of such, as far as indices go
_TRIES = 3  #: draws of positions with which a table is held against what it stands for


def narrow_indices(graph_module: GraphModule, context: PassContext) -> None:
    """Cast each int64 input and state that is read as an index to int32 once. In place.

    What moves it, adds to it and compares it reads that, and what is written to a state is made of it. So does its remainder by a
    power of two, which depends on its lower bits alone. Where the NPU has no GATHER the kernels of the CPU take int64: there only
    inputs and states are cast that no such kernel reads, and casts that there are for the NPU become one. An input that is only
    compared with constants is clamped to the range of the constants, widened by one, and cast.
    """
    inputs = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    states = [node for node in graph_module.graph.nodes if _reads_state(node)]
    for source in inputs + states:
        if is_int64(source) and (_is_index(source) or _is_wrapped(source)) and inputs[-1].next.op != "output":
            s = AtenBuilder(graph_module, source.next if source in states else inputs[-1].next, context.limits)
            casts = [user for user in source.users if find(user.target) is to and user.meta["val"].dtype == torch.int32]
            if not s.absent("GATHER") or not _is_index_on_cpu(source):
                _narrow(graph_module, s(aten.to.dtype, source, torch.int32), source, context.is_excluded)
            elif len(casts) > 1:
                cast = s(aten.to.dtype, source, torch.int32)
                for other in casts:
                    other.replace_all_uses_with(cast)
    for node in list(graph_module.graph.nodes):
        on_npu = not AtenBuilder(graph_module, node, context.limits).absent("GATHER") or not _is_index_on_cpu(node)
        if on_npu and _widens(node) and (_is_index(node) or _is_wrapped(node)):
            _narrow(graph_module, node.all_input_nodes[0], node, context.is_excluded)
    for source in inputs:
        if is_int64(source) and inputs[-1].next.op != "output":
            _narrow_compared(graph_module, source, inputs[-1].next, context.is_excluded)


def cast_inputs_first(graph_module: GraphModule, context: PassContext) -> None:
    """Move casts of int64 inputs to floats before the views between input and cast: the NPU moves no int64. In place."""
    casts: dict[tuple[Node, torch.dtype], Node] = {}
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or find(node.target) is not to or not is_float(node) or not is_int64(node.all_input_nodes[0]):
            continue
        source, moves = node.all_input_nodes[0], list[Node]()
        while _moves_one(source):
            moves.append(source)
            source = source.all_input_nodes[0]
        if source.op != "placeholder" or not moves:
            continue
        key = source, node.meta["val"].dtype
        if key not in casts:
            casts[key] = AtenBuilder(graph_module, moves[-1])(aten.to.dtype, source, key[1])
        value, s = casts[key], AtenBuilder(graph_module, node)
        for move in reversed(moves):
            value = s(move.target, value, *move.args[1:], **move.kwargs)
        node.replace_all_uses_with(value)
        graph_module.graph.erase_node(node)


def _moves_one(node: Node) -> bool:
    """Return True for an operator that moves elements of one int64 tensor."""
    spec = find(node.target) if node.op == "call_function" else None
    return spec is not None and is_int64(node) and (_is_view(node) or spec.moves) and len(node.all_input_nodes) == 1


def _widens(node: Node) -> bool:
    """Return True for a cast of int32 to int64."""
    is_cast = node.op == "call_function" and find(node.target) is to and is_int64(node)
    return is_cast and node.all_input_nodes[0].meta["val"].dtype == torch.int32


def _reads_state(node: Node) -> bool:
    """Is it what a tensor that the model writes holds at first? A clone is all that reads such a tensor (functionalize)."""
    sources = node.all_input_nodes
    return node.op == "call_function" and not is_in_place(node) and len(sources) == 1 and _is_written(sources[0])


def _is_written(node: Node) -> bool:
    return node.op == "get_attr" and any(is_in_place(user) and user.args and user.args[0] is node for user in node.users)


def _narrow(model: GraphModule, cast: Node, source: Node, keep: Callable[[Node], bool]) -> None:
    narrow: dict[Node, Node] = {source: cast}
    bound = min(_extents(source), default=0)
    for node in list(model.graph.nodes):
        if node is cast or node.op != "call_function" or keep(node) or not narrow.keys() & set(node.all_input_nodes):
            continue
        spec = find(node.target)
        if node.target is aten.copy_.default and node.args[1] in narrow:
            node.update_arg(1, AtenBuilder(model, node)(aten.to.dtype, narrow[node.args[1]], torch.int64))
        elif spec is None:
            continue
        elif spec is to:
            _narrow_cast(node, narrow)
        elif (_is_view(node) or spec.moves or spec in _WITHIN) and is_int64(node):
            args = _as_int32(AtenBuilder(model, node), node.args, narrow)
            if args is not None and not node.kwargs:
                narrow[node] = AtenBuilder(model, node)(node.target, *args)
        elif spec is remainder and is_int64(node) and _is_power_of_two(node.args[1]) and not node.kwargs:
            s = AtenBuilder(model, node)
            narrowed = integer_remainder(s, narrow[node.all_input_nodes[0]], node.args[1], "floor")
            assert narrowed is not None
            narrow[node] = narrowed
        elif spec is remainder and (wrapped := _wrapped(AtenBuilder(model, node), node, narrow, source, bound)):
            narrow[node] = wrapped
        elif spec.pointwise and node.meta["val"].dtype == torch.bool:
            args = _as_int32(AtenBuilder(model, node), node.args, narrow)
            if args is not None:
                node.args = args


def _narrow_compared(model: GraphModule, source: Node, place: Node, keep: Callable[[Node], bool]) -> None:
    """Let comparisons of an int64 input with constants, of the input as it is or moved, read int32: exact for every number."""
    compared: dict[Node, Tensor] = {}
    moved = {source}
    for node in model.graph.nodes:
        spec = find(node.target) if node.op == "call_function" and not keep(node) else None
        if spec is not None and moved & set(node.all_input_nodes) and _moves_one(node):
            moved.add(node)
    for node in model.graph.nodes:
        if node.op == "call_function" and find(node.target) in COMPARISONS and moved & set(node.args) and not keep(node):
            others = [arg for arg in node.args if arg not in moved]
            numbers = [tensor_of(model, arg) if isinstance(arg, Node) else torch.tensor(arg) for arg in others]
            if len(others) == 1 and numbers[0] is not None and _fits(numbers[0]):
                compared[node] = numbers[0].reshape(-1)
    if not compared:
        return
    bounds = torch.cat(list(compared.values()))
    s = AtenBuilder(model, place)
    clamped = s(aten.clamp.default, source, int(bounds.min()) - 1, int(bounds.max()) + 1)
    narrow: dict[Node, Node] = {source: s(aten.to.dtype, clamped, torch.int32)}
    for node in list(model.graph.nodes):
        s = AtenBuilder(model, node) if node in moved - {source} or node in compared else s
        if node in moved - {source}:
            narrow[node] = s(node.target, narrow[node.all_input_nodes[0]], *node.args[1:], **node.kwargs)
        elif node in compared:
            args = _as_int32(s, node.args, narrow)
            assert args is not None
            node.args = args


def _fits(numbers: Tensor) -> bool:
    """Return True if these are integers well within 32 bits."""
    integers = not numbers.dtype.is_floating_point and numbers.dtype != torch.bool and numbers.numel() > 0
    return integers and int(numbers.min()) > -(1 << 30) and int(numbers.max()) < 1 << 30


def _wrapped(s: AtenBuilder, node: Node, narrow: Mapping[Node, Node], source: Node, bound: int) -> Node | None:
    """``(source + k) % n`` of what indexes ``bound`` elements, where that is at most one n off: by comparisons, exact in int32."""
    x, n = node.args
    if not isinstance(x, Node) or x not in narrow or not isinstance(n, int):
        return None
    first, *rest = x.args if find(x.target) is add and not x.kwargs else (x, 0)
    k = s.number(rest[0])
    if first is not source or k is None or not bound or not -n <= k - bound or not k + bound <= 2 * n:
        return None
    small = narrow[x]

    def times(truths: Node) -> Node:
        return s(aten.mul.Tensor, s(aten.to.dtype, truths, torch.int32), n)

    high, low = times(s(aten.ge.Scalar, small, n)), times(s(aten.lt.Scalar, small, 0))
    return s(aten.add.Tensor, s(aten.sub.Tensor, small, high), low)


def _is_index(node: Node) -> bool:
    """Return True if it is somewhere read as an index, as it is, moved, or with a constant added."""
    return any(True for _ in _extents(node, summed=True))


def _is_wrapped(node: Node) -> bool:
    """Return True if it is only read modulo powers of two: then its lower 32 bits are all that matters, however large it is."""
    readers = list(_readers(node))
    wrapped = [user for user in readers if find(user.target) is remainder and _is_power_of_two(user.args[1])]
    return len(wrapped) == len(readers) and any(map(_is_index, wrapped))


def _readers(node: Node) -> Iterator[Node]:
    """Yield what reads an int64 tensor, as it is, moved or with a constant added; but for what writes it to a state."""
    for user in node.users:
        spec = find(user.target) if user.op == "call_function" else None
        if spec is not None and (spec.moves or (spec in (add, sub) and _with_constant(user)) or (spec is to and is_int64(user))):
            yield from _readers(user)
        elif user.target is not aten.copy_.default:
            yield user


def _is_power_of_two(number: Any) -> bool:
    return isinstance(number, int) and 0 < number < 1 << 30 and number.bit_count() == 1


def _is_index_on_cpu(index: Node) -> bool:
    """Return True if an operator that an NPU without GATHER leaves to the CPU takes it as it is: all but writers of one row."""
    for user in index.users:
        spec = find(user.target) if user.op == "call_function" else None
        if spec is None or not isinstance(user.meta["val"], Tensor):
            continue
        if spec.needs:
            if _indexed(user, index) is not None and (spec.needs != "SCATTER" or index.meta["val"].numel() != 1):
                return True
        elif not is_float(user) and user.meta["val"].dtype != torch.bool and spec is not to and _is_index_on_cpu(user):
            return True
    return False


def _is_view(node: Node) -> bool:
    """Are the elements of its result those of its input, some or all?"""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and len(schema.returns) == 1 and schema.returns[0].alias_info is not None and not schema.is_mutable


def _narrow_cast(node: Node, narrow: dict[Node, Node]) -> None:
    """A cast of an index reads the int32 one; one to int32 or int64 is that."""
    source = node.all_input_nodes[0]
    if is_int64(node):
        narrow[node] = narrow[source]
    elif node.meta["val"].dtype == torch.int32:
        node.replace_all_uses_with(narrow[source])
    else:
        node.replace_input_with(source, narrow[source])


def _as_int32(s: AtenBuilder, args: Any, narrow: Mapping[Node, Node]) -> tuple[Any, ...] | None:
    """The arguments with int64 tensors as int32; None where one is neither an index nor a constant that fits."""
    made = []
    for arg in args:
        if isinstance(arg, Node) and arg in narrow:
            arg = narrow[arg]
        elif isinstance(arg, Node) and is_int64(arg):
            constant = tensor_of(s.model, arg)
            if constant is None or not constant.numel() or constant.abs().max() >= 1 << 30:
                return None
            arg = s.constant(constant.to(torch.int32))
        elif isinstance(arg, int) and abs(arg) >= 1 << 30:
            return None
        made.append(arg)
    return tuple(made)


def _extents(index: Node, summed: bool = False, cast: bool = True) -> Iterator[int]:
    """Of each tensor that ``index`` is an index into, as it is or moved: the extent of the dim that it indexes.

    Args:
        summed: where a constant is added to it, too.
        cast: as another type of integer, too.
    """
    for user in index.users:
        spec = find(user.target) if user.op == "call_function" else None
        if spec is None:
            continue
        if spec.needs:
            extent = _indexed(user, index)
            if extent is not None:
                yield extent
        elif is_float(user) or not isinstance(user.meta["val"], Tensor) or user.meta["val"].dtype == torch.bool:
            continue
        elif (spec is to and cast) or spec.moves or (summed and spec in (add, sub) and _with_constant(user)):
            yield from _extents(user, summed, cast)


def _with_constant(node: Node) -> bool:
    """Is one operand alone not known before the program runs?"""
    return sum(one.op != "get_attr" or _is_written(one) for one in node.all_input_nodes) == 1


def _indexed(user: Node, index: Node) -> int | None:
    """The extent that a reading or writing operator indexes with ``index``; None where it is another operand."""
    x, *rest = user.args
    if not isinstance(x, Node) or not rest:
        return None
    if isinstance(rest[0], (list, tuple)):
        return next((extent for extent, one in zip(shape_of(x), rest[0], strict=False) if one is index), None)
    if rest[0] is index:
        return shape_of(x)[0]
    return shape_of(x)[rest[0]] if isinstance(rest[0], int) and len(rest) > 1 and rest[1] is index else None


def tabulate_positions(graph_module: GraphModule, context: PassContext) -> None:
    """Replace floats that depend on one index and constants alone by rows of a constant table. In place.

    Only what the index is made a float for: rows that it picks already are a table. In a trainable model a parameter is no
    constant.
    """
    inputs = [node for node in graph_module.graph.nodes if node.op == "placeholder" and _is_number(node)]
    casts = [user for node in inputs for user in node.users if find(user.target) is to and _is_number(user)]
    for index in casts + inputs:  # an input has what a cast of it left
        extents = list(_extents(index))
        count = index.meta["val"].numel()
        if extents and count and min(extents) >= count:
            _tabulate(graph_module, index, min(extents), _region(graph_module, index, context.is_excluded, context.trainable))


def _is_number(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dtype in (torch.int32, torch.int64)


def _tabulate(model: GraphModule, index: Node, extent: int, region: list[Node]) -> None:
    made_float: set[Node] = set()  # what depends on a float of the index
    for node in region:
        of_numbers = any(_is_number(arg) for arg in node.all_input_nodes if arg in region or arg is index)
        if any(arg in made_float for arg in node.all_input_nodes) or (is_float(node) and of_numbers and find(node.target) is to):
            made_float.add(node)
    known: list[tuple[Tensor, Node]] = []
    for node in region:
        outside = [user for user in node.users if user not in region]
        if node in made_float and is_float(node) and outside:
            _replace_by_rows(model, index, node, region, extent, outside, known)


def _region(model: GraphModule, index: Node, keep: Callable[[Node], bool], trains: bool) -> list[Node]:
    """In order: operators that depend on ``index`` and constants alone."""
    region: dict[Node, None] = {}
    for node in model.graph.nodes:
        if node.op != "call_function" or not isinstance(node.meta.get("val"), Tensor) or is_in_place(node) or keep(node):
            continue
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
            continue
        inputs = node.all_input_nodes
        known = all(arg is index or arg in region or _is_constant(model, arg, trains) for arg in inputs)
        if known and any(arg is index or arg in region for arg in inputs):
            region[node] = None
    for node in reversed(list(region)):  # rows are moved where they are read, so that all readers share one table
        spec = find(node.target)
        if spec is not None and spec.moves and not any(user in region for user in node.users):
            del region[node]
    return list(region)


def _is_constant(model: GraphModule, node: Node, trains: bool) -> bool:
    if node.op != "get_attr" or _is_written(node):
        return False
    tensor = tensor_of(model, node)
    return tensor is not None and not (trains and isinstance(tensor, torch.nn.Parameter))


def _replace_by_rows(
    model: GraphModule,
    index: Node,
    node: Node,
    region: list[Node],
    extent: int,
    readers: list[Node],
    known: list[tuple[Tensor, Node]],
) -> None:
    """Have the readers of ``node`` read rows of a table, if it has one row for each number of the index.

    ``known``: the tables made of that index so far, each with its rows in the place of a node; equal ones are not made twice.
    """
    shape, count = shape_of(node), index.meta["val"].numel()
    if not node.meta["val"].numel() or extent * (node.meta["val"].numel() // count) > _LARGEST_TABLE:
        return
    dims: list[int | None] = [dim for dim, size in enumerate(shape) if size == count]
    for dim in dims or ([None] if count == 1 else []):
        table = _table(model, index, node, region, extent, dim)
        if table is not None:
            break
    else:
        return
    made = next((rows for one, rows in known if shape_of(rows) == shape and torch.equal(one, table)), None)
    if made is None:
        s = AtenBuilder(model, node)
        flat = index if shape_of(index) == (count,) else s(aten.reshape.default, index, [count])  # the CPU may read it
        rows = s(aten.index_select.default, s.constant(table), 0, flat)
        others = list(range(1, len(shape)))
        if dim is None or count == 1:
            made = s(aten.reshape.default, rows, list(shape))
        else:
            made = s(aten.permute.default, rows, [*others[:dim], 0, *others[dim:]])
        known.append((table, made))
    for reader in readers:
        reader.replace_input_with(node, made)


def _table(model: GraphModule, index: Node, node: Node, region: list[Node], extent: int, dim: int | None) -> Tensor | None:
    """[extent, ...]: what ``node`` is at each number of the index, along ``dim``; None where a row is not of one number."""
    count, shape = index.meta["val"].numel(), index.meta["val"].shape

    def rows(numbers: Tensor) -> Tensor:
        found = _evaluate(model, index, node, region, numbers.reshape(shape).to(index.meta["val"].dtype))
        return found[None] if dim is None else found.movedim(dim, 0)

    each = [torch.arange(first, first + count).clamp(max=extent - 1) for first in range(0, extent, count)]
    table = torch.cat([rows(numbers) for numbers in each])[:extent].contiguous()
    if not torch.isfinite(table).all():
        return None
    generator = torch.Generator().manual_seed(0)
    for _ in range(_TRIES):
        numbers = torch.randint(extent, (count,), generator=generator)
        if not torch.equal(rows(numbers), table[numbers]):
            return None
    return table


def _evaluate(model: GraphModule, index: Node, node: Node, region: list[Node], numbers: Tensor) -> Tensor:
    known: dict[Node, Any] = {index: numbers}

    def value(arg: Node) -> Any:
        return known[arg] if arg in known else tensor_of(model, arg)

    with torch.no_grad():
        for each in region:
            args, kwargs = torch.fx.map_arg((each.args, each.kwargs), value)
            known[each] = each.target(*args, **kwargs)  # type: ignore[operator]
            if each is node:
                break
    result = known[node]
    assert isinstance(result, Tensor)
    return result
