"""Delegate payloads, the blobs of a .pte that Ethos-U firmware reads.

The bytes are identical to those of ``executorch.backends.arm`` 1.4 and 1.5. ``runtime/cpp/payload.cpp`` mirrors this file.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import prod

from ethorch.support.errors import PayloadError

# A payload is a sequence of little-endian blocks. A block has a name (16 bytes, zero padded), the length of the data (int32), an
# external flag (1 byte, then 11 zero bytes), and the data, padded to a multiple of 16 bytes.
#
# The first block is ``vela_bin_stream`` and the last is ``vela_end_stream``, both empty. Between them are ``cmd_data``,
# ``weight_data``, ``scratch_size`` (uint32), ``inputs`` and ``outputs``. The last two contain a count and nine int32 per tensor,
# namely the shape (6, left-padded with ones), element size, byte offset and region. An external block contains a 64-character
# key, under which the program stores the data.

ALIGNMENT = 16
RANK = 6
WEIGHTS = "weight_data"
BACKEND_ID = "EthosUBackend"  # id of the delegate in a .pte
SCRATCH_REGION = 1
ELEMENT_SIZES = (1, 2, 4, 8)  # int8 and bool, int16, int32, int48 stored in 8 bytes
MAX_BYTES = 2**31 - 1  # the length of a block is an int32

_BEGIN, _END = "vela_bin_stream", "vela_end_stream"
_BLOCKS = ("cmd_data", "weight_data", "scratch_size", "inputs", "outputs")
_HEADER = struct.Struct("<16siB11s")
_EXTERNAL = 1
_KEY_BYTES = 64
_TENSOR = struct.Struct("<9i")
_MAGICS = (b"COP1", b"COP2")  # driver payload headers, npu-reference 1.2


@dataclass(frozen=True)
class IoTensor:
    """The location of an input or output of a delegate.

    Attributes:
        shape: Six sizes in the axis order of the TOSA graph, left-padded with ones. Elements are stored in row-major order.
        element_size: Bytes per element.
        offset: Byte offset from the start of the region.
    """

    shape: tuple[int, ...]
    element_size: int
    offset: int
    region: int = SCRATCH_REGION

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.element_size


@dataclass(frozen=True)
class DelegatePayload:
    """The contents of a delegate. The constructor raises PayloadError if a field is invalid.

    Attributes:
        commands: Vela's command stream with its COP1 (or COP2) header.
        weights: Region 0, i.e. weights, scales, tables and constants.
        scratch_bytes: Size of region 1, which contains feature maps, inputs and outputs.
        inputs, outputs: Tensors in the order of the delegate's arguments.
    """

    commands: bytes = field(repr=False)
    weights: bytes = field(repr=False)
    scratch_bytes: int
    inputs: tuple[IoTensor, ...]
    outputs: tuple[IoTensor, ...]

    def __post_init__(self) -> None:
        if self.commands[:4] not in _MAGICS:
            raise PayloadError(f"cmd_data starts with {bytes(self.commands[:4])!r}; expected COP1 or COP2.")
        if len(self.commands) % 4:
            raise PayloadError(f"cmd_data has {len(self.commands)} bytes; expected a multiple of 4.")
        for name, data in (("cmd_data", self.commands), ("weight_data", self.weights)):
            if len(data) > MAX_BYTES:
                raise PayloadError(f"{name} has {len(data)} bytes; expected at most {MAX_BYTES}.")
        if not 0 <= self.scratch_bytes < 2**32:
            raise PayloadError(f"scratch_size is {self.scratch_bytes}; expected 0 to {2**32 - 1} bytes.")
        for kind, tensors in (("input", self.inputs), ("output", self.outputs)):
            for index, tensor in enumerate(tensors):
                self._check_tensor(f"{kind} {index}", tensor)

    def _check_tensor(self, what: str, tensor: IoTensor) -> None:
        if len(tensor.shape) != RANK or any(not 1 <= size < 2**31 for size in tensor.shape):
            raise PayloadError(f"{what} has shape {list(tensor.shape)}; expected {RANK} sizes from 1 to {MAX_BYTES}.")
        if tensor.element_size not in ELEMENT_SIZES:
            raise PayloadError(f"{what} has element size {tensor.element_size}; expected one of {ELEMENT_SIZES} bytes.")
        if tensor.region != SCRATCH_REGION:
            raise PayloadError(
                f"{what} is in region {tensor.region}; firmware supports inputs and outputs only in region {SCRATCH_REGION}."
            )
        if not 0 <= tensor.offset < 2**31 or tensor.offset + tensor.nbytes > self.scratch_bytes:
            raise PayloadError(
                f"{what} has {tensor.nbytes} bytes at offset {tensor.offset}, outside the scratch region of "
                f"{self.scratch_bytes} bytes."
            )

    def pack(self, external: Collection[str] = ()) -> bytes:
        """Serialize the payload. ``unpack`` restores an equal payload.

        Args:
            external: Names of blocks, such as ``weight_data``, to replace with keys of named data in the program (see
                ``external_key``). This requires ExecuTorch 1.5 or newer. Delegates with equal data share one copy.
        """
        blocks = {
            _BEGIN: b"",
            "cmd_data": self.commands,
            "weight_data": self.weights,
            "scratch_size": struct.pack("<I", self.scratch_bytes),
            "inputs": _pack_tensors(self.inputs),
            "outputs": _pack_tensors(self.outputs),
            _END: b"",
        }
        parts = []
        for name, data in blocks.items():
            if name in external:
                data = external_key(data).encode()
            header = _HEADER.pack(name.encode(), len(data), _EXTERNAL if name in external else 0, bytes(11))
            parts += [header, data, bytes(-len(data) % ALIGNMENT)]
        return b"".join(parts)

    @classmethod
    def unpack(cls, blob: bytes | bytearray | memoryview, named: Mapping[str, bytes] | None = None) -> DelegatePayload:
        """Parse an untrusted blob. Raise PayloadError if it is malformed.

        ``named`` is the program's named data, to which external blocks refer.
        """
        blocks = _read_blocks(memoryview(blob).cast("B"), named or {})
        if len(blocks["scratch_size"]) != 4:
            raise PayloadError(f"block scratch_size has {len(blocks['scratch_size'])} bytes; expected 4.")
        return cls(
            bytes(blocks["cmd_data"]),
            bytes(blocks["weight_data"]),
            struct.unpack("<I", blocks["scratch_size"])[0],
            _unpack_tensors("inputs", blocks["inputs"]),
            _unpack_tensors("outputs", blocks["outputs"]),
        )


def external_key(data: bytes) -> str:
    """Return the key under which a program stores the data of an external block."""
    return hashlib.sha256(b"\0" + data).hexdigest()


def _read_blocks(blob: memoryview, named: Mapping[str, bytes]) -> dict[str, memoryview]:
    blocks: dict[str, memoryview] = {}
    position = 0
    while True:
        if len(blob) - position < _HEADER.size:
            raise PayloadError(
                f"the payload ends at byte {len(blob)}, inside the header of a block at byte {position}. It is truncated, or "
                f"{_END} is missing."
            )
        raw_name, length, external, zeros = _HEADER.unpack_from(blob, position)
        name = raw_name.rstrip(b"\0").decode("ascii", "backslashreplace")
        if position == 0 and name != _BEGIN:
            raise PayloadError(f"the first block is {name!r}; expected {_BEGIN}. The file is not an Ethos-U delegate payload.")
        if position and name not in (*_BLOCKS, _END):
            supported = ", ".join((*_BLOCKS, _END))
            raise PayloadError(
                f"unknown block {name!r} at byte {position}; expected one of {supported}. If a newer ExecuTorch wrote this file, "
                "upgrade ethorch."
            )
        if any(zeros) or external not in (0, _EXTERNAL):
            raise PayloadError(
                f"block {name} at byte {position}: the first of the 12 bytes after the length must be 0 or 1, and the others 0."
            )
        start = position + _HEADER.size
        if length < 0 or length > len(blob) - start:
            raise PayloadError(f"block {name} at byte {position} declares {length} bytes; expected 0 to {len(blob) - start} bytes.")
        if name in blocks:
            raise PayloadError(f"block {name} occurs twice, the second time at byte {position}.")
        if name in (_BEGIN, _END) and length:
            raise PayloadError(f"block {name} at byte {position} has {length} bytes; expected an empty block.")
        position = start + length + -length % ALIGNMENT
        if name == _END:
            break
        if name != _BEGIN:
            data = blob[start : start + length]
            blocks[name] = _find_external(name, bytes(data), named) if external else data
    if position != len(blob):
        raise PayloadError(f"{len(blob) - position} bytes follow {_END}; expected the end of the payload.")
    if missing := [name for name in _BLOCKS if name not in blocks]:
        raise PayloadError(f"the payload has no block {', '.join(missing)}; expected the blocks {', '.join(_BLOCKS)}.")
    return blocks


def _find_external(block: str, key: bytes, named: Mapping[str, bytes]) -> memoryview:
    if len(key) != _KEY_BYTES or not key.isascii():
        raise PayloadError(f"block {block} is external with a key of {len(key)} bytes; expected {_KEY_BYTES} ASCII bytes.")
    if (name := key.decode()) not in named:
        raise PayloadError(
            f"block {block} is external, but the program has no data named {name}. The data is in a .ptd file, or is missing. "
            "Compile the model without external blocks, or with ethorch, which stores all data in the .pte."
        )
    return memoryview(named[name])


def _pack_tensors(tensors: tuple[IoTensor, ...]) -> bytes:
    rows = (_TENSOR.pack(*tensor.shape, tensor.element_size, tensor.offset, tensor.region) for tensor in tensors)
    return b"".join((struct.pack("<i", len(tensors)), *rows))


def _unpack_tensors(name: str, data: memoryview) -> tuple[IoTensor, ...]:
    count = struct.unpack_from("<i", data)[0] if len(data) >= 4 else -1
    if count < 0 or len(data) != 4 + count * _TENSOR.size:
        raise PayloadError(
            f"block {name} has {len(data)} bytes and declares {count} tensors; expected 4 + n * {_TENSOR.size} bytes for n tensors."
        )
    rows = (_TENSOR.unpack_from(data, 4 + index * _TENSOR.size) for index in range(count))
    return tuple(IoTensor(row[:RANK], *row[RANK:]) for row in rows)
