"""Count the bytes that ExecuTorch's runtime allocates when it loads a method.

The counted structures and their order are those of ``Method::init`` in executorch 1.4 and 1.5, so that padding is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ethorch.formats.pte_types import Call, Delegate, Method, Value

Layout = tuple[int, int]  # size and alignment in bytes


@dataclass(frozen=True)
class Abi:
    """The sizes and alignments of ExecuTorch's structures on a processor.

    Attributes:
        pointer: Size of pointers and of size_t.
        sizes: Size and alignment of each C++ type.
    """

    pointer: int
    sizes: Mapping[str, Layout]


# sizeof and alignof in the headers of the executorch 1.4.1 and 1.5.1 wheels, compiled by clang 22 for x86_64-linux-gnu and for
# arm-linux-gnueabihf, which has the calling convention of Cortex-M (AAPCS32). BackendDelegate, Chain and NamedData are private
# types in runtime/executor. Their sizes were measured on copies with the same members.
HOST = Abi(
    8,
    {
        "EValue": (16, 8), "TensorImpl": (64, 8), "Tensor": (8, 8), "optional<Tensor>": (16, 8), "BoxedEvalueList": (24, 8),
        "ArrayRef": (16, 8), "NamedData": (48, 8), "BackendDelegate": (56, 8), "CompileSpec": (24, 8), "Chain": (32, 8),
        "OpFunction": (8, 8), "InstructionArgs": (16, 8), "TensorMeta": (24, 8),
    },
)  # fmt: skip
CORTEX_M = Abi(
    4,
    {
        "EValue": (16, 8), "TensorImpl": (32, 4), "Tensor": (4, 4), "optional<Tensor>": (8, 4), "BoxedEvalueList": (12, 4),
        "ArrayRef": (8, 4), "NamedData": (40, 8), "BackendDelegate": (40, 8), "CompileSpec": (12, 4), "Chain": (16, 4),
        "OpFunction": (4, 4), "InstructionArgs": (8, 4), "TensorMeta": (12, 4),
    },
)  # fmt: skip
#: Number of axes that ExecuTorch reserves for a tensor's dimension order (kTensorDimensionLimit).
_MOST_AXES = 16
#: Heap bytes that Arm's firmware delegate allocates for each delegate: a pointer and eight words (executorch 1.4, 1.5).
DELEGATE_HANDLE_BYTES = 36


class _Pool:
    def __init__(self, abi: Abi):
        self.abi, self.used = abi, 0

    def take(self, layout: Layout, count: int = 1) -> None:
        size, alignment = layout
        self.used = -(-self.used // alignment) * alignment + size * count

    def make(self, name: str, count: int = 1) -> None:
        self.take(self.abi.sizes[name], count)

    def pointers(self, count: int) -> None:
        self.take((self.abi.pointer, self.abi.pointer), count)


def method_pool_bytes(method: Method, abi: Abi = CORTEX_M) -> int:
    """Return the bytes that ``Program::load_method`` requests from a method allocator with an aligned buffer.

    The temporary allocator must provide the bytes returned by ``lookup_bytes``. Otherwise, the runtime also requests these from the
    method allocator. Allocations by delegates are not counted.
    """
    pool = _Pool(abi)
    pool.make("EValue", len(method.values))
    if method.inputs:
        pool.take((1, 1), len(method.inputs))
    external = sum(1 for value in method.values if value.extra and value.extra.external and not value.planned)
    if external:
        pool.make("NamedData", external)
    for value in method.values:
        _value(pool, value)
    pool.make("BackendDelegate", len(method.delegates))
    for delegate in method.delegates:
        _delegate(pool, delegate)
    pool.make("Chain", len(method.chains))
    for chain in method.chains:
        pool.make("OpFunction", len(chain.instructions))
        pool.make("InstructionArgs", len(chain.instructions))
        for step in chain.instructions:
            if isinstance(step, Call):
                pool.pointers(len(step.args))
    return pool.used


def _value(pool: _Pool, value: Value) -> None:
    count = len(value.items)
    if value.kind == "tensor":
        if value.dynamism:
            pool.take((4, 4), len(value.shape))
            pool.take((1, 1), len(value.shape))
        pool.take((4, 4), len(value.shape))  # strides
        pool.make("TensorImpl")
    elif value.kind == "int[]":
        pool.pointers(count)
        pool.take((8, 8), count)
        pool.make("BoxedEvalueList")
    elif value.kind == "tensor[]":
        pool.make("Tensor", count)
        pool.pointers(count)
        pool.make("BoxedEvalueList")
    elif value.kind == "tensor?[]":
        pool.pointers(count)
        pool.make("optional<Tensor>", count)
        pool.make("BoxedEvalueList")
    elif value.kind in ("double[]", "bool[]", "string"):
        pool.make("ArrayRef")


def _delegate(pool: _Pool, delegate: Delegate) -> None:
    pool.make("CompileSpec", len(delegate.compile_specs))


def lookup_bytes(method: Method, abi: Abi = CORTEX_M) -> int:
    """Return the bytes that kernel lookup requests from the temporary allocator, or 0 for a method without kernel calls.

    The runtime requests bytes for 16 axes of each argument, but uses only ``max_lookup_use`` bytes.
    """
    size, _ = abi.sizes["TensorMeta"]
    return max((len(call.args) * (size + _MOST_AXES) for call in method.calls if call.delegate is None), default=0)


def max_lookup_use(method: Method, abi: Abi = CORTEX_M) -> int:
    """Return the temporary bytes that the largest kernel lookup uses for the tensor types and axes of a call."""
    size, _ = abi.sizes["TensorMeta"]
    return max((len(call.args) * size + _axes(method, call) for call in method.calls if call.delegate is None), default=0)


def _axes(method: Method, call: Call) -> int:
    return sum(len(value.shape) for value in (method.values[arg] for arg in call.args) if value.kind == "tensor")


def kernel_temporary_bytes(method: Method) -> int:
    """Return the size of the largest temporary allocation by a kernel.

    In executorch 1.4 and 1.5, only topk allocates: 16 bytes (a value and an index) for each element along the axis.
    """
    calls = [call for call in method.calls if call.operator == "aten::topk.values"]
    shapes = [(method.values[call.args[0]].shape or (1,), int(method.values[call.args[2]].number)) for call in calls]
    return max((shape[axis] * 16 for shape, axis in shapes), default=0)
