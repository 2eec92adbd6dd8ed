"""Runs a .pte on this desk: the real ExecuTorch runtime in this process, our delegate, and the NPU machine.

``runtime/*.cpp`` is built on first use into a per-user cache and registered with ExecuTorch as "EthosUBackend". From
then on ExecuTorch hands each delegate's payload and tensors to the library, which calls back into this module.
Operators that no delegate took run on ExecuTorch's CPU kernels.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from ethorch import native
from ethorch import program as programs
from ethorch.errors import HostError, ProgramError
from ethorch.payload import SCRATCH_REGION, DelegatePayload, IoTensor

if TYPE_CHECKING:
    import numpy as np
    import torch

    from ethorch import npu

BACKEND_ID = "EthosUBackend"
MAX_STAGING_BYTES = 64 << 20  # region 2 is SRAM beside the NPU; systems have a few MiB of it
_STAGING_REGION = 2
_KEPT_PROGRAMS = 8  # parsed command streams, with their decoded weights, kept for further loads of the same payload


class Machine(Protocol):
    """What a delegate is run on: ``ethorch.npu.Machine``, or a stand-in."""

    def region(self, index: int) -> np.ndarray: ...

    def run(self) -> object: ...


class Timed(Machine, Protocol):
    """A machine that knows how long each operator of its last run took."""

    def timeline(self) -> Sequence[tuple[str, float]]: ...


MachineFactory = Callable[[DelegatePayload], Machine]


class HostProgram:
    """One method of a .pte, ready to be called. Made by ``load``.

    Attributes:
        method: the method's name.
        description: the method as the file describes it: values, inputs, operators, calls.
        delegates: the payload of each Ethos-U delegate, in the order of the file.
    """

    def __init__(
        self, data: bytes, method: str, description: programs.Method, machine: MachineFactory, etdump: bool = False
    ):
        self.method = method
        self.description = description
        self.delegates = _payloads(description)
        self._bridge = _bridge()
        self._running = False
        self._bridge.check_registered(description)
        _check_kernel_calls(description)
        with self._bridge.calling(f"load method {method!r}", machine):
            from executorch.runtime import Runtime, Verification

            self._program = Runtime.get().load_program(
                data, verification=Verification.InternalConsistency, enable_etdump=etdump
            )
            self._method = self._program.load_method(method)

    def __call__(self, *inputs: Any) -> list[Any]:
        """Run once. Inputs may be nested as the exported model's were; outputs come flat, as the runtime gives them.

        Raises:
            HostError: another number of inputs, or one of another type, dtype or shape; or a CPU kernel failed.
            MachineFault: the NPU machine stopped.
        """
        flat = _flatten(inputs)
        wanted = [self.description.values[index] for index in self.description.inputs]
        if len(flat) != len(wanted):
            raise HostError(
                f"method {self.method!r} takes {len(wanted)} inputs, found {len(flat)}. It takes: "
                f"{', '.join(map(str, wanted)) or 'none'}."
            )
        ready = [_check_input(index, value, spec) for index, (value, spec) in enumerate(zip(flat, wanted, strict=True))]
        with self._bridge.calling(f"run method {self.method!r}"):
            if self._running:
                raise HostError(f"method {self.method!r} was called from inside a run of itself; load it once more for that.")
            self._running = True
            try:
                return list(self._method.execute(ready))
            finally:
                self._running = False

    def write_etdump(self, path: str | os.PathLike[str]) -> None:
        """Write what the runs so far have recorded, for ``executorch.devtools.Inspector``.

        It shows each delegate call as a block of events, one for each NPU operator, in seconds of this desk. The wheel's
        runtime records nothing of its own: it is built without ET_EVENT_TRACER_ENABLED.

        Raises:
            HostError: loaded without ``etdump=True``, or nothing has run, or the file cannot be written.
        """
        with native.REDIRECTING:
            if not self._program._program.has_etdump():
                raise HostError("the program was loaded without etdump=True.")
            with self._bridge.calling("write an ETDump"):
                self._program.write_etdump_result_to_file(os.fspath(path), "")
        if not Path(path).is_file():
            raise HostError(f"ExecuTorch wrote no {os.fspath(path)}: nothing has run, or it cannot write there.")


def load(
    source: str | os.PathLike[str] | bytes,
    method: str = "forward",
    *,
    machine: MachineFactory | None = None,
    trace: Any = None,
    etdump: bool = False,
) -> HostProgram:
    """Load one method of a .pte, made by ethorch or by ExecuTorch's own Arm backend.

    Args:
        source: path or contents of the .pte.
        method: which entry point.
        machine: makes what each delegate runs on; None takes ``ethorch.npu.Machine``.
        trace: handed to each ``ethorch.npu.Machine``.
        etdump: record profiling events, for ``HostProgram.write_etdump``.

    Raises:
        ProgramError, PayloadError: the file or a delegate in it is malformed.
        HostError: no such file or method, no compiler, a backend or operator that this runtime lacks.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
    else:
        try:
            data = Path(source).read_bytes()
        except OSError as error:
            raise HostError(f"cannot read {os.fspath(source)}: {error.strerror}.") from None
    methods = programs.read(data).methods
    if method not in methods:
        raise HostError(f"the program has no method {method!r}; it has {', '.join(map(repr, sorted(methods)))}.")
    return HostProgram(data, method, methods[method], machine or (lambda payload: npu_machine(payload, trace)), etdump)


# ---------------------------------------------------------------------------------------------------------------------
# The NPU side


def npu_machine(payload: DelegatePayload, trace: Any = None) -> Machine:
    """A fresh ``ethorch.npu.Machine`` for a payload; the parsed stream and decoded weights are shared between loads."""
    from ethorch import npu

    program, staging = _npu_program(payload)
    return npu.Machine(program, payload.scratch_bytes, staging, trace=trace)


_programs: OrderedDict[tuple[bytes, bytes], tuple[npu.Program, int]] = OrderedDict()
_programs_lock = threading.Lock()


def _npu_program(payload: DelegatePayload) -> tuple[npu.Program, int]:
    from ethorch import npu

    key = (hashlib.sha256(payload.commands).digest(), hashlib.sha256(payload.weights).digest())
    with _programs_lock:
        if key not in _programs:
            program = npu.Program(payload.commands, payload.weights)
            _programs[key] = (program, staging_bytes(program))
            if len(_programs) > _KEPT_PROGRAMS:
                _programs.popitem(last=False)
        _programs.move_to_end(key)
        return _programs[key]


def staging_bytes(program: npu.Program) -> int:
    """Size of region 2 that is enough for a command stream; 0 when it uses none.

    The payload does not say: on a board this is one buffer, as large as the platform has. Here it is the highest
    address that any operation can reach in region 2, by its registers; never more than MAX_STAGING_BYTES.
    """
    highest = 0
    for op in program.operations():
        highest = max(highest, *(end for region, end in _reaches(op) if region == _STAGING_REGION), 0)
    return min(-(-highest // 16) * 16, MAX_STAGING_BYTES)


def _reaches(op: npu.stream.Operation) -> Iterator[tuple[int, int]]:
    """(region, end address) of all that an operation's registers point at; it may touch less, not more."""
    state = op.state
    if op.name == "NPU_OP_DMA_START":
        mode = state["DMA0_SRC_REGION.stride_mode"]
        for end in ("SRC", "DST"):
            if state[f"DMA0_{end}_REGION.internal"]:
                continue
            inner = [abs(state.get(key, 0)) for key in ("DMA0_SKIP0", f"DMA0_{end}_STRIDE0")]
            outer = [abs(state.get(key, 0)) for key in ("DMA0_SKIP1", f"DMA0_{end}_STRIDE1")]
            size = state["DMA0_LEN"]
            if mode >= 1:
                size = max(state["DMA0_SIZE0"], 1) * (size + max(inner))
            if mode >= 2:
                size = max(state["DMA0_SIZE1"], 1) * (size + max(outer))
            if state.get(f"DMA0_{end}_REGION.indexed"):
                size += (state["DMA0_IDX_MAX"] + 1) * max(inner)
            yield state[f"DMA0_{end}_REGION.region"], state[f"DMA0_{end}"] + size
        if "DMA0_IDX" in state:
            yield state["DMA0_IDX_REGION"], state["DMA0_IDX"] + 4 * max(state["DMA0_SIZE0"], 1)
        return
    if op.name not in (
        "NPU_OP_CONV",
        "NPU_OP_DEPTHWISE",
        "NPU_OP_POOL",
        "NPU_OP_ELEMENTWISE",
        "NPU_OP_RESIZE",
    ):
        return
    for tensor in ("IFM", "IFM2", "OFM"):
        # Rows and columns of the first tile bound those of the others; an 8-byte element is the largest.
        depth = state["OFM_DEPTH"] if tensor == "OFM" else max(state["IFM_DEPTH"], state["OFM_DEPTH"])
        rows = max(state[f"{tensor}_HEIGHT0"], state[f"{tensor}_HEIGHT1"])
        extent = (
            (rows - 1) * abs(state[f"{tensor}_STRIDE_Y"])
            + (state[f"{tensor}_WIDTH0"] - 1) * abs(state[f"{tensor}_STRIDE_X"])
            + (depth - 1) // 16 * abs(state[f"{tensor}_STRIDE_C"])
            + depth * 8
        )
        yield state[f"{tensor}_REGION"], max(state[f"{tensor}_BASE{tile}"] for tile in range(4)) + extent
    for kind in ("WEIGHT", "SCALE"):
        for core in ("", "1", "2", "3"):
            if f"{kind}{core}_BASE" in state:
                yield state[f"{kind}_REGION"], state[f"{kind}{core}_BASE"] + state[f"{kind}{core}_LENGTH"]


class _Runner:
    """One delegate inside the runtime: its payload and its machine."""

    def __init__(self, payload: DelegatePayload, machine: Machine):
        self.payload, self.machine = payload, machine
        self.started = 0  # of the last run, in nanoseconds

    def events(self) -> Iterator[tuple[str, int, int]]:
        """(operator, start, end in nanoseconds) of the last run, one after the other."""
        if not hasattr(self.machine, "timeline"):
            return
        start = self.started
        for name, seconds in cast(Timed, self.machine).timeline():
            end = start + int(seconds * 1e9)
            yield name, start, end
            start = end

    def run(self, inputs: Any, outputs: Any) -> None:
        """Copy inputs in, run, copy outputs out. The C++ side has checked the number and size of both."""
        self.started = time.monotonic_ns()
        if not self.payload.scratch_bytes:  # so there are no tensors either
            self.machine.run()
            return
        scratch = self.machine.region(SCRATCH_REGION)
        if scratch.nbytes < self.payload.scratch_bytes or not scratch.flags.c_contiguous:
            raise HostError(
                f"the machine's scratch region has {scratch.nbytes} bytes; the payload needs "
                f"{self.payload.scratch_bytes}."
            )
        base = scratch.ctypes.data
        for index, tensor in enumerate(self.payload.inputs):
            ctypes.memmove(base + tensor.offset, inputs[index], tensor.nbytes)
        self.machine.run()
        for index, tensor in enumerate(self.payload.outputs):
            ctypes.memmove(outputs[index], base + tensor.offset, tensor.nbytes)


# ---------------------------------------------------------------------------------------------------------------------
# Checks


def _payloads(description: programs.Method) -> tuple[DelegatePayload, ...]:
    """Every Ethos-U payload of a method, each call of it checked against it to the byte."""
    payloads = {
        index: DelegatePayload.unpack(delegate.blob)
        for index, delegate in enumerate(description.delegates)
        if delegate.id == BACKEND_ID
    }
    for call in description.calls:
        if call.delegate not in payloads:
            continue
        payload = payloads[call.delegate]
        tensors = (*payload.inputs, *payload.outputs)
        where = f"delegate {call.delegate} of method {description.name!r}"
        if len(call.args) != len(tensors):
            raise ProgramError(f"{where} is called with {len(call.args)} values; its payload has {len(tensors)}.")
        for number, (arg, tensor) in enumerate(zip(call.args, tensors, strict=True)):
            _check_delegate_argument(f"value {number} of {where}", description.values[arg], tensor)
    return tuple(payloads.values())


def _check_delegate_argument(what: str, value: programs.Value, tensor: IoTensor) -> None:
    import torch

    if value.kind != "tensor" or value.dtype.startswith(("float", "bfloat")):
        raise ProgramError(f"{what} is {value}; an NPU takes integer and bool tensors only.")
    dtype: torch.dtype = getattr(torch, value.dtype)
    elements = 1
    for size in value.shape:
        elements *= size
    if dtype.itemsize != tensor.element_size or (elements * dtype.itemsize != tensor.nbytes and not value.dynamic):
        raise ProgramError(
            f"{what} is {value}, but the payload expects {tensor.nbytes} bytes in elements of {tensor.element_size}."
        )


# Kinds of values that a schema's type admits. A kernel that meets another kind aborts the process.
_ADMITS = {
    "Tensor": {"tensor"},
    "int": {"int"},
    "SymInt": {"int"},
    "bool": {"bool"},
    "float": {"double", "int"},
    "number": {"int", "double", "bool"},
    "str": {"string"},
    "List[int]": {"int[]"},
    "List[SymInt]": {"int[]"},
    "List[float]": {"double[]"},
    "List[bool]": {"bool[]"},
    "List[Tensor]": {"tensor[]"},
    "List[Optional[Tensor]]": {"tensor?[]", "tensor[]"},
}


def _check_kernel_calls(description: programs.Method) -> None:
    """ProgramError when an operator gets a value of a kind its schema does not admit, or another number of them."""
    for call in description.calls:
        if call.delegate is not None or (kinds := _schema(call.operator)) is None:
            continue
        where = f"operator {call.operator} of method {description.name!r}"
        if not len(kinds) <= len(call.args) <= len(kinds) + 16:  # outputs are listed once more behind the arguments
            raise ProgramError(f"{where} is called with {len(call.args)} values; it takes {len(kinds)}.")
        for number, (arg, admitted) in enumerate(zip(call.args, kinds, strict=False)):
            value = description.values[arg]
            if admitted and value.kind not in admitted:
                raise ProgramError(f"{where}: argument {number} is {value}; it takes {' or '.join(sorted(admitted))}.")
            for item in value.items if value.kind in ("tensor[]", "tensor?[]", "int[]") else ():
                expected = "int" if value.kind == "int[]" else "tensor"
                kind = description.values[item].kind if 0 <= item < len(description.values) else "none"
                if kind != expected and not (value.kind == "tensor?[]" and (item == -1 or kind == "none")):
                    raise ProgramError(f"{where}: argument {number} lists {kind}, not {expected}.")


@lru_cache(maxsize=4096)
def _schema(operator: str) -> tuple[frozenset[str], ...] | None:
    """For each argument, the kinds it may be (empty: anything); None for an operator that torch does not know."""
    import torch

    name, _, overload = operator.partition(".")
    try:
        schema = torch._C._get_schema(name, overload)
    except RuntimeError:
        return None
    kinds = []
    for argument in schema.arguments:
        text = str(argument.type)
        optional = text.startswith("Optional[")
        admitted = _ADMITS.get(text.removeprefix("Optional[").removesuffix("]") if optional else text, set())
        kinds.append(frozenset(admitted | ({"none"} if optional and admitted else set())))
    return tuple(kinds)


def _flatten(inputs: Sequence[Any]) -> list[Any]:
    if not any(isinstance(value, (list, tuple, dict)) for value in inputs):
        return list(inputs)
    from torch.utils import _pytree

    return _pytree.tree_leaves(tuple(inputs))


def _short(value: Any) -> str:
    return f"{type(value).__name__} {' '.join(repr(value).split()):.40}"


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "double": (int, float),
    "bool": (bool,),
    "none": (type(None),),
    "string": (str,),
}


def _check_input(index: int, value: Any, spec: programs.Value) -> Any:
    """The input as the runtime takes it: laid out in the program's dimension order. HostError for any other."""
    import torch

    if spec.kind != "tensor":
        allowed = _PYTHON_TYPES.get(spec.kind, (object,))
        if not isinstance(value, allowed) or (spec.kind == "int" and isinstance(value, bool)):
            raise HostError(f"input {index} is {_short(value)}; the program takes {spec}.")
        return float(value) if isinstance(value, int) and spec.kind == "double" else value
    if not isinstance(value, torch.Tensor):
        raise HostError(f"input {index} is {_short(value)}; the program takes a tensor, {spec}.")
    dtype = getattr(torch, spec.dtype)
    found = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if value.dtype != dtype:
        raise HostError(f"input {index} is {found}; the program takes {spec}. Convert it: x.to(torch.{spec.dtype}).")
    fits = len(value.shape) == len(spec.shape) and all(
        size == most or (spec.dynamic and size <= most) for size, most in zip(value.shape, spec.shape, strict=True)
    )
    if not fits:
        limit = "at most " if spec.dynamic else ""
        raise HostError(f"input {index} is {found}; the program was exported for {limit}{spec}, no other shape.")
    if value.device.type != "cpu" or value.layout != torch.strided:
        raise HostError(f"input {index} is on {value.device} with layout {value.layout}; pass a dense CPU tensor.")
    value = value.detach()
    order = spec.dim_order
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return value.permute(order).contiguous().permute(inverse)


# ---------------------------------------------------------------------------------------------------------------------
# The bridge to C++


class _Calls(threading.local):
    """What happened in the runtime call that this thread is in."""

    def __init__(self) -> None:
        self.depth = 0
        self.machine: MachineFactory | None = None
        self.error: BaseException | None = None
        self.messages: list[str] = []


class _Bridge:
    """The loaded library, registered with ExecuTorch, and the delegates that live inside it."""

    _OPEN = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
    _RUN = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_void_p)
    )
    _CLOSE = ctypes.CFUNCTYPE(None, ctypes.c_size_t)
    _REPORT = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
    _SINK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64)
    _EVENTS = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)

    def __init__(self) -> None:
        self.calls = _Calls()
        self.runners: dict[int, _Runner] = {}
        self._next = 1
        self._lock = threading.Lock()
        copies = _executorch_copies()
        self.library = _load_library()
        self._callbacks = (
            self._OPEN(self._open),
            self._RUN(self._run),
            self._CLOSE(self._close),
            self._REPORT(self._report),
            self._EVENTS(self._events),
        )
        self.library.ethorch_set_callbacks(*self._callbacks)
        # Delegates may be destroyed after Python is gone.
        atexit.register(self.library.ethorch_set_callbacks, *[None] * len(self._callbacks))
        results = []
        for register_backend, get_pal_impl in copies:
            results.append(self.library.ethorch_register(ctypes.c_void_p(register_backend)))
            self.library.ethorch_set_platform(ctypes.c_void_p(get_pal_impl))
        if not any(result == 0 for result in results):
            raise HostError(
                f"ExecuTorch refused to register {BACKEND_ID} (error codes {results}); another delegate of this name "
                "may already be registered in this process. Use a process without it."
            )

    @contextmanager
    def calling(self, what: str, machine: MachineFactory | None = None) -> Iterator[None]:
        """A call into ExecuTorch: its aborts become exceptions, and the exception of a machine becomes the call's.

        One thread at a time: see ``native.REDIRECTING``.
        """
        with native.REDIRECTING:
            yield from self._calling(what, machine)

    def _calling(self, what: str, machine: MachineFactory | None) -> Iterator[None]:
        calls = self.calls
        before = (calls.machine, calls.error, calls.messages)
        calls.machine, calls.error, calls.messages = machine, None, []
        calls.depth += 1
        self.library.ethorch_guard(1)
        try:
            yield
        except Exception as error:
            if isinstance(error, HostError):
                raise
            if calls.error is not None:
                raise calls.error from None
            said = "; ".join([*dict.fromkeys(calls.messages), str(error).strip().splitlines()[0] if str(error) else ""])
            raise HostError(f"ExecuTorch could not {what}: {said}") from error
        finally:
            calls.depth -= 1
            calls.machine, calls.error, calls.messages = before
            if not calls.depth:
                self.library.ethorch_guard(0)

    def check_registered(self, description: programs.Method) -> None:
        """HostError when the program needs a backend or operator that this runtime does not have."""
        from executorch.runtime import Runtime

        runtime = Runtime.get()
        known = {*runtime.backend_registry.registered_backend_names, BACKEND_ID}
        for delegate in description.delegates:
            if delegate.id not in known:
                have = ", ".join(sorted(known))
                raise HostError(f"the program needs backend {delegate.id!r}; this runtime has {have}.")
        missing = sorted(set(description.operators) - runtime.operator_registry.operator_names)
        if missing:
            raise HostError(
                "the program needs operators that ExecuTorch's desk runtime has no CPU kernel for: "
                f"{', '.join(missing)}."
            )

    def _open(self, address: int, size: int) -> int:
        try:
            factory = self.calls.machine
            if factory is None:
                raise HostError(f"a program with {BACKEND_ID} delegates was loaded without ethorch.host.load.")
            payload = DelegatePayload.unpack(ctypes.string_at(address, size))
            runner = _Runner(payload, factory(payload))
            with self._lock:
                number, self._next = self._next, self._next + 1
                self.runners[number] = runner
            return number
        except BaseException as error:
            self.calls.error = error
            return 0

    def _run(self, number: int, inputs: Any, outputs: Any) -> int:
        try:
            self.runners[number].run(inputs, outputs)
            return 0
        except BaseException as error:
            self.calls.error = error
            return 1

    def _events(self, number: int, sink: int, context: int) -> None:
        give = self._SINK(sink)
        for name, start, end in self.runners[number].events():
            give(context, name.encode(), start, end)

    def _close(self, number: int) -> None:
        self.runners.pop(number, None)

    def _report(self, message: bytes) -> None:
        self.calls.messages.append(message.decode(errors="replace"))


_bridge_lock = threading.Lock()
_the_bridge: _Bridge | None = None


def _bridge() -> _Bridge:
    global _the_bridge
    with _bridge_lock:
        if _the_bridge is None:
            _the_bridge = _Bridge()
        return _the_bridge


def _executorch_copies() -> list[tuple[int, int]]:
    """Addresses of register_backend and get_pal_impl in every copy of ExecuTorch's core in this process.

    Several shared objects of the wheel carry a copy, and which of them the Python bindings use depends on the order of
    imports; registering with each makes the order irrelevant.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "this API is experimental"
            portable = import_module("executorch.extension.pybindings._portable_lib")
            import_module("executorch.runtime")
            quantized = import_module("executorch.kernels.quantized")
    except ImportError as error:
        raise HostError(
            f"ExecuTorch's desk runtime cannot be imported ({error}): pip install 'executorch==1.4.*'."
        ) from None
    paths: list[str | None] = [None, portable.__file__]
    paths += [str(path) for path in Path(str(quantized.__file__)).parent.glob("*quantized_ops_aot_lib*")]
    names = (
        "_ZN10executorch7runtime16register_backendERKNS0_7BackendE",
        "_ZN10executorch7runtime12get_pal_implEv",
    )
    copies: dict[int, tuple[int, int]] = {}
    for path in paths:
        library = ctypes.CDLL(path)
        try:
            addresses = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names]
        except AttributeError:
            continue
        copies[addresses[0]] = (addresses[0], addresses[1])
    if not copies:
        raise HostError("this ExecuTorch exports no register_backend; executorch 1.4 is the release known to work.")
    return list(copies.values())


# ---------------------------------------------------------------------------------------------------------------------
# Building


def build_library() -> Path:
    """The delegate library for the installed ExecuTorch; see ``native.build``."""
    sources = Path(__file__).parent / "runtime"
    include = _executorch_include()
    try:
        executorch_version = version("executorch")
    except PackageNotFoundError:
        executorch_version = "unknown"
    return native.build(
        "host",
        [sources / name for name in ("payload.cpp", "ethosu_backend.cpp", "driver_host.cpp")],
        [
            "-O2",
            "-DC10_USING_CUSTOM_GENERATED_MACROS",
            "-DET_LOG_ENABLED=0",
            f"-I{include}",
            f"-I{include}/executorch/runtime/core/portable_type/c10",
        ],
        headers=[sources / name for name in ("payload.h", "driver.h")],
        depends=executorch_version,
        purpose="ethorch.host",
    )


def _load_library() -> ctypes.CDLL:
    library = native.load(build_library)
    library.ethorch_register.restype = ctypes.c_uint32
    library.ethorch_parse.restype = ctypes.c_char_p
    library.ethorch_parse.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    return library


def _executorch_include() -> Path:
    spec = find_spec("executorch")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (include := Path(folder) / "include").is_dir():
            return include
    raise HostError("ExecuTorch's C++ headers were not found: pip install 'executorch==1.4.*'.")
