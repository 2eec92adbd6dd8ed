"""Serialize graphs to .tosa flatbuffers with the ``tosa_serializer`` of tosa-tools."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ethorch.tosa.debug import event_of
from ethorch.tosa.ir import DTYPES, FLOATS, REGIONS, Graph, Op, Value
from ethorch.tosa.opset import OPSET

#: Version of the flatbuffer. Vela 5.1 and 5.2 read TOSA 1.0.
TOSA_VERSION = (1, 0, 0)


def serialize(graph: Graph, *, locations: bool = False) -> bytes:
    """Serialize a graph to a TOSA 1.0 flatbuffer, with constant operands as tensors.

    Args:
        locations: Whether to store the debug record of each operator as JSON in its location.
    """
    return _Writer(graph, locations).write()[0]


def serialize_with_positions(graph: Graph) -> tuple[bytes, list[int]]:
    """Return the flatbuffer, and each main-block operator's index in the serialized list, which includes CONSTs."""
    return _Writer(graph).write()


class _Writer:
    def __init__(self, graph: Graph, locations: bool = False):
        import tosa_serializer as ts

        self.ts = ts
        self.graph = graph
        major, minor, patch = TOSA_VERSION
        self.out = ts.TosaSerializer("", ts.ConstMode.EMBED, major, minor, patch, False)
        self.names: dict[int, str] = {}
        self.shared: dict[tuple[Any, ...], str] = {}
        self.count = 0
        self.constants = 0
        self.events: Iterator[int] | None = itertools.count() if locations else None

    def write(self) -> tuple[bytes, list[int]]:
        main, *regions = self.graph.regions()
        positions = self.block(main)
        for region in regions:
            self.out.startRegion(region.name)
            self.out.addBasicBlock(region.name)
            self.shared, self.names, self.count = {}, {}, 0
            self.block(region)
        return bytes(self.out.serialize()), positions

    def block(self, graph: Graph) -> list[int]:
        ts, out = self.ts, self.out
        for value in graph.inputs:
            out.addInputTensor(ts.TosaSerializerTensor(value.name, list(value.shape), self.dtype(value.dtype)))
            self.names[id(value)] = value.name
        positions = []
        block = out.currRegion.currBasicBlock
        for op in graph.ops:
            operands = [self.operand(value) for value in op.operands] + self.const_operands(op)
            for value in op.results:
                self.names[id(value)] = value.name
                block.addTensor(value.name, list(value.shape), self.dtype(value.dtype), None, "")
            results = [value.name for value in op.results]
            out.addOperator(getattr(ts.Op, op.name), operands, results, self.attribute(op), self.location(op))
            positions.append(self.count)
            self.count += 1
        for value in graph.outputs:
            assert id(value) in self.names, f"output {value} must come from an operator"
            block.addOutput(value.name)
        return positions

    def location(self, op: Op) -> Any:
        return None if self.events is None else self.ts.TosaOpLocation(json.dumps(event_of(op, next(self.events))))

    def dtype(self, name: str) -> Any:
        return getattr(self.ts.DType, name)

    def operand(self, value: Value) -> str:
        if not value.is_const:
            return self.names[id(value)]
        if id(value) not in self.names:
            self.names[id(value)] = self.constant(value.data, value.shape, value.dtype)
        return self.names[id(value)]

    def constant(self, data: Any, shape: tuple[int, ...], dtype: str) -> str:
        array = np.ascontiguousarray(data, dtype=np.int64 if dtype == "SHAPE" else DTYPES[dtype])
        key = (dtype, shape, array.tobytes())
        if key not in self.shared:
            name = f"const_{self.constants}"
            self.constants += 1
            self.out.addConst(list(shape), self.dtype(dtype), array if dtype != "SHAPE" else array.tolist(), name)
            self.shared[key] = name
            self.count += 1
        return self.shared[key]

    def const_operands(self, op: Op) -> list[str]:
        names = []
        for attr, kind in OPSET[op.name].const_operands.items():
            data = np.atleast_1d(np.asarray(op.attrs[attr]))
            if kind == "SHAPE":
                names.append(self.constant(data, (data.size,), "SHAPE"))
                continue
            if kind == "@out":
                dtype = op.result.dtype
            elif kind == "@scale":
                dtype = "INT16" if op.operands[0].dtype == "INT48" else "INT32"
            elif kind.startswith("@"):
                dtype = op.operands[int(kind[1:])].dtype
            else:
                dtype = kind
            if dtype == "INT8" and op.attrs.get({"input_zp": "input_unsigned", "output_zp": "output_unsigned"}.get(attr, "")):
                data = data.astype(np.uint8).view(np.int8)
            names.append(self.constant(data, data.shape, dtype))
        return names

    def attribute(self, op: Op) -> Any:
        attribute = self.ts.TosaSerializerAttribute()
        _attribute_writers()[op.name](attribute, op, self)
        return attribute


@functools.cache
def _attribute_writers() -> dict[str, Callable[[Any, Op, _Writer], None]]:
    import tosa_serializer as ts

    no_nans = ts.NanPropagationMode.PROPAGATE
    special = {
        "RESHAPE": "Reshape",
        "MATMUL": "MatMul",
        "REDUCE_ANY": "ReduceAny",
        "CLZ": "Clz",
        "INTDIV": "IntDiv",
        "CONV2D": "Conv2d",
        "DEPTHWISE_CONV2D": "DepthwiseConv2d",
        "CONV3D": "Conv3d",
    }

    def method(name: str) -> str:
        return (special.get(name) or "".join(part.capitalize() for part in name.split("_"))) + "Attribute"

    def plain(name: str) -> Callable[[Any, Op, _Writer], None]:
        def write(attribute: Any, op: Op, writer: _Writer) -> None:
            getattr(attribute, method(name))()

        return write

    def accumulator(op: Op, w: _Writer) -> Any:
        return w.dtype("FP32" if op.result.dtype in FLOATS else op.result.dtype)

    def conv(attribute: Any, op: Op, w: _Writer) -> None:
        a = op.attrs
        getattr(attribute, method(op.name))(list(a["pad"]), list(a["stride"]), list(a["dilation"]), False, accumulator(op, w))

    def transpose_conv(attribute: Any, op: Op, w: _Writer) -> None:
        a = op.attrs
        attribute.TransposeConv2dAttribute(list(a["out_pad"]), list(a["stride"]), False, accumulator(op, w))

    def avg_pool(attribute: Any, op: Op, w: _Writer) -> None:
        a = op.attrs
        acc = "FP32" if op.result.dtype in FLOATS else "INT32"
        attribute.AvgPool2dAttribute(list(a["kernel"]), list(a["stride"]), list(a["pad"]), w.dtype(acc))

    def max_pool(attribute: Any, op: Op, w: _Writer) -> None:
        a = op.attrs
        attribute.MaxPool2dAttribute(list(a["kernel"]), list(a["stride"]), list(a["pad"]), no_nans)

    def rescale(attribute: Any, op: Op, w: _Writer) -> None:
        a = op.attrs
        attribute.RescaleAttribute(
            op.operands[0].dtype != "INT48",
            ts.RoundingMode.SINGLE_ROUND,
            a["per_channel"],
            a["input_unsigned"],
            a["output_unsigned"],
        )

    def clamp(attribute: Any, op: Op, w: _Writer) -> None:
        dtype = DTYPES[op.result.dtype]
        low, high = (list(np.asarray([op.attrs[key]], dtype).tobytes()) for key in ("min_val", "max_val"))
        attribute.ClampAttribute(low, high, no_nans)

    def axis(attribute: Any, op: Op, w: _Writer) -> None:
        getattr(attribute, method(op.name))(op.attrs["axis"])

    def axis_nan(attribute: Any, op: Op, w: _Writer) -> None:
        name = "ArgMaxAttribute" if op.name == "ARGMAX" else method(op.name)
        getattr(attribute, name)(op.attrs["axis"], no_nans)

    def nan(attribute: Any, op: Op, w: _Writer) -> None:
        getattr(attribute, method(op.name))(no_nans)

    writers = {name: plain(name) for name in OPSET}
    writers |= dict.fromkeys(("CONV2D", "DEPTHWISE_CONV2D", "CONV3D"), conv)
    writers |= {"TRANSPOSE_CONV2D": transpose_conv, "AVG_POOL2D": avg_pool, "MAX_POOL2D": max_pool, "RESCALE": rescale}
    writers |= {"CLAMP": clamp, "MAXIMUM": nan, "MINIMUM": nan}
    writers |= dict.fromkeys(("REDUCE_SUM", "REDUCE_PRODUCT", "REDUCE_ALL", "REDUCE_ANY", "CONCAT", "REVERSE"), axis)
    writers |= dict.fromkeys(("REDUCE_MAX", "REDUCE_MIN", "ARGMAX"), axis_nan)
    writers["COND_IF"] = lambda attribute, op, w: attribute.CondIfAttribute(*(op.attrs[key].name for key in REGIONS[op.name]))
    writers["WHILE_LOOP"] = lambda attribute, op, w: attribute.WhileLoopAttribute(*(op.attrs[key].name for key in REGIONS[op.name]))
    writers["TRANSPOSE"] = lambda attribute, op, w: attribute.TransposeAttribute(list(op.attrs["perms"]))
    writers["ARITHMETIC_RIGHT_SHIFT"] = lambda attribute, op, w: attribute.ArithmeticRightShiftAttribute(op.attrs["round"])
    writers["RESIZE"] = lambda attribute, op, w: attribute.ResizeAttribute(getattr(ts.ResizeMode, op.attrs["mode"]))
    return writers
