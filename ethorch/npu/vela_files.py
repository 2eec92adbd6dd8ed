"""Run files written by Vela: raw .npz and .tflite. All operators of a .tflite must run on the NPU."""

# The inputs of an "ethos-u" operator in a .tflite are the command stream, constants (region 0), arena (region 1), staging memory
# (region 2), and the tensors of the graph. The metadata "OfflineMemoryAllocation" contains a version, a subgraph, a count, and for
# each tensor the arena offset or -1.

from __future__ import annotations

import math
import os
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ethorch.formats.flatbuffer import Buffer, Table
from ethorch.npu.arrays import Array, Dtype
from ethorch.npu.machine import Machine
from ethorch.npu.memory import MOST_REGION_BYTES, SCRATCH, SCRATCH_FAST
from ethorch.npu.program import Program
from ethorch.support.errors import FormatError
from ethorch.support.wording import count_noun

_INTEGERS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}  # by element size
_TYPES = {0: "float32", 2: "int32", 3: "uint8", 4: "int64", 6: "bool", 7: "int16", 9: "int8"}  # TFLite's TensorType
_OPERATOR, _ALLOCATION = "ethos-u", "OfflineMemoryAllocation"
_STREAM, _CONSTANTS, _ARENA, _FAST = range(4)  # operands of the operator


@dataclass(frozen=True)
class Tensor:
    """An input or output, stored in row-major order at ``offset`` in ``region``."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    region: int
    offset: int

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class VelaFile:
    """The contents of a file written by Vela.

    Attributes:
        programs: Command streams in execution order. They share one arena.
        region_bytes: Size of each region to allocate, keyed by region number.
    """

    programs: tuple[Program, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    region_bytes: dict[int, int]

    def run(self, inputs: Sequence[Array], **options: Any) -> list[Array]:
        """Run the command streams and return the outputs. See :func:`run_vela` for ``options`` and errors."""
        if len(inputs) != len(self.inputs):
            raise FormatError(f"expected {count_noun(len(self.inputs), 'input')}, got {len(inputs)}.")
        regions = {number: np.zeros(size, np.uint8) for number, size in self.region_bytes.items()}
        machines = [Machine(program, regions=regions, **options) for program in self.programs]
        for tensor, array in zip(self.inputs, inputs, strict=True):
            data = np.ascontiguousarray(array)
            is_equal = [n for n in data.shape if n != 1] == [n for n in tensor.shape if n != 1] or data.ndim == 1
            if not is_equal or data.nbytes != tensor.size_bytes or data.dtype.itemsize != tensor.dtype.itemsize:
                raise FormatError(
                    f"input {tensor.name}: expected {tensor.dtype}{list(tensor.shape)}, got {data.dtype}{list(data.shape)}."
                )
            regions[tensor.region][tensor.offset : tensor.offset + data.nbytes] = data.view(np.uint8).ravel()
            for machine in machines:
                machine.mark_written(tensor.region, tensor.offset, data.nbytes)
        for machine in machines:
            machine.run()
        return [regions[t.region][t.offset : t.offset + t.size_bytes].view(t.dtype).reshape(t.shape).copy() for t in self.outputs]


def run_vela(path: str | os.PathLike[str], inputs: Sequence[Array], **options: Any) -> list[Array]:
    """Run a .npz (``vela --output-format raw``) or .tflite written by Vela.

    Args:
        options: Keyword arguments of :class:`Machine`.

    Raises:
        FormatError: The file is not supported, or the inputs do not match it.
        MachineFault: The simulation fails.
    """
    return read_vela(path).run(inputs, **options)


def read_vela(path: str | os.PathLike[str]) -> VelaFile:
    """Read a .npz or .tflite written by Vela. Raise FormatError if the file is not supported."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise FormatError(f"cannot read {os.fspath(path)}: {error.strerror}.") from None
    file = _read_tflite(data) if data[4:8] == b"TFL3" else _read_npz(path)
    for tensor in (*file.inputs, *file.outputs):
        size = file.region_bytes.get(tensor.region)
        if size is None or tensor.offset < 0 or min(tensor.shape, default=1) < 1 or tensor.offset + tensor.size_bytes > size:
            raise FormatError(
                f"tensor {tensor.name}: shape {list(tensor.shape)} at byte {tensor.offset} exceeds region {tensor.region}, "
                f"which has {size or 0} bytes."
            )
    if any(not 0 <= size <= MOST_REGION_BYTES for size in file.region_bytes.values()):
        raise FormatError(
            f"expected regions of at most {MOST_REGION_BYTES} bytes, got these sizes, keyed by region: {file.region_bytes}."
        )
    return file


# Vela's .npz ----------------------------------------------------------------------------------------------------------


def _read_npz(path: str | os.PathLike[str]) -> VelaFile:
    try:
        with np.load(path, allow_pickle=False) as file:
            # Quantization entries are pickles, which are not read.
            names = [name for name in file.files if not name.endswith("_quantization")]
            arrays = {name: file[name] for name in names}
        inputs, outputs = (_npz_tensors(arrays, kind) for kind in ("input", "output"))
        sizes = {SCRATCH: int(arrays["scratch_size"])}
        if int(arrays["scratch_fast_region"]) == SCRATCH_FAST:
            sizes[SCRATCH_FAST] = int(arrays["scratch_fast_size"])
        stream, constants = arrays["cmd_data"].tobytes(), arrays["weight_data"].tobytes()
    except (OSError, ValueError, TypeError, LookupError, ArithmeticError, EOFError, MemoryError, SyntaxError) as error:
        raise FormatError(f"{os.fspath(path)} is neither a .npz nor a .tflite from Vela: {error}.") from None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, struct.error) as error:  # from the .zip
        raise FormatError(f"{os.fspath(path)} is neither a .npz nor a .tflite from Vela: {error}.") from None
    for tensor in (*inputs, *outputs):
        if tensor.region > SCRATCH_FAST:  # separate regions for inputs and outputs
            sizes[tensor.region] = max(sizes.get(tensor.region, 0), -(-(tensor.offset + tensor.size_bytes) // 16) * 16)
    program = Program(stream, np.frombuffer(constants, np.uint8))
    return VelaFile((program,), inputs, outputs, {n: size for n, size in sizes.items() if size})


def _npz_tensors(arrays: dict[str, Array], kind: str) -> tuple[Tensor, ...]:
    columns = (arrays[f"{kind}_{column}"] for column in ("shape", "elem_size", "region", "offset"))
    tensors = []
    for number, (shape, size, region, offset) in enumerate(zip(*columns, strict=True)):
        dtype = np.dtype(_INTEGERS[int(size)])
        tensors.append(Tensor(f"{kind} {number}", tuple(map(int, shape)), dtype, int(region), int(offset)))
    return tuple(tensors)


# Vela's .tflite -------------------------------------------------------------------------------------------------------


class _Tflite(Buffer):
    def error(self, what: str, problem: str) -> FormatError:
        return FormatError(f"the .tflite file is damaged: {what} {problem}.")


class _Model:
    def __init__(self, file: bytes):
        reader = _Tflite(memoryview(file), 10_000_000)
        root = Table(reader, reader.number("<I", 0, "model"), "model")
        self.reader = reader
        self.operator_names = [
            code.text(1, "custom code") if code.has(1) else f"builtin {max(code.number(0, '<b'), code.number(3, '<i'))}"
            for code in root.tables(1, "operator codes")
        ]
        self.buffers = list(root.tables(4, "buffers"))
        self.graph = next(root.tables(2, "subgraphs"), None)
        if self.graph is None:
            raise FormatError("the .tflite file does not contain a graph.")
        self.tensors = list(self.graph.tables(0, "tensors"))
        self.offsets: tuple[int, ...] = ()
        for entry in root.tables(6, "metadata", optional=True):
            if entry.text(0, "metadata name") == _ALLOCATION:
                data = self.buffer(entry.number(1, "<I"))
                words = np.frombuffer(data, "<i4", len(data) // 4)
                self.offsets = tuple(words[3:].tolist())

    def buffer(self, number: int) -> bytes:
        if not 0 <= number < len(self.buffers):
            raise FormatError(f"the .tflite file has no buffer {number}.")
        return self.buffers[number].blob(0, "buffer") if self.buffers[number].has(0) else b""

    def tensor(self, number: int) -> Table:
        if not 0 <= number < len(self.tensors):
            raise FormatError(f"the .tflite file has no tensor {number}.")
        return self.tensors[number]

    def shape(self, number: int) -> tuple[int, ...]:
        tensor = self.tensor(number)
        return tensor.numbers(0, "i", "shape") if tensor.has(0) else ()

    def data(self, number: int) -> bytes:
        return self.buffer(self.tensor(number).number(2, "<I"))

    def place(self, number: int, base: int) -> Tensor:
        tensor = self.tensor(number)
        name = tensor.text(3, "tensor name") if tensor.has(3) else str(number)
        kind = tensor.number(1, "<b")
        if kind not in _TYPES:
            raise FormatError(f"tensor {name} has TFLite type {kind}; expected one of {sorted(_TYPES)}.")
        if number >= len(self.offsets) or self.offsets[number] < 0:
            raise FormatError(f"tensor {name} is not stored in the arena. Compile a model in which all operators run on the NPU.")
        return Tensor(name, self.shape(number), np.dtype(_TYPES[kind]), SCRATCH, self.offsets[number] - base)


def _read_tflite(data: bytes) -> VelaFile:
    model = _Model(data)
    assert model.graph is not None
    programs, sizes, base = [], {SCRATCH: 0}, 0
    for operator in model.graph.tables(3, "operators"):
        index = operator.number(0, "<I")
        name = model.operator_names[index] if index < len(model.operator_names) else str(index)
        if name != _OPERATOR:
            raise FormatError(f"operator {name} is not on the NPU. Use a file in which all operators run on the NPU.")
        operands = operator.numbers(1, "i", "operands")
        if len(operands) <= _FAST:
            raise FormatError(f"operator {name}: expected at least {_FAST + 1} operands, got {len(operands)}.")
        constants = np.frombuffer(model.data(operands[_CONSTANTS]), np.uint8)
        programs.append(Program(model.data(operands[_STREAM]), constants))
        arena, fast = operands[_ARENA], operands[_FAST]
        sizes[SCRATCH] = max(sizes[SCRATCH], math.prod(model.shape(arena)))
        if arena < len(model.offsets):
            base = max(model.offsets[arena], 0)
        if fast != arena:
            sizes[SCRATCH_FAST] = max(sizes.get(SCRATCH_FAST, 0), math.prod(model.shape(fast)))
    if not programs:
        raise FormatError("the .tflite file does not contain an Ethos-U operator. Compile the file with Vela first.")
    inputs, outputs = (
        tuple(model.place(number, base) for number in model.graph.numbers(field, "i", what))
        for field, what in ((1, "graph inputs"), (2, "graph outputs"))
    )
    for tensor in (*inputs, *outputs):  # an arena tensor may be declared smaller than its contents
        sizes[SCRATCH] = max(sizes[SCRATCH], tensor.offset + tensor.size_bytes)
    return VelaFile(tuple(programs), inputs, outputs, {n: size for n, size in sizes.items() if size})
