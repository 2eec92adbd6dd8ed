"""Detours around what Vela 5.1 and 5.2 compile to streams that compute something else. Each preserves every bit."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ethorch.tosa.ir import Graph, Op, Value
from ethorch.tosa.uses import Context, drop_dead


def take_detours(graph: Graph, forms: Mapping[str, str], is_region: bool) -> None:
    """All that concern operators as Vela gets them; the rest, ``fold_wide_moves`` and ``tables_before_transposes``, comes first.

    Args:
        forms: the target's row of ``limits.FORMS``.
        is_region: the graph belongs to control flow.
    """
    keep_apart(graph, lone_rescales=forms.get("placing") == "apart")
    selects_of_reshaped(graph)
    squares_of_reshaped(graph)
    copies_of_read_truths(graph)
    if forms.get("carried") == "copied":
        loops_on_copies(graph, is_region)


def fold_wide_moves(graph: Graph) -> None:
    """CONCAT and SLICE of more than four axes become ones of at most four, neighbours joined.

    Vela 5.2 reads the wrong rows where SLICE, RESHAPE and such a CONCAT follow each other. Vela 5.1 and 5.2 die of such a
    SLICE, RESHAPE and any CONCAT on U55 and U65.
    """
    ops: list[Op] = []
    for op in graph.ops:
        if op.name == "CONCAT" and op.result.rank > 4:
            ops += _folded_concat(op)
        elif op.name == "SLICE" and op.result.rank > 4:
            ops += _folded_slice(op)
        else:
            ops.append(op)
    graph.ops = ops


def _folded_concat(op: Op) -> list[Op]:
    axis, result = op.attrs["axis"], op.result

    def folded(shape: tuple[int, ...]) -> tuple[int, ...]:
        behind = (*shape[axis + 1 :], 1, 1)[:2] if len(shape) <= axis + 3 else (math.prod(shape[axis + 1 : -1]), shape[-1])
        return (math.prod(shape[:axis]), shape[axis], *behind)

    ops: list[Op] = []
    parts: list[Value] = []
    for number, part in enumerate(op.operands):
        parts.append(Value(f"{result.name}_part_{number}", folded(part.shape), part.dtype, result.origin))
        ops.append(Op("RESHAPE", (part,), {"shape": parts[-1].shape}, (parts[-1],)))
    joined = Value(f"{result.name}_folded", folded(result.shape), result.dtype, result.origin)
    return [*ops, Op("CONCAT", tuple(parts), {"axis": 1}, (joined,)), Op("RESHAPE", (joined,), {"shape": result.shape}, (result,))]


def _folded_slice(op: Op) -> list[Op]:
    """One SLICE after the other, each of one axis between all before and all behind it."""
    value, result = op.operands[0], op.result
    ops: list[Op] = []
    for axis, (start, size) in enumerate(zip(op.attrs["start"], op.attrs["size"], strict=True)):
        before, shape = value, value.shape
        if size == shape[axis]:
            continue
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        whole = Value(f"{result.name}_whole_{axis}", (outer, shape[axis], inner), value.dtype, result.origin)
        part = Value(f"{result.name}_part_{axis}", (outer, size, inner), value.dtype, result.origin)
        value = Value(f"{result.name}_{axis}", (*shape[:axis], size, *shape[axis + 1 :]), value.dtype, result.origin)
        ops += [
            Op("RESHAPE", (before,), {"shape": whole.shape}, (whole,)),
            Op("SLICE", (whole,), {"start": (0, start, 0), "size": part.shape}, (part,)),
            Op("RESHAPE", (part,), {"shape": value.shape}, (value,)),
        ]
    if not ops:
        return [op]
    return [*ops[:-1], Op("RESHAPE", ops[-1].operands, {"shape": result.shape}, (result,))]


def tables_before_transposes(graph: Graph) -> None:
    """TABLE of a TRANSPOSE becomes a TRANSPOSE of the TABLE, int8: it can join what is before it, another table for one.

    Vela 5.1 and 5.2 lose the second TABLE of TABLE, TRANSPOSE, TABLE, TRANSPOSE on U85.
    """
    context = Context(graph)
    ops: list[Op] = []
    for op in graph.ops:
        moves: list[Op] = []
        if op.name == "TABLE" and op.operands[0].dtype == op.result.dtype == "INT8":
            source = op.operands[0]
            while move := context.before(source, "TRANSPOSE") or context.before(source, "RESHAPE"):
                moves.append(move)
                source = move.operands[0]
        if not any(move.name == "TRANSPOSE" for move in moves):
            ops.append(op)
            continue
        value = Value(f"{op.result.name}_unmoved", source.shape, "INT8", op.result.origin)
        ops.append(Op("TABLE", (source, op.operands[1]), op.attrs, (value,)))
        context.producer[id(value)] = ops[-1]
        context.uses[id(value)] = 1
        for number, move in enumerate(reversed(moves)):
            last = number == len(moves) - 1
            name = f"{op.result.name}_moved_{number}"
            result = op.result if last else Value(name, move.result.shape, "INT8", op.result.origin)
            ops.append(Op(move.name, (value,), dict(move.attrs), (result,)))
            context.producer[id(result)] = ops[-1]
            context.uses.setdefault(id(result), 1)
            value = result
    graph.ops = ops
    drop_dead(graph)


ELEMENTWISE = {"ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM"}


def takes_rescales(op: Op, context: Context) -> bool:
    """Does Vela make the RESCALEs to INT32 that ``op`` reads part of it? An elementwise one's, if both are from INT8 or INT16."""
    wide = [context.producer.get(id(value)) for value in op.operands]
    dtypes = {before.operands[0].dtype if before and before.name == "RESCALE" else "" for before in wide}
    return op.name == "REDUCE_SUM" or (op.name in ELEMENTWISE and dtypes in ({"INT8"}, {"INT16"}))


#: What makes the INT32 of which Vela makes the RESCALE behind it a part.
_ACCUMULATING = {"CONV2D", "DEPTHWISE_CONV2D", "TRANSPOSE_CONV2D", "CONV3D", "MATMUL", "REDUCE_SUM"}


def _split(op: Op) -> bool:
    """A convolution that Vela makes several operations of."""
    several = op.name == "DEPTHWISE_CONV2D" and op.operands[1].shape[3] > 1
    dilated = op.name in ("CONV2D", "DEPTHWISE_CONV2D") and max(op.attrs["dilation"]) > 2
    return op.name == "TRANSPOSE_CONV2D" or several or dilated


_WINDOWS = ("CONV2D", "DEPTHWISE_CONV2D", "MAX_POOL2D", "AVG_POOL2D")


def _forgets_offsets(op: Op) -> bool:
    """A padded window over several pictures, a maximum along an axis: either loses the offset of the SLICE that it reads."""
    padded = op.name in _WINDOWS and any(op.attrs["pad"]) and op.operands[0].shape[0] > 1
    return padded or op.name == "REDUCE_MAX"


def keep_apart(graph: Graph, lone_rescales: bool) -> None:
    """Copies around SLICE, CONCAT and PAD where Vela 5.2 loses their offsets, because of what is next to them.

    - A convolution of a SLICE that Vela makes several operations of reads from the beginning of the whole; so does a TILE of
      five axes, and of six anything that broadcasts; so do a REDUCE_MAX, a
      REDUCE_SUM along the last axis, and a window with padding over several pictures.
    - A REDUCE_MAX along the last axis that is placed by a CONCAT or PAD is written over what is there.
    - A depthwise one with several outputs per channel that is placed by a CONCAT or PAD is an error of Vela's; a transposed one,
      on U55 and U65, is written over what is there.
    - On U55 and U65 a RESCALE from or to INT32 that is part of no other operator becomes a multiplication, which knows no
      offsets: in ``cat([x, y * constant])`` the second part lies over the first. Of a TILE it computes the first copy only.
    - There, a MATMUL of a SLICE reads from the beginning; rescaled, reshaped and placed, it is written over what is there.
    - A RESCALE of a CONCAT, PAD or TILE that is placed by another is written over what is there, as ``cat([cat([x, y]), z])``
      may be; on U55 and U65 so is a CLAMP of a TRANSPOSE.

    Args:
        lone_rescales: the target is U55 or U65.
    """
    context, users = Context(graph), graph.users()

    def lone(op: Op) -> bool:
        if not lone_rescales or op.name != "RESCALE" or "INT32" not in (op.operands[0].dtype, op.result.dtype):
            return False
        if op.result.dtype == "INT32":
            readers = users.get(id(op.result), [])
            return len(readers) != 1 or not takes_rescales(readers[0], context)
        before = context.producer.get(id(op.operands[0]))
        return before is None or not (before.name in _ACCUMULATING or takes_rescales(before, context))

    def misplaced(op: Op) -> bool:
        source = op.operands[0] if op.operands else op.result
        before = context.producer.get(id(source))
        if op.name == "RESCALE" and before is not None and before.name == "DEPTHWISE_CONV2D" and before.operands[1].shape[3] > 1:
            return placed(op.result)
        if op.name == "RESCALE" and not lone(op) and op.operands[0].dtype != "INT32" and reads(source, "CONCAT", "PAD", "TILE"):
            return placed(op.result)
        if op.name == "REDUCE_MAX":
            return placed(op.result)
        if not lone_rescales:
            return False
        if op.name == "CLAMP" and reads(source, "TRANSPOSE"):
            return placed(op.result)
        if op.name != "RESCALE" or before is None or before.name not in ("TRANSPOSE_CONV2D", "MATMUL"):
            return lone(op) and placed(op.result)
        return placed(op.result, directly=before.name == "TRANSPOSE_CONV2D")

    def summed(op: Op) -> bool:
        readers = users.get(id(op.result), []) if op.name == "RESCALE" else [op]
        return any(reader.name == "REDUCE_SUM" and reader.attrs["axis"] == reader.result.rank - 1 for reader in readers)

    def misread(op: Op) -> bool:
        if summed(op) and reads(op.operands[0], "SLICE"):
            return True
        if lone(op):
            return reads(op.operands[0], "SLICE", "CONCAT", "PAD", "TILE")
        many = (op.name == "TILE" and op.result.rank > 4) or (op.name == "RESCALE" and op.result.rank > 5)
        several = many or _split(op) or _forgets_offsets(op) or (lone_rescales and op.name == "MATMUL")
        return several and reads(op.operands[0], "SLICE")

    def reads(value: Value, *names: str) -> bool:
        while (op := context.producer.get(id(value))) and op.name == "RESHAPE":
            value = op.operands[0]
        return op is not None and op.name in names

    def placed(value: Value, directly: bool = True) -> bool:
        return any(
            (reader.name in ("CONCAT", "PAD") and directly) or (reader.name == "RESHAPE" and placed(reader.result))
            for reader in users.get(id(value), [])
        )

    ops: list[Op] = []
    for op in graph.ops:
        operands = list(op.operands)
        if misread(op):
            made, operands[0] = copied(operands[0], f"{op.result.name}_source")
            ops += made
        ops.append(Op(op.name, tuple(operands), op.attrs, op.results))
        if misplaced(op):
            result = Value(f"{op.result.name}_apart", op.result.shape, op.result.dtype, op.result.origin)
            ops[-1].results = (result,)
            made, _ = copied(result, op.result.name)
            made[-1].results = (op.result,)
            ops += made
    graph.ops = ops


def selects_of_reshaped(graph: Graph) -> None:
    """A SELECT reads a copy of what a RESHAPE reads, too: Vela 5.2 takes some of its steps in the RESHAPE's shape."""
    users = graph.users()
    ops: list[Op] = []
    for op in graph.ops:
        operands = list(op.operands)
        for index, value in enumerate(operands if op.name == "SELECT" else ()):
            if any(reader.name == "RESHAPE" for reader in users[id(value)]) and not value.is_const:
                made, operands[index] = copied(value, f"{op.result.name}_of_{index}")
                ops += made
        ops.append(Op(op.name, tuple(operands), op.attrs, op.results))
    graph.ops = ops


def squares_of_reshaped(graph: Graph) -> None:
    """``x * x`` of a RESHAPE has a RESHAPE for each operand: of a RESCALE that is reshaped, Vela 5.2 gives only one its shape."""
    context = Context(graph)
    ops: list[Op] = []
    for op in graph.ops:
        if op.name in ELEMENTWISE:
            wide = [context.before(value, "RESCALE", sole=False) for value in op.operands]
            first, second = (rescale.operands[0] if rescale else value for value, rescale in zip(op.operands, wide, strict=True))
            reshape = context.before(second, "RESHAPE", sole=False)
            if first is second and reshape is not None:
                again = Value(f"{op.result.name}_again", second.shape, second.dtype, second.origin)
                ops.append(Op("RESHAPE", reshape.operands, reshape.attrs, (again,)))
                if wide[1] is not None:
                    other = Value(f"{op.result.name}_other", second.shape, wide[1].result.dtype, second.origin)
                    ops.append(Op("RESCALE", (again,), wide[1].attrs, (other,)))
                    again = other
                op = Op(op.name, (op.operands[0], again), op.attrs, op.results)
        ops.append(op)
    graph.ops = ops
    drop_dead(graph)


def loops_on_copies(graph: Graph, is_region: bool) -> None:
    """A WHILE_LOOP gets copies of what is read elsewhere too: Vela 5.2 computes the rounds in the operand's own memory.

    Args:
        is_region: an input is the same memory as what the region was given, which may be read behind it.
    """
    context = Context(graph)
    ops: list[Op] = []
    for op in graph.ops:
        operands = list(op.operands)
        for index, value in enumerate(operands):
            shared = context.uses.get(id(value), 0) > 1 or (is_region and value in graph.inputs)
            if op.name == "WHILE_LOOP" and not value.is_const and shared:
                made, operands[index] = copied(value, f"{op.results[index].name}_start")
                ops += made
        ops.append(Op(op.name, tuple(operands), op.attrs, op.results))
    graph.ops = ops


def copied(value: Value, name: str) -> tuple[list[Op], Value]:
    """Operators that copy ``value`` and that Vela leaves where they are, and the copy."""
    result = Value(name, value.shape, value.dtype, value.origin)
    if value.dtype == "INT32":
        zero = Value(f"{name}_zero", (1,) * value.rank, "INT32", value.origin, np.zeros((1,) * value.rank, np.int32))
        return [Op("ADD", (value, zero), {}, (result,))], result
    if value.dtype == "BOOL":
        false = Value(f"{name}_false", (1,) * value.rank, "BOOL", value.origin, np.zeros((1,) * value.rank, np.bool_))
        return [Op("LOGICAL_OR", (value, false), {}, (result,))], result
    shape = _as_map(value.shape)
    flat, pooled = (Value(f"{name}_{part}", shape, value.dtype, value.origin) for part in ("flat", "pooled"))
    return [
        Op("RESHAPE", (value,), {"shape": shape}, (flat,)),
        Op("MAX_POOL2D", (flat,), {"kernel": (1, 1), "stride": (1, 1), "pad": (0, 0, 0, 0)}, (pooled,)),
        Op("RESHAPE", (pooled,), {"shape": value.shape}, (result,)),
    ], result


def _as_map(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """A shape of one picture for as many elements; no axis is longer than the 65536 an NPU has for it, where they divide so."""
    height, width, channels = math.prod(shape[:-2]), *(1, 1, *shape)[-2:]
    if max(height, width, channels) > 65536:
        channels = _divisor(math.prod(shape))
        width = _divisor(math.prod(shape) // channels)
        height = math.prod(shape) // channels // width
    return 1, height, width, channels


def _divisor(count: int) -> int:
    """The largest divisor of ``count`` that is at most 65536."""
    return next(k for k in range(min(count, 65536), 0, -1) if count % k == 0)


def copies_of_read_truths(graph: Graph) -> None:
    """A BOOL output that an operator reads, too, perhaps before a RESHAPE, becomes a copy of what that operator reads.

    Vela 5.2 keeps truths as 0 and -1 on U85 and makes outputs 0 and 1; what reads an output then combines the two.
    """
    context, users, outputs = Context(graph), graph.users(), {id(value) for value in graph.outputs}

    def is_read(value: Value) -> bool:
        shared = bool(users.get(id(value)))
        while reshape := context.before(value, "RESHAPE", sole=False):
            value = reshape.operands[0]
            shared |= len(users[id(value)]) > 1 or id(value) in outputs
        return shared

    logical = any(op.name in _OF_TRUTHS for op in graph.ops)
    read = {id(value) for value in graph.outputs if logical and value.dtype == "BOOL" and is_read(value)}
    inside: dict[int, Value] = {}
    ops: list[Op] = []
    for op in graph.ops:
        op.operands = tuple(inside.get(id(value), value) for value in op.operands)
        ops.append(op)
        if id(op.results[0]) in read:
            result = op.result
            inner = inside[id(result)] = Value(f"{result.name}_inside", result.shape, "BOOL", result.origin)
            op.results = (inner,)
            ops.append(Op("LOGICAL_AND", (inner, inner), {}, (result,)))
    graph.ops = ops


_OF_TRUTHS = {"EQUAL", "GREATER", "GREATER_EQUAL", "LOGICAL_AND", "LOGICAL_OR", "LOGICAL_XOR", "LOGICAL_NOT", "SELECT"}
