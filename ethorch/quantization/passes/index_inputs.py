"""Narrow index inputs (token ids, positions) to int32, and replace computations on positions with lookup tables.

Floats computed from a position, such as the angles of a rotary embedding, would lose all precision in int8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.fx.node import arguments, is_float, is_in_place, is_int64, tensor_of
from ethorch.lower.ops.arithmetic import add, sub
from ethorch.lower.ops.cast import to
from ethorch.lower.ops.compare import COMPARISONS
from ethorch.lower.ops.indices import draw_count_from_end, is_count_from_end
from ethorch.lower.ops.rounding import integer_remainder, remainder
from ethorch.lower.ops.selection import masked_fill, where
from ethorch.lower.ops.spec import find
from ethorch.quantization.passes.context import PassContext

aten = torch.ops.aten

_LARGEST_TABLE = 1 << 23  #: maximum number of elements of a table, to limit flash
_WITHIN = (add, sub, where, masked_fill)  #: operators whose results fit 32 bits if their operands are indices
_TRIES = 3  #: number of random position tensors with which a table is verified


def index_by_tensors(graph_module: GraphModule, context: PassContext) -> None:
    """Replace ``select`` with ``index`` if the index is a tensor of rank 0, as in ``x[i]``."""
    for node in list(graph_module.graph.nodes):
        if node.target not in (aten.select.int, aten.select_scatter.default):
            continue
        x, *values, dim, place = arguments(node)[0]
        if not isinstance(place, Node) or place.target not in (aten.item.default, aten._local_scalar_dense.default):
            continue
        s, source, dim = AtenBuilder(graph_module, node), place.all_input_nodes[0], dim % len(shape_of(x))
        if source.meta["val"].dtype not in (torch.int32, torch.int64):
            source = s(aten.to.dtype, source, torch.int64)
        indices = [*[None] * dim, s(aten.reshape.default, source, [1])]
        if values:
            result = s(aten.index_put.default, x, indices, s(aten.unsqueeze.default, values[0], dim))
        else:
            result = s(aten.squeeze.dim, s(aten.index.Tensor, x, indices), dim)
        node.replace_all_uses_with(result)


def narrow_indices(graph_module: GraphModule, context: PassContext) -> None:
    """Insert one cast to int32 for each int64 input and mutable buffer used as an index.

    An index fits in 32 bits, because it is smaller than the indexed dim. The cast replaces the int64 tensor in operators that move,
    add or compare it, in writes to a mutable buffer, and in remainders by powers of two. If the target does not support GATHER,
    inputs and buffers that CPU kernels use as indices remain int64. Other int64 inputs are cast only for comparisons with
    constants, after a clamp to the constants' range plus one on each side.
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
                for duplicate in casts:
                    duplicate.replace_all_uses_with(cast)
    for node in list(graph_module.graph.nodes):
        on_npu = not AtenBuilder(graph_module, node, context.limits).absent("GATHER") or not _is_index_on_cpu(node)
        if on_npu and _widens(node) and (_is_index(node) or _is_wrapped(node)):
            _narrow(graph_module, node.all_input_nodes[0], node, context.is_excluded)
    for source in inputs:
        if is_int64(source) and inputs[-1].next.op != "output":
            _narrow_compared(graph_module, source, inputs[-1].next, context.is_excluded)


def cast_inputs_first(graph_module: GraphModule, context: PassContext) -> None:
    """Cast int64 inputs to float before views instead of after them, because the NPU does not support views of int64."""
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


def copy_returned_casts(graph_module: GraphModule, context: PassContext) -> None:
    """Copy each cast to int64 that the program returns, so that the other operators that read the cast run on the NPU."""
    for node in list(graph_module.graph.nodes):
        returned = [user for user in node.users if _is_returned(user)] if _widens(node) else []
        if returned and len(returned) < len(node.users):
            copied = AtenBuilder(graph_module, node)(node.target, *node.args, **node.kwargs)
            for user in returned:
                user.replace_input_with(node, copied)


def _is_returned(node: Node) -> bool:
    return node.op == "output" or (_moves_one(node) and bool(node.users) and all(map(_is_returned, node.users)))


def _moves_one(node: Node) -> bool:
    spec = find(node.target) if node.op == "call_function" else None
    return spec is not None and is_int64(node) and (_is_view(node) or spec.moves) and len(node.all_input_nodes) == 1


def _widens(node: Node) -> bool:
    is_cast = node.op == "call_function" and find(node.target) is to and is_int64(node)
    return is_cast and node.all_input_nodes[0].meta["val"].dtype == torch.int32


def _reads_state(node: Node) -> bool:
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
        elif is_count_from_end(node) and node.args[0] in narrow:
            narrow[node] = draw_count_from_end(AtenBuilder(model, node), narrow[node.args[0]], node.args[1].args[1])
        elif (_is_view(node) or spec.moves or spec in _WITHIN) and is_int64(node):
            args = _as_int32(AtenBuilder(model, node), node.args, narrow)
            if args is not None and not node.kwargs:
                narrow[node] = AtenBuilder(model, node)(node.target, *args)
        elif spec is remainder and is_int64(node) and _is_power_of_two(node.args[1]) and not node.kwargs:
            s = AtenBuilder(model, node)
            narrowed = integer_remainder(s, narrow[node.all_input_nodes[0]], node.args[1], "floor")
            assert narrowed is not None
            narrow[node] = narrowed
        elif spec is remainder and (wrapped := _wrap(AtenBuilder(model, node), node, narrow, source, bound)):
            narrow[node] = wrapped
        elif spec.pointwise and node.meta["val"].dtype == torch.bool:
            args = _as_int32(AtenBuilder(model, node), node.args, narrow)
            if args is not None:
                node.args = args


def _narrow_compared(model: GraphModule, source: Node, place: Node, keep: Callable[[Node], bool]) -> None:
    """Narrow comparisons of an int64 input with constants to int32. The result is exact for every input."""
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
    integers = not numbers.dtype.is_floating_point and numbers.dtype != torch.bool and numbers.numel() > 0
    return integers and int(numbers.min()) > -(1 << 30) and int(numbers.max()) < 1 << 30


def _wrap(s: AtenBuilder, node: Node, narrow: Mapping[Node, Node], source: Node, bound: int) -> Node | None:
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
    return any(True for _ in _extents(node, summed=True))


def _is_wrapped(node: Node) -> bool:
    readers = list(_readers(node))
    wrapped = [user for user in readers if find(user.target) is remainder and _is_power_of_two(user.args[1])]
    return len(wrapped) == len(readers) and any(map(_is_index, wrapped))


def _readers(node: Node) -> Iterator[Node]:
    for user in node.users:
        spec = find(user.target) if user.op == "call_function" else None
        if spec is not None and (spec.moves or (spec in (add, sub) and _with_constant(user)) or (spec is to and is_int64(user))):
            yield from _readers(user)
        elif user.target is not aten.copy_.default:
            yield user


def _is_power_of_two(number: Any) -> bool:
    return isinstance(number, int) and 0 < number < 1 << 30 and number.bit_count() == 1


def _is_index_on_cpu(index: Node) -> bool:
    for user in index.users:
        spec = find(user.target) if user.op == "call_function" else None
        if spec is None or not isinstance(user.meta["val"], Tensor):
            continue
        if spec.needs:
            if _extent_of(user, index) is not None and (spec.needs != "SCATTER" or index.meta["val"].numel() != 1):
                return True
        elif not is_float(user) and user.meta["val"].dtype != torch.bool and spec is not to and _is_index_on_cpu(user):
            return True
    return False


def _is_view(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and len(schema.returns) == 1 and schema.returns[0].alias_info is not None and not schema.is_mutable


def _narrow_cast(node: Node, narrow: dict[Node, Node]) -> None:
    source = node.all_input_nodes[0]
    if is_int64(node):
        narrow[node] = narrow[source]
    elif node.meta["val"].dtype == torch.int32:
        node.replace_all_uses_with(narrow[source])
    else:
        node.replace_input_with(source, narrow[source])


def _as_int32(s: AtenBuilder, args: Any, narrow: Mapping[Node, Node]) -> tuple[Any, ...] | None:
    narrowed = []
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
        narrowed.append(arg)
    return tuple(narrowed)


def _extents(index: Node, summed: bool = False, cast: bool = True) -> Iterator[int]:
    for user in index.users:
        spec = find(user.target) if user.op == "call_function" else None
        if spec is None:
            continue
        if spec.needs:
            extent = _extent_of(user, index)
            if extent is not None:
                yield extent
        elif is_float(user) or not isinstance(user.meta["val"], Tensor) or user.meta["val"].dtype == torch.bool:
            continue
        elif (spec is to and cast) or spec.moves or (summed and _is_offset(user)):
            yield from _extents(user, summed, cast)


def _is_offset(node: Node) -> bool:
    return (find(node.target) in (add, sub) and _with_constant(node)) or is_count_from_end(node)


def _with_constant(node: Node) -> bool:
    return sum(arg.op != "get_attr" or _is_written(arg) for arg in node.all_input_nodes) == 1


def _extent_of(user: Node, index: Node) -> int | None:
    x, *rest = user.args
    if not isinstance(x, Node) or not rest:
        return None
    if isinstance(rest[0], (list, tuple)):
        return next((extent for extent, arg in zip(shape_of(x), rest[0], strict=False) if arg is index), None)
    if rest[0] is index:
        return shape_of(x)[0]
    return shape_of(x)[rest[0]] if isinstance(rest[0], int) and len(rest) > 1 and rest[1] is index else None


def tabulate_positions(graph_module: GraphModule, context: PassContext) -> None:
    """Replace floats with rows of a constant table if the floats depend only on an index and constants.

    Rows that the index selects from a constant are not replaced, because the constant is already a table.
    """
    inputs = [node for node in graph_module.graph.nodes if node.op == "placeholder" and _is_number(node)]
    casts = [user for node in inputs for user in node.users if find(user.target) is to and _is_number(user)]
    for index in casts + inputs:  # inputs last, for the nodes that casts did not replace
        extents = list(_extents(index))
        count = index.meta["val"].numel()
        if extents and count and min(extents) >= count:
            _tabulate(graph_module, index, min(extents), _region(graph_module, index, context.is_excluded, context.trainable))


def _is_number(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dtype in (torch.int32, torch.int64)


def _tabulate(model: GraphModule, index: Node, extent: int, region: list[Node]) -> None:
    made_float: set[Node] = set()  # nodes that depend on a float value of the index
    for node in region:
        of_numbers = any(_is_number(arg) for arg in node.all_input_nodes if arg in region or arg is index)
        if any(arg in made_float for arg in node.all_input_nodes) or (is_float(node) and of_numbers and find(node.target) is to):
            made_float.add(node)
    tables: list[tuple[Tensor, Node]] = []
    for node in region:
        outside = [user for user in node.users if user not in region]
        if node in made_float and is_float(node) and outside:
            _replace_by_rows(model, index, node, region, extent, outside, tables)


def _region(model: GraphModule, index: Node, keep: Callable[[Node], bool], trains: bool) -> list[Node]:
    region: dict[Node, None] = {}
    for node in model.graph.nodes:
        if node.op != "call_function" or not isinstance(node.meta.get("val"), Tensor) or is_in_place(node) or keep(node):
            continue
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
            continue
        inputs = node.all_input_nodes
        depends_only = all(arg is index or arg in region or _is_constant(model, arg, trains) for arg in inputs)
        if depends_only and any(arg is index or arg in region for arg in inputs):
            region[node] = None
    for node in reversed(list(region)):  # move rows after their selection, so that all readers share one table
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
    tables: list[tuple[Tensor, Node]],
) -> None:
    """Replace ``node`` in its readers with rows of a table, if ``node`` has one row for each element of the index."""
    # region: Nodes that depend only on the index and constants.
    # extent: Number of possible index values.
    # tables: Pairs of a table of this index and the node that selects its rows. Equal tables are shared.
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
    replacement = next((rows for values, rows in tables if shape_of(rows) == shape and torch.equal(values, table)), None)
    if replacement is None:
        s = AtenBuilder(model, node)
        flat = (
            index if shape_of(index) == (count,) else s(aten.reshape.default, index, [count])
        )  # reuse the index, which a CPU operator may read
        rows = s(aten.index_select.default, s.constant(table), 0, flat)
        others = list(range(1, len(shape)))
        if dim is None or count == 1:
            replacement = s(aten.reshape.default, rows, list(shape))
        else:
            replacement = s(aten.permute.default, rows, [*others[:dim], 0, *others[dim:]])
        tables.append((table, replacement))
    for reader in readers:
        reader.replace_input_with(node, replacement)


def _table(model: GraphModule, index: Node, node: Node, region: list[Node], extent: int, dim: int | None) -> Tensor | None:
    count, shape = index.meta["val"].numel(), index.meta["val"].shape

    def rows(numbers: Tensor) -> Tensor:
        output = _evaluate(model, index, node, region, numbers.reshape(shape).to(index.meta["val"].dtype))
        return output[None] if dim is None else output.movedim(dim, 0)

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
    values: dict[Node, Any] = {index: numbers}

    def operand(arg: Node) -> Any:
        return values[arg] if arg in values else tensor_of(model, arg)

    with torch.no_grad():
        for each in region:
            args, kwargs = torch.fx.map_arg((each.args, each.kwargs), operand)
            values[each] = each.target(*args, **kwargs)  # type: ignore[operator]
            if each is node:
                break
    output = values[node]
    assert isinstance(output, Tensor)
    return output
