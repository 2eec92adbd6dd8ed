"""Write TFLite models, for operators and roundings that TOSA graphs never use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np

BUILTIN = "ethosu.vela.tflite.BuiltinOperator"
TYPES = {"float32": 0, "int32": 2, "uint8": 3, "int64": 4, "int16": 7, "int8": 9}  # TensorType


@dataclass
class T:
    """A tensor, quantized per tensor or, with several scales, per channel of ``axis``; constant with ``data``."""

    shape: Sequence[int]
    dtype: str = "int8"
    scale: float | Sequence[float] = 0.02
    zero_point: int = 0
    data: np.ndarray | None = None
    axis: int = 0


@dataclass
class O:  # noqa: E742
    """An operator: builtin name, tensor numbers, and options by schema name."""

    name: str
    inputs: Sequence[int]
    outputs: Sequence[int]
    options: str = ""
    values: dict[str, Any] = field(default_factory=dict)


def _class(name: str):
    return importlib.import_module(f"ethosu.vela.tflite.{name}")


def write(tensors: Sequence[T], operators: Sequence[O], inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
    """Return a .tflite."""
    b = flatbuffers.Builder(1024)

    def vector(start: Callable, values: Sequence[Any], prepend: Callable) -> int:
        start(b, len(values))
        for v in reversed(values):
            prepend(v)
        return b.EndVector()

    def integers(start: Callable, values: Sequence[int]) -> int:
        return vector(start, list(values), b.PrependInt32)

    def offsets(start: Callable, values: Sequence[int]) -> int:
        return vector(start, list(values), b.PrependUOffsetTRelative)

    def table(name: str, **fields) -> int:
        module = _class(name)
        module.Start(b)
        for key, value in fields.items():
            getattr(module, f"Add{key}")(b, value)
        return module.End(b)

    buffers: list[int] = [table("Buffer")]

    def tensor(number: int, t: T) -> int:
        quantization = _class("QuantizationParameters")
        scales = list(np.atleast_1d(t.scale).astype(float))
        q = table(
            "QuantizationParameters",
            Scale=vector(quantization.StartScaleVector, scales, b.PrependFloat32),
            ZeroPoint=vector(quantization.StartZeroPointVector, [t.zero_point] * len(scales), b.PrependInt64),
            QuantizedDimension=t.axis,
        )
        text, dims = b.CreateString(f"t{number}"), integers(_class("Tensor").StartShapeVector, t.shape)
        buffer = 0
        if t.data is not None:
            buffer = len(buffers)
            data = b.CreateNumpyVector(np.frombuffer(np.ascontiguousarray(t.data.astype(t.dtype)).tobytes(), np.uint8))
            buffers.append(table("Buffer", Data=data))
        return table("Tensor", Shape=dims, Type=TYPES[t.dtype], Buffer=buffer, Name=text, Quantization=q)

    subgraph, model, op = _class("SubGraph"), _class("Model"), _class("Operator")
    codes = importlib.import_module(BUILTIN).BuiltinOperator
    kinds = _class("BuiltinOptions").BuiltinOptions
    names = sorted({o.name for o in operators})

    def operator(o: O) -> int:
        fields = {
            "Inputs": integers(op.StartInputsVector, o.inputs),
            "Outputs": integers(op.StartOutputsVector, o.outputs),
        }
        if o.options:
            values = {}
            for key, value in o.values.items():
                start = getattr(_class(o.options), f"Start{key}Vector", None)
                values[key] = integers(start, value) if start else value
            fields |= {"BuiltinOptions": table(o.options, **values), "BuiltinOptionsType": getattr(kinds, o.options)}
        return table("Operator", OpcodeIndex=names.index(o.name), **fields)

    def code(name: str) -> int:
        number = getattr(codes, name)
        return table("OperatorCode", DeprecatedBuiltinCode=min(number, 127), Version=1, BuiltinCode=number)

    tensor_vector = offsets(subgraph.StartTensorsVector, [tensor(i, t) for i, t in enumerate(tensors)])
    operator_vector = offsets(subgraph.StartOperatorsVector, [operator(o) for o in operators])
    ends = {
        "Inputs": integers(subgraph.StartInputsVector, inputs),
        "Outputs": integers(subgraph.StartOutputsVector, outputs),
    }
    graphs = [table("SubGraph", Tensors=tensor_vector, **ends, Operators=operator_vector, Name=b.CreateString("main"))]
    result = table(
        "Model",
        Version=3,
        OperatorCodes=offsets(model.StartOperatorCodesVector, [code(n) for n in names]),
        Subgraphs=offsets(model.StartSubgraphsVector, graphs),
        Description=b.CreateString(""),
        Buffers=offsets(model.StartBuffersVector, buffers),
    )
    b.Finish(result, b"TFL3")
    return bytes(b.Output())


def unary_model(name: str, scale_in: float, scale_out: float, shape: Sequence[int], alpha: float | None = None) -> bytes:
    """Return a model of one operator with int16 input and output; ``alpha`` is for LEAKY_RELU."""
    options = {} if alpha is None else {"options": "LeakyReluOptions", "values": {"Alpha": alpha}}
    return write([T(shape, "int16", scale_in), T(shape, "int16", scale_out)], [O(name, [0], [1], **options)], [0], [1])
