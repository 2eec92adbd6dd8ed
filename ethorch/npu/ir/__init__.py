"""Command streams as operations with resolved registers."""

from ethorch.npu.ir.buffers import Buffer, find_buffers
from ethorch.npu.ir.encode import encode
from ethorch.npu.ir.stream import Op, Stream, decode

__all__ = ["Buffer", "Op", "Stream", "decode", "encode", "find_buffers"]
